"""Resized regions and their gradient against the float64 references."""

from __future__ import annotations

from typing import Any

import gpu_forms
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpsgrad as mg
from mpsgrad import archive, functional, reference
from mpsgrad.kernels import walk
from mpsgrad.testing import (
    FencedImage,
    assert_within,
    batch_sizes,
    channel_counts,
    channel_formats,
    error_bound,
    values,
)

parts = st.sampled_from([-1.0, -0.25, 0.0, 0.125, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0])


def check(x: np.ndarray, size: tuple[int, int], regions: Any, seed: int = 0) -> None:
    kernel = mg.CropAndResizeBilinear(resize_width=size[1], resize_height=size[0], regions=regions)
    source = mg.Image.from_array(x)
    result, dx = FencedImage.of(kernel.destination_image_descriptor([source])), FencedImage.of(source.descriptor)
    state = kernel.result_state(source, destination_image=result.image)
    g = np.random.default_rng(seed).standard_normal(result.image.shape).astype(x.dtype)
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, source, destination_image=result.image, destination_state=state)
        gradient = mg.CropAndResizeBilinearGradient()
        gradient.encode(commands, mg.Image.from_array(g), source, state, destination_gradient=dx.image)
    expected = reference.crop_and_resize(x, size, regions)
    # Weights near 0 are differences from 1, so that their error is one of 1.
    magnitude = reference.crop_and_resize(np.abs(x), size, regions) + np.abs(x).max()
    bound = error_bound(x.dtype, 8, magnitude, expected)
    assert_within(result.check(), expected, bound)
    expected, magnitude = (
        reference.crop_and_resize_gradient(each, x.shape[1:3], regions) for each in (g, np.abs(g))
    )
    terms = len(regions) * size[0] * size[1]
    bound = error_bound(x.dtype, terms + 8, magnitude + np.abs(g).max(), expected)
    assert_within(dx.check(), expected, bound, name="gradient")


def check_drawn(data: Any) -> None:
    extents = st.tuples(batch_sizes(), st.integers(1, 6), st.integers(1, 6), channel_counts())
    shape = data.draw(extents)
    x = data.draw(values(shape, data.draw(channel_formats()).dtype))
    size = data.draw(st.tuples(st.integers(1, 7), st.integers(1, 7)))
    check(x, size, data.draw(st.lists(st.tuples(parts, parts, parts, parts), min_size=1, max_size=4)))


@given(data=st.data())
def test_results_and_gradients_match_the_reference(data):
    check_drawn(data)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("shape", [(2, 19, 70, 69), (1, 5, 3, 4100)])
def test_gradients_go_through_tiles_of_columns(shape, dtype):
    """The outputs of the last region lie between the last pixel of a tile and the first of the next."""
    x = np.random.default_rng(3).standard_normal(shape).astype(dtype)
    check(x, (2, 9), [(0.1, 0.0, 0.9, 1.0), (0.9, 0.9, -0.8, -0.8), (58.5 / 69, 0.0, 0.0, 1.0)])


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("channels", [2, 3, 4, 7, 8, 21, 31, 33])
def test_any_number_of_channels_is_cropped(channels, dtype):
    """The last channels are read with some of those before them."""
    x = np.random.default_rng(0).standard_normal((2, 5, 6, channels)).astype(dtype)
    check(x, (3, 4), [(0.25, 0.0, 0.5, 1.0), (0.9, 0.9, -0.8, -0.8), (-0.5, 0.5, 2.0, 1.0)])


@pytest.mark.usefixtures("shaders_of_gpus")
class TestTheShadersOfGPUs:
    @given(data=st.data())
    def test_results_and_gradients_match_the_reference(self, data):
        check_drawn(data)

    def test_four_channels_at_a_time(self):
        x = np.random.default_rng(0).standard_normal((2, 4, 5, 8)).astype(np.float32)
        check(x, (3, 4), [(0.25, 0.0, 0.5, 1.0), (0.9, 0.9, -0.8, -0.8), (-0.5, 0.5, 2.0, 1.0)])

    @gpu_forms.of_halves
    @pytest.mark.parametrize("channels", [8, 24])
    def test_eight_halves_at_a_time(self, channels, monkeypatch):
        monkeypatch.setattr(walk, "FEWEST_THREADS_OF_EIGHTS", 1)
        x = np.random.default_rng(0).standard_normal((2, 4, 5, channels)).astype(np.float16)
        check(x, (3, 4), [(0.25, 0.0, 0.5, 1.0), (0.9, 0.9, -0.8, -0.8), (-0.5, 0.5, 2.0, 1.0)])

    @pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
    @pytest.mark.parametrize("channels", [3, 6, 13])
    def test_threads_take_turns_where_there_are_many_elements(self, channels, dtype, monkeypatch):
        monkeypatch.setattr(walk, "FEWEST_THREADS_BY_TURNS", 8)
        x = np.random.default_rng(0).standard_normal((2, 4, 5, channels)).astype(dtype)
        check(x, (3, 4), [(0.25, 0.0, 0.5, 1.0), (0.9, 0.9, -0.8, -0.8), (-0.5, 0.5, 2.0, 1.0)])


X = np.random.default_rng(1).standard_normal((2, 4, 5, 6)).astype(np.float32)
WHOLE, MIRRORED = (0.0, 0.0, 1.0, 1.0), (1.0, 0.0, -1.0, 1.0)


def test_the_whole_image_and_its_mirror_image():
    y = functional.crop_and_resize(X, [WHOLE, MIRRORED], size=(4, 5))
    np.testing.assert_array_equal(y, np.concatenate([X, X[:, :, ::-1]], 3))
    np.testing.assert_array_equal(
        functional.crop_and_resize(X, [WHOLE], size=(7, 9)),
        functional.resize_bilinear(X, size=(7, 9), align_corners=True),
    )


def test_what_lies_outside_is_0_and_has_no_gradient():
    y = functional.crop_and_resize(np.ones((1, 3, 3, 1), np.float32), [(-1.0, 0.0, 3.0, 1.0)], size=(3, 7))
    np.testing.assert_array_equal(y[0, :, :, 0], [[0, 0, 1, 1, 1, 0, 0]] * 3)
    dx = functional.crop_and_resize_gradient(np.ones_like(y), np.ones((1, 3, 3, 1), np.float32), [(-1, 0, 3, 1)])
    assert dx.sum() == 9


def test_regions_at_multiples_of_4_channels_as_in_mps():
    kernel = mg.CropAndResizeBilinear(resize_width=5, resize_height=4, regions=[WHOLE, MIRRORED], aligns_channels=True)
    source = mg.Image.from_array(X)
    with mg.CommandBuffer() as commands:
        y, state = kernel.encode(commands, source, return_state=True)
        dx = mg.CropAndResizeBilinearGradient().encode(commands, y, source, state)
    padded = np.pad(X, ((0, 0), (0, 0), (0, 0), (0, 2)))
    np.testing.assert_array_equal(np.asarray(y), np.concatenate([padded, padded[:, :, ::-1]], 3))
    np.testing.assert_array_equal(np.asarray(dx), 2 * X)


def test_batches_channel_ranges_archives_and_every_run_give_the_same_bits():
    kernel = mg.CropAndResizeBilinear(resize_width=7, resize_height=3, regions=[(0.1, 0.2, 0.7, 0.5), MIRRORED])
    kernel.source_feature_channel_offset, kernel.source_feature_channel_max_count = 4, 2
    part = np.ascontiguousarray(X[..., 4:6])
    y = functional.crop_and_resize(part, kernel.regions, size=(3, 7))
    g = np.random.default_rng(2).standard_normal(y.shape).astype(np.float32)
    expected = np.zeros_like(X)
    expected[..., 4:6] = functional.crop_and_resize_gradient(g, part, kernel.regions)
    for forward in (kernel, archive.from_bytes(archive.to_bytes(kernel)), kernel):
        sources, incoming = ([mg.Image.from_array(one) for one in each] for each in (X, g))
        with mg.CommandBuffer() as commands:
            results, states = forward.encode_batch(commands, sources, return_state=True)
            gradients = mg.CropAndResizeBilinearGradient().encode_batch(commands, incoming, sources, states)
        np.testing.assert_array_equal(np.asarray(results), y)
        np.testing.assert_array_equal(np.asarray(gradients), expected)


# bad input

SIZE = {"resize_width": 2, "resize_height": 3}


def _encode(into: Any = None, **properties: Any) -> None:
    kernel = mg.CropAndResizeBilinear(**SIZE, regions=[WHOLE, WHOLE])
    for name, value in properties.items():
        setattr(kernel, name, value)
    destination = None if into is None else mg.Image.from_array(np.ones(into, np.float32))
    kernel.encode(mg.CommandBuffer(), mg.Image.from_array(X), destination_image=destination)


def _gradient(g: tuple[int, ...], forward: Any = None, **properties: Any) -> None:
    commands, source = mg.CommandBuffer(), mg.Image.from_array(X)
    forward = forward or mg.CropAndResizeBilinear(**SIZE, regions=[WHOLE])
    _, state = forward.encode(commands, source, return_state=True)
    gradient, result = mg.CropAndResizeBilinearGradient(), None
    for name, value in properties.items():
        setattr(gradient, name, value)
        result = mg.Image.from_array(X)
    incoming = mg.Image.from_array(np.ones(g, np.float32))
    gradient.encode(commands, incoming, source, state, destination_gradient=result)


NAME = "CropAndResizeBilinear"
BAD_INPUT = {
    "no region": (
        lambda: mg.CropAndResizeBilinear(**SIZE, regions=[]), mg.GeometryError, f"{NAME}: regions is empty"),
    "a region that is no list": (
        lambda: mg.CropAndResizeBilinear(**SIZE, regions=(0, 0, 1, 1)), mg.FormatError,
        f"{NAME}: regions is (0, 0, 1, 1); it has to be a list of (x, y, width, height)"),
    "a region of three numbers": (
        lambda: mg.CropAndResizeBilinear(**SIZE, regions=[WHOLE, (0, 0, 1)]), mg.FormatError,
        f"{NAME}: regions[1] is (0, 0, 1); it has to be (x, y, width, height)"),
    "a region that is not finite": (
        lambda: mg.CropAndResizeBilinear(**SIZE, regions=[(0, float("nan"), 1, 1)]), mg.GeometryError,
        f"{NAME}: regions[0] is nan; it has to be finite"),
    "a region of words": (
        lambda: mg.CropAndResizeBilinear(**SIZE, regions=["abcd"]), mg.FormatError,
        f"{NAME}: regions[0] is 'a'; it has to be a number"),
    "a width of 0": (
        lambda: mg.CropAndResizeBilinear(resize_width=0, resize_height=1, regions=[WHOLE]), mg.GeometryError,
        f"{NAME}: resize_width is 0; it has to be at least 1"),
    "a fractional height": (
        lambda: mg.CropAndResizeBilinear(resize_width=1, resize_height=0.5, regions=[WHOLE]), mg.FormatError,
        f"{NAME}: resize_height is 0.5; it has to be an integer"),
    "an offset": (
        lambda: _encode((2, 3, 2, 12), offset=mg.Offset(1, 0)), NotImplementedError, f"{NAME}: clip_rect is"),
    "a clip rectangle": (
        lambda: _encode(clip_rect=mg.Region(mg.Origin(), mg.Size(2, 3, 2))), NotImplementedError,
        f"{NAME}: clip_rect is"),
    "a destination of another size": (
        lambda: _encode((2, 3, 3, 12)), mg.GeometryError,
        f"{NAME}: the destination is 3 wide and 3 high but each region becomes 2 x 3"),
    "a destination without room for the regions": (
        lambda: _encode((2, 3, 2, 6)), mg.GeometryError,
        f"{NAME}: the destination has 6 feature channels but 12 are written from channel 0 on"),
    "a gradient of another size": (
        lambda: _gradient((2, 3, 3, 6)), mg.GeometryError, f"{NAME}Gradient: source_gradient is 2x3x3x6 but"),
    "a gradient of another size for a kernel that is configured by hand": (
        lambda: _gradient((2, 1, 2, 6), kernel_offset_x=0), mg.GeometryError, f"{NAME}Gradient: source_gradient is 2x"),
    "a part of the gradient": (
        lambda: _gradient((2, 3, 2, 6), primary_offset=mg.Offset(1, 0)), NotImplementedError,
        f"{NAME}Gradient: primary_offset is (1, 0, 0)"),
    "the state of another kernel": (
        lambda: _gradient((2, 3, 2, 6), mg.ResizeBilinear(**SIZE)), mg.StateError,
        f"{NAME}Gradient: gradient_state was made by ResizeBilinear; it has to be made by {NAME}"),
}  # fmt: skip


@pytest.mark.parametrize(("build", "error", "words"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_named(build, error, words):
    with pytest.raises(error) as raised:
        build()
    assert words in str(raised.value)
