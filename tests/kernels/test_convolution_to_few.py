"""Data gradients for few channels by their kernel for GPUs, on whatever device the tests have."""

from __future__ import annotations

from collections.abc import Iterator

import gpu_forms
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_convolution import Layer
from test_convolution_tiles import UNITS, forget_plans, kernels_of_transposed, layout, only_tiles  # noqa: F401
from test_convolution_variants import check_against_the_references, make, names

import mpsgrad as mg
from mpsgrad.kernels import convolution_tiles, convolution_to_few
from mpsgrad.kernels.convolution_geometry import ConvolutionGeometry
from mpsgrad.kernels.convolution_to_few import FEW_STEPS, MOST_LANES
from mpsgrad.testing import assert_within, batch_sizes


@pytest.fixture(scope="module", autouse=True)
def wherever_possible() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        gpu_forms.leave_unoptimized(patch, mg.default_device())
        patch.setattr(convolution_to_few, "FEW_STEPS", 1 << 20)
        patch.setattr(convolution_to_few, "MOST_LANES", dict.fromkeys(MOST_LANES, 1 << 20))
        forget_plans()
        yield
    forget_plans()


# (geometry, options, the channels and neighbouring taps of the kernel, or None for tiles)
KERNELS = [
    (((9, 19), 3, 64, (3, 3)), {"padding": (1, 1)}, "3_by_3"),
    (((20, 18), 3, 64, (7, 7)), {"padding": (3, 3), "stride": (2, 2)}, "3_by_4"),
    (((9, 11), 1, 36, (4, 2)), {}, "1_by_2"),
    (((13, 9), 4, 100, (5, 6)), {"padding": (2, 2), "stride": (1, 3)}, "4_by_2"),
    (((11, 17), 2, 32, (5, 9)), {"padding": (3, 4), "dilation": (3, 1)}, "2_by_3"),
    (((11, 17), 3, 32, (3, 3)), {"dilation": (1, 2)}, None),
    (((9, 11), 3, 50, (3, 3)), {}, "3_by_3_of_pairs"),
    (((9, 11), 5, 43, (3, 5)), {"padding": (1, 0), "stride": (2, 1)}, "5_by_3_of_singles"),
    (((9, 11), 7, 64, (3, 3)), {}, None),
    (((9, 11), 3, 28, (3, 3)), {}, None),
    (((9, 11), 6, 64, (3, 3)), {"groups": 2}, None),
]


@pytest.mark.parametrize(("arguments", "options", "expected"), KERNELS)
def test_each_kernel_against_the_references(arguments, options, expected):
    layer = make(*arguments, **options)
    name = names(layer)[1]
    assert name == f"to_few_{expected}" if expected else name.startswith("tiles")
    if expected:
        check_against_the_references(layer, runs=2)


@st.composite
def layers_from_few(draw: st.DrawFn) -> Layer:
    kernel = draw(st.integers(1, 7)), draw(st.integers(2, 11))
    stride = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    extent = kernel[0], kernel[1]
    size = draw(st.integers(1, 20)), draw(st.integers(1, 40))
    least = tuple(max(0, (e - n + 1) // 2) for e, n in zip(extent, size, strict=True))
    return make(
        size,
        draw(st.integers(1, 6)),
        draw(st.sampled_from([32, 40, 68, 33, 46, 57, 62, 63])),
        kernel,
        stride=stride,
        padding=(draw(st.integers(least[0], least[0] + 3)), draw(st.integers(least[1], least[1] + 3))),
        images=draw(batch_sizes()),
    )


@given(layers_from_few())
@settings(max_examples=5)
def test_random_layers_from_few_channels(layer):
    check_against_the_references(layer, runs=2)


def test_a_value_that_is_not_finite_reaches_its_window_alone():
    layer = make((12, 13), 3, 32, (3, 3), padding=(1, 1), images=1)
    layer.gradient[0, 5, 6, 7] = np.nan
    kernel, gradient_kernel = layer.convolution(), mg.ConvolutionGradient(layer.data_source())
    source, gradient = mg.Image.from_array(layer.source), mg.Image.from_array(layer.gradient)
    with mg.CommandBuffer() as commands:
        state = kernel.result_state(source, destination_image=gradient)
        result = gradient_kernel.encode(commands, gradient, source, state)
    dx = np.array(result)
    outside = np.ones(dx.shape, bool)
    outside[0, 4:7, 5:8] = False
    assert np.isnan(dx[~outside]).all()
    assert_within(dx[outside], layer.expected_data[outside], layer.data_bound[outside])


def test_a_transposed_convolution_to_few_adds_its_biases(monkeypatch):
    kernels = kernels_of_transposed(monkeypatch, convolution_to_few, "plan_gradient", 64)
    assert kernels == ["convolution_to_few_3_by_2"]


# (images, size of the source, window, stride, channels of the gradient, whether the kernel is faster than tiles)
CHOICES = [
    (32, 128, 3, 1, 64, True),
    (64, 224, 7, 2, 64, True),
    (1, 32, 3, 1, 64, True),
    (1, 112, 7, 2, 64, False),
    (1, 56, 3, 1, 512, False),
    (16, 64, 3, 1, 512, True),
    (64, 17, 5, 1, 36, False),
    (7, 57, 3, 2, 36, True),
    (14, 111, 3, 1, 303, True),
    (1, 40, 3, 1, 213, False),
    (4, 517, 7, 3, 35, False),
]


@pytest.mark.parametrize(("images", "size", "kernel", "stride", "outputs", "is_chosen"), CHOICES)
def test_long_sums_of_few_pixels_and_idle_lanes_are_left_to_tiles(
    images, size, kernel, stride, outputs, is_chosen, monkeypatch
):
    monkeypatch.setattr(convolution_to_few, "FEW_STEPS", FEW_STEPS)
    monkeypatch.setattr(convolution_to_few, "MOST_LANES", MOST_LANES)
    forget_plans()
    source, gradient = layout(images, size, 3), layout(images, -(-size // stride), outputs)
    window = kernel, kernel, stride, stride, 1, 1, -(kernel // 2), -(kernel // 2)
    geometry = ConvolutionGeometry(source, gradient, window)
    plan = convolution_tiles.plan_gather(geometry, True, "float", "nvidia", UNITS)
    assert plan is not None and plan.kernel.startswith("convolution_to_few") == is_chosen
    forget_plans()
