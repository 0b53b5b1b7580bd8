"""Weighted sums and means of the feature channels and their gradients against the float64 references."""

from __future__ import annotations

from typing import Any

import gpu_forms
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpsgrad as mg
from mpsgrad import archive, functional, reference
from mpsgrad.testing import (
    FencedImage,
    assert_within,
    batch_sizes,
    channel_formats,
    check_gradient,
    error_bound,
    values,
)

KINDS: dict[str, tuple[Any, dict[str, bool]]] = {
    "sum": (mg.ReduceFeatureChannelsAndWeightsSum, {}),
    "mean": (mg.ReduceFeatureChannelsAndWeightsMean, {"mean": True}),
    "by non-zero weights": (lambda: mg.ReduceFeatureChannelsAndWeightsSum(True), {"by_non_zero_weights": True}),
}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def encode(kernel: Any, x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, Any]:
    sources = mg.Image.from_array(x), mg.Image.from_array(w)
    result = FencedImage.of(kernel.destination_image_descriptor(sources))
    state = kernel.result_state(*sources, destination_image=result.image)
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, *sources, destination_image=result.image, destination_state=state)
    return result.check(), state


def encode_gradient(g: np.ndarray, other: np.ndarray, state: Any, is_secondary: bool) -> np.ndarray:
    gradient = mg.ReduceFeatureChannelsAndWeightsGradient(is_secondary_source_filter=is_secondary)
    snapshot = state.secondary if is_secondary else state.primary
    result = FencedImage.of(snapshot.source)
    with mg.CommandBuffer() as commands:
        images = mg.Image.from_array(g), mg.Image.from_array(other)
        gradient.encode(commands, *images, state, destination_gradient=result.image)
    return result.check()


def check_against_the_reference(kind: Any, data: Any) -> None:
    channels = data.draw(st.sampled_from([1, 2, 3, 4, 7, 31, 32, 33, 40, 64, 300]))
    shape = (data.draw(batch_sizes()), data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6)), channels)
    dtype = data.draw(channel_formats()).dtype
    x, w = data.draw(values(shape, dtype)), data.draw(values(shape, dtype, ties=data.draw(st.booleans())))
    check(kind, x, w, data.draw(values((*shape[:3], 1), dtype)))


def check(kind: Any, x: np.ndarray, w: np.ndarray, g: np.ndarray) -> None:
    make, options = kind
    dtype = x.dtype
    y, state = encode(make(), x, w)
    expected = reference.weighted_reduction(x, w, **options)
    sizes = reference.weighted_reduction(np.abs(x), np.abs(w), **options)
    assert_within(y, expected, error_bound(dtype, x.shape[3] + 3, sizes, expected))
    exact = reference.weighted_reduction_gradient(g, x, w, **options)
    for is_secondary, other in enumerate((w, x)):
        if is_secondary and state.counts_weights:
            continue
        dx = encode_gradient(g, other, state, bool(is_secondary))
        bound = error_bound(dtype, 3, exact[is_secondary], exact[is_secondary])
        assert_within(dx, exact[is_secondary], bound, name="gradient")


@each_kind
@given(data=st.data())
def test_forward_and_gradients_match_the_reference(kind, data):
    check_against_the_reference(kind, data)


@pytest.mark.usefixtures("shaders_of_gpus")
class TestTheShadersOfGPUs:
    @each_kind
    @given(data=st.data())
    def test_forward_and_gradients_match_the_reference(self, kind, data):
        check_against_the_reference(kind, data)

    @each_kind
    @pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
    @pytest.mark.parametrize("shape", [(1, 2, 4, 1), (1, 2, 3, 2100), (1, 2, 4, 2100)])
    def test_one_channel_and_so_many_that_they_are_added_up_in_parts(self, kind, shape, dtype):
        rng = np.random.default_rng(4)
        x, w, g = (rng.standard_normal(each).astype(dtype) for each in (shape, shape, (*shape[:3], 1)))
        w[..., ::3] = 0
        check(kind, x, w, g)

    @pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
    @pytest.mark.parametrize("channels", [1, 2, 3, 8, 16, 30, 33, 127])
    def test_sums_of_pixels_that_follow_each_other(self, dtype, channels):
        for pixels in (1, 5, 129, 2051):
            rng = np.random.default_rng(pixels)
            x, w = (rng.integers(-9, 10, (1, 1, pixels, channels)).astype(dtype) for _ in range(2))
            commands = mg.CommandBuffer()
            images = mg.Image.from_array(x), mg.Image.from_array(w)
            y = mg.ReduceFeatureChannelsAndWeightsSum().encode(commands, *images)
            by_runs = "product_of_runs" in commands._dispatches[0].function.name
            assert by_runs == ((channels, dtype) != (8, np.float32))
            commands.commit()
            expected = reference.weighted_reduction(x, w)
            np.testing.assert_allclose(np.asarray(y), expected, rtol=2 * np.finfo(dtype).eps)


@each_kind
@pytest.mark.parametrize("channels", [2, 3, 4, 5, 6, 7, 8, 19, 33, 300])
def test_channels_of_eight_pixels_at_once_and_of_those_left_over(kind, channels):
    random = np.random.default_rng(channels)
    shapes = (2, 3, 37, channels), (2, 3, 37, channels), (2, 3, 37, 1)
    for dtype in (np.float32, np.float16):
        check(kind, *(random.integers(-9, 9, shape).astype(dtype) for shape in shapes))


@each_kind
def test_parts_of_both_images_into_a_part_of_a_third(kind):
    make, options = kind
    rng = np.random.default_rng(1)
    x, w, before = (
        rng.standard_normal(shape).astype(np.float32) for shape in ((3, 6, 7, 12), (2, 8, 5, 8), (2, 9, 9, 8))
    )
    w[0, 4, 1:3, 4:] = 0
    kernel = make()
    kernel.primary_source_clip_rect = mg.Region(mg.Origin(2, 1, 1), mg.Size(4, 3, 2))
    kernel.secondary_source_clip_rect = mg.Region(mg.Origin(1, 4, 0), mg.Size(4, 3, 2))
    kernel.primary_source_feature_channel_offset = 8
    kernel.secondary_source_feature_channel_offset = 4
    kernel.clip_rect = mg.Region(mg.Origin(3, 5, 0), mg.Size(4, 3, 2))
    kernel.destination_feature_channel_offset = 4
    images = mg.Image.from_array(x), mg.Image.from_array(w)
    result = mg.Image.from_array(before)
    state = kernel.result_state(*images, destination_image=result)
    gradient = mg.ReduceFeatureChannelsAndWeightsGradient()
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, *images, destination_image=result, destination_state=state)
        dx = gradient.encode(commands, mg.Image.from_array(before), images[1], state)
    read, weights = x[1:, 1:4, 2:6, 8:], w[:, 4:7, 1:5, 4:]
    expected = before.copy()
    expected[:, 5:8, 3:7, 4:5] = reference.weighted_reduction(read, weights, **options)
    np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-5, atol=1e-6)
    expected = np.zeros_like(x)
    g = before[:, 5:8, 3:7, 4:5]
    expected[1:, 1:4, 2:6, 8:] = reference.weighted_reduction_gradient(g, read, weights, **options)[0]
    np.testing.assert_allclose(np.asarray(dx), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("is_secondary", [False, True])
def test_the_gradient_of_images_whose_weights_are_of_more(is_secondary):
    rng = np.random.default_rng(2)
    own, other, g = (rng.standard_normal((n, 3, 4, c)).astype(np.float32) for n, c in ((2, 5), (4, 5), (2, 1)))
    kernel, sources = mg.ReduceFeatureChannelsAndWeightsSum(), [mg.Image.from_array(each) for each in (own, other)]
    which = "primary" if is_secondary else "secondary"
    setattr(kernel, f"{which}_source_clip_rect", mg.Region(mg.Origin(0, 0, 1), mg.Size(4, 3, 2)))
    if is_secondary:
        sources.reverse()
    gradient = mg.ReduceFeatureChannelsAndWeightsGradient(is_secondary_source_filter=is_secondary)
    with mg.CommandBuffer() as commands:
        _, state = kernel.encode(commands, *sources, return_state=True)
        dx = gradient.encode(commands, mg.Image.from_array(g), sources[is_secondary - 1], state)
    np.testing.assert_allclose(np.asarray(dx), g * other[1:3], rtol=1e-6)


def test_no_weight_at_all_gives_0():
    y = functional.weighted_reduction(np.ones((1, 2, 2, 5), np.float32), np.zeros((1, 2, 2, 5), np.float32),
                                      by_non_zero_weights=True)  # fmt: skip
    np.testing.assert_array_equal(y, np.zeros((1, 2, 2, 1)))


@pytest.mark.parametrize("options", [{}, {"mean": True}, {"by_non_zero_weights": True}], ids=str)
def test_gradients_against_central_differences(options):
    w = np.random.default_rng(2).integers(-2, 3, (2, 3, 2, 9)).astype(np.float32)
    check_gradient(
        lambda x: functional.weighted_reduction(x, w, **options),
        lambda g, x: functional.weighted_reduction_gradient(g, x, w, **options)[0],
        values(w.shape, np.float32),
    )
    if "by_non_zero_weights" not in options:
        check_gradient(
            lambda weights: functional.weighted_reduction(w, weights, **options),
            lambda g, weights: functional.weighted_reduction_gradient(g, w, weights, **options)[1],
            values(w.shape, np.float32),
        )


@each_kind
def test_batches_archives_and_every_run_give_the_same_bits(kind):
    rng = np.random.default_rng(3)
    x, w = (rng.standard_normal((3, 4, 5, 70)).astype(np.float32) for _ in range(2))
    g = rng.standard_normal((3, 4, 5, 1)).astype(np.float32)
    kernel = kind[0]()
    bits = set()
    for forward in (kernel, archive.from_bytes(archive.to_bytes(kernel)), kernel):
        primary, secondary, incoming = ([mg.Image.from_array(one) for one in each] for each in (x, w, g))
        with mg.CommandBuffer() as commands:
            y, states = forward.encode_batch(commands, primary, secondary, return_state=True)
            gradient = mg.ReduceFeatureChannelsAndWeightsGradient()
            dx = gradient.encode_batch(commands, incoming, secondary, states)
        bits.add((np.asarray(y).tobytes(), np.asarray(dx).tobytes()))
    assert bits == {
        (
            functional.weighted_reduction(x, w, **kind[1]).tobytes(),
            functional.weighted_reduction_gradient(g, x, w, **kind[1])[0].tobytes(),
        )
    }


# bad input


def _image(*shape: int, dtype: Any = np.float32) -> mg.Image:
    return mg.Image.from_array(np.ones(shape, dtype))


def _encode(x: Any = (1, 2, 3, 4), w: Any = (1, 2, 3, 4), into: Any = None, **properties: Any) -> Any:
    kernel = mg.ReduceFeatureChannelsAndWeightsSum()
    for name, value in properties.items():
        setattr(kernel, name, value)
    destination = None if into is None else _image(*into)
    return kernel.encode(mg.CommandBuffer(), _image(*x), _image(*w), destination_image=destination)


def _gradient(g: Any = (1, 2, 3, 1), other: Any = (1, 2, 3, 4), forward: Any = None, **arguments: Any) -> None:
    commands = mg.CommandBuffer()
    forward = forward or mg.ReduceFeatureChannelsAndWeightsSum()
    _, state = forward.encode(commands, _image(1, 2, 3, 4), _image(1, 2, 3, 4), return_state=True)
    gradient = mg.ReduceFeatureChannelsAndWeightsGradient(**arguments)
    gradient.encode(commands, _image(*g), _image(*other), state)


NAME = "ReduceFeatureChannelsAndWeights"
BAD_INPUT = {
    "weights of another size": (
        lambda: _encode(w=(1, 3, 3, 4)), mg.GeometryError,
        f"{NAME}Sum: 1 images of 3 x 2 pixels of primary_image are read but 1 of 3 x 3 of secondary_image"),
    "more weights than channels": (
        lambda: _encode(w=(1, 2, 3, 5)), mg.GeometryError,
        f"{NAME}Sum: 4 feature channels of primary_image are read but 5 of secondary_image"),
    "another number of images": (
        lambda: _encode(w=(2, 2, 3, 4)), mg.GeometryError,
        f"{NAME}Sum: 1 images of 3 x 2 pixels of primary_image are read but 2 of 3 x 2"),
    "a part beyond the image": (
        lambda: _encode(primary_source_clip_rect=mg.Region(mg.Origin(3, 0, 0))), mg.GeometryError,
        f"{NAME}Sum: primary_source_clip_rect begins at (3, 0, 0) with size"),
    "a part beyond the weights": (
        lambda: _encode(secondary_source_clip_rect=mg.Region(mg.Origin(0, 0, 1))), mg.GeometryError,
        f"{NAME}Sum: secondary_source_clip_rect begins at (0, 0, 1) with size"),
    "a stride": (
        lambda: _encode(secondary_stride_in_pixels_x=0), NotImplementedError,
        f"{NAME}Sum: secondary_stride_in_pixels_x is 0; only 1 is supported"),
    "a clamped edge": (
        lambda: _encode(primary_edge_mode=mg.EdgeMode.CLAMP), NotImplementedError,
        f"{NAME}Sum: primary_edge_mode is CLAMP; it supports ZERO"),
    "a destination that is too large": (
        lambda: _encode(into=(1, 2, 4, 1)), mg.GeometryError,
        f"{NAME}Sum: the destination has 4 x 2 pixels in clip_rect but the result 3 x 2"),
    "a destination without room for the images": (
        lambda: _encode((2, 2, 3, 4), (2, 2, 3, 4), into=(1, 2, 3, 1)), mg.GeometryError,
        f"{NAME}Sum: the source has 2 images but the destination has room for 1"),
    "a region that is none": (
        lambda: _encode(primary_source_clip_rect=3), mg.FormatError,
        f"{NAME}Sum: primary_source_clip_rect is 3; it has to be a Region of an origin and a size"),
    "a gradient of another size": (
        lambda: _gradient((1, 2, 2, 1)), mg.GeometryError, f"{NAME}Gradient: source_gradient is 1x2x2x1 but"),
    "the other image of another size": (
        lambda: _gradient(other=(1, 2, 3, 5)), mg.GeometryError,
        f"{NAME}Gradient: source_image is 1x2x3x5 but gradient_state was made for 1x2x3x4"),
    "the gradient of a number of weights": (
        lambda: _gradient(forward=mg.ReduceFeatureChannelsAndWeightsSum(True), is_secondary_source_filter=True),
        NotImplementedError, "a sum that is divided by the number of weights that are not 0"),
    "the state of another kernel": (
        lambda: _gradient(forward=mg.Add()), mg.StateError,
        f"{NAME}Gradient: gradient_state was made by Add; it has to be made by {NAME}Sum or {NAME}Mean"),
    "two divisors": (
        lambda: functional.weighted_reduction(np.ones((1, 1, 1, 1)), np.ones((1, 1, 1, 1)), mean=True,
                                              by_non_zero_weights=True),
        mg.FormatError, "mean and by_non_zero_weights are True"),
}  # fmt: skip


@pytest.mark.parametrize(("build", "error", "words"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_named(build, error, words):
    with pytest.raises(error) as raised:
        build()
    assert words in str(raised.value)
