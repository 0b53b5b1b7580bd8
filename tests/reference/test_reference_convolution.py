"""The reference of convolutions: the sums written out, adjoints, central differences, and transposed ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_geometry import Geometry, assert_gradient, geometries, seeds

from mpsgrad import reference

batches = st.integers(1, 5)
groups = st.integers(1, 3)
per_group = st.integers(1, 3)


def drawn(geometry: Geometry, batch: int, groups: int, inputs: int, outputs: int, seed: int):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((batch, *geometry.source_size, groups * inputs))
    w = rng.standard_normal((groups * outputs, *geometry.kernel, inputs))
    g = rng.standard_normal((batch, *geometry.size, groups * outputs))
    return x, w, g, geometry.keywords("kernel") | {"groups": groups}, rng


@settings(deadline=None)
@given(geometries(), st.integers(1, 2), groups, st.integers(1, 2), st.integers(1, 2), seeds)
def test_forward_and_gradients_match_the_sums_written_out(geometry, batch, groups, inputs, outputs, seed):
    x, w, g, keywords, rng = drawn(geometry, batch, groups, inputs, outputs, seed)
    bias = rng.standard_normal(groups * outputs)
    y, dx, dw = np.zeros_like(g) + bias, np.zeros_like(x), np.zeros_like(w)
    for i, j in np.ndindex(geometry.size):
        for ky, kx, row, column, inside in geometry.reads(i, j):
            if not inside and geometry.edge == "zero":
                continue
            for o in range(groups * outputs):
                for c in range(inputs):
                    channel = (o // outputs) * inputs + c
                    y[:, i, j, o] += w[o, ky, kx, c] * x[:, row, column, channel]
                    dx[:, row, column, channel] += w[o, ky, kx, c] * g[:, i, j, o]
                    dw[o, ky, kx, c] += (g[:, i, j, o] * x[:, row, column, channel]).sum()
    np.testing.assert_allclose(reference.convolution(x, w, bias, **keywords), y, atol=1e-12)
    np.testing.assert_allclose(
        reference.convolution_gradient_data(g, w, source_size=geometry.source_size, **keywords), dx, atol=1e-12
    )
    np.testing.assert_allclose(
        reference.convolution_gradient_weights(g, x, kernel=geometry.kernel, **keywords), dw, atol=1e-11
    )


@settings(deadline=None)
@given(geometries(), batches, groups, per_group, per_group, seeds)
def test_gradients_are_adjoints_of_the_forward_pass(geometry, batch, groups, inputs, outputs, seed):
    x, w, g, keywords, _ = drawn(geometry, batch, groups, inputs, outputs, seed)
    product = (reference.convolution(x, w, **keywords) * g).sum()
    dx = reference.convolution_gradient_data(g, w, source_size=geometry.source_size, **keywords)
    dw = reference.convolution_gradient_weights(g, x, kernel=geometry.kernel, **keywords)
    assert dx.shape == x.shape and dw.shape == w.shape
    np.testing.assert_allclose([(x * dx).sum(), (w * dw).sum()], product, atol=1e-10)


@settings(deadline=None)
@given(geometries(), batches, groups, per_group, per_group, seeds)
def test_gradients_against_central_differences(geometry, batch, groups, inputs, outputs, seed):
    x, w, g, keywords, rng = drawn(geometry, batch, groups, inputs, outputs, seed)
    bias = rng.standard_normal(groups * outputs)
    dx = reference.convolution_gradient_data(g, w, source_size=geometry.source_size, **keywords)
    assert_gradient(lambda v: reference.convolution(v, w, bias, **keywords), x, g, dx, rng)
    dw = reference.convolution_gradient_weights(g, x, kernel=geometry.kernel, **keywords)
    assert_gradient(lambda v: reference.convolution(x, v, bias, **keywords), w, g, dw, rng)
    db = reference.convolution_gradient_biases(g)
    assert_gradient(lambda v: reference.convolution(x, w, v, **keywords), bias, g, db, rng)


@settings(deadline=None)
@given(geometries(), batches, per_group, seeds)
def test_depthwise_treats_each_channel_on_its_own(geometry, batch, channels, seed):
    x, w, g, keywords, _ = drawn(geometry, batch, channels, 1, 1, seed)
    single = keywords | {"groups": 1}
    for c in range(channels):
        alone = slice(c, c + 1)
        np.testing.assert_allclose(
            reference.convolution(x, w, **keywords)[..., alone],
            reference.convolution(x[..., alone], w[alone], **single),
            atol=1e-13,
        )
        np.testing.assert_allclose(
            reference.convolution_gradient_weights(g, x, kernel=geometry.kernel, **keywords)[alone],
            reference.convolution_gradient_weights(g[..., alone], x[..., alone], kernel=geometry.kernel, **single),
            atol=1e-12,
        )


@settings(deadline=None)
@given(geometries(), st.integers(2, 5), seeds)
def test_weight_gradients_sum_over_the_batch(geometry, batch, seed):
    x, _, g, keywords, _ = drawn(geometry, batch, 1, 2, 3, seed)
    whole = reference.convolution_gradient_weights(g, x, kernel=geometry.kernel, **keywords)
    parts = [
        reference.convolution_gradient_weights(g[n : n + 1], x[n : n + 1], kernel=geometry.kernel, **keywords)
        for n in range(batch)
    ]
    np.testing.assert_allclose(whole, np.sum(parts, axis=0), atol=1e-11)


@settings(deadline=None)
@given(batches, st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 5), seeds)
def test_fully_connected_is_a_convolution_with_one_window(batch, height, width, inputs, outputs, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((batch, height, width, inputs))
    w = rng.standard_normal((outputs, height, width, inputs))
    bias = rng.standard_normal(outputs)
    g = rng.standard_normal((batch, 1, 1, outputs))
    one = {"size": (1, 1), "offset": (height // 2, width // 2)}
    np.testing.assert_allclose(
        reference.fully_connected(x, w, bias), reference.convolution(x, w, bias, **one), atol=1e-12
    )
    dx = reference.fully_connected_gradient_data(g, w)
    dw = reference.fully_connected_gradient_weights(g, x)
    np.testing.assert_allclose(
        dx, reference.convolution_gradient_data(g, w, source_size=(height, width), **one), atol=1e-12
    )
    np.testing.assert_allclose(
        dw, reference.convolution_gradient_weights(g, x, kernel=(height, width), **one), atol=1e-12
    )
    assert_gradient(lambda v: reference.fully_connected(v, w, bias), x, g, dx, rng)
    assert_gradient(lambda v: reference.fully_connected(x, v, bias), w, g, dw, rng)
    db = reference.convolution_gradient_biases(g)
    assert_gradient(lambda v: reference.fully_connected(x, w, v), bias, g, db, rng)


@settings(deadline=None)
@given(geometries(), seeds)
def test_the_data_gradient_is_a_convolution_of_the_gradient_with_zeros_between_its_pixels(geometry, seed):
    """MPS's own description: stride 1, rotated weights, kernel offset -offset + (1 if the dilated window is even)."""
    x, w, g, keywords, _ = drawn(geometry, 2, 1, 2, 3, seed)
    spread = [(n - 1) * s + 1 for n, s in zip(geometry.size, geometry.stride, strict=True)]
    z = np.zeros((2, *spread, 3))
    z[:, :: geometry.stride[0], :: geometry.stride[1]] = g
    rotated = w[:, ::-1, ::-1].transpose(3, 1, 2, 0)
    extents = [reference.window_extent(k, d) for k, d in zip(geometry.kernel, geometry.dilation, strict=True)]
    offset = tuple(-o + (extent % 2 == 0) for o, extent in zip(geometry.offset, extents, strict=True))
    expected = reference.convolution(z, rotated, dilation=geometry.dilation, offset=offset, size=geometry.source_size)
    zero = keywords | {"edge": "zero"}
    dx = reference.convolution_gradient_data(g, w, source_size=geometry.source_size, **zero)
    np.testing.assert_allclose(dx, expected, atol=1e-12)


def test_mismatched_shapes_are_named():
    x, w = np.ones((2, 4, 4, 6)), np.ones((4, 3, 3, 3))
    with pytest.raises(ValueError, match="source has 6 feature channels but the weights read 3"):
        reference.convolution(x, w, size=(4, 4))
    with pytest.raises(ValueError, match="O a multiple of 3"):
        reference.convolution(x, w, size=(4, 4), groups=3)
    with pytest.raises(ValueError, match="source_gradient has 5 channels but the weights produce 4"):
        reference.convolution_gradient_data(np.ones((2, 4, 4, 5)), w, source_size=(4, 4), groups=2)
    with pytest.raises(ValueError, match="source_gradient has 1 images but source has 2"):
        reference.convolution_gradient_weights(np.ones((1, 4, 4, 4)), x, kernel=(3, 3), groups=2)
    with pytest.raises(ValueError, match=r"source is \(4, 4, 6\) but the weights are for \(3, 3, 3\)"):
        reference.fully_connected(x, w)


@st.composite
def transposed(draw: st.DrawFn) -> tuple[dict, tuple, int]:
    """Keywords, the shapes of source, weights and result, and a seed."""
    pair = st.tuples(st.integers(1, 3), st.integers(1, 3))
    count, kernel, size = draw(groups), draw(pair), draw(st.tuples(st.integers(1, 7), st.integers(1, 7)))
    inputs, outputs = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    keywords = {
        "stride": draw(pair),
        "dilation": draw(st.tuples(st.integers(1, 2), st.integers(1, 2))),
        "offset": draw(st.tuples(st.integers(-3, 3), st.integers(-3, 3))),
        "groups": count,
    }
    source = (draw(st.integers(1, 2)), *draw(pair), count * inputs)
    shapes = (source, (count * outputs, *kernel, inputs), (source[0], *size, count * outputs))
    return keywords, shapes, draw(seeds)


@settings(deadline=None)
@given(transposed())
def test_gradients_of_transposed_convolutions_against_central_differences(case):
    keywords, shapes, seed = case
    rng = np.random.default_rng(seed)
    x, w, g = (rng.standard_normal(shape) for shape in shapes)
    b, size = rng.standard_normal(len(w)), g.shape[1:3]
    dx, dw, db = reference.convolution_transpose_gradient(g, x, w, **keywords)

    def forward(x: np.ndarray = x, w: np.ndarray = w, b: np.ndarray = b) -> np.ndarray:
        return reference.convolution_transpose(x, w, b, size=size, **keywords)

    assert_gradient(lambda x: forward(x=x), x, g, dx, rng)
    assert_gradient(lambda w: forward(w=w), w, g, dw, rng)
    assert_gradient(lambda b: forward(b=b), b, g, db, rng)


@settings(deadline=None)
@given(transposed())
def test_transposed_convolutions_match_the_sums_over_the_source_with_zeros_between(case):
    """Z has stride - 1 zeros between pixels; y[v] = sum over q of w[q] Z[v + offset - floor(kd / 2) + dilation q]."""
    keywords, shapes, seed = case
    rng = np.random.default_rng(seed)
    x, w = (rng.standard_normal(shape) for shape in shapes[:2])
    (sy, sx), (dy, dx), (oy, ox) = keywords["stride"], keywords["dilation"], keywords["offset"]
    z = np.zeros((x.shape[0], (x.shape[1] - 1) * sy + 1, (x.shape[2] - 1) * sx + 1, x.shape[3]))
    z[:, ::sy, ::sx] = x
    y = np.zeros(shapes[2])
    outputs, inputs = len(w) // keywords["groups"], w.shape[3]
    for row, column, ky, kx in np.ndindex(*shapes[2][1:3], *w.shape[1:3]):
        i = row + oy - ((w.shape[1] - 1) * dy + 1) // 2 + dy * ky
        j = column + ox - ((w.shape[2] - 1) * dx + 1) // 2 + dx * kx
        if 0 <= i < z.shape[1] and 0 <= j < z.shape[2]:
            for o in range(len(w)):
                first = o // outputs * inputs
                y[:, row, column, o] += z[:, i, j, first : first + inputs] @ w[o, ky, kx]
    actual = reference.convolution_transpose(x, w, size=shapes[2][1:3], **keywords)
    np.testing.assert_allclose(actual, y, atol=1e-12)
