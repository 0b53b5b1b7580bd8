"""Normalization across channels, of pixels and by local contrast against the float64 references."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from by_turns import by_turns
from hypothesis import given
from hypothesis import strategies as st

import mpsgrad as mg
from mpsgrad import archive, functional, reference
from mpsgrad.kernels import response_normalization, window_strips
from mpsgrad.kernels.response_normalization import ROWS_OF_COLUMNS
from mpsgrad.testing import (
    FencedImage,
    assert_within,
    batch_sizes,
    channel_counts,
    channel_formats,
    error_bound,
    values,
)

NAMES = {
    "cross_channel_normalization": "CrossChannelNormalization",
    "spatial_normalization": "SpatialNormalization",
    "local_contrast_normalization": "LocalContrastNormalization",
}
each_name = pytest.mark.parametrize("name", NAMES)
each_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float16])


@dataclass
class Case:
    """A kernel with its gradient and the reference's arguments."""

    name: str
    size: int
    parameters: dict[str, float] = field(default_factory=dict)

    def kernel(self, gradient: bool = False) -> Any:
        cls = getattr(mg, NAMES[self.name] + ("Gradient" if gradient else ""))
        across = self.name.startswith("cross")
        kernel = cls(self.size) if across else cls(kernel_width=self.size, kernel_height=self.size)
        for name, value in self.parameters.items():
            setattr(kernel, name, value)
        return kernel

    @property
    def _window(self) -> Any:
        return self.size if self.name.startswith("cross") else (self.size, self.size)

    def result(self, x: np.ndarray) -> np.ndarray:
        return getattr(reference, self.name)(x, self._window, **self.parameters)

    def gradient(self, g: np.ndarray, x: np.ndarray) -> np.ndarray:
        parameters = {name: value for name, value in self.parameters.items() if name != "pm"}
        return getattr(reference, f"{self.name}_gradient")(g, x, self._window, **parameters)

    def bounds(self, g: np.ndarray, x: np.ndarray, y: np.ndarray, dx: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The base of the power has a relative error of a few eps for each value in the sum, times beta in the power.

        Magnitudes are those of the reference for |x| and |g|, in which nothing cancels.
        """
        alpha, beta, delta = (self.parameters[name] for name in ("alpha", "beta", "delta"))
        terms = self.size if self.name.startswith("cross") else self.size**2
        x, g = np.abs(x.astype(np.float64)), np.abs(g.astype(np.float64))
        around = (2 * x.max() + 1e-3) ** 2
        largest = delta + alpha * around
        ulps = (terms + 6) * (beta + 1) + 8 * (1 + beta) * (1 + abs(np.log2(delta)) + abs(np.log2(largest)))
        steep = delta**-beta
        p0, ps = self.parameters.get("p0", float(self.name.startswith("local"))), self.parameters.get("ps", 1.0)
        magnitude = ps * (x + abs(p0) * x.max()) * steep + abs(self.parameters.get("pm", 0.0))
        y_bound = error_bound(y.dtype, terms, magnitude, y, function_ulps=ulps)
        slope = 2 * alpha * beta * (1 + abs(p0)) * around / delta
        magnitude = ps * g.max() * steep * (1 + abs(p0) + slope)
        return y_bound, error_bound(dx.dtype, 2 * terms + 8, magnitude, dx, function_ulps=2 * ulps)


def run(case: Case, x: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray, Any]:
    """Result, gradient and state, from encodes into fenced images."""
    kernel, gradient = case.kernel(), case.kernel(gradient=True)
    source = mg.Image.from_array(x)
    y, dx = FencedImage.of(source.descriptor), FencedImage.of(source.descriptor)
    state = kernel.result_state(source, destination_image=y.image)
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, source, destination_image=y.image, destination_state=state)
        gradient.encode(commands, mg.Image.from_array(g), source, state, destination_gradient=dx.image)
    return y.check(), dx.check(), state


def check(case: Case, x: np.ndarray, g: np.ndarray) -> None:
    y, dx, _ = run(case, x, g)
    y_bound, dx_bound = case.bounds(g, x, y, dx)
    assert_within(y, case.result(x), y_bound)
    assert_within(dx, case.gradient(g, x), dx_bound, name="gradient")


@st.composite
def cases(draw: Any, name: str) -> Case:
    parameters = {
        "alpha": draw(st.sampled_from([0.0, 0.5, 1.0, 3.0])),
        "beta": draw(st.sampled_from([0.5, 0.75, 1.0, 5.0])),
        "delta": draw(st.sampled_from([0.5, 1.0, 2.0])),
    }
    if name.startswith("local"):
        parameters |= {"p0": draw(st.sampled_from([0.0, 0.5, 1.0])), "pm": draw(st.sampled_from([0.0, -1.0]))}
        parameters["ps"] = draw(st.sampled_from([1.0, 2.0]))
    return Case(name, draw(st.integers(1, 6)), parameters)


@each_name
@given(data=st.data())
def test_results_and_gradients_match_the_reference(name, data):
    dtype = data.draw(channel_formats()).dtype
    height, width = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 9))
    shape = (data.draw(batch_sizes()), height, width, data.draw(channel_counts()))
    check(data.draw(cases(name)), data.draw(values(shape, dtype)), data.draw(values(shape, dtype)))


def check_offset_clip_rectangle_and_channel_ranges(name: str, data: Any) -> None:
    """The result is that of the source with zeros around it, at the places read; also of pixels that follow."""
    case, follow = data.draw(cases(name)), data.draw(st.booleans())
    height, width, images = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 6)), data.draw(st.integers(1, 3))
    size = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 7))
    offset = data.draw(st.integers(-3, 7)), data.draw(st.integers(-3, 7))
    origin = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2)), data.draw(st.integers(0, 1))
    first, channels = data.draw(st.sampled_from([0, 4])), data.draw(st.integers(1, 9))
    target = data.draw(st.sampled_from([0, 8]))
    if follow:
        first = target = 0
    x = data.draw(values((images + 1, height, width, channels if follow else 14), np.float32))
    kernel = case.kernel()
    kernel.offset = mg.Offset(offset[1], offset[0], 1)
    kernel.clip_rect = mg.Region(mg.Origin(origin[1], origin[0], origin[2]), mg.Size(size[1], size[0], images))
    kernel.source_feature_channel_offset, kernel.source_feature_channel_max_count = first, channels
    kernel.destination_feature_channel_offset = target
    shape = (images + origin[2], size[0] + origin[0] + 1, size[1] + origin[1] + 1, channels if follow else 18)
    before, g = data.draw(values(shape, np.float32)), data.draw(values(shape, np.float32))
    source, result = mg.Image.from_array(x), mg.Image.from_array(before)
    state = kernel.result_state(source, destination_image=result)
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, source, destination_image=result, destination_state=state)
        made = case.kernel(gradient=True).encode(commands, mg.Image.from_array(g), source, state)
    dx = np.asarray(made)
    part = np.index_exp[
        origin[2] : origin[2] + images,
        origin[0] : origin[0] + size[0],
        origin[1] : origin[1] + size[1],
        target : target + channels,
    ]
    around = 16
    margins = ((0, 0), (around, around), (around, around), (0, 0))
    wide = np.pad(x[1:, :, :, first : first + channels], margins)
    rows, columns = (slice(around + o, around + o + s) for o, s in zip(offset, size, strict=True))
    incoming = np.zeros_like(wide)
    incoming[:, rows, columns] = g[part]
    expected, expected_dx = case.result(wide)[:, rows, columns], case.gradient(incoming, wide)
    y = np.array(result)
    bounds = case.bounds(incoming, wide, np.zeros_like(wide), np.zeros_like(wide))
    assert_within(y[part], expected, bounds[0].max() + 1e-7 * np.abs(expected))
    inside = np.index_exp[:, around : around + height, around : around + width]
    there = np.index_exp[1:, :, :, first : first + channels]
    assert_within(dx[there], expected_dx[inside], bounds[1].max() + 1e-7 * np.abs(expected_dx[inside]), name="gradient")
    y[part] = before[part]
    np.testing.assert_array_equal(y, before)
    others = dx.copy()
    others[there] = 0
    assert not others.any()


@each_name
@given(data=st.data())
def test_offset_clip_rectangle_and_channel_ranges(name, data):
    check_offset_clip_rectangle_and_channel_ranges(name, data)


@each_dtype
@pytest.mark.parametrize("size", [4, 5, 75])
@pytest.mark.parametrize("channels", [40, 70, 200])
def test_windows_across_channels_within_and_at_the_ends_of_many(channels, size, dtype):
    random = np.random.default_rng(channels + size)
    x, g = (random.standard_normal((2, 3, 4, channels)).astype(dtype) for _ in range(2))
    check(Case("cross_channel_normalization", size, {"alpha": 1.0, "beta": 0.75, "delta": 0.5}), x, g)


@each_dtype
@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("cross")])
@pytest.mark.parametrize("channels", [13, 30])
def test_eight_channels_at_a_time(channels, name, dtype):
    random = np.random.default_rng(channels)
    x, g = (random.standard_normal((2, 5, 6, channels)).astype(dtype) for _ in range(2))
    check(Case(name, 4, {"alpha": 1.0, "beta": 0.75, "delta": 0.5}), x, g)


def encoded_around_and_within(case: Case, x: np.ndarray, g: np.ndarray) -> list[np.ndarray]:
    """Bits of what encodes of whole images make, and of some channels of some pixels of images that have more."""
    y, dx, _ = run(case, x, g)
    kernel, channels = case.kernel(), x.shape[3]
    kernel.offset, kernel.clip_rect = mg.Offset(-1, 1), mg.Region(mg.Origin(1, 2, 0), mg.Size(9, 8))
    kernel.source_feature_channel_offset, kernel.source_feature_channel_max_count = 4, channels
    kernel.destination_feature_channel_offset = 8
    wide, incoming = (np.pad(each, [(0, 0)] * 3 + [(8, 3)]) for each in (np.roll(x, 1, 3), g))
    source, result = mg.Image.from_array(wide), mg.Image.from_array(np.zeros_like(wide))
    state = kernel.result_state(source, destination_image=result)
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, source, destination_image=result, destination_state=state)
        made = case.kernel(gradient=True).encode(commands, mg.Image.from_array(incoming), source, state)
    return [each.view(np.uint16) for each in (y, dx, np.array(result), np.array(made))]


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("cross")])
@pytest.mark.parametrize("channels", [1, 5, 18, 31])
def test_halves_of_short_pixels_may_be_gone_through_as_floats(name, channels, monkeypatch):
    random = np.random.default_rng(channels)
    x, g = (random.standard_normal((2, 10, 12, channels)).astype(np.float16) for _ in range(2))
    case = Case(name, 5, {"alpha": 1.0, "beta": 0.75, "delta": 0.5})
    made = []
    for fewest in (1, 1 << 40):
        monkeypatch.setattr(response_normalization, "FEWEST_TAPS_AS_FLOATS", fewest)
        check(case, x, g)
        made.append(encoded_around_and_within(case, x, g))
    for as_floats, as_halves in zip(*made, strict=True):
        np.testing.assert_array_equal(as_floats, as_halves)


# laws


@each_name
def test_the_defaults_are_those_of_mps(name):
    kernel, gradient = Case(name, 3).kernel(), Case(name, 3).kernel(gradient=True)
    expected = (0.0, 0.5, 1 / 1024) if name.startswith("local") else (1.0, 5.0, 1.0)
    for each in (kernel, gradient):
        assert (each.alpha, each.beta, each.delta) == expected
    if name.startswith("local"):
        assert (kernel.p0, kernel.pm, kernel.ps) == (1.0, 0.0, 1.0)
    if name.startswith("cross"):
        assert mg.CrossChannelNormalization().kernel_size == mg.CrossChannelNormalizationGradient().kernel_size == 5
    else:
        assert (gradient.kernel_width, gradient.kernel_height) == (3, 3)


@each_name
def test_without_the_sum_the_kernels_scale(name):
    x, g = (np.random.default_rng(seed).standard_normal((2, 4, 5, 6)).astype(np.float32) for seed in range(2))
    parameters = {"alpha": 0.0, "beta": 2.0, "delta": 0.5}
    if name.startswith("local"):
        parameters |= {"p0": 0.0, "pm": 0.0, "ps": 1.0}
    y, dx, _ = run(Case(name, 3, parameters), x, g)
    np.testing.assert_allclose(y, 4 * x, rtol=1e-5)
    np.testing.assert_allclose(dx, 4 * g, rtol=1e-5)


def test_the_variance_of_a_flat_picture_far_from_zero_is_zero():
    """It is taken from the mean: the mean of the squares less the square of the mean would be rounding errors."""
    parameters = {"alpha": 1.0, "beta": 0.5, "delta": 1 / 1024, "p0": 1.0, "pm": 0.0, "ps": 1.0}
    y, _, _ = run(Case("local_contrast_normalization", 3, parameters), *[np.full((1, 9, 9, 4), 4096, np.float32)] * 2)
    np.testing.assert_array_equal(y[:, 1:-1, 1:-1], 0)


@each_name
def test_batches_and_encode_forms_give_the_same_bits(name):
    case = Case(name, 3, {"alpha": 1.0, "beta": 0.75, "delta": 1.0})
    x, g = (np.random.default_rng(seed).standard_normal((3, 5, 4, 6)).astype(np.float32) for seed in range(2))
    y, dx, _ = run(case, x, g)
    kernel, gradient = case.kernel(), case.kernel(gradient=True)
    for _ in range(2):
        with mg.CommandBuffer() as commands:
            sources, incoming = ([mg.Image.from_array(one) for one in array] for array in (x, g))
            results, states = kernel.encode_batch(commands, sources, return_state=True)
            gradients = gradient.encode_batch(commands, incoming, sources, states)
            whole, state = kernel.encode(commands, mg.Image.from_array(x), return_state=True)
            again = gradient.encode(commands, mg.Image.from_array(g), mg.Image.from_array(x), state)
        for result, expected in ((results, y), (whole, y), (gradients, dx), (again, dx)):
            np.testing.assert_array_equal(np.asarray(result), expected)


@each_name
def test_a_kernel_from_an_archive_gives_the_same_bits(name):
    case = Case(name, 4, {"alpha": 2.0, "beta": 0.75, "delta": 2.0})
    x = np.random.default_rng(0).standard_normal((1, 5, 4, 6)).astype(np.float32)
    with mg.CommandBuffer() as commands:
        y = archive.from_bytes(archive.to_bytes(case.kernel())).encode(commands, mg.Image.from_array(x))
    np.testing.assert_array_equal(np.asarray(y), run(case, x, x)[0])


@each_name
def test_functional_calls(name):
    case = Case(name, 3, {"alpha": 0.5, "beta": 0.75, "delta": 1.0})
    x, g = (np.random.default_rng(seed).standard_normal((2, 4, 5, 6)).astype(np.float32) for seed in range(2))
    y, dx, _ = run(case, x, g)
    np.testing.assert_array_equal(getattr(functional, name)(x, kernel=3, **case.parameters), y)
    np.testing.assert_array_equal(getattr(functional, f"{name}_gradient")(g, x, kernel=3, **case.parameters), dx)


# bad input

IMAGE = np.ones((1, 2, 3, 4), np.float32)


def encoded(
    gradient: Any, forward: Any = None, g: np.ndarray = IMAGE, x: np.ndarray = IMAGE, into: Any = None
) -> None:
    kernel = forward or mg.SpatialNormalization(kernel_width=3, kernel_height=3)
    with mg.CommandBuffer() as commands:
        _, state = kernel.encode(commands, mg.Image.from_array(IMAGE), return_state=True)
        gradient.encode(
            commands,
            mg.Image.from_array(g),
            mg.Image.from_array(x),
            state,
            destination_gradient=None if into is None else mg.Image.from_array(np.ones(into, np.float32)),
        )


def spatial(size: int = 3, **properties: float) -> Any:
    gradient = mg.SpatialNormalizationGradient(kernel_width=size, kernel_height=size)
    for name, value in properties.items():
        setattr(gradient, name, value)
    return gradient


def with_edge(mode: mg.EdgeMode) -> None:
    kernel = mg.LocalContrastNormalization(kernel_width=3, kernel_height=3)
    kernel.edge_mode = mode
    kernel.encode(mg.CommandBuffer(), mg.Image.from_array(IMAGE))


def changed_after_the_state() -> None:
    kernel, source = mg.CrossChannelNormalization(), mg.Image.from_array(IMAGE)
    result = mg.Image.from_array(IMAGE)
    state = kernel.result_state(source, destination_image=result)
    kernel.beta = 0.75
    kernel.encode(mg.CommandBuffer(), source, destination_image=result, destination_state=state)


BAD_INPUT = {
    "no channels": (lambda: mg.CrossChannelNormalization(0), mg.GeometryError, "kernel_size is 0; it has to be"),
    "more channels than 32 bits hold": (
        lambda: mg.CrossChannelNormalization(2**33), mg.GeometryError, "kernel_size is 8589934592; it has to be"),
    "half a channel": (lambda: mg.CrossChannelNormalization(2.5), mg.FormatError, "kernel_size is 2.5; it has"),
    "a window that is not square": (
        lambda: mg.SpatialNormalization(kernel_width=3, kernel_height=5), mg.GeometryError,
        "SpatialNormalization: kernel_width is 3 but kernel_height 5; the window has to be square"),
    "an empty window": (
        lambda: mg.LocalContrastNormalizationGradient(kernel_width=0, kernel_height=0), mg.GeometryError,
        "LocalContrastNormalizationGradient: kernel_width is 0"),
    "a negative alpha": (lambda: spatial(alpha=-1), mg.GeometryError, "SpatialNormalizationGradient: alpha is -1"),
    "a beta that is no number": (lambda: spatial(beta="5"), mg.FormatError, "beta is '5'; it has to be a number"),
    "an infinite delta": (lambda: spatial(delta=float("inf")), mg.GeometryError, "delta is inf; it has to be finite"),
    "another window": (lambda: encoded(spatial(5)), mg.StateError, "window is (5, 5) but that of gradient_state's"),
    "another alpha": (lambda: encoded(spatial(alpha=2)), mg.StateError, "alpha is 2.0 but that of gradient_state's"),
    "another delta": (lambda: encoded(spatial(delta=3)), mg.StateError, "SpatialNormalizationGradient: delta is 3.0"),
    "parameters changed after the state": (
        changed_after_the_state, mg.StateError, "beta is 0.75 but destination_state was made when it was 5.0"),
    "the state of another kernel": (
        lambda: encoded(spatial(), mg.CrossChannelNormalization()), mg.StateError,
        "gradient_state was made by CrossChannelNormalization; it has to be made by SpatialNormalization"),
    "a gradient of another size": (
        lambda: encoded(spatial(), g=IMAGE[:, :1]), mg.GeometryError, "source_gradient is 1x1x3x4 but SpatialNormaliz"),
    "a source of another size": (
        lambda: encoded(spatial(), x=IMAGE[:, :1]), mg.GeometryError, "source_image is 1x1x3x4 but gradient_state was"),
    "a destination larger than the source": (
        lambda: encoded(spatial(), into=(1, 3, 3, 4)), mg.GeometryError,
        "the destination is 3 wide and 3 high and begins at pixel (0, 0) of source_image but that is 3 x 2"),
    "a destination that begins outside the source": (
        lambda: encoded(spatial(secondary_offset=mg.Offset(-1)), into=(1, 2, 3, 4)), mg.GeometryError,
        "begins at pixel (-1, 0) of source_image"),
    "a clamped edge": (
        lambda: with_edge(mg.EdgeMode.CLAMP), NotImplementedError,
        "LocalContrastNormalization: edge_mode is CLAMP; it supports ZERO"),
}  # fmt: skip


@pytest.mark.parametrize(("build", "error", "words"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_named(build, error, words):
    with pytest.raises(error) as raised:
        build()
    assert words in str(raised.value)


@pytest.mark.usefixtures("shaders_of_gpus")
class TestTheShadersOfGPUs:
    @pytest.fixture(params=[1, ROWS_OF_COLUMNS], ids=["pixels", "columns"], autouse=True)
    def rows(self, request, monkeypatch):
        monkeypatch.setattr(response_normalization, "FEWEST_THREADS_OF_COLUMNS", 0 if request.param > 1 else 2**31)
        monkeypatch.setattr(window_strips, "FEWEST_ELEMENTS", 0 if request.param > 1 else 2**31)

    @pytest.mark.parametrize(
        ("name", "dtype", "channels"), by_turns(NAMES, [np.float32, np.float16], [3, 8, 12], of=2)
    )
    def test_results_and_gradients_match_the_reference(self, name, dtype, channels):
        parameters = {"alpha": 1.0, "beta": 0.75, "delta": 1.0}
        x, g = (np.random.default_rng(seed).standard_normal((2, 6, 7, channels)).astype(dtype) for seed in range(2))
        for size in (3, 4, 5):
            check(Case(name, size, parameters), x, g)

    def test_channels_that_do_not_exist_add_nothing_where_only_their_base_is_zero(self):
        case = Case("cross_channel_normalization", 5, {"alpha": 1.0, "beta": 0.75, "delta": 0.0})
        x, g = (np.random.default_rng(seed).uniform(1, 2, (1, 2, 3, 8)).astype(np.float32) for seed in range(2))
        x[..., 0] = x[..., -1] = 0
        _, dx, _ = run(case, x, g)
        np.testing.assert_allclose(dx, case.gradient(g, x), rtol=1e-4, atol=1e-6)

    @each_name
    @given(data=st.data())
    def test_drawn_geometry(self, name, data):
        height, width = data.draw(st.integers(1, 11)), data.draw(st.integers(1, 5))
        shape = (data.draw(batch_sizes()), height, width, data.draw(st.sampled_from([1, 4, 5, 8])))
        check(data.draw(cases(name)), data.draw(values(shape, np.float32)), data.draw(values(shape, np.float32)))

    @each_name
    @given(data=st.data())
    def test_offset_clip_rectangle_and_channel_ranges(self, name, data):
        check_offset_clip_rectangle_and_channel_ranges(name, data)


@pytest.mark.usefixtures("shaders_of_gpus")
@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("cross")])
def test_strips_have_the_windows_of_their_neighbours(name, monkeypatch):
    """Of several threadgroups beside each other, in channels and in columns, and of several below each other."""
    monkeypatch.setattr(window_strips, "FEWEST_ELEMENTS", 0)
    monkeypatch.setattr(window_strips, "THREADGROUPS_PER_UNIT", {"forward": 64, "gradient": 64})
    case = Case(name, 5, {"alpha": 1.0, "beta": 0.75, "delta": 1.0})
    for shape in ((1, 13, 300, 20), (2, 9, 30, 40)):
        x, g = (np.random.default_rng(seed).standard_normal(shape).astype(np.float32) for seed in range(2))
        check(case, x, g)
    x[0, 4, 7, 33] = np.nan
    y = getattr(functional, name)(x, kernel=5, **case.parameters)
    dx = getattr(functional, f"{name}_gradient")(g, x, kernel=5, **case.parameters)
    expected = np.zeros(shape, bool)
    expected[0, 2:7, 5:10, 33] = True
    np.testing.assert_array_equal(np.isnan(y), expected)
    expected[0, :9, 3:12, 33] = True
    np.testing.assert_array_equal(np.isnan(dx), expected)
