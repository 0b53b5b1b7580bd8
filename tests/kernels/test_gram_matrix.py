"""The Gram matrix and its gradient against the float64 references."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import gpu_forms
import numpy as np
import pytest
from fenced import encode, encode_gradient
from hypothesis import given
from hypothesis import strategies as st

import mpsgrad as mg
from mpsgrad import archive, reference
from mpsgrad.kernels import (
    convolution_tiles,
    gram_matrix_dispatch,
    gram_matrix_few_channels,
    gram_matrix_gradient_blocks,
    gram_matrix_tiles,
)
from mpsgrad.kernels.channel_padding import Padding
from mpsgrad.kernels.convolution_tile import tiling
from mpsgrad.testing import (
    assert_within,
    batch_sizes,
    channel_formats,
    check_gradient,
    error_bound,
    values,
)


def check_against_the_reference(data: Any) -> None:
    channels = data.draw(st.sampled_from([1, 2, 3, 5, 7, 8, 13, 32, 33, 40]))
    shape = (data.draw(batch_sizes()), data.draw(st.integers(1, 12)), data.draw(st.integers(1, 12)), channels)
    dtype = data.draw(channel_formats()).dtype
    x = data.draw(values(shape, dtype))
    check(x, data.draw(values((shape[0], 1, channels, channels), dtype)))


def check(x: np.ndarray, g: np.ndarray) -> None:
    shape, channels, dtype = x.shape, x.shape[3], x.dtype
    source, y, state = encode(mg.GramMatrixCalculation(0.5), x)
    expected = reference.gram_matrix(x, alpha=0.5)
    bound = error_bound(dtype, shape[1] * shape[2] + 2, reference.gram_matrix(np.abs(x), alpha=0.5), expected)
    assert_within(y, expected, bound)
    dx = encode_gradient(mg.GramMatrixCalculationGradient(), g, source, state)
    expected = reference.gram_matrix_gradient(g, x, alpha=0.5)
    magnitude = reference.gram_matrix_gradient(np.abs(g), np.abs(x), alpha=0.5)
    assert_within(dx, expected, error_bound(dtype, 2 * channels + 4, magnitude, expected), name="gradient")


def names_of_checked_kernels(shape: tuple[int, ...], dtype: Any) -> tuple[list[str], list[str]]:
    """Those that make the Gram matrix of such an image, and its gradient, after a look at their numbers."""
    rng = np.random.default_rng(shape[3])
    x, g = (rng.standard_normal(each).astype(dtype) for each in (shape, (shape[0], 1, shape[3], shape[3])))
    check(x, g)
    source = mg.Image.from_array(x)
    with mg.CommandBuffer() as commands:
        _, state = mg.GramMatrixCalculation().encode(commands, source, return_state=True)
        before = len(commands._dispatches)
        mg.GramMatrixCalculationGradient().encode(commands, mg.Image.from_array(g), source, state)
        names = [each.function.name for each in commands._dispatches]
        return names[:before], names[before:]


def use_tiles(patch: pytest.MonkeyPatch) -> None:
    """Has GPUs multiply in tiles however few products there are."""
    for name in ("FEWEST_PRODUCTS", "FEWEST_PRODUCTS_IN_PLACE"):
        patch.setattr(gram_matrix_dispatch, name, 1)
    use_blocks(patch, 1 << 30)


def use_blocks(patch: pytest.MonkeyPatch, fewest: int) -> None:
    """Has GPUs make gradients of so many channels or more in blocks, if these may have as many, without matrices."""
    blocks = gram_matrix_gradient_blocks
    patch.setattr(blocks, "SUITABLE_MATRICES", dict.fromkeys(blocks.SUITABLE_MATRICES, ()))
    for metal_type in blocks.SUITABLE:
        suitable = dict.fromkeys(blocks.KERNELS, range(fewest, blocks.MOST_CHANNELS + 1))
        patch.setitem(blocks.SUITABLE, metal_type, suitable)


@given(data=st.data())
def test_forward_and_gradient_match_the_reference(data):
    check_against_the_reference(data)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("channels", [2, 5, 7, 20, 37])
def test_many_pixels_are_added_up_in_parts(channels, dtype, monkeypatch):
    monkeypatch.setattr(gram_matrix_few_channels, "FEWEST_TERMS", 1 << 10)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 23, 25, channels)).astype(dtype)
    check(x, rng.standard_normal((2, 1, channels, channels)).astype(dtype))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("shape", [(16, 3, 4, 1), (16, 1, 1, 24), (8, 1, 1, 1), (9, 1, 7, 2)])
def test_many_images_of_few_pixels_or_channels_stay_apart(shape, dtype):
    """An axis of one element is none to the plan of a reduction, and that of the images comes in its place."""
    rng = np.random.default_rng(0)
    images, _, _, channels = shape
    check(rng.standard_normal(shape).astype(dtype), rng.standard_normal((images, 1, channels, channels)).astype(dtype))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_pixels_that_are_not_a_number_spoil_no_others(dtype):
    x = np.ones((1, 5, 9, 3), dtype)
    x[0, 2, 3] = np.nan
    source = mg.Image.from_array(x)
    with mg.CommandBuffer() as commands:
        _, state = mg.GramMatrixCalculation().encode(commands, source, return_state=True)
        g = mg.Image.from_array(np.ones((1, 1, 3, 3), dtype))
        dx = mg.GramMatrixCalculationGradient().encode(commands, g, source, state)
    np.testing.assert_array_equal(np.isnan(np.asarray(dx)), np.isnan(x))


@pytest.mark.usefixtures("shaders_of_gpus")
class TestTheShadersOfGPUs:
    @given(data=st.data())
    def test_forward_and_gradient_match_the_reference(self, data):
        with pytest.MonkeyPatch.context() as patch:
            if data.draw(st.booleans(), label="in tiles"):
                use_tiles(patch)
            check_against_the_reference(data)

    @pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
    @pytest.mark.parametrize("shape", [(8, 7, 5, 1), (12, 6, 8, 1), (2, 9, 7, 33), (2, 9, 7, 40), (2, 9, 13, 70)])
    def test_single_channels_and_tiles(self, shape, dtype, monkeypatch):
        use_tiles(monkeypatch)
        rng = np.random.default_rng(3)
        g = rng.standard_normal((shape[0], 1, shape[3], shape[3])).astype(dtype)
        check(rng.standard_normal(shape).astype(dtype), g)

    @given(data=st.data())
    def test_gradients_in_blocks_and_without_them(self, data):
        with pytest.MonkeyPatch.context() as patch:
            use_blocks(patch, 1 if data.draw(st.booleans(), label="in blocks") else 1 << 30)
            check_against_the_reference(data)

    @pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
    @pytest.mark.parametrize(
        "shape", [(2, 23, 25, 5), (2, 9, 11, 39), (1, 16, 33, 22), (2, 13, 20, 16), (1, 9, 10, 48), (3, 4, 6, 2)]
    )
    def test_gradients_in_blocks_of_each_width(self, shape, dtype, monkeypatch):
        use_blocks(monkeypatch, 1)
        ending = {16: "fours", 48: "fours", 22: "pairs", 2: "pairs"}.get(shape[3], "singles")
        assert names_of_checked_kernels(shape, dtype)[1] == [f"gram_matrix_gradient_in_blocks_of_{ending}"]

    @pytest.mark.parametrize(
        ("shape", "ending"),
        [((2, 13, 20, 16), "16_by_8"), ((1, 16, 17, 22), "32_by_2")]
        + [
            pytest.param(*case, marks=() if gpu_forms.HALVES else pytest.mark.nightly)
            for case in (((2, 23, 13, 9), "16_by_1"), ((3, 7, 7, 36), "48_by_4"), ((1, 11, 13, 63), "64_by_1"))
        ],
    )
    def test_gradients_of_halves_in_blocks_that_are_multiplied_as_matrices(self, shape, ending):
        assert names_of_checked_kernels(shape, np.float16)[1] == [f"gram_matrix_gradient_of_{ending}"]

    @pytest.mark.parametrize(
        ("metal_type", "channels", "stride", "ending"),
        [("half", 16, 16, "of_16_by_8"), ("half", 16, 18, "of_16_by_2"), ("half", 16, 17, "of_16_by_1")]
        + [("half", 8, 12, "in_blocks_of_fours"), ("half", 19, 19, "in_blocks_of_singles"), ("half", 38, 38, None)]
        + [("half", 49, 49, "of_64_by_1"), ("half", 65, 65, None), ("float", 32, 32, "in_blocks_of_fours")]
        + [("float", 14, 14, "in_blocks_of_pairs"), ("float", 31, 31, "in_blocks_of_singles")]
        + [("float", 47, 47, None), ("float", 4, 4, None)],
    )
    def test_gradients_are_made_in_the_blocks_that_suit_them(self, metal_type, channels, stride, ending):
        layout = (0, stride, 9 * stride, 90 * stride, 9, 10, channels, 2)
        matrices = (0, channels, channels**2, channels**2, channels, 1, channels, 2)
        plan = gram_matrix_gradient_blocks.plan(metal_type, matrices, layout, layout, 1.0)
        assert (plan and plan.kernel) == (ending and f"gram_matrix_gradient_{ending}")

    @pytest.mark.parametrize(
        ("metal_type", "channels", "are_few"),
        [("half", 6, True), ("half", 8, False), ("half", 10, True), ("half", 18, False), ("float", 8, True)],
    )
    def test_few_channels_of_halves_are_multiplied_in_tiles_where_four_are_copied(
        self, metal_type, channels, are_few
    ):
        layout = (0, channels, 90 * channels, 8100 * channels, 90, 90, channels, 2)
        commands = SimpleNamespace(device=SimpleNamespace(family="nvidia", tiling="nvidia-9.0"))
        part = gram_matrix_dispatch.ImagePart(None, layout)
        fewest = gram_matrix_dispatch.FEWEST_CHANNELS_IN_PLACE
        assert gram_matrix_dispatch._uses_tiles(commands, metal_type, part, fewest) != are_few

    @pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
    @pytest.mark.parametrize("channels", [37, 40])
    @pytest.mark.parametrize("side", range(4))
    def test_partial_sums_in_squares_of_each_size(self, side, channels, dtype, monkeypatch):
        use_tiles(monkeypatch)
        monkeypatch.setattr(gram_matrix_dispatch, "SQUARES", gram_matrix_dispatch.SQUARES[side:])
        monkeypatch.setattr(gram_matrix_dispatch, "ASSUMED_COMPUTE_UNITS", 1)
        monkeypatch.setattr(mg.default_device(), "compute_units", 0)
        rng = np.random.default_rng(5)
        x, g = (rng.standard_normal((2, *each, channels)).astype(dtype) for each in ((23, 25), (1, channels)))
        check(x, g)

    @pytest.mark.parametrize(
        ("kind", "metal_type", "tile"),
        [
            pytest.param(*key, marks=() if key[1] == "float" or gpu_forms.HALVES else pytest.mark.nightly)
            for key in sorted(gram_matrix_tiles.FAMILIES)
        ],
    )
    @pytest.mark.parametrize("shape", [(3, 5, 27, 200), (1, 23, 25, 132), (2, 33, 24, 70)])
    def test_each_tile(self, shape, kind, metal_type, tile, monkeypatch):
        use_tiles(monkeypatch)
        of_one = replace(tiling("cpu"), tiles={**tiling("cpu").tiles, (kind, metal_type): (tile,)})
        monkeypatch.setattr(gram_matrix_tiles, "tiling", lambda name: of_one)
        for plan in (gram_matrix_tiles.plan_products, gram_matrix_tiles.plan_gradient):
            plan.cache_clear()
        others = convolution_tiles.plan_products_with_matrices
        slow = lambda *arguments: replace(others(*arguments), time=math.inf)  # noqa: E731
        monkeypatch.setattr(convolution_tiles, "plan_products_with_matrices", slow)
        forward, backward = names_of_checked_kernels(shape, np.float16 if metal_type == "half" else np.float32)
        names, name = (backward, "gradient") if kind == "gram_gradient" else (forward, "products")
        assert any(each.startswith(f"gram_matrix_{name}_{tile.name}_by") for each in names)
        for plan in (gram_matrix_tiles.plan_products, gram_matrix_tiles.plan_gradient):
            plan.cache_clear()

    @pytest.mark.parametrize("time", [0.0, math.inf])
    def test_gradients_of_floats_are_made_in_the_faster_tiles(self, time, monkeypatch):
        use_tiles(monkeypatch)
        others = convolution_tiles.plan_products_with_matrices
        of_time = lambda *arguments: replace(others(*arguments), time=time)  # noqa: E731
        monkeypatch.setattr(convolution_tiles, "plan_products_with_matrices", of_time)
        monkeypatch.setattr(gram_matrix_tiles, "tiling", lambda name: tiling("cpu"))
        gram_matrix_tiles.plan_gradient.cache_clear()
        _, (packing, *products) = names_of_checked_kernels((2, 9, 13, 70), np.float32)
        gram_matrix_tiles.plan_gradient.cache_clear()
        assert packing == "pack_terms" and products[0].startswith("gram_matrix_gradient") == (time > 0.0)

    @gpu_forms.of_halves
    @pytest.mark.parametrize("shape", [(3, 5, 27, 33), (1, 23, 25, 131), (4, 9, 7, 25)])
    def test_odd_channels_are_copied_to_whole_vectors(self, shape, monkeypatch):
        use_tiles(monkeypatch)
        monkeypatch.setattr(Padding, "time", lambda *_: -1e9)
        tiles = tuple(tile for *key, tile in sorted(gram_matrix_tiles.FAMILIES) if key == ["gram", "half"])
        of_gram = replace(tiling("cpu"), tiles={**tiling("cpu").tiles, ("gram", "half"): tiles})
        monkeypatch.setattr(gram_matrix_tiles, "tiling", lambda name: of_gram)
        for plan in (gram_matrix_tiles.plan_products, convolution_tiles.plan_products_with_matrices):
            plan.cache_clear()
        rng = np.random.default_rng(6)
        x, g = (rng.standard_normal(each).astype(np.float16) for each in (shape, (shape[0], 1, shape[3], shape[3])))
        check(x, g)
        source = mg.Image.from_array(x)
        with mg.CommandBuffer() as commands:
            y, state = mg.GramMatrixCalculation().encode(commands, source, return_state=True)
            mg.GramMatrixCalculationGradient().encode(commands, mg.Image.from_array(g), source, state)
            names = [each.function.name for each in commands._dispatches]
        assert [name.startswith("pad_channels") for name in names].count(True) == 2
        for plan in (gram_matrix_tiles.plan_products, convolution_tiles.plan_products_with_matrices):
            plan.cache_clear()

    @pytest.mark.parametrize("shape", [(3, 5, 27, 33), (1, 23, 25, 70)])
    def test_single_floats_are_copied_to_whole_vectors_where_gram_matrices_have_no_tiles(self, shape, monkeypatch):
        use_tiles(monkeypatch)
        without = replace(tiling("cpu"), tiles={})
        monkeypatch.setattr(gram_matrix_tiles, "tiling", lambda name: without)
        for plan in (gram_matrix_tiles.plan_products, gram_matrix_tiles.plan_gradient):
            plan.cache_clear()
        monkeypatch.setattr(Padding, "time", lambda *_: 0.0)
        x = np.random.default_rng(6).standard_normal(shape).astype(np.float32)
        check(x, np.ones((shape[0], 1, shape[3], shape[3]), np.float32))
        with mg.CommandBuffer() as commands:
            mg.GramMatrixCalculation().encode(commands, mg.Image.from_array(x))
            *copies, products, _ = (each.function.name for each in commands._dispatches)
        assert copies == ["pad_channels_by_1"] * (shape[3] % 2) and products[-4:] == ("_4_4" if copies else "_2_2")
        for plan in (gram_matrix_tiles.plan_products, gram_matrix_tiles.plan_gradient):
            plan.cache_clear()


def test_a_view_of_channels_and_an_archive():
    x = np.random.default_rng(1).standard_normal((2, 3, 4, 16)).astype(np.float32)
    kernel = archive.from_bytes(archive.to_bytes(mg.GramMatrixCalculation(2.0)))
    with mg.CommandBuffer() as commands:
        y = kernel.encode(commands, mg.Image.from_array(x).sub_image(4, 8))
    exact = reference.gram_matrix(x[..., 4:12], alpha=2.0)
    assert_within(np.asarray(y), exact, error_bound(np.float32, 14, np.abs(exact) + 40, exact))


def test_every_run_gives_the_same_bits():
    x = np.random.default_rng(2).standard_normal((2, 40, 40, 37)).astype(np.float32)
    _, y, _ = encode(mg.GramMatrixCalculation(), x)
    for _ in range(5):
        np.testing.assert_array_equal(encode(mg.GramMatrixCalculation(), x)[1], y)


def test_the_gradient_checker_agrees():
    check_gradient(
        mg.functional.gram_matrix, mg.functional.gram_matrix_gradient, values((2, 3, 4, 5), np.float32), max_examples=3
    )


X = (1, 2, 3, 4)


def _image(*shape: int) -> mg.Image:
    return mg.Image.from_array(np.ones(shape, np.float32))


def _forward(into: Any = None, shape: Any = X, **properties: Any) -> None:
    kernel = mg.GramMatrixCalculation()
    for name, value in properties.items():
        setattr(kernel, name, value)
    destination = None if into is None else _image(*into)
    kernel.encode(mg.CommandBuffer(), _image(*shape), destination_image=destination)


def _gradient(
    g: Any = (1, 1, 4, 4), x: Any = X, forward: Any = mg.GramMatrixCalculation, into: Any = None
) -> None:
    commands = mg.CommandBuffer()
    _, state = forward().encode(commands, _image(*X), return_state=True)
    destination = None if into is None else _image(*into)
    mg.GramMatrixCalculationGradient().encode(
        commands, _image(*g), _image(*x), state, destination_gradient=destination
    )


BAD_INPUT = {
    "no number": (lambda: mg.GramMatrixCalculation("1"), mg.FormatError, "alpha is '1'; it has to be a number"),
    "not finite": (lambda: mg.GramMatrixCalculation(np.nan), mg.GeometryError, "alpha is nan; it has to be finite"),
    "set to infinity": (lambda: _forward(alpha=np.inf), mg.GeometryError, "alpha is inf; it has to be finite"),
    "a wider destination": (lambda: _forward((1, 1, 5, 4)), NotImplementedError, "the destination is 1x1x5x4"),
    "a higher destination": (lambda: _forward((1, 2, 4, 4)), NotImplementedError, "the destination is 1x2x4x4"),
    "fewer channels": (lambda: _forward((1, 1, 4, 3)), mg.GeometryError, "the destination has 3 feature channels"),
    "an offset": (lambda: _forward((1, 1, 4, 4), offset=mg.Offset(1)), NotImplementedError, "offset (1, 0, 0)"),
    "another first image": (
        lambda: _forward(shape=(2, 2, 3, 4), offset=mg.Offset(z=1)), NotImplementedError, "offset (0, 0, 1)"),
    "a clip rectangle": (
        lambda: _forward(clip_rect=mg.Region(mg.Origin(), mg.Size(1, 1, 1))), NotImplementedError, "clip_rect is"),
    "a clamped edge": (lambda: _forward(edge_mode=mg.EdgeMode.CLAMP), NotImplementedError, "edge_mode is CLAMP"),
    "a gradient of another size": (lambda: _gradient((1, 1, 4, 5)), mg.GeometryError, "source_gradient is 1x1x4x5 but"),
    "a narrower gradient": (
        lambda: _gradient(into=(1, 1, 3, 4)), mg.GeometryError, "the destination is 3 wide and 1 high"),
    "a wider gradient": (
        lambda: _gradient(into=(1, 2, 5, 4)), mg.GeometryError, "the destination is 5 wide and 2 high"),
    "another source": (lambda: _gradient(x=(1, 2, 3, 5)), mg.GeometryError, "source_image is 1x2x3x5 but"),
    "another state": (
        lambda: _gradient(forward=mg.SoftMax), mg.StateError, "was made by SoftMax; it has to be made by Gram"),
}  # fmt: skip


@pytest.mark.parametrize(("build", "error", "words"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_named(build, error, words):
    with pytest.raises(error) as raised:
        build()
    assert words in str(raised.value)
