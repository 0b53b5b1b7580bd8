"""Dropout: the published vectors of its generator, masks that are the same everywhere, and the gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpsgrad as mg
from mpsgrad import archive, functional, reference
from mpsgrad.kernels import dropout
from mpsgrad.shader import shader_directory
from mpsgrad.testing import (
    FencedImage,
    assert_within,
    batch_sizes,
    channel_counts,
    channel_formats,
    error_bound,
    values,
)

each_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float16])
strides = st.tuples(*[st.integers(0, 1)] * 3)

KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
"""Of Philox 4x32-10: counter, key and result, as published with Random123."""


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_the_generator_gives_the_published_numbers(counter, key, words):
    np.testing.assert_array_equal(reference.philox(counter, key), words)
    source = f"""
#include <metal_stdlib>
using namespace metal;
{(shader_directory() / "lib" / "philox.metal.j2").read_text()}
kernel void draw(device const uint* in [[buffer(0)]], device uint* out [[buffer(1)]],
    uint i [[thread_position_in_grid]])
{{
    const uint4 words = philox(uint4(in[0], in[1], in[2], in[3]), uint2(in[4], in[5]));
    out[i] = words[i];
}}"""
    drawn = np.zeros(4, np.uint32)
    mg.compile(source).function("draw")(4, np.array([*counter, *key], np.uint32), drawn)
    np.testing.assert_array_equal(drawn, words)


def run(x: np.ndarray, g: np.ndarray, keep: float, drawn: int = 0, **arguments: Any) -> tuple[Any, Any, Any]:
    """Result, gradient and state, from encodes into fenced images."""
    kernel, gradient = mg.Dropout(keep, **arguments), mg.DropoutGradient(keep, **arguments)
    kernel.drawn_images = drawn
    source = mg.Image.from_array(x)
    y, dx = FencedImage.of(source.descriptor), FencedImage.of(source.descriptor)
    state = kernel.result_state(source, destination_image=y.image)
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, source, destination_image=y.image, destination_state=state)
        gradient.encode(commands, mg.Image.from_array(g), source, state, destination_gradient=dx.image)
    return y.check(), dx.check(), state


def check(x: np.ndarray, g: np.ndarray, keep: float, drawn: int = 0, **arguments: Any) -> None:
    y, dx, state = run(x, g, keep, drawn, **arguments)
    stride = arguments.get("mask_stride_in_pixels", (1, 1, 1))
    mask = reference.dropout_mask(x.shape, keep, arguments.get("seed", 0), drawn, stride)
    np.testing.assert_array_equal(state.mask_data, mask)
    for result, values_in in ((y, x), (dx, g)):
        expected = reference.dropout(values_in, mask, float(np.float32(keep)))
        assert_within(result, expected, error_bound(x.dtype, 0, np.abs(expected), expected))


@given(data=st.data())
def test_masks_results_and_gradients_match_the_reference(data):
    dtype = data.draw(channel_formats()).dtype
    height, width = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    shape = (data.draw(batch_sizes()), height, width, data.draw(channel_counts()))
    x, g = data.draw(values(shape, dtype)), data.draw(values(shape, dtype))
    keep = data.draw(st.sampled_from([0.01, 0.3, 0.5, 0.999]))
    seed, drawn = data.draw(st.sampled_from([0, 1, 2**32 - 1])), data.draw(st.sampled_from([0, 7]))
    check(x, g, keep, drawn, seed=seed, mask_stride_in_pixels=data.draw(strides))


def test_as_many_elements_are_kept_as_the_probability_says():
    for keep in (0.1, 0.5, 0.9):
        mask = run(*[np.ones((2, 64, 64, 64), np.float32)] * 2, keep, seed=3)[2].mask_data
        deviation = np.sqrt(keep * (1 - keep) / mask.size)
        assert abs(mask.mean() - keep) < 5 * deviation
        assert abs(np.corrcoef(mask[0].ravel(), mask[1].ravel())[0, 1]) < 5 / np.sqrt(mask[0].size)


def test_each_encode_draws_a_new_mask_and_the_same_sequence_the_same_masks():
    source = mg.Image.from_array(np.ones((2, 8, 8, 8), np.float32))

    def masks(seed: int) -> list[np.ndarray]:
        kernel = mg.Dropout(0.5, seed=seed)
        with mg.CommandBuffer() as commands:
            states = [kernel.encode(commands, source, return_state=True)[1] for _ in range(3)]
        return [mask for state in states for mask in state.mask_data]

    first = masks(1)
    assert len({mask.tobytes() for mask in first}) == 6
    np.testing.assert_array_equal(masks(1), first)
    assert not {mask.tobytes() for mask in masks(2)} & {mask.tobytes() for mask in first}


def test_work_that_is_taken_back_draws_nothing():
    kernel, source = mg.Dropout(0.5), mg.Image.from_array(np.ones((2, 2, 2, 4), np.float32))
    with pytest.raises(mg.GeometryError):
        kernel.encode(mg.CommandBuffer(), source, destination_image=mg.Image.from_array(np.ones((2, 2, 2, 3), "f4")))
    assert kernel.drawn_images == 0
    kernel.encode(mg.CommandBuffer(), source)
    assert kernel.drawn_images == 2


@pytest.mark.parametrize("temporary", [False, True])
def test_batches_and_encode_forms_give_the_same_masks(temporary):
    generator = np.random.default_rng(0)
    x, g = (generator.standard_normal((3, 5, 4, 6)).astype(np.float32) for _ in range(2))
    y, dx, state = run(x, g, 0.4, seed=5)
    for together in (True, False):
        kernel, gradient = mg.Dropout(0.4, seed=5), mg.DropoutGradient(0.4, seed=5)
        with mg.CommandBuffer() as commands:
            sources = mg.ImageBatch.from_array(x) if together else [mg.Image.from_array(one) for one in x]
            incoming = mg.ImageBatch.from_array(g) if together else [mg.Image.from_array(one) for one in g]
            results, states = kernel.encode_batch(commands, sources, return_state=True, state_is_temporary=temporary)
            gradients = gradient.encode_batch(commands, incoming, sources, states)
        np.testing.assert_array_equal(np.asarray(results), y)
        np.testing.assert_array_equal(np.asarray(gradients), dx)
        if not temporary:
            np.testing.assert_array_equal(np.concatenate([each.mask_data for each in states]), state.mask_data)


@given(data=st.data())
def test_offset_clip_rectangle_edge_and_channel_ranges(data):
    dtype = data.draw(channel_formats()).dtype
    height, width, images = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 6)), data.draw(st.integers(1, 3))
    size = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 7))
    offset = data.draw(st.integers(-3, 7)), data.draw(st.integers(-3, 7))
    origin = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2)), data.draw(st.integers(0, 1))
    first, channels = data.draw(st.sampled_from([0, 4])), data.draw(st.integers(1, 9))
    target, stride = data.draw(st.sampled_from([0, 8])), data.draw(strides)
    x = data.draw(values((images + 1, height, width, 14), dtype))
    kernel = mg.Dropout(0.5, seed=9, mask_stride_in_pixels=mg.Size(*stride))
    kernel.offset = mg.Offset(offset[1], offset[0], 1)
    kernel.clip_rect = mg.Region(mg.Origin(origin[1], origin[0], origin[2]), mg.Size(size[1], size[0], images))
    kernel.source_feature_channel_offset, kernel.source_feature_channel_max_count = first, channels
    kernel.destination_feature_channel_offset = target
    shape = (images + origin[2], size[0] + origin[0] + 1, size[1] + origin[1] + 1, 18)
    before, g = data.draw(values(shape, dtype)), data.draw(values(shape, dtype))
    source, result = mg.Image.from_array(x), mg.Image.from_array(before)
    state = kernel.result_state(source, destination_image=result)
    gradient = mg.DropoutGradient(0.5, seed=9, mask_stride_in_pixels=mg.Size(*stride))
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, source, destination_image=result, destination_state=state)
        dx = gradient.encode(commands, mg.Image.from_array(g), source, state)
    part = np.index_exp[
        origin[2] : origin[2] + images,
        origin[0] : origin[0] + size[0],
        origin[1] : origin[1] + size[1],
        target : target + channels,
    ]
    mask = reference.dropout_mask((images, *size, channels), 0.5, 9, 0, stride)
    whole_mask = np.zeros(shape, np.uint8)
    whole_mask[part] = mask
    np.testing.assert_array_equal(state.mask_data, whole_mask)
    expected, expected_dx = before.copy(), np.zeros_like(x)
    expected[part] = 0
    for row, column in np.ndindex(*size):
        there = row + offset[0], column + offset[1]
        if 0 <= there[0] < height and 0 <= there[1] < width:
            kept = mask[:, row, column]
            place = np.index_exp[1:, there[0], there[1], first : first + channels]
            expected[part][:, row, column] = 2 * x[place] * kept
            expected_dx[place] = 2 * g[part][:, row, column] * kept
    np.testing.assert_array_equal(np.array(result), expected)
    np.testing.assert_array_equal(np.asarray(dx), expected_dx)


@pytest.mark.parametrize(("right", "down"), [(2, 1), (-1, -2), (0, 3), (6, 0)])
def test_the_secondary_offset_of_gradients_is_that_of_the_mask(right, down):
    x = np.random.default_rng(1).standard_normal((2, 5, 6, 4)).astype(np.float32)
    gradient = mg.DropoutGradient(0.5, seed=9)
    gradient.secondary_offset = mg.Offset(right, down)
    source, dx = mg.Image.from_array(x), mg.Image.from_array(np.full_like(x, np.nan))
    with mg.CommandBuffer() as commands:
        _, state = mg.Dropout(0.5, seed=9).encode(commands, source, return_state=True)
        gradient.encode(commands, source, source, state, destination_gradient=dx)
    mask = np.pad(reference.dropout_mask(x.shape, 0.5, 9), ((0, 0), (6, 6), (6, 6), (0, 0)))
    kept = mask[:, 6 + down : 11 + down, 6 + right : 12 + right]
    np.testing.assert_array_equal(np.asarray(dx), 2 * x * kept)


def test_masks_are_zero_beside_the_clip_rectangle_whatever_their_memory_held():
    kernel = mg.Dropout(0.5, seed=9)
    kernel.clip_rect = mg.Region(mg.Origin(1, 1, 0), mg.Size(2, 2, 1))
    source, result = (mg.Image.from_array(np.ones((1, 4, 4, 8), np.float32)) for _ in range(2))
    mg.State((128,)).resource(0).write(np.full(128, 7, np.uint8))  # Its memory is the next state's.
    with mg.CommandBuffer() as commands:
        state = kernel.result_state(source, destination_image=result)
        kernel.encode(commands, source, destination_image=result, destination_state=state)
    mask = np.zeros((1, 4, 4, 8), np.uint8)
    mask[:, 1:3, 1:3] = reference.dropout_mask((1, 2, 2, 8), 0.5, 9)
    np.testing.assert_array_equal(state.mask_data, mask)


def test_pixels_beyond_a_clamped_edge_are_repeated():
    kernel = mg.Dropout(0.75)
    kernel.edge_mode, kernel.offset = mg.EdgeMode.CLAMP, mg.Offset(-1, 0, 0)
    result = mg.Image.from_array(np.zeros((1, 1, 4, 8), np.float32))
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, mg.Image.from_array(np.ones((1, 1, 2, 8), np.float32)), destination_image=result)
    mask = reference.dropout_mask((1, 1, 4, 8), 0.75)
    np.testing.assert_allclose(np.array(result), mask / 0.75, rtol=1e-6)


def test_dropped_values_are_zero_whatever_they_were():
    x = np.full((1, 4, 4, 8), np.inf, np.float32)
    y, dx, state = run(x, x, 0.5)
    for result in (y, dx):
        np.testing.assert_array_equal(result == 0, state.mask_data == 0)


def test_a_kernel_from_an_archive_goes_on_with_the_sequence():
    kernel, source = mg.Dropout(0.5, seed=2), mg.Image.from_array(np.ones((1, 4, 4, 8), np.float32))
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, source)
        restored = archive.from_bytes(archive.to_bytes(kernel))
        results = [each.encode(commands, source) for each in (kernel, restored)]
    np.testing.assert_array_equal(*map(np.asarray, results))


def test_functional_calls():
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    mask = reference.dropout_mask(x.shape, 0.25, 11)
    np.testing.assert_array_equal(functional.dropout(x, 0.25, seed=11), 4 * x * mask)
    np.testing.assert_array_equal(functional.dropout_gradient(x, 0.25, seed=11), 4 * x * mask)


IMAGE = np.zeros((1, 2, 3, 4), np.float32)


def encoded(
    gradient: mg.DropoutGradient, forward: Any = None, g: np.ndarray = IMAGE, empty: bool = False, **properties: Any
) -> None:
    kernel, source = forward or mg.Dropout(0.5), mg.Image.from_array(IMAGE)
    for name, value in properties.items():
        setattr(kernel, name, value)
    with mg.CommandBuffer() as commands:
        _, state = kernel.encode(commands, source, return_state=True)
        if empty:
            state = kernel.result_state(source, destination_image=source)
        gradient.encode(commands, mg.Image.from_array(g), source, state)


def encode(kernel: mg.Dropout) -> None:
    kernel.encode(mg.CommandBuffer(), mg.Image.from_array(IMAGE))


def mirrored() -> mg.Dropout:
    kernel = mg.Dropout(0.5)
    kernel.edge_mode = mg.EdgeMode.MIRROR
    return kernel


GRADIENT = mg.DropoutGradient
WIDE = {"offset": mg.Offset(-1, 0, 0), "padding": mg.ExplicitPadding(x=1, y=0), "edge_mode": mg.EdgeMode.CLAMP}
BAD_INPUT = {
    "keeping nothing": (lambda: mg.Dropout(0), mg.GeometryError, "Dropout: keep_probability is 0.0; it has to lie"),
    "keeping all": (lambda: GRADIENT(1), mg.GeometryError, "DropoutGradient: keep_probability is 1.0; it has to"),
    "as good as nothing": (lambda: mg.Dropout(1e-60), mg.GeometryError, "keep_probability is 1e-60"),
    "no probability": (lambda: mg.Dropout("half"), mg.FormatError, "keep_probability is 'half'; it has to be a num"),
    "not a number": (lambda: mg.Dropout(float("nan")), mg.GeometryError, "keep_probability is nan"),
    "a negative seed": (lambda: mg.Dropout(0.5, seed=-1), mg.GeometryError, "seed is -1; it has to be at least 0"),
    "a large seed": (lambda: mg.Dropout(0.5, seed=2**32), mg.GeometryError, "seed is 4294967296; it has to be below"),
    "a fractional seed": (lambda: mg.Dropout(0.5, seed=1.5), mg.FormatError, "seed is 1.5; it has to be an integer"),
    "a stride of 2": (
        lambda: mg.Dropout(0.5, mask_stride_in_pixels=(1, 2, 1)), mg.GeometryError, "is (1, 2, 1); each has to be 0"),
    "two strides": (
        lambda: mg.Dropout(0.5, mask_stride_in_pixels=(1, 1)), mg.FormatError, "it has to be 3 integers"),
    "another probability": (
        lambda: encoded(GRADIENT(0.25)), mg.StateError, "DropoutGradient: keep_probability is 0.25 but that of"),
    "another seed": (lambda: encoded(GRADIENT(0.5, seed=1)), mg.StateError, "DropoutGradient: seed is 1 but that of"),
    "another stride": (
        lambda: encoded(GRADIENT(0.5, mask_stride_in_pixels=(0, 0, 1))), mg.StateError, "mask_stride_in_pixels is"),
    "a state without a mask": (
        lambda: encoded(GRADIENT(0.5), empty=True), mg.StateError, "gradient_state holds no mask; encode Dropout in"),
    "the state of another kernel": (
        lambda: encoded(GRADIENT(0.5), mg.SoftMax()), mg.StateError, "gradient_state was made by SoftMax"),
    "a gradient of another size": (
        lambda: encoded(GRADIENT(0.5), g=IMAGE[:, :1]), mg.GeometryError, "source_gradient is 1x1x3x4 but Dropout of"),
    "repeated edges": (
        lambda: encoded(GRADIENT(0.5), g=np.zeros((1, 2, 5, 4), "f4"), **WIDE), NotImplementedError,
        "DropoutGradient: the forward kernel read pixels -1 to 4 along x of a source with 3"),
    "a mirrored edge": (
        lambda: encode(mirrored()), NotImplementedError, "Dropout: edge_mode is MIRROR; it supports"),
}  # fmt: skip


@pytest.mark.parametrize(("build", "error", "words"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_named(build, error, words):
    with pytest.raises(error) as raised:
        build()
    assert words in str(raised.value)


@each_dtype
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 40, 13, 7), (3, 8, 8, 64)])
def test_runs_of_many_elements(dtype, shape):
    x, g = (np.random.default_rng(seed).standard_normal(shape).astype(dtype) for seed in range(2))
    check(x, g, 0.6, seed=4)


@pytest.mark.usefixtures("shaders_of_gpus")
class TestTheShadersOfGPUs:
    @each_dtype
    @pytest.mark.parametrize("shape", [(1, 1, 1, 3), (2, 5, 7, 3), (2, 9, 60, 12), (1, 64, 64, 5)])
    def test_vectors_and_what_is_left_behind_them(self, shape, dtype, monkeypatch):
        generator = np.random.default_rng(8)
        x, g = (generator.standard_normal(shape).astype(dtype) for _ in range(2))
        check(x, g, 0.3, seed=3)
        check(x, g, 0.3, mask_stride_in_pixels=(1, 0, 1))
        # As of images with many elements.
        monkeypatch.setattr(dropout, "_elements_of_chunk", lambda device, elements: dropout.ELEMENTS_BY_TURNS)
        check(x, g, 0.3, seed=3)
