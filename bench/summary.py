"""Geometric means over the rows of a report: one line for each op, or for each family of ops."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.families import FAMILIES, OTHERS, family_of, pass_of

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Summary:
    """Rows of one op, dtype and group. ``ratio`` is PyTorch's time over ours: its geometric mean, and the lowest."""

    op: str
    dtype: str
    torch_precision: str
    group: str
    rows: int
    slower: int
    ratio: float | None
    lowest_ratio: float | None
    compiled_ratio: float | None
    fraction_of_copy: float
    fraction_of_peak: float | None
    error: float
    torch_error: float | None


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Of the values that are there; None if there are none."""
    logarithms = [math.log(value) for value in values if value is not None and value > 0]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else None


def summaries(rows: Iterable[Row]) -> list[Summary]:
    """In the order in which the rows come."""
    grouped: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in rows:
        grouped.setdefault((row["op"], row["dtype"], row["torch_precision"], row["group"]), []).append(row)
    return [_summary(*key, members) for key, members in grouped.items()]


def _summary(op: str, dtype: str, torch_precision: str, group: str, rows: list[Row]) -> Summary:
    ratios = [row["ratio"] for row in rows if row["ratio"] is not None]
    torch_errors = [row["torch_error"] for row in rows if row["torch_error"] is not None]
    return Summary(
        op=op,
        dtype=dtype,
        torch_precision=torch_precision,
        group=group,
        rows=len(rows),
        slower=sum(ratio < 1 for ratio in ratios),
        ratio=geometric_mean(ratios),
        lowest_ratio=min(ratios, default=None),
        compiled_ratio=geometric_mean(row["compiled_ratio"] for row in rows),
        fraction_of_copy=geometric_mean(row["fraction_of_copy"] for row in rows) or 0.0,
        fraction_of_peak=geometric_mean(row["fraction_of_peak"] for row in rows),
        error=max(row["error"] for row in rows),
        torch_error=max(torch_errors, default=None),
    )


@dataclass(frozen=True)
class FamilySummary:
    """Rows of one family of ops and one dtype, forward or gradients, over drawn shapes.

    ``ratio`` is PyTorch's time over ours: the share of rows in which it is at least 1, and its geometric mean, 20th
    percentile and lowest; None if PyTorch has none of the ops.
    """

    family: str
    is_gradient: bool
    dtype: str
    rows: int
    share_not_slower: float | None
    ratio: float | None
    ratio_p20: float | None
    lowest_ratio: float | None


def family_summaries(rows: Iterable[Row]) -> list[FamilySummary]:
    """In the order of ``FAMILIES``."""
    grouped: dict[tuple[str, bool, str], list[Row]] = {}
    for row in rows:
        grouped.setdefault((family_of(row["op"]), bool(pass_of(row["op"])), row["dtype"]), []).append(row)
    order = [*FAMILIES, OTHERS]
    keys = sorted(grouped, key=lambda key: (order.index(key[0]), key[1:]))
    return [_family_summary(*key, grouped[key]) for key in keys]


def _family_summary(family: str, is_gradient: bool, dtype: str, rows: list[Row]) -> FamilySummary:
    ratios = [row["ratio"] for row in rows if row["ratio"] is not None]
    return FamilySummary(
        family=family,
        is_gradient=is_gradient,
        dtype=dtype,
        rows=len(rows),
        share_not_slower=sum(ratio >= 1 for ratio in ratios) / len(ratios) if ratios else None,
        ratio=geometric_mean(ratios),
        ratio_p20=float(np.percentile(ratios, 20)) if ratios else None,
        lowest_ratio=min(ratios, default=None),
    )
