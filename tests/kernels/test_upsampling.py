"""Upsampling and resizing with their gradients against the float64 references."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpsgrad as mg
from mpsgrad import archive, functional, reference
from mpsgrad.kernels import upsampling, walk
from mpsgrad.testing import (
    FencedImage,
    assert_within,
    batch_sizes,
    channel_counts,
    channel_formats,
    error_bound,
    values,
)

pytestmark = pytest.mark.usefixtures("several_kernels_at_a_time")

each_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float16])


@dataclass
class Case:
    """Kernels with the reference's arguments; pairs are (y, x). ``factors`` upsample, ``size`` resizes."""

    kind: str = "bilinear"
    align_corners: bool = False
    factors: tuple[float, float] | None = None
    size: tuple[int, int] = (1, 1)

    def kernels(self) -> tuple[Any, Any]:
        if self.factors is None:
            size: Any = {"resize_width": self.size[1], "resize_height": self.size[0]}
            size["align_corners"] = self.align_corners
            return mg.ResizeBilinear(**size), mg.ResizeBilinearGradient(**size)
        factors: Any = {"scale_factor_x": self.factors[1], "scale_factor_y": self.factors[0]}
        if self.kind == "nearest":
            return mg.UpsamplingNearest(**factors), mg.UpsamplingNearestGradient(**factors)
        forward = mg.UpsamplingBilinear(**factors, align_corners=self.align_corners)
        return forward, mg.UpsamplingBilinearGradient(**factors)

    def result_size(self, x: np.ndarray) -> tuple[int, int]:
        if self.factors is None:
            return self.size
        return int(x.shape[1] * Fraction(self.factors[0])), int(x.shape[2] * Fraction(self.factors[1]))

    def ratio(self, x: np.ndarray) -> tuple[Fraction, Fraction]:
        if self.factors is None:
            return Fraction(x.shape[1], self.size[0]), Fraction(x.shape[2], self.size[1])
        return 1 / Fraction(self.factors[0]), 1 / Fraction(self.factors[1])

    def result(self, x: np.ndarray) -> np.ndarray:
        return reference.resample(x, self.result_size(x), self.ratio(x), self.kind, self.align_corners)

    def gradient(self, g: np.ndarray, x: np.ndarray) -> np.ndarray:
        return reference.resample_gradient(g, x.shape[1:3], self.ratio(x), self.kind, self.align_corners)


def run(case: Case, x: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, Any]:
    """Result, incoming gradient, gradient and state, from encodes into fenced images."""
    kernel, gradient = case.kernels()
    source = mg.Image.from_array(x)
    y = FencedImage.of(kernel.destination_image_descriptor([source]))
    dx = FencedImage.of(source.descriptor)
    state = kernel.result_state(source, destination_image=y.image)
    g = np.random.default_rng(seed).standard_normal(y.image.shape).astype(x.dtype)
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, source, destination_image=y.image, destination_state=state)
        gradient.encode(commands, mg.Image.from_array(g), source, state, destination_gradient=dx.image)
    return y.check(), g, dx.check(), state


def check(case: Case, x: np.ndarray) -> None:
    y, g, dx, _ = run(case, x)
    expected = case.result(x)
    assert_within(y, expected, error_bound(x.dtype, 8, case.result(np.abs(x)), expected))
    expected, magnitude = case.gradient(g, x), case.gradient(np.abs(g), x)
    terms = max(1, -(-y.shape[1] // x.shape[1]) * 2 + 1) * max(1, -(-y.shape[2] // x.shape[2]) * 2 + 1)
    # Weights near 0 are differences from 1, so that their error is one of 1.
    bound = error_bound(x.dtype, terms + 8, magnitude + np.abs(g).max(), expected)
    assert_within(dx, expected, bound, name="gradient")


factors = st.sampled_from([1, 2, 3, 4, 7, 1.5, 2.25, 1.0009765625])


@st.composite
def cases(draw: Any) -> Case:
    kind = draw(st.sampled_from(["nearest", "bilinear", "resize"]))
    aligned = kind != "nearest" and draw(st.booleans())
    if kind == "resize":
        return Case("bilinear", aligned, None, (draw(st.integers(1, 13)), draw(st.integers(1, 13))))
    return Case(kind, aligned, (draw(factors), draw(factors)))


@given(data=st.data())
def test_results_and_gradients_match_the_reference(data):
    dtype = data.draw(channel_formats()).dtype
    height, width = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 7))
    shape = (data.draw(batch_sizes()), height, width, data.draw(channel_counts()))
    check(data.draw(cases()), data.draw(values(shape, dtype)))


@each_dtype
@pytest.mark.parametrize("kind", ["nearest", "bilinear"])
@pytest.mark.parametrize(
    ("shape", "scale"),
    [
        ((1, 2, 40, 515), (2.0, 3.0)),
        ((1, 2, 1100, 1), (1.5, 2.0)),
        ((2, 3, 60, 37), (1.25, 4.0)),
        ((1, 2, 3, 5), (33.0, 1.0)),
    ],
)
def test_gradients_go_through_tiles_of_columns_and_blocks_of_channels(shape, scale, kind, dtype):
    check(Case(kind, factors=scale), np.random.default_rng(6).standard_normal(shape).astype(dtype))


@each_dtype
@pytest.mark.parametrize("shape", [(20, 1, 3, 4), (3, 9, 5, 3), (2, 9, 5, 11)])
def test_rows_that_are_copies_of_the_row_above(shape, dtype):
    """A thread of a CPU has several rows, also of several images."""
    case, x = Case("nearest", factors=(2.5, 2.0)), np.random.default_rng(5).standard_normal(shape).astype(dtype)
    with mg.CommandBuffer() as commands:
        result = case.kernels()[0].encode(commands, mg.Image.from_array(x))
    np.testing.assert_array_equal(np.asarray(result), case.result(x).astype(dtype))


def test_the_worked_cases():
    x = np.float32([1, 3]).reshape(1, 1, 2, 1)
    for case, expected in (
        (Case("nearest", False, (1, 2)), [1, 1, 3, 3]),
        (Case("bilinear", False, (1, 2)), [1, 2, 3, 3]),
        (Case("bilinear", True, (1, 2)), [1, 5 / 3, 7 / 3, 3]),
        (Case("bilinear", False, None, (1, 3)), [1, 7 / 3, 3]),
        (Case("bilinear", True, None, (1, 3)), [1, 2, 3]),
        (Case("bilinear", True, None, (1, 1)), [1]),
    ):
        np.testing.assert_allclose(run(case, x)[0].ravel(), expected, rtol=1e-6)


@each_dtype
def test_a_factor_of_1_copies(dtype):
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(dtype)
    for case in (Case("nearest", False, (1, 1)), Case("bilinear", True, (1, 1)), Case("bilinear", False, None, (3, 4))):
        y, g, dx, _ = run(case, x)
        np.testing.assert_array_equal(y, x)
        np.testing.assert_array_equal(dx, g)


def test_every_weight_of_the_gradient_arrives():
    """Each output's weights add up to 1, so the gradients of source and result have one sum."""
    x = np.zeros((1, 4, 5, 3), np.float32)
    for case in (Case("nearest", False, (3, 2)), Case("bilinear", False, (1.5, 3)), Case("bilinear", size=(3, 9))):
        _, g, dx, _ = run(case, x)
        np.testing.assert_allclose(dx.sum((1, 2)), g.sum((1, 2)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", [Case("nearest", False, (2, 3)), Case("bilinear", True, (2, 2)), Case(size=(4, 3))])
def test_batches_channel_ranges_and_encode_forms_give_the_same_bits(case):
    x = np.random.default_rng(1).standard_normal((3, 5, 4, 14)).astype(np.float32)
    part = np.ascontiguousarray(x[..., 4:10])
    y, g, dx, _ = run(case, part)
    kernel, gradient = case.kernels()
    kernel.source_feature_channel_offset, kernel.source_feature_channel_max_count = 4, 6
    for _ in range(2):
        with mg.CommandBuffer() as commands:
            sources, incoming = [mg.Image.from_array(one) for one in x], [mg.Image.from_array(one) for one in g]
            results, states = kernel.encode_batch(commands, sources, return_state=True)
            gradients = gradient.encode_batch(commands, incoming, sources, states)
            whole, state = kernel.encode(commands, mg.Image.from_array(x), return_state=True)
            again = gradient.encode(commands, mg.Image.from_array(g), mg.Image.from_array(x), state)
        for result in (results, whole):
            np.testing.assert_array_equal(np.asarray(result), y)
        for result in (gradients, again):
            np.testing.assert_array_equal(np.asarray(result)[..., 4:10], dx)
            assert not np.asarray(result)[..., :4].any() and not np.asarray(result)[..., 10:].any()


def test_a_kernel_from_an_archive_gives_the_same_bits():
    x = np.random.default_rng(0).standard_normal((1, 5, 4, 6)).astype(np.float32)
    for case in (Case("nearest", False, (2, 3)), Case("bilinear", True, (1.5, 2)), Case(size=(4, 3))):
        restored = archive.from_bytes(archive.to_bytes(case.kernels()[0]))
        with mg.CommandBuffer() as commands:
            y = restored.encode(commands, mg.Image.from_array(x))
        np.testing.assert_array_equal(np.asarray(y), run(case, x)[0])


def test_functional_calls():
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    y, g, dx, _ = run(Case("nearest", False, (2, 3)), x)
    np.testing.assert_array_equal(functional.upsampling_nearest(x, factor=(2, 3)), y)
    np.testing.assert_array_equal(functional.upsampling_nearest_gradient(g, x, factor=(2, 3)), dx)
    y, g, dx, _ = run(Case("bilinear", True, (2, 2)), x)
    np.testing.assert_array_equal(functional.upsampling_bilinear(x, factor=2, align_corners=True), y)
    np.testing.assert_array_equal(functional.upsampling_bilinear_gradient(g, x, factor=2, align_corners=True), dx)
    y, g, dx, _ = run(Case(size=(5, 2)), x)
    np.testing.assert_array_equal(functional.resize_bilinear(x, size=(5, 2)), y)
    np.testing.assert_array_equal(functional.resize_bilinear_gradient(g, x, size=(5, 2)), dx)


# bad input

IMAGE = np.zeros((1, 2, 3, 4), np.float32)
TWICE = {"scale_factor_x": 2, "scale_factor_y": 2}


def encoded(forward: Any, gradient: Any, g: tuple[int, ...] = (1, 4, 6, 4), **properties: Any) -> None:
    for name, value in properties.items():
        setattr(forward, name, value)
    source = mg.Image.from_array(IMAGE)
    with mg.CommandBuffer() as commands:
        _, state = forward.encode(commands, source, return_state=True)
        gradient.encode(commands, mg.Image.from_array(np.zeros(g, np.float32)), source, state)


def to_destination(kernel: Any, shape: tuple[int, ...], **properties: Any) -> None:
    for name, value in properties.items():
        setattr(kernel, name, value)
    result = mg.Image.from_array(np.zeros(shape, np.float32))
    kernel.encode(mg.CommandBuffer(), mg.Image.from_array(IMAGE), destination_image=result)


BAD_INPUT = {
    "a factor below 1": (
        lambda: mg.UpsamplingNearest(scale_factor_x=0.5, scale_factor_y=1), mg.GeometryError,
        "UpsamplingNearest: scale_factor_x is 0.5; it has to be at least 1"),
    "a negative factor": (
        lambda: mg.UpsamplingBilinearGradient(scale_factor_x=1, scale_factor_y=-2), mg.GeometryError,
        "UpsamplingBilinearGradient: scale_factor_y is -2.0"),
    "a factor that is no number": (
        lambda: mg.UpsamplingBilinear(scale_factor_x="2", scale_factor_y=1), mg.FormatError, "has to be a number"),
    "an infinite factor": (
        lambda: mg.UpsamplingBilinear(scale_factor_x=float("inf"), scale_factor_y=1), mg.GeometryError, "is inf"),
    "corners that are no truth value": (
        lambda: mg.UpsamplingBilinear(**TWICE, align_corners=2), mg.FormatError, "align_corners is 2; it has to be"),
    "an empty size": (
        lambda: mg.ResizeBilinear(resize_width=0, resize_height=1), mg.GeometryError, "resize_width is 0; it has to"),
    "a fractional size": (
        lambda: mg.ResizeBilinear(resize_width=2.5, resize_height=1), mg.FormatError, "resize_width is 2.5"),
    "an image too large": (
        lambda: to_destination(mg.UpsamplingNearest(scale_factor_x=2e9, scale_factor_y=1), (1, 4, 6, 4)),
        mg.GeometryError, "need positions of more than 31 bits"),
    "a destination of another size": (
        lambda: to_destination(mg.UpsamplingNearest(**TWICE), (1, 4, 5, 4)), mg.GeometryError,
        "the destination is 5 wide and 4 high but the result of 3 x 2 pixels is 6 x 4"),
    "a clip rectangle": (
        lambda: to_destination(
            mg.UpsamplingNearest(**TWICE), (1, 4, 6, 4), clip_rect=mg.Region(mg.Origin(0, 0, 0), mg.Size(6, 4, 1))),
        NotImplementedError, "UpsamplingNearest: clip_rect is"),
    "an offset": (
        lambda: to_destination(mg.UpsamplingBilinear(**TWICE), (1, 4, 6, 4), offset=mg.Offset(1, 0, 0)),
        NotImplementedError, "UpsamplingBilinear: clip_rect is"),
    "another factor": (
        lambda: encoded(mg.UpsamplingNearest(**TWICE), mg.UpsamplingNearestGradient(
            scale_factor_x=3, scale_factor_y=2)), mg.StateError,
        "UpsamplingNearestGradient: scale_factor_x is 3.0 but that of gradient_state's kernel is 2.0"),
    "another size": (
        lambda: encoded(mg.ResizeBilinear(resize_width=6, resize_height=4), mg.ResizeBilinearGradient(
            resize_width=6, resize_height=5)), mg.StateError, "resize_height is 5 but that of gradient_state's"),
    "the state of another kernel": (
        lambda: encoded(mg.UpsamplingNearest(**TWICE), mg.UpsamplingBilinearGradient(**TWICE)), mg.StateError,
        "gradient_state was made by UpsamplingNearest; it has to be made by UpsamplingBilinear"),
    "a gradient of another size": (
        lambda: encoded(mg.UpsamplingNearest(**TWICE), mg.UpsamplingNearestGradient(**TWICE), (1, 2, 3, 4)),
        mg.GeometryError, "source_gradient is 1x2x3x4 but UpsamplingNearest of a 1x2x3x4 source gives 1x4x6x4"),
}  # fmt: skip


@pytest.mark.parametrize(("build", "error", "words"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_named(build, error, words):
    with pytest.raises(error) as raised:
        build()
    assert words in str(raised.value)


CASES_OF_GPUS = (
    *(Case("nearest", factors=factors) for factors in ((2, 3), (2, 2))),
    Case("bilinear", factors=(2, 2)),
    Case("bilinear", size=(3, 9)),
)


@pytest.mark.usefixtures("shaders_of_gpus")
class TestTheShadersOfGPUs:
    @each_dtype
    @pytest.mark.parametrize("channels", [3, 6, 8])
    @pytest.mark.parametrize(
        "case", [Case("nearest", factors=(2, 3)), Case("bilinear", True, (2.5, 2)), Case("bilinear", size=(3, 9))]
    )
    def test_results_and_gradients_match_the_reference(self, case, dtype, channels):
        check(case, np.random.default_rng(0).standard_normal((2, 5, 6, channels)).astype(dtype))

    @pytest.mark.parametrize("channels", [8, 24])
    @pytest.mark.parametrize("case", CASES_OF_GPUS)
    def test_eight_halves_at_a_time(self, case, channels, monkeypatch):
        monkeypatch.setattr(walk, "FEWEST_THREADS_OF_EIGHTS", 1)
        check(case, np.random.default_rng(1).standard_normal((2, 5, 7, channels)).astype(np.float16))

    @each_dtype
    @pytest.mark.parametrize("channels", [1, 6, 8])
    @pytest.mark.parametrize(
        "case", [*CASES_OF_GPUS[2:], Case("bilinear", True, (2.5, 2)), Case("bilinear", factors=(1, 3.5))]
    )
    def test_columns_of_pixels(self, case, channels, dtype, monkeypatch):
        monkeypatch.setattr(upsampling, "FEWEST_THREADS_OF_COLUMNS", 1)
        monkeypatch.setattr(walk, "FEWEST_THREADS_OF_EIGHTS", 1)
        monkeypatch.setattr(walk, "FEWEST_THREADS_BY_TURNS", 8)
        check(case, np.random.default_rng(1).standard_normal((2, 6, 5, channels)).astype(dtype))

    @each_dtype
    @pytest.mark.parametrize("channels", [1, 3, 4, 13])
    @pytest.mark.parametrize("case", CASES_OF_GPUS)
    def test_threads_take_turns_where_there_are_many_elements(self, case, channels, dtype, monkeypatch):
        monkeypatch.setattr(walk, "FEWEST_THREADS_BY_TURNS", 8)
        check(case, np.random.default_rng(1).standard_normal((2, 5, 7, channels)).astype(dtype))
