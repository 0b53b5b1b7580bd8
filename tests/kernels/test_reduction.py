"""The reductions and their gradients against the float64 references, and the laws that belong to them alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any
from unittest import mock

import gpu_forms
import numpy as np
import pytest
from by_turns import by_turns
from hypothesis import given
from hypothesis import strategies as st

import mpsgrad as mg
from mpsgrad import archive, reference
from mpsgrad.kernels import reduction_of_runs, strided_reductions, strides
from mpsgrad.kernels.pointwise import THREADGROUPS_OF_CLUSTER
from mpsgrad.kernels.reduction import WITH_GRADIENT, ReduceUnary
from mpsgrad.kernels.reduction_few_channels import FEW_CHANNELS
from mpsgrad.kernels.strided_reductions import reduction
from mpsgrad.shader import use_tunables
from mpsgrad.testing import (
    FencedImage,
    assert_within,
    batch_sizes,
    channel_formats,
    check_gradient,
    error_bound,
    values,
)
from mpsgrad.tunables import tunables

OVERS = {"Row": "row", "Column": "column", "FeatureChannels": "feature_channels"}
KINDS: dict[str, tuple[type[ReduceUnary], Any, Any]] = {
    f"{over} {operation}": (getattr(mg, f"Reduce{over}{operation}"), OVERS[over], operation.lower())
    for over in OVERS
    for operation in ("Min", "Max", "Mean", "Sum")
}
KINDS["spatial mean"] = (mg.ReductionSpatialMean, "spatial", "mean")
ARGUMENTS = {
    "argument min": (mg.ReduceFeatureChannelsArgumentMin, "feature_channels", "argument_min"),
    "argument max": (mg.ReduceFeatureChannelsArgumentMax, "feature_channels", "argument_max"),
}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
AXES = {"row": 2, "column": 1, "feature_channels": 3}


def test_every_reduction_is_tried():
    assert {kind[0] for kind in KINDS.values()} == set(WITH_GRADIENT)


def encode(kernel: Any, x: np.ndarray) -> tuple[mg.Image, np.ndarray, Any]:
    source = mg.Image.from_array(x)
    result = FencedImage.of(kernel.destination_image_descriptor([source]))
    state = kernel.result_state(source, destination_image=result.image)
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, source, destination_image=result.image, destination_state=state)
    return source, result.check(), state


def encode_gradient(g: np.ndarray, source: mg.Image, state: Any) -> np.ndarray:
    result = FencedImage.of(source.descriptor)
    with mg.CommandBuffer() as commands:
        mg.ReduceGradient().encode(commands, mg.Image.from_array(g), source, state, destination_gradient=result.image)
    return result.check()


@st.composite
def shapes(draw: Any) -> tuple[int, ...]:
    """Short and long axes; long ones are cut into chunks, or shared by the lanes of a simdgroup."""
    long = draw(st.sampled_from([1, 2, 3, None]))
    extents = [draw(st.integers(1, 5)), draw(st.integers(1, 5)), draw(st.sampled_from([1, 2, 3, 4, 7, 32, 33, 40]))]
    if long is not None:
        extents[long - 1] = draw(st.sampled_from([31, 64, 65, 129, 300]))
    return (draw(batch_sizes()), *extents)


@contextmanager
def few_terms_in_chunks(are_cut: bool) -> Iterator[None]:
    """Has few terms cut into chunks as many are, if they are to be."""
    fewest = 1 if are_cut else strided_reductions.FEWEST_TERMS_OF_CHUNKS
    with mock.patch.object(strided_reductions, "FEWEST_TERMS_OF_CHUNKS", fewest):
        reduction.cache_clear()
        yield
    reduction.cache_clear()


def check_against_the_reference(kind: Any, data: Any) -> None:
    with few_terms_in_chunks(data.draw(st.booleans())):
        check_drawn_images(kind, data)


def check_drawn_images(kind: Any, data: Any) -> None:
    cls, over, operation = kind
    shape, dtype = data.draw(shapes()), data.draw(channel_formats()).dtype
    x = data.draw(values(shape, dtype, ties=data.draw(st.booleans())))
    kernel = cls()
    weight = 1.0
    if cls is mg.ReduceFeatureChannelsSum:
        weight = kernel.weight = 1.5
    source, y, state = encode(kernel, x)
    expected = reference.reduction(over, operation, x, weight=weight)
    if operation in ("min", "max"):
        np.testing.assert_array_equal(y, expected)
    else:
        sizes = reference.reduction(over, operation, np.abs(x), weight=weight)
        assert_within(y, expected, error_bound(dtype, x.size // y.size + 2, sizes, expected))
    g = data.draw(values(y.shape, dtype))
    dx = encode_gradient(g, source, state)
    expected = reference.reduction_gradient(over, operation, g, x, weight=weight)
    assert_within(dx, expected, error_bound(dtype, 2, expected, expected), name="gradient")


@each_kind
@given(data=st.data())
def test_forward_and_gradient_match_the_reference(kind, data):
    check_against_the_reference(kind, data)


@pytest.mark.parametrize("shape", [(1, 28, 28, 64), (1, 100, 100, 1), (2, 64, 64, 5)])
def test_few_terms_are_added_up_in_one_pass_on_cpus(shape, monkeypatch):
    monkeypatch.setattr(mg.default_device(), "compute_units", max(2, mg.default_device().compute_units))
    x = np.random.default_rng(3).integers(-9, 9, shape).astype(np.float32)
    for are_cut in (False, True):
        with few_terms_in_chunks(are_cut):
            commands = mg.CommandBuffer()
            y = mg.ReductionSpatialMean().encode(commands, mg.Image.from_array(x))
            if mg.default_device().family == "cpu":
                assert len(commands._dispatches) == (2 if are_cut else 1)
            commands.commit()
            np.testing.assert_allclose(np.asarray(y), x.mean((1, 2), np.float64)[:, None, None], rtol=1e-6)


@pytest.mark.parametrize("kind", ARGUMENTS.values(), ids=ARGUMENTS)
@given(data=st.data())
def test_argument_forms_match_the_reference(kind, data):
    cls, over, operation = kind
    x = data.draw(values(data.draw(shapes()), data.draw(channel_formats()).dtype, ties=data.draw(st.booleans())))
    with mg.CommandBuffer() as commands:
        y, state = cls().encode(commands, mg.Image.from_array(x), return_state=True)
    assert state is None
    np.testing.assert_array_equal(np.asarray(y), reference.reduction(over, operation, x))


def test_halves_hold_the_numbers_of_2049_channels():
    x = np.zeros((1, 1, 2, 2052), np.float16)
    x[..., 2048] = 1
    commands = mg.CommandBuffer()
    for kind in (mg.ReduceFeatureChannelsArgumentMin, mg.ReduceFeatureChannelsArgumentMax):
        kernel = kind()
        words = f"^{kind.__name__}: 2052 feature channels .* FLOAT16, .* up to 2048 "
        with pytest.raises(mg.GeometryError, match=words):
            kernel.encode(commands, mg.Image.from_array(x))
    assert not commands._dispatches
    results = [kernel.encode(commands, mg.Image.from_array(x.astype(np.float32)))]
    kernel.source_feature_channel_max_count = 2049
    results.append(kernel.encode(commands, mg.Image.from_array(x)))
    commands.commit()
    assert all((np.asarray(result) == 2048).all() for result in results)


@pytest.mark.parametrize(
    ("kernel", "shape", "corner"),
    [
        (mg.ReduceRowMax, (1, 2, 9, 3), (1, 2, 4, 3)),
        (mg.ReduceRowMax, (1, 9, 4, 3), (1, 5, 4, 3)),
        (mg.ReduceColumnMax, (1, 9, 2, 3), (1, 4, 2, 3)),
        (mg.ReduceColumnMax, (1, 4, 9, 3), (1, 4, 5, 3)),
    ],
)
def test_winners_outside_of_what_is_written_keep_their_gradients(kernel, shape, corner):
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    destination = mg.Image.from_array(np.full(corner, np.nan, np.float32))
    with mg.CommandBuffer() as commands:
        y, state = kernel().encode(commands, mg.Image.from_array(x), return_state=True)
        whole = mg.ReduceGradient().encode(commands, y, mg.Image.from_array(x), state)
        mg.ReduceGradient().encode(commands, y, mg.Image.from_array(x), state, destination_gradient=destination)
    np.testing.assert_array_equal(np.asarray(destination), np.asarray(whole)[:, : corner[1], : corner[2]])
    assert np.asarray(whole).max() == x[..., -1].max()


@each_kind
@given(data=st.data())
def test_clip_rectangles_and_channel_ranges(kind, data):
    """Only a part of the source is reduced, into a part of a larger image; the rest has no gradient."""
    cls, over, operation = kind
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    x = rng.standard_normal((3, 6, 7, 16)).astype(np.float32)
    top, left = data.draw(st.integers(0, 5)), data.draw(st.integers(0, 6))
    height, width = data.draw(st.integers(1, 6 - top)), data.draw(st.integers(1, 7 - left))
    first, channels = data.draw(st.sampled_from([0, 4])), data.draw(st.integers(1, 9))
    kernel = cls()
    kernel.clip_rect_source = mg.Region(mg.Origin(left, top, 1), mg.Size(width, height, 2))
    kernel.source_feature_channel_offset, kernel.source_feature_channel_max_count = first, channels
    kernel.destination_feature_channel_offset = 4
    part = x[1:, top : top + height, left : left + width, first : first + channels]
    exact = reference.reduction(over, operation, part)
    _, high, wide, count = exact.shape
    kernel.clip_rect = mg.Region(mg.Origin(1, 2, 0), mg.Size(wide, high, 2))
    before = rng.standard_normal((2, high + 3, wide + 2, 4 + count + 1)).astype(np.float32)
    source, result = mg.Image.from_array(x), mg.Image.from_array(before)
    state = kernel.result_state(source, destination_image=result)
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, source, destination_image=result, destination_state=state)
    where = np.index_exp[:, 2 : 2 + high, 1 : 1 + wide, 4 : 4 + count]
    y = np.array(result)
    assert_within(y[where], exact, error_bound(np.float32, 64, np.abs(part).max() * 16, exact))
    y[where] = before[where]
    np.testing.assert_array_equal(y, before)

    g = rng.standard_normal(before.shape).astype(np.float32)
    corner = mg.Image.from_array(np.zeros((3, data.draw(st.integers(1, 6)), data.draw(st.integers(1, 7)), 16), "f4"))
    with mg.CommandBuffer() as commands:
        dx = mg.ReduceGradient().encode(commands, mg.Image.from_array(g), source, state)
        mg.ReduceGradient().encode(commands, mg.Image.from_array(g), source, state, destination_gradient=corner)
    np.testing.assert_array_equal(np.asarray(corner), np.asarray(dx)[:, : corner.height, : corner.width])
    expected = np.zeros(x.shape)
    expected[1:, top : top + height, left : left + width, first : first + channels] = reference.reduction_gradient(
        over, operation, g[where], part
    )
    assert_within(np.asarray(dx), expected, error_bound(np.float32, 2, expected, expected), name="gradient")


@each_kind
def test_every_run_and_every_form_of_encode_gives_the_same_bits(kind):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((3, 70, 66, 37)).astype(np.float32)
    source, y, state = encode(kind[0](), x)
    g = rng.standard_normal(y.shape).astype(np.float32)
    dx = encode_gradient(g, source, state)
    kernel, gradient = kind[0](), mg.ReduceGradient()
    for batch in (lambda array: [mg.Image.from_array(one) for one in array], mg.ImageBatch.from_array):
        for _ in range(2):
            with mg.CommandBuffer() as commands:
                results, states = kernel.encode_batch(commands, batch(x), return_state=True)
                gradients = gradient.encode_batch(commands, batch(g), batch(x), states)
            np.testing.assert_allclose(np.asarray(results), y, rtol=1e-4, atol=1e-4)
            np.testing.assert_array_equal(np.asarray(gradients), dx)
    for _ in range(5):
        np.testing.assert_array_equal(encode(kernel, x)[1], y)


def test_the_gradient_of_the_spatial_mean_has_its_own_class():
    x = np.random.default_rng(2).standard_normal((2, 3, 4, 5)).astype(np.float32)
    _, _, state = encode(mg.ReductionSpatialMean(), x)
    g = np.arange(10, dtype=np.float32).reshape(2, 1, 1, 5)
    with mg.CommandBuffer() as commands:
        dx = mg.ReductionSpatialMeanGradient().encode(
            commands, mg.Image.from_array(g), mg.Image.from_array(x), state
        )
    np.testing.assert_allclose(np.asarray(dx), np.broadcast_to(g / 12, x.shape), rtol=1e-6)


def test_a_region_of_one_image_is_that_of_each_image_of_a_batch():
    """Metal's two-dimensional regions have a depth of 1."""
    x = np.random.default_rng(4).standard_normal((3, 4, 5, 6)).astype(np.float32)
    kernel = mg.ReduceRowSum()
    kernel.clip_rect_source = mg.Region(mg.Origin(1, 2, 0), mg.Size(3, 2, 1))
    expected = np.zeros_like(x)
    expected[:, 2:, 1:4] = 1
    for batch in ([mg.Image.from_array(one) for one in x], mg.ImageBatch.from_array(x)):
        with mg.CommandBuffer() as commands:
            results, states = kernel.encode_batch(commands, batch, return_state=True)
            incoming = [mg.Image.from_array(np.ones((2, 1, 6), np.float32)) for _ in x]
            gradients = mg.ReduceGradient().encode_batch(commands, incoming, batch, states)
        exact = reference.reduction("row", "sum", x[:, 2:, 1:4])
        np.testing.assert_allclose(np.asarray(results), exact, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(np.asarray(gradients), expected)


def test_a_kernel_from_an_archive_gives_the_same_bits():
    x = np.random.default_rng(3).standard_normal((2, 3, 4, 6)).astype(np.float32)
    kernel = mg.ReduceFeatureChannelsSum(label="y")
    kernel.weight, kernel.clip_rect_source = 2.5, mg.Region(mg.Origin(1, 0, 0), mg.Size(2, 3, 2))
    restored = archive.from_bytes(archive.to_bytes(kernel))
    np.testing.assert_array_equal(encode(restored, x)[1], encode(kernel, x)[1])


@pytest.mark.parametrize("over", ["row", "column", "feature_channels", "spatial"])
def test_the_gradient_checker_agrees(over):
    check_gradient(
        lambda x: mg.functional.reduction(x, over, "mean"),
        lambda g, x: mg.functional.reduction_gradient(g, x, over, "mean"),
        values((2, 3, 4, 5), np.float32),
        max_examples=3,
    )


# bad input


def _image(*shape: int) -> mg.Image:
    return mg.Image.from_array(np.ones(shape, np.float32))


def _forward(cls: type = mg.ReduceRowSum, into: Any = None, **properties: Any) -> None:
    kernel = cls()
    for name, value in properties.items():
        setattr(kernel, name, value)
    destination = None if into is None else _image(*into)
    kernel.encode(mg.CommandBuffer(), _image(1, 2, 3, 4), destination_image=destination)


def _gradient(forward: type, gradient: type = mg.ReduceGradient, g: Any = None, x: Any = (1, 2, 3, 4)) -> None:
    commands = mg.CommandBuffer()
    y, state = forward().encode(commands, _image(1, 2, 3, 4), return_state=True)
    gradient().encode(commands, y if g is None else _image(*g), _image(*x), state)


def region(*numbers: int) -> mg.Region:
    return mg.Region(mg.Origin(*numbers[:3]), mg.Size(*numbers[3:]))


BAD_INPUT = {
    "a part outside the source": (
        lambda: _forward(clip_rect_source=region(3, 0, 0, 1, 1, 1)), mg.GeometryError,
        "ReduceRowSum: clip_rect_source begins at (3, 0, 0) with size (1, 1, 1) but the source is 1x2x3x4"),
    "an empty part": (
        lambda: _forward(mg.ReduceColumnMax, clip_rect_source=region(0, 0, 0, 3, 0, 1)), mg.GeometryError,
        "ReduceColumnMax: clip_rect_source begins at (0, 0, 0) with size (3, 0, 1)"),
    "images that are not there": (
        lambda: _forward(clip_rect_source=region(0, 0, 1, 3, 2, 1)), mg.GeometryError, "nothing is left to reduce"),
    "a part that is none": (
        lambda: _forward(clip_rect_source=5), mg.FormatError, "ReduceRowSum: clip_rect_source is 5; it has to be a"),
    "a destination that is wider": (
        lambda: _forward(into=(1, 2, 2, 4)), mg.GeometryError,
        "ReduceRowSum: the destination has 2 x 2 pixels in clip_rect but the result 1 x 2"),
    "a destination that is higher": (
        lambda: _forward(mg.ReductionSpatialMean, into=(1, 2, 1, 4)), mg.GeometryError,
        "ReductionSpatialMean: the destination has 1 x 2 pixels in clip_rect but the result 1 x 1"),
    "a destination with fewer channels": (
        lambda: _forward(into=(1, 2, 1, 3)), mg.GeometryError, "the destination has 3 feature channels but 4 are wr"),
    "a weight that is no number": (
        lambda: _forward(mg.ReduceFeatureChannelsSum, weight="x"), mg.FormatError, "weight is 'x'; it has to be a num"),
    "a weight that is not finite": (
        lambda: _forward(mg.ReduceFeatureChannelsSum, weight=float("nan")), mg.GeometryError, "weight is nan; it h"),
    "a channel offset beyond the source": (
        lambda: _forward(source_feature_channel_offset=4), mg.GeometryError,
        "ReduceRowSum: source_feature_channel_offset is 4 but that image has 4"),
    "a mirrored edge": (
        lambda: _forward(edge_mode=mg.EdgeMode.MIRROR), NotImplementedError, "ReduceRowSum: edge_mode is MIRROR"),
    "the state of another kernel": (
        lambda: _gradient(mg.SoftMax), mg.StateError, "ReduceGradient: gradient_state was made by SoftMax; it has to"),
    "the state of another reduction": (
        lambda: _gradient(mg.ReduceRowMean, mg.ReductionSpatialMeanGradient), mg.StateError,
        "ReductionSpatialMeanGradient: gradient_state was made by ReduceRowMean; it has to be made by ReductionSpati"),
    "a gradient of the source's size": (
        lambda: _gradient(mg.ReduceRowMax, g=(1, 2, 3, 4)), mg.GeometryError,
        "ReduceGradient: source_gradient is 1x2x3x4 but ReduceRowMax of a 1x2x3x4 source gives 1x2x1x4"),
    "another source": (
        lambda: _gradient(mg.ReduceRowMax, x=(1, 2, 4, 4)), mg.GeometryError,
        "ReduceGradient: source_image is 1x2x4x4 but gradient_state was made for 1x2x3x4"),
}  # fmt: skip


@pytest.mark.parametrize(("build", "error", "words"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_named(build, error, words):
    with pytest.raises(error) as raised:
        build()
    assert words in str(raised.value)


@pytest.mark.usefixtures("shaders_of_gpus")
class TestTheShadersOfGPUs:
    @each_kind
    @given(data=st.data())
    def test_forward_and_gradient_match_the_reference(self, kind, data):
        check_against_the_reference(kind, data)

    @pytest.mark.parametrize("kind", ARGUMENTS.values(), ids=ARGUMENTS)
    @pytest.mark.parametrize("channels", [33, 69, 70, 72, 1031, 1032])
    def test_argument_forms(self, kind, channels):
        for dtype in gpu_forms.DTYPES:
            x = np.random.default_rng(4).integers(-2, 3, (2, 3, 4, channels)).astype(dtype)
            with mg.CommandBuffer() as commands:
                y = kind[0]().encode(commands, mg.Image.from_array(x))
            np.testing.assert_array_equal(np.asarray(y), reference.reduction(kind[1], kind[2], x))

    @each_kind
    @pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
    @pytest.mark.parametrize(
        "shape",
        [
            (2, 90, 61, 8),
            (1, 3, 300, 40),
            (1, 3, 5, 1032),
            (1, 9, 5, 34),
            (1, 9, 15, 37),
            (2, 3, 5, 999),
            (1, 70, 61, 13),
            (2, 50, 61, 13),
            (1, 70, 61, 14),
            (60, 7, 9, 64),
            (1, 2, 3, 2100),
            (1, 2, 4, 2100),
        ],
    )
    def test_vectors_and_tiles_of_all_widths(self, kind, shape, dtype):
        """Few rows and many, of one threadgroup and of several; results next to each other and not."""
        cls, over, operation = kind
        x = np.random.default_rng(6).standard_normal(shape).astype(dtype)
        _, y, _ = encode(cls(), x)
        expected = reference.reduction(over, operation, x)
        sizes = reference.reduction(over, operation, np.abs(x))
        exact = operation in ("min", "max")
        assert_within(y, expected, 0 if exact else error_bound(dtype, x.size // y.size + 2, sizes, expected))

    @pytest.mark.parametrize("name", ["spatial mean", "Row Sum", "Row Max", "Column Min"])
    @pytest.mark.parametrize("channels", [1, 3, 50, 84])
    def test_rows_that_are_joined_to_whole_vectors(self, name, channels, monkeypatch):
        monkeypatch.setattr(strided_reductions, "FEWEST_ELEMENTS_OF_FOLDS", 1)
        monkeypatch.setattr(strided_reductions, "FEWEST_JOINED_ROWS", 16)
        reduction.cache_clear()
        cls, over, operation = KINDS[name]
        for dtype in gpu_forms.DTYPES:
            x = np.random.default_rng(6).integers(-9, 9, (2, 6, 32, channels)).astype(dtype)
            _, y, _ = encode(cls(), x)
            np.testing.assert_allclose(y, reference.reduction(over, operation, x), rtol=2 * np.finfo(dtype).eps)
        layout = (0, channels, 32 * channels, 192 * channels, 32, 6, channels, 2)
        views, kept = (strides.View.of(layout), strides.View(0, (1, 0, 0, channels))), (True, False, False, True)
        work = reduction(("source", "destination"), views, (channels, 32, 6, 2), kept, "nvidia", 8, 132)
        assert work.first.walk == "along_in_tiles_of_vectors" and work.second is not None
        reduction.cache_clear()

    @pytest.mark.parametrize("name", ["spatial mean", "Row Sum", "Column Max"])
    @pytest.mark.parametrize("channels", [3, 8, 12, 300])
    def test_clusters_share_the_rows(self, name, channels, monkeypatch):
        """As one threadgroup, which they are where there are none."""
        monkeypatch.setattr(type(mg.default_device()), "has_clusters", True)
        monkeypatch.setattr(strided_reductions, "THREADGROUPS_OF_CLUSTER", 1)
        monkeypatch.setattr(strided_reductions, "FEW_ROWS_OF_A_LANE", 0)
        cls, over, operation = KINDS[name]
        for dtype in gpu_forms.DTYPES:
            reduction.cache_clear()
            x = np.random.default_rng(6).integers(-9, 9, (2, 6, 37, channels)).astype(dtype)
            with mg.CommandBuffer() as commands:
                y = cls().encode(commands, mg.Image.from_array(x))
                (function,) = [each.function.name for each in commands._dispatches]
            assert "_along_in_clusters" in function
            np.testing.assert_allclose(y, reference.reduction(over, operation, x), rtol=2 * np.finfo(dtype).eps)
        reduction.cache_clear()

    @pytest.mark.parametrize("channels", [4, 8, 12])
    @pytest.mark.parametrize("columns", [2, 9, 131])
    def test_simdgroups_read_short_rows_side_by_side(self, channels, columns, monkeypatch):
        monkeypatch.setattr(strided_reductions, "THREADS_WANTED", 1)
        monkeypatch.setattr(strided_reductions, "FEWEST_OF_RESULTS", 1)
        for dtype in gpu_forms.DTYPES:
            reduction.cache_clear()
            x = np.random.default_rng(6).integers(-9, 9, (3, 67, columns, channels)).astype(dtype)
            for cls, over, operation in (KINDS["Row Sum"], KINDS["Row Min"]):
                _, y, _ = encode(cls(), x)
                np.testing.assert_allclose(y, reference.reduction(over, operation, x), rtol=2 * np.finfo(dtype).eps)
        reduction.cache_clear()

    @pytest.mark.parametrize(("channels", "results"), [(8, 1), (24, 3), (32, 64)])
    def test_long_rows_of_few_vectors_have_threadgroups_of_one_image(self, channels, results):
        layout = (0, channels, 200 * channels, 20000 * channels, 200, 100, channels, 40)
        views, kept = (strides.View.of(layout), strides.View(0, (1, 0, 0, channels))), (True, False, False, True)
        work = reduction(("source", "destination"), views, (channels, 200, 100, 40), kept, "nvidia", 8, 132)
        *_, across, _, _, _, _, _ = work.first.parameters["reduced"]
        assert across == results

    @pytest.mark.parametrize("cls", [mg.ReduceFeatureChannelsMin, mg.ReduceFeatureChannelsMax])
    @pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
    @pytest.mark.parametrize("channels", [1, 3, 5, 8, 9, 33, 256, 257, 600, 1024])
    def test_gradients_of_pixels_that_follow_each_other(self, cls, dtype, channels, monkeypatch):
        """By one kernel, which finds the first of equal winners in any lane of a pixel."""
        family, functions = reduction_of_runs.FAMILY, []
        function = family.function
        monkeypatch.setattr(family, "function", lambda *names: functions.append(names[1]) or function(*names))
        operation = cls.__name__[-3:].lower()
        for pixels, threadgroups in ((1, 1), (5, 1), (129, 1), (2051, 1), (2051, 99)):
            monkeypatch.setattr(reduction_of_runs, "THREADGROUPS_PER_UNIT", threadgroups)
            random = np.random.default_rng(pixels)
            x = random.integers(-2, 3, (1, 1, pixels, channels)).astype(dtype)
            g = random.standard_normal((1, 1, pixels, 1)).astype(dtype)
            source, incoming = mg.Image.from_array(x), mg.Image.from_array(g)
            state = cls().result_state(source, destination_image=incoming)
            with mg.CommandBuffer() as commands:
                dx = mg.ReduceGradient().encode(commands, incoming, source, state)
            expected = reference.reduction_gradient("feature_channels", operation, g, x)
            np.testing.assert_array_equal(np.asarray(dx), expected)
        assert len(functions) == 5

    @pytest.mark.parametrize("name", ["Min", "Max", "Mean", "Sum", "ArgumentMin", "ArgumentMax"])
    @pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
    @pytest.mark.parametrize("channels", [1, 2, 3, 4, 9, 16, 30, 33, 127, 301, 601])
    def test_reductions_of_pixels_that_follow_each_other(self, name, dtype, channels, monkeypatch):
        monkeypatch.setattr(reduction_of_runs, "MOST_CHANNELS", 1024)
        monkeypatch.setattr(reduction_of_runs, "FEWEST_FOR_ARGUMENTS", 1)
        cls = getattr(mg, f"ReduceFeatureChannels{name}")
        function = f"{cls.operation}_of_runs".replace("mean", "sum")
        for pixels in (1, 5, 129, 2051):
            x = np.random.default_rng(pixels).integers(-2, 3, (1, 1, pixels, channels)).astype(dtype)
            commands = mg.CommandBuffer()
            y = cls().encode(commands, mg.Image.from_array(x))
            assert [each.function.name.rpartition("_")[0] for each in commands._dispatches] == [function]
            commands.commit()
            expected = reference.reduction("feature_channels", cls.operation, x)
            np.testing.assert_allclose(np.asarray(y), expected, rtol=2 * np.finfo(dtype).eps, atol=1e-6)

    @pytest.mark.parametrize("channels", [35, 50, 131, 266])
    def test_channels_that_no_vector_fits(self, channels, monkeypatch):
        """Teams of lanes share those of a pixel in pairs or one by one; threads search for indices by themselves."""
        monkeypatch.setattr(strided_reductions, "FEWEST_RESULTS_ALONG", 1)
        monkeypatch.setattr(strided_reductions, "FEWEST_RESULTS_OF_TEAMS", 1)
        monkeypatch.setattr(reduction_of_runs, "COUNTS_OF_VALUES", ())
        reduction.cache_clear()
        is_short = channels <= strided_reductions.MOST_TERMS_ALONG
        walks = {True: "_along_" if is_short else "_across", False: "_pairs" if channels % 2 == 0 else "_elements"}
        for cls, over, operation in OF_CHANNELS:
            for dtype in gpu_forms.DTYPES:
                x = np.random.default_rng(5).integers(-9, 10, (2, 5, 7, channels)).astype(dtype)
                commands = mg.CommandBuffer()
                y = cls().encode(commands, mg.Image.from_array(x))
                walk = walks[operation.startswith("argument")]
                assert all(walk in dispatch.function.name for dispatch in commands._dispatches)
                commands.commit()
                expected = reference.reduction(over, operation, x)
                np.testing.assert_allclose(np.asarray(y), expected, rtol=2 * np.finfo(dtype).eps)
        reduction.cache_clear()

    @pytest.mark.parametrize("name", ["spatial mean", "Row Sum", "FeatureChannels Max"])
    @pytest.mark.parametrize("shape", [(2, 5, 6, 3), (3, 4, 7, 50), (1, 5, 7, 3)])
    def test_gradients_of_channels_that_no_vector_fits(self, name, shape, monkeypatch):
        """Four elements at a time, across the ends of pixels, rows and images; the last has no whole four."""
        monkeypatch.setattr(strides, "FEWEST_ELEMENTS_OF_FLAT", 1)
        strides.elementwise.cache_clear()
        cls, over, operation = KINDS[name]
        for dtype in gpu_forms.DTYPES:
            random = np.random.default_rng(7)
            source, y, state = encode(cls(), random.integers(-9, 9, shape).astype(dtype))
            g = random.integers(-9, 9, y.shape).astype(dtype)
            expected = reference.reduction_gradient(over, operation, g, np.asarray(source))
            result = encode_gradient(g, source, state)
            np.testing.assert_allclose(result, expected, rtol=2 * np.finfo(dtype).eps)
        strides.elementwise.cache_clear()


def reduction_of_gpu(
    shape: tuple[int, ...], axes: str, vector: int, cluster: int = 0, source: str = "source"
) -> strided_reductions.Reduction:
    """The work that adds up images of ``shape`` along ``axes``."""
    images, height, width, channels = shape
    layout = (0, channels, width * channels, height * width * channels, width, height, channels, images)
    kept, extents = (True, "x" not in axes, "y" not in axes, True), (channels, width, height, images)
    steps = np.cumprod([1, *(extent if keeps else 1 for extent, keeps in zip(extents[:3], kept, strict=False))])
    views = strides.View.of(layout), strides.View(0, tuple(map(int, steps)))
    return reduction((source, "destination"), views, extents, kept, "nvidia", vector, 132, cluster=cluster)


@pytest.mark.parametrize("vector", [4, 8], ids=["float", "half"])
def test_threadgroups_of_gpus_own_all_results_of_images_of_any_size(vector):
    """Without a device: what large images show, which take long."""
    found = set()
    for width, height, channels, axis in product([1, 7, 512], [1, 9, 512], [1, 3, 50, 60, 64, 257], range(3)):
        layout = (0, channels, width * channels, height * width * channels, width, height, channels, 2)
        extents = (channels, width, height, 2)
        kept = tuple(each != axis for each in range(4))
        steps = np.cumprod([1, *(extent if keeps else 1 for extent, keeps in zip(extents[:3], kept, strict=False))])
        views = strides.View.of(layout), strides.View(0, tuple(map(int, steps)))
        work = reduction(("source", "destination"), views, extents, kept, "nvidia", vector, 132).first
        if work.walk.startswith("along_in_tiles"):
            across, row_lanes, tiles = work.parameters["reduced"][6:9]
            at_once = {"vectors": vector, "fours": 4, "pairs": 2}.get(work.walk.rpartition("_")[2], 1)
            assert 1 <= row_lanes and across * row_lanes <= strides.THREADS
            assert across * tiles * at_once >= np.prod(extents) // extents[axis]
            found.add(at_once)
    assert found == {1, 2, 4, vector}


@pytest.mark.parametrize(("channels", "vector", "tiles"), [(108, 4, 14), (20, 8, 2), (3, 4, 1), (64, 8, 4)])
def test_clusters_of_gpus_share_all_rows(channels, vector, tiles):
    """Without a device: they have all results, of which there are few in the memory of the first threadgroup."""
    layout = (0, channels, 61 * channels, 90 * 61 * channels, 61, 90, channels, 1)
    views, kept = (strides.View.of(layout), strides.View(0, (1, 0, 0, channels))), (True, False, False, True)
    work = reduction(("source", "destination"), views, (channels, 61, 90, 1), kept, "nvidia", vector, 132, cluster=8)
    assert work.first.walk.startswith("along_in_clusters") and work.second is None
    inner, _, rows, _, _, chunks, across, row_lanes, counted, *_ = work.first.parameters["reduced"]
    at_once = next(count for count in (vector, 4, 1) if channels % count == 0)
    assert (counted, chunks, work.first.threads) == (tiles, 1, strides.THREADS * tiles * THREADGROUPS_OF_CLUSTER)
    assert across * row_lanes <= strides.THREADS and across * at_once <= strides.THREADS
    assert across * tiles * at_once >= channels and rows * THREADGROUPS_OF_CLUSTER >= inner == 61 * 90


@pytest.mark.parametrize(
    ("shape", "axes", "vector", "walk"),
    [
        ((1, 40, 28, 455), "xy", 8, "along_in_clusters"),
        ((1, 36, 27, 546), "xy", 4, "along_in_clusters"),
        ((19, 57, 55, 116), "xy", 8, "along_in_clusters_of_fours"),
        ((10, 120, 125, 4), "xy", 8, "along_in_clusters_of_fours"),
        ((9, 32, 37, 102), "xy", 4, "along_in_clusters"),
        # Too many threadgroups, tiles that are wide enough, and few rows.
        ((1, 164, 291, 11), "x", 4, "along_in_tiles"),
        ((46, 30, 32, 154), "xy", 8, "along_in_tiles_of_pairs"),
        ((42, 20, 12, 346), "xy", 8, "along_in_tiles_of_pairs"),
    ],
)
def test_clusters_of_gpus_share_few_rows_in_the_place_of_narrow_tiles(shape, axes, vector, walk):
    """Without a device."""
    work = reduction_of_gpu(shape, axes, vector, cluster=8)
    assert work.first.walk == walk and work.second is None


@pytest.mark.parametrize("shape", [(6, 263, 498, 4), (3, 194, 268, 4)], ids=["many rows", "few tiles"])
def test_rows_that_no_vector_fits_are_joined_where_clusters_take_longer(shape):
    """Without a device."""
    work = reduction_of_gpu(shape, "xy", 8, cluster=8)
    assert work.first.walk == "along_in_tiles_of_vectors" and work.second is not None


@pytest.mark.parametrize(
    ("shape", "walk"),
    [((1, 61, 90, 4), "clusters_of_vectors"), ((1, 40, 28, 455), "clusters"), ((9000, 15, 15, 4), "lines_of_vectors")],
)
def test_parts_that_other_kernels_left_are_read_in_tiles(shape, walk):
    """Without a device: kernels for these have neither clusters nor lines."""
    walks = [reduction_of_gpu(shape, "xy", 4, 8, source).first.walk for source in ("source", "parts")]
    assert walks[0] == f"along_in_{walk}" and walks[1].startswith("along_in_tiles")


@pytest.mark.parametrize(
    ("shape", "axes", "vector", "first", "second"),
    [
        ((4, 453, 385, 3), "y", 8, (16, 16), None),
        ((2, 34, 54, 283), "xy", 8, (2, 128), None),
        ((7, 57, 55, 3), "xy", 8, (1, 256), None),
        ((19, 132, 159, 25), "y", 8, (64, 4), None),
        ((44, 60, 159, 25), "y", 8, (256, 1), None),
        ((1, 110, 3851, 341), "xy", 8, (256, 1), (1, 256)),
    ],
)
def test_lanes_of_gpus_share_the_rows_of_single_elements(shape, axes, vector, first, second):
    """Without a device: threadgroups and lanes of the passes, as many as keep a GPU busy and read whole sectors."""
    work = reduction_of_gpu(shape, axes, vector)
    assert work.first.walk == "along_in_tiles" and work.first.parameters["reduced"][6:8] == first
    assert (work.second and work.second.parameters["reduced"][6:8]) == second


def test_gpus_take_reduced_axes_that_follow_each_other_as_one():
    """Without a device: lanes would divide by the rows of each, which takes longer than to read a single element."""
    views = strides.View(0, (1, 6, 6 * 5, 6 * 5 * 7)), strides.View(0, (1, 6, 6, 6))
    work = reduction(("source", "destination"), views, (6, 5, 7, 3), (True, False, False, True), "nvidia", 4, 132)
    assert work.first.parameters["reduced"][:2] == (5 * 7, 1)


@pytest.mark.parametrize(
    ("kept", "result", "run", "inner"),
    [
        ((False, False, False, True), (1, 1, 1, 1), 6 * 5 * 7, 1),
        ((False, False, True, True), (1, 1, 1, 7), 6 * 5, 1),
        ((True, False, False, True), (1, 6, 6, 6), 6, 5 * 7),
    ],
    ids=["image", "rows", "pixels"],
)
def test_cpus_take_reduced_axes_that_follow_each_other_as_one(kept, result, run, inner):
    """Without a device: wherever the result, whose extents are 1 along them, would have its next elements."""
    views = strides.View(0, (1, 6, 6 * 5, 6 * 5 * 7)), strides.View(0, result)
    work = reduction(("source", "destination"), views, (6, 5, 7, 3), kept, "cpu", 4, 2).first
    assert work.parameters["extents"][0] == run
    assert work.parameters["reduced"][:2] == (inner, 1)


OF_CHANNELS = [
    *(KINDS[f"FeatureChannels {operation}"] for operation in ("Min", "Max", "Sum")),
    *ARGUMENTS.values(),
]


@pytest.mark.parametrize("kind", OF_CHANNELS, ids=lambda kind: kind[2])
@pytest.mark.parametrize("channels", [8, 19, 32, 64, 301])
def test_channels_of_eight_pixels_at_once_and_of_those_left_over(kind, channels):
    """CPUs take eight pixels of a row together, or a long one alone; whole numbers are added up without rounding."""
    width = 3 * 16 * mg.default_device().compute_units + 5
    x = np.random.default_rng(7).integers(-300, 300, (2, 3, width, channels + 1)).astype(np.float32)
    kernel = kind[0]()
    kernel.source_feature_channel_max_count = channels
    for source in (x[..., :channels], x):
        with mg.CommandBuffer() as commands:
            y = kernel.encode(commands, mg.Image.from_array(np.ascontiguousarray(source)))
        np.testing.assert_array_equal(np.asarray(y), reference.reduction(kind[1], kind[2], x[..., :channels]))


@pytest.mark.parametrize(
    ("channels", "dtype"), by_turns((*FEW_CHANNELS, 8, 13, 19, 37, 301), (np.float32, np.float16), of=2)
)
def test_few_channels_of_eight_pixels_at_once_and_of_those_left_over(channels, dtype):
    """Whole numbers, of which many are equal: of the extremes the first wins."""
    random = np.random.default_rng(channels)
    x = random.integers(-3, 4, (2, 3, 37, channels)).astype(dtype)
    for cls, over, operation in OF_CHANNELS:
        source, y, state = encode(cls(), x)
        np.testing.assert_array_equal(y, reference.reduction(over, operation, x))
        if operation in ("min", "max", "sum"):
            g = random.integers(-9, 9, y.shape).astype(dtype)
            expected = reference.reduction_gradient(over, operation, g, x)
            np.testing.assert_array_equal(encode_gradient(g, source, state), expected)


def test_an_infinite_channel_is_not_multiplied_by_zero():
    """The last eight channels overlap those before, of which a sum takes none twice."""
    x = np.ones((1, 1, 9, 13), np.float32)
    x[..., 6] = np.inf
    for cls in (mg.ReduceFeatureChannelsSum, mg.ReduceFeatureChannelsMax):
        np.testing.assert_array_equal(encode(cls(), x)[1], np.full((1, 1, 9, 1), np.inf))


@pytest.mark.parametrize("width", [9, 131])
@pytest.mark.parametrize("channels", [3, 4, 19, 54, 127, 300])
@pytest.mark.parametrize("name", ["Row Sum", "Column Sum"])
def test_halves_that_are_spread_over_pixels(name, channels, width):
    """CPUs store those of several pixels at a time, and those of pixels that are left on their own, or copy them on."""
    x = np.zeros((2, 9, width, channels), np.float16)
    source, y, state = encode(KINDS[name][0](), x)
    g = np.random.default_rng(channels).integers(-99, 99, y.shape).astype(np.float16)
    np.testing.assert_array_equal(encode_gradient(g, source, state), np.broadcast_to(g, x.shape))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("shape", [(3, 20, 30, 21), (2, 5, 7, 1037), (1, 33, 31, 48), (2, 9, 11, 8)])
@pytest.mark.parametrize("name", ["Row Max", "Row Min", "Column Max", "Column Min"])
def test_winners_are_found_and_get_their_gradients_in_one_pass(name, shape, dtype):
    """Of threads of CPUs that share rows or columns; of equal elements the first wins."""
    cls, over, operation = KINDS[name]
    random = np.random.default_rng(shape[3])
    x = random.integers(-9, 10, shape).astype(dtype)
    source, y, state = encode(cls(), x)
    g = random.integers(1, 99, y.shape).astype(dtype)
    expected = reference.reduction_gradient(over, operation, g, x)
    np.testing.assert_array_equal(encode_gradient(g, source, state), expected)


@pytest.mark.parametrize("sign", [-1, 1])
def test_extremes_of_few_channels_do_not_take_zero_for_an_element(sign):
    x = sign * np.random.default_rng(9).integers(1, 300, (2, 5, 37, 3)).astype(np.float32)
    for name in ("Row Max", "Row Min"):
        cls, over, operation = KINDS[name]
        np.testing.assert_array_equal(encode(cls(), x)[1], reference.reduction(over, operation, x))


@pytest.mark.parametrize("name", ["spatial mean", "Row Max", "Column Min"])
@pytest.mark.parametrize("shape", [(2, 45, 40, 84), (2, 24, 24, 520), (1, 24, 24, 603)])
def test_columns_of_images_that_exceed_the_caches(name, shape):
    """CPUs read rows in the order of memory then; whole numbers are added up without rounding."""
    cls, over, operation = KINDS[name]
    device = mg.default_device()
    x = np.random.default_rng(8).integers(-300, 300, shape).astype(np.float32)
    before = tunables(device.tuning)
    use_tunables(device.tuning, before.with_number("cached_bytes", 1 << 20))
    try:
        _, y, _ = encode(cls(), x)
    finally:
        use_tunables(device.tuning, before)
    np.testing.assert_allclose(y, reference.reduction(over, operation, x), rtol=3e-7)


@pytest.mark.parametrize("name", ["Row Sum", "Row Max", "Column Min"])
@pytest.mark.parametrize("channels", [2, 3, 7, 8, 9, 19, 24, 37, 48, 64, 101])
def test_columns_that_do_not_fill_their_vectors(name, channels):
    cls, over, operation = KINDS[name]
    width = 21 if channels < 8 else 37 if channels == 8 else 7
    x = np.random.default_rng(channels).integers(-300, 300, (2, 5, width, channels)).astype(np.float32)
    np.testing.assert_array_equal(encode(cls(), x)[1], reference.reduction(over, operation, x))


def test_views_are_read_and_written_in_place():
    x = np.random.default_rng(5).standard_normal((2, 3, 40, 24)).astype(np.float32)
    source = mg.Image.from_array(x)
    for cls, over, operation in KINDS.values():
        part = source.sub_image(4, 8)
        kernel = cls()
        with mg.CommandBuffer() as commands:
            y = kernel.encode(commands, part)
        exact = reference.reduction(over, operation, x[..., 4:12])
        assert_within(np.asarray(y), exact, error_bound(np.float32, 128, np.abs(exact) + 40, exact))
