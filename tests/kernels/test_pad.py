"""Padding by every edge mode and its gradient: what the float64 reference says, to the bit where nothing is added."""

from __future__ import annotations

from typing import Any

import gpu_forms
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpsgrad as mg
from mpsgrad import archive, functional, reference
from mpsgrad.kernels import pad_dispatch, walk
from mpsgrad.testing import (
    FencedImage,
    assert_within,
    batch_sizes,
    channel_counts,
    channel_formats,
    error_bound,
    values,
)

MODES = [mode.name.lower() for mode in mg.EdgeMode]


def reference_gradient(g: np.ndarray, kernel: mg.Pad) -> np.ndarray:
    sizes = [(size.y, size.x, size.channel) for size in (kernel.padding_size_before, kernel.padding_size_after)]
    return reference.pad_gradient(g, *sizes, kernel.edge_mode.name.lower())


def check(kernel: mg.Pad, x: np.ndarray, seed: int = 0) -> None:
    """Forward and gradient into fenced images."""
    before, after = kernel.padding_size_before, kernel.padding_size_after
    source = mg.Image.from_array(x)
    result = FencedImage.of(kernel.destination_image_descriptor([source]))
    assert kernel.offset == (-before.x, -before.y, 0)
    state = kernel.result_state(source, destination_image=result.image)
    g = np.random.default_rng(seed).standard_normal(result.image.shape).astype(x.dtype)
    dx = FencedImage.of(source.descriptor)
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, source, destination_image=result.image, destination_state=state)
        mg.PadGradient().encode(commands, mg.Image.from_array(g), source, state, destination_gradient=dx.image)
    fill = kernel.fill_value if kernel.fill_values is None else kernel.fill_values
    sizes = ((before.y, before.x, before.channel), (after.y, after.x, after.channel))
    expected = reference.pad(x, *sizes, kernel.edge_mode.name.lower(), fill)
    np.testing.assert_array_equal(result.check(), expected.astype(x.dtype))
    expected, magnitude = reference_gradient(g, kernel), reference_gradient(np.abs(g), kernel)
    terms = int(reference_gradient(np.ones_like(g), kernel).max())
    assert_within(dx.check(), expected, error_bound(x.dtype, terms, magnitude, expected), name="gradient")


def check_drawn(data: Any) -> None:
    size = st.integers(0, 7)
    with_channels = data.draw(st.booleans())
    coordinates = st.tuples(size, size, size if with_channels else st.just(0))
    kernel = mg.Pad(data.draw(coordinates), data.draw(coordinates))
    kernel.edge_mode = data.draw(st.sampled_from(mg.EdgeMode))
    kernel.fill_value = 2.5
    extents = data.draw(st.tuples(batch_sizes(), st.integers(1, 5), st.integers(1, 5), channel_counts()))
    check(kernel, data.draw(values(extents, data.draw(channel_formats()).dtype)))


@given(data=st.data())
def test_results_and_gradients_match_the_reference(data):
    check_drawn(data)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("channels", [32, 40, 77])
def test_channels_that_cpus_add_up_by_panels(channels, mode, dtype):
    kernel = mg.Pad((2, 3, 0), (4, 1, 0))
    kernel.edge_mode = mg.EdgeMode[mode.upper()]
    check(kernel, np.random.default_rng(1).standard_normal((2, 3, 5, channels)).astype(dtype))


@pytest.mark.usefixtures("shaders_of_gpus")
class TestTheShadersOfGPUs:
    @given(data=st.data())
    def test_results_and_gradients_match_the_reference(self, data):
        check_drawn(data)

    @pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("channels", [6, 8])
    def test_two_and_four_channels_at_a_time(self, channels, mode, dtype):
        kernel = mg.Pad((2, 3, 0), (4, 1, 0), np.arange(float(channels)))
        kernel.edge_mode = mg.EdgeMode[mode.upper()]
        check(kernel, np.random.default_rng(1).standard_normal((2, 3, 2, channels)).astype(dtype))

    @gpu_forms.of_halves
    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("channels", [8, 24])
    def test_eight_halves_at_a_time(self, channels, mode, monkeypatch):
        monkeypatch.setattr(walk, "FEWEST_THREADS_OF_EIGHTS", 1)
        kernel = mg.Pad((2, 3, 0), (4, 1, 0), np.arange(float(channels)))
        kernel.edge_mode = mg.EdgeMode[mode.upper()]
        check(kernel, np.random.default_rng(1).standard_normal((2, 3, 2, channels)).astype(np.float16))

    @pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("channels", [3, 13])
    def test_threads_take_turns_where_there_are_many_elements(self, channels, mode, dtype, monkeypatch):
        monkeypatch.setattr(walk, "FEWEST_THREADS_BY_TURNS", 8)
        kernel = mg.Pad((2, 3, 0), (4, 1, 0), np.arange(float(channels)))
        kernel.edge_mode = mg.EdgeMode[mode.upper()]
        check(kernel, np.random.default_rng(1).standard_normal((2, 3, 2, channels)).astype(dtype))


    @pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("size", [(2, 4, 15), (1, 2, 3), (3, 1, 24)])
    def test_threads_own_16_bytes_of_single_channels(self, size, mode, dtype, monkeypatch):
        monkeypatch.setattr(pad_dispatch, "FEWEST_PIXELS_OF_FLAT", 8)
        monkeypatch.setattr(pad_dispatch, "FEWEST_PIXELS_OF_FLAT_GRADIENTS", 8)
        for before, after in (((2, 3, 0), (4, 1, 0)), ((0, 0, 0), (5, 0, 0)), ((20, 1, 0), (1, 4, 0))):
            kernel = mg.Pad(before, after, np.array([3.0]))
            kernel.edge_mode = mg.EdgeMode[mode.upper()]
            check(kernel, np.random.default_rng(1).standard_normal((*size, 1)).astype(dtype))
            x = mg.Image.from_array(np.zeros((*size, 1), dtype))
            with mg.CommandBuffer() as commands:
                y, state = kernel.encode(commands, x, return_state=True)
                mg.PadGradient().encode(commands, y, x, state)
                forward, backward = (each.function.name for each in commands._dispatches)
            assert forward == "pad_by_flat"
            assert (backward == "pad_gradient_by_flat") == (size[2] >= 8 and mode not in ("zero", "constant"))


def test_a_fill_value_for_each_channel():
    kernel = mg.Pad((1, 0, 1), (0, 2, 0), [1.0, 2.0, 3.0, 4.0])
    kernel.edge_mode = mg.EdgeMode.CONSTANT
    kernel.fill_value = 9.0
    check(kernel, np.random.default_rng(2).standard_normal((2, 3, 2, 3)).astype(np.float16))


X = np.random.default_rng(3).standard_normal((2, 5, 6, 7)).astype(np.float32)


@pytest.mark.parametrize("mode", MODES)
def test_a_window_into_a_larger_image_keeps_the_rest(mode):
    """A manual encode: offset and clip_rect say where, the padding along x and y has no effect; channels are padded."""
    before = np.random.default_rng(4).standard_normal((2, 9, 9, 16)).astype(np.float32)
    kernel = mg.Pad((50, 60, 2), (70, 80, 3))
    kernel.edge_mode = mg.EdgeMode[mode.upper()]
    kernel.offset = mg.Offset(2, -3, 0)
    kernel.clip_rect = mg.Region(mg.Origin(1, 0, 0), mg.Size(7, 9, 2))
    kernel.source_feature_channel_offset, kernel.source_feature_channel_max_count = 1, 3
    kernel.destination_feature_channel_offset = 4
    source, result = mg.Image.from_array(X), mg.Image.from_array(before)
    state = kernel.result_state(source, destination_image=result)
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, source, destination_image=result, destination_state=state)
    expected = before.copy()
    # Of the 6 columns those from 2 on, and 3 more; of the 5 rows all, 3 before and 1 behind them.
    expected[:, :, 1:8, 4:12] = reference.pad(X[..., 1:4], (3, 0, 2), (1, 3, 3), mode)[:, :, 2:]
    np.testing.assert_array_equal(np.asarray(result), expected)
    with mg.CommandBuffer() as commands:
        dx = mg.PadGradient().encode(commands, mg.Image.from_array(before), source, state)
    g = np.zeros((2, 9, 9, 8), np.float32)
    g[:, :, 2:] = before[:, :, 1:8, 4:12]
    exact = np.zeros(X.shape)
    exact[..., 1:4] = reference.pad_gradient(g, (3, 0, 2), (1, 3, 3), mode)
    assert_within(np.asarray(dx), exact, error_bound(np.float32, 64, 64 * np.abs(g).max(), exact))


@pytest.mark.parametrize("mode", MODES)
def test_every_copy_gives_its_gradient_back(mode):
    """Each copied output has one source: the gradient's mass arrives, or with zeros around that of the image alone."""
    g = np.random.default_rng(5).integers(-9, 10, (1, 8, 9, 12)).astype(np.float32)
    dx = functional.pad_gradient(g, np.zeros((1, 3, 2, 4), np.float32), (1, 2, 3), (4, 5, 5), edge_mode=mode)
    kept = g[:, 1:4, 2:4, 3:7] if mode in ("zero", "constant") else g
    assert dx.sum() == kept.sum()


@pytest.mark.parametrize("mode", MODES)
def test_batches_archives_and_every_run_give_the_same_bits(mode):
    kernel = mg.Pad((3, 2, 1), (1, 4, 0))
    kernel.edge_mode, kernel.fill_value = mg.EdgeMode[mode.upper()], -1.5
    restored = archive.from_bytes(archive.to_bytes(kernel))
    images = [mg.Image.from_array(one) for one in X]
    g = np.random.default_rng(6).standard_normal((2, 11, 10, 8)).astype(np.float32)
    bits = set()
    for forward in (kernel, restored, kernel):
        with mg.CommandBuffer() as commands:
            results, states = forward.encode_batch(commands, images, return_state=True)
            incoming = [mg.Image.from_array(one) for one in g]
            gradients = mg.PadGradient().encode_batch(commands, incoming, images, states)
        bits.add((np.asarray(results).tobytes(), np.asarray(gradients).tobytes()))
    (y, dx), sizes = bits.pop(), ((2, 3, 1), (4, 1, 0))
    assert not bits
    expected = functional.pad(X, *sizes, edge_mode=mode, fill=-1.5)
    assert y == expected.tobytes()
    assert dx == functional.pad_gradient(g, X, *sizes, edge_mode=mode).tobytes()


# bad input


def _image(*shape: int, dtype: Any = np.float32) -> mg.Image:
    return mg.Image.from_array(np.ones(shape, dtype))


def _encode(kernel: mg.Pad, into: Any = None, **properties: Any) -> Any:
    for name, value in properties.items():
        setattr(kernel, name, value)
    return kernel.encode(mg.CommandBuffer(), _image(1, 2, 3, 4), destination_image=into)


def _gradient(forward: Any, g: tuple[int, ...], x: tuple[int, ...] = (1, 2, 3, 4)) -> None:
    commands = mg.CommandBuffer()
    _, state = forward.encode(commands, _image(1, 2, 3, 4), return_state=True)
    mg.PadGradient().encode(commands, _image(*g), _image(*x), state)


def _with_state_of(made: mg.Pad, used: mg.Pad) -> None:
    source, result = _image(1, 2, 3, 4), _image(1, 2, 3, 5)
    state = made.result_state(source, destination_image=result)
    used.encode(mg.CommandBuffer(), source, destination_image=result, destination_state=state)


BAD_INPUT = {
    "a negative padding": (
        lambda: mg.Pad((0, -1, 0)), mg.GeometryError, "Pad: padding_size_before is -1; it has to be at least 0"),
    "a padding of two numbers": (
        lambda: mg.Pad((0, 1)), mg.FormatError, "Pad: padding_size_before is (0, 1); it has to be 3 integers"),
    "a fractional padding": (
        lambda: mg.Pad((0, 0, 0), (0.5, 0, 0)), mg.FormatError, "Pad: padding_size_after is 0.5; it has to be an"),
    "a padding beyond any image": (
        lambda: mg.Pad((2**31, 0, 0)), mg.GeometryError, "Pad: padding_size_before is (2147483648, 0, 0); it has to"),
    "a result beyond any image": (
        lambda: _encode(mg.Pad((2**29, 0, 0))), mg.GeometryError,
        "1x2x536870915x4 has 4294967320 elements; the largest image has 2147483647"),
    "too few fill values": (
        lambda: _encode(mg.Pad((0, 0, 1), (0, 0, 0), [1.0] * 4)), mg.GeometryError,
        "Pad: fill_values has 4 values but 5 feature channels are written"),
    "fill values that are none": (
        lambda: mg.Pad(fill_values=["a"]), mg.FormatError, "Pad: fill_values[0] is 'a'; it has to be a number"),
    "a single fill value as the list": (
        lambda: mg.Pad(fill_values=1.0), mg.FormatError, "Pad: fill_values is 1.0; it has to be a list of numbers"),
    "an infinite fill value": (
        lambda: _encode(mg.Pad(), fill_value=float("inf")), mg.GeometryError, "Pad: fill_value is inf; it has to be"),
    "an unknown edge mode": (
        lambda: _encode(mg.Pad(), edge_mode=7), mg.FormatError, "Pad: edge_mode is 7; it has to be an EdgeMode"),
    "a destination with too few channels": (
        lambda: _encode(mg.Pad((0, 0, 2), (0, 0, 2)), _image(1, 2, 3, 7)), mg.GeometryError,
        "Pad: the destination has 7 feature channels but 8 are written from channel 0 on"),
    "a destination channel that is no multiple of 4": (
        lambda: _encode(mg.Pad(), destination_feature_channel_offset=2), mg.GeometryError,
        "Pad: destination_feature_channel_offset is 2; it has to be a multiple of 4"),
    "no channel left": (
        lambda: _encode(mg.Pad(), source_feature_channel_offset=4), mg.GeometryError,
        "Pad: source_feature_channel_offset is 4 but that image has 4 feature channels"),
    "the state of another padding": (
        lambda: _with_state_of(mg.Pad((0, 0, 1)), mg.Pad((0, 0, 0), (0, 0, 1))), mg.StateError,
        "Pad: 0 channels are put before the source's and 1 behind them, but destination_state was made for 1 and 0"),
    "a gradient of another size": (
        lambda: _gradient(mg.Pad((1, 1, 0)), (1, 2, 3, 4)), mg.GeometryError,
        "PadGradient: source_gradient is 1x2x3x4 but Pad of a 1x2x3x4 source gives 1x3x4x4"),
    "a source of another size": (
        lambda: _gradient(mg.Pad((1, 1, 0)), (1, 3, 4, 4), (1, 2, 3, 5)), mg.GeometryError,
        "PadGradient: source_image is 1x2x3x5 but gradient_state was made for 1x2x3x4"),
    "the state of another kernel": (
        lambda: _gradient(mg.Slice(), (1, 2, 3, 4)), mg.StateError,
        "PadGradient: gradient_state was made by Slice; it has to be made by Pad"),
    "an unknown edge mode by name": (
        lambda: functional.pad(X, (1, 1), (1, 1), edge_mode="wrap"), mg.FormatError,
        "Pad: edge_mode is 'wrap'; it has to be an EdgeMode or one of zero, clamp, mirror, mirror_with_edge, constant"),
    "a padding that is one number": (
        lambda: functional.pad(X, 1, (1, 1)), mg.FormatError, "before is 1; it has to be (y, x) or (y, x, channels)"),
}  # fmt: skip


@pytest.mark.parametrize(("build", "error", "words"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_named(build, error, words):
    with pytest.raises(error) as raised:
        build()
    assert words in str(raised.value)
