"""Small cases worked out by hand or by automatic differentiation: tables of numbers that pin the formulas down.

One-dimensional cases are images of height 1, and are run a second time standing upright.
"""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from worked_cases import PADDING, POOLING

from mpsgrad import reference


@pytest.fixture(params=["lying", "upright"])
def line(request):
    """Turns numbers into an image (or weights) of one row or column, and a number into the pair (y, x)."""

    class Line:
        upright = request.param == "upright"

        def image(self, values) -> np.ndarray:
            shape = (1, len(values), 1, 1) if self.upright else (1, 1, len(values), 1)
            return np.asarray(values, float).reshape(shape)

        def pair(self, along: int, across: int = 1) -> tuple[int, int]:
            return (along, across) if self.upright else (across, along)

        def geometry(self, stride: int, dilation: int, offset: int, size: int) -> dict:
            return {
                "stride": self.pair(stride),
                "dilation": self.pair(dilation),
                "offset": self.pair(offset, 0),
                "size": self.pair(size),
            }

    return Line()


@pytest.mark.parametrize(("n", "stride", "window", "method", "size", "top_left", "bottom_right"), PADDING)
def test_padding(n, stride, window, method, size, top_left, bottom_right):
    assert reference.padding_size(n, window, stride, method) == size
    assert reference.padding_offset(n, size, window, stride, remainder="top_left") == top_left
    assert reference.padding_offset(n, size, window, stride, remainder="bottom_right") == bottom_right


CONVOLUTION = [
    # x, weights by tap, stride, dilation, offset, y with bias 0.5, g, dx, dw, db
    ([1, 2, 3, 4, 5], [1, 2, 3], 1, 1, 0, [8.5, 14.5, 20.5, 26.5, 14.5], [1, 0, 2, 0, 3], [2, 5, 4, 9, 6],
     [16, 22, 10], 6),
    ([1, 2, 3, 4, 5], [1, 2, 3], 2, 1, 0, [8.5, 20.5, 14.5], [1, 10, 100], [2, 13, 20, 130, 200], [420, 531, 42], 111),
    ([1, 2, 3, 4, 5], [1, 2, 3], 2, 1, 1, [14.5, 26.5], [1, 10], [1, 2, 13, 20, 30], [31, 42, 53], 11),
    ([1, 2, 3, 4], [1, 10], 1, 1, 0, [10.5, 21.5, 32.5, 43.5], [1, 2, 3, 4], [12, 23, 34, 40], [20, 30], 10),
    ([1, 2, 3, 4, 5, 6], [1, 10], 2, 1, 1, [21.5, 43.5, 65.5], [1, 2, 3], [1, 10, 2, 20, 3, 30], [22, 28], 6),
    ([1, 2, 3, 4, 5, 6, 7], [1, 10], 1, 3, 2, [41.5, 52.5, 63.5, 74.5], [1, 2, 3, 4], [1, 2, 3, 14, 20, 30, 40],
     [30, 60], 10),
    ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4], 2, 1, 1, [20.5, 40.5, 32.5], [1, -1, 2], [2, 2, 2, -1, 0, 6], [6, 8, 10, -2], 2),
]


@pytest.mark.parametrize(("x", "w", "stride", "dilation", "offset", "y", "g", "dx", "dw", "db"), CONVOLUTION)
def test_convolution(line, x, w, stride, dilation, offset, y, g, dx, dw, db):
    geometry = line.geometry(stride, dilation, offset, len(y))
    source, weights, gradient = line.image(x), line.image(w), line.image(g)
    np.testing.assert_allclose(reference.convolution(source, weights, [0.5], **geometry), line.image(y))
    source_gradient = reference.convolution_gradient_data(gradient, weights, source_size=line.pair(len(x)), **geometry)
    np.testing.assert_allclose(source_gradient, line.image(dx))
    np.testing.assert_allclose(
        reference.convolution_gradient_weights(gradient, source, kernel=line.pair(len(w)), **geometry), line.image(dw)
    )
    np.testing.assert_allclose(reference.convolution_gradient_biases(gradient), [db])


def test_convolution_in_two_dimensions():
    x = np.arange(1.0, 19.0).reshape(1, 3, 3, 2)
    w = (np.arange(1.0, 17.0) / 10).reshape(2, 2, 2, 2)
    g = np.arange(1.0, 9.0).reshape(1, 2, 2, 2)
    geometry = {"offset": (1, 1), "size": (2, 2)}
    y = reference.convolution(x, w, [0.1, -0.2], **geometry)
    np.testing.assert_allclose(y.ravel(), [25.7, 60.6, 32.9, 80.6, 47.3, 120.6, 54.5, 140.6])
    dx = reference.convolution_gradient_data(g, w, source_size=(3, 3), **geometry)
    np.testing.assert_allclose(
        dx.ravel(),
        [1.9, 2.2, 6.4, 7.4, 5.3, 6, 9, 10.4, 26.4, 30, 19, 21.2, 10.3, 11.4, 26.4, 29, 16.9, 18.4],
    )
    dw = reference.convolution_gradient_weights(g, x, kernel=(2, 2), **geometry)
    np.testing.assert_allclose(
        dw.ravel(), [108, 124, 140, 156, 204, 220, 236, 252, 128, 148, 168, 188, 248, 268, 288, 308]
    )
    np.testing.assert_allclose(reference.convolution_gradient_biases(g), [16, 20])


@pytest.mark.parametrize(
    ("kind", "x", "kernel", "dilation", "stride", "offset", "edge", "zero_pad", "y", "g", "dx"), POOLING
)
def test_pooling(line, kind, x, kernel, dilation, stride, offset, edge, zero_pad, y, g, dx):
    geometry = line.geometry(stride, dilation, offset, len(y)) | {"kernel": line.pair(kernel), "edge": edge}
    if kind != "max":
        del geometry["dilation"]
    if kind == "average":
        geometry["zero_pad"] = line.pair(zero_pad, 0)
    forward, gradient = getattr(reference, f"pooling_{kind}"), getattr(reference, f"pooling_{kind}_gradient")
    np.testing.assert_allclose(forward(line.image(x), **geometry), line.image(y))
    np.testing.assert_allclose(gradient(line.image(g), line.image(x), **geometry), line.image(dx), atol=1e-15)


def test_batch_normalization():
    x, g = np.array([1.0, 2, 3, 5]).reshape(2, 1, 2, 1), np.array([1.0, -1, 2, 3]).reshape(2, 1, 2, 1)
    mean, variance = reference.batch_normalization_statistics(x)
    np.testing.assert_allclose([mean, variance], [[2.75], [2.1875]])
    y = reference.batch_normalization(x, mean, variance, [2.0], [0.5], 1e-3)
    np.testing.assert_allclose(y.ravel(), [-1.865891, -0.513953, 0.837984, 3.54186], atol=1e-6)
    dx, dgamma, dbeta = reference.batch_normalization_gradient(g, x, mean, variance, [2.0], [0.5], 1e-3)
    np.testing.assert_allclose(dx.ravel(), [1.351166, -2.317939, 0.772646, 0.194127], atol=1e-6)
    np.testing.assert_allclose([dgamma, dbeta], [[4.224806], [5]], atol=1e-6)


def test_soft_max():
    x, g = [1, 2, 4], [1, 0, -2]
    y = reference.soft_max(x)
    np.testing.assert_allclose(y, [0.04201, 0.114195, 0.843795], atol=1e-6)
    np.testing.assert_allclose(reference.soft_max_gradient(g, y), [0.111141, 0.187917, -0.299058], atol=1e-6)
    y = reference.log_soft_max(x)
    np.testing.assert_allclose(y, [-3.169846, -2.169846, -0.169846], atol=1e-6)
    np.testing.assert_allclose(reference.log_soft_max_gradient(g, y), [1.04201, 0.114195, -1.156205], atol=1e-6)


NEURONS = [
    # type, parameters, f and f' at -3, -0.5, 0, 0.5, 2, 7
    ("relu", (0.3,), [-0.9, -0.15, 0, 0.5, 2, 7], [0.3, 0.3, 1, 1, 1, 1]),
    ("hard_sigmoid", (0.2, 0.5), [0, 0.4, 0.5, 0.6, 0.9, 1], [0, 0.2, 0.2, 0.2, 0.2, 0]),
    ("tanh", (0.3, 0.7), [-0.29114, -0.10091, 0, 0.10091, 0.26561, 0.29997],
     [0.01223, 0.18624, 0.21, 0.18624, 0.04539, 0.00005]),
    ("sigmoid", (), [0.04743, 0.37754, 0.5, 0.62246, 0.8808, 0.99909], [0.04518, 0.235, 0.25, 0.235, 0.10499, 0.00091]),
    ("absolute", (), [3, 0.5, 0, 0.5, 2, 7], [-1, -1, 0, 1, 1, 1]),
    ("soft_plus", (0.3, 0.7), [0.03466, 0.16001, 0.20794, 0.26501, 0.48613, 1.47223],
     [0.02291, 0.08681, 0.105, 0.12319, 0.16846, 0.20845]),
    ("soft_sign", (), [-0.75, -0.33333, 0, 0.33333, 0.66667, 0.875], [0.0625, 0.44444, 1, 0.44444, 0.11111, 0.01562]),
    ("elu", (0.3,), [-0.28506, -0.11804, 0, 0.5, 2, 7], [0.01494, 0.18196, 1, 1, 1, 1]),
    ("relun", (0.3, 6), [-0.9, -0.15, 0, 0.5, 2, 6], [0.3, 0.3, 1, 1, 1, 0]),
    ("power", (0.3, 0.7, 2), [0.04, 0.3025, 0.49, 0.7225, 1.69, 7.84], [-0.12, 0.33, 0.42, 0.51, 0.78, 1.68]),
    ("exponential", (0.3, 0.7, -1), [0.81873, 1.73325, 2.01375, 2.33965, 3.6693, 16.44465],
     [0.24562, 0.51998, 0.60413, 0.70189, 1.10079, 4.93339]),
    ("exponential", (0.3, 0.7, 2), [0.87055, 1.46409, 1.6245, 1.8025, 2.46229, 6.9644],
     [0.18103, 0.30445, 0.33781, 0.37482, 0.51202, 1.44821]),
    ("logarithm", (0.3, 2, -1), [0.09531, 0.61519, 0.69315, 0.76547, 0.95551, 1.41099],
     [0.27273, 0.16216, 0.15, 0.13953, 0.11538, 0.07317]),
    ("gelu", (), [-0.00405, -0.15427, 0, 0.34573, 1.9545, 7], [-0.01195, 0.1325, 0.5, 0.8675, 1.08523, 1]),
]


@pytest.mark.parametrize(("type", "parameters", "f", "slope"), NEURONS)
def test_neuron(type, parameters, f, slope):
    x = [-3, -0.5, 0, 0.5, 2, 7]
    np.testing.assert_allclose(reference.neuron(x, type, *parameters), f, atol=6e-6)
    np.testing.assert_allclose(reference.neuron_derivative(x, type, *parameters), slope, atol=6e-6)
    np.testing.assert_allclose(reference.neuron_gradient(np.full(6, -2), x, type, *parameters), -2 * np.array(slope),
                               atol=12e-6)


LOSSES = [
    # type, options, y, t, element losses, gradient
    ("mean_absolute_error", {}, [0.2, -0.4, 1.5], [0, 1, 0], [0.2, 1.4, 1.5], [1, -1, 1]),
    ("mean_squared_error", {}, [0.2, -0.4, 1.5], [0, 1, 0], [0.04, 1.96, 2.25], [0.4, -2.8, 3]),
    ("softmax_cross_entropy", {}, [0.2, -0.4, 1.5], [0, 1, 0], [0, 2.252135, 0], [0.19164, -0.894826, 0.703185]),
    ("softmax_cross_entropy", {"label_smoothing": 0.1, "number_of_classes": 3}, [0.2, -0.4, 1.5], [0, 1, 0],
     [0.055071, 2.101993, 0.011738], [0.158307, -0.828159, 0.669852]),
    ("sigmoid_cross_entropy", {}, [0.2, -0.4, 1.5], [0, 1, 0], [0.798139, 0.913015, 1.701413],
     [0.549834, -0.598688, 0.817574]),
    ("sigmoid_cross_entropy", {"label_smoothing": 0.1}, [0.2, -0.4, 1.5], [0, 1, 0], [0.788139, 0.893015, 1.626413],
     [0.499834, -0.548688, 0.767574]),
    ("categorical_cross_entropy", {}, [0.2, 0.4, 0.9], [0, 1, 0], [0, 0.916291, 0], [0, -2.5, 0]),
    ("hinge", {}, [0.2, -0.4, 1.5], [0, 1, 0], [1.2, 1.4, 2.5], [1, -1, 1]),
    ("huber", {"delta": 0.5}, [0.2, -0.4, 1.5], [0, 1, 0], [0.02, 0.575, 0.625], [0.2, -0.5, 0.5]),
    ("log", {"epsilon": 1e-7}, [0.2, 0.4, 0.9], [0, 1, 0], [0.223143, 0.91629, 2.302584], [1.25, -2.499999, 9.99999]),
    ("kullback_leibler_divergence", {}, reference.log_soft_max([0.2, -0.4, 1.5]).tolist(), [0.2, 0.3, 0.5],
     [0.008539, 0.314449, -0.170506], [-0.2, -0.3, -0.5]),
]


@pytest.mark.parametrize(("type", "options", "y", "t", "elements", "gradient"), LOSSES)
def test_loss(type, options, y, t, elements, gradient):
    y, t, elements, gradient = (np.asarray(v, float).reshape(1, 1, 1, 3) for v in (y, t, elements, gradient))
    np.testing.assert_allclose(reference.loss_elements(y, t, type, **options), elements, atol=1e-6)
    np.testing.assert_allclose(reference.loss(y, t, type, **options).item(), elements.sum(), atol=3e-6)
    np.testing.assert_allclose(reference.loss_gradient(y, t, type, **options), gradient, atol=1e-6)
    half = reference.reduced_loss_gradient(np.full((1, 1, 1, 1), 0.5), y, t, type, **options)
    np.testing.assert_allclose(half, gradient / 2, atol=1e-6)


GRADIENTS = [0.5, -0.25, 1.0]
DROPPING = [1.0, 0.01, 0.01]
CLIPPED = {
    "apply_gradient_clipping": True,
    "gradient_clip_max": 0.3,
    "gradient_clip_min": -0.3,
    "gradient_rescale": 2.0,
    "regularization_type": "l2",
    "regularization_scale": 0.01,
}
OPTIMIZERS = [
    # function, slots, options, gradients, values after each step from 1 with learning rate 0.1
    ("stochastic_gradient_descent", 0, {}, GRADIENTS, [0.95, 0.975, 0.875]),
    ("stochastic_gradient_descent", 1, {"momentum_scale": 0.9}, GRADIENTS, [0.95, 0.93, 0.812]),
    ("stochastic_gradient_descent", 1, {"momentum_scale": 0.9, "use_nesterov_momentum": True}, GRADIENTS,
     [0.905, 0.912, 0.7058]),
    ("rms_prop", 1, {}, GRADIENTS, [0.68377225, 0.8312142, 0.54935628]),
    ("adam", 2, {}, GRADIENTS, [0.90000006, 0.87336637, 0.80755523]),
    ("adam", 2, {}, DROPPING, [0.90000003, 0.83225311, 0.77924778]),
    ("adam", 3, {}, DROPPING, [0.90000003, 0.8322836, 0.77932597]),
    ("stochastic_gradient_descent", 0, CLIPPED, GRADIENTS, [0.939, 0.988061, 0.92707294]),
]


@pytest.mark.parametrize(("name", "slots", "options", "gradients", "expected"), OPTIMIZERS)
def test_optimizer(name, slots, options, gradients, expected):
    values, state = np.array([1.0]), [np.zeros(1) for _ in range(slots)]
    for step, (gradient, value) in enumerate(zip(gradients, expected, strict=True)):
        time = {"time_step": step} if name == "adam" else {}
        values, *state = getattr(reference, name)([gradient], values, *state, learning_rate=0.1, **options, **time)
        np.testing.assert_allclose(values, [value], rtol=0, atol=5e-9)


NEUTRAL = {
    "stride": [(1, 1)], "dilation": [(1, 1), 1], "offset": [(0, 0)], "zero_pad": [(0, 0)], "mask_stride": [(1, 1, 1)],
    "groups": [1], "primary_scale": [1], "secondary_scale": [1], "alpha": [1], "weight": [1], "label_smoothing": [0],
    "minimum": [-np.inf], "maximum": [np.inf], "momentum_scale": [0], "drawn_images": [0], "fill": [0],
    "edge": ["zero"],
}  # fmt: skip


def test_what_is_left_out_changes_nothing():
    for name in reference.__all__:
        function = getattr(reference, name)
        for parameter in inspect.signature(function).parameters.values() if inspect.isfunction(function) else ():
            if parameter.default is not inspect.Parameter.empty and parameter.name in NEUTRAL:
                assert parameter.default in NEUTRAL[parameter.name], f"{name}: {parameter}"
