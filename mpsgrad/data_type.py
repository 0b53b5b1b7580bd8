"""``DataType``: how numbers are stored outside images."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np

from mpsgrad.errors import FormatError, GeometryError


class DataType(enum.IntEnum):
    """How one number of a data source is stored. Source: ``MPSDataType``."""

    INVALID = 0
    UINT8 = 8
    FLOAT16 = 0x10000010
    FLOAT32 = 0x10000020


def require_unmasked(owner: str, array: Any) -> None:
    """Raises ``FormatError`` for an array of ``numpy.ma`` with masked elements: kernels would take what is below."""
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        raise FormatError(
            f"{owner}: {np.ma.count_masked(array)} of the array's {array.size} elements are masked, which kernels do "
            "not know; its filled(value) gives them a value"
        )


def float_values(owner: str, data: Any) -> np.ndarray:
    """``data`` as an array; bytes, which Apple's ``NSData`` is here, hold float32 values.

    Raises ``GeometryError`` for bytes that are no whole numbers and ``FormatError`` for masked elements.
    """
    if not isinstance(data, (bytes, bytearray)):
        require_unmasked(owner, data)
        return np.asarray(data)
    if len(data) % 4:
        raise GeometryError(f"{owner}: data has {len(data)} bytes, which is no multiple of 4")
    return np.frombuffer(data, np.float32)
