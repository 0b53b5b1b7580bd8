"""The memory of CPUs as OpenCL knows it: blocks that are recycled, parts of them, and other libraries' memory."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from mpsgrad.devices.contract import Buffer

if TYPE_CHECKING:
    import pyopencl

    from mpsgrad.devices.opencl import OpenCLDevice

POOL_LIMIT_BYTES = 4 << 30
"""As much memory that nobody has is kept."""
_HUGE_PAGE_BYTES = 2 << 20
_SLACK_BYTES = 1 << 16
"""What lies behind each block, for kernels that read some rows too far: on Apple GPUs that does no harm."""
_STAGGER_BYTES = 13 * 128
"""So much farther into its first page than the block before each block begins, at one of 32 places. Kernels go through
several images at once. Where these begin at the same place of a page, their lines are in the same sets of the nearest
cache, in which AMD's processors tell them apart by a hash of the address: at some distances it is the same, and a step
of Adam takes 2.4 times as long."""

_made = itertools.count()


class Memory:
    """A block of host memory with its OpenCL handle, recycled through ``free``, a list of such blocks.

    Behind it lies more that may be read and written, which takes no memory until somebody does.
    """

    __slots__ = ("address", "array", "free", "handle", "size")

    def __init__(self, context: pyopencl.Context, size: int, free: list[Memory]) -> None:
        import pyopencl as cl

        self.size = size
        self.free = free
        # Python's default is a shared mapping, which Linux does not back by huge pages.
        private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
        is_huge = size >= _HUGE_PAGE_BYTES
        # Whole huge pages stay so: Linux aligns no others to them.
        mapping = mmap.mmap(-1, size + (_HUGE_PAGE_BYTES if is_huge else mmap.PAGESIZE + _SLACK_BYTES), **private)
        if is_huge and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):
                mapping.madvise(mmap.MADV_HUGEPAGE)
        self.array = np.frombuffer(mapping, np.uint8, size, next(_made) * _STAGGER_BYTES % mmap.PAGESIZE)
        self.address = self.array.ctypes.data
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
        self.handle = cl.Buffer(context, flags, hostbuf=self.array)


class ForeignMemory:
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

    def __init__(self, device: OpenCLDevice, memory: Memory | ForeignMemory | _PartOfMemory, nbytes: int) -> None:
        self.device = device
        self.nbytes = nbytes
        self.address: int = memory.address
        self.handle: Any = memory.handle
        self._memory: Memory | ForeignMemory | _PartOfMemory = memory

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
        source: Any = data if type(data) is bytes else np.frombuffer(data, np.uint8)
        # Of few bytes NumPy takes three times as long.
        memoryview(self._memory.array)[byte_offset : byte_offset + len(source)] = source  # type: ignore[arg-type]

    def read(self, byte_offset: int, nbytes: int) -> np.ndarray:
        return self._memory.array[byte_offset : byte_offset + nbytes].copy()

    def part(self, byte_offset: int, nbytes: int) -> OpenCLBuffer:
        return OpenCLBuffer(self.device, _PartOfMemory(self, byte_offset, nbytes), nbytes)

    def __del__(self) -> None:
        memory = self._memory
        if type(memory) is Memory:
            if self.device._mapped_bytes <= POOL_LIMIT_BYTES:
                memory.free.append(memory)
            else:
                self.device._recycle_within_limit(memory)
