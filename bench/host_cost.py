"""What one encode costs the host: Python's part, and everything up to the end of the wait, on a tiny image."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import mpsgrad as mg
from mpsgrad.kernels.reduction import WITH_GRADIENT

REPEATS = 20
SHAPE = (1, 2, 2, 4)


@dataclass(frozen=True)
class HostCost:
    """Microseconds, medians. ``encode``: one call of a kernel's encode. ``run``: encode, commit and wait, alone."""

    encode: float
    run: float


Encode = Callable[[mg.CommandBuffer], Any]
"""Adds one op on a tiny image to a command buffer."""


@dataclass(frozen=True)
class TinyOp:
    """A kernel class and an encode of it. ``prepare`` is encoded before each, and not measured."""

    name: str
    encode: Encode
    prepare: Encode = lambda commands: None


def host_cost(op: TinyOp, device: mg.Device, samples: int) -> HostCost:
    """The cost of the encode of ``op``."""
    encodes, runs = [], []
    for _ in range(samples + 1):
        commands = mg.CommandBuffer(device)
        spent = 0.0
        for _ in range(REPEATS):
            op.prepare(commands)
            started = time.perf_counter()
            op.encode(commands)
            spent += time.perf_counter() - started
        encodes.append(spent / REPEATS)
        commands.commit()
        commands.wait_until_completed()
        spent = 0.0
        for _ in range(REPEATS):
            with mg.CommandBuffer(device) as commands:
                op.prepare(commands)
            started = time.perf_counter()
            with mg.CommandBuffer(device) as commands:
                op.encode(commands)
            spent += time.perf_counter() - started
        runs.append(spent / REPEATS)
    return HostCost(float(np.median(encodes[1:])) * 1e6, float(np.median(runs[1:])) * 1e6)


def tiny_ops(device: mg.Device) -> Iterator[TinyOp]:
    """An op for each kernel class."""
    source = mg.Image.from_array(np.ones(SHAPE, np.float32), device)
    channels = SHAPE[3]
    window: dict[str, Any] = {"kernel_width": 2, "kernel_height": 2, "device": device}
    twice: dict[str, Any] = {"scale_factor_x": 2, "scale_factor_y": 2, "device": device}
    size: dict[str, Any] = {"resize_width": 3, "resize_height": 3, "device": device}
    weights = np.ones((channels, 1, 1, channels), np.float32)
    data = mg.ConvolutionDataSource.from_arrays(weights, np.ones(channels, np.float32))
    whole = np.ones((channels, *SHAPE[1:]), np.float32)
    fully = mg.ConvolutionDataSource.from_arrays(whole, np.ones(channels, np.float32))
    descriptor = mg.NeuronDescriptor(mg.NeuronType.SIGMOID)
    for forward, gradient in (
        (mg.SoftMax(device=device), mg.SoftMaxGradient(device=device)),
        (mg.LogSoftMax(device=device), mg.LogSoftMaxGradient(device=device)),
        (mg.PoolingMax(record_maxima=True, **window), mg.PoolingMaxGradient(**window)),
        (mg.DilatedPoolingMax(**window), mg.DilatedPoolingMaxGradient(**window)),
        (mg.PoolingAverage(**window), mg.PoolingAverageGradient(**window)),
        (mg.PoolingL2Norm(**window), mg.PoolingL2NormGradient(**window)),
        (mg.Neuron(descriptor, device=device), mg.NeuronGradient(descriptor, device=device)),
        (mg.GramMatrixCalculation(device=device), mg.GramMatrixCalculationGradient(device=device)),
        (mg.Slice(device=device), mg.SliceGradient(device=device)),
        (_reshape(device), mg.ReshapeGradient(device=device)),
        (mg.Pad((1, 1, 0), (1, 1, 0), device=device), mg.PadGradient(device=device)),
        (mg.ReductionSpatialMean(device=device), mg.ReductionSpatialMeanGradient(device=device)),
        *((kind(device=device), mg.ReduceGradient(device=device)) for kind in WITH_GRADIENT[:-1]),
        *_normalizations(channels, device),
        (mg.Dropout(0.5, device=device), mg.DropoutGradient(0.5, device=device)),
        (mg.UpsamplingNearest(**twice), mg.UpsamplingNearestGradient(**twice)),
        (mg.UpsamplingBilinear(**twice), mg.UpsamplingBilinearGradient(**twice)),
        (mg.ResizeBilinear(**size), mg.ResizeBilinearGradient(**size)),
        (
            mg.CropAndResizeBilinear(**size, regions=[(0, 0, 1, 1), (0.25, 0.25, 0.5, 0.5)]),
            mg.CropAndResizeBilinearGradient(device=device),
        ),
        (mg.Convolution(data, device=device), mg.ConvolutionGradient(data, device=device)),
        (mg.ConvolutionTranspose(data, device=device), mg.ConvolutionTransposeGradient(data, device=device)),
        (mg.FullyConnected(fully, device=device), mg.FullyConnectedGradient(fully, device=device)),
    ):
        yield TinyOp(type(forward).__name__, _Call(forward.encode, source))
        with mg.CommandBuffer(device) as commands:
            result, state = forward.encode(commands, source, return_state=True)
        second = result if isinstance(forward, mg.SoftMax) else source
        incoming = mg.Image(result.descriptor, device)
        yield TinyOp(type(gradient).__name__, _Call(gradient.encode, incoming, second, state))
    for argument in (mg.ReduceFeatureChannelsArgumentMin, mg.ReduceFeatureChannelsArgumentMax):
        yield TinyOp(argument.__name__, _Call(argument(device=device).encode, source))
    yield from _concatenation(source, device)
    yield from _arithmetic(source, device)
    yield from _batch_normalization(source, device)
    yield from _loss_and_optimizer(source, device)


def _normalizations(channels: int, device: mg.Device) -> Iterator[tuple[Any, Any]]:
    """Kernels and gradient kernels of the normalizations that take one encode."""
    window: dict[str, Any] = {"kernel_width": 3, "kernel_height": 3, "device": device}
    instances = mg.InstanceNormalizationDataSource.from_arrays(number_of_feature_channels=channels, epsilon=1.0)
    groups = mg.GroupNormalizationDataSource.from_arrays(2, number_of_feature_channels=channels, epsilon=1.0)
    yield mg.InstanceNormalization(instances, device=device), mg.InstanceNormalizationGradient(device=device)
    yield mg.GroupNormalization(groups, device=device), mg.GroupNormalizationGradient(device=device)
    yield mg.CrossChannelNormalization(device=device), mg.CrossChannelNormalizationGradient(device=device)
    yield mg.SpatialNormalization(**window), mg.SpatialNormalizationGradient(**window)
    yield mg.LocalContrastNormalization(**window), mg.LocalContrastNormalizationGradient(**window)


class _Call:
    """A call of ``function`` with a command buffer and these arguments."""

    def __init__(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        self.function, self.arguments, self.named = function, arguments, named

    def __call__(self, commands: mg.CommandBuffer) -> Any:
        return self.function(commands, *self.arguments, **self.named)


def _reshape(device: mg.Device) -> mg.Reshape:
    kernel = mg.Reshape(device=device)
    kernel.reshaped_width, kernel.reshaped_height, kernel.reshaped_feature_channels = SHAPE[3], SHAPE[1], SHAPE[2]
    return kernel


def _concatenation(source: mg.Image, device: mg.Device) -> Iterator[TinyOp]:
    forward, gradient = mg.Concatenation(device=device), mg.ConcatenationGradient(device=device)
    yield TinyOp("Concatenation", _Call(forward.encode, [source, source]))
    with mg.CommandBuffer(device) as commands:
        result, state = forward.encode(commands, [source, source], return_state=True)
    yield TinyOp("ConcatenationGradient", _Call(gradient.encode, result, source, state))


def _arithmetic(source: mg.Image, device: mg.Device) -> Iterator[TinyOp]:
    yield TinyOp("Compare", _Call(mg.Compare(device=device).encode, source, source))
    for kind, gradient in (
        (mg.Add, mg.AddGradient),
        (mg.Subtract, mg.SubtractGradient),
        (mg.Multiply, mg.MultiplyGradient),
        (mg.Divide, mg.DivideGradient),
        (mg.ReduceFeatureChannelsAndWeightsSum, mg.ReduceFeatureChannelsAndWeightsGradient),
        (mg.ReduceFeatureChannelsAndWeightsMean, mg.ReduceFeatureChannelsAndWeightsGradient),
    ):
        forward = kind(device=device)
        yield TinyOp(kind.__name__, _Call(forward.encode, source, source))
        with mg.CommandBuffer(device) as commands:
            result, state = forward.encode(commands, source, source, return_state=True)
        yield TinyOp(gradient.__name__, _Call(gradient(device=device).encode, result, source, state))


def _batch_normalization(source: mg.Image, device: mg.Device) -> Iterator[TinyOp]:
    """A batch of one image each time: partial sums over ever larger batches are not what these kernels are for."""
    channels = source.feature_channels
    data = mg.BatchNormalizationDataSource.from_arrays(np.ones(channels, np.float32), np.ones(channels, np.float32))
    forward = mg.BatchNormalization(data, device=device)
    statistics = mg.BatchNormalizationStatistics(device=device)
    sums = mg.BatchNormalizationStatisticsGradient(device=device)
    state = forward.result_state(source)
    images = source.batch_representation()
    gradient = mg.BatchNormalizationGradient(device=device)

    measure = _Call(statistics.encode_batch, images, state)
    normalize = _Call(forward.encode, source, batch_normalization_state=state)
    add_up = _Call(sums.encode_batch, images, images, state)
    differentiate = _Call(gradient.encode, source, source, state)

    def prepare(*earlier: Encode) -> Encode:
        def begin_batch(commands: mg.CommandBuffer) -> None:
            state.reset()
            for encode in earlier:
                encode(commands)

        return begin_batch

    yield TinyOp("BatchNormalizationStatistics", measure, prepare())
    yield TinyOp("BatchNormalization", normalize, prepare(measure))
    yield TinyOp("BatchNormalizationStatisticsGradient", add_up, prepare(measure))
    yield TinyOp("BatchNormalizationGradient", differentiate, prepare(measure, add_up))


def _loss_and_optimizer(source: mg.Image, device: mg.Device) -> Iterator[TinyOp]:
    loss = mg.Loss(mg.LossDescriptor("softmax_cross_entropy"), device=device)
    yield TinyOp("Loss", _Call(loss.encode, source, mg.LossLabels.from_images(source)))
    boxes = mg.Image.from_array(np.ones((*SHAPE[:3], 6), np.float32), device)
    yolo_loss = mg.YOLOLoss(mg.YOLOLossDescriptor([(1, 1)]), device=device)
    yield TinyOp("YOLOLoss", _Call(yolo_loss.encode, boxes, mg.LossLabels.from_images(boxes)))
    forward = mg.ForwardLoss(loss.loss_descriptor, device=device)
    yield TinyOp("ForwardLoss", _Call(forward.encode, source, source))
    with mg.CommandBuffer(device) as commands:
        value = forward.encode(commands, source, source)
    yield TinyOp("InitialGradient", _Call(mg.InitialGradient(device=device).encode, value))
    gradient = mg.LossGradient(loss.loss_descriptor, device=device)
    yield TinyOp("LossGradient", _Call(gradient.encode, value, source, source))
    optimizer = mg.OptimizerStochasticGradientDescent(mg.OptimizerDescriptor(), device=device)
    vectors = {
        "input_gradient_vector": mg.Vector(4, device),
        "input_values_vector": mg.Vector(4, device),
        "input_momentum_vector": mg.Vector(4, device),
        "result_values_vector": mg.Vector(4, device),
    }
    yield TinyOp("OptimizerStochasticGradientDescent", _Call(optimizer.encode, **vectors))
    adam = mg.OptimizerAdam(mg.OptimizerDescriptor(), device=device)
    yield TinyOp("OptimizerAdam", _Call(adam.encode, **vectors, input_velocity_vector=mg.Vector(4, device)))
    del vectors["input_momentum_vector"]
    root_mean_square = mg.OptimizerRMSProp(mg.OptimizerDescriptor(), device=device)
    squares = mg.Vector(4, device)
    yield TinyOp(
        "OptimizerRMSProp", _Call(root_mean_square.encode, **vectors, input_sum_of_squares_vector=squares)
    )


def host_costs(device: mg.Device, samples: int) -> dict[str, HostCost]:
    """The cost of each kernel class."""
    return {op.name: host_cost(op, device, samples) for op in tiny_ops(device)}
