"""``mpsgrad.functional``: each call against the reference, with every form of its arguments."""

from __future__ import annotations

import inspect
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpsgrad as mg
from mpsgrad import functional, reference
from mpsgrad.accuracy import assert_within, error_bound
from mpsgrad.functional.kept import kept
from mpsgrad.kernel import BaseKernel

GENERATOR = np.random.default_rng(0)
X = GENERATOR.standard_normal((3, 7, 9, 6)).astype(np.float32)
WEIGHTS = GENERATOR.standard_normal((4, 3, 3, 6)).astype(np.float32)
BIASES = GENERATOR.standard_normal(4).astype(np.float32)


def like(array: np.ndarray, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(array.shape).astype(np.float32)


def assert_close(actual: np.ndarray, expected: np.ndarray, terms: int, magnitude: Any = None) -> None:
    magnitude = np.abs(expected).max() + 1.0 if magnitude is None else magnitude
    assert_within(actual, expected, error_bound(np.float32, terms, magnitude, expected, function_ulps=16))


PADDINGS: list[tuple[Any, tuple[int, int], tuple[int, int]]] = [
    # padding, offset (y, x), size for a 3 x 3 window with stride 2 on 7 x 9 pixels
    ("same", (0, 0), (4, 5)),
    ("valid", (1, 1), (3, 4)),
    ("full", (-1, -1), (5, 6)),
    (1, (0, 0), (4, 5)),
    ((0, 1), (1, 0), (3, 5)),
]


@pytest.mark.parametrize(("padding", "offset", "size"), PADDINGS)
@pytest.mark.parametrize("edge_mode", ["zero", "clamp"])
def test_pooling(padding: Any, offset: tuple[int, int], size: tuple[int, int], edge_mode: str) -> None:
    call = {"kernel": 3, "stride": (2, 2), "padding": padding, "edge_mode": edge_mode}
    window: Any = {"kernel": (3, 3), "stride": (2, 2), "offset": offset, "size": size, "edge": edge_mode}
    for name, terms in (("pooling_max", 1), ("pooling_average", 9), ("pooling_l2_norm", 9)):
        exact = getattr(reference, name)(X, **window)
        actual = getattr(functional, name)(X, **call)
        assert actual.shape == exact.shape
        assert_close(actual, exact, terms)
        g = like(actual)
        gradient = getattr(functional, f"{name}_gradient")(g, X, **call)
        assert_close(gradient, getattr(reference, f"{name}_gradient")(g, X, **window), 9 * terms, 40.0)


def test_dilated_pooling() -> None:
    window: Any = {"kernel": (2, 2), "stride": (1, 1), "dilation": (3, 2), "offset": (0, 0), "size": (7, 9)}
    y = functional.pooling_max(X, kernel=2, dilation=(3, 2))
    assert_close(y, reference.pooling_max(X, **window), 1)
    g = like(y)
    gradient = functional.pooling_max_gradient(g, X, kernel=2, dilation=(3, 2))
    assert_close(gradient, reference.pooling_max_gradient(g, X, **window), 4, 20.0)


def test_average_pooling_counts_padding_where_asked() -> None:
    window: Any = {"kernel": (3, 3), "stride": (1, 1), "offset": (0, 0), "size": (7, 9), "edge": "clamp"}
    y = functional.pooling_average(X, kernel=3, edge_mode="clamp", zero_pad_size=(1, 0))
    assert_close(y, reference.pooling_average(X, zero_pad=(1, 0), **window), 9)
    g = like(y)
    gradient = functional.pooling_average_gradient(g, X, kernel=3, edge_mode="clamp", zero_pad_size=(1, 0))
    assert_close(gradient, reference.pooling_average_gradient(g, X, zero_pad=(1, 0), **window), 9)


@pytest.mark.parametrize(("padding", "offset", "size"), PADDINGS)
def test_convolution(padding: Any, offset: tuple[int, int], size: tuple[int, int]) -> None:
    y = functional.convolution(X, WEIGHTS, BIASES, stride=2, padding=padding)
    window: Any = {"stride": (2, 2), "offset": offset, "size": size}
    assert_close(y, reference.convolution(X, WEIGHTS, BIASES, **window), 54, 60.0)
    g = like(y)
    dx, dw, db = functional.convolution_gradient(g, X, WEIGHTS, stride=2, padding=padding)
    assert_close(dx, reference.convolution_gradient_data(g, WEIGHTS, source_size=(7, 9), **window), 36, 60.0)
    assert_close(dw, reference.convolution_gradient_weights(g, X, kernel=(3, 3), **window), g.size, 100.0)
    assert_close(db, reference.convolution_gradient_biases(g), g.size, 60.0)


def test_pairs_may_be_lists() -> None:
    calls: Any = (
        lambda pair: functional.pooling_max(X, kernel=pair(2, 3), stride=pair(2, 1), padding=pair(0, 1)),
        lambda pair: functional.upsampling_nearest(X, factor=pair(2, 3)),
    )
    for call in calls:
        np.testing.assert_array_equal(call(lambda *both: list(both)), call(lambda *both: both))


def test_grouped_convolution() -> None:
    weights = WEIGHTS[..., :3].copy()
    y = functional.convolution(X, weights, groups=2, dilation=2)
    window: Any = {"stride": (1, 1), "dilation": (2, 2), "offset": (0, 0), "size": (7, 9), "groups": 2}
    assert_close(y, reference.convolution(X, weights, None, **window), 27, 40.0)


def test_sub_pixel_convolution() -> None:
    y = functional.sub_pixel_convolution(X, WEIGHTS, BIASES, factor=2, stride=(1, 2))
    exact = reference.convolution(X, WEIGHTS, BIASES, stride=(1, 2), size=(7, 5))
    assert_close(y, reference.sub_pixels(exact, 2), 55, 60.0)


def test_fully_connected() -> None:
    weights = GENERATOR.standard_normal((5, 7, 9, 6)).astype(np.float32)
    biases = GENERATOR.standard_normal(5).astype(np.float32)
    y = functional.fully_connected(X, weights, biases)
    expected = np.einsum("nhwc,ohwc->no", X.astype(np.float64), weights) + biases
    assert_close(y.reshape(3, 5), expected, 378, 400.0)
    g = like(y)
    dx, dw, db = functional.fully_connected_gradient(g, X, weights)
    assert_close(dx, np.einsum("no,ohwc->nhwc", g[:, 0, 0].astype(np.float64), weights), 5, 20.0)
    assert_close(dw, np.einsum("no,nhwc->ohwc", g[:, 0, 0].astype(np.float64), X), 3, 20.0)
    assert_close(db, g.sum((0, 1, 2), dtype=np.float64), 3, 10.0)


def test_convolution_transpose() -> None:
    weights, biases = like(np.empty((4, 3, 3, 6)), 2), like(np.empty(4), 3)
    y = functional.convolution_transpose(X, weights, biases, stride=2, padding="full")
    assert y.shape == (3, 15, 19, 4)
    keywords: Any = {"stride": (2, 2), "offset": (-1, -1)}
    assert_close(y, reference.convolution_transpose(X, weights, biases, size=(15, 19), **keywords), 55, 50.0)
    g = like(y)
    actual = functional.convolution_transpose_gradient(g, X, weights, stride=2, padding="full")
    exact = reference.convolution_transpose_gradient(g, X, weights, **keywords)
    for a, e, terms in zip(actual, exact, (36, 189, 855), strict=True):
        assert_close(a, e, terms, 400.0)


def test_batch_normalization() -> None:
    gamma, beta = like(np.empty(6)), like(np.empty(6), 2)
    mean, variance = reference.batch_normalization_statistics(X)
    y = functional.batch_normalization(X, gamma, beta, epsilon=1e-3)
    assert_close(y, reference.batch_normalization(X, mean, variance, gamma, beta, 1e-3), 189)
    g = like(y)
    actual = functional.batch_normalization_gradient(g, X, gamma, beta, epsilon=1e-3)
    exact = reference.batch_normalization_gradient(g, X, mean, variance, gamma, beta, 1e-3)
    for a, e in zip(actual, exact, strict=True):
        assert_close(a, e, 189, 200.0)
    given_mean, given_variance = like(np.empty(6), 3), np.abs(like(np.empty(6), 4))
    y = functional.batch_normalization(X, gamma, beta, mean=given_mean, variance=given_variance, epsilon=1e-3)
    assert_close(y, reference.batch_normalization(X, given_mean, given_variance, gamma, beta, 1e-3), 1)
    with pytest.raises(mg.FormatError, match="both or not at all"):
        functional.batch_normalization(X, mean=given_mean)


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide"])
def test_arithmetic(name: str) -> None:
    y = 2 + np.abs(X[:, :1, :, :1])
    scales: Any = {"primary_scale": 2.0, "secondary_scale": 0.5, "bias": -1.0}
    result = getattr(functional, name)(X, y, minimum_value=-2, maximum_value=1.5, **scales)
    limits: Any = {"minimum": -2.0, "maximum": 1.5}
    assert_close(result, reference.arithmetic(name, X, y, **scales, **limits), 4)  # type: ignore[arg-type]
    g = like(X)
    found = getattr(functional, f"{name}_gradient")(g, X, y, minimum_value=-2, maximum_value=1.5, **scales)
    exact = reference.arithmetic_gradient(name, g, X, y, **scales, **limits)  # type: ignore[arg-type]
    for actual, expected in zip(found, exact, strict=True):
        assert_close(actual, expected, 64, 40.0)


def test_compare() -> None:
    y = np.roll(X, 1, axis=3)
    for comparison in ("less", mg.ComparisonType.LESS):
        np.testing.assert_array_equal(functional.compare(X, y, comparison), X < y)
    np.testing.assert_array_equal(functional.compare(X, y, threshold=0.5), np.abs(X - y) <= 0.5)


@pytest.mark.parametrize("over", ["row", "column", "feature_channels", "spatial"])
@pytest.mark.parametrize("operation", ["min", "max", "mean", "sum"])
def test_reductions(over: Any, operation: Any) -> None:
    if over == "spatial" and operation != "mean":
        with pytest.raises(mg.FormatError, match=f"there is no '{operation}' over 'spatial'"):
            functional.reduction(X, over, operation)
        return
    weight = 1.5 if (over, operation) == ("feature_channels", "sum") else 1.0
    y = functional.reduction(X, over, operation, weight=weight)
    assert_close(y, reference.reduction(over, operation, X, weight=weight), 64)
    dx = functional.reduction_gradient(like(y), X, over, operation, weight=weight)
    assert_close(dx, reference.reduction_gradient(over, operation, like(y), X, weight=weight), 2)


def test_copies() -> None:
    box: Any = {"offset": (1, 2), "size": (3, 4), "first_channel": 4, "channels": 2}
    np.testing.assert_array_equal(functional.slice_image(X, **box), X[:, 1:4, 2:6, 4:6])
    expected = np.zeros_like(X)
    expected[:, 1:4, 2:6, 4:6] = 3
    g = np.full((3, 3, 4, 2), 3, np.float32)
    np.testing.assert_array_equal(functional.slice_image_gradient(g, X, **box), expected)
    np.testing.assert_array_equal(functional.reshape(X, 9, 6, 7), X.reshape(3, 9, 6, 7))
    np.testing.assert_array_equal(functional.reshape_gradient(X.reshape(3, 9, 6, 7), X), X)
    parts = X[..., :1], X[..., 1:]
    np.testing.assert_array_equal(functional.concatenation(*parts), X)
    assert functional.concatenation(*parts, aligns_channels=True).shape[3] == 12
    for actual, part in zip(functional.concatenation_gradient(X, *parts), parts, strict=True):
        np.testing.assert_array_equal(actual, part)


def test_soft_max() -> None:
    for name in ("soft_max", "log_soft_max"):
        y = getattr(functional, name)(X)
        assert_close(y, getattr(reference, name)(X), 6)
        g = like(y)
        gradient = getattr(functional, f"{name}_gradient")(g, y)
        assert_close(gradient, getattr(reference, f"{name}_gradient")(g, y), 6, 20.0)


@pytest.mark.parametrize("name", ["relu", "sigmoid", "tanh", "gelu", "elu", "soft_plus"])
def test_neurons(name: str) -> None:
    assert_close(functional.neuron(X, name), reference.neuron(X, name), 1)  # type: ignore[arg-type]
    g = like(X)
    gradient = functional.neuron_gradient(g, X, name)
    assert_close(gradient, reference.neuron_gradient(g, X, name), 1)  # type: ignore[arg-type]


def test_a_neurons_parameters() -> None:
    y = functional.neuron(X, mg.NeuronType.RELU, a=0.25)
    assert_close(y, np.where(X >= 0, X, 0.25 * X), 1)
    with pytest.raises(mg.FormatError, match="'rely'.*relu"):
        functional.neuron(X, "rely")


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_softmax_cross_entropy(reduction: Any) -> None:
    labels = np.eye(6, dtype=np.float32)[GENERATOR.integers(0, 6, X.shape[:3])]
    loss, gradient = functional.softmax_cross_entropy(X, labels, reduction=reduction)
    kind: Any = "softmax_cross_entropy"
    exact = reference.loss(X, labels, kind, reduction=reduction)
    assert_close(loss, exact, 63)
    ones = np.ones_like(exact)
    assert_close(gradient, reference.reduced_loss_gradient(ones, X, labels, kind, reduction=reduction), 6)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_losses(reduction: Any) -> None:
    labels, weights = np.abs(like(X, 2)), np.abs(like(X, 3))
    exact = reference.loss(X, labels, "huber", reduction=reduction, weights=weights, delta=0.5)
    value, gradient = functional.loss(X, labels, "huber", weights, reduction=reduction, delta=0.5)
    assert_close(value, exact, 378)
    ones = np.ones_like(exact, np.float32)
    for for_labels in (False, True):
        function = reference.reduced_loss_gradient_labels if for_labels else reference.reduced_loss_gradient
        expected = function(ones, X, labels, "huber", reduction=reduction, weights=weights, delta=0.5)
        actual = functional.loss_gradient(
            ones, X, labels, "huber", weights, reduction=reduction, for_labels=for_labels, delta=0.5
        )
        assert_close(actual, expected, 6)
        if not for_labels:
            assert_close(gradient, expected, 6)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean", "sum_by_non_zero_weights"])
def test_softmax_cross_entropy_with_weights_of_classes(reduction: str) -> None:
    """And with labels that do not add up to 1: the gradient is that of the loss."""
    labels, classes = np.abs(like(X, 4)), np.array([0.5, 2, 1, 0, 3, 0.25], np.float32)
    weights, kind = np.broadcast_to(classes, X.shape).copy(), "softmax_cross_entropy"
    value, gradient = functional.softmax_cross_entropy(X, labels, weights, reduction=reduction)
    exact = reference.loss(X, labels, kind, reduction=reduction, weights=weights)
    assert_close(value, exact, 400, 400.0)
    ones = np.ones_like(exact, np.float32)
    expected = reference.reduced_loss_gradient(ones, X, labels, kind, reduction=reduction, weights=weights)
    assert_close(gradient, expected, 12)


@given(st.integers(0, 2**32 - 1), st.sampled_from([np.float32, np.float16]))
def test_dtype_rank_and_memory_order(seed: int, dtype: Any) -> None:
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((6, 5, 4)).astype(dtype)
    y = functional.soft_max(x)
    assert y.shape == x.shape
    assert y.dtype == dtype
    strided = np.asfortranarray(x)[::-1]
    np.testing.assert_array_equal(functional.soft_max(strided), functional.soft_max(np.ascontiguousarray(strided)))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: functional.pooling_max(X, kernel=(1, 2, 3)), mg.FormatError, r"kernel is \(1, 2, 3\)"),  # type: ignore[arg-type]
        (lambda: functional.pooling_max(X, kernel=0), mg.GeometryError, "kernel_width is 0"),
        (lambda: functional.pooling_max(X, kernel=2, padding="some"), mg.FormatError, "padding is 'some'"),
        (lambda: functional.pooling_max(X, kernel=2, edge_mode="wrap"), mg.FormatError, "edge_mode is 'wrap'"),
        (lambda: functional.pooling_max(X, kernel=9, padding="valid"), mg.GeometryError, "window of 9 .* 7 pixels"),
        (lambda: functional.pooling_max(X, kernel=9, padding=0), mg.GeometryError, "window of 9 .* 7 pixels"),
        (lambda: functional.soft_max(X.astype(np.float64)), mg.FormatError, "float64"),
        (lambda: functional.soft_max(X[0, 0]), mg.GeometryError, r"\(9, 6\)"),
        (lambda: functional.pooling_max_gradient(X, X, kernel=2, stride=2), mg.GeometryError, "3x7x9x6 .*3x4x5x6"),
        (lambda: functional.convolution(X, WEIGHTS[..., :4]), mg.GeometryError, "6 .* 4"),
        (lambda: functional.loss(X, X, "hubert"), mg.FormatError, "loss_type is 'hubert'"),
        (lambda: functional.loss_gradient(X, X, X, "huber"), mg.GeometryError, "source_gradient is 3x7x9x6 but has to"),
        (lambda: functional.soft_max_gradient(X[:2], X), mg.GeometryError, "3 images .* 2"),
        (lambda: functional.convolution(X[0, 0], WEIGHTS), mg.GeometryError, r"source has shape \(9, 6\)"),
        (lambda: functional.batch_normalization(X, np.ones(5, np.float32)), mg.GeometryError, r"gamma .*\(5,\).* 6"),
        (lambda: functional.group_normalization(X, 2, np.ones(5, np.float32)), mg.GeometryError, r"gamma .*\(5,\).* 6"),
        (lambda: functional.batch_normalization(3.0), mg.GeometryError, r"source has shape \(\)"),
        (lambda: functional.weighted_reduction_gradient(X, X, X), mg.GeometryError, "3x7x9x6 .*3x7x9x1"),
        (lambda: functional.convolution(X, WEIGHTS[0]), mg.GeometryError, r"6 feature .* \(3, 3, 6\) .* take 3"),
        (lambda: functional.convolution(X, WEIGHTS, padding=None), mg.FormatError, "padding is None; .*a pair"),
        (lambda: functional.loss(X, X.astype(int), "huber"), mg.FormatError, "labels: .* not dtype.'int64'"),
        (lambda: functional.add(X, 1.0), mg.GeometryError, r"secondary: .* shape \(\)"),
        (lambda: functional.concatenation(X, X[0, 0]), mg.GeometryError, r"sources\[1\]: .* shape \(9, 6\)"),
        (lambda: functional.soft_max([[1.0], [1.0, 2.0]]), mg.FormatError, "source: list cannot be read .*shape"),
        (lambda: functional.convolution(X, [WEIGHTS, 1]), mg.FormatError, "weights: list cannot be read"),
        (lambda: functional.batch_normalization(X, [1, [2]]), mg.FormatError, "gamma: list cannot be read"),
        (lambda: functional.soft_max(None), mg.FormatError, "source is NoneType; it has to be an array of numbers"),
        (lambda: functional.convolution("X", WEIGHTS), mg.FormatError, "source is str; it has to be an array of"),
        (lambda: functional.convolution(X, WEIGHTS.transpose(0, 3, 1, 2)), mg.GeometryError, r"I / groups\]"),
        (lambda: functional.convolution(X, WEIGHTS, groups=0), mg.GeometryError, "groups is 0; .* at least 1"),
        (lambda: functional.reshape_gradient(X[0, 0], X), mg.GeometryError, r"source_gradient has shape \(9, 6\)"),
        (lambda: functional.crop_and_resize_gradient(X[0, 0], X, [(0, 0, 1, 1)]), mg.GeometryError, "source_gradient"),
    ],
)
def test_bad_input(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize("name", functional.__all__)
def test_help_stands_by_itself(name: str) -> None:
    """It does not begin with what another function's text has to explain, and names the kernel that computes it."""
    text = inspect.getdoc(getattr(functional, name)) or ""
    assert not text.startswith(("Its ", "The same ", "As "))
    kernels = re.findall(r"``(\w+)``", text.partition("Source:")[2])
    assert kernels
    assert all(issubclass(getattr(mg, kernel), BaseKernel) for kernel in kernels)


def test_kernels_are_kept_for_equal_arguments_of_the_same_types_and_by_each_thread():
    windows = [kept(mg.PoolingMax, kernel_width=2, kernel_height=height) for height in (3, 3, 2)]
    assert windows[0] is windows[1] and windows[1] is not windows[2]
    with ThreadPoolExecutor(1) as other:
        assert other.submit(kept, mg.PoolingMax, kernel_width=2, kernel_height=3).result() is not windows[0]
    x = np.arange(64, dtype=np.float32).reshape(4, 4, 4)
    functional.pooling_max(x, kernel=2)
    with pytest.raises(mg.FormatError, match="kernel_width is 2.0"):
        functional.pooling_max(x, kernel=(2, 2.0))


def test_what_can_change_makes_a_new_kernel():
    x = np.arange(64, dtype=np.float32).reshape(4, 4, 4)
    policy = mg.DefaultPadding(mg.PaddingMethod.SIZE_SAME)
    assert functional.pooling_max(x, kernel=2, padding=policy).shape == (4, 4, 4)
    policy._method = mg.PaddingMethod.SIZE_VALID_ONLY
    assert functional.pooling_max(x, kernel=2, padding=policy).shape == (3, 3, 4)
    slopes = np.full(4, 0.5, np.float32)
    assert functional.neuron(-x, "prelu", data=slopes)[1, 0, 0] == -8
    slopes[:] = 2
    assert functional.neuron(-x, "prelu", data=slopes)[1, 0, 0] == -32


def test_properties_of_one_call_do_not_outlast_it():
    x, y = (np.full((1, 1, 4), value, np.float32) for value in (1, 2))
    for _ in range(2):
        np.testing.assert_array_equal(functional.add(x, y, bias=3), np.full((1, 1, 4), 6))
        np.testing.assert_array_equal(functional.add(x, y), np.full((1, 1, 4), 3))
        np.testing.assert_array_equal(functional.add(x, y, maximum_value=2), np.full((1, 1, 4), 2))
        with pytest.raises(mg.FormatError, match="'spread' is not a property"):
            functional.add(x, y, spread=1)


MASKED = np.ma.masked_greater(np.arange(8, dtype=np.float32).reshape(1, 2, 4), 5)
COPY = "kernel void copy(device const float* x, device float* y, uint i [[thread_position_in_grid]]) { y[i] = x[i]; }"


@pytest.mark.parametrize("call", [
    lambda: functional.soft_max(MASKED),
    lambda: mg.ConvolutionDataSource.from_arrays(MASKED.reshape(2, 1, 1, 4)),
    lambda: functional.batch_normalization(MASKED, MASKED.reshape(-1)[4:], np.zeros(4, np.float32)),
    lambda: mg.BatchNormalizationDataSource.from_arrays(MASKED.reshape(-1)),
    lambda: mg.NormalizationGammaAndBetaState.from_arrays(*MASKED.reshape(2, 4)),
    lambda: mg.Vector.from_array(MASKED),
    lambda: mg.NeuronDescriptor("prelu", data=MASKED.reshape(-1)),
    lambda: mg.compile(COPY).function("copy")(8, MASKED, np.zeros(8, np.float32)),
])
def test_masked_elements_are_refused(call):
    with pytest.raises(mg.FormatError, match="masked"):
        call()


def test_arrays_that_could_have_masks_are_taken():
    x = np.ma.array(MASKED.data)
    np.testing.assert_array_equal(functional.neuron(x, "linear", a=2), 2 * MASKED.data)
