"""The loss of object detectors and its gradient against the float64 reference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import mpsgrad as mg
from mpsgrad import archive, functional, reference
from mpsgrad.reference import YOLOOptions
from mpsgrad.testing import FencedImage, assert_within, channel_formats, error_bound

ANCHORS = ((1.0, 2.0), (1.5, 1.0), (0.5, 0.75))
NAMES = ("xy", "wh", "confidence", "classes")


def drawn(shape: tuple[int, int, int], classes: int, anchors: int, dtype: Any, seed: int) -> Any:
    """Predictions that are near their labels, so that every choice is met, and one-hot classes."""
    rng = np.random.default_rng(seed)
    blocks = (*shape, anchors, 5 + classes)
    t = 0.3 * rng.standard_normal(blocks)
    t[..., 0:2] = rng.random((*blocks[:4], 2)) * 0.8 + 0.1
    t[..., 4] = rng.random(blocks[:4]) < 0.5
    t[..., 5:] = np.eye(classes)[rng.integers(0, classes, blocks[:4])]
    y = rng.standard_normal(blocks)
    y[..., 0:2] = np.log(t[..., 0:2] / (1 - t[..., 0:2])) + 0.5 * rng.standard_normal((*blocks[:4], 2))
    y[..., 2:4] = t[..., 2:4] + 0.3 * rng.standard_normal((*blocks[:4], 2))
    return y.reshape(*shape, -1).astype(dtype), t.reshape(*shape, -1).astype(np.float32)


def is_clear(y: np.ndarray, t: np.ndarray, options: YOLOOptions) -> bool:
    """Whether no choice hangs on rounding: overlaps keep away from the thresholds and, in a cell, from each other."""
    overlaps = reference.yolo_overlaps(y, t, options.anchors)
    differences = np.abs(overlaps[..., :, None] - overlaps[..., None, :])
    differences += np.eye(overlaps.shape[-1]) + (np.minimum(overlaps[..., :, None], overlaps[..., None, :]) == 0)
    thresholds = np.abs(overlaps[..., None] - [options.least_of_object, options.most_of_nothing])
    return bool(min(differences.min(), thresholds.min()) > 1e-4)


def descriptor(options: YOLOOptions, **changes: Any) -> mg.YOLOLossDescriptor:
    parts = {
        f"{name}_loss_descriptor": mg.LossDescriptor(kind, weight=weight, **keywords)
        for name, kind, weight, keywords in zip(
            NAMES, options.types, options.part_weights, options.options, strict=True
        )
    }
    names = ("rescore", "scale_xy", "scale_wh", "scale_no_object", "scale_object", "scale_class")
    return mg.YOLOLossDescriptor(
        options.anchors,
        **parts,
        **{name: getattr(options, name) for name in names},
        min_iou_for_object_presence=options.least_of_object,
        max_iou_for_object_absence=options.most_of_nothing,
        **changes,
    )


def run(kernel: mg.YOLOLoss, y: np.ndarray, t: np.ndarray, weights: np.ndarray | None = None) -> Any:
    size = (t.shape[2], t.shape[1], t.shape[3]) if kernel.reduction_type is mg.LossReductionType.NONE else (1, 1, 1)
    source, labels = mg.Image.from_array(y), mg.LossLabels.from_array(t, weights, loss_image_size=size)
    fenced = FencedImage.of(source.descriptor)
    with mg.CommandBuffer() as commands:
        assert kernel.encode(commands, source, labels, destination_image=fenced.image) is None
    return np.array(labels.loss_image), fenced.check()


kinds = st.sampled_from(["mean_absolute_error", "mean_squared_error", "huber", "sigmoid_cross_entropy"])


@st.composite
def cases(draw: Any) -> tuple[YOLOOptions, dict[str, Any]]:
    smoothing = draw(st.sampled_from([0.0, 0.25]))
    options = YOLOOptions(
        ANCHORS[: draw(st.integers(1, 3))],
        types=(draw(kinds), draw(kinds), draw(kinds), draw(st.sampled_from(["softmax_cross_entropy", "huber"]))),
        options=({}, {"delta": 0.5}, {"label_smoothing": smoothing}, {"label_smoothing": smoothing,
                                                                      "number_of_classes": 3}),
        part_weights=(1.0, 0.5, draw(st.sampled_from([0.0, 2.0])), 1.5),
        rescore=draw(st.booleans()),
        scale_xy=draw(st.sampled_from([10.0, 0.0])),
        scale_object=7.0,
        most_of_nothing=0.45,
    )  # fmt: skip
    reduction = draw(st.sampled_from(["none", "sum", "mean", "sum_by_non_zero_weights"]))
    return options, {"reduction": reduction, "reduce_across_batch": draw(st.booleans())}


def check_against_the_reference(data: Any) -> None:
    options, how = data.draw(cases())
    shape = (data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4)))
    dtype = data.draw(channel_formats()).dtype
    seed = data.draw(st.integers(0, 2**32 - 1))
    y, t = drawn(shape, data.draw(st.integers(1, 4)), len(options.anchors), dtype, seed)
    assume(is_clear(y, t, options))
    weights = None
    if data.draw(st.booleans()):
        rng = np.random.default_rng(seed)
        weights = (rng.integers(0, 3, y.shape) * 0.5).astype(np.float32)
    follows = data.draw(st.booleans())
    kernel = mg.YOLOLoss(
        descriptor(options, reduction_type=how["reduction"], reduce_across_batch=how["reduce_across_batch"]),
        gradient_follows_reduction=follows,
    )
    value, gradient = run(kernel, y, t, weights)
    expected, of_sum, scales = reference.yolo_loss(y, t, options, weights=weights, **how)
    sizes = reference.yolo_loss(y, t, options, weights=weights, reduction="none")[0]
    terms = 1 if how["reduction"] == "none" else sizes[0].size
    # Confidences that are to be reached, logarithms and exponentials are within a few units of 1e-6.
    magnitude = np.abs(sizes) + 100.0 * (np.abs(of_sum) + 0.1)
    if how["reduction"] != "none":
        magnitude = magnitude.sum((1, 2, 3), keepdims=True) * scales
        magnitude = magnitude.sum(0, keepdims=True) if how["reduce_across_batch"] else magnitude
    assert_within(value, expected, error_bound(np.float32, terms + 8, magnitude, expected), name="loss")
    exact = of_sum * scales if follows else of_sum
    scale = np.max(scales) if follows else 1.0
    assert_within(gradient, exact, error_bound(dtype, 16, np.abs(exact) + 20.0 * scale, exact), name="gradient")


@given(data=st.data())
def test_losses_and_gradients_match_the_reference(data):
    check_against_the_reference(data)


@pytest.mark.usefixtures("shaders_of_gpus")
class TestTheShadersOfGPUs:
    @given(data=st.data())
    def test_losses_and_gradients_match_the_reference(self, data):
        check_against_the_reference(data)


OPTIONS = YOLOOptions(ANCHORS)
Y, T = drawn((2, 3, 4), 3, 3, np.float32, 3)


def test_defaults_are_those_of_mps():
    made = mg.YOLOLossDescriptor.with_loss_types(
        "mean_squared_error", "huber", "sigmoid_cross_entropy", "softmax_cross_entropy", "sum", ANCHORS
    )
    assert made == mg.YOLOLossDescriptor(ANCHORS)
    assert (made.scale_xy, made.scale_wh, made.scale_no_object, made.scale_object, made.scale_class) == (
        10, 10, 5, 100, 2)  # fmt: skip
    assert (made.min_iou_for_object_presence, made.max_iou_for_object_absence, made.rescore) == (0.7, 0.3, True)
    kernel = mg.YOLOLoss(replace(made, reduction_type="mean"))
    assert kernel.loss_wh.loss_type is mg.LossType.HUBER
    assert kernel.loss_classes.reduction_type is mg.LossReductionType.MEAN
    assert (kernel.number_of_anchor_boxes, kernel.anchor_boxes) == (3, ANCHORS)


def test_of_equal_overlaps_the_first_is_responsible():
    """Two anchors of one size with one label: only the first has found it; the other is neither object nor nothing."""
    y = np.zeros((1, 1, 1, 12), np.float32)
    t = np.tile(np.float32([0.5, 0.5, 0.5, 0.5, 1, 1]), 2).reshape(1, 1, 1, 12)
    _, gradient = run(mg.YOLOLoss(mg.YOLOLossDescriptor([(1, 1), (1, 1)])), y, t)
    assert gradient[0, 0, 0, 2] != 0 and gradient[0, 0, 0, 4] != 0
    np.testing.assert_array_equal(gradient[0, 0, 0, 6:], 0)


def test_what_overflows_is_no_object():
    y, t = Y.copy(), T.copy()
    y[..., 2:4], t[..., 4] = 200.0, 1
    y[..., 8 + 2 : 8 + 4] = -200.0
    value, gradient = run(mg.YOLOLoss(mg.YOLOLossDescriptor(ANCHORS)), y, t)
    assert np.isfinite(value).all() and np.isfinite(gradient).all()


def test_batches_archives_and_every_run_give_the_same_bits():
    kernel = mg.YOLOLoss(descriptor(OPTIONS, reduction_type="mean"), gradient_follows_reduction=True)
    value, gradient = run(kernel, Y, T)
    for loss in (kernel, archive.from_bytes(archive.to_bytes(kernel)), kernel):
        labels = [mg.LossLabels.from_array(t[None]) for t in T]
        with mg.CommandBuffer() as commands:
            gradients = loss.encode_batch(commands, [mg.Image.from_array(y) for y in Y], labels)
        np.testing.assert_array_equal(np.asarray(gradients), gradient)
        np.testing.assert_array_equal([np.array(each.loss_image)[0] for each in labels], value)
    for made, expected in zip(functional.yolo_loss(Y, T, ANCHORS), (value, gradient), strict=True):
        np.testing.assert_array_equal(made, expected)


# bad input


def _encode(y: Any = Y, t: Any = T, size: Any = (1, 1, 1), **changes: Any) -> None:
    labels = mg.LossLabels.from_array(t, loss_image_size=size)
    kernel = mg.YOLOLoss(mg.YOLOLossDescriptor(ANCHORS, **changes))
    kernel.encode(mg.CommandBuffer(), mg.Image.from_array(y), labels)


def _make(anchors: Any = ANCHORS, **changes: Any) -> mg.YOLOLossDescriptor:
    return mg.YOLOLossDescriptor(anchors, **changes)


NAME = "YOLOLossDescriptor"
BAD_INPUT = {
    "no anchor": (lambda: _make([]), mg.GeometryError, f"{NAME}: anchor_boxes is empty"),
    "an anchor of three numbers": (
        lambda: _make([(1, 2, 3)]), mg.FormatError, f"{NAME}: anchor_boxes[0] is (1, 2, 3); it has to be (width, he"),
    "anchors that are no list": (lambda: _make(3), mg.FormatError, f"{NAME}: anchor_boxes is 3; it has to be a list"),
    "an anchor without a width": (
        lambda: _make([(1, 1), (0, 1)]), mg.GeometryError, f"{NAME}: anchor_boxes[1] is (0, 1); both have to be above"),
    "an anchor that is not finite": (
        lambda: _make([(1, float("inf"))]), mg.GeometryError, f"{NAME}: anchor_boxes[0] is inf; it has to be finite"),
    "softmax of positions": (
        lambda: _make(xy_loss_descriptor=mg.LossDescriptor("softmax_cross_entropy")), NotImplementedError,
        f"{NAME}: xy_loss_descriptor is of type SOFTMAX_CROSS_ENTROPY"),
    "the cosine distance": (
        lambda: _make(classes_loss_descriptor=mg.LossDescriptor("cosine_distance")), NotImplementedError,
        f"{NAME}: classes_loss_descriptor is of type COSINE_DISTANCE"),
    "a type in place of a descriptor": (
        lambda: _make(wh_loss_descriptor="huber"), mg.FormatError, f"{NAME}: wh_loss_descriptor is 'huber'; it has to"),
    "an unknown reduction": (
        lambda: _make(reduction_type="median"), mg.FormatError, f"{NAME}: reduction_type is 'median'; it has to be"),
    "a threshold beyond 1": (
        lambda: _make(min_iou_for_object_presence=1.5), mg.GeometryError,
        f"{NAME}: min_iou_for_object_presence is 1.5; it has to be at most 1.0"),
    "a scale that is no number": (
        lambda: _make(scale_wh="10"), mg.FormatError, f"{NAME}: scale_wh is '10'; it has to be a number"),
    "a descriptor of another loss": (
        lambda: mg.YOLOLoss(mg.LossDescriptor("huber")), mg.FormatError, "YOLOLoss: loss_descriptor is LossDescriptor"),
    "channels that are no blocks": (
        lambda: _encode(Y[..., :-1].copy(), T[..., :-1].copy()), mg.GeometryError,
        "YOLOLoss: source_image has 23 feature channels for 3 anchor boxes"),
    "no classes": (
        lambda: _encode(Y[..., :15].copy(), T[..., :15].copy()), mg.GeometryError,
        "YOLOLoss: source_image has 15 feature channels for 3 anchor boxes; each has 5 and those of at least one"),
    "labels of another size": (
        lambda: _encode(t=T[:, :2].copy()), mg.GeometryError, "YOLOLoss: labels are 2x2x4x24 but source_image is"),
    "a loss image of another size": (
        lambda: _encode(reduction_type="none"), mg.GeometryError,
        "YOLOLoss: labels.loss_image is 2x1x1x1 but reduction NONE of a 2x3x4x24 source needs 2x3x4x24"),
    "a part of an image": (
        lambda: _clipped(), mg.GeometryError, "YOLOLoss: offset is"),
}  # fmt: skip


def _clipped() -> None:
    kernel = mg.YOLOLoss(mg.YOLOLossDescriptor(ANCHORS))
    kernel.offset = mg.Offset(1, 0)
    kernel.encode(mg.CommandBuffer(), mg.Image.from_array(Y), mg.LossLabels.from_array(T))


@pytest.mark.parametrize(("build", "error", "words"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_named(build, error, words):
    with pytest.raises(error) as raised:
        build()
    assert words in str(raised.value)
