"""CPUs through OpenCL: Metal source is translated to C++ for OpenCL 2021 and run by Intel's OpenCL CPU runtime.

The runtime comes from PyPI (``intel-opencl-rt``) and runs on Intel and AMD processors. Host and device share one
memory, so a buffer is plain host memory that NumPy views directly.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib.metadata
import importlib.util
import mmap
import os
import re
import sys
import tempfile
import warnings
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any

import numpy as np

from mpsgrad.devices import cache, translations
from mpsgrad.devices.contract import (
    Buffer,
    CompileOptions,
    Device,
    Dispatch,
    Submission,
    unknown_kernel,
)
from mpsgrad.devices.opencl_brief import ImmediateQueue
from mpsgrad.devices.opencl_compiler import CompilerFault, CompilerRefusal, OpenCLCompiler
from mpsgrad.devices.opencl_launch import (
    OpenCLLibrary,
    OpenCLRecording,
    OpenCLSubmission,
    c_library,
    engine_error,
    enqueued,
)
from mpsgrad.devices.pool import pooled_size
from mpsgrad.errors import DeviceError, ShaderError
from mpsgrad.msl import (
    SIZES_SUFFIX,
    KernelSignature,
    Launch,
    Translation,
    parse_compiler_log,
    shader_error,
)
from mpsgrad.msl.signature import PART_MACRO

if TYPE_CHECKING:
    import pyopencl

BUILD_OPTIONS = ("-cl-std=CLC++2021", "-cl-mad-enable", "-cl-no-signed-zeros")
# Not -cl-fast-relaxed-math: it would let the compiler drop tests for NaN and infinity, which many kernels rely on
# although fast math does not promise that they work on Apple GPUs.
FAST_MATH_OPTIONS = (*BUILD_OPTIONS, "-cl-unsafe-math-optimizations")
STRICT_MATH_OPTIONS = ("-cl-std=CLC++2021", "-cl-fp32-correctly-rounded-divide-sqrt")
INSTALL_HINT = "pip install pyopencl intel-opencl-rt intel-cmplr-lib-rt"

_RUNTIME_DISTRIBUTION = "intel-opencl-rt"
_RUNTIME_LIBRARY = "intelocl64.dll" if sys.platform == "win32" else "libintelocl.so"
_REQUIRED_EXTENSIONS = ("cl_khr_fp16", "cl_khr_subgroup_shuffle", "cl_intel_required_subgroup_size")
_POOL_LIMIT_BYTES = 4 << 30
# pyopencl writes source that does not compile to a temporary file, which it leaves behind.
_SAVED_SOURCE = re.compile(r"^\(source saved as (.+)\)$", re.MULTILINE)
_HUGE_PAGE_BYTES = 2 << 20
_LOCAL_EXECUTION = 1 << 31
"""The property of queues of ``cl_intel_exec_by_local_thread``."""


def _runtime_library() -> Path | None:
    """The runtime's shared library as pip installed it, or None."""
    try:
        files = importlib.metadata.files(_RUNTIME_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name == _RUNTIME_LIBRARY:
            return Path(str(file.locate())).resolve()
    return None


def _register_runtime() -> None:
    """Tells the OpenCL loader where pip put the runtime; must run before ``pyopencl`` is imported.

    The ``.icd`` files inside the wheel name a folder that does not exist on the user's machine. A folder of corrected
    ones is written beside the cache, with the system's own entries, unless the user points the loader elsewhere.
    """
    library = _runtime_library()
    if library is None:
        return
    if sys.platform == "win32":
        os.environ.setdefault("OCL_ICD_FILENAMES", str(library))
        return
    if "OCL_ICD_VENDORS" in os.environ:
        return
    entries = {"mpsgrad-intel-cpu.icd": f"{library}\n"}
    for system in sorted(Path("/etc/OpenCL/vendors").glob("*.icd")):
        try:
            entries[system.name] = system.read_text()
        except OSError:
            continue
    name = f"vendors-{cache.key(*entries, *entries.values())[:16]}"
    for parent in (cache.directory(), Path(tempfile.gettempdir()) / f"mpsgrad-{os.getuid()}"):
        folder = parent / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for file, content in entries.items():
                path = folder / file
                if not path.is_file() or path.read_text() != content:
                    partial = folder / f".{os.getpid()}-{file}"
                    partial.write_text(content)
                    os.replace(partial, path)
        except OSError:
            continue
        os.environ["OCL_ICD_VENDORS"] = str(folder)
        return


def unavailable_reason() -> str | None:
    """Why no device of this driver can be used, in words that say what to install; None if there is one."""
    if importlib.util.find_spec("pyopencl") is None:
        return f"the Python package pyopencl is not installed ({INSTALL_HINT})"
    handles = _handles()
    if any(_missing(handle) is None for handle in handles):
        return None
    return f"{'; '.join(refused()) or 'no OpenCL device was found'} ({INSTALL_HINT})"


def devices() -> list[Device]:
    """The devices that can run translated Metal kernels; empty if there are none."""
    usable = (handle for handle in _handles() if _missing(handle) is None)
    return [OpenCLDevice(handle, index) for index, handle in enumerate(usable)]


def refused() -> list[str]:
    """One line for each OpenCL device that is present but cannot run Metal kernels, with the reason."""
    return [
        f"{handle.name.strip()} ({handle.platform.name.strip()}): {reason}"
        for handle in _handles()
        if (reason := _missing(handle)) is not None
    ]


def _handles() -> list[pyopencl.Device]:
    """Every OpenCL device; none without ``pyopencl``, without a platform, and on platforms that do not answer."""
    if importlib.util.find_spec("pyopencl") is None:
        return []
    _register_runtime()
    import pyopencl as cl

    handles: list[pyopencl.Device] = []
    with contextlib.suppress(cl.Error):
        for platform in cl.get_platforms():
            with contextlib.suppress(cl.Error):
                handles += platform.get_devices()
    return handles


def _missing(device: pyopencl.Device) -> str | None:
    """What ``device`` lacks, or None if it has everything."""
    extensions = device.extensions.split()
    missing = [name for name in _REQUIRED_EXTENSIONS if name not in extensions]
    if missing:
        return "lacks " + ", ".join(missing)
    if not device.host_unified_memory:
        return "does not share memory with the host"
    if not _takes_addresses(device):
        return "does not let kernels use any address of the host's"
    return None


def _takes_addresses(device: pyopencl.Device) -> bool:
    import pyopencl as cl

    with contextlib.suppress(cl.Error):
        return bool(device.svm_capabilities & cl.device_svm_capabilities.FINE_GRAIN_SYSTEM)
    return False


class _Memory:
    """A page-aligned block of host memory with its OpenCL handle, recycled through ``free``, a list of such blocks."""

    __slots__ = ("address", "array", "free", "handle", "size")

    def __init__(self, context: pyopencl.Context, size: int, free: list[_Memory]) -> None:
        import pyopencl as cl

        self.size = size
        self.free = free
        # Python's default is a shared mapping, which Linux does not back by huge pages.
        private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
        mapping = mmap.mmap(-1, size, **private)
        if size >= _HUGE_PAGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):
                mapping.madvise(mmap.MADV_HUGEPAGE)
        self.array = np.frombuffer(mapping, np.uint8)
        self.address = self.array.ctypes.data
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
        self.handle = cl.Buffer(context, flags, hostbuf=self.array)


class _ForeignMemory:
    """Memory that something else allocated. Kernels on CPUs can use any address of the process."""

    __slots__ = ("address", "array", "handle", "owner")

    def __init__(self, address: int, nbytes: int, owner: Any) -> None:
        import pyopencl as cl

        self.address = address
        self.array = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
        self.handle = cl.SVM(self.array)
        self.owner = owner


class _PartOfMemory:
    """A part of a buffer, which it keeps."""

    __slots__ = ("address", "array", "handle", "owner")

    def __init__(self, owner: OpenCLBuffer, byte_offset: int, nbytes: int) -> None:
        self.address: int = owner.address + byte_offset
        self.array: np.ndarray = owner._memory.array[byte_offset : byte_offset + nbytes]
        self.handle = owner.handle.get_sub_region(byte_offset, nbytes)
        self.owner = owner


class OpenCLBuffer(Buffer):
    """Host memory that the CPU's kernels use in place."""

    device: OpenCLDevice

    def __init__(self, device: OpenCLDevice, memory: _Memory | _ForeignMemory | _PartOfMemory, nbytes: int) -> None:
        self.device = device
        self.nbytes = nbytes
        self.address: int = memory.address
        self.handle: Any = memory.handle
        self._memory: _Memory | _ForeignMemory | _PartOfMemory = memory

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (self.address, False), "version": 3}

    @cached_property
    def pointer(self) -> pyopencl.SVM:
        """The same memory for a kernel's argument that has to be a pointer; nothing keeps it from being recycled."""
        import pyopencl as cl

        return cl.SVM(self._memory.array)

    @property
    def memory(self) -> np.ndarray:
        # An array made from the interface keeps this object alive, so a view never sees recycled memory.
        return np.asarray(self)

    def write(self, data: Any, byte_offset: int = 0) -> None:
        source = np.frombuffer(data, np.uint8)
        self._memory.array[byte_offset : byte_offset + source.size] = source

    def read(self, byte_offset: int, nbytes: int) -> np.ndarray:
        return self._memory.array[byte_offset : byte_offset + nbytes].copy()

    def part(self, byte_offset: int, nbytes: int) -> OpenCLBuffer:
        return OpenCLBuffer(self.device, _PartOfMemory(self, byte_offset, nbytes), nbytes)

    def __del__(self) -> None:
        memory = self._memory
        if type(memory) is _Memory:
            if self.device._mapped_bytes <= _POOL_LIMIT_BYTES:
                memory.free.append(memory)
            else:
                self.device._recycle_within_limit(memory)


def _finish(queue: pyopencl.CommandQueue, process: int) -> None:
    """Lets work end before the interpreter does: Intel's runtime crashes if it still runs when it is unloaded."""
    import pyopencl as cl

    # A forked process has none of the threads that its parent's work waits for.
    if os.getpid() == process:
        with contextlib.suppress(cl.Error):
            queue.finish()


class _WithoutCompilerWarnings:
    """pyopencl warns of every build that logs something. The warnings module's own context manager restores the filters
    of whichever thread left last, so threads that build at the same time share one entry into it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._depth = 0
        self._saved = warnings.catch_warnings()

    def __enter__(self) -> None:
        with self._lock:
            if self._depth == 0:
                self._saved = warnings.catch_warnings()
                self._saved.__enter__()
                warnings.simplefilter("ignore")
            self._depth += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0:
                self._saved.__exit__(None, None, None)


_without_compiler_warnings = _WithoutCompilerWarnings()


class OpenCLDevice(Device):
    """One OpenCL CPU device with an in-order queue."""

    def __init__(self, handle: pyopencl.Device, index: int) -> None:
        super().__init__(
            identifier=f"opencl:{index}",
            name=handle.name.strip(),
            driver=handle.platform.name.strip(),
            driver_version=f"{handle.version.strip()}, {handle.driver_version.strip()}",
            family="cpu",
            memory_bytes=handle.global_mem_size,
            compute_units=handle.max_compute_units,
            unified_memory=True,
            features=frozenset({"half", "simdgroup", "gpu_time"}),
        )
        self._handle = handle
        self._pool: defaultdict[int, list[_Memory]] = defaultdict(list)
        """By their sizes the blocks that nobody has. A list adds one and gives one at once, so that needs no lock."""
        self._mapped_bytes = 0
        """Of all blocks, whoever has them."""
        # Reentrant: a buffer may be collected, and recycled, while its own thread allocates another.
        self._lock = RLock()
        # The work of one submission follows on the queue without any of another thread's between, and a kernel has one
        # set of arguments for all threads.
        self.enqueuing = RLock()
        self._in_flight: deque[OpenCLSubmission] = deque()
        """Changed by the thread only that enqueues."""

    __hash__ = Device.__hash__

    @property
    def threadgroup_memory_bytes(self) -> int:
        return int(self._handle.local_mem_size)

    @property
    def tuning(self) -> str:
        # A simdgroup of 32 floats takes two registers of 32, or four of 16 only.
        return "cpu-avx2" if self.family == "cpu" and self._handle.native_vector_width_float < 16 else self.family

    @property
    def part_alignment(self) -> int:
        return self._handle.mem_base_addr_align // 8

    @property
    def largest_buffer(self) -> int:
        return self._handle.max_mem_alloc_size

    @cached_property
    def _context(self) -> pyopencl.Context:
        import pyopencl as cl

        return cl.Context([self._handle])

    @cached_property
    def queue(self) -> pyopencl.CommandQueue:
        import pyopencl as cl

        queue = cl.CommandQueue(self._context, properties=cl.command_queue_properties.PROFILING_ENABLE)
        atexit.register(_finish, queue, os.getpid())
        return queue

    @cached_property
    def immediate_queue(self) -> ImmediateQueue | None:
        """A queue whose work the thread does that puts it there, before that returns; None where there is none such."""
        import pyopencl as cl

        if "cl_intel_exec_by_local_thread" not in self._handle.extensions.split():
            return None
        with contextlib.suppress(cl.Error):
            return ImmediateQueue(cl.CommandQueue(self._context, properties=_LOCAL_EXECUTION))  # type: ignore[arg-type]
        return None

    def allocate(self, nbytes: int) -> OpenCLBuffer:
        free = self._pool[pooled_size(nbytes, mmap.PAGESIZE)]
        try:
            memory = free.pop()
        except IndexError:
            memory = None
        return OpenCLBuffer(self, memory if memory is not None else self._new_memory(nbytes, free), nbytes)

    def _new_memory(self, nbytes: int, free: list[_Memory]) -> _Memory:
        size = pooled_size(nbytes, mmap.PAGESIZE)
        try:
            memory = _Memory(self._context, size, free)
        except (OSError, ValueError, OverflowError, MemoryError, engine_error()) as error:
            raise DeviceError(
                f"{self.identifier}: cannot allocate {nbytes} bytes; the device has {self.memory_bytes} in all"
            ) from error
        with self._lock:
            self._mapped_bytes += size
        return memory

    def adopt(self, address: int, nbytes: int, owner: Any) -> OpenCLBuffer:
        return OpenCLBuffer(self, _ForeignMemory(address, nbytes, owner), nbytes)

    def _recycle_within_limit(self, memory: _Memory) -> None:
        """Keeps ``memory`` for later use, unless the blocks that nobody has would exceed the limit."""
        with self._lock:
            pooled = sum(size * len(free) for size, free in [*self._pool.items()])
            if pooled + memory.size <= _POOL_LIMIT_BYTES:
                memory.free.append(memory)
            else:
                self._mapped_bytes -= memory.size

    def translate(self, source: str, *, name: str) -> str:
        return translations.translated(source, "opencl", name).source

    def _cache_name(self, translated: str, build_options: Sequence[str] = BUILD_OPTIONS) -> str:
        return cache.key("opencl", translated, *build_options, self.name, self.driver_version, cache.processor())

    def is_compiled(self, source: str, *, name: str) -> bool:
        kept = translations.load(self._translation_name(source, name, None, "whole"), None)
        if kept is not None:
            return cache.contains(kept.program)
        return cache.contains(self._cache_name(self.translate(source, name=name)))

    def compile(self, source: str, *, name: str, options: CompileOptions | None = None) -> OpenCLLibrary:
        return self._compile(source, name, options, "row" if options is not None else "whole")

    def _translation_name(
        self, source: str, name: str, options: CompileOptions | None, launch: Launch, checked: str = ""
    ) -> str | None:
        """The name in the cache of a translation, or of one with checks of the function ``checked``."""
        device = ("opencl", self.name, self.driver_version, cache.processor(), launch, checked)
        return translations.name_of((*device, *_build_options(options)), source, name, options)

    def _compile(self, source: str, name: str, options: CompileOptions | None, launch: Launch) -> OpenCLLibrary:
        kept_name = self._translation_name(source, name, options, launch)
        kept = translations.load(kept_name, options.resolve if options is not None else None)
        build_options = _build_options(options)
        program = self._from_binary(cache.load(kept.program)) if kept is not None and kept.program else None
        if kept is None or not (program or kept.source):
            if options is not None:
                self._compiler.start()
            includes = translations.Includes(options.resolve if options is not None else None)
            translation = translations.translated(source, "opencl", name, options, launch, includes)
            if any(signature.part for signature in translation.kernels.values()):
                self._require_no_errors(translation, source, name, build_options)
                kept = translations.KeptTranslation("", translation.kernels, translation.source)
            else:
                program, stored = self._program(translation, source, name, build_options, options is not None)
                kept = translations.KeptTranslation(stored, translation.kernels)
            translations.store(kept_name, kept, includes)
        divided = Translation(kept.source, kept.kernels)

        def program_of(part: int) -> pyopencl.Program:
            part_options = (*build_options, f"-D{PART_MACRO}={part}")
            return program or self._program(divided, source, name, part_options, options is not None)[0]

        sizes = self._pointee_sizes if options is not None else None
        box = partial(self._compile, source, name, options, "box") if options is not None else None
        return OpenCLLibrary(program_of, launch, kept.kernels, sizes, box)

    def compile_checked(
        self, source: str, name: str, options: CompileOptions, kernel: str, launch: Launch
    ) -> tuple[pyopencl.Program, Translation]:
        """The program that reports what the function ``kernel`` does wrong; see ``opencl_checks``.

        Raises ``KeyError`` if there is no such function.
        """
        from mpsgrad.devices.opencl_checks import ABREAST_OPTIONS, SCALAR_OPTIONS

        kept_name = self._translation_name(source, name, options, launch, kernel)
        kept = translations.load(kept_name, options.resolve)
        if kept is None or not cache.contains(kept.program):
            self._compiler.start()
        includes = translations.Includes(options.resolve)
        translation = translations.translated(source, "opencl", name, options, launch, includes, kernel)
        if kernel not in translation.kernels:
            known = translations.translated(source, "opencl", name, options, launch, options.resolve).kernels
            raise unknown_kernel(kernel, known)
        checks = translation.instrumentation
        assert checks is not None
        # What is not optimized has its constants' constructors left over, at which Intel's compiler ends the process.
        is_abreast = translation.kernels[kernel].uses_simdgroups or checks.has_constructors
        build_options = ABREAST_OPTIONS if is_abreast else SCALAR_OPTIONS
        program, stored = self._program(translation, source, name, build_options, True)
        if kept is None:
            translations.store(kept_name, translations.KeptTranslation(stored, {}), includes)
        return program, translation

    @cached_property
    def _compiler(self) -> OpenCLCompiler:
        """The compiler of users' sources."""
        return OpenCLCompiler(c_library(), self._handle.platform.name, self._handle.name)

    def _program(
        self, translation: Translation, source: str, name: str, build_options: Sequence[str], is_users: bool
    ) -> tuple[pyopencl.Program, str]:
        """The compiled program, and its name in the cache on disk; ``is_users`` says that anything may be in it."""
        stored = self._cache_name(translation.source, build_options)
        program = self._from_binary(cache.load(stored))
        if program is None:
            program = self._build(translation, source, name, build_options, is_users)
            import pyopencl as cl

            cache.store(stored, program.get_info(cl.program_info.BINARIES)[0])  # type: ignore[index]
        return program, stored

    def _require_no_errors(
        self, translation: Translation, source: str, name: str, build_options: Sequence[str]
    ) -> None:
        """Raises what is wrong with all of a translation whose parts are compiled later."""
        # Where no process can be started, what is wrong is found when the parts are compiled, in this one.
        with contextlib.suppress(OSError), _shader_errors(translation, source, name):
            self._compiler.find_errors(translation.source, build_options)

    def _pointee_sizes(self, program: pyopencl.Program, signature: KernelSignature) -> tuple[int, ...]:
        """What the entry point says that stores the sizes of the types of a kernel's arguments."""
        import pyopencl as cl

        count = len(signature.arguments)
        if not count:
            return ()
        buffer = self.allocate(4 * count)
        kernel = cl.Kernel(program, signature.entry_point + SIZES_SUFFIX)
        kernel.set_args(buffer.handle)
        cl.enqueue_nd_range_kernel(self.queue, kernel, (1,), (1,)).wait()
        return tuple(buffer.read(0, 4 * count).view(np.uint32).tolist())

    def _from_binary(self, binary: bytes | None) -> pyopencl.Program | None:
        if binary is None:
            return None
        import pyopencl as cl

        try:
            with _without_compiler_warnings:
                return cl.Program(self._context, [self._handle], [binary]).build()
        except cl.Error:
            return None

    def _build(
        self, translation: Translation, source: str, name: str, build_options: Sequence[str], is_users: bool
    ) -> pyopencl.Program:
        if is_users:
            is_bound_to_lanes = any(kernel.uses_simdgroups for kernel in translation.kernels.values())
            # Where no process can be started, this one compiles.
            with contextlib.suppress(OSError), _shader_errors(translation, source, name):
                return self._compiler.build(
                    translation.source, build_options, self._from_binary, is_bound_to_lanes=is_bound_to_lanes
                )
        return self._built_here(translation, source, name, build_options)

    def _built_here(
        self, translation: Translation, source: str, name: str, build_options: Sequence[str]
    ) -> pyopencl.Program:
        import pyopencl as cl

        program = cl.Program(self._context, translation.source)
        try:
            with _without_compiler_warnings:
                return program.build(options=list(build_options), cache_dir=False)  # type: ignore[arg-type]
        except cl.Error as error:
            saved = _SAVED_SOURCE.search(str(error))
            if saved:
                Path(saved[1]).unlink(missing_ok=True)
            raise _shader_error(str(error), translation, source, name) from error

    def submit(self, dispatches: Sequence[Dispatch], label: str | None = None) -> Submission:
        with self.enqueuing:
            immediate = self.immediate_queue
            if immediate is not None and (not self._in_flight or self._is_idle()):
                done = immediate.run_if_brief(dispatches)
                if done is not None:
                    return done
            submission = self._submitted(dispatches, enqueued(self.queue, dispatches), label)
            if immediate is not None:
                immediate.watch(submission)
            return submission

    def wait_until_unused(self, buffer: Buffer) -> None:
        users = [submission for submission in self._in_flight.copy() if submission.uses(buffer)]
        if users:
            with contextlib.suppress(DeviceError):
                users[-1].wait()

    def record(self, dispatches: Sequence[Dispatch], label: str | None = None) -> OpenCLRecording:
        return OpenCLRecording(self, dispatches, label)

    def replay(self, recording: OpenCLRecording) -> OpenCLSubmission:
        """Starts the launches of ``recording``."""
        with self.enqueuing:
            return self._submitted(recording, recording.enqueue(), recording.label)

    def _submitted(self, held: Any, events: list[pyopencl.Event], label: str | None) -> OpenCLSubmission:
        """What was put on the queue, with these events."""
        self.queue.flush()
        submission = OpenCLSubmission(held, events, label)
        # Kept here until they have run, or their buffers would be recycled if the caller drops a submission early.
        self._forget_what_has_run()
        self._in_flight.append(submission)
        return submission

    def _forget_what_has_run(self) -> None:
        in_flight = self._in_flight
        while in_flight and in_flight[0].is_complete:
            in_flight.popleft()

    def _is_idle(self) -> bool:
        """Whether all work on the queue has run."""
        self._forget_what_has_run()
        return not self._in_flight


def _build_options(options: CompileOptions | None) -> Sequence[str]:
    if options is None:
        return BUILD_OPTIONS
    return FAST_MATH_OPTIONS if options.fast_math else STRICT_MATH_OPTIONS


@contextlib.contextmanager
def _shader_errors(translation: Translation, source: str, name: str) -> Iterator[None]:
    """Turns what a compiler in a process of its own says into errors of the source."""
    try:
        yield
    except CompilerRefusal as refusal:
        raise _shader_error(str(refusal), translation, source, name) from refusal
    except CompilerFault as fault:
        raise ShaderError(str(fault), file=name) from fault


def _shader_error(log: str, translation: Translation, source: str, name: str) -> ShaderError:
    """The compiler's first error, pointing at the line of Metal source that it came from."""
    errors = [entry for entry in parse_compiler_log(log, "opencl", translation) if entry.severity == "error"]
    if errors:
        return shader_error(errors[0], source, name)
    recursive = re.search(r"Unsupported recursive call in function:\s*((?:\S+\s+)*?)(?=\w+:|\Z)", log)
    for mangled in recursive[1].split() if recursive else ():
        function = _name_of(mangled)
        for line, text in enumerate(source.splitlines(), 1):
            called = re.search(rf"\b{function}\s*\(", text) if function else None
            if called:
                message = f"'{function}' calls itself: OpenCL has no recursion on CPUs"
                return ShaderError(message, file=name, line=line, column=called.start() + 1, source_line=text)
    return ShaderError(f"the OpenCL compiler failed:\n{log}", file=name)


def _name_of(mangled: str) -> str:
    """The name of a function, without its classes, in a name such as ``_Z3fibi``; empty for what has another form."""
    position, name = mangled.find("_Z"), ""
    while position >= 0 and (length := re.compile(r"\D*?(\d+)").match(mangled, position)):
        name = mangled[length.end() : length.end() + int(length[1])]
        position = length.end() + int(length[1])
        if mangled[position : position + 1].islower() or mangled[position : position + 1] == "I":
            break
    return name if name.isidentifier() else ""
