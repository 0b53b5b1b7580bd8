"""Depthwise convolutions by the kernels for GPUs, on whatever device the tests have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from by_turns import by_turns
from hypothesis import given, settings
from hypothesis import strategies as st
from test_convolution import EDGES, Layer
from test_convolution_tiles import only_tiles  # noqa: F401
from test_convolution_variants import SINGLE, check_against_the_references, make, names

import mpsgrad as mg
from mpsgrad.kernels import convolution_depthwise, convolution_depthwise_weights, convolution_packing
from mpsgrad.kernels.convolution_geometry import ConvolutionGeometry
from mpsgrad.testing import batch_sizes, channel_formats

# (geometry, options, the kernels for result, data and weights)
KERNELS = [
    (((9, 11), 8, 8, (3, 3)), {"padding": (1, 1)}, ("3x3_by_4", "3x3_by_4", "by_4")),
    (((9, 11), 6, 6, (3, 3)), {"padding": (1, 1)}, ("3x3_by_1", "3x3_by_1", "of_runs_3x3")),
    (((1, 1), 36, 36, (3, 3)), {"padding": (1, 1)}, ("3x3_by_4", "3x3_by_4", "by_4")),
    (((12, 9), 36, 36, (3, 3)), {"padding": (0, 2)}, ("3x3_by_4", "3x3_by_4", "by_4")),
    (((9, 11), 8, 8, (3, 3)), {"padding": (1, 1), "stride": (2, 1)}, ("any_by_4", "any_by_4", "by_4")),
    (((9, 11), 8, 8, (3, 3)), {"padding": (2, 1), "dilation": (2, 1)}, ("any_by_4", "any_by_4", "by_4")),
    (((11, 13), 5, 5, (5, 4)), {"padding": (2, 2), "stride": (3, 2)}, ("any_by_1", "any_by_1", "by_1")),
    (((7, 6), 4, 4, (5, 5)), {"padding": (4, 4)}, ("5x5_by_4", "5x5_by_4", "of_runs_5x5")),
    (((7, 6), 5, 5, (5, 5)), {"padding": (2, 2)}, ("5x5_by_1", "5x5_by_1", "of_runs_5x5")),
    (((13, 9), 36, 36, (7, 7)), {"padding": (3, 3)}, ("7x7_by_4", "7x7_by_4", "of_runs_7x7")),
    (((13, 9), 4, 4, (7, 5)), {"padding": (3, 2)}, ("any_by_4", "any_by_4", "by_4")),
    (((7, 6), 36, 36, (1, 1)), {}, ("any_by_4", "any_by_4", "by_4")),
]


@pytest.mark.parametrize(("kernel", "dtype"), by_turns(KERNELS, [np.float32, np.float16], of=2))
def test_each_kernel_against_the_references(kernel, dtype):
    arguments, options, expected = kernel
    layer = make(*arguments, **options, groups=arguments[1], dtype=dtype)
    assert tuple(name.removeprefix("depthwise_") for name in names(layer)) == expected
    check_against_the_references(layer, runs=2)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(("offset", "extra", "width"), [(4, 4, 4), (4, 3, 1)])
def test_channels_of_wider_images(offset, extra, width, dtype):
    layer = make((6, 7), 8, 8, (3, 3), padding=(1, 1), groups=8, dtype=dtype)
    wide = np.full((*layer.source.shape[:3], offset + 8 + extra), 7, dtype)
    wide[..., offset : offset + 8] = layer.source
    kernel = layer.convolution()
    kernel.source_feature_channel_offset = offset
    result = mg.Image.from_array(np.zeros(layer.result_shape, dtype))
    commands = mg.CommandBuffer()
    kernel.encode(commands, mg.Image.from_array(wide), destination_image=result)
    (name,) = (d.function.name for d in commands._dispatches if d.function.name.startswith("convolution"))
    assert name == f"convolution_depthwise_3x3_by_{width}"
    commands.commit()
    mg.testing.assert_within(np.array(result), layer.expected, layer.forward_bound)


@st.composite
def depthwise_layers(draw: st.DrawFn) -> Layer:
    size = draw(st.integers(1, 11)), draw(st.integers(1, 11))
    kernel = draw(st.sampled_from([(3, 3), (1, 1), (2, 5), (5, 5), (4, 3)]))
    channels = draw(st.sampled_from([2, 3, 4, 8, 12, 33]))
    is_plain = draw(st.booleans())
    dilation = SINGLE if is_plain else (draw(st.integers(1, 2)), draw(st.integers(1, 3)))
    extent = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True))
    least = tuple(max(0, (e - n + 1) // 2) for e, n in zip(extent, size, strict=True))
    padding = draw(st.integers(least[0], least[0] + 2)), draw(st.integers(least[1], least[1] + 2))
    return make(
        size,
        channels,
        channels,
        kernel,
        groups=channels,
        stride=SINGLE if is_plain else (draw(st.integers(1, 3)), draw(st.integers(1, 3))),
        dilation=dilation,
        padding=padding,
        images=draw(batch_sizes()),
        edge=draw(st.sampled_from(sorted(EDGES))),
        dtype=draw(channel_formats()).dtype,
    )


@given(depthwise_layers())
@settings(max_examples=10)
def test_random_depthwise_layers(layer):
    check_against_the_references(layer, runs=2)


@pytest.mark.parametrize(("channels", "very_many"), [(8, 1 << 10), (37, 2)])
def test_many_splits_of_a_weight_gradient(channels, very_many, monkeypatch):
    monkeypatch.setattr(convolution_packing, "MANY_SPLITS", 2)
    monkeypatch.setattr(convolution_packing, "VERY_MANY_SPLITS", very_many)
    monkeypatch.setattr(convolution_depthwise, "THREADGROUPS_PER_UNIT", 64)
    monkeypatch.setattr(convolution_depthwise_weights, "THREADGROUPS_PER_UNIT", {3: 64})
    layer = make((19, 20), channels, channels, (3, 3), padding=(1, 1), groups=channels, images=3)
    kernel, gradient_kernel = layer.convolution(), mg.ConvolutionGradient(layer.data_source())
    gradient_kernel.gradient_option = mg.ConvolutionGradientOption.GRADIENT_WITH_WEIGHTS_AND_BIAS
    source, gradient = mg.Image.from_array(layer.source), mg.Image.from_array(layer.gradient)
    state = kernel.result_state(source, destination_image=gradient)
    commands = mg.CommandBuffer()
    gradient_kernel.encode(commands, gradient, source, state)
    name = "sum_of_very_many_splits" if very_many == 2 else "sum_of_many_splits"
    assert name in [d.function.name for d in commands._dispatches]
    commands.commit()
    layer.check_state(state)
    with mg.CommandBuffer() as commands:
        gradient_kernel.encode(commands, gradient, source, state)
    twice = replace(layer, source=np.concatenate([layer.source] * 2), gradient=np.concatenate([layer.gradient] * 2))
    twice.check_state(state)


def test_the_splits_of_a_weight_gradient_fill_a_gpu():
    layout = 0, 64, 56 * 64, 56 * 56 * 64, 56, 56, 64, 64
    geometry = ConvolutionGeometry(layout, layout, (3, 3, 1, 1, 1, 1, -1, -1), groups=64)
    plan = convolution_depthwise.plan_weights(geometry, False, 132)
    assert 2 * 132 <= plan.threadgroups <= 8 * 132
    small = 0, 64, 64, 64, 1, 1, 64, 1
    assert convolution_depthwise.plan_weights(replace(geometry, source=small, result=small), False, 132).splits == 1
