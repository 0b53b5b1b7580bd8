"""NVIDIA GPUs through CUDA: Metal source is translated to CUDA C++ and compiled by NVRTC, each GPU is a device.

A device has one stream, so work runs in the order in which it was submitted, and memory that is given back can be used
again at once. The host sees no memory of the GPU, so arrays are copied in and out, but for buffers that
both share because somebody asked for that.

What is different from other devices: ``constant T&`` arguments of the package's own kernels are passed by value; on
GPUs of compute capability 9.0 or later these kernels are launched while the one before them ends, and wait for it as
they begin, and threadgroups of a cluster run at the same time and write to each other's variables; threadgroup
variables may need more memory than Apple GPUs have, up to ``threadgroup_memory_bytes``; a kernel that reads or writes
memory that is not its own ends the process's use of the GPU, which every later call says.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np

from mpsgrad.devices import cache, translations
from mpsgrad.devices.contract import Buffer, CompileOptions, Device, Dispatch, Function
from mpsgrad.devices.cuda_api import CUDAError, api, checked, missing
from mpsgrad.devices.cuda_compiler import (
    FAST_MATH,
    KERNELS_OF_PROGRAM,
    OWN_MATH,
    STRICT_MATH,
    architecture_name,
    architectures,
    cache_name,
    compile_cubin,
    version,
)
from mpsgrad.devices.cuda_launch import CUDAFunction, CUDALibrary, CUDARecording, CUDASubmission
from mpsgrad.devices.cuda_memory import (
    PART_ALIGNMENT,
    CUDABuffer,
    CUDAConstant,
    CUDASharedBuffer,
    MemoryPool,
    SharedPool,
    Staging,
)
from mpsgrad.devices.locked_property import locked_property
from mpsgrad.dlpack import CUDA, LEGACY_STREAM, THREAD_STREAM
from mpsgrad.errors import DeviceError
from mpsgrad.msl import Launch, Translation

LEAST_CAPABILITY = (7, 5)
"""The oldest GPUs that NVRTC 13 compiles for."""

_NO_DEVICE = 100
_DRIVER_FILE = Path("/proc/driver/nvidia/version")


def unavailable_reason() -> str | None:
    """Why no device of this driver can be used, in words that say what to install; None if there is one."""
    reason = missing()
    if reason is not None:
        return reason
    try:
        usable, unusable = _survey()
    except CUDAError as error:
        return "NVIDIA's driver lists no GPU" if error.code == _NO_DEVICE else f"NVIDIA's driver does not work: {error}"
    if not usable:
        return "; ".join(unusable) or "NVIDIA's driver lists no GPU"
    try:
        compiler = version()
    except DeviceError as error:
        return str(error)
    supported = _cuda_version()
    major = supported.partition(".")[0]
    if int(major) < int(compiler.partition(".")[0]):
        return (
            f"NVIDIA's driver supports CUDA {supported} but the run-time compiler is of CUDA {compiler}: install a "
            f"newer driver, or the compiler for this one (pip install 'cuda-core[cu{major}]')"
        )
    return None


def devices() -> list[Device]:
    """The GPUs that can run translated Metal kernels; empty if there are none, or no compiler for them."""
    return [] if unavailable_reason() is not None else list(_survey()[0])


def refused() -> list[str]:
    """One line for each GPU that is present but cannot run the kernels, with the reason."""
    if missing() is not None:
        return []
    try:
        return _survey()[1]
    except CUDAError:
        return []


def _survey() -> tuple[list[CUDADevice], list[str]]:
    """The GPUs that can be used, and a line on each of the others."""
    checked(api().cuInit(0))
    usable: list[CUDADevice] = []
    unusable: list[str] = []
    attributes = api().CUdevice_attribute
    for ordinal in range(checked(api().cuDeviceGetCount())):
        handle = checked(api().cuDeviceGet(ordinal))
        capability = (
            checked(api().cuDeviceGetAttribute(attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, handle)),
            checked(api().cuDeviceGetAttribute(attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, handle)),
        )
        name = checked(api().cuDeviceGetName(256, handle)).split(b"\0")[0].decode().strip()
        if capability < LEAST_CAPABILITY:
            has, needed = ".".join(map(str, capability)), ".".join(map(str, LEAST_CAPABILITY))
            unusable.append(f"{name}: has compute capability {has}; {needed} or later is needed")
            continue
        units = checked(api().cuDeviceGetAttribute(attributes.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, handle))
        memory = int(checked(api().cuDeviceTotalMem(handle)))
        usable.append(CUDADevice(ordinal, handle, len(usable), name, capability, units, memory))
    return usable, unusable


def _cuda_version() -> str:
    """The newest CUDA that the driver supports."""
    number = checked(api().cuDriverGetVersion())
    return f"{number // 1000}.{number % 1000 // 10}"


def _driver_version(capability: tuple[int, int]) -> str:
    text = _cuda_version()
    try:
        words = _DRIVER_FILE.read_text().split()
    except (OSError, UnicodeDecodeError):
        words = []
    driver = next((word for word in words if word[0].isdigit() and word.count(".") >= 1), None)
    return ", ".join(
        [text, *([f"driver {driver}"] if driver else []), f"compute capability {'.'.join(map(str, capability))}"]
    )


def _arithmetic(options: CompileOptions | None, asks_for_safe_math: bool = False) -> Mapping[str, Any]:
    """What NVRTC is told of the precision of arithmetic."""
    if options is None:
        return OWN_MATH
    return FAST_MATH if options.fast_math and not asks_for_safe_math else STRICT_MATH


class _Context:
    """Makes a device's context the current one of the thread while a block runs."""

    def __init__(self, device: CUDADevice, handle: Any) -> None:
        self._device = device
        self._handle = handle
        self._push, self._pop = api().cuCtxPushCurrent, api().cuCtxPopCurrent

    def __enter__(self) -> None:
        result = self._push(self._handle)
        if result[0]:
            error = CUDAError(result[0])
            raise self._device.failure("the GPU cannot be used", error) from error

    def __exit__(self, *_: object) -> None:
        self._pop()


class _Active:
    """The device's lock and its context, for what uses the stream or the pool."""

    def __init__(self, lock: Any, context: _Context) -> None:
        self._lock = lock
        self._context = context

    def __enter__(self) -> None:
        self._lock.acquire()
        try:
            self._context.__enter__()
        except BaseException:
            self._lock.release()
            raise

    def __exit__(self, *_: object) -> None:
        self._context.__exit__()
        self._lock.release()


class CUDADevice(Device):
    """One GPU. Its context is the one that other libraries of the process use too."""

    def __init__(
        self,
        ordinal: int,
        handle: Any,
        index: int,
        name: str,
        capability: tuple[int, int],
        units: int,
        memory_bytes: int,
    ) -> None:
        """``ordinal`` is CUDA's number of the GPU, ``index`` ours, which leaves those out that cannot be used."""
        super().__init__(
            identifier=f"cuda:{index}",
            name=name,
            driver="CUDA",
            driver_version=_driver_version(capability),
            family="nvidia",
            memory_bytes=memory_bytes,
            compute_units=units,
            unified_memory=False,
            features=frozenset({"half", "simdgroup", "gpu_time"}),
        )
        self.ordinal = ordinal
        self.capability = capability
        self._handle = handle
        # Reentrant: a buffer may be collected, and recycled, while its own thread allocates another.
        self._lock = RLock()
        self._pool = MemoryPool(self)
        self._shared_pool = SharedPool(self)
        self._events: list[tuple[Any, Any]] = []
        self._in_flight: deque[CUDASubmission] = deque()
        self._first_fault: str | None = None
        self._launches: dict[Any, Any] = {}

    __hash__ = Device.__hash__

    @locked_property
    def context(self) -> _Context:
        """Makes the GPU the current one of the thread while a block runs."""
        try:
            return _Context(self, checked(api().cuDevicePrimaryCtxRetain(self._handle)))
        except CUDAError as error:
            raise self.failure("the GPU cannot be used", error) from error

    @cached_property
    def active(self) -> _Active:
        """``context``, for one thread at a time."""
        return _Active(self._lock, self.context)

    @cached_property
    def threadgroup_memory_bytes(self) -> int:
        attribute = api().CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        return int(checked(api().cuDeviceGetAttribute(attribute, self._handle)))

    @property
    def tiling(self) -> str:
        # Only these multiply matrices where they lie in threadgroup memory.
        return "nvidia-9.0" if self.capability == (9, 0) else self.family

    @property
    def has_clusters(self) -> bool:
        return self.capability >= (9, 0)

    @locked_property
    def stream(self) -> Any:
        """Where all work goes. CUDA orders it with work on its default stream, where other libraries mostly work."""
        with self.active:
            return checked(api().cuStreamCreate(api().CUstream_flags.CU_STREAM_DEFAULT))

    @locked_property
    def _staging(self) -> Staging:
        return Staging(self.stream)

    # Failures.

    def failure(self, what: str, error: CUDAError) -> DeviceError:
        """What to raise when ``what`` was refused, or could not be done because work before it failed."""
        if error.is_fault:
            return self.fault([function for each in self._in_flight for function in each.functions], error)
        return DeviceError(f"{self.identifier}: {what}: {error}")

    def fault(self, suspects: Sequence[Function], error: CUDAError) -> DeviceError:
        """What to raise when one of ``suspects`` failed while it ran. Later failures tell of the first one."""
        with self._lock:
            if self._first_fault is None:
                names = list(dict.fromkeys(function.name for function in suspects))
                if len(names) > 1:
                    hint = "CUDA_LAUNCH_BLOCKING=1 in the environment makes the message name the one"
                    culprit = f"one of the kernels {', '.join(names)} ({hint})"
                else:
                    culprit = names[0] if names else "work of this process"
                self._first_fault = f"{culprit} failed on {self.identifier}: {error}"
        return DeviceError(f"{self._first_fault}; this process cannot use the GPU any more")

    def started_up_to(self, submission: CUDASubmission) -> list[Function]:
        """The kernels of ``submission`` and of those before it that were not seen to end."""
        with self._lock:
            started = list(self._in_flight)
        upto = started.index(submission) + 1 if submission in started else 0
        return [function for each in started[:upto] or [submission] for function in each.functions]

    # Memory.

    def allocate(self, nbytes: int) -> CUDABuffer:
        with self.active:
            address, size = self._pool.take(max(nbytes, 1))
        return CUDABuffer(self, nbytes, address, size)

    def allocate_shared(self, nbytes: int) -> CUDASharedBuffer:
        with self.active:
            address, size = self._shared_pool.take(max(nbytes, 1))
        return CUDASharedBuffer(self, nbytes, address, size)

    @property
    def dlpack_device(self) -> tuple[int, int]:
        return CUDA, self.ordinal

    def adopt(self, address: int, nbytes: int, owner: Any) -> CUDABuffer:
        buffer = CUDABuffer(self, nbytes, address, 0)
        buffer.owner = owner
        return buffer

    def show_to(self, stream: int) -> None:
        """Makes work that is put on another library's ``stream`` from now on wait for what was submitted here."""
        self._let_wait(api().CUstream(stream), self.stream)

    def wait_for(self, streams: set[int]) -> None:
        """Makes work that is submitted from now on wait for what is on other libraries' ``streams``."""
        if streams <= {LEGACY_STREAM, THREAD_STREAM}:
            for stream in streams:
                self._let_wait(self.stream, api().CUstream(stream))
            return
        # Others may have been destroyed.
        with suppress(CUDAError), self.active:
            checked(api().cuCtxSynchronize())

    def _let_wait(self, waiting: Any, running: Any) -> None:
        try:
            with self.active:
                begin, end = self._event_pair()
                checked(api().cuEventRecord(end, running))
                checked(api().cuStreamWaitEvent(waiting, end, 0))
                self.recycle_events(begin, end)
        except CUDAError as error:
            raise self.failure("another library's stream cannot be waited for", error) from error

    def recycle(self, address: int, size: int) -> None:
        """Takes back memory of a buffer that is no longer used."""
        with self._lock:
            self._pool.give_back(address, size)

    def recycle_shared(self, address: int, size: int) -> None:
        """Takes back memory of a shared buffer that is no longer used."""
        with self._lock:
            self._shared_pool.give_back(address, size)

    @property
    def part_alignment(self) -> int:
        return PART_ALIGNMENT

    @property
    def kernels_of_program(self) -> int:
        return KERNELS_OF_PROGRAM

    @property
    def orders_writes(self) -> bool:
        return True

    def write(self, address: int, data: np.ndarray) -> None:
        """Copies bytes to the GPU, after the work that was submitted before."""
        try:
            with self.active:
                self._staging.write(address, data)
        except CUDAError as error:
            raise self.failure("cannot be written", error) from error

    def read(self, address: int, data: np.ndarray) -> None:
        """Fills ``data`` with bytes of the GPU, after the work that was submitted before."""
        try:
            with self.context:
                # Other threads may submit meanwhile.
                checked(api().cuStreamSynchronize(self.stream))
            with self.active:
                self._staging.read(address, data)
        except CUDAError as error:
            raise self.failure("cannot be read", error) from error

    def _new_constant(self, data: bytes) -> Buffer:
        return CUDAConstant(self, data)

    # Programs.

    @cached_property
    def architecture(self) -> str:
        """What NVRTC compiles for; raises ``DeviceError`` if it is older than the GPU."""
        number = self.capability[0] * 10 + self.capability[1]
        known = architectures()
        same = [each for each in known if each // 10 == self.capability[0] and each <= number]
        if not same:
            raise DeviceError(
                f"{self.identifier}: {self.name} has compute capability {self.capability[0]}.{self.capability[1]}; "
                f"NVIDIA's run-time compiler {version()} compiles for {', '.join(f'{n / 10:.1f}' for n in known)}"
            )
        return architecture_name(same[-1])

    def translate(self, source: str, *, name: str) -> str:
        return translations.translated(source, "cuda", name).source

    def is_compiled(self, source: str, *, name: str) -> bool:
        kept = translations.load(self._translation_name(source, name, None), None)
        return kept is not None and cache.contains(kept.program)

    def compile(self, source: str, *, name: str, options: CompileOptions | None = None) -> CUDALibrary:
        launch: Launch = "whole" if options is None else "box"
        kept_name = self._translation_name(source, name, options)
        kept = translations.load(kept_name, options.resolve if options is not None else None)
        cubin = cache.load(kept.program) if kept is not None else None
        if kept is None or cubin is None:
            includes = translations.Includes(options.resolve if options is not None else None)
            translation = translations.translated(source, "cuda", name, options, launch, includes)
            math = _arithmetic(options, translation.asks_for_safe_math)
            stored = cache_name(translation.source, self.architecture, math)
            cubin = cache.load(stored) or self._build(translation, source, name, options, stored)
            kept = translations.KeptTranslation(stored, translation.kernels)
            translations.store(kept_name, kept, includes)
        stored = kept.program

        def build() -> bytes:
            resolve = options.resolve if options is not None else None
            translation = translations.translated(source, "cuda", name, options, launch, resolve)
            return self._build(translation, source, name, options, stored)

        return CUDALibrary(self, cubin, build, kept.kernels, launch)

    def _translation_name(self, source: str, name: str, options: CompileOptions | None) -> str | None:
        compiler = cache_name("", self.architecture, _arithmetic(options))
        return translations.name_of(("cuda", compiler), source, name, options)

    def _build(
        self, translation: Translation, source: str, name: str, options: CompileOptions | None, stored: str
    ) -> bytes:
        math = _arithmetic(options, translation.asks_for_safe_math)
        cubin, _ = compile_cubin(translation, source, name, self.architecture, math)
        cache.store(stored, cubin)
        return cubin

    # Work.

    def submit(self, dispatches: Sequence[Dispatch], label: str | None = None) -> CUDASubmission:
        held = [buffer for each in dispatches for buffer in each.buffers if getattr(buffer, "owner", None) is not None]
        functions = [dispatch.function for dispatch in dispatches]
        return self.start(lambda: self._launch(dispatches, self.stream), functions, label, held)

    def record(self, dispatches: Sequence[Dispatch], label: str | None = None) -> CUDARecording:
        return CUDARecording(self, tuple(dispatches), label)

    def start(
        self, work: Callable[[], None], functions: Sequence[Function], label: str | None, held: Any
    ) -> CUDASubmission:
        """Has ``work`` put kernels on the stream, between two events."""
        try:
            with self.active:
                while self._in_flight and self._in_flight[0].has_succeeded():
                    self._in_flight.popleft()
                begin, end = self._event_pair()
                stream = self.stream
                try:
                    checked(api().cuEventRecord(begin, stream))
                    work()
                    checked(api().cuEventRecord(end, stream))
                except BaseException:
                    self.recycle_events(begin, end)
                    raise
                submission = CUDASubmission(self, begin, end, functions, held)
                self._in_flight.append(submission)
        except CUDAError as error:
            raise self.failure(f"{label or 'a command buffer'} was refused", error) from error
        return submission

    def _launch(self, dispatches: Sequence[Dispatch], stream: Any) -> None:
        for index, dispatch in enumerate(dispatches):
            function = dispatch.function
            assert isinstance(function, CUDAFunction)
            try:
                function.launch(dispatch, stream)
            except CUDAError as error:
                if not error.is_fault:
                    raise self.failure(f"{function.name}: the dispatch was refused", error) from error
                before = [each.function for each in dispatches[: index + 1]]
                in_flight = [each for submission in self._in_flight for each in submission.functions]
                waits = os.environ.get("CUDA_LAUNCH_BLOCKING") == "1"
                raise self.fault([function] if waits else in_flight + before, error) from error

    def overlapping_launch(self, stream: Any) -> Any:
        """What CUDA is told of a launch on ``stream`` that may overlap the one before it; the grid is set for each.

        The blocks of the two overlap, not their work: a kernel that is launched so has to begin by waiting.
        """
        launch = self._launches.get(stream)
        if launch is None:
            attribute = api().CUlaunchAttribute()
            attribute.id = api().CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            launch = self._launches[stream] = api().CUlaunchConfig()
            launch.gridDimY = launch.gridDimZ = launch.blockDimY = launch.blockDimZ = 1
            launch.hStream = stream
            launch.attrs, launch.numAttrs = [attribute], 1
        return launch

    def graph(self, dispatches: Sequence[Dispatch]) -> Any:
        """The dispatches as an executable CUDA graph."""
        modes = api().CUstreamCaptureMode
        try:
            with self.active:
                stream = self._capture_stream
                checked(api().cuStreamBeginCapture(stream, modes.CU_STREAM_CAPTURE_MODE_RELAXED))
                try:
                    self._launch(dispatches, stream)
                finally:
                    graph = checked(api().cuStreamEndCapture(stream))
                try:
                    return checked(api().cuGraphInstantiate(graph, 0))
                finally:
                    checked(api().cuGraphDestroy(graph))
        except CUDAError as error:
            raise self.failure("the dispatches cannot be recorded", error) from error

    @locked_property
    def _capture_stream(self) -> Any:
        return checked(api().cuStreamCreate(api().CUstream_flags.CU_STREAM_NON_BLOCKING))

    def _event_pair(self) -> tuple[Any, Any]:
        try:
            return self._events.pop()
        except IndexError:
            return checked(api().cuEventCreate(0)), checked(api().cuEventCreate(0))

    def recycle_events(self, begin: Any, end: Any) -> None:
        """Takes back the events of a submission that nobody waits for any more."""
        self._events.append((begin, end))
