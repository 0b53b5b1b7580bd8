"""MPS's padding policy for one axis: the size of the result and the kernel's offset.

`extent` is the dilated window, (kernel - 1) * dilation + 1. All divisions are C's: they truncate toward zero.
"""

from __future__ import annotations

from typing import Literal

SizeMethod = Literal["valid", "same", "full"]
Side = Literal["top_left", "bottom_right"]

_STYLE = {"valid": -1, "same": 0, "full": 1}


def _divide(numerator: int, denominator: int) -> int:
    """Integer division that truncates toward zero."""
    quotient = abs(numerator) // abs(denominator)
    return quotient if (numerator < 0) == (denominator < 0) else -quotient


def _at_least_one(size: int) -> int:
    if size < 1:
        raise ValueError(f"the size of the result is {size} but must be at least 1")
    return size


def padding_size(source_size: int, extent: int, stride: int, method: SizeMethod = "same") -> int:
    """Size of the result: (n + style * (extent - 1) + stride - 1) / stride, style -1 valid, 0 same, +1 full.

    Raises ValueError when that is less than 1.
    """
    size = _divide(source_size + _STYLE[method] * (extent - 1) + stride - 1, stride)
    return _at_least_one(size)


def padding_reverse_size(source_size: int, extent: int, stride: int, method: SizeMethod = "same") -> int:
    """Size of the result of a filter that runs backwards: (n - 1) * stride + 1 + style * (extent - 1).

    Raises ValueError when that is less than 1.
    """
    size = (source_size - 1) * stride + 1 + _STYLE[method] * (extent - 1)
    return _at_least_one(size)


def padding_offset(
    source_size: int,
    destination_size: int,
    extent: int,
    stride: int,
    align: Literal["centered", "top_left", "bottom_right"] = "centered",
    remainder: Side = "top_left",
) -> int:
    """Offset of a forward kernel: extent / 2 - left.

        extra = (destination_size - 1) * stride + extent - source_size      missing source pixels, may be negative
        left  = (extra + r) / 2    r = 1 when the odd pixel of padding goes to the top or left, else 0
                extra              aligned top_left: all of the padding is there
                0                  aligned bottom_right
    """
    extra = (destination_size - 1) * stride + extent - source_size
    if align == "top_left":
        left = extra
    elif align == "bottom_right":
        left = 0
    else:
        left = _divide(extra + (1 if remainder == "top_left" else 0), 2)
    return extent // 2 - left
