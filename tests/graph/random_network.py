"""Random networks, drawn as lists of operations, as nodes of a graph, in float64 with error bounds, and in PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import bounded
import numpy as np
from bounded import Bounded
from hypothesis import strategies as st

import mpsgrad as mg

IMAGES, SIZE, CHANNELS = 2, 4, 3
LARGEST_SIZE, MOST_CHANNELS = 8, 24
SLOPE = 0.25
STOPS = [False, False, False, True, False, False]
SCALES = (0.5, -1.5)
MEAN_SQUARED = mg.LossDescriptor("mean_squared_error", "sum")


@dataclass(frozen=True)
class Operation:
    """What makes an image of those with the numbers ``sources``; ``outputs`` are a convolution's channels."""

    kind: str
    sources: tuple[int, ...]
    size: int
    channels: int
    stops_gradient: bool = False


@dataclass
class Network:
    """Image 0 is the source, image i + 1 the result of operation i; the images ``losses`` are compared with labels."""

    operations: list[Operation]
    losses: list[int]
    seed: int
    source: np.ndarray = field(init=False)
    weights: dict[int, tuple[np.ndarray, np.ndarray]] = field(init=False)
    labels: list[np.ndarray] = field(init=False)

    def __post_init__(self) -> None:
        random = np.random.default_rng(self.seed)

        def normal(*shape: int) -> np.ndarray:
            return random.standard_normal(shape).astype(np.float32)

        self.source = normal(IMAGES, SIZE, SIZE, CHANNELS)
        self.weights = {
            number: (normal(each.channels, 3, 3, self.channels(each.sources[0])) / 4, normal(each.channels))
            for number, each in enumerate(self.operations, 1)
            if each.kind == "convolution"
        }
        extents = [(self.size(image), self.channels(image)) for image in self.losses]
        self.labels = [normal(IMAGES, size, size, channels) for size, channels in extents]

    def size(self, image: int) -> int:
        return self.operations[image - 1].size if image else SIZE

    def channels(self, image: int) -> int:
        return self.operations[image - 1].channels if image else CHANNELS


@st.composite
def networks(draw: Any) -> Network:
    """Of 2 to 9 operations with 1 to 3 losses; each reads images before it that fit, some many times."""
    extents = [(SIZE, CHANNELS)]
    operations: list[Operation] = []
    for _ in range(draw(st.integers(2, 9))):
        first = draw(st.integers(max(0, len(extents) - 4), len(extents) - 1))
        size, channels = extents[first]
        alike = [image for image, each in enumerate(extents) if each == extents[first]]
        as_large = [image for image, each in enumerate(extents) if each[0] == size]
        kinds = ["convolution", "concatenation", "add", "multiply", "tanh", "sigmoid", "leaky", "soft_max"]
        kinds += ["pooling_max", "pooling_average"] if size % 2 == 0 else []
        kinds += ["upsampling"] if 2 * size <= LARGEST_SIZE else []
        kinds += ["spatial_mean", "convolution", "concatenation"] if size > 1 else []
        kind = draw(st.sampled_from(kinds))
        sources: tuple[int, ...] = (first,)
        if kind == "convolution":
            channels = draw(st.integers(1, 5))
        elif kind in ("add", "multiply"):
            sources = (first, draw(st.sampled_from(alike)))
        elif kind == "concatenation":
            others = draw(st.lists(st.sampled_from(as_large), min_size=1, max_size=2))
            sources = (first, *others)
            channels = sum(extents[image][1] for image in sources)
            if channels > MOST_CHANNELS:
                sources, channels = (first,), extents[first][1]
        elif kind in ("pooling_max", "pooling_average"):
            size //= 2
        elif kind == "upsampling":
            size *= 2
        elif kind == "spatial_mean":
            size = 1
        operations.append(Operation(kind, sources, size, channels, draw(st.sampled_from(STOPS))))
        extents.append((size, channels))
    last = len(operations)
    losses = {last, *draw(st.lists(st.integers(1, last), max_size=2))}
    return Network(operations, sorted(losses), draw(st.integers(0, 2**32 - 1)))


class Nodes:
    """The network as nodes, with a backward pass; states of convolutions are exported."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.images = [mg.ImageNode("x")]
        self.convolutions: dict[int, mg.ConvolutionNode] = {}
        for number, each in enumerate(network.operations, 1):
            node = self._node(number, each)
            node.result_image.stop_gradient = each.stops_gradient
            self.images.append(node.result_image)
        labels = [mg.ImageNode(f"labels {index}") for index in range(len(network.losses))]
        predictions = [self.images[image] for image in network.losses]
        self.takes_labels_as_states = len(labels) == 1
        if self.takes_labels_as_states:
            self.loss: mg.FilterNode = mg.LossNode(predictions[0], descriptor=MEAN_SQUARED)
            self.ends = self.loss.training_graph()
            return
        losses = [
            mg.ForwardLossNode(prediction, label, descriptor=MEAN_SQUARED)
            for prediction, label in zip(predictions, labels, strict=True)
        ]
        self.loss = losses[0]
        for other in losses[1:]:
            self.loss = mg.AdditionNode(self.loss.result_image, other.result_image)
        self.ends = self.loss.training_graph(mg.InitialGradientNode(self.loss.result_image).result_image)

    def _node(self, number: int, each: Operation) -> mg.FilterNode:
        sources = [self.images[image] for image in each.sources]
        match each.kind:
            case "convolution":
                made = mg.ConvolutionNode(
                    sources[0], mg.ConvolutionDataSource.from_arrays(*self.network.weights[number])
                )
                assert made.result_state is not None
                made.result_state.export_from_graph = True
                self.convolutions[number] = made
                return made
            case "tanh":
                return mg.NeuronTanHNode(sources[0])
            case "sigmoid":
                return mg.NeuronSigmoidNode(sources[0])
            case "leaky":
                return mg.NeuronReLUNode(sources[0], a=SLOPE)
            case "soft_max":
                return mg.SoftMaxNode(sources[0])
            case "add":
                return mg.AdditionNode(*sources, primary_scale=SCALES[0], secondary_scale=SCALES[1])
            case "multiply":
                return mg.MultiplicationNode(*sources)
            case "concatenation":
                return mg.ConcatenationNode(sources)
            case "pooling_max":
                return mg.PoolingMaxNode(sources[0], 2)
            case "pooling_average":
                return mg.PoolingAverageNode(sources[0], 2)
            case "upsampling":
                return mg.UpsamplingNearestNode(sources[0])
            case _:
                return mg.ReductionSpatialMeanNode(sources[0])

    def encode(self, graph: mg.Graph) -> tuple[list[Any], list[Any], Any]:
        """Needed results and exported images, exported states, and the labels that got the loss, if they are states."""
        given: dict[Any, np.ndarray] = {"x": self.network.source}
        given |= {f"labels {index}": array for index, array in enumerate(self.network.labels)}
        sources = [mg.Image.from_array(given[handle]) for handle in graph.source_image_handles]
        labels = [mg.LossLabels.from_array(self.network.labels[0])] if graph.source_states else []
        made: list[Any] = []
        states: list[Any] = []
        with mg.CommandBuffer() as commands:
            first = graph.encode(commands, sources, labels, intermediate_images=made, destination_states=states)
        return ([] if first is None else [first]) + made, states, labels[0] if labels else None


@dataclass
class Results:
    """What a network computes: images, losses, and gradients for the source, weights and biases where there are any."""

    images: list[Any]
    losses: list[Any]
    gradients: dict[int, Any]
    weights: dict[int, tuple[Any, Any]]


def analysed(network: Network) -> Results:
    """The float64 references, one after the other and back, with bounds for float32."""
    images = [Bounded.exact(network.source)]
    for number, each in enumerate(network.operations, 1):
        images.append(_forward(network, number, each, [images[image] for image in each.sources]))
    parts: dict[int, list[Bounded]] = {}
    losses = []
    for image, labels in zip(network.losses, network.labels, strict=True):
        loss, gradient = bounded.squared_error(images[image], labels)
        losses.append(loss)
        parts.setdefault(image, []).append(gradient)
    weights: dict[int, tuple[Bounded, Bounded]] = {}
    for number in range(len(network.operations), 0, -1):
        each = network.operations[number - 1]
        if number not in parts or each.stops_gradient:
            continue
        gradient = bounded.total(parts[number])
        sources = [images[image] for image in each.sources]
        if each.kind == "convolution":
            made, *of_parameters = bounded.convolution_gradients(gradient, sources[0], network.weights[number][0])
            weights[number] = (of_parameters[0], of_parameters[1])
            gradients = [made]
        else:
            gradients = _backward(each, gradient, sources, images[number])
        for image, made in zip(each.sources, gradients, strict=True):
            parts.setdefault(image, []).append(made)
    return Results(images, losses, {0: bounded.total(parts[0])} if 0 in parts else {}, weights)


def _forward(network: Network, number: int, each: Operation, sources: list[Bounded]) -> Bounded:
    match each.kind:
        case "convolution":
            return bounded.convolution(sources[0], *network.weights[number])
        case "tanh" | "sigmoid":
            return bounded.smooth(each.kind, sources[0])
        case "leaky":
            return bounded.leaky(sources[0], SLOPE)
        case "add":
            return bounded.total(sources, SCALES)
        case "multiply":
            return bounded.bilinear(np.multiply, *sources, terms=1)
        case "concatenation":
            return bounded.concatenation(sources)
        case _:
            return getattr(bounded, each.kind)(sources[0])


def _backward(each: Operation, gradient: Bounded, sources: list[Bounded], result: Bounded) -> list[Bounded]:
    match each.kind:
        case "tanh" | "sigmoid":
            return [bounded.smooth_gradient(each.kind, gradient, sources[0])]
        case "leaky":
            return [bounded.leaky_gradient(gradient, sources[0], SLOPE)]
        case "soft_max":
            return [bounded.soft_max_gradient(gradient, result)]
        case "add":
            return [bounded.total([gradient], [scale]) for scale in SCALES]
        case "multiply":
            return [bounded.bilinear(np.multiply, gradient, other, 1) for other in sources[::-1]]
        case "concatenation":
            return bounded.concatenation_gradients(gradient, [source.value.shape[3] for source in sources])
        case "pooling_max":
            return [bounded.pooling_max_gradient(gradient, sources[0])]
        case "pooling_average":
            return [bounded.pooling_average_gradient(gradient)]
        case "upsampling":
            return [bounded.upsampling_gradient(gradient)]
        case _:
            return [bounded.spatial_mean_gradient(gradient, sources[0].value.shape[1])]


def by_pytorch(torch: Any, network: Network) -> Results:
    """PyTorch's autograd in float64, N x H x W x C."""
    functional = torch.nn.functional

    def parameter(array: np.ndarray, *order: int) -> Any:
        return torch.tensor(array.astype(np.float64).transpose(order)).requires_grad_()

    source = parameter(network.source, 0, 3, 1, 2)
    images = [source]
    weights = {
        number: (parameter(kernel, 0, 3, 1, 2), parameter(biases, 0))
        for number, (kernel, biases) in network.weights.items()
    }
    for number, each in enumerate(network.operations, 1):
        read = [images[image] for image in each.sources]
        x = read[0]
        match each.kind:
            case "convolution":
                made = functional.conv2d(x, *weights[number], padding=1)
            case "leaky":
                made = functional.leaky_relu(x, SLOPE)
            case "soft_max":
                made = torch.softmax(x, 1)
            case "add":
                made = SCALES[0] * x + SCALES[1] * read[1]
            case "multiply":
                made = x * read[1]
            case "concatenation":
                made = torch.cat(read, 1)
            case "pooling_max":
                made = functional.max_pool2d(x, 2)
            case "pooling_average":
                made = functional.avg_pool2d(x, 2)
            case "upsampling":
                made = functional.interpolate(x, scale_factor=2)
            case "spatial_mean":
                made = x.mean((2, 3), keepdim=True)
            case _:
                made = getattr(torch, each.kind)(x)
        images.append(made.detach() if each.stops_gradient else made)

    losses = []
    for image, labels in zip(network.losses, network.labels, strict=True):
        targets = torch.tensor(labels.astype(np.float64).transpose(0, 3, 1, 2))
        losses.append(((images[image] - targets) ** 2).sum((1, 2, 3), keepdim=True))
    whole = sum(loss.sum() for loss in losses)
    if whole.requires_grad:
        whole.backward()

    def array(tensor: Any) -> np.ndarray:
        return tensor.detach().numpy().transpose(0, 2, 3, 1)

    return Results(
        [array(image) for image in images],
        [array(loss) for loss in losses],
        {} if source.grad is None else {0: array(source.grad)},
        {
            number: (array(kernel.grad), biases.grad.numpy())
            for number, (kernel, biases) in weights.items()
            if kernel.grad is not None
        },
    )
