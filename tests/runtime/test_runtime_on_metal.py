"""A user's kernels through the Metal driver over ``mpsgrad.metalcompute``: what can be dispatched, and what cannot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpsgrad as mg
import mpsgrad.metalcompute
from mpsgrad.devices import metal

SOURCE = """#include <metal_stdlib>
using namespace metal;
[[max_total_threads_per_threadgroup(64)]]
kernel void scale(device float* x, constant float& factor, uint i [[thread_position_in_grid]]) { x[i] *= factor; }
"""


@pytest.fixture
def gpu() -> mg.Device:
    return metal.MetalDevice(mpsgrad.metalcompute, 0, mpsgrad.metalcompute.get_devices()[0], 0)


def test_whole_threadgroups_in_a_row(gpu: mg.Device) -> None:
    scale = mg.compile(SOURCE, device=gpu).function("scale")
    for options in ({}, {"threadgroup": 64}):
        x = np.arange(128, dtype=np.float32)
        assert scale(128, x, 2, **options).gpu_time is None
        np.testing.assert_array_equal(x, 2 * np.arange(128))
    scale(2, x, 0.5, grid_of_threadgroups=True)
    np.testing.assert_array_equal(x, np.arange(128))


@pytest.mark.parametrize(
    ("grid", "options", "words"),
    [
        (100, {}, r"grids of one dimension in whole threadgroups only, not \(100, 1, 1\)"),
        ((64, 2), {}, "whole threadgroups only"),
        ((2, 2), {"grid_of_threadgroups": True, "threadgroup": 64}, "whole threadgroups only"),
        (128, {"threadgroup": 32}, "whole threadgroups only"),
    ],
)
def test_other_grids(gpu: mg.Device, grid: Any, options: Any, words: str) -> None:
    x = np.ones(128, np.float32)
    with pytest.raises(NotImplementedError, match=words):
        mg.compile(SOURCE, device=gpu).function("scale")(grid, x, 2, **options)
    assert (x == 1).all()


def test_options_and_arguments_that_metalcompute_cannot_pass(gpu: mg.Device) -> None:
    with pytest.raises(NotImplementedError, match="fast_math=False"):
        mg.compile(SOURCE, device=gpu, fast_math=False)
    with pytest.raises(NotImplementedError, match="cannot set function constants"):
        mg.compile(SOURCE, device=gpu, function_constants={"flag": True})
    with pytest.raises(NotImplementedError, match=r"cannot set function constants \(flag\)"):
        mg.compile("constant bool flag [[function_constant(0)]];\n" + SOURCE, device=gpu)
    source = SOURCE.replace("float& factor", "float& factor, threadgroup float* t [[threadgroup(0)]]")
    with pytest.raises(mg.ShaderError, match="threadgroup argument 't', whose length metalcompute cannot set"):
        mg.compile(source, device=gpu)


def test_arguments_are_checked_there_too(gpu: mg.Device) -> None:
    scale = mg.compile(SOURCE, device=gpu).function("scale")
    with pytest.raises(mg.FormatError, match="is a float64 array"):
        scale(64, np.zeros(64), 2)
    other = mg.default_device()
    with pytest.raises(mg.FormatError, match=f"is on {other.identifier} but the kernel was compiled for metal:0"):
        scale(64, mg.Vector(64, other), 2)
