"""NVIDIA GPUs through CUDA: the place of the driver behind the contract. It offers no device yet.

Metal source is already translated for it (``mpsgrad render NAME --for cuda``).
"""

from __future__ import annotations

from mpsgrad.devices.contract import Device


def unavailable_reason() -> str | None:
    return "this version has no CUDA driver; it can only show the translation (mpsgrad render NAME --for cuda)"


def devices() -> list[Device]:
    return []
