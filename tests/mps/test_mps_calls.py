"""Programs in Apple's names: every method is called, and gives the bits that this package's own names give."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from small_calls import (
    CHANNELS,
    BatchStatistics,
    GammaAndBeta,
    Weights,
    image,
    labels_descriptor,
    loss_descriptor,
    made,
)

import mpsgrad as mg
from mpsgrad import mps
from mpsgrad.graph.repeated_run import RepeatedRun
from mpsgrad.mps.manifest import Declaration, Member, declarations
from mpsgrad.testing import channel_formats


def _usable(*, protocols: bool = False) -> list[Declaration]:
    return [
        each
        for each in declarations().values()
        if each.status.is_callable and not each.is_enumeration and each.is_protocol == protocols
    ]


CONSTRUCTORS = [
    pytest.param(each.name, member, id=f"{each.name}.{member.selector}")
    for each in _usable()
    if each.section != "graph"
    for member in each.members
    if member.is_method and member.is_constructor and member.status.is_callable and "Coder" not in member.selector
    if "inherited" not in member.annotations
    if member.kind.rstrip("?*") in ("instancetype", each.name) and "copy" not in member.name
]


def run(encode: Callable[[Any], Any]) -> Any:
    """What ``encode`` gives for a command buffer, which is then committed and completed."""
    commands = mps.MTLCommandQueue(mps.MTLCreateSystemDefaultDevice()).commandBuffer()
    result = encode(commands)
    commands.commit()
    commands.waitUntilCompleted()
    return result


def same(one: Any, other: Any) -> bool:
    """Whether two images or batches have equal bits."""
    return np.array_equal(np.asarray(one).view(np.uint8), np.asarray(other).view(np.uint8))


@pytest.mark.parametrize(("name", "member"), CONSTRUCTORS)
def test_every_class_is_made_by_apples_methods(name: str, member: Member) -> None:
    thing = made(name, member)
    assert isinstance(thing, getattr(mps, name)) or name == "MPSNNDefaultPadding"
    is_temporary = getattr(thing, "command_buffer", None) is not None
    for each in declarations()[name].members:
        if not each.is_property or not each.status.is_callable:
            continue
        if "array" in each.reason and is_temporary:
            with pytest.raises(mg.StateError, match="no CPU access"):
                getattr(thing, each.name)
            continue
        value = getattr(thing, each.name)
        if each.is_readonly or "fixed" in each.annotations:
            if each.call(None) != each.name:
                with pytest.raises(AttributeError):
                    setattr(thing, each.name, value)
        elif each.name != "readCount" or is_temporary:
            setattr(thing, each.name, value)


def _constructor(name: str) -> Member:
    """The longest of Apple's methods that make an object of class ``name``, of data sources if there are any."""
    declaration = declarations()[name]
    found = [each for each in declaration.members if each.is_constructor and each.status.is_callable]
    found = [each for each in found if "Coder" not in each.selector and "kernelWeights" not in each.selector]
    found = [each for each in found if "inherited" not in each.annotations]
    return max(found, key=lambda each: len(each.parameters)) if found else _constructor(declaration.extends or "")


def _kernel(name: str) -> Any:
    return made(name, _constructor(name))


def _python_kernel(kernel: Any) -> Any:
    """The same kernel as an object of this package's class, without Apple's names."""
    other = mg.archive.from_bytes(mg.archive.to_bytes(kernel))
    assert type(other).__module__.startswith("mpsgrad.kernels")
    return other


def _pairs() -> list[str]:
    """The forward kernels of one source whose gradient kernel has an Apple name, too."""
    names = []
    for each in _usable():
        forward, gradient = getattr(mps, each.name), getattr(mps, f"{each.name}Gradient", None)
        if issubclass(forward, mps.MPSCNNKernel) and each.name != "MPSCNNKernel" and gradient is not None:
            names.append(each.name)
    abstract_or_tested_below = ("Pooling", "Upsampling", "BatchNormalization", "Statistics", "Transpose", "Reshape")
    return [name for name in names if not name.endswith(abstract_or_tested_below)]


DATA_SOURCES = ("Convolution", "FullyConnected", "InstanceNormalization", "GroupNormalization")


def _twins(name: str) -> tuple[Any, Any]:
    """A kernel made by Apple's names and one of this package's class with the same configuration."""
    kernel = _kernel(name)
    ours = kernel.kernel_name
    if ours.removesuffix("Gradient") not in DATA_SOURCES or "Normalization" in ours and "Gradient" in ours:
        return kernel, _python_kernel(kernel)
    source = kernel.dataSource.to_ours()
    return kernel, getattr(mg, ours)(source)


@pytest.mark.parametrize("name", _pairs())
def test_a_forward_kernel_and_its_gradient_give_the_same_bits_by_both_names(name: str) -> None:
    shape = (2, 3, 3, CHANNELS) if name == "MPSCNNFullyConnected" else (2, 6, 8, CHANNELS)
    x = image(shape)
    forward, python_forward = _twins(name)
    gradient, python_gradient = _twins(f"{name}Gradient")

    def by_apples_names(commands: Any) -> Any:
        y, state = forward.encodeToCommandBuffer(commands, sourceImage=x, destinationStateIsTemporary=False)
        g = image(y.shape, seed=1)
        return y, gradient.encodeToCommandBuffer(commands, sourceGradient=g, sourceImage=x, gradientState=state)

    def by_our_names(commands: Any) -> Any:
        y, state = python_forward.encode(commands, x, return_state=True)
        return y, python_gradient.encode(commands, image(y.shape, seed=1), x, state)

    for one, other in zip(run(by_apples_names), run(by_our_names), strict=True):
        assert isinstance(one, mps.MPSImage) and same(one, other)


def test_batches_and_images_that_exist_already() -> None:
    batch = image((3, 6, 8, CHANNELS)).batchRepresentation()
    forward, python_forward = _twins("MPSCNNPoolingAverage")
    gradient, python_gradient = _twins("MPSCNNPoolingAverageGradient")

    def by_apples_names(commands: Any) -> Any:
        ys, states = forward.encodeBatchToCommandBuffer(
            commands, sourceImages=batch, destinationStateIsTemporary=False
        )
        given = [mps.MPSImage(each.descriptor) for each in ys]
        made = forward.resultStateBatchForSourceImage(batch, sourceStates=None, destinationImage=given)
        forward.encodeBatchToCommandBuffer(
            commands, sourceImages=batch, destinationStates=made, destinationImages=given
        )
        dx = gradient.encodeBatchToCommandBuffer(
            commands, sourceGradients=ys, sourceImages=batch, gradientStates=states
        )
        other = [mps.MPSImage(each.descriptor) for each in dx]
        gradient.encodeBatchToCommandBuffer(
            commands, sourceGradients=given, sourceImages=batch, gradientStates=made, destinationGradients=other
        )
        return ys, dx, given, other

    def by_our_names(commands: Any) -> Any:
        ys, states = python_forward.encode_batch(commands, batch, return_state=True)
        return ys, python_gradient.encode_batch(commands, ys, batch, states)

    ys, dx, given, other = run(by_apples_names)
    expected = run(by_our_names)
    assert same(ys, expected[0]) and same(dx, expected[1])
    assert same(np.concatenate(given), expected[0]) and same(np.concatenate(other), expected[1])
    assert all(isinstance(each, mps.MPSImage) for each in (*ys, *dx))


@pytest.mark.parametrize("name", ["MPSCNNAdd", "MPSCNNSubtract", "MPSCNNMultiply"])
def test_arithmetic_has_a_gradient_for_each_source(name: str) -> None:
    a, b = image(), image(seed=1)
    forward, python_forward = _twins(name)

    def by_apples_names(commands: Any) -> Any:
        y, state = forward.encodeToCommandBuffer(
            commands, primaryImage=a, secondaryImage=b, destinationStateIsTemporary=False
        )
        results = [y]
        for is_secondary in (False, True):
            gradient = getattr(mps, f"{name}Gradient").initWithDevice(None, isSecondarySourceFilter=is_secondary)
            source = (a if is_secondary else b) if name == "MPSCNNMultiply" else (b if is_secondary else a)
            results.append(
                gradient.encodeToCommandBuffer(commands, sourceGradient=y, sourceImage=source, gradientState=state)
            )
        return results

    def by_our_names(commands: Any) -> Any:
        y, state = python_forward.encode(commands, a, b, return_state=True)
        results = [y]
        for is_secondary in (False, True):
            gradient = getattr(mg, f"{python_forward.kernel_name}Gradient")(is_secondary_source_filter=is_secondary)
            source = (a if is_secondary else b) if name == "MPSCNNMultiply" else (b if is_secondary else a)
            results.append(gradient.encode(commands, y, source, state))
        return results

    for one, other in zip(run(by_apples_names), run(by_our_names), strict=True):
        assert same(one, other)


def test_reshape_takes_its_extents_with_the_encode() -> None:
    x = image()
    reshape, gradient = mps.MPSNNReshape.initWithDevice(None), mps.MPSNNReshapeGradient.initWithDevice(None)

    def encode(commands: Any) -> Any:
        extents = {"reshapedWidth": 1, "reshapedHeight": 1, "reshapedFeatureChannels": 6 * 8 * CHANNELS}
        y, state = reshape.encodeToCommandBuffer(
            commands, sourceImage=x, destinationStateIsTemporary=False, **extents
        )
        return y, gradient.encodeToCommandBuffer(commands, sourceGradient=y, sourceImage=x, gradientState=state)

    y, dx = run(encode)
    assert y.shape == (2, 1, 1, 6 * 8 * CHANNELS) and same(dx, x)


def test_batch_normalization_is_trained_in_its_two_phases() -> None:
    source = BatchStatistics()
    forward = mps.MPSCNNBatchNormalization.initWithDevice(None, dataSource=source)
    statistics = mps.MPSCNNBatchNormalizationStatistics.initWithDevice(None)
    gradient_statistics = mps.MPSCNNBatchNormalizationStatisticsGradient.initWithDevice(
        None, fusedNeuronDescriptor=None
    )
    gradient = mps.MPSCNNBatchNormalizationGradient.initWithDevice(None, fusedNeuronDescriptor=None)
    x, g = image(), image(seed=1)
    state = forward.resultStateForSourceImage(x, sourceStates=None, destinationImage=x)

    def encode(commands: Any) -> Any:
        xs, gs = x.batchRepresentation(), g.batchRepresentation()
        statistics.encodeBatchToCommandBuffer(commands, sourceImages=xs, batchNormalizationState=state)
        y = mps.MPSImage(x.descriptor)
        forward.encodeToCommandBuffer(
            commands, sourceImage=x, batchNormalizationState=state, destinationImage=y
        )
        gradient_statistics.encodeBatchToCommandBuffer(
            commands, sourceGradients=gs, sourceImages=xs, batchNormalizationState=state
        )
        dx = gradient.encodeBatchToCommandBuffer(
            commands, sourceGradients=gs, sourceImages=xs, batchNormalizationState=state
        )
        return y, dx

    y, dx = run(encode)
    expected = mg.functional.batch_normalization(
        np.asarray(x), source.scales, source.shifts, epsilon=forward.epsilon
    )
    assert np.array_equal(np.asarray(y), expected)
    assert isinstance(state, mps.MPSCNNBatchNormalizationState) and state.batchNormalization is forward
    assert state.gradientForGamma().shape == state.gradientForBeta().shape == state.beta().shape == (CHANNELS,)
    assert np.array_equal(state.gamma(), source.scales)
    np.testing.assert_allclose(state.mean(), np.asarray(x).mean((0, 1, 2)), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(state.variance(), np.asarray(x).var((0, 1, 2)), rtol=1e-5, atol=1e-6)
    assert dx[0].shape == (1, 6, 8, CHANNELS) and forward.dataSource is source
    with pytest.raises(NotImplementedError, match="-encodeToCommandBuffer:sourceImage: is unavailable in MPS"):
        statistics.encodeToCommandBuffer(None, sourceImage=x)
    forward.reloadGammaAndBetaFromDataSource()
    forward.reloadMeanAndVarianceFromDataSource()


class Trained(Weights):
    """Weights that are updated on the device, as a data source of MPS does it."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizer = mps.MPSNNOptimizerStochasticGradientDescent.initWithDevice(None, learningRate=0.5)

    def updateWithCommandBuffer(self, commandBuffer: Any, *, gradientState: Any, sourceState: Any) -> Any:
        assert isinstance(gradientState, mps.MPSCNNConvolutionGradientState)
        assert isinstance(sourceState, mps.MPSCNNConvolutionWeightsAndBiasesState)
        self.optimizer.encodeToCommandBuffer(
            commandBuffer,
            convolutionGradientState=gradientState,
            convolutionSourceState=sourceState,
            inputMomentumVectors=None,
            resultState=sourceState,
        )
        return sourceState


def test_a_convolution_is_trained_on_the_device() -> None:
    source, x, g = Trained(), image(), image(seed=1)
    forward = mps.MPSCNNConvolution.initWithDevice(None, weights=source)
    gradient = mps.MPSCNNConvolutionGradient.initWithDevice(None, weights=source)
    before = source.numbers.copy()

    def encode(commands: Any) -> Any:
        y, state = forward.encodeToCommandBuffer(commands, sourceImage=x, destinationStateIsTemporary=False)
        gradient.encodeToCommandBuffer(commands, sourceGradient=g, sourceImage=x, gradientState=state)
        weights = forward.exportWeightsAndBiasesWithCommandBuffer(commands, resultStateCanBeTemporary=False)
        view = source.to_ours()
        new = view.update_with_command_buffer(commands, state, weights)
        forward.reloadWeightsAndBiasesWithCommandBuffer(commands, state=new)
        return state

    state = run(encode)
    weights, biases = forward.weights_and_biases
    np.testing.assert_allclose(weights, before - 0.5 * state.gradientForWeights, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(biases, source.biases - 0.5 * state.gradientForBiases, rtol=1e-6, atol=1e-6)
    assert state.convolution is forward and (state.sourceWidth, state.sourceHeight) == (8, 6)
    forward.reloadWeightsAndBiasesFromDataSource()
    assert np.array_equal(forward.weights_and_biases[0], before) and forward.dataSource is source


def test_a_transposed_convolution_takes_its_size_from_a_convolutions_state() -> None:
    source, x = Weights(), image()
    forward = mps.MPSCNNConvolution.initWithDevice(None, weights=source)
    back = mps.MPSCNNConvolutionTranspose.initWithDevice(None, weights=source)

    def encode(commands: Any) -> Any:
        y, state = forward.encodeToCommandBuffer(commands, sourceImage=x, destinationStateIsTemporary=False)
        return back.encodeToCommandBuffer(commands, sourceImage=y, convolutionGradientState=state)

    def encode_batch(commands: Any) -> Any:
        images = x.batch_representation()
        y, states = forward.encodeBatchToCommandBuffer(commands, sourceImages=images, destinationStateIsTemporary=False)
        return back.encodeBatchToCommandBuffer(commands, sourceImages=y, convolutionGradientStates=states)

    assert run(encode).shape == x.shape
    assert np.asarray(run(encode_batch)).shape == x.shape


def test_a_graph_trains_by_apples_names_as_by_ours() -> None:
    """The same network, from the image to the loss and back, with both names; the gradients have equal bits."""
    labels, one = labels_of(loss_image_size=(1, 1, 1)), image((1, 2, 3, CHANNELS))
    results = []
    for named in (True, False):
        source = Weights()
        if named:
            node = mps.MPSNNImageNode.nodeWithHandle("x")
            convolved = mps.MPSCNNConvolutionNode.nodeWithSource(node, weights=source)
            rectified = mps.MPSCNNNeuronReLUNode.nodeWithSource(convolved.resultImage, a=0.1)
            loss = mps.MPSCNNLossNode.nodeWithSource(rectified.resultImage, lossDescriptor=loss_descriptor())
            assert isinstance(rectified.resultImage, mps.MPSNNImageNode) and rectified.a == 0.1
            (last,) = loss.trainingGraphWithSourceGradient(None, nodeHandler=None)
            assert isinstance(last, mps.MPSCNNConvolutionGradientNode)
            with pytest.raises(NotImplementedError, match="-gradientFilterWithSource: is unavailable in MPS"):
                last.gradientFilterWithSource(last.resultImage)
            graph: Any = mps.MPSNNGraph.graphWithDevice(None, resultImage=last.resultImage, resultImageIsNeeded=True)
            assert graph.sourceImageHandles == ["x"] and graph.resultImageIsNeeded
        else:
            nodes = mg.ConvolutionNode(mg.ImageNode("x"), source.to_ours())
            nodes = mg.NeuronReLUNode(nodes.result_image, a=0.1)
            losses = mg.LossNode(nodes.result_image, descriptor=loss_descriptor().to_ours())
            graph = mg.Graph(losses.training_graph()[0])
        if named:
            results.append(
                run(
                    lambda commands, graph=graph: graph.encodeToCommandBuffer(
                        commands, sourceImages=[one], sourceStates=[labels], intermediateImages=None,
                        destinationStates=None,
                    )
                )
            )  # fmt: skip
        else:
            results.append(run(lambda commands, graph=graph: graph.encode(commands, [one], [labels])))
    assert isinstance(results[0], mps.MPSImage) and same(*results)


def test_nodes_of_neurons_have_all_parameters() -> None:
    source = mps.MPSNNImageNode.nodeWithHandle(None)
    node = mps.MPSCNNNeuronReLUNNode.nodeWithSource(source, a=0.25, b=3)
    descriptor = node.gradientFilterWithSource(source).descriptor
    assert (node.a, node.b, node.c) == (descriptor.a, descriptor.b, descriptor.c) == (0.25, 3, 0)
    assert descriptor.neuronType == mps.MPSCNNNeuronTypeReLUN
    assert mps.MPSCNNNeuronSigmoidNode.nodeWithSource(source).c == 0


def test_what_a_graph_calls_back_and_fills_has_apples_names() -> None:
    """Blocks, and the lists of images and states that are exported."""
    node = mps.MPSNNImageNode.nodeWithHandle("x")
    dropped = mps.MPSCNNDropoutNode.nodeWithSource(node, keepProbability=0.5)
    dropped.resultState.exportFromGraph = dropped.resultImage.exportFromGraph = True
    convolved = mps.MPSCNNConvolutionNode.nodeWithSource(dropped.resultImage, weights=Weights())
    loss = mps.MPSCNNLossNode.nodeWithSource(convolved.resultImage, lossDescriptor=loss_descriptor())
    called: list[Any] = []

    def note(gradientNode: Any, inferenceNode: Any, inferenceSource: Any, gradientSource: Any) -> None:
        gradientNode.resultImage.format = mps.MPSImageFeatureChannelFormatFloat32
        called.append((gradientNode, inferenceNode, inferenceSource, gradientSource))

    (last,) = loss.trainingGraphWithSourceGradient(None, nodeHandler=note)
    kinds = (mps.MPSNNGradientFilterNode, mps.MPSNNFilterNode, mps.MPSNNImageNode, mps.MPSNNImageNode)
    assert len(called) == 2 and all(isinstance(*pair) for each in called for pair in zip(each, kinds, strict=True))
    graph = mps.MPSNNGraph.graphWithDevice(None, resultImage=last.resultImage, resultImageIsNeeded=True)
    one, labels = image((1, 2, 3, CHANNELS)), labels_of(loss_image_size=(1, 1, 1))
    for batch in (False, True):
        images: list[Any] = []
        states: list[Any] = []
        encode = graph.encodeBatchToCommandBuffer if batch else graph.encodeToCommandBuffer
        given = ([[one]], [[labels]]) if batch else ([one], [labels])
        run(
            lambda commands, encode=encode, given=given, images=images, states=states: encode(
                commands, sourceImages=given[0], sourceStates=given[1], intermediateImages=images,
                destinationStates=states,
            )
        )  # fmt: skip
        assert isinstance(images[0][0] if batch else images[0], mps.MPSImage)
        assert (states[0][0] if batch else states[0]).maskData().shape == one.shape
    finished = threading.Event()
    results: list[Any] = []
    inference = mps.MPSNNGraph.graphWithDevice(None, resultImage=convolved.resultImage, resultImageIsNeeded=True)
    inference.executeAsyncWithSourceImages(
        [one], completionHandler=lambda result, error: (results.append((result, error)), finished.set())
    )
    assert finished.wait(60) and isinstance(results[0][0], mps.MPSImage) and results[0][1] is None


def test_gradient_nodes_that_mps_has_not_have_apples_names_too() -> None:
    x = mps.MPSNNImageNode.nodeWithHandle("x")
    reduced = mps.MPSNNReductionRowMaxNode.nodeWithSource(x)
    divided = mps.MPSNNDivisionNode.nodeWithLeftSource(reduced.resultImage, rightSource=x)
    called: list[Any] = []
    divided.trainingGraphWithSourceGradient(x, nodeHandler=lambda node, *others: called.append(node))
    gradients = [node for node in called if not isinstance(node, mps.MPSNNAdditionNode)]
    assert len(gradients) == 3 and all(isinstance(node, mps.MPSNNGradientFilterNode) for node in gradients)
    assert all(isinstance(node.resultImage, mps.MPSNNImageNode) for node in called)


def test_nodes_with_one_data_source_share_what_it_updates() -> None:
    """A source that two nodes were given loads its new weights into the kernels of both."""
    source = Trained()
    first = mps.MPSCNNConvolutionNode.nodeWithSource(mps.MPSNNImageNode.nodeWithHandle("x"), weights=source)
    second = mps.MPSCNNConvolutionNode.nodeWithSource(first.resultImage, weights=source)
    first.trainingStyle = mps.MPSNNTrainingStyleUpdateDeviceNone
    loss = mps.MPSCNNLossNode.nodeWithSource(second.resultImage, lossDescriptor=loss_descriptor())
    (last,) = loss.trainingGraphWithSourceGradient(None, nodeHandler=None)
    graph = mps.MPSNNGraph.graphWithDevice(None, resultImage=last.resultImage, resultImageIsNeeded=True)
    kernels = [kernel for made in graph._kernels.values() for kernel in made if hasattr(kernel, "weights_and_biases")]
    labels, one = labels_of(loss_image_size=(1, 1, 1)), image((1, 2, 3, CHANNELS))
    run(
        lambda commands: graph.encodeToCommandBuffer(
            commands, sourceImages=[one], sourceStates=[labels], intermediateImages=None, destinationStates=None
        )
    )
    weights = [kernel.weights_and_biases[0] for kernel in kernels]
    assert len(weights) == 4 and all(np.array_equal(weights[0], each) for each in weights)
    assert not np.array_equal(weights[0], source.numbers)


def test_graphs_take_over_earlier_encodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of nodes, labels and data sources by Apple's names as of ours; the weights are those of kernels asked anew."""
    taken_over: list[Any] = []
    encode_steps = RepeatedRun.encode_steps
    monkeypatch.setattr(
        RepeatedRun, "encode_steps", lambda *arguments: (taken_over.append(1), encode_steps(*arguments))
    )
    sources, weights = [Trained(), Trained()], []
    for source, asks_kernels in zip(sources, (False, True), strict=True):
        x = mps.MPSNNImageNode.nodeWithHandle("x")
        convolved = mps.MPSCNNConvolutionNode.nodeWithSource(x, weights=source)
        rectified = mps.MPSCNNNeuronReLUNode.nodeWithSource(convolved.resultImage, a=0.1)
        loss = mps.MPSCNNLossNode.nodeWithSource(rectified.resultImage, lossDescriptor=loss_descriptor())
        (last,) = loss.trainingGraphWithSourceGradient(None, nodeHandler=None)
        graph = mps.MPSNNGraph.graphWithDevice(None, resultImage=last.resultImage, resultImageIsNeeded=True)
        if asks_kernels:
            graph._kept_runs.settings.are_known = False
        for seed in range(6):
            given = [image((1, 2, 3, CHANNELS), seed=seed)], [labels_of(loss_image_size=(1, 1, 1))]
            result = run(
                lambda commands, graph=graph, given=given: graph.encodeToCommandBuffer(
                    commands, sourceImages=given[0], sourceStates=given[1], intermediateImages=None,
                    destinationStates=None,
                )
            )  # fmt: skip
            assert isinstance(result, mps.MPSImage)
        kernels = [kernel for made in graph._kernels.values() for kernel in made]
        weights += [kernel.weights_and_biases[0] for kernel in kernels if isinstance(kernel, mg.Convolution)]
    assert len(taken_over) >= 2
    np.testing.assert_array_equal(*weights)
    assert not np.array_equal(weights[0], sources[0].numbers)


def test_properties_of_data_sources_may_be_set_in_each_object() -> None:
    class Source(GammaAndBeta, mps.MPSCNNInstanceNormalizationDataSource):
        def __init__(self) -> None:
            super().__init__()
            self.numberOfFeatureChannels = CHANNELS

    kernel = mps.MPSCNNInstanceNormalization.initWithDevice(None, dataSource=Source())
    assert kernel.number_of_feature_channels == CHANNELS
    with pytest.raises(NotImplementedError, match="has to define numberOfFeatureChannels"):
        _ = type("Without", (mps.MPSCNNInstanceNormalizationDataSource,), {})().numberOfFeatureChannels


def test_gradients_of_one_image_have_a_number_for_each_channel() -> None:
    """So that a data source can update its gamma and beta in place, as it does with MPS's buffers."""

    class Source(GammaAndBeta, mps.MPSCNNInstanceNormalizationDataSource):
        numberOfFeatureChannels = CHANNELS

    x = image()
    kernel = mps.MPSCNNInstanceNormalization.initWithDevice(None, dataSource=Source())
    gradient = mps.MPSCNNInstanceNormalizationGradient.initWithDevice(None)

    def encode(commands: Any) -> Any:
        xs = x.batchRepresentation()
        ys, states = kernel.encodeBatchToCommandBuffer(commands, sourceImages=xs, destinationStateIsTemporary=False)
        gradient.encodeBatchToCommandBuffer(commands, sourceGradients=ys, sourceImages=xs, gradientStates=states)
        return states

    states = run(encode)
    for state in states:
        assert state.gradientForGamma.shape == state.gradientForBeta.shape == (CHANNELS,)
    whole = states[0].parent.gradient_for_gamma
    assert np.array_equal(whole, [state.gradientForGamma for state in states])


@pytest.mark.parametrize(
    ("node", "name"),
    [
        (lambda x: mps.MPSCNNNeuronELUNode.nodeWithSource(x, a=0.5), "a"),
        (lambda x: mps.MPSCNNNeuronExponentialNode.nodeWithSource(x, a=0.5, b=1, c=2), "c"),
        (lambda x: mps.MPSCNNDropoutNode.nodeWithSource(x), "seed"),
        (lambda x: mps.MPSNNGramMatrixCalculationNode.nodeWithSource(x, alpha=0.5), "alpha"),
    ],
)
def test_what_mps_fixes_in_a_node_cannot_be_set(node: Any, name: str) -> None:
    made = node(mps.MPSNNImageNode.nodeWithHandle("x"))
    before = getattr(made, name)
    with pytest.raises(AttributeError, match=f"'{name}' of .* has no setter"):
        setattr(made, name, 3)
    assert getattr(made, name) == before


def test_losses_and_their_labels() -> None:
    x, labels = image((1, 2, 3, CHANNELS)), labels_of(loss_image_size=(1, 1, 1))
    loss = _kernel("MPSCNNLoss")
    python_loss = _python_kernel(loss)
    python_labels = mg.LossLabels.from_images(labels.labelsImage())
    dx = run(lambda commands: loss.encodeToCommandBuffer(commands, sourceImage=x, labels=labels))
    expected = run(lambda commands: python_loss.encode(commands, x, python_labels))
    assert same(dx, expected) and same(labels.lossImage(), python_labels.loss_image)
    forward, gradient = _kernel("MPSNNForwardLoss"), _kernel("MPSNNLossGradient")
    initial = mps.MPSNNInitialGradient.initWithDevice(None)

    def encode(commands: Any) -> Any:
        xs, ts = [x], [labels.labelsImage()]
        values, states = forward.encodeBatchToCommandBuffer(
            commands, sourceImages=xs, labels=ts, weights=None, destinationStateIsTemporary=False
        )
        ones = initial.encodeBatchToCommandBuffer(commands, sourceImages=values)
        return gradient.encodeBatchToCommandBuffer(
            commands, sourceGradients=ones, sourceImages=xs, labels=ts, weights=None, sourceStates=states
        )

    np.testing.assert_allclose(np.asarray(run(encode)), np.asarray(dx), rtol=1e-6)


def labels_of(*, loss_image_size: tuple[int, int, int]) -> Any:
    return mps.MPSCNNLossLabels.initWithDevice(
        None, lossImageSize=loss_image_size, labelsDescriptor=labels_descriptor(), weightsDescriptor=None
    )


@pytest.mark.parametrize(
    ("name", "slots"),
    [
        ("StochasticGradientDescent", ["momentum"]),
        ("RMSProp", ["sumOfSquares"]),
        ("Adam", ["momentum", "velocity"]),
    ],
)
def test_optimizers_update_vectors(name: str, slots: list[str]) -> None:
    optimizer = _kernel(f"MPSNNOptimizer{name}")
    python_optimizer = _python_kernel(optimizer)
    results = []
    for named in (True, False):
        vectors = [mg.Vector.from_array(np.linspace(0.1, 1, 9, dtype=np.float32)) for _ in range(2 + len(slots))]
        gradient, values, *kept = vectors
        inputs = {f"input{slot[0].upper()}{slot[1:]}Vector": vector for slot, vector in zip(slots, kept, strict=True)}
        apple = {"inputGradientVector": gradient, "inputValuesVector": values, **inputs, "resultValuesVector": values}
        ours = {mps.manifest.snake_case(label): vector for label, vector in apple.items()}
        run(
            (lambda commands, given=apple: optimizer.encodeToCommandBuffer(commands, **given))
            if named
            else (lambda commands, given=ours: python_optimizer.encode(commands, **given))
        )
        results.append(np.asarray(values))
    assert np.array_equal(*results)
    optimizer.setLearningRate(0.25)
    assert optimizer.learningRate == 0.25


def test_vectors_are_made_of_descriptors_and_of_buffers() -> None:
    """As Apple's samples make the slots of their optimizers."""
    descriptor = mps.MPSVectorDescriptor.vectorDescriptorWithLength(3, dataType=mps.MPSDataTypeFloat32)
    gradient, values = (mps.MPSVector.initWithDevice(None, descriptor=descriptor) for _ in range(2))
    assert not np.asarray(values).any() and (values.length, values.resourceSize(), values.dataType) == (
        3, 12, mps.MPSDataTypeFloat32,
    )  # fmt: skip
    gradient.data.write(np.array([1, 2, 4], np.float32))
    shared = mps.MPSVector.initWithBuffer(values.data, descriptor=descriptor)
    optimizer = mps.MPSNNOptimizerStochasticGradientDescent.initWithDevice(None, learningRate=0.5)

    def encode(commands: Any) -> None:
        optimizer.encodeToCommandBuffer(
            commands, inputGradientVector=gradient, inputValuesVector=shared, inputMomentumVector=None,
            resultValuesVector=shared,
        )  # fmt: skip
        values.synchronizeOnCommandBuffer(commands)

    run(encode)
    np.testing.assert_array_equal(np.asarray(values), [-0.5, -1, -2])
    with pytest.raises(mg.GeometryError, match="MPSVector: the buffer has 12 bytes but 4 values need 16"):
        mps.MPSVector.initWithBuffer(values.data, descriptor=mps.MPSVectorDescriptor(4))
    half = mps.MPSVectorDescriptor.vectorDescriptorWithLength(3, dataType=mps.MPSDataTypeFloat16)
    with pytest.raises(mg.FormatError, match="MPSVector: dataType is .*FLOAT16.*; it has to be MPSDataTypeFloat32"):
        mps.MPSVector.initWithDevice(None, descriptor=half)
    with pytest.raises(mg.FormatError, match="MPSVector: descriptor is 3"):
        mps.MPSVector.initWithDevice(None, descriptor=3)


def test_temporary_images_and_states_of_a_command_buffer() -> None:
    kernel = _kernel("MPSCNNPoolingMax")
    kernel.destinationImageAllocator = mps.MPSTemporaryImage.defaultAllocator()
    gradient = _kernel("MPSCNNPoolingMaxGradient")
    x = image()

    def encode(commands: Any) -> Any:
        y, state = kernel.encodeToCommandBuffer(commands, sourceImage=x, destinationStateIsTemporary=True)
        assert isinstance(y, mps.MPSTemporaryImage) and y.readCount == 1 and state.isTemporary
        part = y.subImageWithFeatureChannelRange(mps.NSMakeRange(0, 4))
        assert isinstance(part, mps.MPSTemporaryImage) and part.parent is y
        part.readCount = 0
        y.readCount = 1
        return gradient.encodeToCommandBuffer(commands, sourceGradient=y, sourceImage=x, gradientState=state)

    assert run(encode).shape == x.shape


@pytest.mark.parametrize(
    "layout", [mps.MPSDataLayoutHeightxWidthxFeatureChannels, mps.MPSDataLayoutFeatureChannelsxHeightxWidth]
)
def test_bytes_of_images_in_both_layouts(layout: int) -> None:
    x = image((2, 3, 5, CHANNELS))
    room = np.empty(3 * 5 * CHANNELS, np.float32)
    x.readBytes(room, dataLayout=layout, imageIndex=1)
    values = np.asarray(x)[1]
    assert np.array_equal(room, (values.transpose(2, 0, 1) if layout else values).reshape(-1))
    other = mps.MPSImage(x.descriptor)
    other.write(np.zeros(x.shape, np.float32))
    other.writeBytes(room, dataLayout=layout, imageIndex=0)
    assert np.array_equal(np.asarray(other)[0], values) and not np.asarray(other)[1].any()
    with pytest.raises(mg.GeometryError, match="MPSImage: bytes has room for 1 values of 60"):
        x.readBytes(room[:1], dataLayout=layout, imageIndex=0)
    with pytest.raises(mg.GeometryError, match="MPSImage: bytes has 1 values of 60"):
        x.writeBytes(room[:1], dataLayout=layout, imageIndex=0)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"bytes": "abc"}, mg.FormatError, "MPSImage: bytes is str: a bytes-like object is required"),
        ({"bytes": np.zeros(30)}, mg.FormatError, "MPSImage: bytes is an array of float64; the image holds float32"),
        ({"bytes": bytes(7)}, mg.FormatError, "MPSImage: bytes is bytes: buffer size must be a multiple"),
        ({"bytes": bytes(240)}, mg.FormatError, "MPSImage: bytes is bytes, which cannot be written"),
        ({"layout": 7}, mg.FormatError, "MPSImage: dataLayout is 7; it has to be an MPSDataLayout"),
        ({"image": 2}, mg.GeometryError, "MPSImage: imageIndex is 2 but there are 2 images"),
        ({"image": -1}, mg.GeometryError, "MPSImage: imageIndex is -1; it has to be at least 0"),
    ],
)
def test_bytes_that_are_none_of_an_image_are_refused(change: Any, error: Any, words: str) -> None:
    x = image((2, 3, 5, CHANNELS))
    before = np.array(x)
    given = {"bytes": np.zeros(3 * 5 * CHANNELS, np.float32), "layout": 0, "image": 1, **change}
    with pytest.raises(error, match=words):
        x.readBytes(given["bytes"], dataLayout=given["layout"], imageIndex=given["image"])
    if "written" not in words:
        with pytest.raises(error, match=words):
            x.writeBytes(given["bytes"], dataLayout=given["layout"], imageIndex=given["image"])
    assert np.array_equal(np.asarray(x), before)


@st.composite
def parts_of_images(draw: Any) -> dict[str, Any]:
    """A region and channels of an image, a layout, and distances in bytes, with and without room between."""
    shape = tuple(draw(st.integers(1, largest)) for largest in (3, 4, 5, 10))
    ranges = []
    for size in shape[:3]:
        first = draw(st.integers(0, size - 1))
        ranges.append((first, draw(st.integers(1, size - first))))
    first = draw(st.sampled_from([each for each in (0, 4) if each < shape[3]]))
    rest = shape[3] - first
    count = draw(st.integers(1, rest)) if first == 0 else draw(st.sampled_from([n for n in (4, 8) if n <= rest] or [0]))
    return {
        "shape": shape,
        "ranges": (*ranges, (first, count)),
        "layout": draw(st.integers(0, 1)),
        "between": [draw(st.sampled_from([0, 0, 1, 3])) for _ in range(3)],
        "first_image": draw(st.integers(0, ranges[0][0])),
    }


@given(parts_of_images(), channel_formats())
def test_bytes_of_parts_of_images(part: dict[str, Any], channel_format: Any) -> None:
    """Each value lies where the distances say, and what lies between is neither written nor read."""
    (z, images), (y, height), (x, width), (first, channels) = part["ranges"]
    assume(channels)
    dtype, size = channel_format.dtype, channel_format.dtype.itemsize
    values = np.random.default_rng(0).standard_normal(part["shape"]).astype(dtype)
    pixel, planes = (1, channels) if part["layout"] else (channels, 1)
    column = pixel + part["between"][0]
    row = column * width + part["between"][1]
    step = row * height * planes + part["between"][2]
    places = np.empty((images, height, width, channels), int)
    for n, j, i, c in np.ndindex(places.shape):
        places[n, j, i, c] = n * step + j * row + i * column + (c * row * height if part["layout"] else c)
    index = (slice(z, z + images), slice(y, y + height), slice(x, x + width), slice(first, first + channels))
    labels = {
        "dataLayout": part["layout"], "bytesPerRow": size * row, "bytesPerImage": size * step,
        "region": mps.MTLRegionMake3D(x, y, z - part["first_image"], width, height, images),
        "featureChannelInfo": mps.MPSImageReadWriteParams(first, channels), "imageIndex": part["first_image"],
    }  # fmt: skip

    room = np.full(images * step, 7, dtype)
    room[places.reshape(-1)] = np.arange(places.size)
    written = mps.MPSImage.from_array(values)
    written.writeBytes(room, bytesPerColumn=size * column, **labels)
    expected = values.copy()
    expected[index] = np.arange(places.size).reshape(places.shape)
    np.testing.assert_array_equal(np.asarray(written), expected)

    assume(column == pixel)
    room[:] = 7
    written.readBytes(room, **labels)
    expected_room = np.full(images * step, 7, dtype)
    expected_room[places] = expected[index]
    np.testing.assert_array_equal(room, expected_room)
    if step == row * height * planes:
        del labels["bytesPerImage"]
        room[:] = 7
        written.readBytes(room, **labels)
        np.testing.assert_array_equal(room, expected_room)
        written.writeBytes(np.zeros_like(room), **labels)
        assert not np.asarray(written)[index].any()


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"region": (1, 2)}, mg.FormatError, "MPSImage: region.origin is 1; it has to be 3 integers"),
        ({"region": mps.MTLRegionMake2D(0, 1, 5, 3)}, mg.GeometryError, "3 rows from 1 on are asked for; there are 3"),
        ({"region": mps.MTLRegionMake2D(0, 0, 0, 3)}, mg.GeometryError, "0 columns from 0 on are asked for"),
        ({"imageIndex": 2}, mg.GeometryError, "1 images from 2 on are asked for; there are 2"),
        ({"featureChannelInfo": (2, 2)}, mg.GeometryError, "2 channels from 2 on; both have to be multiples of 4"),
        ({"featureChannelInfo": (0, 5)}, mg.GeometryError, "5 feature channels from 0 on are asked for; there are 4"),
        ({"featureChannelInfo": 4}, mg.FormatError, "featureChannelInfo is 4; it has to be 2 integers"),
        ({"bytesPerRow": 76}, mg.GeometryError, "bytesPerRow is 76; it has to be at least 80"),
        ({"bytesPerRow": 82}, mg.GeometryError, "bytesPerRow is 82; it has to be a multiple of 4"),
        ({"bytesPerImage": 236}, mg.GeometryError, "bytesPerImage is 236; it has to be at least 240"),
        ({"bytesPerRow": 84, "bytesPerImage": 252}, mg.GeometryError, "bytes has 60 values but the region needs 62"),
        ({"dataLayout": 2}, mg.FormatError, "dataLayout is 2; it has to be an MPSDataLayout"),
        ({"bytes": np.zeros(60)}, mg.FormatError, "bytes is an array of float64; the image holds float32"),
        ({"bytes": bytes(240)}, mg.FormatError, "bytes is bytes, which cannot be written"),
    ],
)
def test_parts_that_an_image_does_not_have_are_refused(change: Any, error: Any, words: str) -> None:
    x = image((2, 3, 5, CHANNELS))
    before = np.array(x)
    labels = {
        "dataLayout": 0, "bytesPerRow": 80, "bytesPerImage": 240, "region": mps.MTLRegionMake2D(0, 0, 5, 3),
        "featureChannelInfo": mps.MPSImageReadWriteParams(0, CHANNELS), "imageIndex": 1, **change,
    }  # fmt: skip
    room = labels.pop("bytes", np.zeros(60, np.float32))
    with pytest.raises(error, match=words):
        x.readBytes(room, **labels)
    if "written" not in words:
        with pytest.raises(error, match=words):
            x.writeBytes(room, **labels)
    assert np.array_equal(np.asarray(x), before)


def test_neurons_of_convolutions_by_deprecated_names() -> None:
    make = mps.MPSCNNConvolutionDescriptor.cnnConvolutionDescriptorWithKernelWidth
    extents = {"kernelHeight": 3, "inputFeatureChannels": CHANNELS, "outputFeatureChannels": CHANNELS}
    descriptor = make(3, **extents, neuronFilter=None)
    assert descriptor.neuron is None and descriptor.neuronType() == mps.MPSCNNNeuronTypeNone
    descriptor = make(3, **extents, neuronFilter=mps.MPSCNNNeuronReLUN.initWithDevice(None, a=0.5, b=2))
    parameters = descriptor.neuronType(), descriptor.neuronParameterA(), descriptor.neuronParameterB()
    assert parameters == (mps.MPSCNNNeuronTypeReLUN, 0.5, 2)
    descriptor.setNeuronType(mps.MPSCNNNeuronTypeLinear, parameterA=2, parameterB=3)
    assert descriptor.fusedNeuronDescriptor.neuronType == mps.MPSCNNNeuronTypeLinear

    weights, biases = np.random.default_rng(1).standard_normal((2, 9 * CHANNELS**2)).astype(np.float32)
    given = {"convolutionDescriptor": descriptor, "kernelWeights": weights, "biasTerms": biases[:CHANNELS].tobytes()}
    kernel = mps.MPSCNNConvolution.initWithDevice(None, **given, flags=mps.MPSCNNConvolutionFlagsNone)
    assert (kernel.neuronType, kernel.neuronParameterA, kernel.neuronParameterB) == (mps.MPSCNNNeuronTypeLinear, 2, 3)
    assert isinstance(kernel.neuron, mps.MPSCNNNeuron) and kernel.neuronParameterC == 0
    x = image()
    shape = descriptor.weights_shape
    plain = mg.Convolution(mg.ConvolutionDataSource.from_arrays(weights.reshape(shape), biases[:CHANNELS]))
    y, expected = run(lambda cb: (kernel.encodeToCommandBuffer(cb, sourceImage=x), plain.encode(cb, x)))
    np.testing.assert_allclose(np.asarray(y), 2 * np.asarray(expected) + 3, rtol=1e-5, atol=1e-5)
    weights[:] = 0
    kernel.reloadWeightsAndBiasesWithDataSource(None)
    assert same(run(lambda cb: kernel.encodeToCommandBuffer(cb, sourceImage=x)), y)

    slopes = np.linspace(-1, 1, CHANNELS, dtype=np.float32)
    descriptor.setNeuronToPReLUWithParametersA(slopes.tobytes())
    assert np.array_equal(descriptor.fusedNeuronDescriptor.data, slopes)
    descriptor.neuron = None
    assert descriptor.fusedNeuronDescriptor is None
    with pytest.raises(mg.FormatError, match="MPSCNNConvolutionDescriptor: neuron is float; it has to be an MPSCNNNeu"):
        descriptor.neuron = 0.5
    with pytest.raises(mg.GeometryError, match=r"MPSCNNConvolution: kernelWeights has 3 values but .* \(4, 3, 3, 4\)"):
        mps.MPSCNNConvolution.initWithDevice(None, **{**given, "kernelWeights": weights[:3]}, flags=0)
    with pytest.raises(mg.FormatError, match="MPSCNNConvolution: biasTerms is float64; it has to be float32"):
        mps.MPSCNNConvolution.initWithDevice(None, **{**given, "biasTerms": np.ones(CHANNELS)}, flags=0)


def test_neurons_of_one_type_are_made_of_descriptors() -> None:
    for name in [each for each in declarations() if each.startswith("MPSCNNNeuron")]:
        if name == "MPSCNNNeuron" or name.endswith(("Node", "Gradient", "Type")):
            continue
        plain = made(name, _constructor(name))
        kernel = getattr(mps, name).initWithDevice(None, neuronDescriptor=plain.neuron_descriptor)
        assert type(kernel) is type(plain) and kernel.neuron_descriptor == plain.neuron_descriptor
    sigmoid = mps.MPSNNNeuronDescriptor.cnnNeuronDescriptorWithType(mps.MPSCNNNeuronTypeSigmoid)
    with pytest.raises(mg.FormatError, match="MPSCNNNeuronReLU: neuronDescriptor is of type SIGMOID; it has to be"):
        mps.MPSCNNNeuronReLU.initWithDevice(None, neuronDescriptor=sigmoid)


@pytest.mark.parametrize(
    ("send", "words"),
    [
        (lambda: made("MPSCNNLoss", _constructor("MPSCNNLoss")).encodeToCommandBuffer(None, sourceImage=image()),
         r"MPSCNNLoss: -encodeToCommandBuffer:sourceImage: is inherited in MPS, but of no use to this class; there is "
         r"encodeToCommandBuffer\(commandBuffer, sourceImage=…, labels=…, destinationImage=…\) and "),
        (lambda: mps.MPSCNNSpatialNormalizationGradient.initWithDevice(None),
         r"SpatialNormalizationGradient: -initWithDevice: is inherited .* there is initWithDevice\(device, kernelW"),
        (lambda: mps.MPSCNNDropoutGradientState.initWithDevice(None, bufferSize=4),
         "MPSCNNDropoutGradientState: -initWithDevice:bufferSize: is not planned: it describes an encode"),
        (lambda: mps.MPSCNNLossLabels.initWithDevice(None, bufferSize=4),
         r"MPSCNNLossLabels: -initWithDevice:bufferSize: is inherited .* initWithDevice\(device, labelsDescriptor=…\)"),
        (lambda: made("MPSNNDefaultPadding", _constructor("MPSNNDefaultPadding"))
         .destinationImageDescriptorForSourceImages([], sourceStates=[], forKernel=None, suggestedDescriptor=None),
         "MPSNNDefaultPadding: -destinationImage.* is inherited in MPS, but of no use to this class$"),
    ],
)  # fmt: skip
def test_inherited_methods_without_use_say_so(send: Callable[[], Any], words: str) -> None:
    with pytest.raises(NotImplementedError, match=words):
        send()


def test_command_buffers_that_go_on() -> None:
    pool = mps.MPSCNNPoolingMax.initWithDevice(None, kernelWidth=2, kernelHeight=2)
    x, queue = image(), mps.MTLCommandQueue()
    expected = np.asarray(run(lambda commands: pool.encodeToCommandBuffer(commands, sourceImage=x)))
    pool.destinationImageAllocator = mps.MPSTemporaryImage.defaultAllocator()
    plain = queue.commandBuffer()
    given = mps.MPSCommandBuffer.commandBufferWithCommandBuffer(plain)
    assert given is plain and mps.MPSCommandBuffer.initWithCommandBuffer(plain) is plain
    for commands in (mps.MPSCommandBuffer.commandBufferFromCommandQueue(queue), given):
        assert commands.rootCommandBuffer is commands.commandBuffer is commands
        between = pool.encodeToCommandBuffer(commands, sourceImage=x)
        commands.prefetchHeapForWorkloadSize(2**20)
        commands.commitAndContinue()
        y = mps.MPSCNNNeuronAbsolute.initWithDevice(None).encodeToCommandBuffer(commands, sourceImage=between)
        commands.commit()
        commands.waitUntilCompleted()
        np.testing.assert_array_equal(np.asarray(y), np.abs(expected))
        with pytest.raises(mg.StateError, match="commitAndContinue"):
            commands.commitAndContinue()
        with pytest.raises(NotImplementedError, match="MPSCommandBuffer: predicate is not planned"):
            commands.predicate = None
    with pytest.raises(mg.FormatError, match="MPSCommandBuffer: commandBuffer is NoneType; it has to be an MTL"):
        mps.MPSCommandBuffer.commandBufferWithCommandBuffer(None)


def test_structures_and_functions_of_the_core() -> None:
    coordinate = mps.MPSImageCoordinate(1, 2, 3)
    assert (coordinate.x, coordinate.y, coordinate.channel) == (1, 2, 3)
    assert mps.MPSSupportsMTLDevice(mps.MTLCreateSystemDefaultDevice()) and not mps.MPSSupportsMTLDevice(None)


class HalfSize(mps.MPSNNPadding):
    """A policy of a program's own."""

    def paddingMethod(self) -> int:
        return mps.MPSNNPaddingMethodCustom

    def destinationImageDescriptorForSourceImages(
        self, sourceImages: Any, *, sourceStates: Any, forKernel: Any, suggestedDescriptor: Any
    ) -> Any:
        assert isinstance(forKernel, mps.MPSCNNNeuron) and isinstance(sourceImages[0], mps.MPSImage)
        suggestedDescriptor.width //= 2
        return suggestedDescriptor


class Counting(mps.MPSImageAllocator):
    """An allocator of a program's own."""

    count = 0

    def imageForCommandBuffer(self, commandBuffer: Any, *, imageDescriptor: Any, kernel: Any) -> Any:
        self.count += 1
        return mps.MPSImage.initWithDevice(kernel.device, imageDescriptor=imageDescriptor)


def test_padding_policies_and_allocators_of_a_program() -> None:
    kernel = _kernel("MPSCNNNeuron")
    kernel.padding, kernel.destinationImageAllocator = HalfSize(), Counting()
    result = run(lambda commands: kernel.encodeToCommandBuffer(commands, sourceImage=image()))
    assert result.shape == (2, 6, 4, CHANNELS)
    assert kernel.destinationImageAllocator.count == 1
    kernel.padding = mps.MPSNNDefaultPadding.paddingWithMethod(mps.MPSNNPaddingMethodSizeSame)
    assert kernel.padding.padding_method == mg.PaddingMethod.SIZE_SAME


def test_descriptors_can_be_changed_after_an_image_was_made_with_them() -> None:
    descriptor = image().descriptor
    changed = mps.MPSImageDescriptor.imageDescriptorWithChannelFormat(
        mps.MPSImageFeatureChannelFormatFloat32, width=3, height=2, featureChannels=4
    )
    changed.usage = 7
    made_with_it = mps.MPSImage.initWithDevice(None, imageDescriptor=changed)
    changed.numberOfImages = 5
    assert (changed.numberOfImages, changed.number_of_images, changed.usage) == (5, 5, 7)
    assert made_with_it.numberOfImages == 1 and changed.copyWithZone(None).shape == (5, 2, 3, 4)
    with pytest.raises(mg.GeometryError, match="width is 0"):
        changed.width = 0
    assert changed.width == 3 and descriptor.width == 8


def test_padding_policies_stay_what_they_are() -> None:
    """Under both names they are equal and can be archived; the shared one of all kernels gets no other class."""
    kernel = mps.MPSCNNPoolingMax.initWithDevice(None, kernelWidth=3, kernelHeight=3)
    kernel.padding = mps.MPSNNDefaultPadding.paddingWithMethod(mps.MPSNNPaddingMethodSizeFull)
    restored = mps.MPSCNNPoolingMax.initWithCoder(mg.archive.to_bytes(kernel), device=None)
    assert restored.padding == kernel.padding == mg.DefaultPadding(mg.PaddingMethod.SIZE_FULL) != mg.SAME
    node = mps.MPSCNNNeuronReLUNode.nodeWithSource(mps.MPSNNImageNode.nodeWithHandle("x"))
    assert node.paddingPolicy == mg.SAME and type(mg.SAME) is mg.DefaultPadding


def test_properties_that_do_not_exist_cannot_be_set() -> None:
    kernel = mps.MPSCNNPoolingMax.initWithDevice(None, kernelWidth=3, kernelHeight=3)
    with pytest.raises(AttributeError, match="MPSCNNPoolingMax has no edgMode; close to it are edgeMode"):
        kernel.edgMode = 1
    image = mps.MPSNNImageNode.nodeWithHandle("x")
    with pytest.raises(AttributeError, match="MPSNNImageNode has no stopGradients; close to it are stopGradient"):
        image.stopGradients = True
    with pytest.raises(AttributeError, match="has no paddingPolice"):
        mps.MPSCNNNeuronReLUNode.nodeWithSource(image).paddingPolice = mg.SAME


def test_kernels_are_archived_and_copied() -> None:
    kernel = _kernel("MPSCNNPoolingAverage")
    kernel.zeroPadSizeX = 1
    data = mg.archive.to_bytes(kernel)
    restored = mps.MPSCNNPoolingAverage.initWithCoder(data, device=None)
    copies = kernel.copyWithZone(None), kernel.copyWithZone(None, device=None)
    for each in (restored, *copies, mps.MPSKernel.initWithCoder(data)):
        assert isinstance(each, mps.MPSCNNPoolingAverage) and each.zeroPadSizeX == 1
    assert type(mg.archive.from_bytes(data)) is mg.PoolingAverage
    with pytest.raises(mg.ArchiveError, match="MPSCNNPoolingMax: the archive holds MPSCNNPoolingAverage"):
        mps.MPSCNNPoolingMax.initWithCoder(data)


class Copied(Weights):
    """A data source that copies itself."""

    def copyWithZone(self, zone: Any, *, device: Any) -> Any:
        other = Copied()
        other.numbers, other.made_for = 2 * self.numbers, (zone, device)
        return other


@mg.archive.archivable
class Archived(Weights):
    """One that can stand in an archive."""

    def __init__(self, numbers: Any = None) -> None:
        super().__init__()
        self.numbers = self.numbers if numbers is None else numbers

    def archive_fields(self) -> dict[str, Any]:
        return {"numbers": self.numbers}


def test_data_sources_of_a_program_are_copied_and_archived_with_their_kernel() -> None:
    kernel = mps.MPSCNNConvolution.initWithDevice(None, weights=Copied())
    kernel.offset, kernel.label, kernel.destinationImageAllocator = mps.MPSOffset(1, 0, 0), "copied", Counting()
    copied = kernel.copyWithZone(None, device=None)
    assert type(copied) is mps.MPSCNNConvolution and copied.label == "copied"
    assert copied.offset.x == 1 and copied.destinationImageAllocator is kernel.destinationImageAllocator
    assert isinstance(copied.dataSource, Copied) and copied.dataSource.made_for == (None, kernel.device)
    assert np.array_equal(copied.weights_and_biases[0], 2 * kernel.weights_and_biases[0])
    gradient = mps.MPSCNNConvolutionGradient.initWithDevice(None, weights=Archived())
    gradient.dataSource.numbers *= 3
    gradient.reloadWeightsAndBiasesFromDataSource()
    restored = mps.MPSKernel.initWithCoder(mg.archive.to_bytes(gradient))
    for other in (gradient.copyWithZone(None, device=None), restored):
        assert type(other) is mps.MPSCNNConvolutionGradient and isinstance(other.dataSource, Archived)
        assert np.array_equal(other.weights_and_biases[0], gradient.weights_and_biases[0])
    assert restored.dataSource is not gradient.dataSource


def test_copies_of_kernels_share_data_sources_that_cannot_be_copied() -> None:
    source = Weights()
    copied = mps.MPSCNNConvolution.initWithDevice(None, weights=source).copyWithZone(None, device=None)
    assert copied.dataSource is source

    class WithoutDevice(Weights):
        def copyWithZone(self, zone: Any) -> Any:
            return source

    kernel = mps.MPSCNNConvolution.initWithDevice(None, weights=WithoutDevice())
    assert kernel.copyWithZone(None, device=None).dataSource is source


def test_descriptors_are_copied() -> None:
    for descriptor, name in ((loss_descriptor(), "weight"), (Weights().descriptor(), "groups")):
        copied = descriptor.copyWithZone(None)
        setattr(copied, name, 2)
        assert type(copied) is type(descriptor) and (getattr(copied, name), getattr(descriptor, name)) == (2, 1)


def test_a_batch_is_iterated_by_its_different_images() -> None:
    first, second = image((1, 2, 2, 4)), image((1, 2, 2, 4))
    visited: list[tuple[Any, int]] = []
    batch = mps.MPSImageBatch([first, first, second])
    assert mps.MPSImageBatchIterate(batch, lambda each, index: visited.append((each, index))) == -(2**63)
    assert visited == [(first, 0), (second, 2)]
    assert mps.MPSImageBatchIterate(batch, lambda each, index: index) == 0


def test_functions_on_batches_take_lists_too() -> None:
    commands = mps.MTLCommandQueue().commandBuffer()
    descriptor = image((1, 2, 2, 4)).descriptor
    images = [mps.MPSTemporaryImage.temporaryImageWithCommandBuffer(commands, imageDescriptor=descriptor)] * 2
    assert mps.MPSImageBatchIncrementReadCount(images, 2) == 1 and images[0].readCount == 3
    assert mps.MPSImageBatchResourceSize(images) == images[0].resourceSize()
    assert mps.MPSImageBatchIterate(images, lambda each, index: index) == 0
    mps.MPSImageBatchSynchronize(images, commands)
    states = [mps.MPSState.temporaryStateWithCommandBuffer(commands, bufferSize=8) for _ in range(2)]
    assert mps.MPSStateBatchIncrementReadCount(states, 1) == 2 and states[1].readCount == 2
    assert mps.MPSStateBatchResourceSize(states) == 16
    with pytest.raises(mg.StateError, match="temporary states have no CPU access"):
        mps.MPSStateBatchSynchronize(states, commands)
    with pytest.raises(mg.FormatError, match="ImageBatch: images is MPSTemporaryImage; it has to be a list of images"):
        mps.MPSImageBatchResourceSize(images[0])
    for each in (images[0], *states):
        each.readCount = 0


def test_data_sources_may_count_down_the_reads_of_states_that_are_not_temporary() -> None:
    commands = mps.MTLCommandQueue().commandBuffer()
    temporary = mps.MPSState.temporaryStateWithCommandBuffer(commands, bufferSize=4)
    regular = mps.MPSState.initWithDevice(None, bufferSize=4)
    for state in (temporary, regular):
        state.readCount -= 1
        assert state.readCount == 0
    with pytest.raises(mg.StateError, match="read_count is 0, so the memory is gone"):
        temporary.readCount -= 1


def test_concatenated_images_begin_at_multiples_of_four_channels() -> None:
    sources = [image((1, 2, 3, channels)) for channels in (7, 11)]
    nodes = [mps.MPSNNImageNode.nodeWithHandle(None) for _ in sources]
    joined = mps.MPSNNConcatenationNode.nodeWithSources(nodes).resultImage
    graph = mps.MPSNNGraph.graphWithDevice(None, resultImage=joined, resultImageIsNeeded=True)
    result = np.asarray(run(lambda commands: graph.encodeToCommandBuffer(commands, sourceImages=sources)))
    assert result.shape == (1, 2, 3, 20)
    np.testing.assert_array_equal(result[..., :7], sources[0])
    np.testing.assert_array_equal(result[..., 8:19], sources[1])


def test_policies_and_kernels_of_properties_go_by_apples_names() -> None:
    for cls, method in (
        (mps.MPSCNNConvolution, mps.MPSNNPaddingMethodSizeSame),
        (mps.MPSCNNFullyConnected, mps.MPSNNPaddingMethodSizeValidOnly),
    ):
        kernel = cls.initWithDevice(None, weights=Weights())
        assert kernel.padding.paddingMethod() == method and kernel.padding is kernel.padding
    assert mps.MPSCNNAdd.initWithDevice(None).padding.paddingMethod() == mps.MPSNNPaddingMethodSizeSame
    kernel.padding = mps.MPSNNDefaultPadding.paddingForTensorflowAveragePooling()
    bits = mps.MPSNNPaddingMethodAddRemainderToBottomRight | mps.MPSNNPaddingMethodSizeSame
    assert kernel.padding.paddingMethod() == bits | mps.MPSNNPaddingMethodCustom
    weights = mg.ConvolutionDataSource.from_arrays(np.ones((4, 3, 3, 4), np.float32))
    with mg.CommandBuffer() as commands:
        _, state = mg.Convolution(weights).encode(commands, image((1, 4, 4, 4)), return_state=True)
    state.__class__ = mps.MPSCNNConvolutionGradientState
    assert isinstance(state.convolution, mps.MPSCNNConvolution)


def test_gradient_nodes_refuse_numbers_that_are_not_those_of_the_forward_node() -> None:
    source = mps.MPSNNImageNode.nodeWithHandle(None)
    nodes = {"sourceImage": source, "gradientState": None}
    pooling = mps.MPSCNNPoolingMaxNode.nodeWithSource(source, filterSize=3, stride=2)
    window = {"kernelWidth": 3, "kernelHeight": 3, "strideInPixelsX": 2, "strideInPixelsY": 2, "paddingPolicy": None}
    nodes["gradientState"] = pooling.resultState
    make = mps.MPSCNNPoolingMaxGradientNode.nodeWithSourceGradient
    assert make(mps.MPSNNImageNode.nodeWithHandle(None), **nodes, **window).inference_node is pooling
    message = "MPSCNNPoolingMaxGradientNode: strideInPixelsX is 1 but 2 in <MPSCNNPoolingMaxNode>, whose gradient it is"
    with pytest.raises(mg.GeometryError, match=message):
        make(mps.MPSNNImageNode.nodeWithHandle(None), **nodes, **{**window, "strideInPixelsX": 1})
    dropout = mps.MPSCNNDropoutNode.nodeWithSource(source, keepProbability=0.7)
    with pytest.raises(mg.GeometryError, match="keepProbability is 0.8 but 0.7 in <MPSCNNDropoutNode>"):
        mps.MPSCNNDropoutGradientNode.nodeWithSourceGradient(
            mps.MPSNNImageNode.nodeWithHandle(None), sourceImage=source, gradientState=dropout.resultState,
            keepProbability=0.8, seed=0, maskStrideInPixels=mps.MTLSizeMake(1, 1, 1),
        )  # fmt: skip


def test_properties_of_nodes_that_mps_sets_can_be_set() -> None:
    """Of the nodes that are made of one source and nothing else, and of that for batch normalization."""
    source = mps.MPSNNImageNode.nodeWithHandle(None)
    nodes = [mps.MPSCNNBatchNormalizationNode.nodeWithSource(source, dataSource=BatchStatistics())]
    for declaration in declarations().values():
        if declaration.name.endswith("Node") and declaration.status.is_callable:
            made_by = [each for each in declaration.members if each.selector == "+nodeWithSource:"]
            if made_by and made_by[0].status.is_callable and hasattr(getattr(mps, declaration.name), "kernel_class"):
                nodes.append(getattr(mps, declaration.name).nodeWithSource(source))
    for node in nodes:
        for member in declarations()[type(node).__name__].members:
            if member.is_property and member.status.is_callable and not member.is_readonly:
                if "fixed" not in member.annotations and "inference_node" not in member.call(None):
                    setattr(node, member.name, getattr(node, member.name))


def test_states_are_made_of_lists_of_resources_and_images_take_hints() -> None:
    sizes = mps.MPSStateResourceList.resourceListWithBufferSizes(16)
    sizes.appendBuffer(8)
    commands = mps.MTLCommandQueue().commandBuffer()
    kept = mps.MPSState.initWithDevice(None, resourceList=sizes)
    temporary = mps.MPSState.temporaryStateWithCommandBuffer(commands, resourceList=sizes)
    for state in (kept, temporary):
        assert (state.resourceCount, state.bufferSizeAtIndex(1), state.resourceSize()) == (2, 8, 24)
    assert temporary.isTemporary and not kept.isTemporary
    assert mps.MPSState.initWithDevice(None, resourceList=mps.MPSStateResourceList.resourceList()).resourceCount == 0
    with pytest.raises(mg.GeometryError, match="MPSStateResourceList: size is 0"):
        sizes.appendBuffer(0)
    with pytest.raises(NotImplementedError, match="appendTexture: is not planned: states hold buffers"):
        sizes.appendTexture(None)
    mps.MPSTemporaryImage.prefetchStorageWithCommandBuffer(commands, imageDescriptorList=[mps.MPSImageDescriptor()])


def test_regions_are_structures_of_mps() -> None:
    regions = [
        mps.MPSRegion(mps.MPSOrigin(0, 0.5, 0), mps.MPSSize(1, 0.5, 1)),
        mps.MPSRegion(mps.MPSOrigin(0, 0, 0), mps.MPSSize(1, 1, 1)),
    ]
    kernel = mps.MPSNNCropAndResizeBilinear.initWithDevice(
        None, resizeWidth=2, resizeHeight=3, numberOfRegions=2, regions=regions
    )
    assert kernel.regions == ((0, 0.5, 1, 0.5), (0, 0, 1, 1))
    source = image((1, 5, 4, 3))
    result = np.asarray(run(lambda commands: kernel.encodeToCommandBuffer(commands, sourceImage=source)))
    assert result.shape == (1, 3, 2, 8)
    np.testing.assert_array_equal(result[..., :3], np.asarray(source)[:, 2:, ::3])
    np.testing.assert_array_equal(result[..., 4:7], np.asarray(source)[:, ::2, ::3])


def test_data_may_be_bytes() -> None:
    values = np.arange(24, dtype=np.float32)
    neuron = mps.MPSNNNeuronDescriptor.cnnNeuronPReLUDescriptorWithData(values.tobytes(), noCopy=False)
    labels = mps.MPSCNNLossDataDescriptor.cnnLossDataDescriptorWithData(
        values.tobytes(),
        layout=mps.MPSDataLayoutFeatureChannelsxHeightxWidth,
        size=mps.MTLSizeMake(2, 3, 4),
    )
    np.testing.assert_array_equal(neuron.data, values)
    np.testing.assert_array_equal(labels.data, values.reshape(4, 3, 2).transpose(1, 2, 0))
    boxes = mg.YOLOLossDescriptor(values[1:5].tobytes())
    assert boxes.anchor_boxes == mg.YOLOLossDescriptor(values[1:5]).anchor_boxes == ((1.0, 2.0), (3.0, 4.0))
    with pytest.raises(mg.GeometryError, match="YOLOLossDescriptor: number_of_anchor_boxes is 3 but .* has 2"):
        mg.YOLOLossDescriptor.with_loss_types(*["mean_squared_error"] * 4, "sum", boxes.anchor_boxes, 3)
    with pytest.raises(mg.GeometryError, match="YOLOLossDescriptor: anchor_boxes has 3 values"):
        mg.YOLOLossDescriptor(values[:3].tobytes())
    with pytest.raises(mg.GeometryError, match="data has 5 bytes"):
        mg.LossDataDescriptor(b"bytes", size=(1, 1, 1))


ERRORS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (
        lambda: mps.MPSCNNPoolingMax.initWithDevice(None, kernelWidht=3, kernelHeight=3),
        mg.FormatError,
        r"MPSCNNPoolingMax: there is no initWithDevice\(…, kernelHeight=…, kernelWidht=…\): kernelWidht is no label of "
        r"initWithDevice; there is initWithDevice\(device, kernelWidth=…, kernelHeight=…\)",
    ),
    (
        lambda: _kernel("MPSCNNSoftMaxGradient").encodeToCommandBuffer(None, sourceGradient=1, sourceImage=2),
        mg.FormatError,
        r"MPSCNNSoftMaxGradient: there is no encodeToCommandBuffer\(…, sourceGradient=…, sourceImage=…\); there is "
        r"encodeToCommandBuffer\(commandBuffer, sourceGradient=…, sourceImage=…, gradientState=…\)",
    ),
    (
        lambda: _kernel("MPSCNNSoftMax").encodeToCommandBufer,
        AttributeError,
        "MPSCNNSoftMax has no encodeToCommandBufer; close to it are encodeToCommandBuffer",
    ),
    (
        lambda: mps.MPSCNNPoolingMax.initWithDevice(None),
        NotImplementedError,
        "MPSCNNPoolingMax: -initWithDevice: is unavailable in MPS",
    ),
    (
        lambda: mps.MPSImage.initWithTexture(None, featureChannels=3),
        NotImplementedError,
        "MPSImage: -initWithTexture:featureChannels: is not planned: images lie in buffers",
    ),
    (lambda: image().texture, NotImplementedError, "MPSImage: texture is not planned: images lie in buffers"),
    (lambda: mps.MPSNNLocalCorrelation, NotImplementedError, "MPSNNLocalCorrelation is not planned: a matching of two"),
    (
        lambda: mps.MPSCommandBuffer.commandBufferFromCommandQueue(None),
        mg.FormatError,
        "MPSCommandBuffer: commandQueue is NoneType; it has to be an MTLCommandQueue",
    ),
    (lambda: mps.MPSCNNFoo, AttributeError, "mpsgrad.mps has no MPSCNNFoo.*; COVERAGE.md lists what there is"),
    (
        lambda: mps.MPSCNNConvolution.initWithDevice(None, weights=type("Own", (), {"dataType": 0, "load": 0})()),
        mg.FormatError,
        "data_source is Own, which has no data_type, .*a ConvolutionDataSource, or with Apple's names an "
        "mpsgrad.mps.MPSCNNConvolutionDataSource",
    ),
    (
        lambda: Weights.__bases__[0]().dataType(),
        NotImplementedError,
        r"MPSCNNConvolutionDataSource has to define dataType\(\)",
    ),
    (
        lambda: setattr(_kernel("MPSCNNPoolingMax"), "strideInPixelsX", 2),
        AttributeError,
        "strideInPixelsX",
    ),
    (
        lambda: _kernel("MPSCNNSoftMaxGradient").encodeToCommandBuffer(None, primaryImage=1, secondaryImage=2),
        NotImplementedError,
        "a gradient kernel needs the gradient state",
    ),
]


@pytest.mark.parametrize(("use", "kind", "message"), ERRORS)
def test_what_cannot_be_used_says_what_can(use: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        use()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: mps.MPSCNNPoolingMax(device=None, kernelWidth=3, kernelHeight=3),
            r"^MPSCNNPoolingMax: kernelWidth, kernelHeight are no arguments; there is "
            r"MPSCNNPoolingMax\.initWithDevice\(device, kernelWidth=…, kernelHeight=…\), .*, "
            r"MPSCNNPoolingMax\(kernel_width, .*\) by Python's names$",
        ),
        (
            lambda: mps.MPSImage(device=None, imageDescriptor=None),
            r"^MPSImage: imageDescriptor is no argument; there is MPSImage\.initWithDevice\(device, imageDescr",
        ),
        (
            lambda: mps.MPSCNNLossDescriptor(type=1, reductionType=1),
            r"no arguments; there is MPSCNNLossDescriptor\.cnnLossDescriptorWithType\(type, reductionType=…\), ",
        ),
    ],
)
def test_constructors_called_as_in_swift_say_what_there_is(call: Any, words: str) -> None:
    with pytest.raises(mg.FormatError, match=words):
        call()


@pytest.mark.parametrize(
    ("thing", "misspelt"),
    [
        (lambda: image(), "readCount"),
        (lambda: mps.MPSState.initWithDevice(None, bufferSize=4), "readCounts"),
        (lambda: mps.MPSCNNLossDescriptor.cnnLossDescriptorWithType(0, reductionType=0), "numberOfClases"),
        (lambda: mps.MPSImageDescriptor(), "lable"),
    ],
)
def test_misspelt_properties_of_images_states_and_descriptors_are_refused(thing: Any, misspelt: str) -> None:
    made = thing()
    with pytest.raises(AttributeError, match=rf"^{type(made).__name__} has no {misspelt}"):
        setattr(made, misspelt, 2)


@pytest.mark.parametrize("as_methods", [False, True])
def test_members_of_data_sources_are_properties_or_methods(as_methods: bool) -> None:
    # Objective-C implements a property by a method of its name.
    def member(value: Any) -> Any:
        return (lambda self: value) if as_methods else value

    groups = type(
        "Groups", (mps.MPSCNNGroupNormalizationDataSource,),
        {
            "numberOfFeatureChannels": member(CHANNELS), "numberOfGroups": member(2),
            "gamma": member(np.ones(CHANNELS, np.float32)), "beta": member(np.zeros(CHANNELS, np.float32)),
            "epsilon": member(1e-3), "label": member("groups"),
        },
    )()  # fmt: skip
    kernel = mps.MPSCNNGroupNormalization.initWithDevice(None, dataSource=groups)
    x = image()
    y = run(lambda commands: kernel.encodeToCommandBuffer(commands, sourceImage=x))
    ones, zeros = np.ones(CHANNELS, np.float32), np.zeros(CHANNELS, np.float32)
    expected = mg.functional.group_normalization(np.asarray(x), 2, ones, zeros, epsilon=1e-3)
    assert np.array_equal(np.asarray(y), expected)


def test_arguments_that_are_integers_in_mps_have_to_be_some() -> None:
    upsampling = mps.MPSCNNUpsamplingNearest
    with pytest.raises(mg.FormatError, match="^MPSCNNUpsamplingNearest: integerScaleFactorX is 1.5; .* an integer$"):
        upsampling.initWithDevice(None, integerScaleFactorX=1.5, integerScaleFactorY=1)
    assert upsampling.initWithDevice(None, integerScaleFactorX=np.int64(2), integerScaleFactorY=1).scaleFactorX == 2


def test_as_many_regions_are_cropped_as_the_count_says() -> None:
    regions = [mps.MPSRegion(mps.MPSOrigin(0, 0, 0), mps.MPSSize(size, 1, 1)) for size in (1, 0.5)]
    crop = mps.MPSNNCropAndResizeBilinear
    arguments: Any = {"resizeWidth": 2, "resizeHeight": 2, "regions": regions}
    assert crop.initWithDevice(None, numberOfRegions=1, **arguments).regions == ((0, 0, 1, 1),)
    with pytest.raises(mg.GeometryError, match="numberOfRegions is 3 but there are 2 regions"):
        crop.initWithDevice(None, numberOfRegions=3, **arguments)


def test_kernels_without_work_say_so() -> None:
    with pytest.raises(NotImplementedError, match="^MPSCNNKernel: encodes nothing by itself"):
        run(lambda commands: mps.MPSCNNKernel.initWithDevice(None).encodeToCommandBuffer(commands, sourceImage=image()))


def test_graphs_take_the_options_of_kernels() -> None:
    node = mps.MPSCNNNeuronReLUNode.nodeWithSource(mps.MPSNNImageNode.nodeWithHandle(None), a=0.0)
    graph = mps.MPSNNGraph.graphWithDevice(None, resultImage=node.resultImage)
    graph.options = mps.MPSKernelOptionsVerbose
    assert graph.options is mps.MPSKernelOptionsVerbose
