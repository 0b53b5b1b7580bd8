"""Encodes by hand into fenced images, which show elements that were not written and overruns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import mpsgrad as mg
from mpsgrad.testing import FencedImage


def encode(kernel: Any, x: np.ndarray, size: tuple[int, int] | None = None) -> tuple[mg.Image, np.ndarray, Any]:
    """The source image, the result, and the filled state; ``size`` is the result's if that is not the kernel's."""
    source = mg.Image.from_array(x)
    if size is None:
        result = FencedImage.of(kernel.destination_image_descriptor([source]))
    else:
        result = FencedImage.of(replace(source.descriptor, height=size[0], width=size[1]))
    state = kernel.result_state(source, destination_image=result.image)
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, source, destination_image=result.image, destination_state=state)
    return source, result.check(), state


def encode_gradient(kernel: Any, g: np.ndarray, source: mg.Image, state: Any) -> np.ndarray:
    """The gradient for ``source``."""
    result = FencedImage.of(source.descriptor)
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, mg.Image.from_array(g), source, state, destination_gradient=result.image)
    return result.check()
