"""docs/pytorch.md: both sides of every line of its table are equal."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpsgrad import functional as mf

torch = pytest.importorskip("torch")
PAGE = (Path(__file__).parents[1] / "docs" / "pytorch.md").read_text(encoding="utf-8")
LINES = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|", PAGE, re.MULTILINE)


def nhwc(tensor: Any) -> np.ndarray:
    """The numbers of ``tensor`` in the order of our arrays."""
    return np.ascontiguousarray((tensor.permute(0, 2, 3, 1) if tensor.ndim == 4 else tensor).numpy())


def values() -> dict[str, Any]:
    """What the lines speak of, by name."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"x": (2, 8, 6, 6), "y": (2, 8, 6, 6), "w": (5, 8, 3, 3), "d": (8, 1, 3, 3), "u": (8, 5, 3, 3)}
    shapes |= {"l": (5, 288), "b": (5,), "g": (8,), "c": (8,)}
    named = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    named |= {"t": named["y"].sigmoid(), "v": named["g"].abs() + 0.5, "k": named["y"].argmax(1)}
    ours = {name.upper(): nhwc(tensor) for name, tensor in named.items()}
    ours |= {
        "D": named["d"][:, 0].numpy(),
        "U": np.ascontiguousarray(named["u"].flip(2, 3).permute(1, 2, 3, 0)),
        "L": nhwc(named["l"].reshape(5, 8, 6, 6)),
        "K": np.eye(8, dtype=np.float32)[named["k"].numpy()],
    }
    return {**named, **ours, "torch": torch, "F": torch.nn.functional, "mf": mf}


def test_no_line_is_left_out() -> None:
    assert len(LINES) == PAGE.count("\n| `") > 25


@pytest.mark.parametrize(("theirs", "ours"), LINES)
def test_both_sides_of_a_line(theirs: str, ours: str) -> None:
    known = values()
    expected, actual = nhwc(eval(theirs, known)), eval(ours, known)
    if expected.ndim == 4:
        assert actual.shape == expected.shape
    np.testing.assert_allclose(actual.reshape(expected.shape), expected, rtol=1e-4, atol=1e-4)
