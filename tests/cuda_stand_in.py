"""NVIDIA's driver interface with its documented semantics where there is no GPU, in the place of ``cuda.bindings``.

Programs are compiled by the real NVRTC, which needs no GPU, and the parameters of their kernels lie where its machine
code says. Kernels are run by the OpenCL driver, from the Metal source.

It keeps what a driver can trip over:

* work is put on streams and done as late as it may be: when something waits for it, a piece for each query of an event;
* a copy from pinned memory reads that memory when it is done, one from other memory when it is called;
* a call without a current context is refused;
* a kernel with a pointer outside every allocation, or called like one in ``faulty``, fails when it is done, and every
  later call answers with that failure;
* memory is limited to ``memory_bytes``;
* what is put on a stream that captures is not done, and waiting for it is refused.

``calls`` counts the calls by name.
"""

from __future__ import annotations

import ctypes
import math
import pickle
import struct
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from functools import cache, wraps
from threading import RLock
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from mpsgrad import devices
from mpsgrad.devices import CompileOptions, Dispatch, cuda, cuda_api, cuda_compiler
from mpsgrad.msl import SIZES_SUFFIX

ARCHITECTURE = 90
LARGEST_GRID = 2**31 - 1
STATIC_MEMORY_BYTES, LARGEST_MEMORY_BYTES = 49152, 232448


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_INVALID_HANDLE = 400
    CUDA_ERROR_NOT_FOUND = 500
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900


class CUDAStandInError(Exception):
    """A call that is answered with ``code``."""

    def __init__(self, code: CUresult) -> None:
        self.code = code
        super().__init__(code.name)


class Event:
    """``pending`` is the record that has not been reached yet."""

    def __init__(self) -> None:
        self.pending: object | None = None
        self.time: float | None = None


_working = RLock()


class Stream:
    """``handle`` is what other libraries know it by."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.queue: deque[Callable[[], None]] = deque()
        self.captured: list[Callable[[], None]] | None = None

    def put(self, work: Callable[[], None]) -> None:
        (self.queue if self.captured is None else self.captured).append(work)  # type: ignore[attr-defined]

    def __int__(self) -> int:
        return self.handle

    def advance(self) -> None:
        """Does the next piece of work, if there is one; a thread that waits for another's waits until it is done."""
        with _working:
            if self.queue:
                self.queue.popleft()()

    def run(self) -> None:
        while self.queue:
            self.advance()
        with _working:
            pass


class Module:
    """What ``compile_cubin`` pickled: the machine code, and the Metal source that the OpenCL driver runs instead."""

    def __init__(self, image: bytes) -> None:
        contents = pickle.loads(image)
        self.parameters = kernel_parameters(contents["cubin"])
        self.options: CompileOptions | None = contents["options"]
        self.names: dict[str, str] = contents["names"]
        self.library = _opencl().compile(contents["source"], name=contents["name"], options=self.options)


class Function:
    def __init__(self, module: Module, entry_point: str) -> None:
        if entry_point not in module.parameters:
            raise CUDAStandInError(CUresult.CUDA_ERROR_NOT_FOUND)
        self.entry_point = entry_point
        self.parameters = module.parameters[entry_point]
        self.stores_sizes = entry_point.endswith(SIZES_SUFFIX)
        self.name = module.names[entry_point.removesuffix(SIZES_SUFFIX)]
        self.function = module.library.function(self.name)
        self.most_memory = STATIC_MEMORY_BYTES
        self.takes_launch = module.options is not None and not self.stores_sizes


def counted(method: Callable[..., Any]) -> Any:
    """A call of the interface: its result, or its error, in a tuple."""

    @wraps(method)
    def call(self: StandIn, *arguments: Any) -> tuple[Any, ...]:
        self.calls[method.__name__] += 1
        try:
            if self.fault is not None:
                raise CUDAStandInError(self.fault)
            if method.__name__ not in _WITHOUT_CONTEXT and not self.contexts:
                raise CUDAStandInError(CUresult.CUDA_ERROR_INVALID_CONTEXT)
            result = method(self, *arguments)
        except CUDAStandInError as error:
            return (error.code, None) if method.__name__ in _WITH_RESULT else (error.code,)
        if result is None:
            return (CUresult.CUDA_SUCCESS,)
        return (CUresult.CUDA_SUCCESS, *(result if isinstance(result, tuple) else (result,)))

    return call


_WITHOUT_CONTEXT = frozenset(
    "cuInit cuDeviceGetCount cuDeviceGet cuDeviceGetAttribute cuDeviceGetName cuDeviceTotalMem cuDriverGetVersion"
    " cuDevicePrimaryCtxRetain cuCtxPushCurrent cuCtxPopCurrent".split()
)
_WITH_RESULT = frozenset(
    "cuMemAlloc cuMemAllocManaged cuMemHostAlloc cuMemGetInfo cuEventElapsedTime cuModuleGetFunction"
    " cuStreamEndCapture".split()
)


class StandIn(ModuleType):
    """The module. ``device_capabilities`` has one entry for each GPU.

    ``concurrent_managed_access`` says whether host and GPU may use managed memory at once.
    """

    CUresult = CUresult
    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT=16,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=75,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=76,
        CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS=89,
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN=97,
    )
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8)
    CUstream_flags = SimpleNamespace(CU_STREAM_DEFAULT=0, CU_STREAM_NON_BLOCKING=1)
    CUevent_flags = SimpleNamespace(CU_EVENT_DISABLE_TIMING=2)
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2)
    CUlaunchAttributeID = SimpleNamespace(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION=6)
    CUlaunchConfig = SimpleNamespace

    def __init__(self) -> None:
        super().__init__("cuda_stand_in_driver")
        self.calls: Counter[str] = Counter()
        self.device_capabilities = [(9, 0)]
        self.concurrent_managed_access = 1
        self.driver_version = 13000
        self.memory_bytes = 8 << 30
        self.faulty: set[str] = set()
        self.fault: CUresult | None = None
        self.contexts: list[object] = []
        self.streams = [Stream(1), Stream(2)]
        self.memory: dict[int, np.ndarray] = {}
        self.pinned: dict[int, np.ndarray] = {}

    def cuGetErrorString(self, code: CUresult) -> tuple[CUresult, bytes]:
        return CUresult.CUDA_SUCCESS, code.name.removeprefix("CUDA_ERROR_").lower().replace("_", " ").encode()

    # Devices and contexts.

    @counted
    def cuInit(self, flags: int) -> None:
        if not self.device_capabilities:
            raise CUDAStandInError(CUresult.CUDA_ERROR_NO_DEVICE)

    @counted
    def cuDeviceGetCount(self) -> int:
        return len(self.device_capabilities)

    @counted
    def cuDeviceGet(self, ordinal: int) -> int:
        return ordinal

    @counted
    def cuDeviceGetAttribute(self, attribute: int, device: int) -> int:
        major, minor = self.device_capabilities[device]
        return {
            16: 132, 75: major, 76: minor, 89: self.concurrent_managed_access, 97: LARGEST_MEMORY_BYTES
        }[attribute]  # fmt: skip

    @counted
    def cuDeviceGetName(self, length: int, device: int) -> bytes:
        return b"Stand-in GPU\0".ljust(length, b"\0")

    @counted
    def cuDeviceTotalMem(self, device: int) -> int:
        return self.memory_bytes

    @counted
    def cuDriverGetVersion(self) -> int:
        return self.driver_version

    @counted
    def cuDevicePrimaryCtxRetain(self, device: int) -> object:
        return ("context", device)

    @counted
    def cuCtxPushCurrent(self, context: object) -> None:
        self.contexts.append(context)

    @counted
    def cuCtxPopCurrent(self) -> object:
        return self.contexts.pop()

    @counted
    def cuCtxSynchronize(self) -> None:
        for stream in self.streams:
            stream.run()
        self._raise_fault()

    def _raise_fault(self) -> None:
        if self.fault is not None:
            raise CUDAStandInError(self.fault)

    # Memory.

    @counted
    def cuMemAlloc(self, nbytes: int) -> int:
        if not 0 <= nbytes < 2**64:
            raise OverflowError(nbytes)
        if nbytes > self.memory_bytes - sum(block.size for block in self.memory.values()):
            raise CUDAStandInError(CUresult.CUDA_ERROR_OUT_OF_MEMORY)
        # CUDA gives addresses with an alignment of 256; what lies there is not cleared.
        whole = np.full(nbytes + 256, 0xA5, np.uint8) if nbytes < 1 << 24 else np.empty(nbytes + 256, np.uint8)
        block = whole[-whole.ctypes.data % 256 :][:nbytes]
        self.memory[block.ctypes.data] = block
        return block.ctypes.data

    @counted
    def cuMemAllocManaged(self, nbytes: int, flags: int) -> int:
        if flags != 1:
            raise CUDAStandInError(CUresult.CUDA_ERROR_INVALID_VALUE)
        return StandIn.cuMemAlloc.__wrapped__(self, nbytes)

    @counted
    def cuMemFree(self, address: int) -> None:
        for stream in self.streams:
            stream.run()
        del self.memory[address]

    @counted
    def cuMemGetInfo(self) -> tuple[int, int]:
        return self.memory_bytes - sum(block.size for block in self.memory.values()), self.memory_bytes

    @counted
    def cuMemHostAlloc(self, nbytes: int, flags: int) -> int:
        block = np.zeros(nbytes, np.uint8)
        self.pinned[block.ctypes.data] = block
        return block.ctypes.data

    @counted
    def cuMemFreeHost(self, address: int) -> None:
        del self.pinned[address]

    def _view(self, address: int, nbytes: int) -> np.ndarray:
        """Memory that kernels can use, which has to lie in one allocation."""
        for start, block in (self.memory | self.pinned).items():
            if start <= address and address + nbytes <= start + block.size:
                return block[address - start :][:nbytes]
        raise CUDAStandInError(CUresult.CUDA_ERROR_INVALID_VALUE)

    def _pinned(self, address: int, nbytes: int) -> np.ndarray | None:
        for start, block in self.pinned.items():
            if start <= address and address + nbytes <= start + block.size:
                return block[address - start :][:nbytes]
        return None

    @counted
    def cuMemcpyHtoDAsync(self, target: int, source: int, nbytes: int, stream: Stream) -> None:
        view = self._view(target, nbytes)
        data = self._pinned(source, nbytes)
        if data is None:
            if stream.captured is not None:
                raise CUDAStandInError(CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
            data = _host(source, nbytes).copy()
        stream.put(lambda: np.copyto(view, data))

    @counted
    def cuMemcpyDtoHAsync(self, target: int, source: int, nbytes: int, stream: Stream) -> None:
        view = self._view(source, nbytes)
        data = self._pinned(target, nbytes)
        if data is not None:
            stream.put(lambda: np.copyto(data, view))
        else:
            stream.run()
            self._raise_fault()
            _host(target, nbytes)[:] = view

    # Streams and events.

    @counted
    def cuStreamCreate(self, flags: int) -> Stream:
        self.streams.append(Stream(0x1000 + len(self.streams)))
        return self.streams[-1]

    def CUstream(self, handle: int) -> Stream:
        """The stream with that handle; 1 and 2 are those that every context has."""
        return next(stream for stream in self.streams if stream.handle == handle)

    @counted
    def cuStreamSynchronize(self, stream: Stream) -> None:
        if stream.captured is not None:
            raise CUDAStandInError(CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        stream.run()
        self._raise_fault()

    @counted
    def cuStreamWaitEvent(self, stream: Stream, event: Event, flags: int) -> None:
        stream.put(lambda: self._reach(event))

    @counted
    def cuEventCreate(self, flags: int) -> Event:
        return Event()

    @counted
    def cuEventRecord(self, event: Event, stream: Stream) -> None:
        mark = event.pending = object()

        def reach() -> None:
            event.time = time.perf_counter()
            if event.pending is mark:
                event.pending = None

        stream.put(reach)

    def _reach(self, event: Event) -> None:
        for stream in self.streams:
            while event.pending is not None and stream.queue:
                stream.advance()
        with _working:
            pass

    @counted
    def cuEventSynchronize(self, event: Event) -> None:
        self._reach(event)
        self._raise_fault()

    @counted
    def cuEventQuery(self, event: Event) -> None:
        if event.pending is None:
            return
        for stream in self.streams:
            if stream.queue:
                stream.advance()
        self._raise_fault()
        raise CUDAStandInError(CUresult.CUDA_ERROR_NOT_READY)

    @counted
    def cuEventElapsedTime(self, start: Event, stop: Event) -> float:
        if start.pending is not None or stop.pending is not None or start.time is None or stop.time is None:
            raise CUDAStandInError(CUresult.CUDA_ERROR_NOT_READY)
        return 1e3 * (stop.time - start.time)

    # Kernels.

    @counted
    def cuModuleLoadData(self, image: bytes) -> Module:
        return Module(image)

    @counted
    def cuModuleGetFunction(self, module: Module, name: bytes) -> Function:
        return Function(module, name.decode())

    @counted
    def cuFuncGetParamInfo(self, function: Function, index: int) -> tuple[int, int]:
        if index >= len(function.parameters):
            raise CUDAStandInError(CUresult.CUDA_ERROR_INVALID_VALUE)
        return function.parameters[index]

    @counted
    def cuFuncSetAttribute(self, function: Function, attribute: int, value: int) -> None:
        if attribute != 8 or not 0 <= value <= LARGEST_MEMORY_BYTES:
            raise CUDAStandInError(CUresult.CUDA_ERROR_INVALID_VALUE)
        function.most_memory = value

    @counted
    def cuLaunchKernel(
        self, function: Function, gx: int, gy: int, gz: int, bx: int, by: int, bz: int, shared: int, stream: Stream,
        parameters: None, extra: int,
    ) -> None:  # fmt: skip
        threads = bx * by * bz
        if not (1 <= gx <= LARGEST_GRID and gy == gz == 1 and shared <= function.most_memory and parameters is None):
            raise CUDAStandInError(CUresult.CUDA_ERROR_INVALID_VALUE)
        if not 1 <= threads <= 1024:
            raise CUDAStandInError(CUresult.CUDA_ERROR_INVALID_VALUE)
        if threads > (function.function.signature.threadgroup_size or 1024):
            raise CUDAStandInError(CUresult.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES)
        what, buffer, how_long, size, end = (ctypes.c_void_p * 5).from_address(extra)
        assert (what, how_long, end) == (1, 2, None)
        assert buffer is not None and size is not None
        nbytes = ctypes.c_size_t.from_address(size).value
        packed = ctypes.string_at(buffer, nbytes)
        if nbytes != max((offset + length for offset, length in function.parameters), default=0):
            raise CUDAStandInError(CUresult.CUDA_ERROR_INVALID_VALUE)
        values = [packed[offset : offset + length] for offset, length in function.parameters]
        stream.put(lambda: self._run(function, gx, bx, shared, values))

    def CUlaunchAttribute(self) -> SimpleNamespace:
        return SimpleNamespace(id=None, value=SimpleNamespace())

    @counted
    def cuLaunchKernelEx(self, config: SimpleNamespace, function: Function, parameters: None, extra: int) -> None:
        (attribute,) = config.attrs
        assert (config.numAttrs, attribute.id, attribute.value.programmaticStreamSerializationAllowed) == (1, 6, 1)
        StandIn.cuLaunchKernel.__wrapped__(
            self, function, config.gridDimX, config.gridDimY, config.gridDimZ, config.blockDimX, config.blockDimY,
            config.blockDimZ, config.sharedMemBytes, config.hStream, parameters, extra,
        )  # fmt: skip

    def _run(self, function: Function, blocks: int, threads: int, shared: int, values: list[bytes]) -> None:
        if self.fault is not None:
            return
        signature = function.function.signature
        if function.stores_sizes:
            sizes = np.array(function.function.pointee_sizes, np.uint32).tobytes()
            self._view(int.from_bytes(values[0], "little"), len(sizes))[:] = np.frombuffer(sizes, np.uint8)
            return
        arguments = [argument for argument in signature.arguments if argument.address_space != "threadgroup"]
        try:
            if function.name in self.faulty:
                raise CUDAStandInError(CUresult.CUDA_ERROR_ILLEGAL_ADDRESS)
            buffers = []
            for argument, value in zip(arguments, values, strict=False):
                if not function.takes_launch and argument.address_space == "constant" and argument.is_reference:
                    buffers.append(_Memory(np.frombuffer(bytearray(value), np.uint8)))
                else:
                    buffers.append(_Memory(self._view(int.from_bytes(value, "little"), 1)))
        except CUDAStandInError:
            self.fault = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
            return
        offsets = [int.from_bytes(value, "little") for value in values[len(arguments) : len(signature.arguments)]]
        ends = [*offsets[1:], shared]
        lengths = tuple(end - start for start, end in zip(offsets, ends, strict=False))
        if not function.takes_launch:
            assert threads == function.function.threadgroup_size
            dispatch = Dispatch(function.function, blocks, tuple(buffers))  # type: ignore[arg-type]
        else:
            numbers = struct.unpack("=9I", values[-1])
            grid, threadgroup, counts = numbers[:3], numbers[3:6], numbers[6:]
            assert blocks == math.prod(counts) and threads == math.prod(threadgroup)
            dispatch = Dispatch(function.function, counts, tuple(buffers), threadgroup, grid, lengths)  # type: ignore[arg-type]
        _opencl().submit([dispatch]).wait()

    # Graphs.

    @counted
    def cuStreamBeginCapture(self, stream: Stream, mode: int) -> None:
        stream.captured = []

    @counted
    def cuStreamEndCapture(self, stream: Stream) -> list[Callable[[], None]]:
        captured, stream.captured = stream.captured, None
        assert captured is not None
        return captured

    @counted
    def cuGraphInstantiate(self, graph: list[Callable[[], None]], flags: int) -> list[Callable[[], None]]:
        return list(graph)

    @counted
    def cuGraphDestroy(self, graph: list[Callable[[], None]]) -> None:
        graph.clear()

    @counted
    def cuGraphExecDestroy(self, graph: list[Callable[[], None]]) -> None:
        graph.clear()

    @counted
    def cuGraphLaunch(self, graph: list[Callable[[], None]], stream: Stream) -> None:
        for work in graph:
            stream.put(work)


class _Memory:
    """A buffer for the OpenCL driver, at an address that is not its own."""

    def __init__(self, view: np.ndarray) -> None:
        import pyopencl as cl

        self.address = view.ctypes.data
        self.nbytes = view.nbytes
        self.handle = self.pointer = cl.SVM(view)


def _host(address: int, nbytes: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


@cache
def _opencl() -> Any:
    return devices.find_device("opencl")


def kernel_parameters(cubin: bytes) -> dict[str, list[tuple[int, int]]]:
    """Offset and size of each parameter of the kernels in machine code, read from its sections ``.nv.info.NAME``."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    count, names_index = struct.unpack_from("<HH", cubin, 0x3C)
    sections = [struct.unpack_from("<IIQQQQIIQQ", cubin, table + 64 * index) for index in range(count)]
    names = sections[names_index][4]
    found = {}
    for name_offset, _, _, _, start, size, *_ in sections:
        end = cubin.index(b"\0", names + name_offset)
        name = cubin[names + name_offset : end].decode()
        if not name.startswith(".nv.info."):
            continue
        places: dict[int, tuple[int, int]] = {}
        position = start
        while position < start + size:
            kind, attribute, length = struct.unpack_from("<BBH", cubin, position)
            if (kind, attribute) == (4, 0x17):
                _, ordinal, offset, flags = struct.unpack_from("<IHHI", cubin, position + 4)
                places[ordinal] = (offset, flags >> 18)
            position += 4 + (length if kind == 4 else 0)
        found[name.removeprefix(".nv.info.")] = [places[ordinal] for ordinal in sorted(places)]
    return found


@contextmanager
def installed(**attributes: Any) -> Iterator[StandIn]:
    """Puts a stand-in in the place of NVIDIA's driver while the block runs; ``attributes`` are set on it first."""
    module = StandIn()
    for name, value in attributes.items():
        setattr(module, name, value)
    options: list[CompileOptions | None] = []
    plain_compile = cuda.CUDADevice.compile

    def compile_with_options(self: Any, source: str, *, name: str, **given: Any) -> Any:
        options.append(given.get("options"))
        try:
            return plain_compile(self, source, name=name, **given)
        finally:
            options.pop()

    def compile_cubin(translation: Any, source: str, name: str, architecture: str, math: Any) -> tuple[bytes, str]:
        code, log = cuda_compiler.compile_cubin(translation, source, name, architecture, math)
        names = {kernel.entry_point: kernel.name for kernel in translation.kernels.values()}
        contents = {"cubin": code, "source": source, "name": name, "options": options[-1], "names": names}
        return pickle.dumps(contents), log

    def cache_name(*arguments: Any) -> str:
        return "stand-in-" + cuda_compiler.cache_name(*arguments)

    replaced = {
        (cuda, "compile_cubin"): compile_cubin,
        (cuda, "cache_name"): cache_name,
        (cuda, "missing"): lambda: None,
        (cuda_api, "missing"): lambda: None,
        (cuda.CUDADevice, "compile"): compile_with_options,
        (cuda_api, "MODULE"): module.__name__,
    }
    before = {place: getattr(*place) for place in replaced}
    sys.modules[module.__name__] = module
    for (owner, name), value in replaced.items():
        setattr(owner, name, value)
    cuda_api.api.cache_clear()
    devices._devices_of.cache_clear()
    try:
        yield module
    finally:
        for (owner, name), value in before.items():
            setattr(owner, name, value)
        del sys.modules[module.__name__]
        cuda_api.api.cache_clear()
        devices._devices_of.cache_clear()
