"""``DataType``: how numbers are stored outside images."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np

from mpsgrad.errors import GeometryError


class DataType(enum.IntEnum):
    """How one number of a data source is stored. Source: ``MPSDataType``."""

    INVALID = 0
    UINT8 = 8
    FLOAT16 = 0x10000010
    FLOAT32 = 0x10000020


def float_values(owner: str, data: Any) -> np.ndarray:
    """``data`` as an array; bytes, which Apple's ``NSData`` is here, hold float32 values. Raises ``GeometryError``."""
    if not isinstance(data, (bytes, bytearray)):
        return np.asarray(data)
    if len(data) % 4:
        raise GeometryError(f"{owner}: data has {len(data)} bytes, which is no multiple of 4")
    return np.frombuffer(data, np.float32)
