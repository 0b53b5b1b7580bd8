"""Encodes of tiny images: what they cost is the host's part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import mpsgrad as mg

SHAPE = (1, 2, 2, 4)

Encode = Callable[[mg.CommandBuffer], Any]
"""Adds one op on a tiny image to a command buffer."""


@dataclass(frozen=True)
class TinyOp:
    """A kernel class and an encode of it. ``prepare`` is encoded before each, and not measured."""

    name: str
    encode: Encode
    prepare: Encode = lambda commands: None


class Call:
    """A call of ``function`` with a command buffer and these arguments."""

    def __init__(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        self.function, self.arguments, self.named = function, arguments, named

    def __call__(self, commands: mg.CommandBuffer) -> Any:
        return self.function(commands, *self.arguments, **self.named)


def tiny_image(device: mg.Device, channels: int = SHAPE[3]) -> mg.Image:
    """An image of ones."""
    return mg.Image.from_array(np.ones((*SHAPE[:3], channels), np.float32), device)


def tiny_pair(forward: Any, gradient: Any, *sources: mg.Image, takes_the_result: bool = False) -> Iterator[TinyOp]:
    """An op for each of two kernels on ``sources``; with ``takes_the_result`` the gradient reads the forward result."""
    device = forward.device
    images = sources or (tiny_image(device),)
    yield TinyOp(type(forward).__name__, Call(forward.encode, *images))
    with mg.CommandBuffer(device) as commands:
        result, state = forward.encode(commands, *images, return_state=True)
    second = result if takes_the_result else images[0]
    yield TinyOp(type(gradient).__name__, Call(gradient.encode, mg.Image(result.descriptor, device), second, state))
