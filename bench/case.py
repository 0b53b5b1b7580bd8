"""One row of the benchmark: what is run, how it is checked, and what PyTorch runs beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mpsgrad import CommandBuffer


@dataclass(frozen=True)
class Case:
    """``encode`` adds the op once to a command buffer and returns its result; ``check`` compares that with a reference.

    ``nbytes`` and ``operations`` are what an ideal kernel moves and computes: each operand once, two operations for a
    multiply and add. ``torch_calls`` maps a memory layout to a call of the same op in PyTorch.
    """

    op: str
    shape: str
    dtype: str
    nbytes: int
    encode: Callable[[CommandBuffer], Any]
    check: Callable[[Any], None]
    operations: int = 0
    torch_calls: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
