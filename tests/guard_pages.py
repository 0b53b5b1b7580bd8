"""A pytest plugin for kernels of CPUs: a read or write outside a buffer ends the process. ``make nightly`` uses it.

    PYTHONPATH=tests MPSGRAD_GUARD=end python -X faulthandler -m pytest -n 2 -p guard_pages tests/kernels

Each buffer of the OpenCL device lies in pages of its own between two that nobody may touch; it ends where the second
begins or, with ``MPSGRAD_GUARD=front``, begins where the first ends. pytest-xdist names the test in which a process
ended. For GPUs ``sanitize_cuda.py`` does more.
"""

from __future__ import annotations

import ctypes
import mmap
import os

import numpy as np
import pyopencl

from mpsgrad.devices import opencl

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_ALIGNMENT = 4
"""What kernels may count on: images and vectors of others begin at any element of float32."""
_NOTHING_ALLOWED = 0
_AT_FRONT = os.environ.get("MPSGRAD_GUARD", "end") == "front"


class GuardedMemory:
    """``nbytes`` between two pages that fault, as the driver knows memory that is not its own."""

    def __init__(self, nbytes: int) -> None:
        size = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        pages = np.frombuffer(mmap.mmap(-1, size + 2 * mmap.PAGESIZE), np.uint8)
        for page in (0, mmap.PAGESIZE + size):
            if _LIBC.mprotect(pages.ctypes.data + page, mmap.PAGESIZE, _NOTHING_ALLOWED):
                raise OSError(ctypes.get_errno(), "mprotect failed")
        first = mmap.PAGESIZE
        if not _AT_FRONT:
            first += size - -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        self.array = pages[first : first + nbytes]
        self.address: int = self.array.ctypes.data
        self.handle = pyopencl.SVM(self.array)


def _allocate(device: opencl.OpenCLDevice, nbytes: int) -> opencl.OpenCLBuffer:
    return opencl.OpenCLBuffer(device, GuardedMemory(nbytes), nbytes)  # type: ignore[arg-type]


opencl.OpenCLDevice.allocate = _allocate  # type: ignore[method-assign]
