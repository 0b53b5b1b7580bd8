"""Why PyTorch is faster in a row of a report, or bytes move slower than in a copy, as far as it is known.

What is known of one shape stands in ``reasons.toml``; for other rows the reason is read from what was measured.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

SHORT_MS = {"cpu": 0.05, "gpu": 0.009}
"""A row is short if it takes less, by what it is measured on."""
SHORT = {
    "cpu": "short: OpenCL takes 10 µs to start a kernel on two threads and to wait for them",
    "gpu": "short: a kernel takes 1 to 2 µs before it does anything, and some calls are several kernels",
}
LEAST_SHARE, HIGHEST_SHARE = 0.8, 1.1
"""A row is near the copy bandwidth between these shares; above the images lie in caches, which have other limits."""
LEAST_SHARE_ON_GPUS, LEAST_SHARE_OF_PEAK, SHORT_FOR_BYTES_MS = 0.6, 0.5, 0.02
"""On GPUs bytes are to move at the first of the copy bandwidth, unless a row computes at the second of the arithmetic
limit or takes less than the third."""
UNKNOWN = "not known"


@cache
def named(subject: str = "row") -> tuple[Mapping[str, str], ...]:
    """The entries of ``reasons.toml`` for a subject, in their order: "row", or "bytes" where these move slowly."""
    text = Path(__file__).with_name("reasons.toml").read_text(encoding="utf-8")
    return tuple(tomllib.loads(text)[subject])


def _named_reason(subject: str, row: Mapping[str, Any], report: Mapping[str, Any]) -> str | None:
    fields = {**row, "device": report["device"]}
    for each in named(subject):
        if all(re.fullmatch(pattern, fields[name]) for name, pattern in each.items() if name != "reason"):
            return each["reason"]
    return None


def moves_bytes_slowly(row: Mapping[str, Any], report: Mapping[str, Any]) -> bool:
    """Whether neither memory nor arithmetic explains how long ``row`` takes on a GPU."""
    if report["hardware"] == "cpu" or row["median_ms"] < SHORT_FOR_BYTES_MS:
        return False
    return row["fraction_of_copy"] < LEAST_SHARE_ON_GPUS and (row["fraction_of_peak"] or 0) < LEAST_SHARE_OF_PEAK


def reason_for_bytes(row: Mapping[str, Any], report: Mapping[str, Any]) -> str:
    """Why ``row`` moves its bytes slowly; ``UNKNOWN`` if nobody knows."""
    return _named_reason("bytes", row, report) or UNKNOWN


def reason(row: Mapping[str, Any], report: Mapping[str, Any]) -> str:
    """Why ``row`` of ``report``, whose ratio is below 1, is slower than PyTorch; ``UNKNOWN`` if nobody knows."""
    if row["torch_precision"] == "tf32":
        return "PyTorch rounds the operands to TF32"
    by_name = _named_reason("row", row, report)
    if by_name is not None:
        return by_name
    if row["ratio_p80"] >= 1:
        return "as fast, as far as can be told: 1 lies between the 20th and the 80th percentile"
    hardware = "cpu" if report["hardware"] == "cpu" else "gpu"
    if row["median_ms"] < SHORT_MS[hardware]:
        return SHORT[hardware]
    if LEAST_SHARE <= row["fraction_of_copy"] <= HIGHEST_SHARE:
        return f"near the limit: its bytes move at {row['fraction_of_copy']:.2f} of the copy bandwidth"
    if (row["fraction_of_peak"] or 0) >= LEAST_SHARE:
        return f"near the limit: its products run at {row['fraction_of_peak']:.2f} of the arithmetic limit"
    return UNKNOWN
