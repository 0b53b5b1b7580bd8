"""The pooling kernels and their gradients against the float64 references, and the laws that belong to them alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import gpu_forms
import numpy as np
import pytest
from by_turns import by_turns
from fenced import encode, encode_gradient
from hypothesis import given, settings
from hypothesis import strategies as st
from worked_cases import POOLING

import mpsgrad as mg
from mpsgrad import archive, reference
from mpsgrad.kernels import pooling_dispatch, walk
from mpsgrad.kernels.pooling import PoolingGradientState
from mpsgrad.kernels.pooling_dispatch import BLOCKS, BLOCKS_AT_ONCE, SEARCHED_BLOCKS
from mpsgrad.shader import use_tunables
from mpsgrad.testing import (
    WindowGeometry,
    assert_within,
    batch_sizes,
    channel_counts,
    channel_formats,
    error_bound,
    values,
    window_geometries,
)
from mpsgrad.tunables import ALWAYS, WHERE_FEWER, tunables

EDGES = {"zero": mg.EdgeMode.ZERO, "clamp": mg.EdgeMode.CLAMP}
edges = st.sampled_from(sorted(EDGES))


@dataclass(frozen=True)
class Kind:
    """A forward kernel with its gradient and their references."""

    name: str
    forward: type
    gradient: type
    dilates: bool = False
    options: tuple[tuple[str, Any], ...] = ()

    def window(self, geometry: WindowGeometry) -> dict[str, int]:
        """Arguments of both constructors."""
        arguments = {
            "kernel_width": geometry.kernel_width,
            "kernel_height": geometry.kernel_height,
            "stride_in_pixels_x": geometry.stride_x,
            "stride_in_pixels_y": geometry.stride_y,
        }
        if self.dilates:
            arguments |= {"dilation_rate_x": geometry.dilation_x, "dilation_rate_y": geometry.dilation_y}
        return arguments

    def kernel(self, geometry: WindowGeometry, edge: str, zero_pad: tuple[int, int] = (0, 0)) -> Any:
        """The forward kernel, with its offset set for manual encodes."""
        kernel = self.forward(**self.window(geometry), **dict(self.options))
        kernel.offset = mg.Offset(geometry.offset_x, geometry.offset_y)
        kernel.edge_mode = EDGES[edge]
        if self.name == "average":
            kernel.zero_pad_size_y, kernel.zero_pad_size_x = zero_pad
        return kernel

    def keywords(self, geometry: WindowGeometry, edge: str, zero_pad: tuple[int, int] = (0, 0)) -> dict[str, Any]:
        keywords = geometry.reference | {"edge": edge}
        if self.name != "max":
            del keywords["dilation"]
        elif not self.dilates:
            keywords["dilation"] = (1, 1)
        return keywords | ({"zero_pad": zero_pad} if self.name == "average" else {})

    def reference(self, source, **keywords):
        return getattr(reference, f"pooling_{self.name}")(source, **keywords)

    def reference_gradient(self, gradient, source, **keywords):
        return getattr(reference, f"pooling_{self.name}_gradient")(gradient, source, **keywords)

    def magnitude(self, gradient, source, **keywords):
        """The gradient's sums over absolute values."""
        source = np.abs(source) if self.name == "l2_norm" else source
        return self.reference_gradient(np.abs(gradient), source, **keywords)

    def bound(self, geometry: WindowGeometry, dtype, magnitude, result):
        """Each window sums over its taps, and each pixel over the at most as many windows that cover it."""
        return error_bound(dtype, 2 * geometry.kernel_width * geometry.kernel_height, magnitude, result)


MAX = Kind("max", mg.PoolingMax, mg.PoolingMaxGradient)
RECORDED = Kind("max", mg.PoolingMax, mg.PoolingMaxGradient, options=(("record_maxima", True),))
DILATED = Kind("max", mg.DilatedPoolingMax, mg.DilatedPoolingMaxGradient, dilates=True)
RECORDED_DILATED = replace(DILATED, options=(("record_maxima", True),))
AVERAGE = Kind("average", mg.PoolingAverage, mg.PoolingAverageGradient)
L2_NORM = Kind("l2_norm", mg.PoolingL2Norm, mg.PoolingL2NormGradient)
KINDS = {
    "max": MAX,
    "max recorded": RECORDED,
    "dilated": DILATED,
    "dilated recorded": RECORDED_DILATED,
    "average": AVERAGE,
    "l2 norm": L2_NORM,
}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
SIMPLE = WindowGeometry(9, 7, 3, 3, 2, 2, 1, 1, 0, 0, 5, 4)


def check_against_the_reference(kind: Kind, geometry: WindowGeometry, channels: int, data: Any) -> None:
    """Forward and gradient with drawn values, storage type, edge mode and batch size."""
    edge, dtype = data.draw(edges), data.draw(channel_formats()).dtype
    zero_pad = data.draw(st.tuples(st.integers(0, 2), st.integers(0, 2)))
    images = data.draw(batch_sizes())
    x = data.draw(values((images, geometry.height, geometry.width, channels), dtype, ties=data.draw(st.booleans())))
    g = data.draw(values((images, geometry.result_height, geometry.result_width, channels), dtype))
    keywords = kind.keywords(geometry, edge, zero_pad)

    source, y, state = encode(kind.kernel(geometry, edge, zero_pad), x, keywords["size"])
    expected = kind.reference(x, **keywords)
    if kind.name == "max":
        np.testing.assert_array_equal(y, expected)
    else:
        magnitude = kind.reference(np.abs(x), **keywords)
        assert_within(y, expected, kind.bound(geometry, dtype, magnitude, expected), name="result")

    dx = encode_gradient(kind.gradient(**kind.window(geometry)), g, source, state)
    expected = kind.reference_gradient(g, x, **keywords)
    magnitude = kind.magnitude(g, x, **keywords)
    assert_within(dx, expected, kind.bound(geometry, dtype, magnitude, expected), name="gradient")


@each_kind
@given(data=st.data())
def test_forward_and_gradient_match_the_reference(kind, data):
    geometry = data.draw(window_geometries(dilation=kind.dilates))
    check_against_the_reference(kind, geometry, data.draw(channel_counts()), data)


@each_kind
@pytest.mark.parametrize(("size", "stride"), BLOCKS, ids=[f"{k}x{k} stride {s}" for k, s in BLOCKS])
@given(data=st.data())
def test_common_windows_match_the_reference(kind, size, stride, data):
    drawn = data.draw(window_geometries(dilation=False, largest=9))
    geometry = replace(
        drawn,
        kernel_width=size,
        kernel_height=size,
        stride_x=stride,
        stride_y=stride,
        offset_x=data.draw(st.integers(-2, 3)),
        offset_y=data.draw(st.integers(-2, 3)),
        result_width=data.draw(st.integers(1, drawn.width // stride + 2)),
        result_height=data.draw(st.integers(1, drawn.height // stride + 2)),
    )
    check_against_the_reference(kind, geometry, data.draw(st.sampled_from([1, 8, 31, 32, 37, 64, 65])), data)


@pytest.mark.parametrize("kind", [RECORDED, RECORDED_DILATED], ids=["max", "dilated"])
@given(data=st.data())
def test_the_record_holds_the_first_maximum_and_gives_the_bits_of_the_search(kind, data):
    geometry, edge = data.draw(window_geometries(dilation=kind.dilates)), data.draw(edges)
    channels = data.draw(channel_counts())
    x = data.draw(values((2, geometry.height, geometry.width, channels), np.float32, ties=True))
    g = data.draw(values((2, geometry.result_height, geometry.result_width, channels), np.float32))
    keywords = kind.keywords(geometry, edge)
    source, y, state = encode(kind.kernel(geometry, edge), x, keywords["size"])
    record = state.resource(0).read(0, y.size).reshape(y.shape)
    np.testing.assert_array_equal(record, reference.pooling_max_indices(x, **keywords))

    gradient = kind.gradient(**kind.window(geometry))
    recorded = encode_gradient(gradient, g, source, state)
    _, _, without = encode(replace(kind, options=()).kernel(geometry, edge), x, keywords["size"])
    np.testing.assert_array_equal(encode_gradient(gradient, g, source, without), recorded)


def test_with_a_record_the_gradient_reads_no_source_values():
    x = np.random.default_rng(1).standard_normal((2, 7, 9, 5)).astype(np.float32)
    g = np.ones((2, 4, 5, 5), np.float32)
    gradient = mg.PoolingMaxGradient(**MAX.window(SIMPLE))
    source, _, state = encode(RECORDED.kernel(SIMPLE, "zero"), x, (4, 5))
    before = encode_gradient(gradient, g, source, state)
    source.write(-x)
    np.testing.assert_array_equal(encode_gradient(gradient, g, source, state), before)
    _, _, without = encode(MAX.kernel(SIMPLE, "zero"), x, (4, 5))
    assert not np.array_equal(encode_gradient(gradient, g, source, without), before)


def test_a_state_that_no_encode_filled_is_searched():
    x = np.random.default_rng(2).standard_normal((3, 7, 9, 5)).astype(np.float32)
    g = np.random.default_rng(3).standard_normal((3, 4, 5, 5)).astype(np.float32)
    kernel, gradient = RECORDED.kernel(SIMPLE, "clamp"), mg.PoolingMaxGradient(**MAX.window(SIMPLE))
    source, y, filled = encode(kernel, x, (4, 5))
    empty = kernel.result_state(source, destination_image=mg.Image.from_array(y))
    assert isinstance(empty, PoolingGradientState) and empty.records_maxima
    np.testing.assert_array_equal(
        encode_gradient(gradient, g, source, empty), encode_gradient(gradient, g, source, filled)
    )


@pytest.mark.parametrize("edge", EDGES)
def test_windows_too_large_for_a_record_are_searched(edge):
    geometry = WindowGeometry(40, 20, 17, 16, 3, 2, 1, 1, 2, 3, 12, 9)
    x = np.random.default_rng(4).standard_normal((2, 20, 40, 33)).astype(np.float32)
    g = np.random.default_rng(5).standard_normal((2, 9, 12, 33)).astype(np.float32)
    keywords = MAX.keywords(geometry, edge)
    source, y, state = encode(MAX.kernel(geometry, edge), x, keywords["size"])
    np.testing.assert_array_equal(y, reference.pooling_max(x, **keywords))
    expected = reference.pooling_max_gradient(g, x, **keywords)
    bound = MAX.bound(geometry, np.float32, MAX.magnitude(g, x, **keywords), expected)
    assert_within(encode_gradient(mg.PoolingMaxGradient(**MAX.window(geometry)), g, source, state), expected, bound)


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize(("kind", "channels"), [(RECORDED_DILATED, 37), (RECORDED, 3)], ids=["wide", "narrow"])
def test_an_image_shared_out_by_rows_and_channels(kind, channels, edge):
    """Windows that cross from one share of the rows into the next give each of them its own winners."""
    dilation = 2 if kind.dilates else 1
    geometry = WindowGeometry(5, 64, 3, 3, 1, 1, dilation, dilation, 0, 1, 6, 63)
    for images in (1, 3):
        check_gradient_of(kind, geometry, channels, edge, np.float32, images)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_thread_adds_winners_to_its_own_rows_only(dtype):
    """Results show nothing else but by chance: who owns a row clears it, mostly after the thread above has ended."""
    device = mg.default_device()
    if device.family != "cpu":
        pytest.skip("GPUs have a thread for each pixel")
    geometry, untouched = WindowGeometry(5, 64, 3, 3, 1, 1, 2, 2, 0, 1, 5, 63), 7.0
    generator = np.random.default_rng(20)
    x, g = (generator.standard_normal((1, height, 5, 3)).astype(dtype) for height in (64, 63))
    source, _, state = encode(RECORDED_DILATED.kernel(geometry, "clamp"), x, (63, 5))
    result = mg.Image(source.descriptor)
    gradient = mg.DilatedPoolingMaxGradient(**RECORDED_DILATED.window(geometry))
    with mg.CommandBuffer() as commands:
        gradient.encode(commands, mg.Image.from_array(g), source, state, destination_gradient=result)
        (dispatch,) = commands._dispatches
        sums = dispatch.buffers[-2]
        sums.write(np.full(x.size, untouched, np.float32))
        device.submit([replace(dispatch, threadgroups=1)]).wait()
        rows = sums.read(0, 4 * x.size).view(np.float32).reshape(64, -1)
    is_touched = (rows != untouched).any(axis=1)
    last_row = 64 // dispatch.threadgroups
    assert is_touched[:last_row].all() and not is_touched[last_row:].any()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("kind", [RECORDED, AVERAGE, L2_NORM], ids=["max", "average", "l2 norm"])
@pytest.mark.parametrize(
    ("width", "channels", "size", "stride"),
    [(320, 7, 3, 1), (37, 130, 3, 1), (17, 530, 3, 1), (300, 7, 5, 2), (301, 7, 2, 3)],
)
def test_gradients_go_through_tiles_of_columns(kind, width, channels, size, stride, edge, dtype):
    """Windows that cross from one tile of columns into the next count in both, and channels may be cut."""
    geometry = WindowGeometry(width, 6, size, size, stride, stride, 1, 1, 0, 1, width // stride, 6 // stride)
    check_gradient_of(kind, geometry, channels, edge, dtype, images=3)


@pytest.mark.parametrize("kind", [AVERAGE, L2_NORM], ids=["average", "l2 norm"])
@pytest.mark.parametrize(("size", "stride"), [(3, 1), (5, 2), (3, 4)])
def test_rows_of_pixels_below_each_other_that_have_the_same_windows(kind, size, stride):
    """And rows where a window begins or ends: a thread goes through several."""
    geometry = WindowGeometry(7, 70, size, size, stride, stride, 1, 1, 0, 1, 7 // stride, 70 // stride)
    check_gradient_of(kind, geometry, 3, "zero", np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("channels", [2, 3, 5, 7])
@pytest.mark.parametrize("kind", [AVERAGE, L2_NORM], ids=["average", "l2 norm"])
def test_few_channels_are_taken_at_once(kind, channels, edge, dtype):
    """CPUs with few registers load what lies behind them, too, but nothing behind an image, of which each has the same
    bits as alone."""
    x = np.random.default_rng(21).standard_normal((2, 7, 9, channels)).astype(dtype)
    keywords = kind.keywords(SIMPLE, edge)
    _, y, _ = encode(kind.kernel(SIMPLE, edge), x, keywords["size"])
    expected, magnitude = kind.reference(x, **keywords), kind.reference(np.abs(x), **keywords)
    assert_within(y, expected, kind.bound(SIMPLE, dtype, magnitude, expected), name="result")
    _, alone, _ = encode(kind.kernel(SIMPLE, edge), x[:1], keywords["size"])
    np.testing.assert_array_equal(alone, y[:1])
    check_gradient_of(kind, SIMPLE, channels, edge, dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("by_eights", [0, 1])
@pytest.mark.parametrize("geometry", [SIMPLE, WindowGeometry(9, 7, 3, 3, 1, 1, 1, 1, 0, 0, 8, 6)], ids=["2", "1"])
def test_gradients_of_many_channels_by_eights_or_simdgroups(geometry, by_eights, dtype):
    """CPUs with few registers take eights of them."""
    device = mg.default_device()
    before = tunables(device.tuning)
    try:
        use_tunables(device.tuning, before.with_number("pooling_gradient_by_eights", by_eights))
        check_gradient_of(RECORDED, replace(geometry, offset_x=1, offset_y=1), 37, "clamp", dtype)
    finally:
        use_tunables(device.tuning, before)


@pytest.mark.parametrize(("width", "stride"), [(67, 2), (64, 2), (67, 1), (64, 1)])
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("kind", [MAX, RECORDED], ids=["searched", "recorded"])
def test_gradients_that_exceed_the_caches(kind, size, width, stride):
    """CPUs with few registers write rows of 64 pixels of 48 channels, whose lines meet, into them."""
    device = mg.default_device()
    before = tunables(device.tuning)
    try:
        use_tunables(device.tuning, before.with_number("cached_bytes", 1 << 20))
        columns, rows = -(-width // stride), -(-65 // stride)
        geometry = WindowGeometry(width, 65, size, size, stride, stride, 1, 1, 0, 0, columns, rows)
        check_gradient_of(kind, geometry, 48, "clamp", np.float32)
    finally:
        use_tunables(device.tuning, before)


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize(("width", "channels", "size", "stride"), [(37, 130, 3, 1), (20, 530, 5, 2)])
def test_averages_of_windows_that_overlap(width, channels, size, stride, edge):
    """Over tiles of columns, of all channels or some, with parts outside."""
    columns, rows = -(-width // stride), -(-9 // stride)
    geometry = WindowGeometry(width, 9, size, size, stride, stride, 1, 1, 1, size // 2, columns, rows)
    x = np.random.default_rng(26).standard_normal((2, 9, width, channels)).astype(np.float32)
    keywords = AVERAGE.keywords(geometry, edge)
    _, y, _ = encode(AVERAGE.kernel(geometry, edge), x, (rows, columns))
    expected = reference.pooling_average(x, **keywords)
    assert_within(
        y, expected, error_bound(np.float32, size**2, reference.pooling_average(np.abs(x), **keywords), expected)
    )


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize(("channels", "size", "rows"), [(515, 7, 1), (2100, 4, 1), (600, 5, 3)])
def test_averages_of_large_windows(channels, size, rows, edge):
    """Of all pixels of an image or of windows beside each other, with parts outside."""
    geometry = WindowGeometry(
        size * rows - 1, size * rows, size, size, size, size, 1, 1, size // 2, size // 2 - 1, rows, rows
    )
    generator = np.random.default_rng(22)
    x = generator.standard_normal((1, geometry.height, geometry.width, channels)).astype(np.float32)
    keywords = AVERAGE.keywords(geometry, edge, (1, 1))
    _, y, _ = encode(AVERAGE.kernel(geometry, edge, (1, 1)), x, (rows, rows))
    expected = reference.pooling_average(x, **keywords)
    assert_within(
        y, expected, error_bound(np.float32, size**2, reference.pooling_average(np.abs(x), **keywords), expected)
    )
    check_gradient_of(AVERAGE, geometry, channels, edge, np.float32)


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize(
    ("width", "channels"), [(1100, 1), (9, 1), (21, 2), (400, 3), (18, 4), (57, 5), (24, 6), (160, 7)]
)
@pytest.mark.parametrize(("size", "stride"), SEARCHED_BLOCKS, ids=[f"{k}x{k} stride {s}" for k, s in SEARCHED_BLOCKS])
def test_few_channels_are_searched_and_taken_at_once(size, stride, width, channels, edge):
    """Over tiles beside and below each other, with equal maxima: the bits are those of the record."""
    geometry = WindowGeometry(width, 27, size, size, stride, stride, 1, 1, -1, 1, width // stride, 27 // stride)
    generator = np.random.default_rng(21)
    x = generator.integers(-3, 2, (3, 27, width, channels)).astype(np.float32)
    g = generator.standard_normal((3, 27 // stride, width // stride, channels)).astype(np.float32)
    found = []
    for kind in (MAX, RECORDED):
        source, _, state = encode(kind.kernel(geometry, edge), x, g.shape[1:3])
        found.append(encode_gradient(kind.gradient(**kind.window(geometry)), g, source, state))
    np.testing.assert_array_equal(*found)
    expected = reference.pooling_max_gradient(g, x, **MAX.keywords(geometry, edge))
    np.testing.assert_allclose(found[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("edge", "dtype"), by_turns(EDGES, (np.float32, np.float16), of=2))
@pytest.mark.parametrize(("width", "height", "channels"), [(25, 33, 8), (19, 33, 13), (12, 33, 16), (70, 9, 520)])
@pytest.mark.parametrize(("size", "stride"), BLOCKS_AT_ONCE, ids=[f"{k}x{k} stride {s}" for k, s in BLOCKS_AT_ONCE])
def test_blocks_are_searched_and_added_up_at_once(size, stride, width, height, channels, edge, dtype):
    """Over tiles of columns and of channels and shares of rows, with equal maxima and windows outside. CPUs with few
    registers take what is recorded by the same kernel."""
    offset = size // 2 + stride if edge == "zero" else 1
    columns, rows = width // stride + 1, height // stride
    geometry = WindowGeometry(width, height, size, size, stride, stride, 1, 1, 2 - offset, 1, columns, rows)
    generator = np.random.default_rng(24)
    x = generator.integers(-3, 2, (1, height, width, channels)).astype(dtype)
    g = generator.integers(-9, 10, (1, rows, columns, channels)).astype(dtype)
    expected = reference.pooling_max_gradient(g, x, **MAX.keywords(geometry, edge))
    for kind in (MAX, RECORDED):
        source, _, state = encode(kind.kernel(geometry, edge), x, g.shape[1:3])
        dx = encode_gradient(kind.gradient(**kind.window(geometry)), g, source, state)
        np.testing.assert_array_equal(dx, expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("channels", [3, 12, 35])
@pytest.mark.parametrize(("size", "stride"), [(2, 1), (2, 2), (3, 1), (3, 2), (4, 3), (5, 2)])
@pytest.mark.parametrize("by_eights", [ALWAYS, WHERE_FEWER], ids=["few registers", "many registers"])
def test_blocks_for_cpus_of_both_kinds(by_eights, size, stride, channels, dtype):
    """What is kept of windows, and how many channels are taken at a time, depend on the registers."""
    device = mg.default_device()
    before = tunables(device.tuning)
    geometry = WindowGeometry(19, 33, size, size, stride, stride, 1, 1, 0, 1, 19 // stride + 1, 33 // stride)
    try:
        use_tunables(device.tuning, before.with_number("convolution_by_eights", by_eights))
        check_gradient_of(MAX, geometry, channels, "zero", dtype)
    finally:
        use_tunables(device.tuning, before)


@pytest.mark.parametrize("unit", [2.0**-24, 4096.0], ids=["small", "large"])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_smallest_and_largest_halves_are_searched_and_added_up(stride, unit):
    """They may be doubled on the way, which changes no bit of a result."""
    generator, rows, columns = np.random.default_rng(25), 13 // stride, 11 // stride
    numbers = np.array([-np.inf, -65504, -(2.0**-24), -0.0, 0.0, 2.0**-24, 65504, np.inf], np.float16)
    x = generator.choice(numbers, (1, 13, 11, 9))
    g = (unit * generator.integers(-1, 2, (1, rows, columns, 9))).astype(np.float16)
    geometry = WindowGeometry(11, 13, 3, 3, stride, stride, 1, 1, 1, 1, columns, rows)
    expected = reference.pooling_max_gradient(g, x, **MAX.keywords(geometry, "clamp"))
    for kind in (MAX, RECORDED):
        source, y, state = encode(kind.kernel(geometry, "clamp"), x, g.shape[1:3])
        np.testing.assert_array_equal(y, reference.pooling_max(x, **MAX.keywords(geometry, "clamp")))
        dx = encode_gradient(kind.gradient(**kind.window(geometry)), g, source, state)
        np.testing.assert_array_equal(dx, expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize(
    ("width", "channels", "size", "stride", "dilation"),
    [
        (2300, 1, 7, 1, 1),
        (61, 5, 5, 2, 1),
        (350, 6, 5, 5, 1),
        (61, 12, 5, 2, 1),
        (97, 15, 4, 4, 1),
        (23, 9, 4, 2, 3),
        (23, 37, 4, 1, 3),
        (90, 3, 3, 3, 4),
        (3, 2, 9, 1, 1),
        (7, 320, 7, 2, 2),
    ],
)
def test_windows_are_searched_row_by_row_or_column_by_column(width, channels, size, stride, dilation, edge, dtype):
    """Over tiles of columns and shares of rows, with equal maxima and windows wider than the image."""
    offset = dilation * (size - 1) // 2 - 1
    columns, rows = -(-width // stride), -(-31 // stride)
    geometry = WindowGeometry(width, 31, size, size, stride, stride, dilation, dilation, offset, 0, columns, rows)
    generator = np.random.default_rng(23)
    x = generator.integers(-3, 1, (3, 31, width, channels)).astype(dtype)
    g = generator.integers(-9, 10, (3, rows, columns, channels)).astype(dtype)
    expected = reference.pooling_max_gradient(g, x, **DILATED.keywords(geometry, edge))
    for kind in (DILATED, RECORDED_DILATED):
        source, _, state = encode(kind.kernel(geometry, edge), x, g.shape[1:3])
        dx = encode_gradient(kind.gradient(**kind.window(geometry)), g, source, state)
        np.testing.assert_array_equal(dx, expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("channels", [3, 8, 45])
@pytest.mark.parametrize(("size", "stride"), [(2, 2), (3, 3), (2, 3), (5, 6)])
def test_recorded_windows_that_share_no_pixels(size, stride, channels, edge, dtype):
    """CPUs with few registers write them tap by tap, also those that reach beyond the source."""
    device = mg.default_device()
    before = tunables(device.tuning)
    geometry = WindowGeometry(4 * stride + 1, 5 * stride + 2, size, size, stride, stride, 1, 1, size // 2, 0, 5, 6)
    try:
        use_tunables(device.tuning, before.with_number("pooling_gradient_by_eights", 1))
        check_gradient_of(RECORDED, geometry, channels, edge, dtype)
    finally:
        use_tunables(device.tuning, before)


@given(data=st.data())
def test_windows_that_share_no_pixels_are_searched_and_taken_at_once(data):
    """With pixels between windows and beyond them, by eights of channels and of short pixels that follow each other."""
    number = partial(st.integers, 1)
    (width, stride_x), (height, stride_y) = (
        data.draw(number(5).flatmap(lambda taps: st.tuples(st.just(taps), st.integers(taps, 6)))) for _ in "xy"
    )
    columns, rows = data.draw(number(14)), data.draw(number(5))
    image_width, image_height = (
        max(1, (count - 1) * stride + data.draw(number(8))) for count, stride in ((columns, stride_x), (rows, stride_y))
    )
    offset_x, offset_y = data.draw(st.integers(-1, width // 2)), data.draw(st.integers(-1, height // 2))
    geometry = WindowGeometry(
        image_width, image_height, width, height, stride_x, stride_y, 1, 1, offset_x, offset_y, columns, rows
    )
    check_against_the_reference(MAX, geometry, data.draw(st.one_of(number(9), st.integers(10, 45))), data)


@each_kind
@pytest.mark.parametrize("edge", EDGES)
def test_clip_rect_and_channel_ranges(kind, edge):
    """The forward kernel writes only its part of a larger image, and the gradient gets back what belongs to it."""
    generator = np.random.default_rng(6)
    geometry = WindowGeometry(9, 7, 3, 2, 2, 1, 1, 1, 1, 0, 4, 5)
    x = generator.standard_normal((3, 7, 9, 12)).astype(np.float32)
    kernel = kind.kernel(geometry, edge, (1, 1))
    kernel.offset = mg.Offset(1, 0, 1)
    kernel.clip_rect = mg.Region(mg.Origin(2, 1, 1), mg.Size(4, 5, 2))
    kernel.source_feature_channel_offset = 4
    kernel.source_feature_channel_max_count = 5
    kernel.destination_feature_channel_offset = 8
    before = generator.standard_normal((3, 8, 7, 16)).astype(np.float32)
    source, result = mg.Image.from_array(x), mg.Image.from_array(before)
    state = kernel.result_state(source, destination_image=result)
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, source, destination_image=result, destination_state=state)
    part, keywords = x[1:3, :, :, 4:9], kind.keywords(geometry, edge, (1, 1))
    y = np.array(result)
    expected = kind.reference(part, **keywords)
    bound = kind.bound(geometry, np.float32, kind.reference(np.abs(part), **keywords), expected)
    assert_within(y[1:3, 1:6, 2:6, 8:13], expected, bound)
    y[1:3, 1:6, 2:6, 8:13] = before[1:3, 1:6, 2:6, 8:13]
    np.testing.assert_array_equal(y, before)

    g = generator.standard_normal(before.shape).astype(np.float32)
    g_part = g[1:3, 1:6, 2:6, 8:13]
    expected, magnitude = np.zeros(x.shape), np.zeros(x.shape)
    expected[1:3, :, :, 4:9] = kind.reference_gradient(g_part, part, **keywords)
    magnitude[1:3, :, :, 4:9] = kind.magnitude(g_part, part, **keywords)
    with mg.CommandBuffer() as commands:
        gradient = kind.gradient(**kind.window(geometry))
        dx = gradient.encode(commands, mg.Image.from_array(g), source, state)
    assert_within(dx, expected, kind.bound(geometry, np.float32, magnitude, expected))


@each_kind
@given(data=st.data())
def test_a_gradient_configured_by_hand(kind, data):
    """primary_offset and source_size choose gradient pixels; the clip rectangle begins at the first window."""
    geometry, edge = data.draw(window_geometries(dilation=kind.dilates)), data.draw(edges)
    x = data.draw(values((2, geometry.height, geometry.width, 5), np.float32))
    g = data.draw(values((2, geometry.result_height, geometry.result_width, 5), np.float32))
    skipped = [data.draw(st.integers(-3, size + 1)) for size in (geometry.result_height, geometry.result_width)]
    taken = [data.draw(st.integers(0, size + 2)) for size in (geometry.result_height, geometry.result_width)]
    source, _, state = encode(kind.kernel(geometry, edge), x, g.shape[1:3])

    kernel = kind.gradient(**kind.window(geometry))
    kernel.primary_offset = mg.Offset(skipped[1], skipped[0])
    kernel.source_size = mg.Size(taken[1], taken[0])
    kernel.secondary_offset = mg.Offset(geometry.offset_x, geometry.offset_y)
    kernel.secondary_edge_mode = EDGES[edge]
    selected = np.zeros((2, *[max(t, 1) for t in taken], 5))
    for i in range(taken[0]):
        for j in range(taken[1]):
            row, column = i + skipped[0], j + skipped[1]
            if 0 <= row < g.shape[1] and 0 <= column < g.shape[2]:
                selected[:, i, j] = g[:, row, column]
    keywords = kind.keywords(geometry, edge) | {"size": selected.shape[1:3]}
    expected = kind.reference_gradient(selected, x, **keywords)
    magnitude = kind.magnitude(selected, x, **keywords)
    bound = kind.bound(geometry, np.float32, magnitude, expected)
    assert_within(encode_gradient(kernel, g, source, state), expected, bound, name="whole gradient")

    extents = ((geometry.kernel_height, geometry.dilation_y), (geometry.kernel_width, geometry.dilation_x))
    extents = [(k - 1) * (d if kind.dilates else 1) + 1 for k, d in extents]
    first = [max(0, o - e // 2) for o, e in zip((geometry.offset_y, geometry.offset_x), extents, strict=True)]
    kernel.clip_rect = mg.Region(mg.Origin(2, 1, 0), mg.Size(geometry.width, geometry.height, 2))
    before = np.full((2, geometry.height + 3, geometry.width + 4, 5), 7.0, np.float32)
    result = mg.Image.from_array(before)
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, mg.Image.from_array(g), source, state, destination_gradient=result)
    wanted = np.zeros_like(expected)
    wanted_bound = np.full_like(expected, 1e-30)
    for target, value in ((wanted, expected), (wanted_bound, bound)):
        rows, columns = max(0, geometry.height - first[0]), max(0, geometry.width - first[1])
        target[:, :rows, :columns] = value[:, first[0] :, first[1] :]
    dx = np.array(result)
    assert_within(dx[:, 1 : 1 + geometry.height, 2 : 2 + geometry.width], wanted, wanted_bound, name="clipped gradient")
    dx[:, 1 : 1 + geometry.height, 2 : 2 + geometry.width] = 7.0
    np.testing.assert_array_equal(dx, before)


@each_kind
def test_automatic_encodes_equal_manual_ones(kind):
    x = np.random.default_rng(7).standard_normal((2, 7, 9, 6)).astype(np.float32)
    g = np.random.default_rng(8).standard_normal((2, 4, 5, 6)).astype(np.float32)
    source, gradient_image = mg.Image.from_array(x), mg.Image.from_array(g)
    kernel, gradient = kind.kernel(SIMPLE, "clamp"), kind.gradient(**kind.window(SIMPLE))
    with mg.CommandBuffer() as commands:
        y, state = kernel.encode(commands, source, return_state=True)
        dx = gradient.encode(commands, gradient_image, source, state)
    assert y.shape == g.shape and dx.shape == x.shape

    kernel, gradient = kind.kernel(SIMPLE, "clamp"), kind.gradient(**kind.window(SIMPLE))
    result = mg.Image(kernel.destination_image_descriptor([source]))
    state = kernel.result_state(source, destination_image=result)
    destination = mg.Image(gradient.destination_image_descriptor([gradient_image, source], [state]))
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, source, destination_image=result, destination_state=state)
        gradient.encode(commands, gradient_image, source, state, destination_gradient=destination)
    np.testing.assert_array_equal(np.asarray(result), np.asarray(y))
    np.testing.assert_array_equal(np.asarray(destination), np.asarray(dx))


@each_kind
def test_batches_images_and_repetitions_give_the_same_bits(kind):
    x = np.random.default_rng(9).standard_normal((4, 7, 9, 37)).astype(np.float16)
    g = np.random.default_rng(10).standard_normal((4, 4, 5, 37)).astype(np.float16)
    kernel, gradient = kind.kernel(SIMPLE, "zero"), kind.gradient(**kind.window(SIMPLE))
    source, gradients = mg.Image.from_array(x), mg.Image.from_array(g)
    with mg.CommandBuffer() as commands:
        y, state = kernel.encode(commands, source, return_state=True)
        dx = gradient.encode(commands, gradients, source, state)
    y, dx = np.array(y), np.array(dx)

    joined = mg.ImageBatch.from_array(x), mg.ImageBatch.from_array(g)
    apart = tuple(mg.ImageBatch([mg.Image.from_array(image) for image in array]) for array in (x, g))
    for sources, incoming in (joined, apart):
        with mg.CommandBuffer() as commands:
            results, states = kernel.encode_batch(commands, sources, return_state=True)
            destinations = gradient.encode_batch(commands, incoming, sources, states)
        np.testing.assert_array_equal(np.asarray(results), y)
        np.testing.assert_array_equal(np.asarray(destinations), dx)
        # One image with its own state, and the same again.
        for index in (2, 0):
            with mg.CommandBuffer() as commands:
                one = gradient.encode(commands, incoming[index], sources[index], states[index])
            np.testing.assert_array_equal(np.asarray(one)[0], dx[index])
    for _ in range(20):
        with mg.CommandBuffer() as commands:
            again = gradient.encode(commands, gradients, source, state)
        np.testing.assert_array_equal(np.asarray(again), dx)


def test_states_filled_image_by_image():
    x = np.random.default_rng(11).standard_normal((3, 7, 9, 5)).astype(np.float32)
    g = np.random.default_rng(12).standard_normal((3, 4, 5, 5)).astype(np.float32)
    kernel, gradient = RECORDED.kernel(SIMPLE, "zero"), mg.PoolingMaxGradient(**MAX.window(SIMPLE))
    source, y, state = encode(kernel, x, (4, 5))
    expected = encode_gradient(gradient, g, source, state)
    whole, results = mg.Image.from_array(x), mg.Image.from_array(y)
    sources, destinations = whole.batch_representation(), results.batch_representation()
    states = kernel.result_state_batch(sources, destination_images=destinations)
    with mg.CommandBuffer() as commands:
        for one, result, its_state in zip(sources, destinations, states, strict=True):
            kernel.encode(commands, one, destination_image=result, destination_state=its_state)
    whole.write(-x)
    np.testing.assert_array_equal(encode_gradient(gradient, g, whole, states.whole), expected)


def test_a_temporary_state_is_read_once():
    x = np.random.default_rng(13).standard_normal((2, 7, 9, 5)).astype(np.float32)
    kernel, gradient = RECORDED.kernel(SIMPLE, "zero"), mg.PoolingMaxGradient(**MAX.window(SIMPLE))
    source = mg.Image.from_array(x)
    with mg.CommandBuffer() as commands:
        y, state = kernel.encode(commands, source, return_state=True, state_is_temporary=True)
        assert state.read_count == 1
        gradient.encode(commands, mg.Image.from_array(np.ones(y.shape, np.float32)), source, state)
        assert state.read_count == 0
        with pytest.raises(mg.StateError, match="read_count 0"):
            gradient.encode(commands, y, source, state)


@pytest.mark.parametrize("upright", [False, True], ids=["lying", "upright"])
@pytest.mark.parametrize(
    ("kind", "x", "kernel", "dilation", "stride", "offset", "edge", "zero_pad", "y", "g", "dx"), POOLING
)
def test_worked_cases(upright, kind, x, kernel, dilation, stride, offset, edge, zero_pad, y, g, dx):
    """Images of one row, and again of one column."""
    geometry = WindowGeometry(len(x), 1, kernel, 1, stride, 1, dilation, 1, offset, 0, len(y), 1)
    padding = (0, zero_pad)
    if upright:
        geometry = WindowGeometry(1, len(x), 1, kernel, 1, stride, 1, dilation, 0, offset, 1, len(y))
        padding = (zero_pad, 0)

    def image(numbers):
        shape = (1, len(numbers), 1, 1) if upright else (1, 1, len(numbers), 1)
        return np.asarray(numbers, np.float32).reshape(shape)

    kind = DILATED if dilation > 1 else KINDS[kind.replace("_", " ")]
    source, result, state = encode(kind.kernel(geometry, edge, padding), image(x), image(y).shape[1:3])
    np.testing.assert_allclose(result, image(y), rtol=1e-6)
    destination = encode_gradient(kind.gradient(**kind.window(geometry)), image(g), source, state)
    np.testing.assert_allclose(destination, image(dx), rtol=1e-6)


def test_an_l2_norm_of_zero_has_the_gradient_zero():
    x = np.zeros((1, 7, 9, 3), np.float32)
    source, y, state = encode(L2_NORM.kernel(SIMPLE, "zero"), x, (4, 5))
    dx = encode_gradient(mg.PoolingL2NormGradient(**L2_NORM.window(SIMPLE)), np.ones_like(y), source, state)
    assert not y.any() and not dx.any()


def test_padding_policies_of_other_frameworks():
    """TensorFlow leaves out what lies outside the image, Caffe what lies outside image and padding."""
    x = np.random.default_rng(14).standard_normal((2, 7, 8, 3)).astype(np.float32)
    source = mg.Image.from_array(x)
    same = mg.PaddingMethod.SIZE_SAME | mg.PaddingMethod.ADD_REMAINDER_TO_BOTTOM_RIGHT
    for policy, zero_pad in (
        (mg.DefaultPadding.for_tensorflow_average_pooling(), (0, 0)),
        (mg.DefaultPadding(same | mg.PaddingMethod.EXCLUDE_EDGES), (1, 0)),
    ):
        kernel = mg.PoolingAverage(kernel_width=3, kernel_height=3, stride_in_pixels_x=2, stride_in_pixels_y=2)
        kernel.padding = policy
        gradient = mg.PoolingAverageGradient(
            kernel_width=3, kernel_height=3, stride_in_pixels_x=2, stride_in_pixels_y=2
        )
        with mg.CommandBuffer() as commands:
            y, state = kernel.encode(commands, source, return_state=True)
            g = np.random.default_rng(15).standard_normal(y.shape).astype(np.float32)
            dx = gradient.encode(commands, mg.Image.from_array(g), source, state)
        assert kernel.edge_mode is mg.EdgeMode.CLAMP
        keywords = {"kernel": (3, 3), "stride": (2, 2), "offset": (0, 1), "edge": "clamp", "zero_pad": zero_pad}
        np.testing.assert_allclose(
            np.asarray(y), reference.pooling_average(x, size=(4, 4), **keywords), rtol=1e-5, atol=1e-6
        )
        np.testing.assert_allclose(
            np.asarray(dx), reference.pooling_average_gradient(g, x, **keywords), rtol=1e-5, atol=1e-6
        )


@each_kind
def test_archives_restore_the_same_bits(kind):
    x = np.random.default_rng(16).standard_normal((2, 7, 9, 6)).astype(np.float32)
    g = np.random.default_rng(17).standard_normal((2, 4, 5, 6)).astype(np.float32)
    kernel = kind.kernel(SIMPLE, "clamp", (1, 1))
    gradient = kind.gradient(**kind.window(SIMPLE))
    gradient.secondary_offset = mg.Offset(1, 0)
    gradient.source_size = mg.Size(4, 3, 2)
    gradient.secondary_edge_mode = mg.EdgeMode.CLAMP
    source, y, state = encode(kernel, x, (4, 5))
    dx = encode_gradient(gradient, g, source, state)
    restored = archive.from_bytes(archive.to_bytes(kernel))
    assert type(restored) is kind.forward and repr(restored) == repr(kernel)
    _, again, state = encode(restored, x, (4, 5))
    np.testing.assert_array_equal(again, y)
    if kind.name == "max":
        assert state.records_maxima == dict(kind.options).get("record_maxima", False)
    restored = archive.from_bytes(archive.to_bytes(gradient))
    np.testing.assert_array_equal(encode_gradient(restored, g, source, state), dx)


def _state_of(kind: Kind, geometry: WindowGeometry = SIMPLE, dtype: Any = np.float32) -> tuple[mg.Image, Any]:
    x = np.zeros((1, geometry.height, geometry.width, 4), dtype)
    source, _, state = encode(kind.kernel(geometry, "zero"), x, (geometry.result_height, geometry.result_width))
    return source, state


def _gradient_of(shape: tuple[int, ...], arguments: dict[str, int], kind: Kind = MAX, made_by: Kind = MAX) -> Any:
    source, state = _state_of(made_by)
    with mg.CommandBuffer() as commands:
        kind.gradient(**arguments).encode(commands, mg.Image.from_array(np.zeros(shape, np.float32)), source, state)


def _stale_state() -> None:
    kernel = RECORDED.kernel(SIMPLE, "zero")
    source, y, state = encode(kernel, np.zeros((1, 7, 9, 4), np.float32), (4, 5))
    kernel.offset = mg.Offset(1, 1)
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, source, destination_image=mg.Image.from_array(y), destination_state=state)


def _state_of_another_size() -> None:
    kernel = RECORDED.kernel(SIMPLE, "zero")
    source, _, state = encode(kernel, np.zeros((1, 7, 9, 4), np.float32), (4, 5))
    larger = mg.Image.from_array(np.zeros((1, 5, 5, 4), np.float32))
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, source, destination_image=larger, destination_state=state)


def _state_of_fewer_images() -> None:
    kernel = RECORDED.kernel(SIMPLE, "zero")
    _, _, state = encode(kernel, np.zeros((1, 7, 9, 4), np.float32), (4, 5))
    with mg.CommandBuffer() as commands:
        kernel.encode(
            commands,
            mg.Image.from_array(np.zeros((2, 7, 9, 4), np.float32)),
            destination_image=mg.Image.from_array(np.zeros((2, 4, 5, 4), np.float32)),
            destination_state=state,
        )


def _far_offset() -> None:
    kernel = MAX.kernel(replace(SIMPLE, offset_x=2**40), "zero")
    encode(kernel, np.zeros((1, 7, 9, 4), np.float32), (4, 5))


def _far_windows() -> None:
    kernel = MAX.kernel(replace(SIMPLE, stride_x=2**15), "zero")
    encode(kernel, np.zeros((1, 7, 9, 4), np.float32), (1, 2**14 + 2))


def _valid_only_of_a_small_source() -> None:
    kernel = mg.PoolingMax(kernel_width=3, kernel_height=3)
    kernel.padding = mg.VALID_ONLY
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, mg.Image.from_array(np.zeros((1, 2, 9, 4), np.float32)))


WINDOW = MAX.window(SIMPLE)
BAD_INPUT = {
    "width 0": (
        lambda: mg.PoolingMax(kernel_width=0, kernel_height=3), mg.GeometryError,
        "PoolingMax: kernel_width is 0; it has to be at least 1"),
    "stride 0": (
        lambda: mg.PoolingAverageGradient(kernel_width=3, kernel_height=3, stride_in_pixels_y=0), mg.GeometryError,
        "PoolingAverageGradient: stride_in_pixels_y is 0"),
    "dilation -1": (
        lambda: mg.DilatedPoolingMax(kernel_width=3, kernel_height=3, dilation_rate_x=-1), mg.GeometryError,
        "DilatedPoolingMax: dilation_rate_x is -1"),
    "fractional width": (
        lambda: mg.PoolingL2Norm(kernel_width=2.5, kernel_height=3), mg.FormatError,
        "PoolingL2Norm: kernel_width is 2.5"),
    "large record": (
        lambda: mg.PoolingMax(kernel_width=17, kernel_height=15, record_maxima=True), mg.GeometryError,
        "17x15 window has 255 taps; the record holds windows of at most 254"),
    "negative zero pad": (
        lambda: setattr(mg.PoolingAverage(kernel_width=3, kernel_height=3), "zero_pad_size_x", -1), mg.GeometryError,
        "PoolingAverage: zero_pad_size_x is -1"),
    "negative source size": (
        lambda: setattr(mg.PoolingMaxGradient(**WINDOW), "source_size", (1, -2, 1)), mg.GeometryError,
        "PoolingMaxGradient: source_size is -2"),
    "gradient of another size": (
        lambda: _gradient_of((1, 7, 7, 4), WINDOW), mg.GeometryError,
        "PoolingMaxGradient: source_gradient is 1x7x7x4 but PoolingMax of a 1x7x9x4 source with a 3x3 window and "
        "stride 2 gives 1x4x5x4"),
    "another window": (
        lambda: _gradient_of((1, 4, 5, 4), WINDOW | {"kernel_width": 2}), mg.GeometryError,
        "PoolingMaxGradient: the kernel has a 2x3 window with stride 2 but PoolingMax, which made gradient_state, has "
        "a 3x3 window with stride 2"),
    "another kernel's state": (
        lambda: _gradient_of((1, 4, 5, 4), WINDOW, kind=AVERAGE), mg.StateError,
        "PoolingAverageGradient: gradient_state was made by PoolingMax; it has to be made by PoolingAverage"),
    "stale state": (_stale_state, mg.StateError, "make the state after the last property is set"),
    "state of another size": (
        _state_of_another_size, mg.StateError,
        "PoolingMax: destination_state was made for a result of 1x4x5x4 but destination_image is 1x5x5x4"),
    "state of fewer images": (_state_of_fewer_images, mg.StateError, "maxima of 1 images but images 0 to 2"),
    "offset out of range": (_far_offset, mg.GeometryError, "PoolingMax: offset is (1099511627776, 0, 0)"),
    "windows out of range": (
        _far_windows, mg.GeometryError, "PoolingMax: the windows along x begin at pixels -1 to 536903679"),
    "empty result": (_valid_only_of_a_small_source, mg.GeometryError, "a window of 3 pixels along y does not fit"),
}  # fmt: skip


@pytest.mark.parametrize(("build", "error", "words"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_named(build, error, words):
    with pytest.raises(error) as raised:
        build()
    assert words in str(raised.value)


@settings(max_examples=10)
@given(st.integers(1, 3), st.integers(1, 3), st.sampled_from([4, 32, 36]))
def test_views_of_channels_are_read_and_written(first, kernel, channels):
    """A sub image as the source and another as the destination; what surrounds them keeps its value."""
    generator = np.random.default_rng(first)
    x = generator.standard_normal((2, 6, 5, channels + 8)).astype(np.float32)
    storage = mg.Image.from_array(np.full((2, 6, 5, channels + 4), 3.0, np.float32))
    pooling = mg.PoolingMax(kernel_width=kernel, kernel_height=kernel, record_maxima=True)
    gradient = mg.PoolingMaxGradient(kernel_width=kernel, kernel_height=kernel)
    source, result = mg.Image.from_array(x).sub_image(4, channels), storage.sub_image(4, channels)
    state = pooling.result_state(source, destination_image=result)
    with mg.CommandBuffer() as commands:
        pooling.encode(commands, source, destination_image=result, destination_state=state)
        dx = gradient.encode(commands, result, source, state)
    keywords = {"kernel": (kernel, kernel), "size": (6, 5)}
    expected = reference.pooling_max(x[..., 4 : 4 + channels], **keywords)
    np.testing.assert_array_equal(np.asarray(storage)[..., 4:], expected)
    assert (np.asarray(storage)[..., :4] == 3.0).all()
    np.testing.assert_allclose(
        np.asarray(dx),
        reference.pooling_max_gradient(expected, x[..., 4 : 4 + channels], **keywords),
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.fixture(scope="class")
def pairs_of_few_threads():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pooling_dispatch, "FEWEST_THREADS_TO_PAIR", 1)
        yield


@pytest.mark.usefixtures("shaders_of_gpus", "pairs_of_few_threads")
class TestOneThreadForEachElement:
    """What GPUs run: the other ways in which the shaders share out the work."""

    @each_kind
    @given(data=st.data())
    def test_any_window(self, kind, data):
        geometry = data.draw(window_geometries(dilation=kind.dilates))
        check_against_the_reference(kind, geometry, data.draw(channel_counts()), data)

    @each_kind
    @pytest.mark.parametrize(("size", "stride"), BLOCKS, ids=[f"{k}x{k} stride {s}" for k, s in BLOCKS])
    @pytest.mark.parametrize(("channels", "edge"), by_turns((5, 6, 8), ("zero", "clamp"), of=2))
    @pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
    def test_common_windows(self, kind, size, stride, channels, edge, dtype):
        geometry = WindowGeometry(9, 7, size, size, stride, stride, 1, 1, 0, 1, 7 // stride, 6 // stride)
        check_gradient_of(kind, geometry, channels, edge, dtype)

    @pytest.mark.parametrize("channels", [3, 4, 6])
    @pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
    def test_windows_with_more_taps_than_a_byte_counts(self, channels, dtype):
        check_gradient_of(MAX, WindowGeometry(20, 18, 17, 16, 1, 1, 1, 1, 8, 8, 4, 3), channels, "zero", dtype)

    @pytest.mark.parametrize("width", pooling_dispatch.ROW_WIDTHS)
    @pytest.mark.parametrize(("channels", "edge"), by_turns((5, 6, 8), EDGES, of=2))
    @pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
    @pytest.mark.parametrize("most", [pooling_dispatch.MOST_FEW_THREADS, 0], ids=["few threads", "many"])
    def test_rows_of_taps_on_their_way_together(self, width, channels, edge, dtype, most, monkeypatch):
        monkeypatch.setattr(pooling_dispatch, "MOST_FEW_THREADS", most)
        chosen, has_few_threads = [], pooling_dispatch._has_few_threads
        monkeypatch.setattr(
            pooling_dispatch, "_has_few_threads", lambda *of: chosen.append(has_few_threads(*of)) or chosen[-1]
        )
        geometry = WindowGeometry(19, 11, width, 3, 3, 2, 1, 1, 1, 1, (18 - width) // 3 + 3, 6)
        check_gradient_of(MAX, geometry, channels, edge, dtype)
        # The gradient reads no taps.
        assert sum(chosen) == (len(chosen) - 1 if most else 0)


@pytest.fixture(scope="class")
def few_elements_by_turns():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walk, "FEWEST_THREADS_BY_TURNS", 1)
        yield


@pytest.mark.usefixtures("shaders_of_gpus", "few_elements_by_turns")
class TestOneThreadForSeveralChannels:
    """On GPUs where no vector fits the channels."""

    @each_kind
    @given(data=st.data())
    def test_any_window(self, kind, data):
        geometry = data.draw(window_geometries(dilation=kind.dilates))
        check_against_the_reference(kind, geometry, data.draw(st.sampled_from([3, 5, 7, 9, 13])), data)

    @pytest.mark.parametrize("edge", EDGES)
    @pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
    def test_windows_with_more_taps_than_a_byte_counts(self, edge, dtype):
        check_gradient_of(MAX, WindowGeometry(20, 18, 17, 16, 5, 5, 1, 1, 8, 8, 4, 3), 7, edge, dtype)


@pytest.fixture(scope="class")
def columns_of_few_threads():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pooling_dispatch, "FEWEST_THREADS_OF_COLUMNS", 1)
        yield


@pytest.mark.usefixtures("shaders_of_gpus", "few_elements_by_turns", "columns_of_few_threads")
class TestOneThreadForSeveralWindows:
    """On GPUs with windows of common sizes at stride 1."""

    @each_kind
    @given(data=st.data(), size=st.sampled_from(pooling_dispatch.SIZES_OF_COLUMNS["max"]))
    def test_any_geometry(self, kind, data, size):
        drawn = data.draw(window_geometries(dilation=False))
        geometry = replace(drawn, kernel_width=size, kernel_height=size, stride_x=1, stride_y=1)
        check_against_the_reference(kind, geometry, data.draw(st.sampled_from([3, 4, 5, 8, 13])), data)

    @each_kind
    @pytest.mark.parametrize(("size", "origin"), [(2, 0), (2, 1), (3, 1), (4, 0), (5, 0), (5, 2), (7, 3)])
    @pytest.mark.parametrize(("channels", "edge"), by_turns((5, 8), EDGES, of=2))
    @pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
    def test_windows_at_the_edges(self, kind, size, origin, channels, edge, dtype):
        geometry = WindowGeometry(9, 11, size, size, 1, 1, 1, 1, origin, origin, 9, 11)
        check_gradient_of(kind, geometry, channels, edge, dtype)
        x = np.random.default_rng(20).standard_normal((2, 11, 9, channels)).astype(dtype)
        keywords = kind.keywords(geometry, edge)
        _, y, _ = encode(kind.kernel(geometry, edge), x, (geometry.result_height, geometry.result_width))
        expected = kind.reference(x, **keywords)
        assert_within(y, expected, error_bound(dtype, size**2, kind.reference(np.abs(x), **keywords), expected))


def check_gradient_of(
    kind: Kind, geometry: WindowGeometry, channels: int, edge: str, dtype: Any, images: int = 2
) -> None:
    x = np.random.default_rng(18).standard_normal((images, geometry.height, geometry.width, channels)).astype(dtype)
    size = geometry.result_height, geometry.result_width
    g = np.random.default_rng(19).standard_normal((images, *size, channels)).astype(dtype)
    keywords = kind.keywords(geometry, edge)
    source, _, state = encode(kind.kernel(geometry, edge), x, size)
    dx = encode_gradient(kind.gradient(**kind.window(geometry)), g, source, state)
    expected = kind.reference_gradient(g, x, **keywords)
    assert_within(dx, expected, kind.bound(geometry, dtype, kind.magnitude(g, x, **keywords), expected))


@pytest.mark.parametrize("records", [False, True])
def test_a_nan_wins_only_as_the_first_tap(records):
    """On CPUs and NVIDIA GPUs; Metal's fast math promises nothing about NaNs."""
    x = np.tile(np.arange(4, dtype=np.float32), (4, 1)).reshape(4, 2, 2, 1)
    x.reshape(4, 4)[np.arange(4), np.arange(4)] = np.nan
    forward = mg.PoolingMax(kernel_width=2, kernel_height=2, record_maxima=records)
    forward.padding = mg.VALID_ONLY
    gradient = mg.PoolingMaxGradient(kernel_width=2, kernel_height=2)
    source = mg.Image.from_array(x)
    with mg.CommandBuffer() as commands:
        y, state = forward.encode(commands, source, return_state=True)
        dx = gradient.encode(commands, mg.Image.from_array(np.ones((4, 1, 1, 1), np.float32)), source, state)
    np.testing.assert_array_equal(np.asarray(y).ravel(), [np.nan, 3, 3, 2])
    np.testing.assert_array_equal(np.asarray(dx).reshape(4, 4).argmax(1), [0, 3, 3, 2])
    assert np.asarray(dx).sum() == 4
