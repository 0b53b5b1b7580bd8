"""Memory of NVIDIA GPUs: a pool that CUDA is asked to fill once, buffers in it, and copies through pinned memory.

All work of a device goes through one stream, so memory that is given back may be handed out at once: what still uses it
runs before whatever uses it next.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from mpsgrad.devices.contract import Buffer
from mpsgrad.devices.cuda_api import CUDAError, api, checked
from mpsgrad.devices.pool import pooled_size
from mpsgrad.errors import DeviceError, GeometryError

if TYPE_CHECKING:
    from mpsgrad.devices.cuda import CUDADevice

_SMALLEST_BYTES = 512
_LARGEST_SMALL_BYTES = 1 << 20
_SLAB_BYTES = 8 << 20
_GRANULARITY = 2 << 20
_STAGE_BYTES = 4 << 20
_STAGES = 3
_PORTABLE, _MAPPED = 1, 2
_ATTACH_GLOBAL = 1
# Copies up to this size pass through the driver's own buffer, without a wait for ours.
_UNSTAGED_BYTES = 64 << 10


PART_ALIGNMENT = 256
"""As CUDA aligns what it allocates."""


class MemoryPool:
    """Memory of one device by size. Small pieces are cut from slabs; larger ones go back to CUDA when it has no more.

    The device's lock protects it.
    """

    def __init__(self, device: CUDADevice) -> None:
        self._device = device
        self._free: dict[int, list[int]] = {}

    def _obtain(self, size: int) -> int:
        """The address of new memory of CUDA's; raises ``CUDAError``."""
        return int(checked(api().cuMemAlloc(size)))

    def _release(self, address: int, size: int) -> None:
        """Gives memory of ``_obtain`` back to CUDA."""
        checked(api().cuMemFree(address))

    def take(self, nbytes: int) -> tuple[int, int]:
        """The address and the true size of at least ``nbytes`` bytes; raises ``DeviceError``."""
        if nbytes > _LARGEST_SMALL_BYTES:
            size = pooled_size(nbytes, _GRANULARITY)
        else:
            size = max(_SMALLEST_BYTES, 1 << (nbytes - 1).bit_length())
        free = self._free.get(size)
        if free:
            return free.pop(), size
        if size > _LARGEST_SMALL_BYTES:
            return self._allocate(size, nbytes), size
        slab = self._allocate(_SLAB_BYTES, nbytes)
        self._free.setdefault(size, []).extend(range(slab + _SLAB_BYTES - size, slab, -size))
        return slab, size

    def give_back(self, address: int, size: int) -> None:
        """Lets memory of ``take`` be handed out again."""
        self._free.setdefault(size, []).append(address)

    def _allocate(self, size: int, asked: int) -> int:
        try:
            return self._obtain(size)
        except OverflowError as error:
            raise DeviceError(self._refusal(asked)) from error
        except CUDAError as error:
            if not error.is_out_of_memory:
                raise self._device.failure(f"cannot allocate {asked} bytes", error) from error
        # What nobody refers to any more but for a cycle, and what lies unused here, may be enough.
        gc.collect()
        free = self._free.get(size) if size > _LARGEST_SMALL_BYTES else None
        if free:
            return free.pop()
        try:
            self._release_unused()
            return self._obtain(size)
        except CUDAError as error:
            if error.is_out_of_memory:
                raise DeviceError(self._refusal(asked)) from error
            raise self._device.failure(f"cannot allocate {asked} bytes", error) from error

    def _release_unused(self) -> None:
        checked(api().cuCtxSynchronize())
        for size in [size for size in self._free if size > _LARGEST_SMALL_BYTES]:
            for address in self._free.pop(size):
                self._release(address, size)

    def _refusal(self, asked: int) -> str:
        text = f"{self._device.identifier}: cannot allocate {asked} bytes"
        try:
            free, total = checked(api().cuMemGetInfo())
        except CUDAError:
            return text
        return f"{text}; {free} of the device's {total} bytes are free"


class SharedPool(MemoryPool):
    """Memory that the host and the GPU see at the same addresses, at the same time.

    It is managed memory, which moves to the side that uses it, where the GPU and the host may use it at once, as on
    Linux; elsewhere pinned memory of the host. Managed memory never is more than the GPU has free: beyond that it would
    move to and fro.
    """

    def __init__(self, device: CUDADevice) -> None:
        super().__init__(device)
        self._managed_bytes = 0

    @cached_property
    def _is_managed(self) -> bool:
        attribute = api().CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS
        return bool(checked(api().cuDeviceGetAttribute(attribute, checked(api().cuDeviceGet(self._device.ordinal)))))

    def _obtain(self, size: int) -> int:
        if not self._is_managed:
            return int(checked(api().cuMemHostAlloc(size, _PORTABLE | _MAPPED)))
        if self._managed_bytes + size > checked(api().cuMemGetInfo())[0]:
            raise CUDAError(api().CUresult.CUDA_ERROR_OUT_OF_MEMORY)
        address = int(checked(api().cuMemAllocManaged(size, _ATTACH_GLOBAL)))
        self._managed_bytes += size
        return address

    def _release(self, address: int, size: int) -> None:
        if not self._is_managed:
            checked(api().cuMemFreeHost(address))
            return
        checked(api().cuMemFree(address))
        self._managed_bytes -= size


class Staging:
    """Copies between arrays and the device: in pieces through pinned memory, which the device reads and writes itself
    while the host copies the piece before. The device's lock protects it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._next = 0

    @cached_property
    def _stages(self) -> list[tuple[int, np.ndarray, Any]]:
        """Address, view and event of each pinned piece."""
        stages = []
        for _ in range(_STAGES):
            address = int(checked(api().cuMemHostAlloc(_STAGE_BYTES, 0)))
            view = np.ctypeslib.as_array((ctypes.c_uint8 * _STAGE_BYTES).from_address(address))
            event = checked(api().cuEventCreate(api().CUevent_flags.CU_EVENT_DISABLE_TIMING))
            stages.append((address, view, event))
        return stages

    def _stage(self) -> tuple[int, np.ndarray, Any]:
        """The next piece, once the copy that used it last has ended."""
        self._next = (self._next + 1) % _STAGES
        stage = self._stages[self._next]
        checked(api().cuEventSynchronize(stage[2]))
        return stage

    def write(self, address: int, data: np.ndarray) -> None:
        """Copies bytes to the device; ``data`` may change when it returns."""
        if data.size <= _UNSTAGED_BYTES:
            checked(api().cuMemcpyHtoDAsync(address, data.ctypes.data, data.size, self._stream))
            return
        for start in range(0, data.size, _STAGE_BYTES):
            part = data[start : start + _STAGE_BYTES]
            host, view, event = self._stage()
            view[: part.size] = part
            checked(api().cuMemcpyHtoDAsync(address + start, host, part.size, self._stream))
            checked(api().cuEventRecord(event, self._stream))

    def read(self, address: int, data: np.ndarray) -> None:
        """Fills ``data`` with bytes of the device, after the work that was submitted before."""
        if data.size <= _UNSTAGED_BYTES:
            checked(api().cuMemcpyDtoHAsync(data.ctypes.data, address, data.size, self._stream))
            checked(api().cuStreamSynchronize(self._stream))
            return
        pending: list[tuple[np.ndarray, np.ndarray, Any]] = []
        for start in range(0, data.size, _STAGE_BYTES):
            part = data[start : start + _STAGE_BYTES]
            if len(pending) == _STAGES:
                _finish(*pending.pop(0))
            host, view, event = self._stage()
            checked(api().cuMemcpyDtoHAsync(host, address + start, part.size, self._stream))
            checked(api().cuEventRecord(event, self._stream))
            pending.append((part, view, event))
        for copied in pending:
            _finish(*copied)


def _finish(part: np.ndarray, view: np.ndarray, event: Any) -> None:
    checked(api().cuEventSynchronize(event))
    part[:] = view[: part.size]


class CUDABuffer(Buffer):
    """``nbytes`` at ``address`` on the device.

    ``owner`` is what owns the memory where it is not the device's pool; ``borrowers`` are the streams of other
    libraries that were given it.
    """

    device: CUDADevice
    owner: Any = None
    borrowers: set[int] | None = None

    def __init__(self, device: CUDADevice, nbytes: int, address: int, size: int) -> None:
        self.device = device
        self.nbytes = nbytes
        self.address = address
        self._size = size

    @property
    def memory(self) -> np.ndarray | None:
        return None

    @property
    def value(self) -> bytes:
        """The contents, for a kernel that takes them by value."""
        return self.read(0, self.nbytes).tobytes()

    def write(self, data: Any, byte_offset: int = 0) -> None:
        source = np.frombuffer(data, np.uint8)
        self._require_inside("written", byte_offset, source.size)
        if source.size:
            self.device.write(self.address + byte_offset, source)

    def read(self, byte_offset: int, nbytes: int) -> np.ndarray:
        self._require_inside("read", byte_offset, nbytes)
        result = np.empty(nbytes, np.uint8)
        if nbytes:
            self.device.read(self.address + byte_offset, result)
        return result

    def part(self, byte_offset: int, nbytes: int) -> CUDABuffer:
        self._require_inside("divided", byte_offset, nbytes)
        part = CUDABuffer(self.device, nbytes, self.address + byte_offset, 0)
        part.owner = self
        return part

    def lend(self, stream: int, *, waits: bool = True) -> None:
        """Remembers that another library uses the memory on ``stream``, which waits for work submitted here."""
        if waits:
            self.device.show_to(stream)
        self.borrowers = {stream} | (self.borrowers or set())

    def _require_inside(self, what: str, byte_offset: int, nbytes: int) -> None:
        if byte_offset < 0 or nbytes < 0 or byte_offset + nbytes > self.nbytes:
            raise GeometryError(
                f"{self.device.identifier}: bytes {byte_offset} to {byte_offset + nbytes} cannot be {what} in a buffer "
                f"of {self.nbytes}"
            )

    # When the interpreter ends, the names of modules may be gone first.
    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if self.owner is None and hasattr(self, "_size"):
            if self.borrowers and not is_finalizing():
                self.device.wait_for(self.borrowers)
            self.device.recycle(self.address, self._size)


class SharedMemory:
    """Memory of a ``SharedPool``, until nothing refers to it: buffers, arrays over it, and work that has not ended."""

    def __init__(self, device: CUDADevice, nbytes: int, address: int, size: int) -> None:
        self._device = device
        self._nbytes = nbytes
        self._address = address
        self._size = size

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"shape": (self._nbytes,), "typestr": "|u1", "data": (self._address, False), "version": 3}

    def __del__(self) -> None:
        self._device.recycle_shared(self._address, self._size)


class CUDASharedBuffer(CUDABuffer):
    """A buffer that the host sees. What it writes and reads does not wait for work of the GPU."""

    owner: SharedMemory

    def __init__(self, device: CUDADevice, nbytes: int, address: int, size: int) -> None:
        super().__init__(device, nbytes, address, size)
        self.owner = SharedMemory(device, nbytes, address, size)

    @property
    def memory(self) -> np.ndarray:
        return np.asarray(self.owner)

    def write(self, data: Any, byte_offset: int = 0) -> None:
        source = np.frombuffer(data, np.uint8)
        self._require_inside("written", byte_offset, source.size)
        self.memory[byte_offset : byte_offset + source.size] = source

    def read(self, byte_offset: int, nbytes: int) -> np.ndarray:
        self._require_inside("read", byte_offset, nbytes)
        return self.memory[byte_offset : byte_offset + nbytes].copy()


class CUDAConstant(Buffer):
    """A few bytes that kernels take by value; a copy on the device is made for the first that takes their address."""

    device: CUDADevice
    owner: Any = None

    def __init__(self, device: CUDADevice, value: bytes) -> None:
        self.device = device
        self.nbytes = len(value)
        self.value = value

    @cached_property
    def _copy(self) -> CUDABuffer:
        copy = self.device.allocate(self.nbytes)
        copy.write(self.value)
        return copy

    @property
    def address(self) -> int:  # type: ignore[override]
        return self._copy.address

    def copy_to_device(self) -> None:
        """Makes the copy now."""
        self._copy  # noqa: B018

    @property
    def memory(self) -> None:
        return None

    def write(self, data: Any, byte_offset: int = 0) -> None:
        raise GeometryError(f"{self.device.identifier}: a constant buffer cannot be written")

    def read(self, byte_offset: int, nbytes: int) -> np.ndarray:
        return np.frombuffer(self.value, np.uint8)[byte_offset : byte_offset + nbytes].copy()
