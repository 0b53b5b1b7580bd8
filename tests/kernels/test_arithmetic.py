"""Arithmetic kernels and their gradients against the float64 references, and the laws that belong to them alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gpu_forms
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpsgrad as mg
from mpsgrad import archive, reference
from mpsgrad.testing import (
    FencedImage,
    assert_within,
    batch_sizes,
    channel_counts,
    channel_formats,
    check_gradient,
    error_bound,
    values,
)

KINDS = {
    "add": (mg.Add, mg.AddGradient),
    "subtract": (mg.Subtract, mg.SubtractGradient),
    "multiply": (mg.Multiply, mg.MultiplyGradient),
    "divide": (mg.Divide, mg.DivideGradient),
}
each_kind = pytest.mark.parametrize("name", KINDS)
each_comparison = pytest.mark.parametrize("comparison", list(mg.ComparisonType), ids=lambda kind: kind.name)
AXES = ("pixels_y", "pixels_x", "feature_channels")
SCALES = {"primary_scale": 1.5, "secondary_scale": -0.75, "bias": 0.25}


def away_from_zero(y: np.ndarray) -> np.ndarray:
    return np.where(y < 0, y - 1, y + 1).astype(y.dtype)


def kernel_for(cls: type, shapes: tuple[tuple[int, ...], ...], **properties: Any) -> Any:
    """A kernel that spreads what has an extent of 1 where the other image has more."""
    options = {"records_clamp": properties.pop("records_clamp")} if "records_clamp" in properties else {}
    kernel = cls(**options)
    for which, own, other in (("primary", shapes[0], shapes[1]), ("secondary", shapes[1], shapes[0])):
        for axis, name in enumerate(AXES, 1):
            if own[axis] == 1 and other[axis] > 1:
                setattr(kernel, f"{which}_stride_in_{name}", 0)
    for name, value in properties.items():
        setattr(kernel, name, value)
    return kernel


def encode(kernel: Any, x: np.ndarray, y: np.ndarray) -> tuple[mg.Image, mg.Image, np.ndarray, Any]:
    """The sources, the result of an encode into a fenced image, and the filled state."""
    primary, secondary = mg.Image.from_array(x), mg.Image.from_array(y)
    result = FencedImage.of(kernel.destination_image_descriptor([primary, secondary]))
    state = kernel.result_state(primary, secondary, destination_image=result.image)
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, primary, secondary, destination_image=result.image, destination_state=state)
    return primary, secondary, result.check(), state


def encode_gradients(
    name: str, forward: Any, g: np.ndarray, primary: mg.Image, secondary: mg.Image, state: Any
) -> list[np.ndarray]:
    """Both gradients, written into fenced images."""
    found = []
    for is_secondary in (False, True):
        gradient = KINDS[name][1].of(forward, is_secondary_source_filter=is_secondary)
        own, other = (secondary, primary) if is_secondary else (primary, secondary)
        result = FencedImage.of(own.descriptor)
        second = other if name in ("multiply", "divide") else own
        with mg.CommandBuffer() as commands:
            gradient.encode(commands, mg.Image.from_array(g), second, state, destination_gradient=result.image)
        found.append(result.check())
    return found


def check_gradients(found: list[np.ndarray], exact: Any, magnitude: Any, terms: int) -> None:
    for values_found, expected, sizes in zip(found, exact, magnitude, strict=True):
        bound = error_bound(values_found.dtype, terms + 4, sizes, expected)
        assert_within(values_found, expected, bound, name="gradient")


@st.composite
def spread_shapes(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The result's shape and those of two images of which each axis is spread in at most one."""
    largest = draw(st.sampled_from([4, 40]))
    shape = (draw(batch_sizes()), draw(st.integers(1, largest)), draw(st.integers(1, largest)), draw(channel_counts()))
    primary, secondary = list(shape), list(shape)
    for axis in (1, 2, 3):
        which = draw(st.sampled_from([None, primary, secondary]))
        if which is not None:
            which[axis] = 1
    return shape, tuple(primary), tuple(secondary)


@each_kind
@given(data=st.data())
def test_forward_and_gradients_match_the_reference(name, data):
    shape, x_shape, y_shape = data.draw(spread_shapes())
    dtype = data.draw(channel_formats()).dtype
    x, y = data.draw(values(x_shape, dtype)), data.draw(values(y_shape, dtype))
    y = away_from_zero(y) if name == "divide" else y
    g = data.draw(values(shape, dtype))
    kernel = kernel_for(KINDS[name][0], (x_shape, y_shape), **SCALES)
    primary, secondary, result, state = encode(kernel, x, y)
    expected = reference.arithmetic(name, x, y, **SCALES)
    size = "add" if name == "subtract" else name
    sizes = reference.arithmetic(size, np.abs(x), np.abs(y), primary_scale=1.5, secondary_scale=0.75, bias=0.25)
    assert_within(result, expected, error_bound(dtype, 4, sizes, expected), name="result")

    found = encode_gradients(name, kernel, g, primary, secondary, state)
    exact = reference.arithmetic_gradient(name, g, x, y, **SCALES)
    magnitude = reference.arithmetic_gradient(name, np.abs(g), np.abs(x), np.abs(y), **SCALES)
    check_gradients(found, exact, magnitude, int(np.prod(shape[1:])))


@pytest.mark.parametrize("channels", [2, 3, 8, 37, 64, 127, 129, 1025])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_pixels_and_channels_that_are_spread(channels, dtype):
    """CPUs spread them over as many pixels as they make at a time; what is left has no whole eights."""
    rng = np.random.default_rng(channels)
    whole, pixel, channel = (2, 3, 19, channels), (2, 1, 1, channels), (2, 3, 19, 1)
    for shapes in ((whole, pixel), (pixel, whole), (whole, channel), (channel, whole), (channel, pixel)):
        x, y = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
        _, _, result, _ = encode(kernel_for(mg.Add, shapes, **SCALES), x, y)
        expected = reference.arithmetic("add", x, y, **SCALES)
        sizes = reference.arithmetic("add", np.abs(x), np.abs(y), primary_scale=1.5, secondary_scale=0.75, bias=0.25)
        assert_within(result, expected, error_bound(np.dtype(dtype), 4, sizes, expected), name="result")


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("channels", [1, 5, 8])
def test_gradients_of_sums_without_scales_are_the_incoming_ones(channels, dtype):
    """To the bit; CPUs with few registers copy halves without converting them."""
    rng = np.random.default_rng(channels)
    x, y, wide = (rng.standard_normal((3, 4, 7, count)).astype(dtype) for count in (channels, channels, channels + 4))
    kernel = mg.Add()
    primary, secondary, _, state = encode(kernel, x, y)
    incoming = mg.Image.from_array(wide).sub_image(4, 8) if channels == 8 else mg.Image.from_array(wide[..., 4:].copy())
    for own, is_secondary in ((primary, False), (secondary, True)):
        result = FencedImage.of(own.descriptor)
        gradient = mg.AddGradient.of(kernel, is_secondary_source_filter=is_secondary)
        with mg.CommandBuffer() as commands:
            gradient.encode(commands, incoming, own, state, destination_gradient=result.image)
        np.testing.assert_array_equal(result.check(), wide[..., 4:])


@each_kind
@given(data=st.data())
def test_a_recorded_clamp_has_no_gradient_beyond_the_limits(name, data):
    shape, x_shape, y_shape = data.draw(spread_shapes())
    dtype = data.draw(channel_formats()).dtype
    x, y = data.draw(values(x_shape, dtype)), away_from_zero(data.draw(values(y_shape, dtype)))
    g = data.draw(values(shape, dtype))
    limits = {"minimum_value": -1.0, "maximum_value": 0.5}
    kernel = kernel_for(KINDS[name][0], (x_shape, y_shape), records_clamp=True, **SCALES, **limits)
    primary, secondary, result, state = encode(kernel, x, y)
    assert result.min() >= -1 and result.max() <= 0.5
    # The mask of the kernel's own float32 arithmetic, which rounding may put on the other side of a limit.
    free = reference.arithmetic(name, x, y, **SCALES)
    sure = np.minimum(np.abs(free + 1), np.abs(free - 0.5)) > 1e-5 * (1 + np.abs(free))
    g = np.where(sure, g, 0).astype(dtype)
    found = encode_gradients(name, kernel, g, primary, secondary, state)
    exact = reference.arithmetic_gradient(name, g, x, y, **SCALES, minimum=-1.0, maximum=0.5)
    magnitude = reference.arithmetic_gradient(name, np.abs(g), np.abs(x), np.abs(y), **SCALES)
    check_gradients(found, exact, magnitude, int(np.prod(shape[1:])))


@each_comparison
@given(data=st.data())
def test_comparisons_match_the_reference(comparison, data):
    _, x_shape, y_shape = data.draw(spread_shapes())
    dtype = data.draw(channel_formats()).dtype
    x, y = data.draw(values(x_shape, dtype, ties=True)), data.draw(values(y_shape, dtype, ties=True))
    threshold = data.draw(st.sampled_from([0.0, 1.0]))
    kernel = kernel_for(mg.Compare, (x_shape, y_shape), comparison_type=comparison, threshold=threshold)
    with mg.CommandBuffer() as commands:
        result, state = kernel.encode(commands, mg.Image.from_array(x), mg.Image.from_array(y), return_state=True)
    assert state is None
    expected = reference.compare(comparison.name.lower(), x, y, threshold=threshold)
    np.testing.assert_array_equal(np.asarray(result), expected)


# geometry


def moved(x: np.ndarray, offset: tuple[int, int], size: tuple[int, int], clamps: bool) -> np.ndarray:
    """The pixels that are read for a result of ``size`` (y, x); zeros outside, or the nearest."""
    rows, columns = (np.arange(n) + o for n, o in zip(size, offset, strict=True))
    inside = ((rows >= 0) & (rows < x.shape[1]))[:, None] & ((columns >= 0) & (columns < x.shape[2]))[None]
    read = x[:, np.clip(rows, 0, x.shape[1] - 1)][:, :, np.clip(columns, 0, x.shape[2] - 1)]
    return read if clamps else read * inside[None, :, :, None]


@pytest.mark.parametrize("name", ["add", "multiply", "divide"])
@given(data=st.data())
def test_offsets_clip_rectangle_strides_edges_and_channel_ranges(name, data):
    """The forward kernel writes its part of a larger image, and each gradient what belongs to it."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    images, size = 2, (data.draw(st.integers(1, 5)), data.draw(st.integers(1, 6)))
    channels, target = data.draw(st.integers(1, 6)), data.draw(st.sampled_from([0, 4]))
    origin = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2)), data.draw(st.integers(0, 1))
    kernel = KINDS[name][0]()
    kernel.clip_rect = mg.Region(mg.Origin(origin[1], origin[0], origin[2]), mg.Size(size[1], size[0], images))
    kernel.destination_feature_channel_offset = target
    sources, reads, geometry = [], [], []
    for which in ("primary", "secondary"):
        extent = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
        offset = data.draw(st.integers(-2, 4)), data.draw(st.integers(-2, 4))
        strides = tuple(data.draw(st.integers(0, 1)) for _ in range(3))
        if which == "secondary" and name == "divide":
            # Nothing is divided by the zeros outside.
            offset = tuple(min(max(o, 0), e - 1) for o, e in zip(offset, extent, strict=True))
            extent = tuple(e + s for e, s in zip(extent, size, strict=True))
        first = data.draw(st.sampled_from([0, 4]))
        x = rng.standard_normal((images + 1, *extent, 12)).astype(np.float32)
        x = away_from_zero(x) if which == "secondary" else x
        setattr(kernel, f"{which}_offset", mg.Offset(offset[1], offset[0], 1))
        setattr(kernel, f"{which}_source_feature_channel_offset", first)
        setattr(kernel, f"{which}_source_feature_channel_max_count", channels)
        for axis, stride in zip(AXES, strides, strict=True):
            setattr(kernel, f"{which}_stride_in_{axis}", stride)
        count = channels if strides[2] else 1
        part = x[1:, :, :, first : first + count]
        one = tuple(s if stride else 1 for s, stride in zip(size, strides[:2], strict=True))
        sources.append(x)
        reads.append(moved(part, offset, one, False))
        geometry.append((offset, strides, first, count, one))
    written = max(count for _, _, _, count, _ in geometry)
    shape = (images + origin[2], size[0] + origin[0] + 1, size[1] + origin[1] + 1, target + 7)
    before = rng.standard_normal(shape).astype(np.float32)
    result = mg.Image.from_array(before)
    primary, secondary = map(mg.Image.from_array, sources)
    state = kernel.result_state(primary, secondary, destination_image=result)
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, primary, secondary, destination_image=result, destination_state=state)
    part = np.index_exp[
        origin[2] :, origin[0] : origin[0] + size[0], origin[1] : origin[1] + size[1], target : target + written
    ]
    y = np.array(result)
    exact = np.broadcast_to(reference.arithmetic(name, *reads), (images, *size, written))
    assert_within(y[part], exact, error_bound(np.float32, 4, np.abs(exact) + 4, exact))
    y[part] = before[part]
    np.testing.assert_array_equal(y, before)

    g = rng.standard_normal(shape).astype(np.float32)
    exact = reference.arithmetic_gradient(name, g[part], *reads)
    magnitude = reference.arithmetic_gradient(name, np.abs(g[part]), *map(np.abs, reads))
    for index, own in enumerate((primary, secondary)):
        offset, strides, first, count, one = geometry[index]
        other = (secondary, primary)[index] if name != "add" else own
        gradient = KINDS[name][1].of(kernel, is_secondary_source_filter=bool(index))
        with mg.CommandBuffer() as commands:
            dx = gradient.encode(commands, mg.Image.from_array(g), other, state)
        expected, bound = np.zeros(own.shape), np.zeros(own.shape)
        slack = error_bound(np.float32, 64, np.abs(magnitude[index]), exact[index])
        for row, column in np.ndindex(*one):
            there = row + offset[0], column + offset[1]
            if 0 <= there[0] < own.height and 0 <= there[1] < own.width:
                expected[1:, there[0], there[1], first : first + count] = exact[index][:, row, column]
                bound[1:, there[0], there[1], first : first + count] = slack[:, row, column]
        assert_within(dx, expected, bound, name=f"gradient {index}")


def test_clamped_reads_repeat_pixels_and_their_gradient_is_refused():
    rng = np.random.default_rng(2)
    x, y = (rng.standard_normal((1, 3, 4, 5)).astype(np.float32) for _ in range(2))
    kernel = mg.Add()
    kernel.primary_offset, kernel.primary_edge_mode = mg.Offset(-2, 1), mg.EdgeMode.CLAMP
    primary, secondary = mg.Image.from_array(x), mg.Image.from_array(y)
    result = mg.Image(primary.descriptor)
    state = kernel.result_state(primary, secondary, destination_image=result)
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, primary, secondary, destination_image=result)
        with pytest.raises(NotImplementedError, match=r"AddGradient: .*EdgeMode\.CLAMP"):
            mg.AddGradient().encode(commands, result, primary, state)
        dy = mg.AddGradient(is_secondary_source_filter=True).encode(commands, result, secondary, state)
    np.testing.assert_array_equal(np.asarray(result), moved(x, (1, -2), (3, 4), True) + y)
    np.testing.assert_array_equal(np.asarray(dy), np.asarray(result))


# the laws of MPS


def test_the_scales_of_a_gradient_kernel_are_its_own():
    """As in MPS: by default nothing is scaled, and a subtraction's secondary gradient needs a factor of -1."""
    x = np.random.default_rng(3).standard_normal((1, 2, 3, 4)).astype(np.float32)
    kernel = kernel_for(mg.Subtract, (x.shape, x.shape), primary_scale=3.0)
    primary, secondary, _, state = encode(kernel, x, x)
    g = mg.Image.from_array(x)
    with mg.CommandBuffer() as commands:
        plain = mg.SubtractGradient(is_secondary_source_filter=True).encode(commands, g, secondary, state)
        right = mg.SubtractGradient.of(kernel, is_secondary_source_filter=True).encode(commands, g, secondary, state)
        first = mg.SubtractGradient.of(kernel).encode(commands, g, primary, state)
    np.testing.assert_array_equal(np.asarray(plain), x)
    np.testing.assert_array_equal(np.asarray(right), -x)
    np.testing.assert_array_equal(np.asarray(first), 3 * x)


def test_without_a_record_the_limits_do_not_matter_to_the_gradient():
    x = np.random.default_rng(4).standard_normal((1, 2, 3, 4)).astype(np.float32)
    kernel = kernel_for(mg.Add, (x.shape, x.shape), maximum_value=0.0)
    primary, _, result, state = encode(kernel, x, np.abs(x))
    assert state.resource_count == 0 and (result <= 0).all()
    with mg.CommandBuffer() as commands:
        dx = mg.AddGradient().encode(commands, mg.Image.from_array(x), primary, state)
    np.testing.assert_array_equal(np.asarray(dx), x)


def test_a_division_by_zero_is_clamped_to_the_largest_float_unless_it_is_nan():
    x = np.array([1, -1, 2, 0], np.float32).reshape(1, 1, 1, 4)
    y = np.array([0, 0, 2, 0], np.float32).reshape(1, 1, 1, 4)
    largest = np.finfo(np.float32).max
    expected = np.array([largest, -largest, 1, np.nan], np.float32)
    np.testing.assert_array_equal(mg.functional.divide(x, y).ravel(), expected)


@pytest.mark.parametrize("comparison", mg.ComparisonType)
def test_infinities_of_one_sign_are_equal_and_nan_is_not(comparison):
    x = np.array([np.inf, -np.inf, np.inf, np.nan, np.nan], np.float32).reshape(1, 1, 1, 5)
    y = np.array([np.inf, -np.inf, -np.inf, np.nan, 1], np.float32).reshape(1, 1, 1, 5)
    name = comparison.name.lower().replace("less_or", "less").replace("greater_or", "greater")
    expected = getattr(np, name)(x, y).astype(np.float32)
    np.testing.assert_array_equal(mg.functional.compare(x, y, comparison), expected)
    np.testing.assert_array_equal(reference.compare(comparison.name.lower(), x, y), expected)


# the same bits


@each_kind
@pytest.mark.parametrize("shape", [(3, 1, 1, 37), (3, 5, 7, 1), (3, 1, 1, 1)])
def test_every_run_and_every_form_of_encode_gives_the_same_bits(name, shape):
    rng = np.random.default_rng(5)
    x, g = (rng.standard_normal((3, 5, 7, 37)).astype(np.float32) for _ in range(2))
    y = away_from_zero(rng.standard_normal(shape).astype(np.float32))
    kernel = kernel_for(KINDS[name][0], (x.shape, shape), records_clamp=True, maximum_value=1.0)
    primary, secondary, result, state = encode(kernel, x, y)
    found = encode_gradients(name, kernel, g, primary, secondary, state)
    gradients = [KINDS[name][1].of(kernel, is_secondary_source_filter=second) for second in (False, True)]
    apart = [[mg.Image.from_array(one) for one in array] for array in (x, y, g)]
    joined = [mg.ImageBatch.from_array(array) for array in (x, y, g)]
    for xs, ys, gs in (apart, joined):
        for _ in range(5):
            with mg.CommandBuffer() as commands:
                results, states = kernel.encode_batch(commands, xs, ys, return_state=True)
                made = []
                for gradient, own, other in zip(gradients, (xs, ys), (ys, xs), strict=True):
                    second = other if name in ("multiply", "divide") else own
                    made.append(gradient.encode_batch(commands, gs, second, states))
            np.testing.assert_array_equal(np.asarray(results), result)
            for one, expected in zip(made, found, strict=True):
                np.testing.assert_array_equal(np.asarray(one), expected)


def test_repeated_encodes_follow_changed_properties():
    x = np.random.default_rng(6).standard_normal((1, 3, 4, 8)).astype(np.float32)
    image = mg.Image.from_array(x)
    kernel = mg.Add()
    for scale in (1.0, 1.0, 2.0, 1.0):
        kernel.primary_scale = scale
        with mg.CommandBuffer() as commands:
            result = kernel.encode(commands, image, image)
        np.testing.assert_array_equal(np.asarray(result), np.float32(scale) * x + x)


def test_a_kernel_from_an_archive_gives_the_same_bits():
    x = np.random.default_rng(7).standard_normal((2, 3, 4, 6)).astype(np.float32)
    kernel = kernel_for(mg.Divide, (x.shape, x.shape), records_clamp=True, minimum_value=-0.5, bias=0.125)
    restored = archive.from_bytes(archive.to_bytes(kernel))
    assert restored.records_clamp
    y = away_from_zero(x[::-1])
    np.testing.assert_array_equal(encode(restored, x, y)[2], encode(kernel, x, y)[2])


@each_kind
def test_the_gradient_checker_agrees(name):
    function, gradient = getattr(mg.functional, name), getattr(mg.functional, f"{name}_gradient")
    strategy = st.tuples(values((2, 3, 4, 5), np.float32), values((2, 1, 4, 1), np.float32).map(away_from_zero))
    check_gradient(function, gradient, strategy, max_examples=3)


# bad input


def _image(*shape: int, dtype: Any = np.float32) -> mg.Image:
    return mg.Image.from_array(np.ones(shape, dtype))


def _forward(cls: type = mg.Add, x: Any = (1, 2, 3, 4), y: Any = (1, 2, 3, 4), **properties: Any) -> None:
    kernel = cls()
    for name, value in properties.items():
        setattr(kernel, name, value)
    kernel.encode(mg.CommandBuffer(), _image(*x), _image(*y))


def _gradient(
    forward: type = mg.Add,
    gradient: type = mg.AddGradient,
    g: Any = (1, 2, 3, 4),
    second: Any = (1, 2, 3, 4),
    fills: bool = True,
    **properties: Any,
) -> None:
    commands, kernel = mg.CommandBuffer(), gradient()
    x = _image(1, 2, 3, 4)
    state = forward().result_state(x, x, destination_image=mg.Image(x.descriptor))
    if fills:
        _, state = forward().encode(commands, x, x, return_state=True)
    for name, value in properties.items():
        setattr(kernel, name, value)
    kernel.encode(commands, _image(*g), _image(*second), state)


def _unary_state() -> None:
    commands, x = mg.CommandBuffer(), _image(1, 2, 3, 4)
    y, state = mg.SoftMax().encode(commands, x, return_state=True)
    mg.AddGradient().encode(commands, y, x, state)


BAD_INPUT = {
    "a stride of 2": (
        lambda: _forward(primary_stride_in_pixels_x=2), mg.GeometryError,
        "Add: primary_stride_in_pixels_x is 2; it has to be at most 1"),
    "a negative channel stride": (
        lambda: _forward(secondary_stride_in_feature_channels=-1), mg.GeometryError,
        "Add: secondary_stride_in_feature_channels is -1; it has to be at least 0"),
    "a scale that is no number": (
        lambda: _forward(primary_scale="2"), mg.FormatError, "Add: primary_scale is '2'; it has to be a number"),
    "an infinite bias": (
        lambda: _forward(bias=float("inf")), mg.GeometryError, "Add: bias is inf; it has to be finite in float32"),
    "limits in the wrong order": (
        lambda: _forward(mg.Divide, minimum_value=2, maximum_value=1), mg.GeometryError,
        "Divide: minimum_value is 2.0 but maximum_value 1.0"),
    "other widths": (
        lambda: _forward(y=(1, 2, 1, 4)), mg.GeometryError, "Add: the result has 3 pixels along x for the primary_im"),
    "other channels": (
        lambda: _forward(mg.Multiply, y=(1, 2, 3, 1)), mg.GeometryError,
        "Multiply: 4 feature channels of primary_image are read but 1 of secondary_image; a stride_in_feature_chan"),
    "another number of images": (
        lambda: _forward(y=(2, 2, 3, 4)), mg.GeometryError, "Add: primary_image has 1 images from its first one o"),
    "an unknown comparison": (
        lambda: _forward(mg.Compare, comparison_type=6), mg.FormatError, "Compare: comparison_type is 6; it has to be"),
    "a negative threshold": (
        lambda: _forward(mg.Compare, threshold=-1), mg.GeometryError, "Compare: threshold is -1.0; it has to be"),
    "a mirrored edge": (
        lambda: _forward(primary_edge_mode=mg.EdgeMode.MIRROR), NotImplementedError,
        "Add: primary_edge_mode is MIRROR; it supports ZERO and CLAMP"),
    "another format": (
        lambda: mg.Add().encode(mg.CommandBuffer(), _image(1, 1, 1, 4), _image(1, 1, 1, 4, dtype=np.float16)),
        mg.FormatError, "Add: secondary_image is FLOAT16 but primary_image is FLOAT32"),
    "the state of another kernel": (
        lambda: _gradient(mg.Subtract), mg.StateError,
        "AddGradient: gradient_state was made by Subtract; it has to be made by Add"),
    "the state of a kernel with one source": (
        _unary_state, mg.FormatError, "AddGradient: gradient_state is GradientState; it has to be the BinaryGradien"),
    "a gradient of another size": (
        lambda: _gradient(g=(1, 2, 4, 4)), mg.GeometryError, "AddGradient: source_gradient is 1x2x4x4 but Add of a 1"),
    "a source of another size": (
        lambda: _gradient(second=(1, 2, 4, 4)), mg.GeometryError,
        "AddGradient: source_image is 1x2x4x4 but gradient_state was made for 1x2x3x4"),
    "a stride that the forward kernel did not have": (
        lambda: _gradient(secondary_stride_in_pixels_y=0), mg.StateError,
        "AddGradient: secondary_stride_in_pixels_y is 0 but gradient_state was made when that of the image was 1"),
    "a division whose state was not filled": (
        lambda: _gradient(mg.Divide, mg.DivideGradient, fills=False), mg.StateError,
        "DivideGradient: gradient_state holds records of 0 images but its forward kernel has 1"),
    "a division by a scale of 0": (
        lambda: _gradient(mg.Divide, mg.DivideGradient, secondary_scale=0), mg.GeometryError,
        "DivideGradient: secondary_scale is 0.0; it divides"),
    "the scales of another kernel": (
        lambda: mg.AddGradient.of(mg.Divide()), mg.StateError, "AddGradient: forward is Divide; it has to be Add"),
}  # fmt: skip


@pytest.mark.parametrize(("build", "error", "words"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_named(build, error, words):
    with pytest.raises(error) as raised:
        build()
    assert words in str(raised.value)


def check_plain(name: str, x: np.ndarray, y: np.ndarray, g: np.ndarray, records_clamp: bool) -> None:
    kernel = kernel_for(KINDS[name][0], (x.shape, y.shape), records_clamp=records_clamp)
    primary, secondary, result, state = encode(kernel, x, y)
    expected = reference.arithmetic(name, x, y)
    sizes = np.abs(expected) + np.abs(x) + np.abs(y)
    assert_within(result, expected, error_bound(x.dtype, 4, sizes, expected))
    found = encode_gradients(name, kernel, g, primary, secondary, state)
    exact = reference.arithmetic_gradient(name, g, x, y)
    magnitude = reference.arithmetic_gradient(name, np.abs(g), np.abs(x), np.abs(y))
    check_gradients(found, exact, magnitude, int(np.prod(g.shape[1:])))


@pytest.mark.usefixtures("shaders_of_gpus")
class TestTheShadersOfGPUs:
    @each_kind
    @given(data=st.data())
    def test_forward_and_gradients_match_the_reference(self, name, data):
        shape, x_shape, y_shape = data.draw(spread_shapes())
        dtype = data.draw(channel_formats()).dtype
        x, y, g = (data.draw(values(each, dtype)) for each in (x_shape, y_shape, shape))
        check_plain(name, x, away_from_zero(y), g, data.draw(st.booleans()))

    @each_kind
    @pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
    @pytest.mark.parametrize(
        ("x_shape", "y_shape"),
        [
            ((1, 1, 3, 5), (1, 1, 3, 5)),
            ((1, 1, 3, 4), (1, 1, 3, 4)),
            ((1, 2, 3, 8), (1, 2, 3, 8)),
            ((1, 1, 1, 8), (1, 2, 3, 8)),
            ((1, 2, 3, 1), (1, 2, 3, 64)),
            ((1, 2, 3, 64), (1, 2, 3, 1)),
            # Four elements reach across the ends of all axes that cannot be joined.
            ((4, 5, 3, 7), (4, 1, 3, 1)),
            ((4, 5, 3, 7), (4, 5, 1, 7)),
            # The last thread has fewer elements than the others.
            ((3, 5, 5, 7), (3, 5, 5, 7)),
            ((3, 5, 5, 7), (3, 1, 5, 1)),
        ],
    )
    def test_one_element_at_a_time_and_vectors(self, name, dtype, x_shape, y_shape):
        rng = np.random.default_rng(13)
        shapes = x_shape, y_shape, np.broadcast_shapes(x_shape, y_shape)
        x, y, g = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
        y = away_from_zero(y)
        check_plain(name, x, y, g, False)
        kernel = kernel_for(KINDS[name][0], (x_shape, y_shape))
        with mg.CommandBuffer() as commands:
            result = kernel.encode(commands, mg.Image.from_array(x), mg.Image.from_array(y))
        expected = reference.arithmetic(name, x, y)
        sizes = np.abs(expected) + np.abs(x) + np.abs(y)
        assert_within(np.asarray(result), expected, error_bound(dtype, 4, sizes, expected))

    @pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
    def test_four_elements_across_the_ends_of_images_of_which_a_row_is_left_out(self, dtype):
        rng = np.random.default_rng(15)
        x, y = (rng.standard_normal(shape).astype(dtype) for shape in ((4, 5, 3, 7), (4, 6, 1, 7)))
        kernel = mg.Subtract()
        kernel.secondary_offset, kernel.secondary_stride_in_pixels_x = mg.Offset(0, 1, 0), 0
        with mg.CommandBuffer() as commands:
            result = mg.Image.from_array(np.zeros_like(x))
            kernel.encode(commands, mg.Image.from_array(x), mg.Image.from_array(y), destination_image=result)
        expected = x.astype(np.float64) - y[:, 1:]
        assert_within(np.asarray(result), expected, error_bound(dtype, 1, np.abs(x) + np.abs(y[:, 1:]), expected))

    @pytest.mark.parametrize("name", ["multiply", "divide"])
    @pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
    @pytest.mark.parametrize(
        ("shape", "channels"), [((1, 1, 4), 4), ((1, 1, 5), 5), ((1, 1, 8), 8), ((1, 1, 1), 5), ((3, 3, 1), 40)]
    )
    def test_sums_with_a_factor_that_was_read_beyond_its_edge(self, name, dtype, shape, channels):
        rng = np.random.default_rng(14)
        x = rng.standard_normal((2, *shape)).astype(dtype)
        y = away_from_zero(rng.standard_normal((2, 2, 1, channels)).astype(dtype))
        g = rng.standard_normal((2, 3, 3, channels)).astype(dtype)
        kernel = kernel_for(KINDS[name][0], (x.shape, g.shape), secondary_edge_mode=mg.EdgeMode.CLAMP)
        primary, secondary = mg.Image.from_array(x), mg.Image.from_array(y)
        result = mg.Image.from_array(g)
        state = kernel.result_state(primary, secondary, destination_image=result)
        dx = FencedImage.of(primary.descriptor)
        with mg.CommandBuffer() as commands:
            kernel.encode(commands, primary, secondary, destination_image=result, destination_state=state)
            gradient = KINDS[name][1].of(kernel)
            gradient.encode(commands, mg.Image.from_array(g), secondary, state, destination_gradient=dx.image)
        read = moved(y, (0, 0), (3, 3), True)
        exact, _ = reference.arithmetic_gradient(name, g, x, read)
        magnitude, _ = reference.arithmetic_gradient(name, np.abs(g), np.abs(x), np.abs(read))
        assert_within(dx.check(), exact, error_bound(dtype, 9 * channels + 4, magnitude, exact))

    @each_comparison
    @pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
    @pytest.mark.parametrize("shape", [(2, 3, 4, 8), (1, 1, 3, 4)])
    def test_comparisons(self, comparison, dtype, shape):
        x, y = (np.random.default_rng(seed).integers(-2, 3, shape).astype(dtype) for seed in (1, 2))
        kernel = kernel_for(mg.Compare, (x.shape, y.shape), comparison_type=comparison)
        with mg.CommandBuffer() as commands:
            result = kernel.encode(commands, mg.Image.from_array(x), mg.Image.from_array(y))
        np.testing.assert_array_equal(np.asarray(result), reference.compare(comparison.name.lower(), x, y))


def test_a_state_is_a_snapshot_with_parts():
    x = mg.Image.from_array(np.ones((3, 2, 2, 4), np.float32))
    state = mg.Divide().result_state(x, x, destination_image=mg.Image(replace(x.descriptor)))
    assert isinstance(state, mg.ArithmeticGradientState) and isinstance(state, mg.BinaryGradientState)
    assert len(state.batch_representation()) == 3
    assert state.resource_count == 2 and state.resource_size == 5 * 3 * 2 * 2 * 4
