"""A row of the benchmark: what is run, how it is checked, and what PyTorch runs beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mpsgrad import CommandBuffer, Device

GROUPS = ("design", "resnet50", "unet", "awkward", "small", "scan")
"""Kinds of shapes, the most important first: what a run that is short of time leaves out comes from the end.

``design``: large layers of many kinds. ``resnet50`` and ``unet``: the layers of these networks at batch 32.
``awkward``: odd sizes, 3 and 37 channels. ``small``: one image, where overhead rules. ``scan``: one op over many sizes.
Shapes that are drawn, ``bench.drawn.GROUP``, have runs of their own.
"""

Index = tuple[slice, ...]


@dataclass(frozen=True)
class Part:
    """A slice of a result: its exact values in float64, and how far from them a kernel may lie."""

    name: str
    index: Index
    exact: np.ndarray
    bound: np.ndarray


@dataclass(frozen=True)
class TorchCall:
    """``function(*arguments)`` is the same op in PyTorch.

    ``results`` names the tensors of what it returns as ``Part`` does, in our order of axes. ``fuses`` says that
    ``torch.compile`` may make better code of it than PyTorch runs anyway.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    results: Callable[[Any], Mapping[str, Any]]
    fuses: bool = True

    def __call__(self) -> Any:
        return self.function(*self.arguments)


@dataclass(frozen=True)
class Work:
    """A row that is ready to run on a device.

    ``encode`` adds the op once to a command buffer; ``results`` are then the arrays, images or vectors that it fills.
    ``parts`` computes what they have to be. ``torch_calls`` maps a memory layout to PyTorch's call for tensors on a
    PyTorch device.
    """

    encode: Callable[[CommandBuffer], Any]
    results: Callable[[], Mapping[str, Any]]
    parts: Callable[[], list[Part]]
    torch_calls: Callable[[Any], Mapping[str, TorchCall]] = field(default=lambda where: {})


@dataclass(frozen=True)
class Case:
    """One op with one shape and dtype.

    ``nbytes`` and ``operations`` are what an ideal kernel moves and computes: each operand once; two operations for a
    multiply and add, one for any other arithmetic, comparison or function. ``tf32`` lets PyTorch round the operands of
    float32 products to 10 bits.
    """

    op: str
    shape: str
    dtype: str
    group: str
    nbytes: int
    operations: int
    prepare: Callable[[Device], Work]
    tf32: bool = False

    @property
    def name(self) -> str:
        return f"{self.op} {self.shape} {self.dtype}{' (PyTorch: TF32)' if self.tf32 else ''}"
