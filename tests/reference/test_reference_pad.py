"""The reference of padding images: NumPy's results, and gradients against central differences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_geometry import assert_gradient, seeds

from mpsgrad import reference

NUMPY = {
    "zero": "constant",
    "constant": "constant",
    "clamp": "edge",
    "mirror": "reflect",
    "mirror_with_edge": "symmetric",
}
modes = st.sampled_from(sorted(NUMPY))
sizes = st.tuples(*[st.integers(0, 7)] * 3)
shapes = st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 3), st.integers(1, 4))


@settings(deadline=None)
@given(shapes, sizes, sizes, modes, seeds)
def test_results_are_those_of_numpy_and_gradients_those_of_central_differences(shape, before, after, mode, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    widths = [(0, 0), *zip(before, after, strict=True)]
    options = {"constant_values": 2.5 if mode == "constant" else 0.0} if NUMPY[mode] == "constant" else {}
    y = reference.pad(x, before, after, mode, 2.5)
    np.testing.assert_array_equal(y, np.pad(x, widths, mode=NUMPY[mode], **options))
    g = rng.standard_normal(y.shape)
    dx = reference.pad_gradient(g, before, after, mode)
    assert_gradient(lambda x: reference.pad(x, before, after, mode, 2.5), x, g, dx, rng)


def test_the_printed_cases():
    d = np.arange(1.0, 9.0).reshape(1, 1, 8, 1)
    clamp = reference.pad_gradient(d, (0, 2, 0), (0, 3, 0), "clamp").ravel()
    np.testing.assert_array_equal(clamp, [1 + 2 + 3, 4, 5 + 6 + 7 + 8])
    mirror = reference.pad_gradient(d, (0, 4, 0), (0, 1, 0), "mirror").ravel()
    np.testing.assert_array_equal(mirror, [1 + 5, 2 + 4 + 6 + 8, 3 + 7])


@pytest.mark.parametrize(
    ("mode", "expected"), [("zero", [0, 0, 1, 2, 3, 0, 0, 0]), ("mirror_with_edge", [2, 1, 1, 2, 3, 3, 2, 1])]
)
def test_padded_channels(mode, expected):
    x = np.array([1.0, 2.0, 3.0]).reshape(1, 1, 1, 3)
    np.testing.assert_array_equal(reference.pad(x, (0, 0, 2), (0, 0, 3), mode).ravel(), expected)


def test_a_fill_value_for_each_channel():
    y = reference.pad(np.ones((1, 1, 1, 2)), (1, 0, 0), (0, 0, 1), "constant", [5.0, 6.0, 7.0])
    np.testing.assert_array_equal(y[0, :, 0], [[5, 6, 7], [1, 1, 7]])
