"""Tensors that the host passes: an array's memory, and what a kernel has to know of its shape."""

from __future__ import annotations

from itertools import accumulate
from operator import mul
from typing import Any

import numpy as np

from mpsgrad.errors import FormatError
from mpsgrad.msl.analysis.types import built_in
from mpsgrad.msl.signature import HostTensor
from mpsgrad.runtime.arguments import shown
from mpsgrad.runtime.element_types import POINTEE, element_type


def tensor_layout(tensor: HostTensor) -> np.dtype | None:
    """The layout of the struct that a kernel gets; None for elements or indices that are no numbers."""
    element, index = built_in(tensor.element), element_type(tensor.index_type)
    if element is None or index is None:
        return None
    is_const = not tensor.is_writable and tensor.address_space == "device"
    pointee = element._replace(pointers=1, space=tensor.address_space, const=is_const)
    pointer = np.dtype(np.uint64, metadata={POINTEE: pointee})
    rank = (len(tensor.lengths),)
    return np.dtype([("first", pointer), ("lengths", index.dtype, rank), ("steps", index.dtype, rank)], align=True)


def tensor_members(where: str, tensor: HostTensor, value: Any) -> dict[str, Any]:
    """What the struct has for ``value``, whose last axis is the tensor's first dimension.

    Raises ``FormatError`` if its shape does not fit.
    """
    shape = getattr(value, "shape", None)
    if shape is None and hasattr(value, "length"):
        shape = (value.length,)
    if shape is None:
        raise FormatError(f"{where} is {shown(value)}; it has to be an array, a tensor or an Image, which have a shape")
    lengths = tuple(int(length) for length in reversed(shape))
    given = "x".join(map(str, reversed(lengths))) or "()"
    if len(lengths) != len(tensor.lengths):
        axes = f"{len(tensor.lengths)} {'axis' if len(tensor.lengths) == 1 else 'axes'}"
        raise FormatError(f"{where} has the shape {given}; it has to have {axes}")
    wanted = "x".join("?" if length is None else str(length) for length in reversed(tensor.lengths))
    if any(known not in (None, length) for known, length in zip(tensor.lengths, lengths, strict=True)):
        raise FormatError(f"{where} has the shape {given}; it has to be {wanted}")
    return {"first": value, "lengths": lengths, "steps": (*accumulate((1, *lengths[:-1]), mul),)}
