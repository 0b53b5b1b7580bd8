"""``DataType``: how numbers are stored outside images."""

from __future__ import annotations

import enum


class DataType(enum.IntEnum):
    """How one number of a data source is stored. Source: ``MPSDataType``."""

    INVALID = 0
    UINT8 = 8
    FLOAT16 = 0x10000010
    FLOAT32 = 0x10000020
