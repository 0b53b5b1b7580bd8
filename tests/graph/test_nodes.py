"""Every node: the graph's result and gradients are those of its kernels encoded by hand, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad import mps

SHAPE = (2, 6, 6, 4)
RANDOM = np.random.default_rng(1)


def values(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


WEIGHTS = mg.ConvolutionDataSource.from_arrays(0.2 * values(5, 3, 3, 4), values(5), stride=(2, 2))
WHOLE = mg.ConvolutionDataSource.from_arrays(0.1 * values(3, 6, 6, 4), values(3))
TURNED = mg.ConvolutionDataSource.from_arrays(0.2 * values(3, 2, 2, 4), values(3), stride=(2, 2))
GAMMA = mg.BatchNormalizationDataSource.from_arrays(values(4), values(4), epsilon=1e-3)
INSTANCE = mg.InstanceNormalizationDataSource.from_arrays(values(4), values(4), epsilon=1e-3)
GROUP = mg.GroupNormalizationDataSource.from_arrays(2, values(4), values(4), epsilon=1e-3)
WINDOW = {"kernel_width": 3, "kernel_height": 3, "stride_in_pixels_x": 2, "stride_in_pixels_y": 2}
SCALE = {"scale_factor_x": 2, "scale_factor_y": 3}
SPREAD = {"secondary_stride_in_pixels_x": 0, "secondary_stride_in_pixels_y": 0}
CROPS = {"resize_width": 3, "resize_height": 5, "regions": [(0.1, 0.2, 0.5, 0.9), (0.8, 0, -0.8, 1)]}
NODE_LRN = {"alpha": 1.0, "beta": 5.0, "delta": 1.0}
"""With what nodes of these normalizations begin."""
LRN = {"alpha": 0.7, "beta": 0.6, "delta": 1.2}


def clamped(kernel: Any) -> Any:
    kernel.edge_mode = mg.EdgeMode.CLAMP
    return kernel


def with_properties(kernel: Any, **properties: Any) -> Any:
    for name, value in properties.items():
        setattr(kernel, name, value)
    return kernel


@dataclass
class Case:
    """A node of one source image, the kernel that it stands for, and that of its gradient."""

    node: Callable[[mg.ImageNode], mg.FilterNode]
    kernel: Callable[[], Any]
    gradient: Callable[[], Any]
    source: np.ndarray = field(default_factory=lambda: values(*SHAPE))


def neuron(name: str, **arguments: Any) -> Case:
    node_class, kernel_class = getattr(mg, f"Neuron{name}Node"), getattr(mg, f"Neuron{name}")
    descriptor = kernel_class(**arguments).neuron_descriptor
    return Case(
        lambda x: node_class(x, **arguments),
        lambda: kernel_class(**arguments),
        lambda: mg.NeuronGradient(descriptor),
        np.abs(values(*SHAPE)) + np.float32(0.1),
    )


def reduction(name: str) -> Case:
    gradient = mg.ReductionSpatialMeanGradient if name == "SpatialMean" else mg.ReduceGradient
    kernel = mg.ReductionSpatialMean if name == "SpatialMean" else getattr(mg, f"Reduce{name}")
    return Case(getattr(mg, f"Reduction{name}Node"), kernel, gradient)


GELU = mg.NeuronDescriptor(mg.NeuronType.GELU)
SLOPES = np.array([0.1, -0.2, 0.3, 0.4], np.float32)
CASES = {
    "convolution": Case(
        lambda x: mg.ConvolutionNode(x, WEIGHTS),
        lambda: mg.Convolution(WEIGHTS),
        lambda: mg.ConvolutionGradient(WEIGHTS),
    ),
    "valid_convolution": Case(
        lambda x: mg.ConvolutionNode(x, WEIGHTS, padding_policy=mg.VALID_ONLY),
        lambda: with_properties(mg.Convolution(WEIGHTS), padding=mg.VALID_ONLY),
        lambda: mg.ConvolutionGradient(WEIGHTS),
    ),
    "fully_connected": Case(
        lambda x: mg.FullyConnectedNode(x, WHOLE),
        lambda: mg.FullyConnected(WHOLE),
        lambda: mg.FullyConnectedGradient(WHOLE),
    ),
    "convolution_transpose": Case(
        lambda x: mg.ConvolutionTransposeNode(x, TURNED),
        lambda: mg.ConvolutionTranspose(TURNED),
        lambda: mg.ConvolutionTransposeGradient(TURNED),
    ),
    "pooling_max": Case(
        lambda x: mg.PoolingMaxNode(x, 3, 2),
        lambda: clamped(mg.PoolingMax(**WINDOW)),
        lambda: mg.PoolingMaxGradient(**WINDOW),
    ),
    "dilated_pooling_max": Case(
        lambda x: mg.DilatedPoolingMaxNode(x, 2, 1, dilation_rate_x=2, dilation_rate_y=2),
        lambda: clamped(mg.DilatedPoolingMax(kernel_width=2, kernel_height=2, dilation_rate_x=2, dilation_rate_y=2)),
        lambda: mg.DilatedPoolingMaxGradient(kernel_width=2, kernel_height=2, dilation_rate_x=2, dilation_rate_y=2),
    ),
    "pooling_average": Case(
        lambda x: mg.PoolingAverageNode(x, **WINDOW),
        lambda: clamped(mg.PoolingAverage(**WINDOW)),
        lambda: mg.PoolingAverageGradient(**WINDOW),
    ),
    "pooling_l2_norm": Case(
        lambda x: mg.PoolingL2NormNode(x, 2),
        lambda: clamped(mg.PoolingL2Norm(kernel_width=2, kernel_height=2, stride_in_pixels_x=2, stride_in_pixels_y=2)),
        lambda: mg.PoolingL2NormGradient(kernel_width=2, kernel_height=2, stride_in_pixels_x=2, stride_in_pixels_y=2),
    ),
    "absolute": neuron("Absolute"),
    "elu": neuron("ELU", a=0.7),
    "exponential": neuron("Exponential", a=0.5, b=0.1, c=2.0),
    "hard_sigmoid": neuron("HardSigmoid", a=0.3, b=0.4),
    "linear": neuron("Linear", a=2.0, b=-1.0),
    "logarithm": neuron("Logarithm", a=1.5, b=0.2),
    "power": neuron("Power", a=1.5, b=0.2, c=2.5),
    "relu": neuron("ReLU", a=0.1),
    "relun": neuron("ReLUN", a=0.1, b=0.9),
    "sigmoid": neuron("Sigmoid"),
    "soft_plus": neuron("SoftPlus", a=0.5, b=2.0),
    "soft_sign": neuron("SoftSign"),
    "tanh": neuron("TanH", a=0.5, b=2.0),
    "prelu": neuron("PReLU", data=SLOPES),
    "gelu": Case(mg.NeuronGeLUNode, lambda: mg.Neuron(GELU), lambda: mg.NeuronGradient(GELU)),
    "neuron": Case(lambda x: mg.NeuronNode(x, GELU), lambda: mg.Neuron(GELU), lambda: mg.NeuronGradient(GELU)),
    "cross_channel_normalization": Case(
        lambda x: mg.CrossChannelNormalizationNode(x, kernel_size=3, **LRN),
        lambda: with_properties(mg.CrossChannelNormalization(3), **LRN),
        lambda: with_properties(mg.CrossChannelNormalizationGradient(3), **LRN),
    ),
    "spatial_normalization": Case(
        lambda x: mg.SpatialNormalizationNode(x, kernel_width=3, kernel_height=3, **LRN),
        lambda: with_properties(mg.SpatialNormalization(kernel_width=3, kernel_height=3), **LRN),
        lambda: with_properties(mg.SpatialNormalizationGradient(kernel_width=3, kernel_height=3), **LRN),
    ),
    "local_contrast_normalization": Case(
        lambda x: mg.LocalContrastNormalizationNode(x, kernel_width=3, kernel_height=3, p0=0.9),
        lambda: with_properties(mg.LocalContrastNormalization(kernel_width=3, kernel_height=3), p0=0.9, **NODE_LRN),
        lambda: with_properties(
            mg.LocalContrastNormalizationGradient(kernel_width=3, kernel_height=3), p0=0.9, **NODE_LRN
        ),
    ),
    "instance_normalization": Case(
        lambda x: mg.InstanceNormalizationNode(x, INSTANCE),
        lambda: mg.InstanceNormalization(INSTANCE),
        mg.InstanceNormalizationGradient,
    ),
    "group_normalization": Case(
        lambda x: mg.GroupNormalizationNode(x, GROUP),
        lambda: mg.GroupNormalization(GROUP),
        mg.GroupNormalizationGradient,
    ),
    "dropout": Case(
        lambda x: mg.DropoutNode(x, keep_probability=0.7, seed=3),
        lambda: mg.Dropout(0.7, seed=3),
        lambda: mg.DropoutGradient(0.7, seed=3),
    ),
    "upsampling_nearest": Case(
        lambda x: mg.UpsamplingNearestNode(x, **SCALE),
        lambda: mg.UpsamplingNearest(**SCALE),
        lambda: mg.UpsamplingNearestGradient(**SCALE),
    ),
    "upsampling_bilinear": Case(
        lambda x: mg.UpsamplingBilinearNode(x, **SCALE, align_corners=True),
        lambda: mg.UpsamplingBilinear(**SCALE, align_corners=True),
        lambda: mg.UpsamplingBilinearGradient(**SCALE),
    ),
    "bilinear_scale": Case(
        lambda x: mg.BilinearScaleNode(x, resize_width=4, resize_height=9),
        lambda: mg.ResizeBilinear(resize_width=4, resize_height=9),
        lambda: mg.ResizeBilinearGradient(resize_width=4, resize_height=9),
    ),
    "reshape": Case(
        lambda x: mg.ReshapeNode(x, reshaped_width=4, reshaped_height=4, reshaped_feature_channels=9),
        lambda: with_properties(mg.Reshape(), reshaped_width=4, reshaped_height=4, reshaped_feature_channels=9),
        mg.ReshapeGradient,
    ),
    "gram_matrix": Case(
        lambda x: mg.GramMatrixCalculationNode(x, alpha=0.5),
        lambda: mg.GramMatrixCalculation(0.5),
        mg.GramMatrixCalculationGradient,
    ),
    "slice": Case(
        lambda x: mg.SliceNode(
            x, offset=(1, 2, 0), clip_rect=((0, 0, 0), (4, 9, 9)), source_feature_channel_offset=4,
            source_feature_channel_max_count=3,
        ),
        lambda: with_properties(
            mg.Slice(), offset=(1, 2, 0), clip_rect=((0, 0, 0), (4, 9, 9)), source_feature_channel_offset=4,
            source_feature_channel_max_count=3,
        ),
        mg.SliceGradient,
        values(2, 6, 6, 8),
    ),
    "crop_and_resize": Case(
        lambda x: mg.CropAndResizeBilinearNode(x, **CROPS, aligns_channels=True),
        lambda: mg.CropAndResizeBilinear(**CROPS, aligns_channels=True),
        mg.CropAndResizeBilinearGradient,
    ),
    "pad": Case(
        lambda x: mg.PadNode(x, (1, 2, 3), (2, 0, 1), edge_mode=mg.EdgeMode.MIRROR),
        lambda: with_properties(mg.Pad((1, 2, 3), (2, 0, 1)), edge_mode=mg.EdgeMode.MIRROR),
        mg.PadGradient,
    ),
    "soft_max": Case(mg.SoftMaxNode, mg.SoftMax, mg.SoftMaxGradient),
    "log_soft_max": Case(mg.LogSoftMaxNode, mg.LogSoftMax, mg.LogSoftMaxGradient),
    **{
        f"reduction_{name}": reduction(name)
        for name in (
            "SpatialMean",
            *(f"{axis}{how}" for axis in ("Row", "Column", "FeatureChannels") for how in ("Min", "Max", "Mean", "Sum")),
        )
    },
}


@pytest.mark.parametrize("name", CASES)
def test_a_node_and_its_gradient_are_their_kernels(name: str) -> None:
    case = CASES[name]
    x, incoming = mg.ImageNode("x"), mg.ImageNode("gradient")
    # A node before and one behind, so that the graph plans the memory of what the node reads and writes.
    before = mg.NeuronLinearNode(x, a=1.0)
    node = case.node(before.result_image)
    gradient = node.gradient_filter(incoming)
    assert node.gradient_filters([incoming])[0].inference_node is node
    behind = mg.NeuronLinearNode(gradient.result_image, a=1.0)
    graph = mg.Graph([behind, node])
    assert graph.source_image_handles == ["x", "gradient"]
    kernel, gradient_kernel = case.kernel(), case.gradient()
    takes_the_result = isinstance(gradient_kernel, mg.SoftMaxGradient)
    for attempt in range(2):
        source = mg.Image.from_array(case.source)
        with mg.CommandBuffer() as commands:
            expected, state = kernel.encode(commands, source, return_state=True)
        ones = mg.Image.from_array(values(*expected.shape))
        with mg.CommandBuffer() as commands:
            image = expected if takes_the_result else source
            expected_gradient = gradient_kernel.encode(commands, ones, image, state)
        made: list[mg.Image] = []
        with mg.CommandBuffer() as commands:
            result = graph.encode(commands, [source, ones], intermediate_images=made)
        np.testing.assert_array_equal(np.asarray(made[0]), np.asarray(expected), err_msg=f"attempt {attempt}")
        np.testing.assert_array_equal(np.asarray(result), np.asarray(expected_gradient))


@pytest.mark.parametrize("name", [name for name in CASES if isinstance(CASES[name].kernel(), mg.Neuron)])
def test_neurons_and_their_gradients_say_which_function_they_are(name: str) -> None:
    case = CASES[name]
    node = case.node(mg.ImageNode())
    expected = case.kernel().neuron_descriptor
    for each in node, node.gradient_filter(mg.ImageNode()):
        found = each.neuron_descriptor
        for part in ("neuron_type", "a", "b", "c"):
            assert getattr(found, part) == getattr(expected, part), part
        np.testing.assert_array_equal(found.data, expected.data)


def test_every_node_of_one_image_is_in_the_table() -> None:
    missing = {
        name
        for name in mg.graph.__all__
        if isinstance(kind := getattr(mg.graph, name), type)
        and issubclass(kind, mg.UnaryNode)
        and getattr(kind, "gradient_class", None) is not None
        and "kernel_class" in vars(kind)
    } - {type(case.node(mg.ImageNode())).__name__ for case in CASES.values()}
    assert missing == {"BatchNormalizationNode"}


def test_batch_normalization_measures_the_batch_where_it_is_trained() -> None:
    x, incoming = mg.ImageNode("x"), mg.ImageNode("gradient")
    node = mg.BatchNormalizationNode(x, GAMMA)
    gradient = node.gradient_filter(incoming)
    inference = mg.Graph(node)
    assert node.result_state is not None
    node.result_state.export_from_graph = True
    graph = mg.Graph([gradient, node])
    source, ones = mg.Image.from_array(values(*SHAPE)), mg.Image.from_array(values(*SHAPE))
    kernel, statistics = mg.BatchNormalization(GAMMA), mg.BatchNormalizationStatistics()
    statistics_gradient, kernel_gradient = mg.BatchNormalizationStatisticsGradient(), mg.BatchNormalizationGradient()
    with mg.CommandBuffer() as commands:
        state = kernel.result_state(source)
        statistics.encode_batch(commands, source.batch_representation(), state)
        expected = kernel.encode(commands, source, batch_normalization_state=state)
        statistics_gradient.encode_batch(commands, ones.batch_representation(), source.batch_representation(), state)
        expected_gradient = kernel_gradient.encode(commands, ones, source, state)
        inferred = kernel.encode(commands, source)
    made: list[mg.Image] = []
    states: list[mg.BatchNormalizationState] = []
    with mg.CommandBuffer() as commands:
        result = graph.encode(commands, [source, ones], intermediate_images=made, destination_states=states)
        from_data_source = inference.encode(commands, [source])
    for one, other in (
        (made[0], expected),
        (result, expected_gradient),
        (from_data_source, inferred),
        (states[0].gradient_for_gamma, state.gradient_for_gamma),
        (states[0].gradient_for_beta, state.gradient_for_beta),
        (states[0].mean, state.mean),
    ):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


ARITHMETIC = {
    "addition": (mg.AdditionNode, mg.Add, mg.AddGradient, {"primary_scale": 0.5, "secondary_scale": 3.0}),
    "subtraction": (mg.SubtractionNode, mg.Subtract, mg.SubtractGradient, {"secondary_scale": 3.0, "bias": 1.0}),
    "multiplication": (mg.MultiplicationNode, mg.Multiply, mg.MultiplyGradient, {"primary_scale": 0.5}),
    "division": (mg.DivisionNode, mg.Divide, mg.DivideGradient, {"secondary_scale": 0.5}),
    "spread": (mg.MultiplicationNode, mg.Multiply, mg.MultiplyGradient, SPREAD),
}


@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_gives_both_gradients(name: str) -> None:
    node_class, kernel_class, gradient_class, properties = ARITHMETIC[name]
    other_shape = (2, 1, 1, 4) if name == "spread" else SHAPE
    x, y, incoming = mg.ImageNode("x"), mg.ImageNode("y"), mg.ImageNode("gradient")
    node = node_class(x, y, **properties)
    with pytest.raises(NotImplementedError, match="gradient_filters"):
        node.gradient_filter(incoming)
    gradients = node.gradient_filters(incoming)
    assert [each.is_secondary_source_filter for each in gradients] == [False, True]
    assert [each.inference_source for each in gradients] == [x, y]
    graph = mg.Graph([*gradients, node])
    arrays = {"x": values(*SHAPE), "y": values(*other_shape) + 3, "gradient": values(*SHAPE)}
    images = {handle: mg.Image.from_array(array) for handle, array in arrays.items()}
    kernel = with_properties(kernel_class(), **properties)
    kernels = [gradient_class.of(kernel, is_secondary_source_filter=which) for which in (False, True)]
    made: list[mg.Image] = []
    with mg.CommandBuffer() as commands:
        expected, state = kernel.encode(commands, images["x"], images["y"], return_state=True)
        sources = [images["x"], images["y"]]
        by_hand = [
            each.encode(commands, images["gradient"], sources[which ^ each.takes_the_other_image], state)
            for which, each in enumerate(kernels)
        ]
        result = graph.encode(
            commands, [images[handle] for handle in graph.source_image_handles], intermediate_images=made
        )
    for one, other in zip([result, *made], [*by_hand, expected], strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


@pytest.mark.parametrize("settings", [{}, {"mean": True}, {"do_weighted_sum_by_non_zero_weights": True}])
def test_a_weighted_reduction_gives_both_gradients(settings: dict[str, bool]) -> None:
    x, w, incoming = mg.ImageNode("x"), mg.ImageNode("w"), mg.ImageNode("gradient")
    of_sum = {name: value for name, value in settings.items() if name != "mean"}
    node: Any
    if settings.get("mean"):
        node, kernel = mg.ReductionFeatureChannelsAndWeightsMeanNode(x, w), mg.ReduceFeatureChannelsAndWeightsMean()
    else:
        node = mg.ReductionFeatureChannelsAndWeightsSumNode(x, w, **of_sum)
        kernel = mg.ReduceFeatureChannelsAndWeightsSum(**of_sum)
    gradients = node.gradient_filters(incoming)
    if of_sum:
        assert node.gradient_filter(incoming).inference_source is x
    else:
        with pytest.raises(NotImplementedError, match="a gradient for each of its 2 source images"):
            node.gradient_filter(incoming)
    assert [each.inference_source for each in gradients] == ([x] if of_sum else [x, w])
    graph = mg.Graph([*gradients, node])
    arrays = {"x": values(*SHAPE), "w": np.maximum(values(*SHAPE), 0), "gradient": values(*SHAPE[:3], 1)}
    images = {handle: mg.Image.from_array(array) for handle, array in arrays.items()}
    made: list[mg.Image] = []
    with mg.CommandBuffer() as commands:
        expected, state = kernel.encode(commands, images["x"], images["w"], return_state=True)
        by_hand = [
            mg.ReduceFeatureChannelsAndWeightsGradient(is_secondary_source_filter=which).encode(
                commands, images["gradient"], images["x" if which else "w"], state
            )
            for which in (False, True)[: len(gradients)]
        ]
        result = graph.encode(
            commands, [images[handle] for handle in graph.source_image_handles], intermediate_images=made
        )
    for one, other in zip([result, *made], [*by_hand, expected], strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


@pytest.mark.parametrize("aligns_channels", [False, True])
def test_concatenation_gives_slices(aligns_channels: bool) -> None:
    nodes = [mg.ImageNode(name) for name in "abc"]
    arrays = [values(2, 3, 3, channels) for channels in (7, 11, 2)]
    incoming = mg.ImageNode("gradient")
    node = mg.ConcatenationNode(nodes, aligns_channels=aligns_channels)
    with pytest.raises(NotImplementedError, match="gradient_filters"):
        node.gradient_filter(incoming)
    gradients = node.gradient_filters(incoming)
    graph = mg.Graph([node, *gradients])
    starts = (0, 8, 20) if aligns_channels else (0, 7, 18)
    total = 24 if aligns_channels else 20
    gradient = values(2, 3, 3, total)
    images = {handle: mg.Image.from_array(each) for handle, each in zip("abc", arrays, strict=True)}
    images["gradient"] = mg.Image.from_array(gradient)
    made: list[mg.Image] = []
    with mg.CommandBuffer() as commands:
        result = graph.encode(
            commands, [images[handle] for handle in graph.source_image_handles], intermediate_images=made
        )
    joined = np.asarray(result)
    assert joined.shape == (2, 3, 3, total)
    for start, array, part in zip(starts, arrays, made, strict=True):
        stop = start + array.shape[3]
        np.testing.assert_array_equal(joined[..., start:stop], array)
        np.testing.assert_array_equal(np.asarray(part), gradient[..., start:stop])


def test_a_transposed_convolution_lines_up_with_the_convolution_it_undoes() -> None:
    x = mg.ImageNode("x")
    forward = mg.ConvolutionDataSource.from_arrays(values(4, 2, 2, 3), stride=(2, 2))
    down = mg.ConvolutionNode(x, forward)
    up = mg.ConvolutionTransposeNode(
        down.result_image, TURNED, convolution_gradient_state=down.convolution_gradient_state
    )
    source = mg.Image.from_array(values(2, 5, 7, 3))
    kernel, transposed = mg.Convolution(forward), mg.ConvolutionTranspose(TURNED)
    with mg.CommandBuffer() as commands:
        result = mg.Graph(up).encode(commands, [source])
        small, state = kernel.encode(commands, source, return_state=True)
        expected = transposed.encode(commands, small, state)
    assert result is not None and result.shape == (2, 5, 7, 3)
    np.testing.assert_array_equal(np.asarray(result), np.asarray(expected))


@pytest.mark.parametrize("with_weights", [False, True])
def test_a_forward_loss_gives_gradients_for_prediction_and_labels(with_weights: bool) -> None:
    descriptor = mg.LossDescriptor("mean_squared_error", "mean")
    shape = (3, 2, 2, 5)
    arrays = {name: values(*shape) for name in ("y", "t", "w")}
    images = {name: mg.Image.from_array(array) for name, array in arrays.items()}
    y, t, w = mg.ImageNode("y"), mg.ImageNode("t"), mg.ImageNode("w")
    loss = mg.ForwardLossNode(y, t, w if with_weights else None, descriptor=descriptor)
    start = mg.InitialGradientNode(loss.result_image)
    assert loss.gradient_filter(start.result_image).inference_source is y
    both = loss.gradient_filters(start.result_image)
    assert [each.inference_source for each in both] == [y, t]
    graph = mg.Graph([loss, *both])
    forward, backward = mg.ForwardLoss(descriptor), mg.LossGradient(descriptor)
    of_labels = mg.LossGradient(descriptor, compute_label_gradients=True)
    weights = images["w"] if with_weights else None
    made: list[mg.Image] = []
    with mg.CommandBuffer() as commands:
        expected, state = forward.encode(commands, images["y"], images["t"], weights, return_state=True)
        ones = mg.InitialGradient().encode(commands, expected)
        by_hand = [
            each.encode(commands, ones, images["y"], images["t"], weights, state) for each in (backward, of_labels)
        ]
        result = graph.encode(
            commands, [images[handle] for handle in graph.source_image_handles], intermediate_images=made
        )
    for one, other in zip([result, *made], [expected, *by_hand], strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def test_the_loss_of_an_object_detector_starts_the_backward_pass() -> None:
    descriptor = mg.YOLOLossDescriptor([(1, 2), (2, 1)])
    x = mg.ImageNode("x")
    node = mg.YOLOLossNode(mg.NeuronLinearNode(x, a=2.0).result_image, descriptor=descriptor)
    (last,) = node.training_graph()
    source, numbers = mg.Image.from_array(values(2, 3, 4, 12)), np.abs(values(2, 3, 4, 12))
    labels = [mg.LossLabels.from_array(numbers) for _ in range(2)]
    with mg.CommandBuffer() as commands:
        result = mg.Graph(last).encode(commands, [source], [labels[0]])
        doubled = mg.NeuronLinear(a=2.0).encode(commands, source)
        expected = mg.YOLOLoss(descriptor).encode(commands, doubled, labels[1])
    assert result is not None and expected is not None
    np.testing.assert_array_equal(np.asarray(result), 2 * np.asarray(expected))
    np.testing.assert_array_equal(np.array(labels[0].loss_image), np.array(labels[1].loss_image))


WITHOUT_GRADIENT: dict[str, Callable[[mg.ImageNode], mg.FilterNode]] = {
    "argument": mg.ReductionFeatureChannelsArgumentMaxNode,
    "comparison": lambda x: mg.ComparisonNode(x, x),
    "loss": lambda x: mg.LossNode(x, descriptor=mg.LossDescriptor("huber")),
    "yolo_loss": lambda x: mg.YOLOLossNode(x, descriptor=mg.YOLOLossDescriptor([(1, 1)])),
    "initial_gradient": mg.InitialGradientNode,
    "gradient": lambda x: mg.NeuronReLUNode(x).gradient_filter(mg.ImageNode()),
}


@pytest.mark.parametrize("name", WITHOUT_GRADIENT)
def test_nodes_without_a_gradient_say_so(name: str) -> None:
    node = WITHOUT_GRADIENT[name](mg.ImageNode())
    for method in (node.gradient_filter, node.gradient_filters):
        with pytest.raises(NotImplementedError, match=type(node).__name__):
            method(mg.ImageNode())


def test_bases_of_nodes_name_what_derives_from_them() -> None:
    with pytest.raises(NotImplementedError, match="UnaryNode: is the base of other nodes .*; make one of .*PadNode"):
        mg.graph.UnaryNode(mg.ImageNode())
    with pytest.raises(NotImplementedError, match="MPSNNScaleNode: .*; make one of MPSNNBilinearScaleNode"):
        mps.MPSNNScaleNode.nodeWithSource(mps.MPSNNImageNode.nodeWithHandle(None), outputSize=(3, 3, 1))


def test_wrong_arguments_of_nodes_are_named() -> None:
    image = mg.ImageNode()
    with pytest.raises(mg.FormatError, match="NeuronReLUNode: source image 0 is NeuronReLUNode.*pass its result_image"):
        mg.NeuronReLUNode(mg.NeuronReLUNode(image))  # type: ignore[arg-type]
    with pytest.raises(mg.FormatError, match="NeuronReLUNode: has no setting 'slope'; it has a"):
        mg.NeuronReLUNode(image, slope=1)
    with pytest.raises(mg.FormatError, match="PoolingMaxNode: kernel_width is missing"):
        mg.PoolingMaxNode(image)
    with pytest.raises(mg.FormatError, match=r"PoolingMaxNode: filter_size is \(2, 2\); it has to be an integer"):
        mg.PoolingMaxNode(image, (2, 2))  # type: ignore[arg-type]
    with pytest.raises(mg.GeometryError, match="2 gradients are given but the filter has 1 result"):
        mg.NeuronReLUNode(image).gradient_filters([image, image])
    with pytest.raises(mg.FormatError, match="source is NeuronReLUNode; it has to be an ImageNode; pass its"):
        mg.NeuronReLUNode(image).gradient_filter(mg.NeuronReLUNode(image))  # type: ignore[arg-type]
    with pytest.raises(mg.FormatError, match="gradient_state is None"):
        mg.NeuronGradientNode(image, image, None)  # type: ignore[arg-type]
    pooling = mg.PoolingAverageNode(image, 2, label="half")
    with pytest.raises(mg.FormatError, match="gradient_state is that of <PoolingAverageNode 'half'>.*for PoolingMax$"):
        mg.PoolingMaxGradientNode(image, image, pooling.result_state)  # type: ignore[arg-type]
    with pytest.raises(mg.FormatError, match="NeuronReLUNode.*node_handler is 3"):
        mg.NeuronReLUNode(image).training_graph(image, 3)  # type: ignore[arg-type]
    with pytest.raises(mg.GeometryError, match="sources is empty"):
        mg.ConcatenationNode([])
    with pytest.raises(mg.GeometryError, match="sources has 3 images; it has to have 2"):
        mg.AdditionNode.of_sources([image] * 3)
