"""ForwardLoss, LossGradient and InitialGradient against the float64 references, for every type of loss."""

from __future__ import annotations

from typing import Any

import gpu_forms
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loss_bounds import ELEMENT_TYPES, bound, drawn, magnitudes

import mpsgrad as mg
from mpsgrad import archive, reference
from mpsgrad.testing import FencedImage, assert_within, channel_counts, channel_formats

TYPES = (*ELEMENT_TYPES, "softmax_cross_entropy")
REDUCTIONS = ("none", "sum", "mean", "sum_by_non_zero_weights")


def descriptor(kind: str, reduction: str, across: bool, options: dict[str, Any]) -> mg.LossDescriptor:
    values = {name: value for name, value in options.items() if name != "weights"}
    return mg.LossDescriptor(kind, reduction, reduce_across_batch=across, **values)


def image_of(array: np.ndarray | None) -> mg.Image | None:
    return None if array is None else mg.Image.from_array(array)


@st.composite
def cases(draw: Any) -> tuple[str, Any, tuple[int, ...], str, bool, dict[str, Any]]:
    kind = draw(st.sampled_from(TYPES))
    images, height, width = draw(st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 5)))
    shape = (images, height, width, draw(channel_counts()))
    reduction = "sum" if kind == "cosine_distance" else draw(st.sampled_from(REDUCTIONS))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    options = {
        "weight": draw(st.sampled_from([1.0, 0.5, -2.0, 0.0])),
        "label_smoothing": draw(st.sampled_from([0.0, 0.25])),
        "number_of_classes": shape[3],
        "epsilon": draw(st.sampled_from([1e-7, 0.125])),
        "delta": draw(st.sampled_from([0.5, 2.0])),
        "weights": None,
    }
    if draw(st.booleans()):
        options["weights"] = (generator.integers(-1, 3, shape) * (generator.random(shape) < 0.7)).astype(np.float32)
    return kind, draw(channel_formats()).dtype, shape, reduction, draw(st.booleans()), options


def sizes(kind: str, y: np.ndarray, t: np.ndarray, options: dict[str, Any]) -> tuple[np.ndarray, ...]:
    """Of what is added up for the loss and for its gradients, with weights."""
    w = np.full(y.shape, options["weight"]) if options["weights"] is None else options["weights"]
    w = np.abs(np.asarray(w, np.float64))
    if kind != "softmax_cross_entropy":
        return tuple(w * part for part in magnitudes(kind, y, t, options["epsilon"], options["delta"]))
    spread = np.abs(reference.log_soft_max(y)) + 1
    total = (w * (t + 1)).sum(-1, keepdims=True)
    return w * (t + 1) * spread, (reference.soft_max(y) * total + w * (t + 1)) * spread.max(), w * spread


@given(case=cases(), seed=st.integers(0, 2**32 - 1))
def test_losses_and_gradients_match_the_reference(case, seed):
    check(case, seed)


def check(case: Any, seed: int) -> None:
    kind, dtype, shape, reduction, across, options = case
    y, t = drawn(kind, shape, dtype, seed)
    source, labels, weights = mg.Image.from_array(y), mg.Image.from_array(t), image_of(options["weights"])
    made = descriptor(kind, reduction, across, options)
    forward = mg.ForwardLoss(made)
    loss = FencedImage.of(forward.destination_image_descriptor([source]))
    g = np.random.default_rng(seed).standard_normal(loss.image.shape).astype(np.float32)
    gradients = [FencedImage.of(source.descriptor), FencedImage.of(labels.descriptor)]
    with mg.CommandBuffer() as commands:
        state = forward.result_state(source, destination_image=loss.image)
        forward.encode(commands, source, labels, weights, destination_image=loss.image, destination_state=state)
        for of_labels, fenced in zip((False, True), gradients, strict=True):
            kernel = mg.LossGradient(made, compute_label_gradients=of_labels)
            arguments = (mg.Image.from_array(g), source, labels, weights, state)
            assert kernel.encode(commands, *arguments, destination_gradient=fenced.image) is None

    keywords = options | {"reduction": reduction, "reduce_across_batch": across}
    of_loss, *of_gradients = sizes(kind, y, t, options)
    terms = shape[3] if reduction == "none" else int(np.prod(shape))
    expected = reference.loss(y, t, kind, **keywords)
    chained = np.abs(g)
    if kind == "softmax_cross_entropy":
        # The gradient of a channel takes the sum over all of them.
        chained = chained.max(-1, keepdims=True)
    if reduction != "none":
        scale = _scale(kind, reduction, across, shape, options)
        of_loss = (of_loss.sum((0, 1, 2, 3) if across else (1, 2, 3), keepdims=True) + 2) * scale
        chained = (chained[:1] if across else chained) * scale
    assert_within(loss.check(), expected, bound(np.float32, terms, of_loss, expected), name="loss")
    for fenced, function, size, one in zip(
        gradients,
        (reference.reduced_loss_gradient, reference.reduced_loss_gradient_labels),
        of_gradients,
        (dtype, np.float32),
        strict=True,
    ):
        expected = function(g, y, t, kind, **keywords)
        assert_within(fenced.check(), expected, bound(one, shape[3] + 2, chained * size, expected), name="gradient")


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("channels", [5, 20, 44])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_softmax_in_few_channels_and_many(dtype, channels, reduction):
    options = {"weight": 0.5, "label_smoothing": 0.25, "number_of_classes": channels, "weights": None}
    options |= {"epsilon": 0.125, "delta": 1.0}
    check(("softmax_cross_entropy", dtype, (2, 3, 5, channels), reduction, False, options), 6)


def _scale(kind: str, reduction: str, across: bool, shape: tuple[int, ...], options: dict[str, Any]) -> np.ndarray:
    """What the sum of each image is multiplied by."""
    w = np.full(shape, options["weight"]) if options["weights"] is None else options["weights"]
    if reduction == "sum":
        return np.ones((shape[0], 1, 1, 1))
    units = np.ones((*shape[:3], 1) if kind == "softmax_cross_entropy" else shape) if reduction == "mean" else w != 0
    counts = units.sum((1, 2, 3), keepdims=True).astype(np.float64)
    counts = np.full_like(counts, counts.sum()) if across else counts
    return np.divide(1.0, counts, out=np.zeros_like(counts), where=counts > 0)


def test_smoothing_scales_gradients_for_labels_whose_weights_are_counted():
    options = {"weight": 1.0, "label_smoothing": 0.25, "number_of_classes": 3, "epsilon": 0.125, "delta": 1.0}
    weights = np.array([1, 0, 2] * 4, np.float32).reshape(1, 2, 2, 3)
    check(("sigmoid_cross_entropy", np.float32, (1, 2, 2, 3), REDUCTIONS[3], False, options | {"weights": weights}), 5)


@pytest.mark.parametrize("kind", TYPES)
def test_images_of_many_shares_and_views_of_channels(kind):
    """More elements than a simdgroup takes, joined axes, and pixels that do not follow each other."""
    shape = (2, 37, 41, 12)
    y, t = drawn(kind, shape, np.float32, 3)
    w = np.random.default_rng(4).random(shape, np.float32)
    keywords = {"weights": w, "epsilon": 0.125, "number_of_classes": 12}
    made = descriptor(kind, "sum", False, keywords)
    cuts = [np.ascontiguousarray(array[..., 4:]) for array in (y, t, w)]
    wide = [mg.Image.from_array(array).sub_image(4, 8) for array in (y, t, w)]
    results = []
    for images in (wide, [mg.Image.from_array(array) for array in cuts]):
        with mg.CommandBuffer() as commands:
            loss, state = mg.ForwardLoss(made).encode(commands, *images, return_state=True)
            one = mg.InitialGradient().encode(commands, loss)
            results.append((loss, mg.LossGradient(made).encode(commands, one, *images, state)))
    options = keywords | {"weights": cuts[2], "weight": 1.0}
    of_loss, of_source, _ = sizes(kind, cuts[0], cuts[1], options | {"delta": 1.0})
    expected = reference.loss(*cuts[:2], kind, **options)
    exact = reference.reduced_loss_gradient(np.ones((2, 1, 1, 1)), *cuts[:2], kind, **options)
    for loss, gradient in results:
        size = of_loss.sum((1, 2, 3), keepdims=True)
        assert_within(np.asarray(loss), expected, bound(np.float32, 37 * 41 * 8, size, expected))
        assert_within(np.asarray(gradient), exact, bound(np.float32, 12, of_source, exact))


def test_squares_without_weights():
    """They have a loop of their own on CPUs."""
    options = {"weight": 0.5, "label_smoothing": 0.0, "number_of_classes": 5, "epsilon": 0.125, "delta": 0.5}
    check(("mean_squared_error", np.float32, (2, 3, 3, 5), "mean", False, options | {"weights": None}), 8)


@pytest.mark.usefixtures("shaders_of_gpus")
class TestAsOnAGPU:
    @pytest.mark.parametrize("kind", ["huber", "softmax_cross_entropy"])
    def test_images_of_many_shares(self, kind):
        test_images_of_many_shares_and_views_of_channels(kind)

    @pytest.mark.parametrize("kind", ["huber", "softmax_cross_entropy"])
    @pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
    def test_losses_and_both_gradients(self, kind, dtype):
        options = {"weight": 0.5, "label_smoothing": 0.25, "number_of_classes": 5, "epsilon": 0.125, "delta": 0.5}
        check((kind, dtype, (1, 3, 3, 5), "sum", False, options | {"weights": None}), 8)


@pytest.mark.parametrize("kind", ["mean_squared_error", "softmax_cross_entropy"])
@pytest.mark.parametrize("across", [False, True])
def test_batches_give_the_bits_of_one_image_that_holds_them(kind, across):
    y, t = drawn(kind, (3, 4, 5, 6), np.float32, 5)
    made = mg.LossDescriptor(kind, "mean", reduce_across_batch=across)
    forward, backward = mg.ForwardLoss(made), mg.LossGradient(made)
    source, labels = mg.Image.from_array(y), mg.Image.from_array(t)
    joined = source.batch_representation(), labels.batch_representation()
    apart = [[mg.Image.from_array(one[None]) for one in array] for array in (y, t)]
    with mg.CommandBuffer() as commands:
        loss, state = forward.encode(commands, source, labels, return_state=True)
        ones = mg.InitialGradient().encode(commands, loss)
        gradient = backward.encode(commands, ones, source, labels, None, state)
        results = []
        for sources, targets in (joined, apart):
            losses, states = forward.encode_batch(commands, sources, targets, return_state=True)
            initial = mg.InitialGradient().encode_batch(commands, losses)
            arguments = (commands, initial, sources, targets, None, states)
            made_images = backward.encode_batch(*arguments)
            given_losses = mg.ImageBatch([mg.Image(image.descriptor) for image in losses])
            given = mg.ImageBatch([mg.Image(image.descriptor) for image in made_images])
            assert forward.encode_batch(commands, sources, targets, destination_images=given_losses) is None
            assert backward.encode_batch(*arguments, destination_gradients=given) is None
            results += [(losses, made_images), (given_losses, given)]
        if across:
            separate = forward.result_state_batch(apart[0], destination_images=given_losses)
            with pytest.raises(NotImplementedError, match="reduce_across_batch with source_states that are no parts"):
                backward.encode_batch(commands, list(losses), *apart, None, separate)
    for losses, gradients in results:
        np.testing.assert_array_equal(np.asarray(losses), np.asarray(loss))
        np.testing.assert_array_equal(np.asarray(gradients), np.asarray(gradient))


def test_the_state_holds_what_the_properties_were():
    y, t = drawn("huber", (1, 2, 3, 4), np.float32, 6)
    forward, backward = (make(mg.LossDescriptor("huber")) for make in (mg.ForwardLoss, mg.LossGradient))
    forward.delta, forward.weight, forward.epsilon = 0.25, 3.0, 0.5
    source, labels = mg.Image.from_array(y), mg.Image.from_array(t)
    with mg.CommandBuffer() as commands:
        loss, state = forward.encode(commands, source, labels, return_state=True)
        forward.delta, forward.weight = 9.0, 9.0
        one = mg.InitialGradient().encode(commands, loss)
        with_state = backward.encode(commands, one, source, labels, None, state)
        without = backward.encode(commands, one, source, labels)
    assert (state.loss_descriptor.delta, state.loss_descriptor.weight, state.loss_descriptor.epsilon) == (0.25, 3, 0.5)
    np.testing.assert_allclose(np.asarray(with_state), 3 * np.clip(y - t, -0.25, 0.25), rtol=1e-6)
    np.testing.assert_allclose(np.asarray(without), np.clip(y - t, -1, 1), rtol=1e-6)


def test_temporary_images_and_states_are_read_once():
    y, t = drawn("hinge", (3, 2, 3, 4), np.float32, 7)
    made = mg.LossDescriptor("hinge")
    forward, backward = mg.ForwardLoss(made), mg.LossGradient(made)
    forward.destination_image_allocator = mg.TemporaryImage.default_allocator()
    source, labels = (mg.Image.from_array(array).batch_representation() for array in (y, t))
    with mg.CommandBuffer() as commands:
        losses, states = forward.encode_batch(
            commands, source, labels, return_state=True, state_is_temporary=True
        )
        gradients = backward.encode_batch(commands, losses, source, labels, None, states)
        assert {item.read_count for item in (*losses, *states)} == {0}
        with pytest.raises(mg.StateError, match="read_count 0"):
            backward.encode_batch(commands, losses, source, labels, None, states)
    loss = reference.loss(y, t, "hinge")
    exact = reference.reduced_loss_gradient(loss, y, t, "hinge")
    np.testing.assert_allclose(np.asarray(gradients), exact, rtol=1e-5)


def test_every_run_gives_the_same_bits():
    y, t = drawn("log", (2, 30, 40, 5), np.float32, 8)
    kernel, source, labels = mg.ForwardLoss(mg.LossDescriptor("log", "mean")), *map(mg.Image.from_array, (y, t))
    with mg.CommandBuffer() as commands:
        losses = [kernel.encode(commands, source, labels) for _ in range(20)]
    assert len({np.asarray(loss).tobytes() for loss in losses}) == 1


def test_kernels_from_archives_give_the_same_bits():
    y, t = (mg.Image.from_array(array) for array in drawn("huber", (1, 3, 4, 5), np.float32, 9))
    kernel = mg.ForwardLoss(mg.LossDescriptor("huber", "mean"))
    kernel.delta = 0.375
    backward = mg.LossGradient(kernel.loss_descriptor, compute_label_gradients=True)
    results = []
    for forward, gradient in ((kernel, backward), (_restored(kernel), _restored(backward))):
        with mg.CommandBuffer() as commands:
            loss = forward.encode(commands, y, t)
            results.append((loss, gradient.encode(commands, loss, y, t)))
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def _restored(kernel: Any) -> Any:
    return archive.from_bytes(archive.to_bytes(kernel))


def test_initial_gradients_are_ones_whatever_the_source_holds():
    for dtype in (np.float32, np.float16):
        source = mg.Image.from_array(np.full((2, 3, 4, 5), np.nan, dtype))
        with mg.CommandBuffer() as commands:
            result = mg.InitialGradient().encode(commands, source)
        assert result.descriptor == source.descriptor
        assert (np.asarray(result) == 1).all()


# bad input


def zeros(*shape: int, dtype: Any = np.float32) -> mg.Image:
    return mg.Image.from_array(np.zeros(shape or (2, 3, 4, 5), dtype))


def forward(labels: Any = None, weights: Any = None, reduction: str = "sum", **keywords: Any) -> Any:
    commands = mg.CommandBuffer()
    try:
        kernel = keywords.pop("kernel", None) or mg.ForwardLoss(mg.LossDescriptor("huber", reduction))
        source, labels = keywords.pop("source", None) or zeros(), zeros() if labels is None else labels
        return kernel.encode(commands, source, labels, weights, **keywords)
    finally:
        assert commands._dispatches == []


def backward(gradient: Any = None, source: Any = None, labels: Any = None, state: Any = None, **keywords: Any) -> Any:
    commands = mg.CommandBuffer()
    try:
        kernel = keywords.pop("kernel", None) or mg.LossGradient(mg.LossDescriptor("huber"))
        source, labels = (zeros() if image is None else image for image in (source, labels))
        gradient = zeros(2, 1, 1, 1) if gradient is None else gradient
        return kernel.encode(commands, gradient, source, labels, None, state, **keywords)
    finally:
        assert commands._dispatches == []


def state_of(kind: str = "huber", source: mg.Image | None = None) -> Any:
    kernel = mg.ForwardLoss(mg.LossDescriptor(kind))
    source = source or zeros()
    return kernel.result_state(source, destination_image=zeros(source.number_of_images, 1, 1, 1))


def configured(kernel: Any, **properties: Any) -> Any:
    for name, value in properties.items():
        setattr(kernel, name, value)
    return kernel


def aliased(kernel: str) -> None:
    source = zeros(2, 1, 1, 1)
    if kernel == "forward":
        forward(source, source=source, destination_image=source)
    gradient = mg.LossGradient(mg.LossDescriptor("huber"))
    backward(zeros(2, 1, 1, 1), zeros(2, 1, 1, 1), source, kernel=gradient, destination_gradient=source)


BAD_INPUT = {
    "no descriptor": (lambda: mg.ForwardLoss("huber"), mg.FormatError, "ForwardLoss: loss_descriptor is 'huber'"),
    "a gradient without a descriptor": (
        lambda: mg.LossGradient(None), mg.FormatError, "LossGradient: loss_descriptor is None"),
    "the mean of a cosine distance": (
        lambda: mg.LossDescriptor("cosine_distance", "mean"), mg.GeometryError, "it has to be SUM"),
    "a delta below 0": (
        lambda: configured(mg.ForwardLoss(mg.LossDescriptor("huber")), delta=-1.0), mg.GeometryError,
        "delta is -1.0; it has to be at least 0.0"),
    "labels of another size": (
        lambda: forward(labels=zeros(2, 3, 4, 6)), mg.GeometryError, "labels is 2x3x4x6 but has to be 2x3x4x5"),
    "labels that are an array": (
        lambda: forward(labels=np.zeros((2, 3, 4, 5))), mg.FormatError, "labels is ndarray; it has to be an Image"),
    "labels in float16": (
        lambda: forward(labels=zeros(dtype=np.float16)), mg.FormatError, "labels is FLOAT16; it has to be FLOAT32"),
    "weights of another size": (
        lambda: forward(weights=zeros(1, 3, 4, 5)), mg.GeometryError, "weights is 1x3x4x5 but has to be 2x3x4x5"),
    "weights in float16": (
        lambda: forward(weights=zeros(dtype=np.float16)), mg.FormatError, "weights is FLOAT16"),
    "a loss image of the source's size": (
        lambda: forward(destination_image=zeros()), mg.GeometryError,
        "destination_image is 2x3x4x5 but has to be 2x1x1x1 for a 2x3x4x5 source_image and reduction SUM"),
    "one value for an unreduced loss": (
        lambda: forward(reduction="none", destination_image=zeros(2, 1, 1, 1)), mg.GeometryError,
        "destination_image is 2x1x1x1 but has to be 2x3x4x5"),
    "a loss image in float16": (
        lambda: forward(destination_image=zeros(2, 1, 1, 1, dtype=np.float16)), mg.FormatError,
        "destination_image is FLOAT16"),
    "a loss of part of the image": (
        lambda: forward(kernel=configured(mg.ForwardLoss(mg.LossDescriptor("huber")), offset=(1, 0, 0))),
        mg.GeometryError, "offset is Offset(x=1, y=0, z=0); a loss works on whole images"),
    "a gradient for part of the image": (
        lambda: backward(kernel=configured(mg.LossGradient(mg.LossDescriptor("huber")), secondary_offset=(0, 1, 0))),
        mg.GeometryError, "secondary_offset is"),
    "a destination that is a source": (lambda: aliased("forward"), mg.GeometryError, "shares memory with source_image"),
    "a destination that is the labels": (lambda: aliased("backward"), mg.GeometryError, "shares memory with labels"),
    "a state without a destination": (
        lambda: forward(destination_state=state_of()), mg.FormatError, "destination_state without destination_image"),
    "a state of another loss": (
        lambda: forward(destination_image=zeros(2, 1, 1, 1), destination_state=object()), mg.FormatError,
        "destination_state is object"),
    "a returned state with a destination": (
        lambda: forward(destination_image=zeros(2, 1, 1, 1), return_state=True), mg.FormatError,
        "return_state with destination_image; pass result_state"),
    "a gradient of the source's size": (
        lambda: backward(zeros()), mg.GeometryError, "source_gradient is 2x3x4x5 but has to be 2x1x1x1"),
    "a gradient in float16": (
        lambda: backward(zeros(2, 1, 1, 1, dtype=np.float16)), mg.FormatError, "source_gradient is FLOAT16"),
    "a result of another size": (
        lambda: backward(destination_gradient=zeros(2, 3, 4, 4)), mg.GeometryError,
        "destination_gradient is 2x3x4x4 FLOAT32 but the gradient 2x3x4x5 FLOAT32"),
    "a gradient for labels in float16": (
        lambda: backward(
            kernel=mg.LossGradient(mg.LossDescriptor("huber"), compute_label_gradients=True),
            destination_gradient=zeros(dtype=np.float16)),
        mg.GeometryError, "is 2x3x4x5 FLOAT16 but the gradient 2x3x4x5 FLOAT32"),
    "no state at all": (lambda: backward(state=3), mg.FormatError, "source_state is int; it has to be made by Forward"),
    "the state of another loss type": (
        lambda: backward(state=state_of("hinge")), mg.StateError, "loss_type is <LossType.HUBER: 6> but that of"),
    "the state of another source": (
        lambda: backward(state=state_of(source=zeros(2, 3, 4, 4))), mg.GeometryError,
        "source_state was made for a 2x3x4x4 source but source_image is 2x3x4x5"),
    "a batch with too few labels": (
        lambda: mg.ForwardLoss(mg.LossDescriptor("huber")).encode_batch(
            mg.CommandBuffer(), [zeros(1, 1, 1, 2)] * 2, [zeros(1, 1, 1, 2)]),
        mg.GeometryError, "labels has 1 images but the batch has 2"),
}  # fmt: skip


@pytest.mark.parametrize(("build", "error", "words"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_named_and_dispatches_nothing(build, error, words):
    with pytest.raises(error) as raised:
        build()
    assert words in str(raised.value)
