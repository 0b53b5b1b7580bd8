"""SoftMax and LogSoftMax with their gradients against the float64 references, and the laws that are theirs alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import gpu_forms
import numpy as np
import pytest
from by_turns import by_turns
from fenced import encode, encode_gradient
from hypothesis import given
from hypothesis import strategies as st

import mpsgrad as mg
from mpsgrad import archive, reference
from mpsgrad.kernels import soft_max
from mpsgrad.kernels.soft_max_few_channels import few_channels
from mpsgrad.shader import ShaderFamily, use_tunables
from mpsgrad.testing import (
    FencedImage,
    assert_within,
    batch_sizes,
    channel_counts,
    channel_formats,
    error_bound,
    values,
)
from mpsgrad.tunables import ALWAYS, WHERE_FEWER, Tunables, tunables

pytestmark = pytest.mark.usefixtures("several_kernels_at_a_time")

EXP_ULPS = 8
"""What ``exp`` and ``log`` may be off, in units of the last place of float32; Metal grants 3 + |2x|."""


@dataclass(frozen=True)
class Kind:
    """A forward kernel with its gradient, their references, and how far results may be off."""

    forward: type
    gradient: type
    name: str

    def reference(self, x):
        return getattr(reference, self.name)(x)

    def reference_gradient(self, g, y):
        return getattr(reference, f"{self.name}_gradient")(g, y)

    def bound(self, x, result, dtype):
        """exp(x - m) is off by the rounding of x - m besides its own error; the sum has one term for each channel."""
        x = np.asarray(x, np.float64)
        spread = np.abs(x - x.max(-1, keepdims=True)).max()
        magnitude = result if self.name == "soft_max" else 1 + spread + np.log(x.shape[-1])
        return error_bound(dtype, x.shape[-1], magnitude, result, function_ulps=EXP_ULPS + spread)

    def gradient_bound(self, g, y, result, dtype):
        g, y = np.abs(np.asarray(g, np.float64)), np.asarray(y, np.float64)
        if self.name == "soft_max":
            magnitude = np.abs(y) * (g + (g * np.abs(y)).sum(-1, keepdims=True))
        else:
            magnitude = g + np.exp(y) * g.sum(-1, keepdims=True)
        return error_bound(dtype, y.shape[-1], magnitude, result, function_ulps=EXP_ULPS + np.abs(y).max())


KINDS = {
    "soft_max": Kind(mg.SoftMax, mg.SoftMaxGradient, "soft_max"),
    "log_soft_max": Kind(mg.LogSoftMax, mg.LogSoftMaxGradient, "log_soft_max"),
}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
each_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float16])
sizes = st.tuples(st.integers(1, 5), st.integers(1, 6))
row_lengths = st.one_of(channel_counts(), st.sampled_from([127, 128, 129, 200, 511, 1000]))


def encode_gradient_of(kernel: Any, g: np.ndarray, y: np.ndarray, state: Any) -> np.ndarray:
    """The gradient, for the result ``y``."""
    return encode_gradient(kernel, g, mg.Image.from_array(y), state)


@each_kind
@given(data=st.data())
def test_forward_and_gradient_match_the_reference(kind, data):
    dtype = data.draw(channel_formats()).dtype
    shape = (data.draw(batch_sizes()), *data.draw(sizes), data.draw(row_lengths))
    scale = data.draw(st.sampled_from([0.01, 1.0, 10.0]))
    x = data.draw(values(shape, dtype, scale=scale, ties=data.draw(st.booleans())))
    _, y, state = encode(kind.forward(), x)
    expected = kind.reference(x)
    assert_within(y, expected, kind.bound(x, expected, dtype))

    g = data.draw(values(shape, dtype))
    dx = encode_gradient_of(kind.gradient(), g, y, state)
    expected = kind.reference_gradient(g, y)
    assert_within(dx, expected, kind.gradient_bound(g, y, expected, dtype), name="gradient")


REGISTERS = {"few registers": ALWAYS, "many registers": WHERE_FEWER}
"""What ``convolution_by_eights`` is on CPUs that have so many."""
FEW_CHANNELS = sorted(
    {
        orders.channels
        for by_eights in REGISTERS.values()
        for is_gradient in (False, True)
        for orders in few_channels(is_gradient, Tunables(convolution_by_eights=by_eights))
    }
)
SHORT_ROWS = [*((1, 5, 9, channels) for channels in (*FEW_CHANNELS, 19)), (1, 601, 225, 3)]
ROWS_OF_HALVES = [(1, 2, 5, channels) for channels in (37, 64, 1024, 1043)]


@each_kind
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [*by_turns(SHORT_ROWS, (np.float32, np.float16), of=2), *((shape, np.float16) for shape in ROWS_OF_HALVES)],
)
def test_short_rows_match_the_reference(kind, shape, dtype):
    """Threads of CPUs take vectors of elements that hold whole rows, and the last ones with some of those before.

    Of halves powers are kept as floats where rows are not long.
    """
    generator = np.random.default_rng(6)
    x, g = (generator.standard_normal(shape, np.float32).astype(dtype) for _ in range(2))
    _, y, state = encode(kind.forward(), x)
    expected = kind.reference(x)
    assert_within(y, expected, kind.bound(x, expected, dtype))
    expected = kind.reference_gradient(g, y)
    bound = kind.gradient_bound(g, y, expected, dtype)
    assert_within(encode_gradient_of(kind.gradient(), g, y, state), expected, bound)


@pytest.mark.skipif(mg.default_device().family != "cpu", reason="for CPUs")
@each_kind
@pytest.mark.parametrize("by_eights", REGISTERS.values(), ids=REGISTERS)
@pytest.mark.parametrize("channels", [2, 3, 8, 11, 12, 16, 19, 24, 64, 100, 131])
def test_rows_of_cpus_of_both_kinds(kind, channels, by_eights):
    """How many elements vectors have, and how many rows are taken together, depends on the registers. Whether nine rows
    are on their own or with others changes no bit."""
    device, generator = mg.default_device(), np.random.default_rng(13)
    x, g = (generator.standard_normal((1, 7, 9, channels), np.float32) for _ in range(2))
    before = tunables(device.tuning)
    try:
        use_tunables(device.tuning, before.with_number("convolution_by_eights", by_eights))
        _, y, state = encode(kind.forward(), x)
        dx = encode_gradient_of(kind.gradient(), g, y, state)
        first, fewer = x[:, :1].copy(), g[:, :1].copy()
        _, first_y, first_state = encode(kind.forward(), first)
        first_dx = encode_gradient_of(kind.gradient(), fewer, first_y, first_state)
    finally:
        use_tunables(device.tuning, before)
    expected = kind.reference(x)
    assert_within(y, expected, kind.bound(x, expected, np.float32))
    np.testing.assert_array_equal(y[:, :1], first_y)
    expected = kind.reference_gradient(g, y)
    assert_within(dx, expected, kind.gradient_bound(g, y, expected, np.float32), name="gradient")
    np.testing.assert_array_equal(dx[:, :1], first_dx)


@each_kind
@pytest.mark.parametrize("channels", [264, 272])
def test_gradients_past_the_caches_are_the_same_bits(kind, channels):
    generator, device = np.random.default_rng(8), mg.default_device()
    g, y = (generator.standard_normal((1, 20, 20, channels), np.float32) for _ in range(2))
    _, _, state = encode(kind.forward(), y)
    before, found = tunables(device.tuning), []
    try:
        for cached_bytes in (before.cached_bytes, 1 << 20):
            use_tunables(device.tuning, before.with_number("cached_bytes", cached_bytes))
            found.append(encode_gradient_of(kind.gradient(), g, y, state))
    finally:
        use_tunables(device.tuning, before)
    np.testing.assert_array_equal(*found)


def test_the_worked_cases():
    x, g = (np.float32(v).reshape(1, 1, 1, 3) for v in ([1, 2, 4], [1, 0, -2]))
    for kind, y, dx in (
        (KINDS["soft_max"], [0.04201, 0.114195, 0.843795], [0.111141, 0.187917, -0.299058]),
        (KINDS["log_soft_max"], [-3.169846, -2.169846, -0.169846], [1.04201, 0.114195, -1.156205]),
    ):
        _, result, state = encode(kind.forward(), x)
        np.testing.assert_allclose(result.ravel(), y, rtol=1e-5)
        np.testing.assert_allclose(encode_gradient_of(kind.gradient(), g, result, state).ravel(), dx, rtol=1e-5)


# laws


@each_dtype
@pytest.mark.parametrize("channels", [1, 3, 32, 100, 1000])
def test_probabilities_add_up_to_one_and_their_gradients_to_zero(dtype, channels):
    generator = np.random.default_rng(channels)
    x, g = (generator.standard_normal((2, 3, 4, channels)).astype(dtype) for _ in range(2))
    _, y, state = encode(mg.SoftMax(), x)
    storage = np.finfo(dtype)
    slack = 0.5 * float(storage.eps) + channels * float(storage.smallest_subnormal) + (channels + 20) * 2.0**-23
    assert (np.abs(y.astype(np.float64).sum(-1) - 1) <= slack).all()
    assert (y >= 0).all() and (y <= 1).all()
    if dtype is np.float32:
        dx = encode_gradient_of(mg.SoftMaxGradient(), g, y, state)
        total = np.abs(dx.astype(np.float64).sum(-1))
        assert (total <= (2 * channels + 10) * 2.0**-23 * (np.abs(g) * y).sum(-1) * 4).all()


@each_kind
@each_dtype
def test_equal_channels_share_equally(kind, dtype):
    for channels in (1, 7, 32, 33, 130):
        x = np.full((1, 2, 2, channels), 3, dtype)
        _, y, _ = encode(kind.forward(), x)
        expected = 1 / channels if kind.name == "soft_max" else -np.log(channels)
        assert (y == y.ravel()[0]).all()
        np.testing.assert_allclose(y.astype(np.float64), expected, rtol=4 * np.finfo(dtype).eps, atol=1e-6)


@each_kind
@each_dtype
def test_large_values_do_not_overflow(kind, dtype):
    largest = float(np.finfo(dtype).max)
    x = np.array([[largest, 0, -largest], [largest, largest, 0], [-largest] * 3, [largest] * 3], dtype)
    _, y, _ = encode(kind.forward(), x.reshape(1, 1, 4, 3))
    rows = y.reshape(4, 3).astype(np.float64)
    if kind.name == "soft_max":
        expected = [[1, 0, 0], [0.5, 0.5, 0], [1 / 3] * 3, [1 / 3] * 3]
        np.testing.assert_allclose(rows, expected, rtol=2 * float(np.finfo(dtype).eps))
    else:
        np.testing.assert_allclose(rows[2:], -np.log(3), rtol=2e-3)
        assert rows[0, 0] == 0 and (rows[0, 1:] <= -float(largest) / 2).all()


@each_kind
@pytest.mark.parametrize("channels", [3, 8, 10, 19, 40])
def test_infinite_channels_have_no_share_and_what_is_no_number_spoils_its_row_alone(kind, channels):
    x = np.random.default_rng(9).standard_normal((1, 3, 4, channels)).astype(np.float32)
    x[0, 0, :, -1] = -np.inf
    x[0, 2, 1, 0] = np.nan
    with mg.CommandBuffer() as commands:
        result = kind.forward().encode(commands, mg.Image.from_array(x))
    y = np.asarray(result)
    shares = np.exp(y) if kind.forward is mg.LogSoftMax else y
    assert (shares[0, 0, :, -1] == 0).all()
    assert np.isnan(y[0, 2, 1]).all()
    spoilt = np.isnan(x).any(-1)
    np.testing.assert_allclose(shares[~spoilt].sum(-1), 1, rtol=1e-6)


@each_kind
def test_a_shift_of_all_channels_changes_nothing_that_is_exact(kind):
    x = np.random.default_rng(4).integers(-3, 4, (2, 3, 3, 70)).astype(np.float32)
    np.testing.assert_array_equal(encode(kind.forward(), x)[1], encode(kind.forward(), x + 1024)[1])


def test_the_logarithm_of_softmax_is_log_softmax():
    x = np.random.default_rng(5).standard_normal((2, 3, 3, 45)).astype(np.float32)
    y, logs = encode(mg.SoftMax(), x)[1], encode(mg.LogSoftMax(), x)[1]
    np.testing.assert_allclose(np.log(y.astype(np.float64)), logs, atol=60 * 2.0**-23)


@each_kind
def test_pixels_are_independent(kind):
    """The result of a pixel has the same bits whatever the others are."""
    x, others = np.random.default_rng(6).standard_normal((2, 2, 3, 4, 37)).astype(np.float32)
    _, y, _ = encode(kind.forward(), x)
    for pixel in np.ndindex(2, 3, 4):
        changed = others.copy()
        changed[pixel] = x[pixel]
        np.testing.assert_array_equal(encode(kind.forward(), changed)[1][pixel], y[pixel])


# geometry


def shifted(x: np.ndarray, offset: tuple[int, int], size: tuple[int, int], edge: str) -> np.ndarray:
    """The pixels that a pointwise kernel reads for a result of ``size`` (y, x); zeros outside, or the nearest."""
    rows, columns = (np.arange(n) + o for n, o in zip(size, offset, strict=True))
    inside = ((rows >= 0) & (rows < x.shape[1]))[:, None] & ((columns >= 0) & (columns < x.shape[2]))[None]
    read = x[:, np.clip(rows, 0, x.shape[1] - 1)][:, :, np.clip(columns, 0, x.shape[2] - 1)]
    return read if edge == "clamp" else read * inside[None, :, :, None]


@each_kind
@given(data=st.data())
def test_offset_clip_rectangle_edge_and_channel_ranges(kind, data):
    dtype = data.draw(channel_formats()).dtype
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    height, width, images = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 6)), data.draw(st.integers(1, 3))
    size = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 7))
    offset = data.draw(st.integers(-3, 7)), data.draw(st.integers(-3, 7))
    edge = data.draw(st.sampled_from(["zero", "clamp"]))
    origin = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2)), data.draw(st.integers(0, 1))
    first, channels = data.draw(st.sampled_from([0, 4])), data.draw(st.integers(1, 9))
    target = data.draw(st.sampled_from([0, 8]))

    x = generator.standard_normal((images + 1, height, width, 14)).astype(dtype)
    kernel = kind.forward()
    kernel.offset = mg.Offset(offset[1], offset[0], 1)
    kernel.edge_mode = mg.EdgeMode.CLAMP if edge == "clamp" else mg.EdgeMode.ZERO
    kernel.clip_rect = mg.Region(mg.Origin(origin[1], origin[0], origin[2]), mg.Size(size[1], size[0], images))
    kernel.source_feature_channel_offset, kernel.source_feature_channel_max_count = first, channels
    kernel.destination_feature_channel_offset = target
    shape = (images + origin[2], size[0] + origin[0] + 1, size[1] + origin[1] + 1, 18)
    before = generator.standard_normal(shape).astype(dtype)
    source, result = mg.Image.from_array(x), mg.Image.from_array(before)
    state = kernel.result_state(source, destination_image=result)
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, source, destination_image=result, destination_state=state)
    part = np.index_exp[
        origin[2] : origin[2] + images,
        origin[0] : origin[0] + size[0],
        origin[1] : origin[1] + size[1],
        target : target + channels,
    ]
    read = shifted(x[1:, :, :, first : first + channels], offset, size, edge)
    y, expected = np.array(result), kind.reference(read)
    assert_within(y[part], expected, kind.bound(read, expected, dtype))
    kept = y.copy()
    kept[part] = before[part]
    np.testing.assert_array_equal(kept, before)

    g = generator.standard_normal(shape).astype(dtype)
    reads_outside = min(offset) < 0 or offset[0] + size[0] > height or offset[1] + size[1] > width
    with mg.CommandBuffer() as commands:
        if edge == "clamp" and reads_outside:
            with pytest.raises(NotImplementedError, match=f"{kind.gradient.__name__}: .*CLAMP"):
                kind.gradient().encode(commands, mg.Image.from_array(g), result, state)
            return
        dx = kind.gradient().encode(commands, mg.Image.from_array(g), result, state)
    of_read = kind.reference_gradient(g[part], y[part])
    slack = kind.gradient_bound(g[part], y[part], of_read, dtype)
    expected, bound = np.zeros(x.shape), np.zeros(x.shape)
    for row, column in np.ndindex(*size):
        there = row + offset[0], column + offset[1]
        if 0 <= there[0] < height and 0 <= there[1] < width:
            expected[1:, there[0], there[1], first : first + channels] = of_read[:, row, column]
            bound[1:, there[0], there[1], first : first + channels] = slack[:, row, column]
    assert_within(dx, expected, bound, name="gradient")


# the same bits


@each_kind
@each_dtype
def test_every_run_gives_the_same_bits(kind, dtype):
    generator = np.random.default_rng(8)
    x, g = (generator.standard_normal((3, 7, 5, 130)).astype(dtype) for _ in range(2))
    source, y, state = encode(kind.forward(), x)
    dx = encode_gradient_of(kind.gradient(), g, y, state)
    for _ in range(20):
        np.testing.assert_array_equal(encode(kind.forward(), x)[1], y)
        np.testing.assert_array_equal(encode_gradient_of(kind.gradient(), g, y, state), dx)


@each_kind
@pytest.mark.parametrize("channels", [3, 32, 100, 300])
def test_batches_and_encode_forms_give_the_same_bits(kind, channels):
    generator = np.random.default_rng(9)
    x, g = (generator.standard_normal((4, 3, 5, channels)).astype(np.float32) for _ in range(2))
    _, y, state = encode(kind.forward(), x)
    dx = encode_gradient_of(kind.gradient(), g, y, state)
    with mg.CommandBuffer() as commands:
        automatic, made = kind.forward().encode(commands, mg.Image.from_array(x), return_state=True)
        automatic_dx = kind.gradient().encode(commands, mg.Image.from_array(g), automatic, made)
        separate = [mg.Image.from_array(one) for one in x]
        results, states = kind.forward().encode_batch(commands, separate, return_state=True)
        batch_dx = kind.gradient().encode_batch(commands, [mg.Image.from_array(one) for one in g], results, states)
    for result, expected in ((automatic, y), (results, y), (automatic_dx, dx), (batch_dx, dx)):
        np.testing.assert_array_equal(np.asarray(result), expected)


@each_kind
def test_views_of_channels_are_read_and_written(kind):
    generator = np.random.default_rng(10)
    x = generator.standard_normal((2, 3, 4, 40)).astype(np.float32)
    before = generator.standard_normal((2, 3, 4, 80)).astype(np.float32)
    parent = mg.Image.from_array(before)
    with mg.CommandBuffer() as commands:
        kind.forward().encode(
            commands, mg.Image.from_array(x).sub_image(4, 36), destination_image=parent.sub_image(40, 36)
        )
    expected = before.copy()
    expected[..., 40:76] = encode(kind.forward(), x[..., 4:].copy())[1]
    np.testing.assert_array_equal(np.asarray(parent), expected)


@each_kind
def test_a_kernel_from_an_archive_gives_the_same_bits(kind):
    x = np.random.default_rng(11).standard_normal((2, 4, 4, 6)).astype(np.float32)
    kernel, gradient = kind.forward(label="y"), kind.gradient(label="dx")
    kernel.offset, kernel.edge_mode = mg.Offset(1, -1), mg.EdgeMode.ZERO
    restored = archive.from_bytes(archive.to_bytes(kernel))
    restored_gradient = archive.from_bytes(archive.to_bytes(gradient))
    assert (restored.label, restored_gradient.label) == ("y", "dx")
    _, y, state = encode(kernel, x)
    np.testing.assert_array_equal(encode(restored, x)[1], y)
    dx = encode_gradient_of(gradient, x, y, state)
    np.testing.assert_array_equal(encode_gradient_of(restored_gradient, x, y, state), dx)


# states and bad input


def test_the_gradient_takes_the_result_and_not_the_source():
    """The state remembers the size of the forward result, which ``source_image`` has to have."""
    x = mg.Image.from_array(np.zeros((1, 4, 5, 8), np.float32))
    kernel = mg.SoftMax()
    kernel.source_feature_channel_max_count = 4
    with mg.CommandBuffer() as commands:
        y, state = kernel.encode(commands, x, return_state=True)
        with pytest.raises(mg.GeometryError, match="source_image is 1x4x5x8 but gradient_state was made for 1x4x5x4"):
            mg.SoftMaxGradient().encode(commands, y, x, state)
        dx = mg.SoftMaxGradient().encode(commands, y, y, state)
    assert dx.shape == x.shape
    assert (np.asarray(dx)[..., 4:] == 0).all()


def _gradient(kind: Kind, made_by: Kind, shape: tuple[int, ...] = (1, 2, 2, 4)) -> None:
    x = mg.Image.from_array(np.zeros((1, 2, 2, 4), np.float32))
    commands = mg.CommandBuffer()
    y, state = made_by.forward().encode(commands, x, return_state=True)
    kind.gradient().encode(commands, mg.Image.from_array(np.zeros(shape, np.float32)), y, state)


SOFT, LOG = KINDS.values()
BAD_INPUT = {
    "the state of the other kernel": (
        lambda: _gradient(SOFT, LOG), mg.StateError, "gradient_state was made by LogSoftMax; it has to be made by So"),
    "and the other way round": (
        lambda: _gradient(LOG, SOFT), mg.StateError, "gradient_state was made by SoftMax; it has to be made by LogS"),
    "a gradient of another size": (
        lambda: _gradient(SOFT, SOFT, (1, 2, 3, 4)), mg.GeometryError, "source_gradient is 1x2x3x4 but SoftMax of a"),
    "a gradient of fewer channels": (
        lambda: _gradient(LOG, LOG, (1, 2, 2, 3)), mg.GeometryError, "source_gradient is 1x2x2x3 but LogSoftMax of a"),
    "a mirrored edge": (
        lambda: _mirrored(), NotImplementedError, "SoftMax: edge_mode is MIRROR; it supports ZERO and CLAMP"),
}  # fmt: skip


def _mirrored() -> None:
    kernel = mg.SoftMax()
    kernel.edge_mode = mg.EdgeMode.MIRROR
    kernel.encode(mg.CommandBuffer(), mg.Image.from_array(np.zeros((1, 2, 2, 4), np.float32)))


@pytest.mark.parametrize(("build", "error", "words"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_named(build, error, words):
    with pytest.raises(error) as raised:
        build()
    assert words in str(raised.value)


def test_a_destination_of_other_extents_takes_what_there_is():
    """A manual encode writes the destination that it is given, with zeros read beyond the source."""
    x = np.random.default_rng(12).standard_normal((1, 2, 2, 5)).astype(np.float32)
    source = mg.Image.from_array(x)
    fenced = FencedImage.of(replace(source.descriptor, width=4, height=3))
    with mg.CommandBuffer() as commands:
        mg.SoftMax().encode(commands, source, destination_image=fenced.image)
    y = fenced.check()
    np.testing.assert_array_equal(y[:, :2, :2], encode(mg.SoftMax(), x)[1])
    np.testing.assert_allclose(y[:, 2:], 0.2, rtol=1e-6)
    np.testing.assert_allclose(y[:, :, 2:], 0.2, rtol=1e-6)


@pytest.mark.usefixtures("shaders_of_gpus")
class TestTheShadersOfGPUs:
    @each_kind
    @pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
    @pytest.mark.parametrize(
        "channels", [1, 16, 31, 40, 50, 64, 97, 129, 520, 832, 1000, 1025, 2048, 2051, 4096, 4097, 8200]
    )
    def test_forward_and_gradient_match_the_reference(self, kind, dtype, channels):
        self._check(kind, dtype, channels)

    @each_kind
    @pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
    @pytest.mark.parametrize("channels", [129, 191, 250, 301, 509, 513, 1023])
    def test_simdgroups_have_long_rows_of_which_there_are_many(self, monkeypatch, kind, dtype, channels):
        monkeypatch.setattr(soft_max, "SPREAD_ROWS_PER_UNIT", 0)
        self._check(kind, dtype, channels)

    def _check(self, kind, dtype, channels):
        shape = (2, 1, 3, channels)
        self._check_arrays(
            kind, dtype, *(np.random.default_rng(seed).standard_normal(shape).astype(dtype) for seed in (1, 2))
        )

    def _check_arrays(self, kind, dtype, x, g):
        _, y, state = encode(kind.forward(), x)
        self._check_results(kind, dtype, (x, g), y, encode_gradient_of(kind.gradient(), g, y, state))

    def _check_results(self, kind, dtype, given_arrays, y, dx):
        x, g = given_arrays
        expected = kind.reference(x)
        assert_within(y, expected, kind.bound(x, expected, dtype))
        expected = kind.reference_gradient(g, y)
        assert_within(dx, expected, kind.gradient_bound(g, y, expected, dtype), name="gradient")

    @each_kind
    @pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
    @pytest.mark.parametrize(("channels", "pixels"), by_turns(range(1, 11), (1, 7, 400, 1001), of=2))
    def test_few_channels(self, kind, dtype, channels, pixels):
        shape = (1, 1, pixels, channels)
        self._check_arrays(
            kind, dtype, *(np.random.default_rng(seed).standard_normal(shape).astype(dtype) for seed in (1, 2))
        )

    @each_kind
    @pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
    @pytest.mark.parametrize("channels", [9, 11, 14, 15, 31, 33, 50, 99, 255])
    @pytest.mark.parametrize("pixels", [1, 5, 127, 129, 1001, 8, 1000])
    def test_rows_that_follow_each_other_are_copied_to_threadgroups(self, monkeypatch, kind, dtype, channels, pixels):
        """By whole vectors and what is left of the last rows; large maxima lie in any lane of a row."""
        largest = dict.fromkeys(("float", "half"), 256)
        monkeypatch.setattr(soft_max, "MOST_CHANNELS_OF_RUNS", largest)
        monkeypatch.setattr(soft_max, "MOST_CHANNELS_OF_RUNS_OF_GRADIENTS", largest)
        self._use_parts_from(monkeypatch, 1 << 30)
        family, functions = soft_max.RUNS_FAMILY, []
        function = family.function
        monkeypatch.setattr(family, "function", lambda *names: functions.append(names[1]) or function(*names))
        random = np.random.default_rng(4)
        x = random.standard_normal((1, 1, pixels, channels)).astype(dtype)
        x[0, 0, np.arange(pixels), random.integers(channels, size=pixels)] += 10
        g = random.standard_normal(x.shape).astype(dtype)
        if pixels % 8 == 0:
            # Behind a fence of so many pixels images begin at vectors.
            self._check_arrays(kind, dtype, x, g)
        else:
            with mg.CommandBuffer() as commands:
                result, state = kind.forward().encode(commands, mg.Image.from_array(x), return_state=True)
                gradient = kind.gradient().encode(commands, mg.Image.from_array(g), result, state)
            self._check_results(kind, dtype, (x, g), np.asarray(result), np.asarray(gradient))
        names = [name.rpartition("_")[0] for name in functions]
        assert names == [f"{kind.name}_of_runs", f"{kind.name}_gradient_of_runs"]

    def _use_parts_from(self, monkeypatch, channels):
        monkeypatch.setattr(soft_max, "FEWEST_CHANNELS_OF_PARTS", {2: channels, 4: channels})

    @each_kind
    @pytest.mark.parametrize(
        ("dtype", "channels", "walk"),
        [(np.float32, 50, "1_of_pairs"), (np.float32, 250, "4_of_pairs"), (np.float32, 510, "8_of_pairs")]
        + [
            pytest.param(np.float16, *case, marks=() if gpu_forms.HALVES else pytest.mark.nightly)
            for case in ((100, "1_of_fours"), (1020, "8_of_fours"), (250, "4_of_pairs"))
        ],
    )
    def test_rows_of_parts_of_vectors(self, monkeypatch, kind, dtype, channels, walk):
        self._use_parts_from(monkeypatch, 1)
        monkeypatch.setattr(soft_max, "SPREAD_ROWS_PER_UNIT", 0)
        names = []
        function = ShaderFamily.function
        monkeypatch.setattr(ShaderFamily, "function", lambda *of: names.append(of[2]) or function(*of))
        self._check(kind, dtype, channels)
        assert names == [f"{kind.name}_of_teams_{walk}", f"{kind.name}_gradient_of_teams_{walk}"]

    @pytest.mark.parametrize(
        ("metal_type", "channels", "forward", "backward"),
        [("half", 12, "1_of_fours", "1_of_fours"), ("half", 20, "1_of_fours", None), ("half", 36, None, None)]
        + [("half", 76, "1_of_fours", None), ("half", 172, None, None), ("half", 292, "4_of_fours", "4_of_fours")]
        + [("half", 980, "8_of_fours", "8_of_fours"), ("half", 1028, None, None), ("half", 254, None, None)]
        + [("half", 446, "8_of_pairs", "8_of_pairs"), ("float", 258, "8_of_pairs", "8_of_pairs")]
        + [("float", 514, None, None)],
    )
    def test_parts_of_vectors_are_for_teams_that_they_fill(self, monkeypatch, metal_type, channels, forward, backward):
        names = []
        monkeypatch.setattr(ShaderFamily, "function", lambda *of: names.append(of[2]))
        device = SimpleNamespace(family="nvidia", compute_units=132, constant_buffer=bytes)
        commands = SimpleNamespace(device=device, add_dispatch=lambda *_: None)
        layout = (0, channels, 0, 0, 1000, 1, channels, 1)
        for layouts, expected in (((layout,) * 2, forward), ((layout,) * 3, backward)):
            assert soft_max._add_by_vectors(commands, "soft_max", metal_type, (), layouts) == (expected is not None)
            assert names == ([f"soft_max_of_teams_{expected}"] if expected else [])
            names.clear()

    @gpu_forms.of_halves
    def test_rows_apart_are_not_copied_to_threadgroups(self, monkeypatch):
        monkeypatch.setattr(soft_max.RUNS_FAMILY, "function", None)
        storage = mg.Image.from_array(np.random.default_rng(3).standard_normal((2, 3, 3, 24)).astype(np.float16))
        with mg.CommandBuffer() as commands:
            y = mg.SoftMax().encode(commands, storage.sub_image(8, 12))
        expected = reference.soft_max(np.asarray(storage)[..., 8:20])
        np.testing.assert_allclose(np.asarray(y), expected, rtol=1e-3, atol=1e-4)

    @pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
    @pytest.mark.parametrize("channels", [4, 8])
    def test_few_channels_of_a_view(self, channels, dtype):
        storage = mg.Image.from_array(np.random.default_rng(3).standard_normal((2, 3, 3, 16)).astype(dtype))
        with mg.CommandBuffer() as commands:
            y = mg.SoftMax().encode(commands, storage.sub_image(4, channels))
        expected = reference.soft_max(np.asarray(storage)[..., 4 : 4 + channels])
        np.testing.assert_allclose(np.asarray(y), expected, rtol=1e-3, atol=1e-4)

    def test_rows_of_a_view(self):
        """Rows that do not follow each other, in an image that is wider than they are."""
        kernel = mg.SoftMax()
        storage = mg.Image.from_array(np.random.default_rng(3).standard_normal((2, 3, 3, 400)).astype(np.float32))
        with mg.CommandBuffer() as commands:
            y = kernel.encode(commands, storage.sub_image(100, 200))
        np.testing.assert_allclose(
            np.asarray(y), reference.soft_max(np.asarray(storage)[..., 100:300]), rtol=1e-5, atol=1e-7
        )

    @each_kind
    def test_views_of_channels_are_read_and_written(self, kind):
        test_views_of_channels_are_read_and_written(kind)
