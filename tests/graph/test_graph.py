"""``Graph``: what it takes and gives, the forms of encodes, pruning, and errors in terms of the user's nodes."""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
import pytest

import mpsgrad as mg

RANDOM = np.random.default_rng(5)
MEAN_SQUARED = mg.LossDescriptor("mean_squared_error", "sum")


def values(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def image(*shape: int) -> mg.Image:
    return mg.Image.from_array(values(*shape))


def weights(*shape: int, label: str | None = None) -> mg.ConvolutionDataSource:
    return mg.ConvolutionDataSource.from_arrays(0.3 * values(*shape), label=label)


def trained() -> tuple[mg.ConvolutionNode, mg.LossNode, list[mg.FilterNode]]:
    """A convolution and a ReLU with a loss, and the end of the backward pass."""
    node = mg.ConvolutionNode(mg.ImageNode("pictures"), weights(4, 3, 3, 2, label="first"))
    relu = mg.NeuronReLUNode(node.result_image)
    loss = mg.LossNode(relu.result_image, mg.LabelsNode("answers"), descriptor=MEAN_SQUARED)
    return node, loss, loss.training_graph()


def test_handles_and_their_order() -> None:
    a, b = mg.ImageNode("a"), mg.ImageNode("b")
    total = mg.AdditionNode(b, a)
    square = mg.MultiplicationNode(total.result_image, total.result_image)
    total.result_image.handle = "total"
    total.result_image.export_from_graph = True
    total.result_state.handle = "state"  # type: ignore[union-attr]
    total.result_state.export_from_graph = True  # type: ignore[union-attr]
    other = mg.NeuronReLUNode(a)
    square.result_image.handle, other.result_image.handle = "square", "other"
    graph = mg.Graph([square, other])
    assert graph.source_image_handles == ["b", "a"] and graph.source_state_handles == []
    assert graph.result_handle == "square"
    assert graph.intermediate_image_handles == ["other", "total"]
    assert graph.result_state_handles == ["state"]
    x, y = values(1, 2, 2, 3), values(1, 2, 2, 3)
    images: list[mg.Image] = []
    states: list[mg.State] = []
    with mg.CommandBuffer() as commands:
        result = graph.encode(
            commands,
            [mg.Image.from_array(y), mg.Image.from_array(x)],
            intermediate_images=images,
            destination_states=states,
        )
    np.testing.assert_array_equal(np.asarray(result), (x + y) ** 2)
    np.testing.assert_array_equal(np.asarray(images[0]), np.maximum(x, 0))
    np.testing.assert_array_equal(np.asarray(images[1]), x + y)
    assert isinstance(states[0], mg.ArithmeticGradientState)


def test_labels_are_source_states() -> None:
    _, _, ends = trained()
    graph = mg.Graph(ends, results_are_needed=False)
    assert graph.source_image_handles == ["pictures"] and graph.source_state_handles == ["answers"]
    assert not graph.result_image_is_needed
    assert [graph.read_count_for_source_image(0), graph.read_count_for_source_state(0)] == [1, 1]
    with pytest.raises(mg.GeometryError, match="source image 1 of a graph with 1"):
        graph.read_count_for_source_image(1)


def test_what_nothing_needs_is_left_out() -> None:
    node, loss, ends = trained()
    assert [type(each).__name__ for each in mg.Graph(ends).filters] == [
        "ConvolutionNode", "NeuronReLUNode", "LossNode", "NeuronGradientNode", "ConvolutionGradientNode",
    ]  # fmt: skip
    pictures, answers = image(2, 5, 5, 2), mg.LossLabels.from_array(values(2, 5, 5, 4))
    frozen = ends[0]
    assert isinstance(frozen, mg.ConvolutionGradientNode)
    frozen.training_style = mg.TrainingStyle.UPDATE_DEVICE_NONE
    graph = mg.Graph(ends, results_are_needed=False)
    assert graph.filters[-1] is loss
    with mg.CommandBuffer() as commands:
        assert graph.encode(commands, [pictures], [answers]) is None
    assert np.asarray(answers.loss_image).min() > 0
    with pytest.raises(mg.StateError, match="nothing is left to compute"):
        mg.Graph(node, results_are_needed=False)
    # The state holds the gradients for the parameters once the gradient filter has run.
    node.result_state.export_from_graph = True  # type: ignore[union-attr]
    graph, states = mg.Graph(ends, results_are_needed=False), []
    with mg.CommandBuffer() as commands:
        graph.encode(commands, [pictures], [answers], destination_states=states)
    assert graph.filters[-1] is frozen and states[0].gradient_for_weights.any()


def test_the_gradient_of_the_pictures_is_left_out_where_only_weights_are_trained() -> None:
    node, _, ends = trained()
    node.result_state.export_from_graph = True  # type: ignore[union-attr]
    pictures, answers = image(2, 5, 5, 2), mg.LossLabels.from_array(values(2, 5, 5, 4))
    gradients, reports = [], []
    for needed in (True, False):
        graph = mg.Graph(ends, results_are_needed=needed)
        states: list[Any] = []
        with mg.CommandBuffer() as commands:
            graph.encode(commands, [pictures], [answers], destination_states=states)
            count = len(commands._dispatches)
        gradients.append(states[0].gradient_for_weights)
        reports.append((count, len(graph.memory_report().lifetimes)))
    np.testing.assert_array_equal(*gradients)
    assert reports[1][0] < reports[0][0] and reports[0][1] == reports[1][1]


def test_batches_of_images_apart_are_the_same_as_one_image() -> None:
    node, _, ends = trained()
    node.result_state.export_from_graph = True  # type: ignore[union-attr]
    graph = mg.Graph([*ends, node])
    a, t = values(3, 5, 5, 2), values(3, 5, 5, 4)
    whole, answers = mg.Image.from_array(a), mg.LossLabels.from_array(t)
    apart = [mg.Image.from_array(each[None]) for each in a]
    labels = [mg.LossLabels.from_array(each[None]) for each in t]
    found = []
    for images, states in ((whole.batch_representation(), answers), (apart, labels)):
        made: list[Any] = []
        gradients: list[Any] = []
        with mg.CommandBuffer() as commands:
            result = graph.encode_batch(
                commands, [images], [states], intermediate_images=made, destination_states=gradients
            )
        assert isinstance(result, mg.ImageBatch) and len(result) == 3
        found.append((np.asarray(result), np.asarray(made[0]), gradients[0][0].gradient_for_weights))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
    losses = np.concatenate([np.asarray(each.loss_image) for each in labels])
    np.testing.assert_array_equal(losses, np.asarray(answers.loss_image))
    with mg.CommandBuffer() as commands:
        one_by_one = graph.encode(commands, [apart[1]], [labels[1]])
    np.testing.assert_array_equal(np.asarray(one_by_one), found[0][0][1:2])


def test_labels_of_a_batch_have_weights_or_have_none() -> None:
    loss = mg.LossNode(mg.NeuronReLUNode(mg.ImageNode()).result_image, descriptor=MEAN_SQUARED)
    graph = mg.Graph(loss)
    images = [image(1, 2, 2, 3) for _ in range(2)]
    plain, weighted = (mg.LossLabels.from_array(values(1, 2, 2, 3), *each) for each in ((), (values(1, 2, 2, 3),)))
    for labels in ([plain, weighted], [weighted, plain]):
        commands = mg.CommandBuffer()
        with pytest.raises(mg.FormatError, match=r"some of source_states\[0\] have weights and some have not"):
            graph.encode_batch(commands, [images], [labels])
        assert not commands._dispatches


def test_temporary_sources_are_read_once_and_temporary_results_may_be_read() -> None:
    x = mg.ImageNode("x")
    twice = mg.AdditionNode(x, x)
    middle = mg.MultiplicationNode(twice.result_image, x)
    middle.result_image.image_allocator = mg.TemporaryImage.default_allocator()
    graph = mg.Graph(mg.SubtractionNode(middle.result_image, twice.result_image))
    graph.destination_image_allocator = mg.TemporaryImage.default_allocator()
    a = values(1, 3, 3, 4)
    copy, last = mg.NeuronLinear(a=1), mg.NeuronLinear(a=1)
    copy.destination_image_allocator = mg.TemporaryImage.default_allocator()
    with mg.CommandBuffer() as commands:
        source = copy.encode(commands, mg.Image.from_array(a))
        source.read_count += 1
        results = []
        for _ in range(2):
            result = graph.encode(commands, [source])
            assert result is not None and result.read_count == 1
            results.append(last.encode(commands, result))
        assert source.read_count == 0
        with pytest.raises(mg.StateError, match="source image x"):
            graph.encode(commands, [source])
    for result in results:
        np.testing.assert_allclose(np.asarray(result), 2 * a * a - 2 * a, rtol=1e-6, atol=1e-6)


def test_execute_async_calls_the_handler_with_the_result() -> None:
    graph = mg.Graph(mg.NeuronReLUNode(mg.ImageNode()))
    done, calls = threading.Event(), []

    def handler(*arguments: Any) -> None:
        calls.append(arguments)
        done.set()

    a = values(2, 3, 3, 4)
    result = graph.execute_async([mg.Image.from_array(a)], completion_handler=handler)
    assert done.wait(60)
    assert calls == [(result, None)]
    np.testing.assert_array_equal(np.asarray(result), np.maximum(a, 0))


def test_reload_from_data_sources() -> None:
    arrays = 0.3 * values(4, 1, 1, 2), values(4)
    graph = mg.Graph(mg.ConvolutionNode(mg.ImageNode(), mg.ConvolutionDataSource.from_arrays(*arrays)))
    source = image(1, 3, 3, 2)
    results = []
    for _ in range(3):
        with mg.CommandBuffer() as commands:
            results.append(graph.encode(commands, [source]))
        if len(results) == 2:
            for array in arrays:
                array *= 2
            graph.reload_from_data_sources()
    first, second, third = map(np.asarray, results)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(third, 2 * first)


def test_float16_images_and_formats() -> None:
    x = mg.ImageNode()
    relu = mg.NeuronReLUNode(mg.NeuronLinearNode(x, a=2.0).result_image)
    graph = mg.Graph(relu)
    a = values(2, 3, 3, 4).astype(np.float16)
    with mg.CommandBuffer() as commands:
        result = graph.encode(commands, [mg.Image.from_array(a)])
        single = graph.encode(commands, [mg.Image.from_array(a.astype(np.float32))])
    assert np.asarray(result).dtype == np.float16 and np.asarray(single).dtype == np.float32
    np.testing.assert_array_equal(np.asarray(result), np.maximum(2 * a, 0))
    graph.format = mg.FeatureChannelFormat.FLOAT16
    b = values(2, 3, 3, 4)
    with mg.CommandBuffer() as commands:
        converted = graph.encode(commands, [mg.Image.from_array(b)])
    assert np.asarray(converted).dtype == np.float16
    np.testing.assert_array_equal(np.asarray(converted), np.maximum(2 * b, 0).astype(np.float16))


def test_images_of_two_formats_meet() -> None:
    data = [weights(4, 1, 1, channels) for channels in (2, 4)]
    pictures, answers = values(2, 3, 3, 2), values(2, 3, 3, 4)

    def gradients(*formats: str) -> list[np.ndarray]:
        nodes = [mg.ConvolutionNode(mg.ImageNode(), data[0])]
        nodes.append(mg.ConvolutionNode(nodes[0].result_image, data[1]))
        total = mg.AdditionNode(nodes[0].result_image, nodes[1].result_image)
        for node, name in zip((*nodes, total), formats, strict=True):
            node.result_image.format = mg.FeatureChannelFormat[name]
            if node.result_state is not None:
                node.result_state.export_from_graph = node is not total
        loss = mg.LossNode(total.result_image, descriptor=MEAN_SQUARED)
        end = loss.training_graph()
        graph = mg.Graph(end)
        states: list[Any] = []
        with mg.CommandBuffer() as commands:
            labels = mg.LossLabels.from_array(answers)
            dx = graph.encode(commands, [mg.Image.from_array(pictures)], [labels], destination_states=states)
        shapes = graph.plan([mg.Image.from_array(pictures)]).shapes.of
        assert [shapes[node.result_image].channel_format.name for node in (*nodes, total)] == list(formats)
        return [np.asarray(dx, np.float32), *(state.gradient_for_weights for state in states)]

    exact = gradients("FLOAT32", "FLOAT32", "FLOAT32")
    for formats in (("FLOAT16", "FLOAT32", "FLOAT16"), ("FLOAT32", "FLOAT16", "FLOAT32")):
        for got, wanted in zip(gradients(*formats), exact, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=5e-3, atol=5e-3 * np.abs(wanted).max())


def test_a_source_that_is_converted_has_to_be_committed_before() -> None:
    halves, singles = mg.ImageNode(), mg.ImageNode()
    graph = mg.Graph(mg.AdditionNode(halves, singles))
    a = values(1, 3, 3, 4)
    first, second = mg.CommandBuffer(), mg.CommandBuffer()
    doubled = mg.NeuronLinear(a=2).encode(first, mg.Image.from_array(a.astype(np.float16)))
    result = graph.encode(second, [doubled, mg.Image.from_array(a)])
    with pytest.raises(mg.StateError, match="commit it first"):
        second.commit()
    first.commit()
    second.commit()
    np.testing.assert_array_equal(np.asarray(result), np.float32(2) * a.astype(np.float16) + a)


def test_sizes_that_do_not_meet_are_reported_with_all_shapes_before() -> None:
    x = mg.ImageNode("pictures")
    half = mg.PoolingMaxNode(x, 2, label="half")
    top = mg.ConvolutionNode(half.result_image, weights(4, 3, 3, 2, label="top"))
    unrelated = mg.NeuronReLUNode(x)
    total = mg.AdditionNode(top.result_image, mg.NeuronReLUNode(x).result_image, label="sum")
    graph = mg.Graph([total, unrelated])
    with mg.CommandBuffer() as commands, pytest.raises(mg.GeometryError) as caught:
        graph.encode(commands, [image(8, 6, 6, 2)])
    message = str(caught.value).splitlines()
    assert message[0].startswith("Graph: sum: Add: ")
    assert message[1:] == [
        "  source pictures: 8x6x6x2",
        "  half (PoolingMaxNode 2x2 / 2x2): 8x6x6x2 -> 8x3x3x2",
        "  top (ConvolutionNode 3x3): 8x3x3x2 -> 8x3x3x4",
        "  NeuronReLU 1 (NeuronReLUNode): 8x6x6x2 -> 8x6x6x2",
        "  sum (AdditionNode): 8x3x3x4 and 8x6x6x2 -> ?",
    ]


def test_what_a_kernel_refuses_at_an_encode_is_reported_with_all_shapes_before() -> None:
    pooling = mg.PoolingMaxNode(mg.ImageNode("x"), 2)
    assert pooling.result_state is not None
    graph = mg.Graph(
        mg.PoolingMaxGradientNode(pooling.result_image, mg.ImageNode("y"), pooling.result_state, label="wrong")
    )
    with mg.CommandBuffer() as commands:
        with pytest.raises(mg.GeometryError, match=r"Graph: wrong: PoolingMaxGrad(.*\n)*  PoolingMax .*2x4x4x2 -> "):
            graph.encode(commands, [image(2, 4, 4, 2), image(2, 6, 6, 2)])
        assert not commands._dispatches


def test_what_allocators_give_and_what_is_to_be_filled_is_checked() -> None:
    class Allocator:
        def __init__(self, made: Any) -> None:
            self.made = made

        def image(self, *_: Any) -> Any:
            return self.made

    relu = mg.NeuronReLUNode(mg.ImageNode("x"), label="between")
    graph = mg.Graph(mg.NeuronTanHNode(relu.result_image))
    with mg.CommandBuffer() as commands:
        for allocator, message in (
            (Allocator(None), "gave None; it has to give an image of 1x4x4x2 FLOAT32"),
            (Allocator(image(1, 2, 2, 2)), "gave <Image 1x2x2x2 .*; it has to give an image of 1x4x4x2"),
        ):
            relu.result_image.image_allocator = allocator  # type: ignore[assignment]
            with pytest.raises(mg.FormatError, match=f"Graph: between: .*the allocator of the result.*{message}"):
                graph.encode(commands, [image(1, 4, 4, 2)])
        with pytest.raises(mg.FormatError, match="intermediate_images is tuple; it has to be a list"):
            graph.encode(commands, [image(1, 4, 4, 2)], intermediate_images=())  # type: ignore[arg-type]
        assert not commands._dispatches
    with pytest.raises(mg.FormatError, match=r"ImageNode: image_allocator is 3; it has to have an image\(\) method"):
        relu.result_image.image_allocator = 3  # type: ignore[assignment]


def test_several_threads_encode_one_graph() -> None:
    graph = mg.Graph(mg.NeuronTanHNode(mg.NeuronReLUNode(mg.ImageNode("x")).result_image))
    pictures = [image(1, 5, 5, 2) for _ in range(3)]
    wrong: list[Any] = []

    def encode(picture: mg.Image) -> None:
        try:
            for _ in range(20):
                with mg.CommandBuffer() as commands:
                    result = graph.encode(commands, [picture])
                expected = np.tanh(np.maximum(np.asarray(picture), 0))
                np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-5, atol=1e-6)
        except Exception as error:
            wrong.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=encode, args=(picture,)) for picture in pictures]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong


def test_labels_that_do_not_fit_are_refused_before_anything_is_dispatched() -> None:
    _, _, ends = trained()
    graph = mg.Graph(ends)
    with mg.CommandBuffer() as commands:
        with pytest.raises(mg.GeometryError, match="Graph: Loss: Loss: labels are 2x5x5x3 but source_image is 2x5x5x4"):
            graph.encode(commands, [image(2, 5, 5, 2)], [mg.LossLabels.from_array(values(2, 5, 5, 3))])
        assert not commands._dispatches


def test_missing_and_wrong_sources_are_named() -> None:
    _, _, ends = trained()
    graph = mg.Graph(ends)
    pictures, answers = image(2, 5, 5, 2), mg.LossLabels.from_array(values(2, 5, 5, 4))
    wrong: list[tuple[type[Exception], str, tuple[Any, ...]]] = [
        (mg.GeometryError, "source_images has 0 but the graph takes 1: pictures", ([], [answers])),
        (mg.GeometryError, "source_states has 0 but the graph takes 1: answers", ([pictures],)),
        (mg.FormatError, "source_images is Image; it has to be a list", (pictures, [answers])),
        (mg.FormatError, "source image pictures is ndarray", ([values(2, 5, 5, 2)], [answers])),
        (mg.FormatError, "pictures is ImageBatch.*encode_batch", ([pictures.batch_representation()], [answers])),
        (mg.FormatError, "source state answers is Image; it has to be LossLabels", ([pictures], [pictures])),
    ]  # fmt: skip
    with mg.CommandBuffer() as commands:
        for kind, message, arguments in wrong:
            with pytest.raises(kind, match=message):
                graph.encode(commands, *arguments)
        assert not commands._dispatches
    with pytest.raises(mg.StateError, match="committed"):
        graph.encode(commands, [pictures], [answers])
    with pytest.raises(mg.FormatError, match="command_buffer is None"):
        graph.encode(None, [pictures], [answers])  # type: ignore[arg-type]
    nameless = mg.Graph(mg.LossNode(mg.ImageNode(), descriptor=MEAN_SQUARED, label="error"))
    with mg.CommandBuffer() as commands, pytest.raises(mg.GeometryError, match="the graph takes 1: one for error$"):
        nameless.encode(commands, [pictures])


def test_a_cycle_is_found_when_the_graph_is_made() -> None:
    first = mg.NeuronReLUNode(mg.ImageNode(), label="first")
    second = mg.NeuronTanHNode(first.result_image, label="second")
    first.source_images = (second.result_image,)
    with pytest.raises(mg.StateError, match="cycle: <NeuronTanHNode 'second'> reads .*'first'> reads .*'second'>"):
        mg.Graph(second)


def test_two_uses_of_one_convolution_state_are_refused() -> None:
    node, loss, ends = trained()
    (again,) = loss.training_graph()
    with pytest.raises(mg.StateError, match="both use the state of <ConvolutionNode 'first'>.*ForwardLossNode"):
        mg.Graph([*ends, again])


def test_wrong_results_are_named() -> None:
    node = mg.NeuronReLUNode(mg.ImageNode())
    with pytest.raises(mg.GeometryError, match="results is empty"):
        mg.Graph([])
    with pytest.raises(mg.FormatError, match=r"results\[1\] is int"):
        mg.Graph([node, 3])  # type: ignore[list-item]
    with pytest.raises(mg.StateError, match="is produced by no filter"):
        mg.Graph(mg.ImageNode("x"))
    with pytest.raises(mg.GeometryError, match="results_are_needed has 2 values but there are 1 results"):
        mg.Graph(node, results_are_needed=[True, False])
    loss = mg.LossNode(node.result_image, descriptor=MEAN_SQUARED)
    loss.source_states = (mg.StateNode("lost"),)
    with pytest.raises(mg.StateError, match="<StateNode 'lost'> has no producer"):
        mg.Graph(loss)


def test_what_a_kernel_refuses_names_the_node() -> None:
    node = mg.PoolingMaxNode(mg.ImageNode(), kernel_width=0, kernel_height=2, label="half")
    with pytest.raises(mg.GeometryError, match="Graph: half: PoolingMax: kernel_width"):
        mg.Graph(node)


def test_memory_report_needs_shapes() -> None:
    graph = mg.Graph(mg.NeuronReLUNode(mg.NeuronReLUNode(mg.ImageNode()).result_image))
    with pytest.raises(mg.StateError, match="memory_report without source_images before the first encode"):
        graph.memory_report()
    report = graph.memory_report([mg.ImageDescriptor(width=4, height=4, feature_channels=4)])
    assert report.bytes_without_reuse == report.planned_bytes == 256 == report.largest_live_bytes
    with pytest.raises(mg.FormatError, match="source_images.0. is str"):
        graph.plan(["x"])  # type: ignore[list-item]


def test_flags_say_which_statistics_a_batch_normalization_uses() -> None:
    channels = values(4, 8)
    gamma, beta, mean, variance = (*channels[:3], np.abs(channels[3]) + 0.5)
    data = mg.BatchNormalizationDataSource.from_arrays(gamma, beta, mean, variance, epsilon=1e-3)
    a, labels = values(3, 2, 2, 8), values(3, 2, 2, 8)
    of_batch = a.mean((0, 1, 2)), a.var((0, 1, 2))
    always = mg.BatchNormalizationFlags.CALCULATE_STATISTICS_ALWAYS
    never = mg.BatchNormalizationFlags.CALCULATE_STATISTICS_NEVER
    for flags, trains in ((never, True), (always, False), (never, False), (mg.BatchNormalizationFlags.DEFAULT, False)):
        node = mg.BatchNormalizationNode(mg.ImageNode(), data)
        node.flags, node.training_style = flags, mg.TrainingStyle.UPDATE_DEVICE_NONE
        used = of_batch if flags is always else (mean, variance)
        scale = gamma / np.sqrt(used[1] + 1e-3)
        wanted = (a - used[0]) * scale + beta
        source = mg.Image.from_array(a)
        with mg.CommandBuffer() as commands:
            if not trains:
                got = mg.Graph(node).encode(commands, [source])
            else:
                loss = mg.LossNode(node.result_image, descriptor=MEAN_SQUARED)
                graph = mg.Graph(loss.training_graph())
                got = graph.encode(commands, [source], [mg.LossLabels.from_array(labels)])
                wanted = 2 * (wanted - labels) * scale
        np.testing.assert_allclose(np.asarray(got), wanted, rtol=1e-4, atol=1e-4)
    with pytest.raises(mg.FormatError, match="flags is 'never'"):
        node.flags = "never"  # type: ignore[assignment]
