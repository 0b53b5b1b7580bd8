"""What holds a driver's memory or programs says by its own name that it is neither pickled nor copied deeply."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpsgrad as mg


def of_a_library() -> mg.KernelLibrary:
    return mg.compile("kernel void f(device float* x) { x[0] = 1; }")


def image() -> mg.Image:
    return mg.Image.from_array(np.zeros((2, 2, 1), np.float32))


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (of_a_library, "KernelLibrary"),
        (lambda: of_a_library().function("f"), "KernelFunction"),
        (lambda: mg.PoolingMax(kernel_width=2, kernel_height=2), "PoolingMax"),
        (image, "Image"),
        (lambda: mg.CommandBuffer(), "CommandBuffer"),
        (lambda: {"kept": mg.Vector(4)}, "Vector"),
        (mg.default_device, type(mg.default_device()).__name__),
    ],
)
def test_pickling_and_deep_copies_are_refused_by_name(make: Callable[[], Any], name: str) -> None:
    made = make()
    with pytest.raises(TypeError, match=f"^{name} cannot be pickled"):
        pickle.dumps(made)
    with pytest.raises(TypeError, match=f"^{name} cannot be copied deeply"):
        copy.deepcopy(made)


def test_shallow_copies_share_the_parts() -> None:
    kernel = mg.PoolingMax(kernel_width=2, kernel_height=3)
    copied = copy.copy(kernel)
    copied.label = "another"
    assert (copied.kernel_height, copied.device, kernel.label) == (3, kernel.device, None)


def test_memory_and_devices_are_not_copied_at_all() -> None:
    """A second buffer with the same memory would give it back once more, for somebody else to be given meanwhile."""
    buffer = image().buffer
    for made in (buffer, buffer.device):
        with pytest.raises(TypeError, match=f"^{type(made).__name__} cannot be copied: "):
            copy.copy(made)
