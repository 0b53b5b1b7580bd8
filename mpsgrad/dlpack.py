"""DLPack: memory that libraries hand to each other without a copy, on any kind of device.

A capsule called ``dltensor`` holds a C structure that says where the numbers lie; its ``deleter`` is called by whoever
took it, when the memory is no longer used. NumPy reads and writes them for CPUs only. Source: DLPack 1.0, the
structures without a version, which every library takes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

CPU, CUDA = 1, 2
"""Kinds of device: ``kDLCPU`` and ``kDLCUDA``."""
LEGACY_STREAM, THREAD_STREAM = 1, 2
"""Streams of CUDA that have a number of their own: the default stream, and that of a thread."""

_NAME, _USED_NAME = b"dltensor", b"used_dltensor"
_KINDS = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_BFLOAT = 4
_NAMES = frozenset("b1 i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 c8 c16".split())


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_kind", ctypes.c_int32),
        ("device_index", ctypes.c_int32),
        ("dimensions", ctypes.c_int32),
        ("number_kind", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _ManagedTensor(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_ManagedTensor))
_ManagedTensor._fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]

_python = ctypes.pythonapi
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _Destructor)(
    ("PyCapsule_New", _python)
)
_is_capsule = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _python))
_pointer_in = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _python))
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", _python))

_lent: dict[int, tuple[Any, ...]] = {}
"""What keeps lent memory alive, by the address of its structure."""


@_Deleter
def _delete(managed: Any) -> None:
    _lent.pop(ctypes.addressof(managed.contents), None)


@_Destructor
def _destroy(capsule: int) -> None:
    """Called for a capsule that goes: if nobody took what is in it, nobody else gives the memory back."""
    if _is_capsule(capsule, _NAME):
        _lent.pop(_pointer_in(capsule, _NAME), None)


def capsule_of(
    owner: Any, address: int, device: tuple[int, int], dtype: np.dtype, shape: Sequence[int], strides: Sequence[int]
) -> Any:
    """A capsule for the numbers at ``address``; ``strides`` count elements. ``owner`` is kept while they are in use."""
    extents = (ctypes.c_int64 * len(shape))(*shape)
    steps = (ctypes.c_int64 * len(strides))(*strides)
    tensor = _Tensor(address, *device, len(shape), _KINDS[dtype.kind], 8 * dtype.itemsize, 1, extents, steps, 0)
    managed = _ManagedTensor(tensor, None, _delete)
    place = ctypes.addressof(managed)
    _lent[place] = (managed, extents, steps, owner)
    return _new_capsule(place, _NAME, _destroy)


class BorrowedTensor:
    """What is in a capsule, until this object goes.

    ``strides`` count elements; ``dtype`` is None for one that NumPy lacks, of which bfloat16 is one.
    """

    def __init__(self, capsule: Any) -> None:
        """Takes what is in ``capsule``; raises ``BufferError`` if that is no tensor, or was taken before."""
        if not _is_capsule(id(capsule), _NAME):
            raise BufferError(f"{type(capsule).__name__} is no capsule with a DLPack tensor that nobody took yet")
        self._managed = _ManagedTensor.from_address(_pointer_in(id(capsule), _NAME))
        _rename(capsule, _USED_NAME)
        tensor = self._managed.tensor
        self.address: int = (tensor.data or 0) + tensor.byte_offset
        self.device = (int(tensor.device_kind), int(tensor.device_index))
        self.shape = tuple(tensor.shape[: tensor.dimensions])
        if tensor.strides:
            self.strides = tuple(tensor.strides[: tensor.dimensions])
        else:
            self.strides = dense_strides(self.shape)
        kinds = {number: kind for kind, number in _KINDS.items()}
        name = f"{kinds.get(tensor.number_kind)}{tensor.bits // 8}" if tensor.lanes == 1 else ""
        self.dtype = np.dtype(name) if name in _NAMES else None
        self.is_bfloat = (tensor.number_kind, tensor.bits, tensor.lanes) == (_BFLOAT, 16, 1)

    @property
    def is_dense(self) -> bool:
        """Whether it is in row-major order without gaps; where an axis has one element its stride says nothing."""
        steps = zip(self.shape, self.strides, dense_strides(self.shape), strict=True)
        return all(stride == dense for extent, stride, dense in steps if extent > 1)

    @classmethod
    def of(cls, array: Any, device: Any) -> BorrowedTensor:
        """What ``array`` lends to ``device`` (None: the CPU), whose stream waits for what its library did before.

        Raises what the array's library raises where it lends nothing.
        """
        stream = getattr(device, "stream", None)
        if stream is None:
            return cls(array.__dlpack__())
        # PyTorch lends only what is on the GPU that is the thread's current one.
        with device.context:
            return cls(array.__dlpack__(stream=int(stream)))

    def __del__(self) -> None:
        managed = getattr(self, "_managed", None)
        if managed is not None and managed.deleter:
            managed.deleter(ctypes.byref(managed))


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides, in elements, of an array in row-major order without gaps."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))
