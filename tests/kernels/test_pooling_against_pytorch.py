"""Where PyTorch means the same by pooling, the kernels agree with it."""

from __future__ import annotations

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad import reference
from mpsgrad.testing import assert_within, error_bound

torch = pytest.importorskip("torch")

CASES = [
    # height, width, channels, kernel, stride, padding, dilation (height, width each)
    (14, 14, 8, (3, 3), (2, 2), (1, 1), (1, 1)),
    (13, 10, 33, (3, 3), (1, 1), (1, 1), (1, 1)),
    (12, 9, 64, (2, 2), (2, 2), (0, 0), (1, 1)),
    (11, 17, 5, (5, 4), (3, 2), (2, 1), (1, 1)),
    (15, 16, 6, (3, 2), (2, 1), (1, 1), (2, 3)),
]
NAMES = [f"{kernel[1]}x{kernel[0]} stride {stride[1]}x{stride[0]}" for *_, kernel, stride, _, _ in CASES]


def with_gradient(function, x: np.ndarray, g: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Result and gradient of ``function`` in float64, as N x H x W x C; without ``g`` the gradient of the sum."""
    source = torch.tensor(x, dtype=torch.float64).permute(0, 3, 1, 2).requires_grad_(True)
    result = function(source)
    result.backward(torch.ones_like(result) if g is None else torch.tensor(g, dtype=torch.float64).permute(0, 3, 1, 2))
    return result.detach().permute(0, 2, 3, 1).numpy(), source.grad.permute(0, 2, 3, 1).numpy()


def run(forward, gradient, x, offset, g_shape, seed=1):
    """Result, gradient of the incoming gradient, and both of these, of our kernels."""
    g = np.random.default_rng(seed).standard_normal(g_shape).astype(np.float32)
    source = mg.Image.from_array(x)
    forward.offset = offset
    result = mg.Image(
        mg.ImageDescriptor(
            width=g_shape[2], height=g_shape[1], feature_channels=g_shape[3], number_of_images=g_shape[0]
        )
    )
    state = forward.result_state(source, destination_image=result)
    with mg.CommandBuffer() as commands:
        forward.encode(commands, source, destination_image=result, destination_state=state)
        dx = gradient.encode(commands, mg.Image.from_array(g), source, state)
    return np.asarray(result), g, np.asarray(dx)


def window_of(case):
    height, width, channels, kernel, stride, padding, dilation = case
    extent = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    size = [(n + 2 * p - e) // s + 1 for n, p, e, s in zip((height, width), padding, extent, stride, strict=True)]
    offset = mg.Offset(extent[1] // 2 - padding[1], extent[0] // 2 - padding[0])
    arguments = {
        "kernel_width": kernel[1],
        "kernel_height": kernel[0],
        "stride_in_pixels_x": stride[1],
        "stride_in_pixels_y": stride[0],
    }
    return arguments, offset, (2, *size, channels)


@pytest.mark.parametrize("case", CASES, ids=NAMES)
@pytest.mark.parametrize("record", [False, True], ids=["searched", "recorded"])
@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
def test_max(case, record, ties):
    height, width, channels, kernel, stride, padding, dilation = case
    arguments, offset, size = window_of(case)
    generator = np.random.default_rng(2)
    shape = (2, height, width, channels)
    x = (generator.integers(-2, 2, shape) if ties else generator.standard_normal(shape)).astype(np.float32)
    rates = {"dilation_rate_x": dilation[1], "dilation_rate_y": dilation[0]}
    forward = mg.DilatedPoolingMax(**arguments, **rates, record_maxima=record)
    forward.edge_mode = mg.EdgeMode.CLAMP
    y, g, dx = run(forward, mg.DilatedPoolingMaxGradient(**arguments, **rates), x, offset, size)
    expected, expected_dx = with_gradient(
        lambda t: torch.nn.functional.max_pool2d(t, kernel, stride, padding, dilation), x, g
    )
    np.testing.assert_array_equal(y, expected)
    _, magnitude = with_gradient(
        lambda t: torch.nn.functional.max_pool2d(t, kernel, stride, padding, dilation), x, np.abs(g)
    )
    assert_within(dx, expected_dx, error_bound(np.float32, kernel[0] * kernel[1], magnitude, expected_dx))


@pytest.mark.parametrize("case", CASES[:4], ids=NAMES[:4])
@pytest.mark.parametrize("include_padding", [False, True])
def test_average(case, include_padding):
    height, width, channels, kernel, stride, padding, _ = case
    arguments, offset, size = window_of(case)
    x = np.random.default_rng(3).standard_normal((2, height, width, channels)).astype(np.float32)
    forward = mg.PoolingAverage(**arguments)
    forward.edge_mode = mg.EdgeMode.CLAMP
    if include_padding:
        forward.zero_pad_size_y, forward.zero_pad_size_x = padding
    y, g, dx = run(forward, mg.PoolingAverageGradient(**arguments), x, offset, size)

    def average(t):
        return torch.nn.functional.avg_pool2d(t, kernel, stride, padding, count_include_pad=include_padding)

    taps = kernel[0] * kernel[1]
    expected, expected_dx = with_gradient(average, x, g)
    magnitude, _ = with_gradient(average, np.abs(x), None)
    assert_within(y, expected, error_bound(np.float32, taps, magnitude, expected))
    _, magnitude = with_gradient(average, x, np.abs(g))
    assert_within(dx, expected_dx, error_bound(np.float32, taps, magnitude, expected_dx))


@pytest.mark.parametrize("case", CASES[:4], ids=NAMES[:4])
def test_l2_norm(case):
    height, width, channels, kernel, stride, padding, _ = case
    arguments, offset, size = window_of(case)
    x = np.random.default_rng(4).standard_normal((2, height, width, channels)).astype(np.float32)
    y, g, dx = run(mg.PoolingL2Norm(**arguments), mg.PoolingL2NormGradient(**arguments), x, offset, size)
    taps = kernel[0] * kernel[1]

    def norm(t):
        return (torch.nn.functional.avg_pool2d(t * t, kernel, stride, padding) * taps).sqrt()

    expected, expected_dx = with_gradient(norm, x, g)
    assert_within(y, expected, error_bound(np.float32, taps, expected, expected))
    where = {"kernel": kernel, "stride": stride, "offset": (offset.y, offset.x)}
    magnitude = reference.pooling_l2_norm_gradient(np.abs(g), np.abs(x), **where)
    assert_within(dx, expected_dx, error_bound(np.float32, 2 * taps, magnitude, expected_dx))
