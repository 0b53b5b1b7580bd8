"""The Metal types that NumPy has too: scalars, vectors of them, packed vectors, and atomics."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

_SCALARS: dict[str, type] = {
    "bool": np.bool_, "char": np.int8, "uchar": np.uint8, "short": np.int16, "ushort": np.uint16, "int": np.int32,
    "uint": np.uint32, "long": np.int64, "ulong": np.uint64, "half": np.float16, "float": np.float32,
    "int8_t": np.int8, "uint8_t": np.uint8, "int16_t": np.int16, "uint16_t": np.uint16, "int32_t": np.int32,
    "uint32_t": np.uint32, "int64_t": np.int64, "uint64_t": np.uint64, "size_t": np.uint64,
    "signed char": np.int8, "unsigned char": np.uint8, "unsigned short": np.uint16, "unsigned int": np.uint32,
    "unsigned": np.uint32, "unsigned long": np.uint64, "atomic_int": np.int32, "atomic_uint": np.uint32,
    "atomic_ulong": np.uint64, "atomic_bool": np.uint32, "atomic_float": np.float32,
}  # fmt: skip
_NAME = "|".join(sorted(_SCALARS, key=len, reverse=True))
_SCALAR = re.compile(rf"(?:{_NAME})$")
_VECTOR = re.compile(rf"(packed_)?({_NAME})([234])$")
_BFLOAT = re.compile(r"(packed_)?bfloat([234])?$|(packed_vec|vec|atomic|_atomic)<bfloat(?:, ?([234]))?>$")
_TEMPLATE = re.compile(rf"(packed_vec|vec|atomic|_atomic)<({_NAME})(?:, ?([234]))?>$")


POINTEE = "pointee"
"""In the metadata of NumPy's type of an address: the type of the pointer that is to have it."""


@dataclass(frozen=True, slots=True)
class ElementType:
    """``lanes`` numbers of ``dtype`` in ``size`` bytes; three lanes take the room of four unless packed.

    NumPy has no bfloat: with ``is_bfloat`` the numbers are the bits of one each.
    """

    dtype: np.dtype
    lanes: int
    size: int
    is_bfloat: bool = False


def element_type(name: str) -> ElementType | None:
    """What ``name``, a type as written in Metal, is to NumPy; None for structs and other types of the user's."""
    if _SCALAR.match(name):
        dtype = np.dtype(_SCALARS[name])
        return ElementType(dtype, 1, dtype.itemsize)
    vector = _VECTOR.match(name)
    if vector is not None:
        packed, scalar, count = vector[1] is not None, vector[2], vector[3]
    else:
        template = _TEMPLATE.match(name)
        if template is None:
            return None
        packed, scalar, count = template[1] == "packed_vec", template[2], template[3] or "1"
        if "atomic" in template[1] and scalar == "bool":
            scalar = "atomic_bool"
    dtype = np.dtype(_SCALARS[scalar])
    lanes = int(count)
    return ElementType(dtype, lanes, dtype.itemsize * (4 if lanes == 3 and not packed else lanes))


def bfloat_type(name: str) -> ElementType | None:
    """What ``name`` is if it is bfloat, or a vector or an atomic of them."""
    found = _BFLOAT.match(name)
    if found is None:
        return None
    lanes = int(found[2] or found[4] or 1)
    is_packed = bool(found[1]) or found[3] == "packed_vec"
    return ElementType(np.dtype(np.uint16), lanes, 2 * (4 if lanes == 3 and not is_packed else lanes), True)


def bfloat_bits(values: np.ndarray) -> np.ndarray:
    """The bits of the bfloats that are nearest to ``values``, of two as near ones the even one; NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(bits.view(np.float32)), 0x7FC0, nearest).astype(np.uint16).reshape(np.shape(values))


def fitting(value: Any, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray | None:
    """``value`` as an array of ``dtype`` and ``shape``; None if it has another shape, or numbers that do not fit."""
    try:
        given = np.asarray(value)
    except (ValueError, OverflowError):
        return None
    if given.shape != shape or not _fits(given, dtype):
        return None
    with np.errstate(over="ignore"):
        return given.astype(dtype)


def _fits(given: np.ndarray, dtype: np.dtype) -> bool:
    """Whether numbers keep their value, except that reals are rounded; structs have to be of ``dtype``."""
    if dtype.names is not None:
        return given.dtype == dtype
    if dtype.kind == "f":
        return given.dtype.kind in "biuf"
    if given.dtype.kind not in "biu":
        return False
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return all(low <= int(each) <= high for each in given.ravel())
