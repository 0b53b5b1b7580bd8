"""The references beside PyTorch's float64 operators and automatic differentiation, where the two mean the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_geometry import edges, seeds

from mpsgrad import reference

torch = pytest.importorskip("torch")
F = torch.nn.functional

TOLERANCE = {"rtol": 1e-11, "atol": 1e-11}


def nchw(array: np.ndarray) -> Any:
    """An N x H x W x C array (or OHWI weights) as a leaf tensor in PyTorch's order."""
    return torch.tensor(np.ascontiguousarray(array.transpose(0, 3, 1, 2)), dtype=torch.float64, requires_grad=True)


def nhwc(tensor: Any) -> np.ndarray:
    return tensor.detach().numpy().transpose(0, 2, 3, 1)


def leaf(array: np.ndarray) -> Any:
    return torch.tensor(array, dtype=torch.float64, requires_grad=True)


@st.composite
def padded_geometries(draw, dilated: bool = True, half_padding: bool = False) -> tuple[dict, tuple[int, int]]:
    """Geometry that PyTorch can say: windows from -padding on, as many as fit. Gives the keywords and the padding."""
    axes = []
    for _ in range(2):
        k, s, d = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 3)) if dilated else 1
        extent = reference.window_extent(k, d)
        p = draw(st.integers(0, k // 2 if half_padding else 4))
        smallest = max(1, extent - 2 * p)
        n = draw(st.integers(smallest, smallest + 6))
        axes.append((n, k, s, d, p, extent // 2 - p, (n + 2 * p - extent) // s + 1))
    n, k, s, d, p, offset, size = (tuple(pair) for pair in zip(*axes, strict=True))
    return {"source_size": n, "kernel": k, "stride": s, "dilation": d, "offset": offset, "size": size}, p


def without(keywords: dict, *names: str) -> dict:
    return {name: value for name, value in keywords.items() if name not in names}


@settings(deadline=None)
@given(padded_geometries(), st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.integers(1, 2),
       edges, seeds)
def test_convolution(drawn, batch, groups, inputs, outputs, edge, seed):
    keywords, padding = drawn
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((batch, *keywords["source_size"], groups * inputs))
    w = rng.standard_normal((groups * outputs, *keywords["kernel"], inputs))
    bias = rng.standard_normal(groups * outputs)
    g = rng.standard_normal((batch, *keywords["size"], groups * outputs))

    source, weights, biases = nchw(x), nchw(w), leaf(bias)
    around = (padding[1], padding[1], padding[0], padding[0])
    padded = F.pad(source, around, mode="constant" if edge == "zero" else "replicate")
    y = F.conv2d(padded, weights, biases, keywords["stride"], 0, keywords["dilation"], groups)
    y.backward(nchw(g).detach())

    geometry = without(keywords, "source_size", "kernel") | {"groups": groups, "edge": edge}
    np.testing.assert_allclose(reference.convolution(x, w, bias, **geometry), nhwc(y), **TOLERANCE)
    dx = reference.convolution_gradient_data(g, w, source_size=keywords["source_size"], **geometry)
    np.testing.assert_allclose(dx, nhwc(source.grad), **TOLERANCE)
    dw = reference.convolution_gradient_weights(g, x, kernel=keywords["kernel"], **geometry)
    np.testing.assert_allclose(dw, nhwc(weights.grad), **TOLERANCE)
    np.testing.assert_allclose(reference.convolution_gradient_biases(g), biases.grad.numpy(), **TOLERANCE)


@settings(deadline=None)
@given(padded_geometries(half_padding=True), st.integers(1, 3), st.integers(1, 3), seeds)
def test_max_pooling_with_clamped_edges(drawn, batch, channels, seed):
    keywords, padding = drawn
    rng = np.random.default_rng(seed)
    shape = (batch, *keywords["source_size"], channels)
    x = rng.permutation(np.prod(shape)).reshape(shape) - np.prod(shape) / 2
    g = rng.standard_normal((batch, *keywords["size"], channels))
    source = nchw(x)
    y = F.max_pool2d(source, keywords["kernel"], keywords["stride"], padding, keywords["dilation"])
    # A dilated window may have all its taps in the padding, where PyTorch gives -inf and no meaningful winner.
    touching = np.isfinite(nhwc(y))
    g = np.where(touching, g, 0.0)
    y.backward(nchw(g).detach())
    geometry = without(keywords, "source_size") | {"edge": "clamp"}
    np.testing.assert_array_equal(reference.pooling_max(x, **geometry)[touching], nhwc(y)[touching])
    np.testing.assert_allclose(reference.pooling_max_gradient(g, x, **geometry), nhwc(source.grad), **TOLERANCE)


@settings(deadline=None)
@given(padded_geometries(), st.integers(1, 3), st.integers(1, 3), seeds)
def test_max_pooling_with_zeros_outside(drawn, batch, channels, seed):
    keywords, padding = drawn
    rng = np.random.default_rng(seed)
    shape = (batch, *keywords["source_size"], channels)
    x = rng.permutation(np.prod(shape)).reshape(shape) - np.prod(shape) // 2 + 0.5
    g = rng.standard_normal((batch, *keywords["size"], channels))
    source = nchw(x)
    padded = F.pad(source, (padding[1], padding[1], padding[0], padding[0]))
    y = F.max_pool2d(padded, keywords["kernel"], keywords["stride"], 0, keywords["dilation"])
    y.backward(nchw(g).detach())
    geometry = without(keywords, "source_size")
    np.testing.assert_array_equal(reference.pooling_max(x, **geometry), nhwc(y))
    np.testing.assert_allclose(reference.pooling_max_gradient(g, x, **geometry), nhwc(source.grad), **TOLERANCE)


@settings(deadline=None)
@given(padded_geometries(dilated=False, half_padding=True), st.integers(1, 3), st.integers(1, 3),
       st.sampled_from(["zero", "clamp", "clamp, zero padded"]), seeds)
def test_average_pooling(drawn, batch, channels, edge, seed):
    keywords, padding = drawn
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((batch, *keywords["source_size"], channels))
    g = rng.standard_normal((batch, *keywords["size"], channels))
    source = nchw(x)
    y = F.avg_pool2d(source, keywords["kernel"], keywords["stride"], padding, count_include_pad=edge != "clamp")
    y.backward(nchw(g).detach())
    geometry = without(keywords, "source_size", "dilation") | {"edge": edge.split(",")[0]}
    geometry["zero_pad"] = padding if edge == "clamp, zero padded" else (0, 0)
    np.testing.assert_allclose(reference.pooling_average(x, **geometry), nhwc(y), **TOLERANCE)
    np.testing.assert_allclose(reference.pooling_average_gradient(g, x, **geometry), nhwc(source.grad), **TOLERANCE)


@settings(deadline=None)
@given(padded_geometries(dilated=False), st.integers(1, 3), st.integers(1, 3), edges, seeds)
def test_l2_norm_pooling(drawn, batch, channels, edge, seed):
    keywords, padding = drawn
    rng = np.random.default_rng(seed)
    x = rng.uniform(0.5, 2.0, (batch, *keywords["source_size"], channels))
    g = rng.standard_normal((batch, *keywords["size"], channels))
    source = nchw(x)
    around = (padding[1], padding[1], padding[0], padding[0])
    padded = F.pad(source, around, mode="constant" if edge == "zero" else "replicate")
    # The square root has no derivative at 0, where a window wholly outside lies.
    squares = F.avg_pool2d(padded**2, keywords["kernel"], keywords["stride"], divisor_override=1)
    y = torch.where(squares > 0, torch.sqrt(torch.where(squares > 0, squares, 1.0)), 0.0)
    y.backward(nchw(g).detach())
    geometry = without(keywords, "source_size", "dilation") | {"edge": edge}
    np.testing.assert_allclose(reference.pooling_l2_norm(x, **geometry), nhwc(y), **TOLERANCE)
    np.testing.assert_allclose(reference.pooling_l2_norm_gradient(g, x, **geometry), nhwc(source.grad), **TOLERANCE)


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(2, 4), st.integers(1, 4), st.booleans(), seeds)
def test_batch_normalization(batch, height, width, channels, training, seed):
    rng = np.random.default_rng(seed)
    x, g = rng.standard_normal((2, batch, height, width, channels))
    gamma, beta, mean = rng.standard_normal((3, channels))
    variance = rng.uniform(0.5, 2.0, channels)
    source, scale, shift = nchw(x), leaf(gamma), leaf(beta)
    running = torch.tensor(mean.copy()), torch.tensor(variance.copy())
    y = F.batch_norm(source, *running, scale, shift, training=training, eps=1e-2)
    y.backward(nchw(g).detach())
    if training:
        mean, variance = reference.batch_normalization_statistics(x)
        gradient = reference.batch_normalization_gradient
    else:
        gradient = reference.batch_normalization_inference_gradient
    np.testing.assert_allclose(
        reference.batch_normalization(x, mean, variance, gamma, beta, 1e-2), nhwc(y), **TOLERANCE
    )
    dx, dgamma, dbeta = gradient(g, x, mean, variance, gamma, beta, 1e-2)
    np.testing.assert_allclose(dx, nhwc(source.grad), **TOLERANCE)
    np.testing.assert_allclose(dgamma, scale.grad.numpy(), **TOLERANCE)
    np.testing.assert_allclose(dbeta, shift.grad.numpy(), **TOLERANCE)


@pytest.mark.parametrize(("name", "function"), [("soft_max", F.softmax), ("log_soft_max", F.log_softmax)])
@settings(deadline=None)
@given(seed=seeds)
def test_soft_max(name, function, seed):
    x, g = np.random.default_rng(seed).standard_normal((2, 3, 2, 2, 7))
    source = leaf(x)
    y = function(source, dim=-1)
    y.backward(torch.tensor(g))
    output = getattr(reference, name)(x)
    np.testing.assert_allclose(output, y.detach().numpy(), **TOLERANCE)
    np.testing.assert_allclose(getattr(reference, f"{name}_gradient")(g, output), source.grad.numpy(), **TOLERANCE)


NEURONS = [
    ("relu", {"a": 0.3}, lambda x: F.leaky_relu(x, 0.3)),
    ("sigmoid", {}, torch.sigmoid),
    ("hard_sigmoid", {"a": 0.2, "b": 0.5}, lambda x: torch.clamp(0.2 * x + 0.5, 0.0, 1.0)),
    ("tanh", {}, torch.tanh),
    ("soft_plus", {"a": 0.5, "b": 2.0}, lambda x: F.softplus(x, beta=2.0, threshold=1e9)),
    ("soft_sign", {}, F.softsign),
    ("elu", {"a": 0.7}, lambda x: F.elu(x, 0.7)),
    ("relun", {"a": 0.0, "b": 6.0}, F.relu6),
    ("gelu", {}, F.gelu),
]


@pytest.mark.parametrize(("type", "parameters", "function"), NEURONS)
@settings(deadline=None)
@given(seed=seeds)
def test_neuron(type, parameters, function, seed):
    x, g = 4.0 * np.random.default_rng(seed).standard_normal((2, 3, 4, 4, 5))
    source = leaf(x)
    y = function(source)
    y.backward(torch.tensor(g))
    np.testing.assert_allclose(reference.neuron(x, type, **parameters), y.detach().numpy(), **TOLERANCE)
    np.testing.assert_allclose(reference.neuron_gradient(g, x, type, **parameters), source.grad.numpy(), **TOLERANCE)


@settings(deadline=None)
@given(st.integers(1, 3), st.integers(1, 5), seeds)
def test_prelu_and_its_slopes(batch, channels, seed):
    rng = np.random.default_rng(seed)
    x, g = rng.standard_normal((2, batch, 3, 4, channels))
    source, slopes = nchw(x), leaf(rng.standard_normal(channels))
    y = F.prelu(source, slopes)
    y.backward(nchw(g).detach())
    given_slopes = slopes.detach().numpy()
    np.testing.assert_allclose(reference.neuron(x, "prelu", slopes=given_slopes), nhwc(y), **TOLERANCE)
    dx = reference.neuron_gradient(g, x, "prelu", slopes=given_slopes)
    np.testing.assert_allclose(dx, nhwc(source.grad), **TOLERANCE)
    np.testing.assert_allclose(reference.prelu_gradient_slopes(g, x), slopes.grad.numpy(), **TOLERANCE)


LOSSES = [
    ("mean_absolute_error", {}, lambda y, t: F.l1_loss(y, t, reduction="none")),
    ("mean_squared_error", {}, lambda y, t: F.mse_loss(y, t, reduction="none")),
    ("sigmoid_cross_entropy", {}, lambda y, t: F.binary_cross_entropy_with_logits(y, t, reduction="none")),
    ("huber", {"delta": 0.7}, lambda y, t: F.huber_loss(y, t, reduction="none", delta=0.7)),
    ("kullback_leibler_divergence", {}, lambda y, t: F.kl_div(y, t, reduction="none")),
]


@pytest.mark.parametrize(("type", "options", "function"), LOSSES)
@settings(deadline=None)
@given(seed=seeds)
def test_element_losses(type, options, function, seed):
    rng = np.random.default_rng(seed)
    y, t = rng.standard_normal((2, 3, 3, 4)), rng.uniform(0.0, 1.0, (2, 3, 3, 4))
    prediction, labels = leaf(y), leaf(t)
    elements = function(prediction, labels)
    elements.sum().backward()
    np.testing.assert_allclose(reference.loss_elements(y, t, type, **options), elements.detach().numpy(), **TOLERANCE)
    np.testing.assert_allclose(reference.loss_gradient(y, t, type, **options), prediction.grad.numpy(), **TOLERANCE)
    ones = np.ones((2, 1, 1, 1))
    dt = reference.reduced_loss_gradient_labels(ones, y, t, type, **options)
    np.testing.assert_allclose(dt, labels.grad.numpy(), **TOLERANCE)


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(1, 5), st.sampled_from([0.0, 0.2]), seeds)
def test_softmax_cross_entropy(batch, classes, smoothing, seed):
    rng = np.random.default_rng(seed)
    y = rng.standard_normal((batch, 2, 3, classes))
    t = reference.soft_max(rng.standard_normal(y.shape))
    prediction = nchw(y)
    # PyTorch's mean over N, H and W is MPS's mean across the batch, and it smooths over all classes.
    value = F.cross_entropy(prediction, nchw(t).detach(), label_smoothing=smoothing)
    value.backward()
    options = {"label_smoothing": smoothing, "number_of_classes": classes}
    mean = reference.loss(
        y, t, "softmax_cross_entropy", reduction="mean", reduce_across_batch=True, **options
    )
    np.testing.assert_allclose(mean[0].item(), value.item(), **TOLERANCE)
    dy = reference.loss_gradient(y, t, "softmax_cross_entropy", **options)
    np.testing.assert_allclose(dy / (batch * 6), nhwc(prediction.grad), **TOLERANCE)


OPTIMIZERS = [
    # PyTorch's Adam has epsilon inside the bias correction: the same only without epsilon.
    ("stochastic_gradient_descent", 0, {}, "SGD", {}),
    ("stochastic_gradient_descent", 1, {"momentum_scale": 0.9}, "SGD", {"momentum": 0.9}),
    ("stochastic_gradient_descent", 1, {"momentum_scale": 0.9, "use_nesterov_momentum": True}, "SGD",
     {"momentum": 0.9, "nesterov": True}),
    ("stochastic_gradient_descent", 1,
     {"momentum_scale": 0.9, "regularization_type": "l2", "regularization_scale": 0.1},
     "SGD", {"momentum": 0.9, "weight_decay": 0.1}),
    ("rms_prop", 1, {"decay": 0.8, "epsilon": 1e-3}, "RMSprop", {"alpha": 0.8, "eps": 1e-3}),
    ("adam", 2, {"beta1": 0.8, "beta2": 0.95, "epsilon": 0.0}, "Adam", {"betas": (0.8, 0.95), "eps": 0.0}),
    ("adam", 2, {"epsilon": 0.0, "regularization_type": "l2", "regularization_scale": 0.1}, "Adam",
     {"eps": 0.0, "weight_decay": 0.1}),
]


@pytest.mark.parametrize(("name", "slots", "options", "theirs", "their_options"), OPTIMIZERS)
def test_optimizer(name, slots, options, theirs, their_options):
    rng = np.random.default_rng(7)
    values, state = rng.standard_normal(11), [np.zeros(11) for _ in range(slots)]
    parameter = leaf(values)
    optimizer = getattr(torch.optim, theirs)([parameter], lr=0.05, **their_options)
    for step, gradient in enumerate(rng.standard_normal((6, 11))):
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
        time = {"time_step": step} if name == "adam" else {}
        values, *state = getattr(reference, name)(gradient, values, *state, learning_rate=0.05, **options, **time)
        np.testing.assert_allclose(values, parameter.detach().numpy(), **TOLERANCE)
