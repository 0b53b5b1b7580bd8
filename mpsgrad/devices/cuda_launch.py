"""Kernels of NVIDIA GPUs: modules, launches, submissions that can be waited for, and recorded ones (CUDA graphs)."""

from __future__ import annotations

import ctypes
import math
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from mpsgrad.devices.contract import (
    Buffer,
    Dispatch,
    Function,
    Library,
    RecordedWork,
    Submission,
    require_constants,
    unknown_kernel,
)
from mpsgrad.devices.cuda_api import NOT_READY, CUDAError, api, checked
from mpsgrad.devices.cuda_memory import CUDAConstant
from mpsgrad.errors import DeviceError, GeometryError
from mpsgrad.msl import SIZES_SUFFIX, KernelSignature, Launch
from mpsgrad.msl.cuda import OVERLAPPING_CAPABILITY, is_passed_by_value

if TYPE_CHECKING:
    from mpsgrad.devices.cuda import CUDADevice

DEFAULT_THREADGROUP_SIZE = 256

# What loading a cubin answers that is none, or none for this GPU.
_DAMAGED = frozenset({200, 209, 300})
_MOST_BLOCKS = 2**31 - 1
_LAUNCH_FIELDS = 9
_PARAMETER_BUFFER, _PARAMETER_BUFFER_SIZE, _END = 1, 2, 0


class _Parameters:
    """The memory that a kernel's parameters are packed into, in the layout that CUDA asks for."""

    def __init__(self, handle: Any, is_value: Sequence[bool]) -> None:
        """``is_value`` says of each parameter whether it takes bytes; the others take an unsigned number."""
        places = []
        for index in range(len(is_value)):
            offset, size = checked(api().cuFuncGetParamInfo(handle, index))
            places.append((int(offset), int(size)))
        self.sizes = tuple(size for _, size in places)
        layout, end = "=", 0
        for (offset, size), takes_bytes in zip(places, is_value, strict=True):
            layout += "x" * (offset - end) + (f"{size}s" if takes_bytes else {4: "I", 8: "Q"}[size])
            end = offset + size
        self._layout = struct.Struct(layout)
        self._memory = ctypes.create_string_buffer(max(self._layout.size, 1))
        self._size = ctypes.c_size_t(self._layout.size)
        memory, size = ctypes.addressof(self._memory), ctypes.addressof(self._size)
        self._extra = (ctypes.c_void_p * 5)(_PARAMETER_BUFFER, memory, _PARAMETER_BUFFER_SIZE, size, _END)
        self.address = ctypes.addressof(self._extra)

    def fill(self, values: Iterable[int | bytes]) -> None:
        self._layout.pack_into(self._memory, 0, *values)


class CUDAFunction(Function):
    """One entry point of a loaded module. The device's lock protects the memory of its parameters."""

    def __init__(self, device: CUDADevice, module: Any, signature: KernelSignature, launch: Launch) -> None:
        self.name = signature.name
        self.signature = signature
        self.threadgroup_size = signature.threadgroup_size or DEFAULT_THREADGROUP_SIZE
        self.device = device
        self._handle = checked(api().cuModuleGetFunction(module, signature.entry_point.encode()))
        self._stream = device.stream
        self._launch_kernel = api().cuLaunchKernel
        self._launch_with = api().cuLaunchKernelEx
        self._may_overlap = launch == "whole" and device.capability >= OVERLAPPING_CAPABILITY
        self._any_grid = launch != "whole"
        buffers = [argument for argument in signature.arguments if argument.address_space != "threadgroup"]
        self._by_value = tuple(is_passed_by_value(argument, launch) for argument in buffers)
        self._by_address = not any(self._by_value)
        threadgroup_memory = len(signature.arguments) - len(buffers)
        self._threadgroup_memory = threadgroup_memory
        self._threadgroup_bytes = signature.threadgroup_bytes
        if signature.threadgroup_bytes:
            self._ask_for_threadgroup_memory(signature.threadgroup_bytes)
        self._parameters = _Parameters(
            self._handle, [*self._by_value, *[False] * threadgroup_memory, *[True] * self._any_grid]
        )

    def _ask_for_threadgroup_memory(self, nbytes: int) -> None:
        most = self.device.threadgroup_memory_bytes
        if nbytes > most:
            raise DeviceError(
                f"{self.name}: needs {nbytes} bytes of threadgroup memory; {self.device.identifier} has {most}"
            )
        attribute = api().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        checked(api().cuFuncSetAttribute(self._handle, attribute, nbytes))

    def launch(self, dispatch: Dispatch, stream: Any) -> None:
        """Starts one run; raises ``CUDAError`` if CUDA refuses it and ``DeviceError`` for unfit buffers."""
        buffers = dispatch.buffers
        if len(buffers) != len(self._by_value):
            raise DeviceError(f"{self.name}: takes {len(self._by_value)} buffers but was given {len(buffers)}")
        device = self.device
        for buffer in buffers:
            if buffer.device is not device:
                raise DeviceError(
                    f"{self.name}: was compiled for {device.identifier} but a buffer is on {buffer.device.identifier}"
                )
        values: list[int | bytes]
        if self._by_address:
            values = [buffer.address for buffer in buffers]  # type: ignore[attr-defined]
        else:
            values = [
                self._value(index, buffer) if by_value else buffer.address  # type: ignore[attr-defined]
                for index, (buffer, by_value) in enumerate(zip(buffers, self._by_value, strict=True))
            ]
        if self._any_grid:
            blocks, threads, shared = self._grid(dispatch, values)
        else:
            assert isinstance(dispatch.threadgroups, int)
            blocks, threads, shared = dispatch.threadgroups, self.threadgroup_size, self._threadgroup_bytes
            if self._threadgroup_memory:
                shared = _add_offsets(dispatch.threadgroup_memory, shared, values)
        self._parameters.fill(values)
        if self._may_overlap:
            config = device.overlapping_launch(stream)
            config.gridDimX, config.blockDimX, config.sharedMemBytes = blocks, threads, shared
            result = self._launch_with(config, self._handle, None, self._parameters.address)
        else:
            result = self._launch_kernel(
                self._handle, blocks, 1, 1, threads, 1, 1, shared, stream, None, self._parameters.address
            )
        if result[0]:
            raise CUDAError(result[0])

    def prepare_recording(self, dispatch: Dispatch) -> None:
        """Makes ready what a launch that is only recorded cannot wait for.

        Raises ``NotImplementedError`` for device memory that the kernel takes by value: each replay would see the same.
        """
        for buffer, by_value in zip(dispatch.buffers, self._by_value, strict=False):
            if by_value and not isinstance(buffer, CUDAConstant):
                raise NotImplementedError(
                    f"{self.name}: takes a constant by value, which cannot be device memory in a recording"
                )
            if not by_value and isinstance(buffer, CUDAConstant):
                buffer.copy_to_device()

    def _value(self, index: int, buffer: Buffer) -> bytes:
        """The contents of a buffer that the kernel takes by value. Those of device memory have to be fetched."""
        value: bytes = buffer.value  # type: ignore[attr-defined]
        size = self._parameters.sizes[index]
        if len(value) < size:
            name = self.signature.arguments[index].name
            raise DeviceError(f"{self.name}: '{name}' has {size} bytes but its buffer {len(value)}")
        return value

    def _grid(self, dispatch: Dispatch, values: list[int | bytes]) -> tuple[int, int, int]:
        """Blocks, threads of each and bytes of threadgroup memory; appends what the kernel has to know of them."""
        threadgroup = dispatch.threadgroup or (self.threadgroup_size, 1, 1)
        count = dispatch.threadgroups
        threadgroups = count if isinstance(count, tuple) else (count, 1, 1)
        grid = dispatch.threads or tuple(n * size for n, size in zip(threadgroups, threadgroup, strict=True))
        counts = tuple(-(-n // size) for n, size in zip(grid, threadgroup, strict=True))
        blocks = math.prod(counts)
        if blocks > _MOST_BLOCKS:
            raise GeometryError(f"{self.name}: the grid has {blocks} threadgroups; CUDA's limit is {_MOST_BLOCKS}")
        shared = _add_offsets(dispatch.threadgroup_memory, self._threadgroup_bytes, values)
        values.append(struct.pack(f"={_LAUNCH_FIELDS}I", *grid, *threadgroup, *counts))
        return blocks, math.prod(threadgroup), shared


def _add_offsets(lengths: Sequence[int], total: int, values: list[int | bytes]) -> int:
    """Appends where each piece of threadgroup memory begins, from ``total`` on; returns the bytes of all."""
    for nbytes in lengths:
        values.append(total)
        total += -(-nbytes // 16) * 16
    return total


class CUDALibrary(Library):
    """The kernels of one cubin, which is loaded into the device with the first of them."""

    def __init__(
        self,
        device: CUDADevice,
        cubin: bytes,
        compile_again: Callable[[], bytes],
        signatures: dict[str, KernelSignature],
        launch: Launch,
    ) -> None:
        """``compile_again`` gives the cubin anew if that one, which may come from the cache on disk, is damaged."""
        self._device = device
        self._cubin = cubin
        self._compile_again = compile_again
        self._signatures = signatures
        self._launch = launch
        self._functions: dict[str, CUDAFunction] = {}

    @property
    def function_names(self) -> tuple[str, ...]:
        return tuple(self._signatures)

    @cached_property
    def _module(self) -> Any:
        result = api().cuModuleLoadData(self._cubin)
        if int(result[0]) in _DAMAGED:
            result = api().cuModuleLoadData(self._compile_again())
        return checked(result)

    def function(self, name: str) -> CUDAFunction:
        function = self._functions.get(name)
        if function is None:
            if name not in self._signatures:
                raise unknown_kernel(name, self._signatures)
            signature = self._signatures[name]
            require_constants(signature)
            try:
                with self._device.active:
                    function = CUDAFunction(self._device, self._module, signature, self._launch)
                    if self._launch != "whole":
                        function.pointee_sizes = self._pointee_sizes(signature)
            except CUDAError as error:
                raise self._device.failure(f"{name}: cannot be loaded", error) from error
            self._functions[name] = function
        return function

    def _pointee_sizes(self, signature: KernelSignature) -> tuple[int, ...]:
        """What an entry point that stores the sizes of its arguments' types says."""
        count = len(signature.arguments)
        if count == 0:
            return ()
        handle = checked(api().cuModuleGetFunction(self._module, (signature.entry_point + SIZES_SUFFIX).encode()))
        sizes = self._device.allocate(4 * count)
        parameters = _Parameters(handle, [False])
        parameters.fill([sizes.address])
        stream = self._device.stream
        checked(api().cuLaunchKernel(handle, 1, 1, 1, 1, 1, 1, 0, stream, None, parameters.address))
        return tuple(sizes.read(0, 4 * count).view("uint32").tolist())


class CUDASubmission(Submission):
    """Work between two events of the device's stream.

    ``functions`` are the kernels in it, ``held`` what has to stay alive until they have run.
    """

    def __init__(self, device: CUDADevice, start: Any, stop: Any, functions: Sequence[Function], held: Any) -> None:
        self._device = device
        self._start = start
        self._stop = stop
        self.functions = functions
        self._held = held

    def wait(self) -> None:
        try:
            with self._device.context:
                checked(api().cuEventSynchronize(self._stop))
        except CUDAError as error:
            raise self._device.fault(self._device.started_up_to(self), error) from error
        self._held = None

    @property
    def is_complete(self) -> bool:
        try:
            with self._device.context:
                return int(api().cuEventQuery(self._stop)[0]) != NOT_READY
        except DeviceError:
            return True

    def has_succeeded(self) -> bool:
        """Whether the last dispatch has ended, and without a failure."""
        return not api().cuEventQuery(self._stop)[0]

    @property
    def gpu_time(self) -> float | None:
        if not self.functions:
            return 0.0
        try:
            with self._device.context:
                return checked(api().cuEventElapsedTime(self._start, self._stop)) * 1e-3
        except CUDAError as error:
            raise self._device.fault(self._device.started_up_to(self), error) from error

    def __del__(self) -> None:
        if hasattr(self, "_held"):
            self._device.recycle_events(self._start, self._stop)


class CUDARecording(RecordedWork):
    """A list of dispatches as a CUDA graph: starting it again costs one call, however many there are."""

    def __init__(self, device: CUDADevice, dispatches: Sequence[Dispatch], label: str | None) -> None:
        self._device = device
        self._dispatches = dispatches
        self._functions = [dispatch.function for dispatch in dispatches]
        self._label = label
        self._graph: Any = None
        for dispatch in dispatches:
            function = dispatch.function
            assert isinstance(function, CUDAFunction)
            function.prepare_recording(dispatch)
        self._graph = device.graph(dispatches)

    def submit(self) -> CUDASubmission:
        return self._device.start(self._replay, self._functions, self._label, self)

    def _replay(self) -> None:
        checked(api().cuGraphLaunch(self._graph, self._device.stream))

    # When the interpreter ends, the names of modules may be gone first.
    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if getattr(self, "_graph", None) is not None and not is_finalizing():
            with suppress(DeviceError), self._device.context:
                api().cuGraphExecDestroy(self._graph)
