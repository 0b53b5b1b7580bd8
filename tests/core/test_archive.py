"""Archives: every kernel class survives a round trip, and damage raises ArchiveError and nothing else."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from fake_device import FakeDevice

import mpsgrad as mg
from mpsgrad import archive
from mpsgrad.kernel import BaseKernel

RANDOM = np.random.default_rng(23)
WINDOW = {"kernel_width": 3, "kernel_height": 2, "stride_in_pixels_x": 2, "stride_in_pixels_y": 1}
SQUARE = {"kernel_width": 3, "kernel_height": 3}
DILATED = WINDOW | {"dilation_rate_x": 2, "dilation_rate_y": 3}


def array(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def with_values(kernel: Any, **properties: float) -> Any:
    for name, value in properties.items():
        setattr(kernel, name, value)
    return kernel


def weights(*shape: int, **keywords: Any) -> mg.ConvolutionDataSource:
    return mg.ConvolutionDataSource.from_arrays(array(*shape), array(shape[0]), **keywords)


def statistics() -> Any:
    return mg.BatchNormalizationDataSource.from_arrays(array(4), array(4), array(4), np.abs(array(4)) + 1)


SGD = mg.OptimizerDescriptor(0.25, 2.0, True, 3.0, -1.0, mg.RegularizationType.L2, 0.5)

KERNELS: dict[str, Any] = {
    "Add": lambda: mg.Add(records_clamp=True),
    "AddGradient": lambda: mg.AddGradient(is_secondary_source_filter=True),
    "Compare": mg.Compare,
    "Divide": lambda: mg.Divide(records_clamp=True),
    "DivideGradient": lambda: mg.DivideGradient(is_secondary_source_filter=True),
    "Multiply": lambda: mg.Multiply(records_clamp=True),
    "MultiplyGradient": lambda: mg.MultiplyGradient(is_secondary_source_filter=True),
    "Subtract": lambda: mg.Subtract(records_clamp=True),
    "SubtractGradient": lambda: mg.SubtractGradient(is_secondary_source_filter=True),
    "BatchNormalization": lambda: mg.BatchNormalization(statistics()),
    "BatchNormalizationGradient": lambda: mg.BatchNormalizationGradient(
        fused_neuron_descriptor=mg.NeuronDescriptor("relu", 0.5)
    ),
    "BatchNormalizationStatistics": mg.BatchNormalizationStatistics,
    "BatchNormalizationStatisticsGradient": mg.BatchNormalizationStatisticsGradient,
    "Concatenation": lambda: mg.Concatenation(aligns_channels=True),
    "ConcatenationGradient": lambda: mg.ConcatenationGradient(3),
    "Convolution": lambda: mg.Convolution(weights(4, 2, 3, 1, groups=2)),
    "ConvolutionGradient": lambda: mg.ConvolutionGradient(weights(4, 2, 3, 1, stride=(1, 2))),
    "ConvolutionTranspose": lambda: mg.ConvolutionTranspose(weights(4, 2, 3, 1, stride=(1, 2))),
    "ConvolutionTransposeGradient": lambda: mg.ConvolutionTransposeGradient(weights(4, 2, 3, 1, stride=(1, 2))),
    "DilatedPoolingMax": lambda: mg.DilatedPoolingMax(**DILATED, record_maxima=True),
    "DilatedPoolingMaxGradient": lambda: mg.DilatedPoolingMaxGradient(**DILATED),
    "ForwardLoss": lambda: mg.ForwardLoss(mg.LossDescriptor("huber", "mean", 0.5, delta=0.25)),
    "CropAndResizeBilinear": lambda: mg.CropAndResizeBilinear(
        resize_width=2, resize_height=3, regions=[(0, 0, 1, 1), (0.5, 0.25, -0.5, 2)], aligns_channels=True
    ),
    "CropAndResizeBilinearGradient": mg.CropAndResizeBilinearGradient,
    "CrossChannelNormalization": lambda: with_values(mg.CrossChannelNormalization(3), beta=0.75),
    "CrossChannelNormalizationGradient": lambda: with_values(mg.CrossChannelNormalizationGradient(3), alpha=0.5),
    "Dropout": lambda: mg.Dropout(0.25, seed=3, mask_stride_in_pixels=mg.Size(1, 0, 1)),
    "DropoutGradient": lambda: mg.DropoutGradient(0.25, seed=3, mask_stride_in_pixels=mg.Size(1, 0, 1)),
    "FullyConnected": lambda: mg.FullyConnected(weights(4, 2, 3, 1)),
    "FullyConnectedGradient": lambda: mg.FullyConnectedGradient(weights(4, 2, 3, 1)),
    "InitialGradient": mg.InitialGradient,
    "LogSoftMax": mg.LogSoftMax,
    "LogSoftMaxGradient": mg.LogSoftMaxGradient,
    "GroupNormalization": lambda: mg.GroupNormalization(
        mg.GroupNormalizationDataSource.from_arrays(2, array(4), array(4), epsilon=0.5)
    ),
    "GroupNormalizationGradient": mg.GroupNormalizationGradient,
    "InstanceNormalization": lambda: mg.InstanceNormalization(
        mg.InstanceNormalizationDataSource.from_arrays(array(4), array(4), label="norm")
    ),
    "InstanceNormalizationGradient": mg.InstanceNormalizationGradient,
    "LocalContrastNormalization": lambda: with_values(mg.LocalContrastNormalization(**SQUARE), alpha=1, p0=0.5, pm=1),
    "LocalContrastNormalizationGradient": lambda: with_values(
        mg.LocalContrastNormalizationGradient(**SQUARE), alpha=1, ps=2, delta=0.5
    ),
    "ResizeBilinear": lambda: mg.ResizeBilinear(resize_width=3, resize_height=2, align_corners=True),
    "ResizeBilinearGradient": lambda: mg.ResizeBilinearGradient(resize_width=3, resize_height=2, align_corners=True),
    "SpatialNormalization": lambda: with_values(mg.SpatialNormalization(**SQUARE), beta=0.75),
    "SpatialNormalizationGradient": lambda: with_values(mg.SpatialNormalizationGradient(**SQUARE), delta=2),
    "Loss": lambda: mg.Loss(
        mg.LossDescriptor("softmax_cross_entropy", "mean", 0.5, 0.1, 4), gradient_follows_reduction=True
    ),
    "LossGradient": lambda: mg.LossGradient(mg.LossDescriptor("log", epsilon=0.5), compute_label_gradients=True),
    "Neuron": lambda: mg.Neuron(mg.NeuronDescriptor("prelu", data=[0.25, 0.5])),
    "GramMatrixCalculation": lambda: mg.GramMatrixCalculation(0.5),
    "GramMatrixCalculationGradient": lambda: mg.GramMatrixCalculationGradient(0.25),
    "NeuronAbsolute": mg.NeuronAbsolute,
    "NeuronELU": lambda: mg.NeuronELU(0.5),
    "NeuronExponential": lambda: mg.NeuronExponential(0.5, 0.25, 2.0),
    "NeuronGradient": lambda: mg.NeuronGradient(mg.NeuronDescriptor("elu", 0.5)),
    "NeuronHardSigmoid": lambda: mg.NeuronHardSigmoid(0.25, 0.75),
    "NeuronLinear": lambda: mg.NeuronLinear(2.0, -1.0),
    "NeuronLogarithm": lambda: mg.NeuronLogarithm(0.5, 0.25, 2.0),
    "NeuronPReLU": lambda: mg.NeuronPReLU([0.25, 0.5, 0.75]),
    "NeuronPower": lambda: mg.NeuronPower(2.0, -1.0, 3.0),
    "NeuronReLU": lambda: mg.NeuronReLU(0.125),
    "NeuronReLUN": lambda: mg.NeuronReLUN(0.5, 4.0),
    "NeuronSigmoid": mg.NeuronSigmoid,
    "NeuronSoftPlus": lambda: mg.NeuronSoftPlus(2.0, 0.5),
    "NeuronSoftSign": mg.NeuronSoftSign,
    "NeuronTanH": lambda: mg.NeuronTanH(2.0, 0.5),
    "OptimizerAdam": lambda: mg.OptimizerAdam(SGD, beta1=0.5, beta2=0.75, epsilon=0.25, time_step=3),
    "OptimizerRMSProp": lambda: mg.OptimizerRMSProp(SGD, decay=0.5, epsilon=0.25),
    "OptimizerStochasticGradientDescent": lambda: mg.OptimizerStochasticGradientDescent(
        SGD, momentum_scale=0.75, use_nesterov_momentum=True
    ),
    "Pad": lambda: mg.Pad((1, 2, 3), (4, 5, 6), [0.5] * 9),
    "PadGradient": mg.PadGradient,
    "PoolingAverage": lambda: mg.PoolingAverage(**WINDOW),
    "PoolingAverageGradient": lambda: mg.PoolingAverageGradient(**WINDOW),
    "PoolingL2Norm": lambda: mg.PoolingL2Norm(**WINDOW),
    "PoolingL2NormGradient": lambda: mg.PoolingL2NormGradient(**WINDOW),
    "PoolingMax": lambda: mg.PoolingMax(**WINDOW),
    "PoolingMaxGradient": lambda: mg.PoolingMaxGradient(**WINDOW),
    "ReduceColumnMax": mg.ReduceColumnMax,
    "ReduceColumnMean": mg.ReduceColumnMean,
    "ReduceColumnMin": mg.ReduceColumnMin,
    "ReduceColumnSum": mg.ReduceColumnSum,
    "ReduceFeatureChannelsAndWeightsGradient": lambda: mg.ReduceFeatureChannelsAndWeightsGradient(
        is_secondary_source_filter=True
    ),
    "ReduceFeatureChannelsAndWeightsMean": mg.ReduceFeatureChannelsAndWeightsMean,
    "ReduceFeatureChannelsAndWeightsSum": lambda: mg.ReduceFeatureChannelsAndWeightsSum(True),
    "ReduceFeatureChannelsArgumentMax": mg.ReduceFeatureChannelsArgumentMax,
    "ReduceFeatureChannelsArgumentMin": mg.ReduceFeatureChannelsArgumentMin,
    "ReduceFeatureChannelsMax": mg.ReduceFeatureChannelsMax,
    "ReduceFeatureChannelsMean": mg.ReduceFeatureChannelsMean,
    "ReduceFeatureChannelsMin": mg.ReduceFeatureChannelsMin,
    "ReduceFeatureChannelsSum": mg.ReduceFeatureChannelsSum,
    "ReduceGradient": mg.ReduceGradient,
    "ReduceRowMax": mg.ReduceRowMax,
    "ReduceRowMean": mg.ReduceRowMean,
    "ReduceRowMin": mg.ReduceRowMin,
    "ReduceRowSum": mg.ReduceRowSum,
    "ReductionSpatialMean": mg.ReductionSpatialMean,
    "ReductionSpatialMeanGradient": mg.ReductionSpatialMeanGradient,
    "Reshape": mg.Reshape,
    "ReshapeGradient": mg.ReshapeGradient,
    "Slice": mg.Slice,
    "SliceGradient": mg.SliceGradient,
    "SoftMax": mg.SoftMax,
    "SoftMaxGradient": mg.SoftMaxGradient,
    "UpsamplingBilinear": lambda: mg.UpsamplingBilinear(scale_factor_x=2, scale_factor_y=1.5, align_corners=True),
    "UpsamplingBilinearGradient": lambda: mg.UpsamplingBilinearGradient(scale_factor_x=2, scale_factor_y=1.5),
    "UpsamplingNearest": lambda: mg.UpsamplingNearest(scale_factor_x=2, scale_factor_y=3),
    "UpsamplingNearestGradient": lambda: mg.UpsamplingNearestGradient(scale_factor_x=2, scale_factor_y=3),
    "YOLOLoss": lambda: mg.YOLOLoss(
        mg.YOLOLossDescriptor(
            [(1, 2), (3, 4)], mg.LossDescriptor("huber", delta=0.5), reduction_type="mean", rescore=False, scale_xy=3
        ),
        gradient_follows_reduction=True,
    ),
}
"""Each public kernel class with arguments that are not the defaults."""

ABSTRACT = {
    "HalfOfALoss",
    "Arithmetic",
    "ArithmeticGradient",
    "BinaryKernel",
    "ForwardKernel",
    "GradientKernel",
    "Kernel",
    "LossKernel",
    "NormalizationKernel",
    "Optimizer",
    "Pooling",
    "PoolingGradient",
    "Upsampling",
    "UpsamplingGradient",
    "ReduceBinary",
    "ReduceUnary",
}

each_kernel = pytest.mark.parametrize("name", KERNELS)


def test_every_public_kernel_class_is_in_the_table():
    public = {
        name
        for name, cls in BaseKernel.classes.items()
        if cls.__module__.startswith("mpsgrad.") and not name.startswith("_")
    }
    assert public - ABSTRACT == set(KERNELS), "add the class to KERNELS, with arguments that are not the defaults"
    assert ABSTRACT <= public


def configured(name: str) -> Any:
    """The kernel with a value of its own for every checked property."""
    kernel = KERNELS[name]()
    kernel.label = f"my {name}"
    kernel.options = mg.KernelOptions.VERBOSE
    changes = {
        "clip_rect": mg.Region(mg.Origin(1, 2, 0), mg.Size(3, 4, 5)),
        "destination_feature_channel_offset": 4,
        "padding": mg.DefaultPadding(mg.PaddingMethod.SIZE_FULL | mg.PaddingMethod.ALIGN_TOP_LEFT, label="full"),
        "offset": mg.Offset(1, -2, 0),
        "primary_offset": mg.Offset(3, -4, 0),
        "edge_mode": mg.EdgeMode.CLAMP,
        "secondary_edge_mode": mg.EdgeMode.CLAMP,
        "source_feature_channel_offset": 8,
        "source_feature_channel_max_count": 7,
        "secondary_source_feature_channel_max_count": 6,
        "kernel_offset_x": -3,
    }
    for attribute, value in changes.items():
        if hasattr(kernel, attribute):
            setattr(kernel, attribute, value)
    return kernel


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal: of one class and, for arrays and objects with fields, in every part."""
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if hasattr(one, "archive_fields"):
        return type(one) is type(other) and same(one.archive_fields(), other.archive_fields())
    return bool(one == other)


def description(kernel: Any) -> dict[str, Any]:
    """Everything that an archive has to keep."""
    arguments = header_of(archive.to_bytes(kernel))["arguments"]
    return {
        "class": type(kernel),
        "label": kernel.label,
        "arguments": {name: getattr(kernel, name) for name in arguments},
        "values": {name: getattr(kernel, name) for name in kernel._values},
        "further": kernel._archived_properties(),
    }


def header_of(data: bytes) -> dict[str, Any]:
    """The JSON object that describes the kernel of an archive."""
    length = int.from_bytes(data[:8], "little")
    return json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["mpsgrad.archive"])


@each_kernel
def test_every_kernel_survives_the_round_trip(name):
    for kernel in (KERNELS[name](), configured(name)):
        data = archive.to_bytes(kernel)
        restored = archive.from_bytes(data)
        assert same(description(restored), description(kernel))
        assert restored.device is mg.default_device()
        assert archive.to_bytes(restored) == data


@each_kernel
def test_every_kernel_is_restored_on_the_device_that_is_named(name):
    device = FakeDevice()
    assert archive.from_bytes(archive.to_bytes(KERNELS[name]()), device).device is device


def test_a_restored_kernel_gives_the_same_bits(tmp_path):
    kernel = mg.Convolution(weights(5, 3, 3, 4, stride=(2, 1)), label="first")
    archive.save(kernel, tmp_path / "kernel.mpsgrad")
    restored = archive.load(tmp_path / "kernel.mpsgrad")
    x = mg.Image.from_array(array(2, 7, 8, 4))
    with mg.CommandBuffer() as commands:
        results = [one.encode(commands, x) for one in (kernel, restored)]
    np.testing.assert_array_equal(*map(np.asarray, results))


def test_what_a_state_configured_is_not_taken_for_set_by_hand():
    convolution = mg.Convolution(weights(4, 3, 3, 4))
    gradient = mg.ConvolutionGradient(convolution.data_source)
    x, result = (mg.Image.from_array(array(1, 7, 7, 4)) for _ in range(2))
    for padding in (mg.VALID_ONLY, mg.SAME):
        restored = archive.from_bytes(archive.to_bytes(gradient))
        convolution.padding = padding
        with mg.CommandBuffer() as commands:
            y, state = convolution.encode(commands, x, return_state=True)
            wanted = gradient.encode(commands, y, x, state)
            restored.encode(commands, y, x, state, destination_gradient=result)
        np.testing.assert_array_equal(np.asarray(result), np.asarray(wanted))


def test_the_allocator_is_not_kept():
    kernel = mg.SoftMax()
    kernel.destination_image_allocator = mg.TemporaryImage.default_allocator()
    restored = archive.from_bytes(archive.to_bytes(kernel))
    assert restored.destination_image_allocator is mg.SoftMax.destination_image_allocator.default


@pytest.mark.parametrize(
    "padding",
    [
        mg.SAME,
        mg.VALID_ONLY,
        mg.ExplicitPadding(2, 3),
        mg.DefaultPadding.for_tensorflow_average_pooling(),
        mg.DefaultPadding.for_tensorflow_average_pooling_valid_only(),
    ],
)
def test_padding_policies_are_kept(padding):
    kernel = mg.PoolingAverage(**WINDOW)
    kernel.padding = padding
    restored = archive.from_bytes(archive.to_bytes(kernel))
    assert restored.padding == padding and type(restored.padding) is type(padding)


# what is no archive


def rewritten(kernel: Any, change) -> bytes:
    """The archive of ``kernel`` with its JSON header changed."""
    data = archive.to_bytes(kernel)
    header = header_of(data)
    change(header)
    return with_header(data, header)


def with_header(data: bytes, header: Any) -> bytes:
    return safetensors.numpy.save(safetensors.numpy.load(data), {"mpsgrad.archive": json.dumps(header)})


BAD = {
    "empty": (b"", "not an archive"),
    "text": (b"hello, this is no archive at all", "not an archive"),
    "a huge length": (b"\xff" * 7 + b"\x7f{}", "not an archive"),
    "another safetensors file": (safetensors.numpy.save({"x": np.zeros(3)}), "not an archive"),
    "a later version": (
        rewritten(mg.SoftMax(), lambda h: h.update(version=2)),
        "the archive has version 2; this package reads version 1",
    ),
    "an unknown class": (rewritten(mg.SoftMax(), lambda h: h.update({"class": "HardMax"})), "HardMax"),
    "a class that is no string": (
        rewritten(mg.SoftMax(), lambda h: h.update({"class": [1]})), "does not describe a kernel that can be made"
    ),
    "an unknown argument": (rewritten(mg.SoftMax(), lambda h: h["arguments"].update(k=3)), "SoftMax: k is no argument"),
    "a missing argument": (
        rewritten(mg.PoolingMax(**WINDOW), lambda h: h["arguments"].pop("kernel_width")), "kernel_width"
    ),
    "an argument out of range": (
        rewritten(mg.PoolingMax(**WINDOW), lambda h: h["arguments"].update(kernel_width=0)),
        "kernel_width is 0; it has to be at least 1",
    ),
    "an unknown property": (
        rewritten(mg.SoftMax(), lambda h: h["properties"].update(colour=3)), "SoftMax has no property 'colour'"
    ),
    "a private property": (
        rewritten(mg.SoftMax(), lambda h: h["properties"].update(__dict__=3)), "has no property '__dict__'"
    ),
    "a class that may not stand in an archive": (
        rewritten(mg.SoftMax(), lambda h: h["properties"].update(padding={"$object": ["Popen", ["ls"]]})), "Popen"
    ),
    "a missing tensor": (
        rewritten(mg.SoftMax(), lambda h: h["properties"].update(offset={"$array": "gone"})), "gone"
    ),
    "an unknown entry": (
        rewritten(mg.SoftMax(), lambda h: h["properties"].update(offset={"$call": 1})), "unknown entry"
    ),
    "a number too large for a float": (
        rewritten(
            mg.OptimizerStochasticGradientDescent(SGD), lambda h: h["arguments"].update(momentum_scale=10**400)
        ),
        "momentum_scale",
    ),
    "a loss type that there is not yet": (
        rewritten(
            mg.Loss(mg.LossDescriptor("softmax_cross_entropy")),
            lambda h: h["arguments"]["loss_descriptor"]["$object"][1].update(loss_type={"$object": ["LossType", 77]}),
        ),
        "77",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("data", "words"), BAD.values(), ids=BAD)
def test_what_is_no_archive_is_refused(data, words):
    with pytest.raises(mg.ArchiveError, match=words):
        archive.from_bytes(data)


def test_deeply_nested_json_is_refused():
    text = json.dumps({"__metadata__": {"mpsgrad.archive": "[" * 100_000}}).encode()
    for data in (len(text).to_bytes(8, "little") + text, (10**5).to_bytes(8, "little") + b"[" * 10**5):
        with pytest.raises(mg.ArchiveError, match="not an archive"):
            archive.from_bytes(data)


SAMPLES = ["Convolution", "Loss", "PoolingAverage"]


@pytest.mark.parametrize("name", SAMPLES)
def test_no_damage_raises_anything_but_archive_error(name):
    """Each byte in turn is inverted, has its lowest bit changed, is zeroed or left out, and ends the file."""
    device = FakeDevice()
    data = archive.to_bytes(configured(name))
    refused = restored = 0
    for position, byte in enumerate(data):
        before, behind = data[:position], data[position + 1 :]
        for damaged in (
            *(before + bytes([other]) + behind for other in {byte ^ 0xFF, byte ^ 1, byte ^ 4, 0} - {byte}),
            before + behind,
            before,
        ):
            try:
                archive.from_bytes(damaged, device)
                restored += 1
            except mg.ArchiveError:
                refused += 1
    assert refused > 2 * len(data), "truncated and shifted files are always refused"
    assert restored < len(data)


@pytest.mark.parametrize("name", SAMPLES)
def test_no_exchange_of_json_values_raises_anything_but_archive_error(name):
    """Every value of the header in turn is replaced by each of a list of others."""
    device = FakeDevice()
    others: list[Any] = [
        None, True, -1, 0, 3, 2**70, 10**400, 1.5, float("nan"), "", "x", [], [1, 2, 3], {}, {"a": 1},
        {"$tuple": []}, {"$tuple": 5}, {"$array": []}, {"$object": None}, {"$object": ["Size", {"width": "x"}]},
        {"$object": ["EdgeMode", 99]}, {"$object": ["Offset", [1, 2, 3]]}, {"$object": [[], {}]},
    ]  # fmt: skip
    data = archive.to_bytes(configured(name))
    count = 0
    for path in paths(header_of(data)):
        for other in others:
            header = header_of(data)
            place = header
            for step in path[:-1]:
                place = place[step]
            place[path[-1]] = other
            try:
                archive.from_bytes(with_header(data, header), device)
            except mg.ArchiveError:
                count += 1
    assert count > 100


def paths(value: Any, path: tuple[Any, ...] = ()):
    """The places of all values in nested JSON."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield from paths(part, (*path, key))


# classes of one's own


@archive.archivable
@dataclass(frozen=True)
class Recipe:
    """A dataclass in an archive."""

    taps: tuple[int, ...]
    scale: float = 1.0


@archive.archivable
class Grid:
    """A class that says itself what it is rebuilt from."""

    def __init__(self, values: np.ndarray, name: str) -> None:
        self.values, self.name = values, name

    def archive_fields(self) -> dict[str, Any]:
        return {"values": self.values, "name": self.name}


class Blend(mg.SoftMax):
    """A kernel of one's own."""

    def __init__(self, recipe: Any, *, grid: Any = None, device: Any = None, label: Any = None) -> None:
        super().__init__(device=device, label=label)
        self.recipe, self.grid = recipe, grid


def test_classes_of_ones_own_are_kept():
    kernel = Blend(Recipe((1, 2), 0.5), grid=Grid(array(2, 3), "g"), label="mine")
    restored = archive.from_bytes(archive.to_bytes(kernel))
    assert type(restored) is Blend and restored.recipe == Recipe((1, 2), 0.5) and restored.label == "mine"
    np.testing.assert_array_equal(restored.grid.values, kernel.grid.values)
    assert restored.grid.name == "g"


def test_what_is_not_archivable_is_refused_by_name():
    graph: Any = mg.Graph(mg.NeuronReLUNode(mg.ImageNode()).result_image)
    with pytest.raises(mg.ArchiveError, match="Graph cannot be saved, as it is no kernel; graphs are made"):
        archive.to_bytes(graph)
    with pytest.raises(mg.ArchiveError, match="Blend.recipe is a object, .* mark its class with .*archivable"):
        archive.to_bytes(Blend(object()))


def test_two_kernel_classes_of_one_name_are_refused():
    first = type("Twice", (mg.SoftMax,), {})()
    second = type("Twice", (mg.SoftMax,), {})()
    try:
        archive.to_bytes(second)
        with pytest.raises(mg.ArchiveError, match="Twice: another kernel class has the same name"):
            archive.to_bytes(first)
    finally:
        del BaseKernel.classes["Twice"]


def test_a_missing_device_is_not_called_damage(monkeypatch):
    def nothing() -> None:
        raise mg.DeviceNotFoundError("there is none")

    data = archive.to_bytes(mg.SoftMax())
    monkeypatch.setattr("mpsgrad.devices.default_device", nothing)
    with pytest.raises(mg.DeviceNotFoundError, match="there is none"):
        archive.from_bytes(data)
