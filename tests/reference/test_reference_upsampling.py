"""The reference of resampling: gradients against central differences, and crops by hand."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_geometry import assert_gradient, seeds

from mpsgrad import reference

sizes = st.tuples(st.integers(1, 5), st.integers(1, 5))


@settings(deadline=None)
@given(sizes, sizes, st.sampled_from(["nearest", "bilinear"]), st.booleans(), seeds)
def test_gradients_against_central_differences(size, result, kind, align_corners, seed):
    rng = np.random.default_rng(seed)
    x, g = rng.standard_normal((2, *size, 3)), rng.standard_normal((2, *result, 3))
    ratio = Fraction(size[0], result[0]), Fraction(size[1], result[1])
    arguments = (ratio, kind, align_corners)
    dx = reference.resample_gradient(g, size, *arguments)
    assert_gradient(lambda v: reference.resample(v, result, *arguments), x, g, dx, rng)


@settings(deadline=None)
@given(sizes, st.tuples(st.integers(1, 4), st.integers(1, 4)), seeds)
def test_upsampling_against_pytorch(size, factors, seed):
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(seed).standard_normal((2, *size, 3))
    result = (size[0] * factors[0], size[1] * factors[1])
    ratio = Fraction(1, factors[0]), Fraction(1, factors[1])
    tensor = torch.from_numpy(x).permute(0, 3, 1, 2)
    nearest = torch.nn.functional.interpolate(tensor, result, mode="nearest").permute(0, 2, 3, 1).numpy()
    np.testing.assert_array_equal(reference.resample(x, result, ratio, "nearest"), nearest)
    aligned = torch.nn.functional.interpolate(tensor, result, mode="bilinear", align_corners=True)
    ours = reference.resample(x, result, ratio, "bilinear", align_corners=True)
    np.testing.assert_allclose(ours, aligned.permute(0, 2, 3, 1).numpy(), atol=1e-12)


def test_without_aligned_corners_nothing_is_shifted():
    x = np.array([1.0, 3.0]).reshape(1, 1, 2, 1)
    y = reference.resample(x, (1, 4), (Fraction(1), Fraction(1, 2)))
    np.testing.assert_array_equal(y.ravel(), [1, 2, 3, 3])


boxes = st.tuples(*[st.floats(-0.5, 1.5)] * 4)


@settings(deadline=None)
@given(sizes, sizes, st.lists(boxes, min_size=1, max_size=3), seeds)
def test_gradients_of_crops_against_central_differences(size, result, regions, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((2, *size, 3))
    g = rng.standard_normal((2, *result, 3 * len(regions)))
    dx = reference.crop_and_resize_gradient(g, size, regions)
    assert_gradient(lambda x: reference.crop_and_resize(x, result, regions), x, g, dx, rng)


def test_crops_by_hand():
    """Of pixels 0 to 4 at parts 0 to 1: a quarter is a pixel; outside there is nothing."""
    x = np.arange(5.0).reshape(1, 1, 5, 1)
    for (start, extent), count, expected in (
        ((0.0, 1.0), 3, [0, 2, 4]),
        ((0.125, 0.5), 2, [0.5, 2.5]),
        ((0.25, 0.5), 1, [2]),
        ((1.0, -0.5), 3, [4, 3, 2]),
        ((0.5, 1.0), 3, [2, 4, 0]),
        ((-0.25, 0.5), 3, [0, 0, 1]),
    ):
        y = reference.crop_and_resize(x, (1, count), [(start, 0.0, extent, 1.0)])
        np.testing.assert_array_equal(y.ravel(), expected)
