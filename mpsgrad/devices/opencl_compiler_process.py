"""The process that compiles users' sources, so that a compiler that ends its process does not end the user's.

``opencl_compiler`` runs this file with nothing but the standard library, which is there three times as fast as
``pyopencl``. It says by ``READY`` that it waits for requests. A request is ``REQUEST`` (whether machine code is wanted
or only what is wrong, and how long the rest is), the options, and the source; the answer is ``ANSWER`` (OpenCL's
status or ``APART``, and how long the rest is), and the machine code, the log, or what is apart. The process ends with
the pipe, and after a pause.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import struct
import sys
import threading
from typing import Any, BinaryIO

REQUEST = struct.Struct("<?II")
ANSWER = struct.Struct("<iI")
READY = b"\0"
APART = 1
IDLE_SECONDS = 60.0

# The first program takes a tenth of a second longer than others, which passes while the user's source is translated.
_FIRST = b"__kernel void first(__global float* x) { x[get_global_id(0)] = 0; }", b"-cl-std=CLC++2021"

_CPU = ctypes.c_uint64(1 << 1)
_PLATFORM_NAME, _DEVICE_NAME = 0x0902, 0x102B
_BUILD_LOG = 0x1183
_BINARY_SIZES, _BINARIES = 0x1165, 0x1166
_OF_SIMDGROUPS, _KERNEL = b"intel_reqd_sub_group_size", b"__kernel void "


class Compiler:
    """OpenCL's compiler for one device, through the C interface of ``library``."""

    def __init__(self, library: str, platform_name: str, device_name: str) -> None:
        self._cl: Any = ctypes.CDLL(library)
        for name in ("clCreateContext", "clCreateProgramWithSource"):
            getattr(self._cl, name).restype = ctypes.c_void_p
        self._device = self._found(platform_name, device_name)
        status = ctypes.c_int()
        devices = ctypes.byref(self._device)
        self._context = ctypes.c_void_p(self._cl.clCreateContext(None, 1, devices, None, None, ctypes.byref(status)))
        if status.value:
            raise OSError(f"there is no context: {status.value}")

    def compile(self, source: bytes, options: bytes, is_built: bool) -> tuple[int, bytes]:
        """The status, and the machine code, if ``is_built``, or the log where the status is not 0.

        ``APART`` and names: see ``simdgroups_apart``.
        """
        cl, status = self._cl, ctypes.c_int()
        text, length = ctypes.c_char_p(source), ctypes.c_size_t(len(source))
        program = ctypes.c_void_p(
            cl.clCreateProgramWithSource(
                self._context, 1, ctypes.byref(text), ctypes.byref(length), ctypes.byref(status)
            )
        )
        if status.value:
            return status.value, b""
        devices = ctypes.byref(self._device)
        if is_built:
            failed = cl.clBuildProgram(program, 1, devices, options, None, None)
        else:
            failed = cl.clCompileProgram(program, 1, devices, options, 0, None, None, None, None)
        answer = b""
        apart: list[bytes] = []
        if failed or is_built:
            answer = _text(lambda *out: cl.clGetProgramBuildInfo(program, self._device, _BUILD_LOG, *out))
            apart = [] if failed else simdgroups_apart(source, answer)
        if apart:
            failed, answer = APART, b", ".join(apart)
        elif not failed and is_built:
            size = ctypes.c_size_t()
            cl.clGetProgramInfo(program, _BINARY_SIZES, ctypes.c_size_t(8), ctypes.byref(size), None)
            binary = ctypes.create_string_buffer(size.value)
            pointer = ctypes.c_void_p(ctypes.addressof(binary))
            cl.clGetProgramInfo(program, _BINARIES, ctypes.c_size_t(8), ctypes.byref(pointer), None)
            answer = binary.raw
        cl.clReleaseProgram(program)
        return failed, answer

    def _found(self, platform_name: str, device_name: str) -> ctypes.c_void_p:
        cl, count = self._cl, ctypes.c_uint()
        cl.clGetPlatformIDs(0, None, ctypes.byref(count))
        platforms = (ctypes.c_void_p * count.value)()
        cl.clGetPlatformIDs(count.value, platforms, None)
        for platform in map(ctypes.c_void_p, platforms):
            name = _text(lambda *out, of=platform: cl.clGetPlatformInfo(of, _PLATFORM_NAME, *out))
            if name.decode() != platform_name or cl.clGetDeviceIDs(platform, _CPU, 0, None, ctypes.byref(count)):
                continue
            devices = (ctypes.c_void_p * count.value)()
            cl.clGetDeviceIDs(platform, _CPU, count.value, devices, None)
            for device in map(ctypes.c_void_p, devices):
                if _text(lambda *out, of=device: cl.clGetDeviceInfo(of, _DEVICE_NAME, *out)).decode() == device_name:
                    return device
        raise OSError(f"there is no {device_name} of {platform_name}")


def simdgroups_apart(source: bytes, log: bytes) -> list[bytes]:
    """The kernels of ``source`` that use simdgroups and whose threads would run one after the other, says ``log``.

    Intel's compiler does that where it finds no way to run them abreast, and takes each thread for a simdgroup.
    """
    names = [part.split(_KERNEL, 1)[-1].split(b"(", 1)[0].strip() for part in source.split(_OF_SIMDGROUPS)[1:]]
    return [name for name in names if b'Kernel "%b" was not vectorized' % name in log]


def _text(ask: Any) -> bytes:
    """What a function of OpenCL that gives text has to say."""
    size = ctypes.c_size_t()
    ask(ctypes.c_size_t(0), None, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value + 1)
    ask(ctypes.c_size_t(size.value), text, None)
    return text.value


def _end_with(requests: BinaryIO) -> None:
    """Ends this process once nobody can ask any more, also while it compiles: some sources take very long."""
    asked = select.poll()
    asked.register(requests, 0)
    while not any(event & select.POLLHUP for _, event in asked.poll()):
        pass
    os._exit(0)


def _serve(compiler: Compiler, requests: BinaryIO, answers: BinaryIO) -> None:
    compiler.compile(*_FIRST, True)
    answers.write(READY)
    answers.flush()
    while True:
        idle = threading.Timer(IDLE_SECONDS, os._exit, (0,))
        idle.daemon = True
        idle.start()
        head = requests.read(REQUEST.size)
        idle.cancel()
        if len(head) < REQUEST.size:
            return
        is_built, *lengths = REQUEST.unpack(head)
        options, source = (requests.read(length) for length in lengths)
        status, answer = compiler.compile(source, options, is_built)
        answers.write(ANSWER.pack(status, len(answer)) + answer)
        answers.flush()


def main() -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        # A compiler that crashes is no news to whoever collects crashes.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.fdopen(os.dup(1), "wb")
    # What the compiler prints is no answer.
    os.dup2(2, 1)
    if hasattr(select, "poll"):
        threading.Thread(target=_end_with, args=(sys.stdin.buffer,), daemon=True).start()
    _serve(Compiler(*sys.argv[1:]), sys.stdin.buffer, answers)
    # Intel's runtime takes long to unload.
    os._exit(0)


if __name__ == "__main__":
    main()
