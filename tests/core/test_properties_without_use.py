"""What would have no effect is refused: properties that kernels inherit and do not read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpsgrad as mg

CLAMP = mg.EdgeMode.CLAMP
SHAPE = (2, 6, 4, 8)
WINDOW = {"kernel_width": 2, "kernel_height": 2, "stride_in_pixels_x": 2, "stride_in_pixels_y": 3}
REGIONS = [(0.0, 0.0, 0.5, 1.0)]
TWICE = {"scale_factor_x": 2.0, "scale_factor_y": 2.0}
CUT = mg.Region(mg.Origin(1, 0, 0), mg.Size())
OF_EVERY_GRADIENT: dict[str, Any] = {
    "primary_edge_mode": CLAMP,
    "primary_stride_in_pixels_x": 4,
    "primary_stride_in_pixels_y": 0,
    "secondary_stride_in_pixels_x": 0,
    "secondary_stride_in_pixels_y": 2,
}
KERNEL_OFFSET = {"kernel_offset_x": 1, "kernel_offset_y": -1}
SOURCE_OFFSET = {"secondary_offset": mg.Offset(0, 1, 0)}
SOURCE_EDGES = {"secondary_edge_mode": CLAMP}
OFFSETS = {"primary_offset": mg.Offset(1, 0, 0), **SOURCE_OFFSET}


def _reshape() -> mg.Reshape:
    kernel = mg.Reshape()
    kernel.reshaped_width, kernel.reshaped_height, kernel.reshaped_feature_channels = 8, 6, 4
    return kernel


def _data() -> mg.ConvolutionDataSource:
    return mg.ConvolutionDataSource.from_arrays(np.ones((4, 2, 2, 8), np.float32), stride=(3, 2))


def _of_images() -> mg.InstanceNormalization:
    return mg.InstanceNormalization(mg.InstanceNormalizationDataSource.from_arrays(np.ones(8, np.float32)))


GRADIENTS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "pooling": (lambda: mg.PoolingMax(**WINDOW), lambda: mg.PoolingMaxGradient(**WINDOW), KERNEL_OFFSET),
    "convolution": (lambda: mg.Convolution(_data()), lambda: mg.ConvolutionGradient(_data()), {}),
    "neuron": (mg.NeuronSigmoid, lambda: mg.NeuronGradient(mg.NeuronDescriptor("sigmoid")), KERNEL_OFFSET),
    "dropout": (lambda: mg.Dropout(0.5), lambda: mg.DropoutGradient(0.5), KERNEL_OFFSET | SOURCE_EDGES),
    "instance normalization": (_of_images, mg.InstanceNormalizationGradient, KERNEL_OFFSET | SOURCE_EDGES),
    "slice": (mg.Slice, mg.SliceGradient, KERNEL_OFFSET | SOURCE_EDGES | SOURCE_OFFSET),
    "reshape": (_reshape, mg.ReshapeGradient, KERNEL_OFFSET | SOURCE_EDGES | OFFSETS),
    "reduction": (mg.ReduceRowMax, mg.ReduceGradient, KERNEL_OFFSET | SOURCE_EDGES | OFFSETS),
    "gram matrix": (mg.GramMatrixCalculation, mg.GramMatrixCalculationGradient, KERNEL_OFFSET | SOURCE_EDGES | OFFSETS),
    "upsampling": (
        lambda: mg.UpsamplingNearest(**TWICE),
        lambda: mg.UpsamplingNearestGradient(**TWICE),
        KERNEL_OFFSET | SOURCE_EDGES | OFFSETS,
    ),
    "crop and resize": (
        lambda: mg.CropAndResizeBilinear(resize_width=2, resize_height=2, regions=REGIONS),
        mg.CropAndResizeBilinearGradient,
        KERNEL_OFFSET | SOURCE_EDGES | OFFSETS,
    ),
}


@pytest.mark.parametrize("family", GRADIENTS)
def test_a_gradient_kernel_refuses_what_it_does_not_read(family: str) -> None:
    make, make_gradient, further = GRADIENTS[family]
    x = mg.Image.from_array(np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32))
    dx = mg.Image(x.descriptor)
    with mg.CommandBuffer() as commands:
        y, state = make().encode(commands, x, return_state=True)
        for name, value in (OF_EVERY_GRADIENT | further).items():
            gradient = make_gradient()
            gradient.destination_image_descriptor([y, x], [state])
            setattr(gradient, name, value)
            with pytest.raises(NotImplementedError, match=f"{name} is "):
                gradient.encode(commands, y, x, state, destination_gradient=dx)
        gradient = make_gradient()
        for source in ("primary", "secondary"):
            setattr(gradient, f"{source}_stride_in_pixels_x", gradient._window[2])
            setattr(gradient, f"{source}_stride_in_pixels_y", gradient._window[3])
        gradient.encode(commands, y, x, state)


@pytest.mark.parametrize("is_secondary", [False, True])
def test_the_gradients_of_arithmetic_refuse_strides_of_the_incoming_gradient(is_secondary: bool) -> None:
    x = mg.Image.from_array(np.ones(SHAPE, np.float32))
    gradient = mg.AddGradient(is_secondary_source_filter=is_secondary)
    gradient.primary_stride_in_pixels_x = 0
    with mg.CommandBuffer() as commands:
        y, state = mg.Add().encode(commands, x, x, return_state=True)
        with pytest.raises(NotImplementedError, match="primary_stride_in_pixels_x is 0"):
            gradient.encode(commands, y, x, state)


@pytest.mark.parametrize(
    ("name", "value"),
    [("clip_rect", CUT), ("destination_feature_channel_offset", 4), ("padding", mg.ExplicitPadding(1, 1))],
)
def test_a_concatenation_refuses_what_it_does_not_read(name: str, value: Any) -> None:
    x = mg.Image.from_array(np.ones(SHAPE, np.float32))
    kernel = mg.Concatenation()
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, [x, x])
        setattr(kernel, name, value)
        with pytest.raises(NotImplementedError, match=f"{name} is "):
            kernel.encode(commands, [x, x])


@pytest.mark.parametrize("edge_mode", [mg.EdgeMode.ZERO, CLAMP])
def test_pointwise_gradients_read_outside_their_second_source_as_its_edge_mode_says(edge_mode: mg.EdgeMode) -> None:
    x, g = (np.random.default_rng(seed).standard_normal((1, 1, 3, 4)).astype(np.float32) for seed in (1, 2))
    ones = mg.Image.from_array(np.ones_like(x))
    kernels = (mg.NeuronPower(c=2.0), mg.NeuronGradient(mg.NeuronDescriptor("power", c=2.0))), (
        mg.SoftMax(),
        mg.SoftMaxGradient(),
    )
    source, incoming = mg.Image.from_array(x), mg.Image.from_array(g)
    results = []
    for forward, gradient in kernels:
        with mg.CommandBuffer() as commands:
            _, state = forward.encode(commands, ones, return_state=True)
            gradient.destination_image_descriptor([incoming, source], [state])
            gradient.secondary_offset = mg.Offset(1, 0, 0)
            gradient.secondary_edge_mode = edge_mode
            results.append(mg.Image(source.descriptor))
            gradient.encode(commands, incoming, source, state, destination_gradient=results[-1])
    read = np.take(x, [1, 2, 2], axis=2)
    if edge_mode is mg.EdgeMode.ZERO:
        read[:, :, 2] = 0
    np.testing.assert_allclose(np.asarray(results[0]), 2 * read * g, rtol=1e-6)
    np.testing.assert_allclose(
        np.asarray(results[1]), read * (g - (g * read).sum(-1, keepdims=True)), rtol=1e-5, atol=1e-6
    )
