"""The interface of ``metalcompute`` 0.2.9 with its documented semantics, run by the OpenCL driver: for ``sys.modules``.

It keeps what a driver can trip over, as read in metalcompute's source:

* the grid has one dimension and is rounded up to whole threadgroups, whose stray threads run;
* a threadgroup has ``32 * (N // 32)`` threads, N being the pipeline's maximum, and N < 32 ends the process;
* an argument that is no ``Buffer`` is copied when the call is made, NumPy integers included;
* a call returns before its run; releasing its handle waits for it. Here a run starts as late as it may: when its handle
  or a later one is released;
* the number of buffers is not checked: missing ones read as zeros, extra ones are ignored;
* buffers cannot be empty, and offer the buffer protocol and nothing else;
* ``#line`` directives are not followed, so messages count the lines of the text that was compiled;
* errors are of one class, and a pipeline state that cannot be made is reported as a command encoder.

``device_names`` is what the machine has, ``largest_threadgroup`` what its pipelines allow, and ``compiled`` holds each
source that was compiled.
"""

from __future__ import annotations

import mmap
import re
from collections import namedtuple
from functools import cache
from typing import Any

import numpy as np

from mpsgrad.devices import Dispatch, find_device
from mpsgrad.errors import ShaderError

device_names = ["Apple stand-in"]
largest_threadgroup = 1024
compiled: list[str] = []

_SIMD_WIDTH = 32
_Information = namedtuple(
    "metalcompute_device", "deviceName recommendedWorkingSetSize maxTransferRate hasUnifiedMemory"
)


class error(Exception):  # noqa: N801, N818
    """``metalcompute.error``."""


class ProcessAborted(BaseException):
    """Where the real package would end the process."""


def get_devices() -> tuple[Any, ...]:
    return tuple(_Information(name, 1 << 34, 0, name.startswith("Apple")) for name in device_names)


class Device:
    def __init__(self, index: int = -1) -> None:
        if not device_names or index >= len(device_names):
            raise error("Cannot create device")
        self._name = device_names[max(index, 0)]
        self._queued: list[_Work] = []

    def __str__(self) -> str:
        return f"metalcompute.Device({self._name})"

    def kernel(self, source: str) -> Kernel:
        return Kernel(self, source)

    def buffer(self, length_or_buffer: Any) -> Buffer:
        try:
            data = memoryview(length_or_buffer)
        except TypeError:
            try:
                return Buffer(self, int(length_or_buffer))
            except TypeError:
                raise error("Unsupported input format") from None
        buffer = Buffer(self, data.nbytes)
        np.frombuffer(buffer, np.uint8)[:] = np.frombuffer(data, np.uint8)
        return buffer


class Buffer(mmap.mmap):
    """Memory of its own with the buffer protocol; what else ``mmap`` offers is refused."""

    def __new__(cls, device: Device, length: int) -> Buffer:
        try:
            if length <= 0:
                raise ValueError
            buffer = super().__new__(cls, -1, length)
        except (OSError, OverflowError, ValueError):
            raise error("Could not make buffer") from None
        buffer._device = device
        return buffer

    def _absent(self, *arguments: Any) -> Any:
        raise TypeError("metalcompute.Buffer has the buffer protocol and nothing else")

    __getitem__ = __setitem__ = __len__ = __iter__ = read = write = seek = size = close = _absent


class Kernel:
    def __init__(self, device: Device, source: str) -> None:
        compiled.append(source)
        text = re.sub(r"(?m)^[ \t]*#[ \t]*line\b.*$", "", source)
        try:
            library = _opencl().compile(text, name="program_source")
        except ShaderError as found:
            place = f"program_source:{found.line}:{found.column or 1}"
            raise error(f"Compilation failed: \n\n{place}: error: {found.message}\n{found.source_line}\n^\n") from None
        self._device = device
        self._library = library

    def function(self, name: str) -> KernelFunction:
        try:
            function = self._library.function(name)
        except KeyError:
            raise error("Function not found") from None
        return KernelFunction(self._device, function)


class KernelFunction:
    """``metalcompute.Function``."""

    def __init__(self, device: Device, function: Any) -> None:
        self._device = device
        self._function = function

    def __call__(self, *arguments: Any) -> Run:
        if len(arguments) < 2:
            raise error("Buffer not found")
        count, *given = arguments
        if not isinstance(count, (int, float, np.number)):
            raise error("First argument should be an integer kernel count")
        buffers = [each if type(each) is Buffer else self._device.buffer(each) for each in given]
        if self._function.threadgroup_size > largest_threadgroup:
            raise error("Cannot create command encoder")
        if any(buffer._device is not self._device for buffer in buffers):
            raise error("Buffer not found")
        return Run(self._device, self._function, int(count), buffers)


class Run:
    """The handle of one call."""

    def __init__(self, device: Device, function: Any, count: int, buffers: list[Buffer]) -> None:
        threads = _SIMD_WIDTH * (function.threadgroup_size // _SIMD_WIDTH)
        if threads == 0:
            raise ProcessAborted("division by zero")
        assert threads == function.threadgroup_size, "the OpenCL kernel cannot run in smaller threadgroups"
        self._work = _Work(function, -(-count // threads), buffers)
        self._queue = device._queued
        self._queue.append(self._work)

    def __del__(self) -> None:
        work = getattr(self, "_work", None)
        while work is not None and not work.done:
            self._queue.pop(0).run()


class _Work:
    def __init__(self, function: Any, threadgroups: int, buffers: list[Buffer]) -> None:
        self.done = False
        self._function = function
        self._threadgroups = threadgroups
        self._buffers = buffers

    def run(self) -> None:
        """Runs the kernel in OpenCL buffers with the same contents and copies them back."""
        device = _opencl()
        bound: dict[int, Any] = {}
        for buffer in self._buffers:
            if id(buffer) not in bound:
                contents = np.frombuffer(buffer, np.uint8)
                bound[id(buffer)] = device.allocate(contents.size)
                bound[id(buffer)].write(contents)
        expected = len(self._function.signature.arguments)
        arguments = [bound[id(buffer)] for buffer in self._buffers[:expected]]
        while len(arguments) < expected:
            zeros = device.allocate(1 << 20)
            zeros.memory[:] = 0
            arguments.append(zeros)
        device.submit([Dispatch(self._function, self._threadgroups, tuple(arguments))]).wait()
        for buffer in self._buffers:
            contents = np.frombuffer(buffer, np.uint8)
            contents[:] = bound[id(buffer)].read(0, contents.size)
        self.done = True


@cache
def _opencl() -> Any:
    return find_device("opencl")
