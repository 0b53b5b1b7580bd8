"""The reference of pooling: a search of each window, central differences, and who wins among equals."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_geometry import Geometry, assert_gradient, geometries, seeds

from mpsgrad import reference

batches = st.integers(1, 5)
channels = st.integers(1, 3)
zero_pads = st.tuples(st.integers(0, 2), st.integers(0, 2))


def outputs(geometry: Geometry, batch: int, channels: int) -> Iterator[tuple[int, int, int, int]]:
    return iter(np.ndindex(batch, *geometry.size, channels))


def winner(
    x: np.ndarray, geometry: Geometry, n: int, i: int, j: int, c: int
) -> tuple[float, int, tuple[int, int] | None]:
    """Value, tap number and source pixel of a window's maximum. Python's max returns the first of equals."""
    reads = list(geometry.reads(i, j))
    inside = [read for read in reads if read[4]]
    eligible = inside if inside or geometry.edge == "zero" else reads
    candidates = [
        (x[n, row, column, c], ky * geometry.kernel[1] + kx, (row, column)) for ky, kx, row, column, _ in eligible
    ]
    if geometry.edge == "zero" and len(inside) < len(reads):
        candidates.append((0.0, geometry.kernel[0] * geometry.kernel[1], None))
    return max(candidates, key=lambda candidate: candidate[0])


def average_count(geometry: Geometry, i: int, j: int, zero_pad: tuple[int, int]) -> int:
    """The average's divisor, counted tap by tap."""
    if geometry.edge == "zero":
        return geometry.kernel[0] * geometry.kernel[1]
    count = 0
    for ky in range(geometry.kernel[0]):
        for kx in range(geometry.kernel[1]):
            row = geometry.offset[0] + geometry.stride[0] * i - geometry.kernel[0] // 2 + ky
            column = geometry.offset[1] + geometry.stride[1] * j - geometry.kernel[1] // 2 + kx
            count += (
                -zero_pad[0] <= row < geometry.source_size[0] + zero_pad[0]
                and -zero_pad[1] <= column < geometry.source_size[1] + zero_pad[1]
            )
    return count


@settings(deadline=None)
@given(geometries(), batches, channels, seeds, st.booleans())
def test_max_and_its_gradient_match_a_search_of_each_window(geometry, batch, channels, seed, ties):
    rng = np.random.default_rng(seed)
    shape = (batch, *geometry.source_size, channels)
    x = rng.integers(-1, 2, shape).astype(float) if ties else rng.standard_normal(shape)
    g = rng.integers(1, 100, (batch, *geometry.size, channels)).astype(float)
    y, indices, dx = np.zeros_like(g), np.zeros(g.shape, int), np.zeros_like(x)
    for n, i, j, c in outputs(geometry, batch, channels):
        y[n, i, j, c], indices[n, i, j, c], pixel = winner(x, geometry, n, i, j, c)
        if pixel is not None:
            dx[n, *pixel, c] += g[n, i, j, c]
    np.testing.assert_array_equal(reference.pooling_max(x, **geometry.keywords()), y)
    np.testing.assert_array_equal(reference.pooling_max_indices(x, **geometry.keywords()), indices)
    np.testing.assert_array_equal(reference.pooling_max_gradient(g, x, **geometry.keywords()), dx)


@settings(deadline=None)
@given(geometries(), batches, channels, seeds)
def test_max_conserves_the_gradient_except_where_an_outside_zero_wins(geometry, batch, channels, seed):
    rng = np.random.default_rng(seed)
    x = rng.integers(-1, 2, (batch, *geometry.source_size, channels)).astype(float)
    g = rng.integers(1, 100, (batch, *geometry.size, channels)).astype(float)
    outside = geometry.kernel[0] * geometry.kernel[1]
    indices = reference.pooling_max_indices(x, **geometry.keywords())
    assert indices.min() >= 0 and indices.max() <= (outside if geometry.edge == "zero" else outside - 1)
    kept = np.where(indices < outside, g, 0.0)
    dx = reference.pooling_max_gradient(g, x, **geometry.keywords())
    np.testing.assert_array_equal(dx.sum(axis=(1, 2)), kept.sum(axis=(1, 2)))


@settings(deadline=None)
@given(geometries(), batches, channels, seeds)
def test_max_gradient_against_central_differences(geometry, batch, channels, seed):
    rng = np.random.default_rng(seed)
    shape = (batch, *geometry.source_size, channels)
    # Values half-way between integers, all different: no step of 1e-3 changes a winner, nor meets the outside zero.
    x = rng.permutation(np.prod(shape)).reshape(shape) - np.prod(shape) // 2 + 0.5
    g = rng.standard_normal((batch, *geometry.size, channels))
    dx = reference.pooling_max_gradient(g, x, **geometry.keywords())
    assert_gradient(lambda v: reference.pooling_max(v, **geometry.keywords()), x, g, dx, rng, step=1e-3)


@settings(deadline=None)
@given(geometries(dilated=False), zero_pads, batches, channels, seeds)
def test_average_and_its_gradient_match_a_sum_over_each_window(geometry, zero_pad, batch, channels, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((batch, *geometry.source_size, channels))
    g = rng.standard_normal((batch, *geometry.size, channels))
    y, dx = np.zeros_like(g), np.zeros_like(x)
    for n, i, j, c in outputs(geometry, batch, channels):
        count = average_count(geometry, i, j, zero_pad)
        for _, _, row, column, inside in geometry.reads(i, j):
            if inside:
                y[n, i, j, c] += x[n, row, column, c] / count
                dx[n, row, column, c] += g[n, i, j, c] / count
    keywords = geometry.keywords("dilation") | {"zero_pad": zero_pad}
    np.testing.assert_allclose(reference.pooling_average(x, **keywords), y, atol=1e-13)
    np.testing.assert_allclose(reference.pooling_average_gradient(g, x, **keywords), dx, atol=1e-13)


@settings(deadline=None)
@given(geometries(dilated=False), zero_pads, batches, channels, seeds)
def test_average_gradient_is_the_adjoint_and_the_central_difference(geometry, zero_pad, batch, channels, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((batch, *geometry.source_size, channels))
    g = rng.standard_normal((batch, *geometry.size, channels))
    keywords = geometry.keywords("dilation") | {"zero_pad": zero_pad}
    dx = reference.pooling_average_gradient(g, x, **keywords)
    np.testing.assert_allclose((reference.pooling_average(x, **keywords) * g).sum(), (x * dx).sum(), atol=1e-11)
    assert_gradient(lambda v: reference.pooling_average(v, **keywords), x, g, dx, rng)


@settings(deadline=None)
@given(geometries(dilated=False), zero_pads, seeds)
def test_average_gradient_reads_only_the_size_of_the_source(geometry, zero_pad, seed):
    g = np.random.default_rng(seed).standard_normal((1, *geometry.size, 1))
    keywords = geometry.keywords("dilation") | {"zero_pad": zero_pad}
    zeros, nans = np.zeros((1, *geometry.source_size, 1)), np.full((1, *geometry.source_size, 1), np.nan)
    of_zeros = reference.pooling_average_gradient(g, zeros, **keywords)
    np.testing.assert_array_equal(of_zeros, reference.pooling_average_gradient(g, nans, **keywords))


@settings(deadline=None)
@given(geometries(dilated=False), batches, channels, seeds)
def test_l2_norm_matches_each_window_and_its_gradient_the_central_difference(geometry, batch, channels, seed):
    rng = np.random.default_rng(seed)
    # Away from 0, where the norm has no derivative and its third derivative is unbounded.
    shape = (batch, *geometry.source_size, channels)
    x = rng.uniform(0.5, 2.0, shape) * rng.choice([-1.0, 1.0], shape)
    g = rng.standard_normal((batch, *geometry.size, channels))
    y = np.zeros_like(g)
    for n, i, j, c in outputs(geometry, batch, channels):
        reads = geometry.reads(i, j)
        taken = [x[n, row, column, c] for _, _, row, column, inside in reads if inside or geometry.edge == "clamp"]
        y[n, i, j, c] = np.linalg.norm(taken) if taken else 0.0
    keywords = geometry.keywords("dilation")
    np.testing.assert_allclose(reference.pooling_l2_norm(x, **keywords), y, rtol=1e-14)
    dx = reference.pooling_l2_norm_gradient(g, x, **keywords)
    assert_gradient(lambda v: reference.pooling_l2_norm(v, **keywords), x, g, dx, rng)


@pytest.mark.parametrize("value", [0.0, 1e-200])  # the square of the second is 0 too
def test_l2_norm_gradient_is_zero_where_the_norm_is_zero(value):
    dx = reference.pooling_l2_norm_gradient(np.ones((1, 2, 2, 1)), np.full((1, 3, 3, 1), value), kernel=(2, 2))
    np.testing.assert_array_equal(dx, np.zeros((1, 3, 3, 1)))


TIES = [
    # source row, kernel, offset, edge, tap numbers of the winners
    ([2, 2, 2, 2], 3, 0, "clamp", [1, 0, 0, 0]),
    ([0, 0, 0, 0], 3, 0, "zero", [1, 0, 0, 0]),
    ([-1, 0, 0, -1], 3, 0, "zero", [2, 1, 0, 0]),
    ([-1, -1, -1, -1], 3, 0, "zero", [3, 0, 0, 3]),
    ([1, 3, 3, 1], 2, 1, "clamp", [1, 0, 0, 0]),
    ([5, 6, 7, 8], 2, -9, "clamp", [0, 0, 0, 0]),
    ([5, 6, 7, 8], 2, -9, "zero", [2, 2, 2, 2]),
]


@pytest.mark.parametrize(("row", "kernel", "offset", "edge", "expected"), TIES)
@pytest.mark.parametrize("vertical", [False, True])
def test_the_first_maximum_wins(row, kernel, offset, edge, expected, vertical):
    x = np.asarray(row, float).reshape((1, 4, 1, 1) if vertical else (1, 1, 4, 1))
    pair = (lambda along, across: (along, across)) if vertical else (lambda along, across: (across, along))
    indices = reference.pooling_max_indices(
        x, kernel=pair(kernel, 1), offset=pair(offset, 0), size=pair(4, 1), edge=edge
    )
    assert indices.ravel().tolist() == expected


def test_the_first_maximum_in_row_major_order_wins():
    x = np.array([[0, 7, 0], [7, 7, 0], [0, 0, 7]], float).reshape(1, 3, 3, 1)
    geometry = {"kernel": (3, 3), "offset": (1, 1), "size": (1, 1)}
    assert reference.pooling_max_indices(x, **geometry).item() == 1
    expected = np.array([[0, 5, 0], [0, 0, 0], [0, 0, 0]], float).reshape(1, 3, 3, 1)
    np.testing.assert_array_equal(reference.pooling_max_gradient(np.full((1, 1, 1, 1), 5.0), x, **geometry), expected)


def test_a_dilated_clamped_window_ignores_taps_outside_rather_than_replicating_them():
    x = np.array([1.0, 9.0, 2.0, 3.0]).reshape(1, 1, 4, 1)
    # Taps -1, 1, 3 and 0, 2, 4: replication would read 1 for tap -1 and 3 for tap 4, neither of which is a tap inside.
    geometry = {"kernel": (1, 3), "dilation": (1, 2), "offset": (0, 1), "size": (1, 2), "edge": "clamp"}
    np.testing.assert_array_equal(reference.pooling_max(x, **geometry).ravel(), [9, 2])
    np.testing.assert_array_equal(reference.pooling_max_indices(x, **geometry).ravel(), [1, 1])


def test_negative_infinity_is_a_maximum_like_any_other():
    x = np.full((1, 1, 3, 1), -np.inf)
    geometry = {"kernel": (1, 3), "size": (1, 3), "edge": "clamp"}
    np.testing.assert_array_equal(reference.pooling_max(x, **geometry), x)
    np.testing.assert_array_equal(reference.pooling_max_indices(x, **geometry).ravel(), [1, 0, 0])


BAD = [
    ({"edge": "mirror"}, "edge is 'mirror'"),
    ({"stride": (0, 1)}, r"stride is \(0, 1\)"),
    ({"kernel": (1, 0)}, r"kernel is \(1, 0\)"),
    ({"size": (3, 3)}, r"source_gradient is \(2, 2\) but size is \(3, 3\)"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_bad_geometry_is_named(change, message):
    keywords = {"kernel": (2, 2), "size": (2, 2), "edge": "zero"} | change
    with pytest.raises(ValueError, match=message):
        reference.pooling_max_gradient(np.ones((1, 2, 2, 1)), np.ones((1, 4, 4, 1)), **keywords)
