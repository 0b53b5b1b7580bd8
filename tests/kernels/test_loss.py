"""The losses against the float64 references: values, reductions, gradients, labels and weights."""

from __future__ import annotations

from typing import Any

import gpu_forms
import numpy as np
import pytest
from by_turns import by_turns
from hypothesis import given
from hypothesis import strategies as st

import mpsgrad as mg
from mpsgrad import archive, reference
from mpsgrad.shader import use_tunables
from mpsgrad.testing import FencedImage, assert_within, channel_counts, channel_formats, error_bound, values
from mpsgrad.tunables import ALWAYS, WHERE_FEWER, tunables

TYPE = "softmax_cross_entropy"
REDUCTIONS = ("none", "sum", "mean", "sum_by_non_zero_weights")
FUNCTION_ULPS = 12
"""What ``exp``, ``log`` and a division may be off together, in units of the last place of float32."""


def descriptor(**options: Any) -> mg.LossDescriptor:
    return mg.LossDescriptor(TYPE, options.pop("reduction", "sum"), **options)


def labels_for(kernel: mg.Loss, t: np.ndarray, weights: np.ndarray | None = None) -> mg.LossLabels:
    """Labels whose loss image has the size that the kernel's reduction needs."""
    unreduced = kernel.reduction_type is mg.LossReductionType.NONE
    size = (t.shape[2], t.shape[1], t.shape[3]) if unreduced else (1, 1, 1)
    return mg.LossLabels.from_array(t, weights, loss_image_size=size)


def run(kernel: mg.Loss, x: np.ndarray, t: np.ndarray, weights: np.ndarray | None = None):
    """The loss image and the gradient, written into a fenced image."""
    source, labels = mg.Image.from_array(x), labels_for(kernel, t, weights)
    fenced = FencedImage.of(source.descriptor)
    with mg.CommandBuffer() as commands:
        assert kernel.encode(commands, source, labels, destination_image=fenced.image) is None
    return np.array(labels.loss_image), fenced.check()


def one_hot(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.eye(shape[-1], dtype=np.float32)[generator.integers(0, shape[-1], shape[:-1])]


def element_bound(x: np.ndarray, expected: np.ndarray, magnitude: np.ndarray, dtype: Any) -> np.ndarray:
    """Each element holds one softmax over the channels."""
    x = np.asarray(x, np.float64)
    spread = float(np.abs(x - x.max(-1, keepdims=True)).max())
    return error_bound(dtype, x.shape[-1], magnitude, expected, function_ulps=FUNCTION_ULPS + spread)


def check_against_the_reference(
    x: np.ndarray,
    t: np.ndarray,
    weights: np.ndarray | None,
    reduction: str,
    across: bool,
    follows: bool,
    options: dict[str, Any],
) -> None:
    shape, dtype = x.shape, x.dtype
    kernel = mg.Loss(
        descriptor(reduction=reduction, reduce_across_batch=across, **options), gradient_follows_reduction=follows
    )
    value, gradient = run(kernel, x, t, weights)

    keywords = options | {"weights": weights}
    expected = reference.loss(x, t, TYPE, reduction=reduction, reduce_across_batch=across, **keywords)
    spread = np.abs(reference.log_soft_max(x)) + 1
    absolute = {"weights": None if weights is None else np.abs(weights)} | {"weight": abs(options["weight"])}
    smoothed = np.abs(t) * (1 - options["label_smoothing"]) + options["label_smoothing"] / options["number_of_classes"]
    factors = absolute["weight"] * np.ones(shape) if weights is None else absolute["weights"]
    magnitudes = factors * smoothed * spread
    if reduction == "none":
        assert_within(value, expected, element_bound(x, expected, magnitudes, np.float32), name="loss")
    else:
        terms = int(np.prod(shape)) + shape[-1]
        total = magnitudes.sum((1, 2, 3), keepdims=True)
        if across:
            total = np.concatenate([total.sum(0, keepdims=True), np.zeros_like(total[1:])])
        divisor = divisors(reduction, across, shape, weights, options["weight"])
        bound = error_bound(np.float32, terms, total / divisor, expected, function_ulps=FUNCTION_ULPS + spread.max())
        assert_within(value, expected, bound, name="loss")

    expected = reference.loss_gradient(x, t, TYPE, **keywords)
    magnitude = factors * (reference.soft_max(x) + smoothed)
    if follows:
        divisor = divisors(reduction, across, shape, weights, options["weight"])
        with np.errstate(divide="ignore"):
            scale = np.where(np.isfinite(divisor), 1 / divisor, 0)
        expected, magnitude = expected * scale, magnitude * scale
    assert_within(gradient, expected, element_bound(x, expected, magnitude, dtype), name="gradient")


@given(data=st.data())
def test_losses_and_gradients_match_the_reference(data):
    dtype = data.draw(channel_formats()).dtype
    images, height, width = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 5)))
    shape = (images, height, width, data.draw(channel_counts()))
    reduction = data.draw(st.sampled_from(REDUCTIONS))
    across = data.draw(st.booleans())
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    x = data.draw(values(shape, dtype, scale=data.draw(st.sampled_from([0.1, 1.0, 5.0]))))
    t = generator.random(shape, np.float32) if data.draw(st.booleans()) else one_hot(generator, shape)
    options = {
        "weight": data.draw(st.sampled_from([1.0, 0.5, -2.0])),
        "label_smoothing": data.draw(st.sampled_from([0.0, 0.1, 1.0])),
        "number_of_classes": data.draw(st.sampled_from([1, shape[-1]])),
    }
    weights = None
    if data.draw(st.booleans()):
        weights = generator.integers(-1, 3, shape).astype(np.float32) * (generator.random(shape) < 0.7)
        weights = weights.astype(np.float32)
    follows = data.draw(st.booleans())
    check_against_the_reference(x, t, weights, reduction, across, follows, options)


def divisors(reduction: str, across: bool, shape: tuple[int, ...], weights: Any, weight: float) -> np.ndarray:
    """What the sum of each image is divided by: 1, its pixels, or its elements with a weight that is not 0."""
    counted = np.ones((*shape[:3], 1))
    if reduction == "sum_by_non_zero_weights":
        counted = weights != 0 if weights is not None else np.full(shape, weight != 0)
    count = counted.sum((1, 2, 3)).astype(np.float64)
    if across:
        count = np.full(shape[0], count.sum())
    if reduction in ("none", "sum"):
        count = np.ones(shape[0])
    return np.where(count > 0, count, np.inf).reshape(-1, 1, 1, 1)


@pytest.mark.parametrize(
    ("options", "elements", "gradient"),
    [
        ({}, [0, 2.252135, 0], [0.19164, -0.894826, 0.703185]),
        (
            {"label_smoothing": 0.1, "number_of_classes": 3},
            [0.055071, 2.101993, 0.011738],
            [0.158307, -0.828159, 0.669852],
        ),
    ],
    ids=["plain", "smoothed"],
)
def test_the_worked_cases(options, elements, gradient):
    x, t = (np.float32(v).reshape(1, 1, 1, 3) for v in ([0.2, -0.4, 1.5], [0, 1, 0]))
    value, result = run(mg.Loss(descriptor(reduction="none", **options)), x, t)
    np.testing.assert_allclose(value.ravel(), elements, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(result.ravel(), gradient, rtol=1e-5)
    value, _ = run(mg.Loss(descriptor(**options)), x, t)
    np.testing.assert_allclose(value.item(), sum(elements), rtol=1e-6)


def test_reductions_by_hand():
    """Two images of 2 x 3 pixels: sums, means over pixels, and across the batch into the first value."""
    generator = np.random.default_rng(3)
    x = generator.standard_normal((2, 2, 3, 4)).astype(np.float32)
    t = one_hot(generator, x.shape)
    pixels = -(t * reference.log_soft_max(x)).sum(-1)
    weights = np.ones_like(x)
    weights[0, 0] = 0
    cases = {
        ("sum", False, False): pixels.sum((1, 2)),
        ("mean", False, False): pixels.mean((1, 2)),
        ("sum", True, False): [pixels.sum(), 0],
        ("mean", True, False): [pixels.mean(), 0],
        ("sum_by_non_zero_weights", False, False): pixels.mean((1, 2)) / 4,
        ("sum_by_non_zero_weights", False, True): [pixels[0, 1].mean() / 4, pixels[1].mean() / 4],
        ("sum_by_non_zero_weights", True, True): [(pixels[0, 1].sum() + pixels[1].sum()) / 36, 0],
    }
    for (reduction, across, weighted), expected in cases.items():
        kernel = mg.Loss(descriptor(reduction=reduction, reduce_across_batch=across))
        value, _ = run(kernel, x, t, weights if weighted else None)
        np.testing.assert_allclose(value.ravel(), expected, rtol=1e-6, err_msg=f"{reduction} {across} {weighted}")


def test_the_gradient_ignores_the_reduction_unless_told_otherwise():
    generator = np.random.default_rng(4)
    x = generator.standard_normal((2, 3, 4, 5)).astype(np.float32)
    t = one_hot(generator, x.shape)
    _, plain = run(mg.Loss(descriptor(reduction="sum")), x, t)
    for reduction in REDUCTIONS:
        _, same = run(mg.Loss(descriptor(reduction=reduction)), x, t)
        np.testing.assert_array_equal(same, plain)
    for across, count in ((False, 12), (True, 24)):
        kernel = mg.Loss(descriptor(reduction="mean", reduce_across_batch=across), gradient_follows_reduction=True)
        _, scaled = run(kernel, x, t)
        np.testing.assert_allclose(scaled, plain / count, rtol=1e-6)
        expected = reference.reduced_loss_gradient(
            np.ones((2, 1, 1, 1)), x, t, TYPE, reduction="mean", reduce_across_batch=across
        )
        np.testing.assert_allclose(scaled, expected, atol=1e-7)


def test_images_without_a_weight_that_counts_have_no_loss():
    x = np.random.default_rng(5).standard_normal((2, 2, 2, 3)).astype(np.float32)
    t, weights = np.ones_like(x), np.ones_like(x)
    weights[1] = 0
    kernel = mg.Loss(descriptor(reduction="sum_by_non_zero_weights"), gradient_follows_reduction=True)
    value, gradient = run(kernel, x, t, weights)
    assert value[0] != 0 and value[1] == 0
    assert (gradient[1] == 0).all() and (gradient[0] != 0).any()


@pytest.mark.parametrize("follows", [False, True])
@pytest.mark.parametrize("channels", [3, 11, 40, 300])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_weights_of_zero_do_not_count_in_any_number_of_channels(dtype, channels, follows):
    generator = np.random.default_rng(channels)
    shape = (2, 3, 3, channels)
    x = generator.standard_normal(shape, np.float32).astype(dtype)
    weights = (generator.random(shape) < 0.6).astype(np.float32)
    options = {"weight": 1.0, "label_smoothing": 0.0, "number_of_classes": channels}
    across, reduction = False, "sum_by_non_zero_weights"
    check_against_the_reference(x, one_hot(generator, shape), weights, reduction, across, follows, options)


@pytest.mark.skipif(mg.default_device().family != "cpu", reason="for CPUs")
@pytest.mark.parametrize("follows", [False, True])
@pytest.mark.parametrize("by_eights", [ALWAYS, WHERE_FEWER], ids=["few registers", "many registers"])
@pytest.mark.parametrize("channels", [40, 48, 301])
def test_pixels_of_cpus_of_both_kinds(channels, by_eights, follows):
    """How many channels are taken at a time depends on the registers."""
    device, generator = mg.default_device(), np.random.default_rng(channels)
    shape, before = (2, 3, 3, channels), tunables(device.tuning)
    x, t = generator.standard_normal(shape, np.float32), generator.random(shape, np.float32)
    weights = (generator.random(shape) < 0.6).astype(np.float32)
    options = {"weight": 1.0, "label_smoothing": 0.1, "number_of_classes": channels}
    try:
        use_tunables(device.tuning, before.with_number("convolution_by_eights", by_eights))
        check_against_the_reference(x, t, weights, "sum_by_non_zero_weights", False, follows, options)
        check_against_the_reference(x, t, weights, "none", False, False, options)
    finally:
        use_tunables(device.tuning, before)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_large_predictions_do_not_overflow(dtype):
    largest = float(np.finfo(dtype).max) / 2
    x = np.array([[largest, -largest, 0], [-largest, -largest, -largest]], dtype).reshape(1, 1, 2, 3)
    t = np.array([[1, 0, 0], [0, 0, 1]], np.float32).reshape(1, 1, 2, 3)
    value, gradient = run(mg.Loss(descriptor()), x, t)
    np.testing.assert_allclose(value.item(), np.log(3), rtol=1e-5)
    np.testing.assert_allclose(gradient[0, 0, 0], [0, 0, 0], atol=1e-6)
    np.testing.assert_allclose(gradient[0, 0, 1], [1 / 3, 1 / 3, -2 / 3], rtol=2e-3)


@pytest.mark.parametrize("shape", [(6, 1, 1, 5), (1, 1, 1, 1000)], ids=["few classes", "many"])
def test_classes_that_are_ruled_out_by_minus_infinity_have_no_loss(shape):
    x, t = np.random.default_rng(7).standard_normal(shape).astype(np.float32), np.zeros(shape, np.float32)
    x[..., 1::2], t[..., 2] = -np.inf, 1
    value, gradient = run(mg.Loss(descriptor()), x, t)
    possible = reference.loss(x[..., ::2], t[..., ::2], TYPE)
    for found in (value, reference.loss(x, t, TYPE)):
        np.testing.assert_allclose(found, possible, rtol=1e-5)
    assert not gradient[..., 1::2].any()


def test_labels_in_either_layout_and_with_weights():
    generator = np.random.default_rng(6)
    x, t, w = (generator.random((3, 4, 5), np.float32) for _ in range(3))
    chw = np.ascontiguousarray(t.transpose(2, 0, 1))
    kernel = mg.Loss(descriptor())
    results = []
    padded_rows = np.pad(t.reshape(3, 20), ((0, 0), (0, 3)), constant_values=np.nan)
    padded_planes = np.pad(chw, ((0, 0), (0, 2), (0, 1)), constant_values=np.nan)
    for data, layout, distances in (
        (t, "HWC", {}),
        (chw, "CHW", {}),
        (t.ravel(), "HWC", {}),
        (padded_rows, "HWC", {"bytes_per_row": 92}),
        (padded_planes, "CHW", {"bytes_per_row": 20, "bytes_per_image": 100}),
    ):
        labels = mg.LossLabels(
            mg.LossDataDescriptor(data, layout=layout, size=(4, 3, 5), **distances),
            weights_descriptor=mg.LossDataDescriptor(w, size=(4, 3, 5)),
        )
        with mg.CommandBuffer() as commands:
            gradient = kernel.encode(commands, mg.Image.from_array(x), labels)
        assert labels.labels_image.shape == labels.weights_image.shape == (1, 3, 4, 5)
        results.append((np.array(labels.loss_image), np.array(gradient)))
    expected = reference.loss(x[None], t[None], TYPE, weights=w[None])
    np.testing.assert_allclose(results[0][0], expected, rtol=1e-5)
    for value, gradient in results[1:]:
        np.testing.assert_array_equal(value, results[0][0])
        np.testing.assert_array_equal(gradient, results[0][1])


def test_label_data_is_copied():
    data = np.ones((2, 2, 1), np.float32)
    made = mg.LossDataDescriptor(data, size=(2, 2, 1))
    data[:] = 7
    assert (made.data == 1).all() and made.size == mg.Size(2, 2, 1) and made.layout == "HWC"


def test_distances_can_be_set_after_the_data():
    data = np.arange(12, dtype=np.float32)
    made = mg.LossDataDescriptor(data, layout="CHW", size=(2, 2, 2), bytes_per_row=8, bytes_per_image=24)
    np.testing.assert_array_equal(made.data[..., 1], [[6, 7], [8, 9]])
    made.bytes_per_row = 12
    np.testing.assert_array_equal(made.data[..., 1], [[6, 7], [9, 10]])
    made.bytes_per_image = 20
    np.testing.assert_array_equal(made.data[..., 1], [[5, 6], [8, 9]])
    assert (made.bytes_per_row, made.bytes_per_image) == (12, 20)
    with pytest.raises(mg.GeometryError, match="data has 12 values but size .* needs 15"):
        made.bytes_per_image = 40


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("channels", [3, 20, 33, 300])
def test_every_run_every_form_and_every_batch_give_the_same_bits(dtype, channels):
    generator = np.random.default_rng(7)
    x = generator.standard_normal((4, 5, 6, channels)).astype(dtype)
    t = one_hot(generator, x.shape)
    kernel = mg.Loss(descriptor(reduction="mean", weight=0.5))
    value, gradient = run(kernel, x, t)
    for _ in range(20):
        again, again_gradient = run(kernel, x, t)
        np.testing.assert_array_equal(again, value)
        np.testing.assert_array_equal(again_gradient, gradient)
    labels = mg.LossLabels.from_array(t)
    parts = [mg.LossLabels.from_array(one[None]) for one in t]
    with mg.CommandBuffer() as commands:
        automatic = kernel.encode(commands, mg.Image.from_array(x), labels)
        batch = kernel.encode_batch(commands, [mg.Image.from_array(one) for one in x], parts)
        destinations = [mg.Image(image.descriptor) for image in batch]
        manual = kernel.encode_batch(
            commands, [mg.Image.from_array(one) for one in x], parts, destination_images=destinations
        )
    assert manual is None
    np.testing.assert_array_equal(np.asarray(labels.loss_image), value)
    np.testing.assert_array_equal(np.concatenate([part.loss_image for part in parts]), value)
    for result in (automatic, batch, mg.ImageBatch(destinations)):
        np.testing.assert_array_equal(np.asarray(result), gradient)


@pytest.mark.parametrize("channels", [4, 8, 36])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_views_of_channels_serve_as_sources_labels_and_destinations(dtype, channels):
    generator = np.random.default_rng(8)
    x, t, w = (generator.random((2, 3, 4, channels + 12), np.float32) for _ in range(3))
    x = x.astype(dtype)
    images = [mg.Image.from_array(values).sub_image(4, channels) for values in (x, t, w)]
    before = generator.random((2, 3, 4, channels + 8), np.float32).astype(dtype)
    parent = mg.Image.from_array(before)
    labels = mg.LossLabels.from_images(images[1], images[2])
    with mg.CommandBuffer() as commands:
        mg.Loss(descriptor()).encode(commands, images[0], labels, destination_image=parent.sub_image(8, channels))
    parts = [np.ascontiguousarray(values[..., 4 : 4 + channels]) for values in (x, t, w)]
    value, gradient = run(mg.Loss(descriptor()), *parts)
    expected = before.copy()
    expected[..., 8:] = gradient
    np.testing.assert_array_equal(np.asarray(parent), expected)
    np.testing.assert_array_equal(np.asarray(labels.loss_image), value)


def test_the_loss_is_read_after_the_command_buffer():
    x, labels = np.zeros((1, 1, 1, 4), np.float32), mg.LossLabels.from_array(np.full((1, 1, 1, 4), 0.25, np.float32))
    commands = mg.CommandBuffer()
    mg.Loss(descriptor()).encode(commands, mg.Image.from_array(x), labels)
    with pytest.raises(mg.StateError, match="read before its command buffer was committed"):
        np.asarray(labels.loss_image)
    commands.commit()
    np.testing.assert_allclose(np.asarray(labels.loss_image).item(), np.log(4), rtol=1e-6)


def test_properties_are_the_descriptors():
    kernel = mg.Loss(mg.LossDescriptor(TYPE, "mean", 0.5, 0.25, 7, 1e-5, 2.0, True))
    assert (kernel.loss_type, kernel.reduction_type) == (
        mg.LossType.SOFTMAX_CROSS_ENTROPY,
        mg.LossReductionType.MEAN,
    )
    assert (kernel.weight, kernel.label_smoothing, kernel.number_of_classes) == (0.5, 0.25, 7)
    assert (kernel.epsilon, kernel.delta, kernel.reduce_across_batch) == (1e-5, 2.0, True)
    defaults = mg.LossDescriptor(2)
    assert (defaults.weight, defaults.label_smoothing, defaults.number_of_classes) == (1.0, 0.0, 1)
    assert (defaults.epsilon, defaults.delta, defaults.reduce_across_batch) == (1e-7, 1.0, False)


def test_a_kernel_from_an_archive_gives_the_same_bits():
    generator = np.random.default_rng(9)
    x = generator.standard_normal((2, 3, 4, 5)).astype(np.float32)
    t = one_hot(generator, x.shape)
    kernel = mg.Loss(descriptor(reduction="mean", weight=0.5, label_smoothing=0.125, number_of_classes=5))
    restored = archive.from_bytes(archive.to_bytes(kernel))
    for one, other in zip(run(kernel, x, t), run(restored, x, t), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", ["softmax_cross_entropy", "huber"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_separate_images_are_reduced_across_the_batch_as_one_image_is(kind, weighted, reduction):
    generator = np.random.default_rng(8)
    x = generator.standard_normal((3, 4, 5, 6)).astype(np.float16)
    t, weights = (generator.random(x.shape, np.float32) for _ in range(2))
    made = mg.LossDescriptor(kind, reduction, reduce_across_batch=True)
    kernel = mg.Loss(made, gradient_follows_reduction=True)
    value, gradient = run(kernel, x, t, weights if weighted else None)
    size = (5, 4, 6) if reduction == "none" else (1, 1, 1)
    for writes in (False, True):
        labels = [
            mg.LossLabels.from_array(t[i : i + 1], weights[i : i + 1] if weighted else None, loss_image_size=size)
            for i in range(3)
        ]
        images = [mg.Image.from_array(one) for one in x]
        results: Any = [mg.Image(image.descriptor) for image in images] if writes else None
        with mg.CommandBuffer() as commands:
            returned = kernel.encode_batch(commands, images, labels, destination_images=results)
        assert (returned is None) is writes
        made_gradients = [np.asarray(image)[0] for image in (results if writes else returned)]
        np.testing.assert_array_equal(made_gradients, gradient)
        np.testing.assert_array_equal([np.array(each.loss_image)[0] for each in labels], value)


def _across(shapes: Any, dtypes: Any = (np.float32, np.float32), weighted: int = 2, into: Any = None) -> None:
    images = [mg.Image.from_array(np.ones(shape, dtype)) for shape, dtype in zip(shapes, dtypes, strict=True)]
    labels = []
    for index, shape in enumerate(shapes):
        numbers = np.ones((1, *shape), np.float32)
        labels.append(mg.LossLabels.from_array(numbers, numbers if index < weighted else None))
    results = None if into is None else [mg.Image.from_array(np.ones(shape, np.float32)) for shape in into]
    kernel = mg.Loss(descriptor(reduce_across_batch=True))
    kernel.encode_batch(mg.CommandBuffer(), images, labels, destination_images=results)


BAD_INPUT = {
    "across a batch of several sizes": (
        lambda: _across([(1, 1, 4), (1, 2, 4)]), mg.GeometryError,
        "Loss: source_images[1] is 1x1x2x4 but source_images[0] is 1x1x1x4; reduce_across_batch takes images of one"),
    "across a batch of several formats": (
        lambda: _across([(1, 1, 4), (1, 1, 4)], dtypes=(np.float32, np.float16)), mg.FormatError,
        "Loss: source_images[1] is FLOAT16 but source_images[0] is FLOAT32"),
    "across a batch with weights for one": (
        lambda: _across([(1, 1, 4), (1, 1, 4)], weighted=1), mg.GeometryError,
        "Loss: labels[0] and labels[1] do not both have weights"),
    "across a batch into another size": (
        lambda: _across([(1, 1, 4), (1, 1, 4)], into=[(1, 1, 4), (1, 2, 4)]), mg.GeometryError,
        "Loss: destination_images[1] is 1x1x2x4 but source_images[1] is 1x1x1x4"),
    "labels of fewer images": (
        lambda: run(mg.Loss(descriptor()), np.zeros((2, 1, 1, 4), np.float32), np.zeros((1, 1, 1, 4), np.float32)),
        mg.GeometryError, "labels are 1x1x1x4 but source_image is 2x1x1x4"),
    "labels as the destination": (
        lambda: _into_labels(), mg.GeometryError, "the destination shares memory with labels_image"),
}  # fmt: skip


def _into_labels() -> None:
    labels = mg.LossLabels.from_array(np.zeros((1, 1, 1, 4), np.float32))
    source = mg.Image.from_array(np.zeros((1, 1, 1, 4), np.float32))
    mg.Loss(descriptor()).encode(mg.CommandBuffer(), source, labels, destination_image=labels.labels_image)


@pytest.mark.parametrize(("build", "error", "words"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_named(build, error, words):
    with pytest.raises(error) as raised:
        build()
    assert words in str(raised.value)


@pytest.mark.usefixtures("shaders_of_gpus")
class TestTheShadersOfGPUs:
    @pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
    @pytest.mark.parametrize(
        ("channels", "reduction"),
        by_turns((1, 10, 16, 17, 40, 100, 255, 256, 1000, 1025, 4096, 4097, 8200), REDUCTIONS, of=2),
    )
    def test_losses_and_gradients_match_the_reference(self, dtype, channels, reduction):
        generator = np.random.default_rng(channels)
        shape = (3, 2, 2, channels)
        x = generator.standard_normal(shape).astype(dtype)
        weights = None
        if reduction.startswith("sum"):
            weights = generator.integers(-1, 3, shape).astype(np.float32)
            weights[0, 1] = 0
        options = {"weight": 0.5, "label_smoothing": 0.1, "number_of_classes": channels}
        for across in (False, True):
            check_against_the_reference(x, one_hot(generator, shape), weights, reduction, across, True, options)

    @pytest.mark.parametrize("images", [1, 33, 9001])
    @pytest.mark.parametrize("reduction", ["mean", "sum_by_non_zero_weights"])
    def test_images_that_simdgroups_add_up_and_several_threadgroups_write(self, reduction, images):
        generator = np.random.default_rng(7)
        shape = (images, 1, 1, 5)
        x = generator.standard_normal(shape).astype(np.float32)
        options = {"weight": 1.0, "label_smoothing": 0.0, "number_of_classes": 5}
        check_against_the_reference(x, one_hot(generator, shape), None, reduction, True, True, options)

    @pytest.mark.parametrize("channels", [2, 3, 4, 9, 17, 32, 33, 65, 129, 260, 999, 1000, 1025])
    @pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
    def test_pixels_that_threadgroups_add_up(self, channels, dtype):
        generator = np.random.default_rng(8)
        shape = (19, 1, 3, channels)
        x = generator.standard_normal(shape).astype(dtype)
        options = {"weight": 1.0, "label_smoothing": 0.0, "number_of_classes": channels}
        check_against_the_reference(x, one_hot(generator, shape), None, "mean", True, True, options)
