"""Shapes so small that every row runs within a moment, and samples that do not wait."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from bench import __main__ as command_line
from bench import drawn, inputs, peaks, timing
from bench.rows.convolution import Row as Layer
from bench.rows.convolution_transpose import Row as Upsampled
from bench.rows.pooling import AVERAGE_INSIDE, RECORDED
from bench.rows.pooling import Row as Windows
from bench.rows.sub_pixel_convolution import Row as Blocks
from bench.selection import modules

PIXELS = (2, 3, 3, 5)
VECTORS = (3, 1, 1, 5)


def _both(rows: Any) -> dict[str, Any]:
    return {"cpu": rows, "gpu": rows}


USUAL: dict[str, Any] = {"DESIGN": _both((PIXELS,)), "OTHERS": {}}
UNUSUAL: dict[str, dict[str, Any]] = {
    "convolution_transpose": {"DESIGN": _both((Upsampled(2, 3, 5, 3),)), "OTHERS": {}},
    "sub_pixel_convolution": {"DESIGN": _both((Blocks(2, 3, 5, 3),)), "OTHERS": {}},
    "yolo_loss": {"DESIGN": _both((PIXELS[:3],)), "OTHERS": {}},
    "convolution": {
        "DESIGN": _both((Layer(2, 5, 3, 3, 4, padding=1), Layer(2, 5, 4, 3, 4, stride=2, padding=1, groups=4))),
        "OTHERS": {},
    },
    "loss": {"DESIGN": _both((VECTORS,)), "OTHERS": {}},
    "neuron": {"DESIGN": _both((PIXELS,)), "OTHERS": {}, "scan": lambda hardware: ()},
    "optimizer": {"DESIGN": _both((37,)), "OTHERS": {}},
    "pooling": {
        "DESIGN": _both((Windows((2, 5, 5, 3), 3, 2),)),
        "OTHERS": {
            "unet": (Windows((2, 6, 6, 3), 2, 2, (RECORDED,)),),
            "awkward": (Windows((2, 6, 7, 3), 3, 2, (AVERAGE_INSIDE,)),),
        },
        "scan": lambda hardware: (),
    },
}
"""The names of a module that set its shapes, and what they are here; ``USUAL`` for modules that are not named."""

DRAWN: dict[str, Any] = {
    "LEAST_ELEMENTS": _both(8),
    "MOST_ELEMENTS": _both(256),
    "MOST_IMAGES": _both(3),
    "MOST_CHANNELS": 9,
}
"""Between which sizes shapes are drawn."""
DRAWN_IN_USE = {name: getattr(drawn, name) for name in DRAWN}


def make_tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the shapes in, with short samples."""
    for module in modules():
        for name, value in UNUSUAL.get(module, USUAL).items():
            monkeypatch.setattr(importlib.import_module(f"bench.rows.{module}"), name, value)
    for name, value in DRAWN.items():
        monkeypatch.setattr(drawn, name, value)
    monkeypatch.setattr(timing, "SECONDS_PER_SAMPLE", 0.0)
    monkeypatch.setattr(timing, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(timing, "WARM_SECONDS", 0.0)
    monkeypatch.setattr(command_line, "COMPILING_SHARE", 0.0)
    monkeypatch.setattr(inputs, "BLOCK", 1009)
    monkeypatch.setattr(peaks, "COPY_BYTES", _both(1 << 20))
    monkeypatch.setattr(peaks, "MATRIX_SIZE", _both(64))
    monkeypatch.setattr(peaks, "THREADS_PER_UNIT", 64)
    forget()


def forget() -> None:
    """Nothing of another block size stays."""
    inputs._block.cache_clear()
    inputs.forget_inputs()
