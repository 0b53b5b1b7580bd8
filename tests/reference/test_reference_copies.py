"""The references of what copies elements: where they go, and gradients against central differences."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_geometry import assert_gradient, seeds

from mpsgrad import reference

shapes = st.tuples(st.integers(1, 2), st.integers(1, 4), st.integers(1, 4), st.integers(1, 6))
pairs = st.tuples(st.integers(-3, 5), st.integers(-3, 5))
sizes = st.tuples(st.integers(1, 5), st.integers(1, 5))


@settings(deadline=None)
@given(shapes, pairs, sizes, st.data(), seeds)
def test_slices_read_what_lies_there_and_their_gradients_are_central_differences(shape, offset, size, data, seed):
    rng = np.random.default_rng(seed)
    first = data.draw(st.integers(0, shape[3] - 1))
    channels = data.draw(st.integers(1, shape[3] - first))
    x = rng.standard_normal(shape)
    y = reference.slice_image(x, offset, size, first, channels)
    for i, j in np.ndindex(size):
        row, column = offset[0] + i, offset[1] + j
        inside = 0 <= row < shape[1] and 0 <= column < shape[2]
        expected = x[:, row, column, first : first + channels] if inside else np.zeros((shape[0], channels))
        np.testing.assert_array_equal(y[:, i, j], expected)
    g = rng.standard_normal(y.shape)
    dx = reference.slice_image_gradient(g, shape, offset, first)
    assert_gradient(lambda x: reference.slice_image(x, offset, size, first, channels), x, g, dx, rng)


@settings(deadline=None)
@given(shapes, seeds)
def test_gradients_of_reshaped_images_are_central_differences(shape, seed):
    rng = np.random.default_rng(seed)
    x, (height, width, channels) = rng.standard_normal(shape), shape[1:]
    g = rng.standard_normal((shape[0], channels, height, width))
    dx = reference.reshape_gradient(g, shape)
    assert_gradient(lambda x: reference.reshape(x, (channels, height), width), x, g, dx, rng)


@settings(deadline=None)
@given(shapes, st.lists(st.integers(1, 9), min_size=1, max_size=3), st.booleans(), seeds)
def test_gradients_of_concatenations_are_central_differences(shape, counts, aligns, seed):
    rng = np.random.default_rng(seed)
    sources = [rng.standard_normal((*shape[:3], count)) for count in counts]
    y = reference.concatenation(sources, aligns_channels=aligns)
    assert y.shape[3] == sum(-(-count // 4) * 4 if aligns else count for count in counts)
    g = rng.standard_normal(y.shape)
    gradients = reference.concatenation_gradient(g, counts, aligns_channels=aligns)
    for index, (x, dx) in enumerate(zip(sources, gradients, strict=True)):

        def function(x: np.ndarray, index: int = index) -> np.ndarray:
            return reference.concatenation([*sources[:index], x, *sources[index + 1 :]], aligns_channels=aligns)

        assert_gradient(function, x, g, dx, rng)


def test_channels_that_mps_gives():
    """7 and 11 channels take 8 and 12 there, with zeros between and behind."""
    y = reference.concatenation([np.ones((1, 1, 1, 7)), np.ones((1, 1, 1, 11))], aligns_channels=True)
    np.testing.assert_array_equal(y.ravel(), [1] * 7 + [0] + [1] * 11 + [0])


def test_sub_pixels_by_hand():
    """The printed rule: dst[x][y][c] = Io[x / r][y / r][(N / r^2) (r (y mod r) + x mod r) + c]."""
    io = np.random.default_rng(0).standard_normal((1, 2, 3, 12))
    y = reference.sub_pixels(io, 2)
    assert y.shape == (1, 4, 6, 3)
    for row, column, c in np.ndindex(4, 6, 3):
        assert y[0, row, column, c] == io[0, row // 2, column // 2, 3 * (2 * (row % 2) + column % 2) + c]
