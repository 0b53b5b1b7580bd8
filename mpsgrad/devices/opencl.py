"""CPUs through OpenCL: Metal source is translated to C++ for OpenCL 2021 and run by Intel's OpenCL CPU runtime.

The runtime comes from PyPI (``intel-opencl-rt``) and runs on Intel and AMD processors. Host and device share one
memory, so a buffer is plain host memory that NumPy views directly.
"""

from __future__ import annotations

import atexit
import contextlib
import mmap
import os
import re
import time
import warnings
from collections import defaultdict, deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mpsgrad.devices import cache, opencl_early, opencl_memory, translations
from mpsgrad.devices.contract import (
    Buffer,
    CompileOptions,
    Device,
    Dispatch,
    Submission,
    unknown_kernel,
)
from mpsgrad.devices.locked_property import locked_property
from mpsgrad.devices.opencl_brief import ImmediateQueue
from mpsgrad.devices.opencl_compiler import (
    LONG_SOURCE,
    SAFEGUARDS,
    SAVINGS,
    UNROLLING,
    CompilerFault,
    CompilerRefusal,
    OpenCLCompiler,
    threads_apart,
)
from mpsgrad.devices.opencl_compiler_process import simdgroups_apart
from mpsgrad.devices.opencl_errors import error_of_source, errors_of_source
from mpsgrad.devices.opencl_launch import (
    OpenCLLibrary,
    OpenCLRecording,
    OpenCLSubmission,
    c_library,
    engine_error,
    enqueued,
)
from mpsgrad.devices.opencl_memory import ForeignMemory, Memory, OpenCLBuffer
from mpsgrad.devices.opencl_runtime import refused as refused
from mpsgrad.devices.opencl_runtime import unavailable_reason as unavailable_reason
from mpsgrad.devices.opencl_runtime import usable
from mpsgrad.devices.opencl_threads import RuntimeThreads, threads_of_process
from mpsgrad.devices.pool import pooled_size
from mpsgrad.errors import DeviceError, ShaderError
from mpsgrad.msl import SIZES_SUFFIX, Diagnostic, KernelSignature, Launch, Translation, parse_compiler_log
from mpsgrad.msl.signature import PART_MACRO

if TYPE_CHECKING:
    import pyopencl

BUILD_OPTIONS = ("-cl-std=CLC++2021", "-cl-mad-enable", "-cl-no-signed-zeros")
# Not -cl-fast-relaxed-math: it would let the compiler drop tests for NaN and infinity, which many kernels rely on
# although fast math does not promise that they work on Apple GPUs.
FAST_MATH_OPTIONS = (*BUILD_OPTIONS, "-cl-unsafe-math-optimizations")
STRICT_MATH_OPTIONS = ("-cl-std=CLC++2021", "-cl-fp32-correctly-rounded-divide-sqrt")

# pyopencl writes source that does not compile to a temporary file, which it leaves behind.
_SAVED_SOURCE = re.compile(r"^\(source saved as (.+)\)$", re.MULTILINE)
_LOCAL_EXECUTION = 1 << 31
"""The property of queues of ``cl_intel_exec_by_local_thread``."""


def devices() -> list[OpenCLDevice]:
    """The devices that can run translated Metal kernels; empty if there are none."""
    return [OpenCLDevice(handle, index) for index, handle in enumerate(usable())]


def start_compiler_early(source: str, name: str, options: CompileOptions) -> None:
    """Starts the compiler for ``source`` before a device is found, unless it was compiled before."""
    opencl_early.start(
        _kind(source), lambda device: cache.contains(_translation_name(device, source, name, options, "row") or "")
    )


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

    _threads_of_runtime: ClassVar[frozenset[int]] = frozenset()

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
        self._pool: defaultdict[int, list[Memory]] = defaultdict(list)
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
        self.runtime_threads = RuntimeThreads(())
        """Those that the context came with."""

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

    @locked_property
    def _context(self) -> pyopencl.Context:
        import pyopencl as cl

        before = threads_of_process()
        context = cl.Context([self._handle])
        # The runtime makes them for the first context of a process.
        made = OpenCLDevice._threads_of_runtime or threads_of_process() - before
        OpenCLDevice._threads_of_runtime = made
        self.runtime_threads = RuntimeThreads(made)
        return context

    @locked_property
    def queue(self) -> pyopencl.CommandQueue:
        import pyopencl as cl

        queue = cl.CommandQueue(self._context, properties=cl.command_queue_properties.PROFILING_ENABLE)
        atexit.register(_finish, queue, os.getpid())
        return queue

    @locked_property
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

    def _new_memory(self, nbytes: int, free: list[Memory]) -> Memory:
        size = pooled_size(nbytes, mmap.PAGESIZE)
        try:
            memory = Memory(self._context, size, free)
        except (OSError, ValueError, OverflowError, MemoryError, engine_error()) as error:
            raise DeviceError(
                f"{self.identifier}: cannot allocate {nbytes} bytes; the device has {self.memory_bytes} in all"
            ) from error
        with self._lock:
            self._mapped_bytes += size
        return memory

    def adopt(self, address: int, nbytes: int, owner: Any) -> OpenCLBuffer:
        return OpenCLBuffer(self, ForeignMemory(address, nbytes, owner), nbytes)

    def _recycle_within_limit(self, memory: Memory) -> None:
        """Keeps ``memory`` for later use, unless the blocks that nobody has would exceed the limit."""
        with self._lock:
            pooled = sum(size * len(free) for size, free in [*self._pool.items()])
            if pooled + memory.size <= opencl_memory.POOL_LIMIT_BYTES:
                memory.free.append(memory)
            else:
                self._mapped_bytes -= memory.size

    def translate(self, source: str, *, name: str) -> str:
        return translations.translated(source, "opencl", name).source

    def _cache_name(self, translated: str, build_options: Sequence[str] = BUILD_OPTIONS) -> str:
        return cache.key("opencl", translated, *build_options, self.name, self.driver_version, cache.processor())

    def is_compiled(self, source: str, *, name: str) -> bool:
        kept = translations.load(self._translation_name(source, name, None, "whole"), None)
        return kept is not None and cache.contains(kept.program)

    def compile(self, source: str, *, name: str, options: CompileOptions | None = None) -> OpenCLLibrary:
        return self._compile(source, name, options, "row" if options is not None else "whole")

    def _translation_name(
        self, source: str, name: str, options: CompileOptions | None, launch: Launch, checked: str = ""
    ) -> str | None:
        """The name in the cache of a translation, or of one with checks of the function ``checked``."""
        return _translation_name((self.name, self.driver_version), source, name, options, launch, checked)

    def _compile(self, source: str, name: str, options: CompileOptions | None, launch: Launch) -> OpenCLLibrary:
        kept_name = self._translation_name(source, name, options, launch)
        kept = translations.load(kept_name, options.resolve if options is not None else None)
        program = self._from_binary(cache.load(kept.program)) if kept is not None and kept.program else None
        if kept is None or not (program or kept.source):
            if options is not None:
                self._compiler_of(source).start()
            includes = translations.Includes(options.resolve if options is not None else None)
            translation = translations.translated(source, "opencl", name, options, launch, includes)
            safe_math = translation.asks_for_safe_math
            build_options = _build_options(options, safe_math)
            if options is not None:
                # Is made while the compiler's process still begins.
                _ = self.queue
            if any(signature.part for signature in translation.kernels.values()):
                self._expect(translation, source, build_options, 1)
                self._require_no_errors(translation, source, name, build_options)
                kept = translations.KeptTranslation("", translation.kernels, translation.source, safe_math)
            else:
                program, stored = self._program(translation, source, name, build_options, options is not None)
                kept = translations.KeptTranslation(stored, translation.kernels, "", safe_math)
            translations.store(kept_name, kept, includes)
            if options is not None:
                device = (self.name, self.driver_version)
                opencl_early.remember(_kind(source), self._compiler_of(source), device)
        divided = Translation(kept.source, kept.kernels)
        build_options = _build_options(options, kept.asks_for_safe_math)
        asked: set[int] = set()

        def program_of(part: int) -> pyopencl.Program:
            # Who takes functions in their order will probably take the next one.
            if part - 1 in asked:
                self._expect(divided, source, build_options, part + 1)
            asked.add(part)
            part_options = _options_of_part(build_options, part)
            of_part = {each.name: each for each in divided.kernels.values() if each.part == part}
            translation = Translation(divided.source, of_part)
            return program or self._program(translation, source, name, part_options, options is not None)[0]

        sizes = self._pointee_sizes if options is not None else None
        box = partial(self._compile, source, name, options, "box") if options is not None else None
        narrow = partial(self._compile, source, name, options, "narrow") if self.tuning == "cpu-avx2" else None
        return OpenCLLibrary(program_of, launch, kept.kernels, sizes, box, narrow)

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
            self._compiler_of(source).start()
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

    def start_compiler(self) -> None:
        """Starts the process that ``find_errors`` asks, and does not wait for it."""
        self._compiler.start()

    def find_errors(self, source: str, *, name: str, options: CompileOptions) -> list[Diagnostic]:
        """The errors of all of ``source`` that the compiler's front end finds; makes no code.

        Raises ``ShaderError`` for what the translation refuses, and if the compiler ends.
        """
        translation = translations.translated(source, "opencl", name, options, "row", options.resolve)
        try:
            self._compiler.find_errors(translation.source, _build_options(options, translation.asks_for_safe_math))
        except CompilerRefusal as refusal:
            entries = parse_compiler_log(str(refusal), "opencl", translation, source)
            errors = list(dict.fromkeys(entry for entry in entries if entry.severity == "error"))
            if not errors:
                raise error_of_source(str(refusal), translation, source, name) from refusal
            return errors
        except (CompilerFault, OSError) as fault:
            raise ShaderError(f"the OpenCL compiler cannot be asked: {fault}", file=name) from fault
        return []

    @locked_property
    def _compiler(self) -> OpenCLCompiler:
        """The compiler of users' sources."""
        return self._compiler_with(self._savings)

    @locked_property
    def _compiler_of_long_sources(self) -> OpenCLCompiler:
        return self._compiler_with(f"{self._savings} {UNROLLING}".strip())

    def _compiler_with(self, limits: str) -> OpenCLCompiler:
        processes = 2 if self.compute_units > 1 and os.name == "posix" else 1
        return OpenCLCompiler(c_library(), self._handle.platform.name, self._handle.name, limits, SAFEGUARDS, processes)

    @property
    def _savings(self) -> str:
        return SAVINGS if self.tuning == "cpu-avx2" else ""

    def _compiler_of(self, source: str) -> OpenCLCompiler:
        return self._compiler if _kind(source) == "short" else self._compiler_of_long_sources

    def _expect(self, divided: Translation, source: str, build_options: Sequence[str], part: int) -> None:
        """Lets the compiler begin with a part beside its next request, unless there is none such or it is kept."""
        options = _options_of_part(build_options, part)
        if not any(kernel.part == part for kernel in divided.kernels.values()):
            return
        if not cache.contains(self._cache_name(divided.source, (*options, SAFEGUARDS))):
            self._compiler_of(source).expect(divided.source, options)

    def _program(
        self, translation: Translation, source: str, name: str, build_options: Sequence[str], is_users: bool
    ) -> tuple[pyopencl.Program, str]:
        """The compiled program, and its name in the cache on disk; ``is_users`` says that anything may be in it."""
        named_options = (*build_options, SAFEGUARDS) if is_users else build_options
        stored = self._cache_name(translation.source, named_options)
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
        with contextlib.suppress(OSError), errors_of_source(translation, source, name):
            self._compiler_of(source).find_errors(translation.source, build_options)

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
            with contextlib.suppress(OSError), errors_of_source(translation, source, name):
                return self._compiler_of(source).build(
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
                program.build(options=list(build_options), cache_dir=False)  # type: ignore[arg-type]
        except cl.Error as error:
            saved = _SAVED_SOURCE.search(str(error))
            if saved:
                Path(saved[1]).unlink(missing_ok=True)
            raise error_of_source(str(error), translation, source, name) from error
        log = program.get_build_info(self._handle, cl.program_build_info.LOG)
        apart = simdgroups_apart(translation.source.encode(), log.encode())
        if apart:
            raise ShaderError(str(threads_apart(b", ".join(apart).decode())), file=name)
        return program

    def submit(self, dispatches: Sequence[Dispatch], label: str | None = None) -> Submission:
        with self.enqueuing:
            immediate = self.immediate_queue
            if immediate is not None and (not self._in_flight or self._is_idle()):
                done = immediate.run_if_brief(dispatches)
                if done is not None:
                    return done
            started = time.perf_counter()
            self.runtime_threads.make_room()
            submission = self._submitted(dispatches, enqueued(self.queue, dispatches), label)
            if immediate is not None:
                immediate.watch(submission, started)
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
            self.runtime_threads.make_room()
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


def _kind(source: str) -> str:
    return "short" if len(source) < LONG_SOURCE else "long"


def _translation_name(
    device: Sequence[str],
    source: str,
    name: str,
    options: CompileOptions | None,
    launch: Launch,
    checked: str = "",
) -> str | None:
    described = ("opencl", *device, cache.processor(), launch, checked)
    return translations.name_of((*described, *_build_options(options), SAFEGUARDS), source, name, options)


def _options_of_part(build_options: Sequence[str], part: int) -> Sequence[str]:
    return (*build_options, f"-D{PART_MACRO}={part}")


def _build_options(options: CompileOptions | None, asks_for_safe_math: bool = False) -> Sequence[str]:
    if options is None:
        return BUILD_OPTIONS
    return FAST_MATH_OPTIONS if options.fast_math and not asks_for_safe_math else STRICT_MATH_OPTIONS
