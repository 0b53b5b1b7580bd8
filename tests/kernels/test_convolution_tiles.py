"""Convolutions as products of matrices in tiles, the algorithm for GPUs, on whatever device the tests have."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gpu_forms
import numpy as np
import pytest
import test_convolution_variants
from hypothesis import given, settings
from test_convolution import layers
from test_convolution_sub_pixels import source_of
from test_convolution_transpose import array
from test_convolution_transpose import check as check_transposed
from test_convolution_variants import (
    IDS,
    SINGLE,
    VARIANTS,
    check_additions_to_a_state,
    check_against_the_references,
    make,
    names,
    shaped_layers,
)

import mpsgrad as mg
from mpsgrad import reference, testing
from mpsgrad.kernels import (
    convolution_direct,
    convolution_packing,
    convolution_tiles,
    convolution_transpose,
    convolution_weights,
    convolution_winograd,
)
from mpsgrad.kernels.channel_padding import Padding
from mpsgrad.kernels.convolution_dispatch import Algorithm
from mpsgrad.kernels.convolution_geometry import POINT, ConvolutionGeometry
from mpsgrad.kernels.convolution_tile import Kind, Tile, Tiling, all_tiles, tiling
from mpsgrad.testing import assert_within, error_bound

UNITS = 132
"""Compute units of an H200."""


@pytest.fixture(scope="module", autouse=True)
def only_tiles() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolution_weights, "algorithm_for", lambda device: Algorithm.TILES)
        patch.setattr(convolution_direct, "plan_gather", lambda *geometry: None)
        patch.setattr(convolution_winograd, "pays", lambda *arguments: False)
        patch.setattr(testing, "CHANNEL_FORMATS", gpu_forms.FORMATS)
        yield


# Once more, for this algorithm.
test_each_variant_adds_to_what_a_state_holds = test_convolution_variants.test_each_variant_adds_to_what_a_state_holds
test_each_variant_in_a_part_of_larger_images = test_convolution_variants.test_each_variant_in_a_part_of_larger_images


def kernels_of_transposed(monkeypatch: pytest.MonkeyPatch, module: Any, planner: str, channels: int) -> list[str]:
    """Checks a transposed convolution of tiles with biases; the kernels that ``planner`` of ``module`` plans for it."""
    monkeypatch.setattr(convolution_transpose, "algorithm_for", lambda device: Algorithm.TILES)
    chosen: list[Any] = []
    plan = getattr(module, planner)
    monkeypatch.setattr(module, planner, lambda *of: chosen.append(plan(*of)) or chosen[-1])
    forget_plans()
    geometry = {"stride": (2, 2), "dilation": (1, 1), "offset": (0, 0), "groups": 1, "result": (15, 18)}
    x, g = array(1, 2, 8, 9, channels), array(2, 2, 15, 18, 3)
    check_transposed(geometry, x, array(3, 3, 4, 4, channels), array(4, 3), g)
    return [one.kernel for one in chosen if one]


def forget_plans() -> None:
    for module in (convolution_tiles, convolution_winograd):
        module.plan_gather.cache_clear()
        module.plan_weights.cache_clear()
    convolution_tiles.plan_sub_pixels.cache_clear()


def reckon_padding_with(patch: pytest.MonkeyPatch, time: float) -> None:
    """Has the plans reckon with so many microseconds for a copy of an image with more channels."""
    patch.setattr(Padding, "time", lambda padding, compute_units: time)
    forget_plans()


@pytest.fixture
def without_padding(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nor with groups joined."""
    monkeypatch.setattr(convolution_tiles, "_joined_groups", lambda *_: [])
    reckon_padding_with(monkeypatch, math.inf)
    yield
    forget_plans()


def widths(layer: Any) -> tuple[str, str, str]:
    """How many values at a time the three kernels of ``layer`` read, or the names of kernels without tiles."""
    return tuple(name.partition("_by_")[2] or name for name in names(layer))


@pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
@pytest.mark.parametrize("variant", VARIANTS, ids=IDS)
def test_each_variant_against_the_references(variant, dtype):
    _, arguments, options, *without_tiles = variant
    layer = make(*arguments, **options, dtype=dtype)
    for name, other in zip(names(layer), without_tiles, strict=True):
        assert name == other or name.startswith(("depthwise_", "tiles" if dtype == np.float32 else "matrices"))
        assert name != other or other in ("replicated", "dense")
        assert other != "depthwise" or name.startswith("depthwise_")
    check_against_the_references(layer, runs=2)


# (geometry, options, the widths of the three kernels for float32 images, and for float16 images)
WIDTHS = [
    (((9, 11), 40, 48, (3, 3)), {"padding": (1, 1)}, ("4", "4", "4_4"), ("8", "8", "8_8")),
    (((9, 11), 40, 36, (3, 3)), {"padding": (1, 1)}, ("4", "4", "4_4"), ("8", "4", "1_8")),
    (((9, 11), 22, 18, (3, 3)), {"padding": (1, 1)}, ("1", "1", "2_2"), ("1", "1", "2_2")),
    (((9, 11), 7, 40, (3, 3)), {"padding": (1, 1)}, ("1", "4", "4_1"), ("1", "8", "8_1")),
    (((9, 11), 5, 7, (3, 3)), {"padding": (1, 1)}, ("1", "1", "1_1"), ("1", "1", "1_1")),
    (((12, 10), 72, 80, (3, 3)), {"stride": (2, 3), "padding": (1, 2)}, ("4", "4", "4_4"), ("8", "8", "8_8")),
    # Several tiles of each phase, whose pixels use different numbers of taps.
    (((25, 22), 40, 8, (3, 3)), {"stride": (2, 2), "padding": (1, 1)}, ("4", "4", "4_4"), ("8", "8", "8_8")),
    (((12, 10), 16, 24, (3, 2)), {"dilation": (2, 3), "padding": (2, 3)}, ("4", "4", "4_4"), ("8", "8", "8_8")),
    (
        ((6, 7), 16, 40, (5, 3)),
        {"padding": (2, 3), "edge": "clamp"},
        ("4", "replicated", "4_4"),
        ("8", "replicated", "8_8"),
    ),
    (((9, 7), 32, 48, (3, 3)), {"groups": 2, "padding": (1, 1)}, ("4", "4", "4_4"), ("8", "8", "8_8")),
    # Pixels side by side share a row of a tile, whose results are stored one by one.
    (((9, 11), 16, 8, (3, 3)), {"padding": (1, 1)}, ("4", "4", "4_4"), ("8", "8", "8_8")),
    (((7, 9), 24, 24, (3, 3)), {"groups": 6, "padding": (1, 1)}, ("4", "4", "4_4"), ("8", "8", "2_2")),
    (((12, 8), 3, 24, (4, 4)), {"stride": (4, 4)}, ("1", "4", "4_1"), ("1", "8", "8_1")),
    (((14, 13), 3, 16, (7, 6)), {"stride": (4, 4), "padding": (2, 1)}, ("1", "4", "4_1"), ("1", "8", "8_1")),
    (((14, 13), 64, 136, SINGLE), {}, ("4", "4", "4_4"), ("8", "8", "8_8")),
    (((1, 1), 136, 40, SINGLE), {"images": 70}, ("4", "4", "4_4"), ("8", "8", "8_8")),
]


@pytest.mark.usefixtures("without_padding")
@pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
@pytest.mark.parametrize(("arguments", "options", "of_floats", "of_halves"), WIDTHS)
def test_values_are_read_several_at_a_time_where_that_is_aligned(arguments, options, of_floats, of_halves, dtype):
    layer = make(*arguments, **options, dtype=dtype)
    assert widths(layer) == (of_floats if dtype == np.float32 else of_halves)
    check_against_the_references(layer, runs=2)


@gpu_forms.of_halves
@pytest.mark.parametrize(("inputs", "outputs"), [(12, 20), (22, 18), (7, 5), (40, 20), (20, 40)])
def test_channels_of_halves_are_padded_for_vectors(inputs, outputs, monkeypatch):
    reckon_padding_with(monkeypatch, 0.0)
    monkeypatch.setattr(convolution_tiles, "tiling", lambda name: _with_slow_single_values(tiling(name)))
    layer = make((9, 11), inputs, outputs, (3, 3), padding=(1, 1), images=3, dtype=np.float16)
    assert widths(layer) == ("8", "8", "8_8")
    check_against_the_references(layer, runs=2)
    check_additions_to_a_state(layer)
    forget_plans()


@pytest.mark.parametrize(("inputs", "outputs"), [(22, 18), (7, 5), (20, 41), (41, 20)])
def test_channels_of_floats_are_padded_for_sums_for_weights(inputs, outputs, monkeypatch):
    """In several splits, whose sums lie at odd distances."""
    reckon_padding_with(monkeypatch, 0.0)
    monkeypatch.setattr(convolution_tiles, "tiling", lambda name: _with_slow_single_values(tiling(name)))
    layer = make((9, 11), inputs, outputs, (3, 3), padding=(1, 1), images=3)
    check_against_the_references(layer, runs=2)
    monkeypatch.setattr(mg.default_device(), "compute_units", 512)
    forget_plans()
    kernels = check_additions_to_a_state(layer)
    assert any(name.endswith("_by_4_4") for name in kernels)
    assert any(name.startswith("pad_channels") for name in kernels)
    assert any(name.startswith("sum_of") for name in kernels)
    forget_plans()


@pytest.mark.parametrize(("inputs", "outputs", "groups"), [(40, 80, 8), (24, 16, 2), (96, 96, 32)])
@pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
def test_groups_that_vectors_do_not_fit_are_joined(inputs, outputs, groups, dtype, monkeypatch):
    """Only the products of channels of one group are stored."""
    monkeypatch.setattr(convolution_tiles, "tiling", lambda name: _with_slow_single_values(tiling(name)))
    forget_plans()
    layer = make((9, 11), inputs, outputs, (3, 2), padding=(1, 1), images=3, groups=groups, dtype=dtype)
    assert widths(layer)[2] == ("4_4" if dtype == np.float32 else "8_8")
    check_against_the_references(layer, runs=2)
    check_additions_to_a_state(layer)
    forget_plans()


def _with_slow_single_values(of_device: Tiling) -> Tiling:
    keys: list[tuple[Kind, str]] = [(kind, each) for kind in ("gather", "weights") for each in ("float", "half")]
    slow = {key: of_device.costs_of(*key)._replace(unaligned=1e6) for key in keys}
    return replace(of_device, costs={**of_device.costs, **slow})


@pytest.mark.parametrize(
    ("metal_type", "channels", "groups", "padded"),
    [("half", 100, 1, 104), ("half", 130, 1, 136), ("half", 96, 1, 0), ("float", 100, 1, 0), ("half", 100, 2, 104)],
)
def test_the_channels_of_half_images_are_padded_where_vectors_save_more_than_a_copy_takes(
    metal_type, channels, groups, padded
):
    source, result = layout(16, 56, channels), layout(16, 56, 64)
    geometry = ConvolutionGeometry(source, result, (3, 3, 1, 1, 1, 1, -1, -1), groups)
    plan = convolution_tiles.plan_gather(geometry, False, metal_type, "nvidia-9.0", UNITS)
    assert plan is not None
    assert (plan.padding.channels if plan.padding else 0) == padded
    few = ConvolutionGeometry(layout(1, 8, 12), layout(1, 8, 64), (1, 1, 1, 1, 1, 1, 0, 0))
    plan = convolution_tiles.plan_gather(few, False, metal_type, "nvidia-9.0", UNITS)
    assert plan is not None and plan.padding is None


@pytest.mark.parametrize(("images", "size", "channels", "results"), [(7, 76, 100, 64), (33, 16, 4, 653)])
def test_halves_are_read_by_fours_where_a_copy_takes_longer(images, size, channels, results):
    """In the second case with the stores of the tile that would read it."""
    geometry = ConvolutionGeometry(
        layout(images, 2 * size, channels), layout(images, size, results), (2, 2, 2, 2, 1, 1, 0, 0)
    )
    plan = convolution_tiles.plan_gather(geometry, False, "half", "nvidia-9.0", UNITS)
    assert plan is not None and plan.kernel.endswith("_by_4") and plan.padding is None


@pytest.mark.usefixtures("without_padding")
@pytest.mark.parametrize(("offset", "extra"), [(4, 4), (4, 1), (8, 0), (8, 4)])
@pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
def test_an_offset_or_a_stride_of_channels_may_break_the_alignment(offset, extra, dtype):
    layer = make((7, 6), 16, 24, (3, 3), padding=(1, 1), dtype=dtype)
    wide = np.zeros((*layer.source.shape[:3], offset + 16 + extra), dtype)
    wide[..., offset : offset + 16] = layer.source
    kernel = layer.convolution()
    kernel.source_feature_channel_offset = kernel.destination_feature_channel_offset = offset
    height, width = layer.result_shape[1:3]
    background = np.full((2, height, width, offset + 24 + extra), 5, dtype)
    result = mg.Image.from_array(background)
    kernel.clip_rect = mg.Region(mg.Origin(0, 0, 0), mg.Size(width, height, 2))
    commands = mg.CommandBuffer()
    kernel.encode(commands, mg.Image.from_array(wide), destination_image=result)
    (name,) = (d.function.name for d in commands._dispatches if d.function.name.startswith("convolution"))
    at_once = math.gcd(offset, wide.shape[3], 4 if dtype == np.float32 else 8)
    assert name.endswith(f"_by_{at_once}")
    commands.commit()
    after = np.array(result)
    part = (..., slice(offset, offset + 24))
    assert_within(after[part], layer.expected, layer.forward_bound)
    after[part] = 5
    assert np.array_equal(after, background), "channels beside the result changed"


EACH_TILE = [
    pytest.param(
        key, case, id=f"{key[0]}-{key[1]}-{key[2].name}-{number}", marks=() if gpu_forms.HALVES else pytest.mark.nightly
    )
    for key in convolution_tiles.FAMILIES
    for number, case in enumerate(WIDTHS)
    if not (key[2].needs_vectors and set("124") & set("".join(case[3][2:] if key[0] == "weights" else case[3][:2])))
    if not key[2].in_place or "edge" not in case[1]
]
"""The tiles of GPUs run on GPUs, and on CPUs nightly, where each compiles for seconds. Some need aligned images, and
products in place zeros outside of them."""


@pytest.fixture
def one_tile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Kind, str, Tile]]:
    """The only one that there is for its kind and Metal type."""
    kind, metal_type, tile = request.param

    before = convolution_tiles.tiling

    def of_one(family: str) -> Tiling:
        return replace(before(family), tiles={**before(family).tiles, (kind, metal_type): (tile,)})

    monkeypatch.setattr(convolution_tiles, "tiling", of_one)
    monkeypatch.setattr(convolution_winograd, "pays", lambda *arguments: False)
    monkeypatch.setattr(convolution_tiles, "_joined_groups", lambda *_: [])
    reckon_padding_with(monkeypatch, math.inf)
    yield kind, metal_type, tile
    forget_plans()


@pytest.mark.parametrize(("one_tile", "case"), EACH_TILE, indirect=["one_tile"])
def test_each_tile_for_each_width(case, one_tile):
    arguments, options, of_floats, of_halves = case
    kind, metal_type, tile = one_tile
    layer = make(*arguments, **options, dtype=np.float32 if metal_type == "float" else np.float16)
    of_kind = slice(2, 3) if kind == "weights" else slice(0, 2)
    expected = of_floats if metal_type == "float" else of_halves
    for name, width in zip(names(layer)[of_kind], expected[of_kind], strict=True):
        assert name == width or name.endswith(f"{tile.name}_by_{width}")
    check_against_the_references(layer, runs=2)
    if kind == "weights":
        three_images = options | {"images": 3}
        check_additions_to_a_state(make(*arguments, **three_images, dtype=layer.source.dtype))


@given(layers(more_channels=False))
@settings(max_examples=40)
def test_random_layers_against_the_references(layer):
    check_against_the_references(layer, runs=2)


@given(shaped_layers())
@settings(max_examples=40)
def test_shaped_layers_against_the_references(layer):
    check_against_the_references(layer, runs=2)


@pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
@pytest.mark.parametrize(
    ("size", "kernel_of_sums"),
    [((31, 30), "sum_of_few_splits"), ((31, 30), "sum_of_few_splits_in_fours"), ((3, 3), "")],
)
def test_any_number_of_splits_of_the_weight_gradient(size, kernel_of_sums, dtype, monkeypatch):
    monkeypatch.setattr(convolution_packing, "MANY_SPLITS", 1 << 10)
    if kernel_of_sums.endswith("fours"):
        monkeypatch.setattr(convolution_packing, "FEWEST_VALUES_OF_FOURS", 1)
    layer = make(size, 8, 16, SINGLE, dtype=dtype, images=3)
    kernel, gradient_kernel = layer.convolution(), mg.ConvolutionGradient(layer.data_source())
    gradient_kernel.gradient_option = mg.ConvolutionGradientOption.GRADIENT_WITH_WEIGHTS_AND_BIAS
    source, gradient = mg.Image.from_array(layer.source), mg.Image.from_array(layer.gradient)
    state = kernel.result_state(source, destination_image=gradient)
    commands = mg.CommandBuffer()
    gradient_kernel.encode(commands, gradient, source, state)
    sums = [d.function.name for d in commands._dispatches if d.function.name.startswith("sum_of_")]
    assert sums == [kernel_of_sums] * bool(kernel_of_sums)
    commands.commit()
    layer.check_state(state)
    with mg.CommandBuffer() as commands:
        gradient_kernel.encode(commands, gradient, source, state)
    twice = replace(layer, source=np.concatenate([layer.source] * 2), gradient=np.concatenate([layer.gradient] * 2))
    twice.check_state(state)


# (geometry, options): few pixels and many products for each, so that there are several splits.
SPLIT = [
    (((5, 6), 24, 40, (3, 3)), {"padding": (1, 1)}),
    (((5, 6), 21, 33, (3, 3)), {"padding": (1, 1)}),
    (((4, 5), 320, 48, SINGLE), {"images": 3}),
    (((5, 4), 24, 36, (5, 4)), {"images": 10}),
    (((9, 8), 36, 40, (3, 4)), {"stride": (2, 3), "padding": (1, 2)}),
    (((9, 9), 40, 17, (3, 3)), {"stride": (4, 2), "dilation": (2, 1)}),
    (((6, 7), 40, 3, (3, 3)), {"padding": (1, 1)}),
    (((6, 7), 24, 48, (3, 3)), {"padding": (1, 1), "edge": "clamp", "images": 1}),
    (((5, 5), 68, 66, (3, 3)), {"groups": 2}),
]


@pytest.fixture
def splits_wherever_possible(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def eager(family: str) -> Tiling:
        of_family = tiling(family)
        free = of_family.common_costs._replace(sum_time=0.0, value_time=0.0)
        return replace(of_family, products={"float": 1e9, "half": 1e9}, common_costs=free, costs={})

    monkeypatch.setattr(convolution_tiles, "tiling", eager)
    monkeypatch.setattr(mg.default_device(), "compute_units", max(2, mg.default_device().compute_units))
    forget_plans()
    yield
    forget_plans()


@pytest.mark.usefixtures("splits_wherever_possible")
@pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
@pytest.mark.parametrize(("arguments", "options"), SPLIT)
def test_products_split_among_threadgroups(arguments, options, dtype):
    layer = make(*arguments, **options, dtype=dtype)
    kernel, source = layer.convolution(), mg.Image.from_array(layer.source)
    commands = mg.CommandBuffer()
    kernel.encode(commands, source, destination_image=mg.Image.from_array(layer.gradient))
    assert [d.function.name for d in commands._dispatches][-1] == "sum_of_tiles"
    check_against_the_references(layer, runs=2)


@pytest.mark.usefixtures("splits_wherever_possible")
@pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
def test_sums_of_many_splits(dtype, monkeypatch):
    """More than a thread has on its way at once, and some that are left."""
    monkeypatch.setattr(mg.default_device(), "compute_units", 16)
    forget_plans()
    layer = make((4, 5), 296, 40, (3, 3), padding=(1, 1), images=1, dtype=dtype)
    images = ((0, count, 5 * count, 20 * count, 5, 4, count, 1) for count in (296, 40))
    geometry = ConvolutionGeometry(*images, (3, 3, 1, 1, 1, 1, -1, -1))
    metal_type = "float" if dtype == np.float32 else "half"
    plan = convolution_tiles.plan_gather(geometry, False, metal_type, mg.default_device().tiling, 16)
    assert plan is not None
    (parameters,) = np.frombuffer(plan.parameters, convolution_tiles.GATHER_PARAMETERS.dtype)
    assert parameters["splits"] > convolution_tiles.SPLITS_AT_ONCE + 1
    check_against_the_references(layer, runs=2)


IN_PLACE = [
    pytest.param(key, id=key[2].name, marks=() if gpu_forms.HALVES else pytest.mark.nightly)
    for key in convolution_tiles.FAMILIES
    if key[:2] == ("gather", "half") and key[2].in_place and not key[2].weight_stages
]


@pytest.mark.usefixtures("splits_wherever_possible")
@pytest.mark.parametrize("one_tile", IN_PLACE, indirect=True)
def test_products_in_place_split_among_threadgroups(one_tile):
    *_, tile = one_tile
    layer = make((7, 9), 128, 72, (3, 3), padding=(1, 1), dtype=np.float16)
    kernel, source = layer.convolution(), mg.Image.from_array(layer.source)
    commands = mg.CommandBuffer()
    kernel.encode(commands, source, destination_image=mg.Image.from_array(layer.gradient))
    found = [dispatch.function.name for dispatch in commands._dispatches]
    assert found[-1] == "sum_of_tiles" and found[-2].endswith(f"{tile.name}_by_8"), found
    check_against_the_references(layer, runs=2)


def pointwise(weights: np.ndarray, x: np.ndarray) -> np.ndarray:
    """``x`` (pixels x channels, float16) times ``weights`` (output channels x channels) by a convolution."""
    source = mg.ConvolutionDataSource.from_arrays(weights.astype(np.float32)[:, None, None], None)
    image = mg.Image.from_array(x.astype(np.float16)[None, :, None])
    with mg.CommandBuffer() as commands:
        result = mg.Convolution(source).encode(commands, image)
    return np.array(result)[0, :, 0]


def check_blocks(channels: int, factor: int, dtype: Any) -> None:
    """Checks a sub-pixel convolution, whose last blocks are cut off; tiles or sums write most where they are to be."""
    x, b = array(0, 2, 7, 9, 12).astype(dtype), array(2, channels * factor**2)
    w = array(1, len(b), 3, 3, 12) / 8
    kernel = mg.Convolution(source_of(w, b, factor))
    height, width = 7 * factor - 1, 9 * factor - 1
    background = np.full((2, 7 * factor, 9 * factor, channels), 5, dtype)
    result = mg.Image.from_array(background)
    kernel.clip_rect = mg.Region(mg.Origin(0, 0, 0), mg.Size(width, height, 2))
    commands = mg.CommandBuffer()
    kernel.encode(commands, mg.Image.from_array(x), destination_image=result)
    kernels = [dispatch.function.name for dispatch in commands._dispatches]
    assert any(name.startswith(("convolution_tiles", "convolution_matrices")) for name in kernels)
    is_copied = dtype == np.float16 and channels % 2 == 0 and "sum_of_tiles" not in kernels
    assert any(name.startswith("add_") for name in kernels) == is_copied
    commands.commit()
    after, part = np.array(result), (slice(None), slice(height), slice(width))
    exact, magnitude = (
        reference.sub_pixels(reference.convolution(*of, size=(7, 9), offset=(0, 0)), factor)[part]
        for of in ((x, w, b), (np.abs(x), np.abs(w), np.abs(b)))
    )
    assert_within(after[part], exact, error_bound(dtype, 109, magnitude, exact))
    after[part] = 5
    assert np.array_equal(after, background), "pixels beside the result changed"


BLOCKS = [(9, 2), (5, 3), (8, 2)]


@pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
@pytest.mark.parametrize(("channels", "factor"), BLOCKS)
def test_the_channels_of_a_pixel_are_written_to_a_block_of_pixels(channels, factor, dtype):
    check_blocks(channels, factor, dtype)


@pytest.mark.usefixtures("splits_wherever_possible")
@pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
@pytest.mark.parametrize(("channels", "factor"), BLOCKS)
def test_sums_of_splits_are_written_to_blocks_of_pixels(channels, factor, dtype):
    check_blocks(channels, factor, dtype)


@gpu_forms.of_halves
def test_weights_of_more_than_eleven_bits_are_not_rounded_for_half_images():
    weights = np.array([[1 + 2**-12, -1], [3 + 2**-20, -3], [2**-3, 0], [1e5, -1e5], [1e-6, 1e-6]])
    y = pointwise(weights, np.array([[1, 1], [1, 0.5]]))
    exact = np.array([[1, 1], [1, 0.5]]) @ weights.T
    assert np.array_equal(y[:, :3], exact[:, :3].astype(np.float16))
    assert y[0, 3] == 0 and y[1, 3] == np.float16(5e4)
    assert np.allclose(y[:, 4], exact[:, 4], rtol=0, atol=2**-25)


@gpu_forms.of_halves
def test_weights_of_a_state_are_rounded_for_half_images_if_the_data_source_wants_that():
    weights = np.array([[[[1 + 2**-12, -1]]], [[[3 + 2**-20, 2**-30]]]], np.float32)
    source = mg.ConvolutionDataSource.from_arrays(np.zeros_like(weights))
    source.kernel_weights_data_type = mg.DataType.FLOAT16
    kernel = mg.Convolution(source)
    with mg.CommandBuffer() as commands:
        kernel.reload_weights_and_biases(commands, mg.ConvolutionWeightsAndBiasesState.from_arrays(weights, None))
        y = kernel.encode(commands, mg.Image.from_array(np.ones((1, 1, 1, 2), np.float16)))
    assert np.array_equal(np.array(y)[0, 0, 0], [0, 3])
    assert np.array_equal(kernel.weights_and_biases[0], weights)


@gpu_forms.of_halves
@pytest.mark.parametrize("scale", [2.0**-140, 2.0**-100, 2.0**-24, 1.0, 2.0**15, 2.0**100])
def test_weights_of_any_size_are_in_range_for_half_images(scale):
    random = np.random.default_rng(0)
    weights = (random.standard_normal((33, 20)) * scale).astype(np.float32)
    y = pointwise(weights, np.ones((3, 20)))
    exact = weights.astype(np.float64).sum(1)
    with np.errstate(over="ignore"):
        largest = 2.0**-140 if scale < 1e-38 else 0
        assert np.allclose(y, exact.astype(np.float16), rtol=2e-3, atol=largest + 2**-24)


@gpu_forms.of_halves
def test_infinite_weights_reach_their_own_channel_only():
    weights = np.ones((3, 9))
    weights[1, 4] = np.inf
    y = pointwise(weights, np.ones((2, 9)))
    assert np.array_equal(y[:, [0, 2]], np.full((2, 2), 9)) and not np.isfinite(y[:, 1]).any()


@pytest.mark.parametrize(("kind", "metal_type", "tile"), sorted(all_tiles()))
def test_threads_divide_each_tile(kind, metal_type, tile):
    constants = tile.constants
    assert tile.rows % tile.simd_rows == 0 and tile.columns % tile.simd_columns == 0
    assert constants["threads"] % 32 == 0 and constants["threads"] <= 1024
    vector = 4 if metal_type == "float" else 8
    if tile.in_place:
        # Four simdgroups have 64 rows, and rows of 64 halves make up what is multiplied, which so much memory aligns.
        assert constants["threads"] == 2 * tile.rows and tile.rows % 64 == tile.columns % 64 == 0 and tile.depth == 64
        weight_stages = tile.weight_stages or tile.stages
        assert weight_stages >= tile.stages
        columns = 2 * tile.columns if kind == "gram_gradient" else tile.columns
        assert 49152 < (tile.stages * tile.rows + weight_stages * columns) * tile.depth * 2 < 232448
        assert constants["ahead"] > 0
        assert kind != "gram" or tile.rows == tile.columns
        assert kind == "gather" or constants["threads"] % (tile.columns // 8) == 0
    elif kind == "weights":
        # A thread copies one column, or vector of columns, for several pixels.
        assert max(tile.rows, tile.columns // (vector if tile.needs_vectors else 1)) <= constants["threads"]
        assert all(tile.depth * n // vector % constants["threads"] == 0 for n in (tile.rows, tile.columns))
    else:
        assert tile.rows * tile.depth // vector % constants["threads"] == 0
        assert constants["threads"] % (tile.depth // vector) == 0
    if metal_type == "float":
        assert constants["thread_rows"] % 4 == 0 and constants["thread_columns"] % 4 == 0
    else:
        assert tile.depth % 16 == 0 and tile.simd_rows % 16 == 0


def layout(images: int, size: int, channels: int) -> tuple[int, ...]:
    return 0, channels, size * channels, size * size * channels, size, size, channels, images


def test_a_gpu_gets_tiles_that_its_threadgroups_fill():
    def tile(outputs: int, size: int, metal_type: str) -> Tile:
        geometry = ConvolutionGeometry(layout(64, size, 64), layout(64, size, outputs), POINT)
        plan = convolution_tiles.plan_gather(geometry, False, metal_type, "nvidia", UNITS)
        assert plan is not None
        (found,) = (key[2] for key, family in convolution_tiles.FAMILIES.items() if family is plan.family)
        area = found.rows * found.columns
        assert plan.threadgroups * area >= 64 * size * size * outputs
        return found

    assert [tile(outputs, 56, "float").columns for outputs in (12, 20, 30, 40, 64, 90)] == [16, 24, 32, 48, 64, 96]
    assert [tile(outputs, 56, "half").columns for outputs in (20, 64)] == [32, 64]
    assert tile(256, 56, "float").columns >= 64 and tile(256, 56, "half").columns >= 64


@pytest.mark.parametrize("metal_type", ["float", "half"])
@pytest.mark.parametrize(("size", "channels"), [(56, 64), (28, 128), (14, 256), (3, 1024)])
def test_splits_of_the_weight_gradient_fill_a_gpu(size, channels, metal_type):
    image = layout(64, size, channels)
    geometry = ConvolutionGeometry(image, image, (3, 3, 1, 1, 1, 1, -1, -1))
    plan = convolution_tiles.plan_weights(geometry, False, metal_type, "nvidia", UNITS)
    assert plan is not None
    assert plan.threadgroups >= 0.8 * UNITS
    assert plan.splits == 1 or 64 * size * size / plan.splits >= 64


@pytest.mark.parametrize(("outputs", "is_scattered"), [(300, True), (37, True), (304, False), (7, False)])
def test_single_halves_of_many_channels_have_kernels_of_their_own(outputs, is_scattered):
    window = (3, 3, 1, 1, 1, 1, -1, -1)
    geometry = ConvolutionGeometry(layout(16, 56, 5), layout(16, 56, outputs), window)
    plan = convolution_tiles.plan_gather(geometry, False, "half", "nvidia", UNITS)
    assert plan is not None
    assert (plan.family in convolution_tiles.SCATTERED_FAMILIES.values()) == is_scattered


@pytest.mark.parametrize(("size", "channels", "kernel", "outputs"), [(153, 5, 2, 3), (60, 76, 1, 12)])
def test_gradients_for_few_weights_have_small_tiles_and_many_partial_sums(size, channels, kernel, outputs):
    window = kernel, kernel, 1, 1, 1, 1, 0, 0
    source, result = layout(10, size, channels), layout(10, size - kernel + 1, outputs)
    plan = convolution_tiles.plan_weights(ConvolutionGeometry(source, result, window), False, "float", "nvidia", UNITS)
    assert plan is not None and "_16x32x32_" in plan.kernel and plan.splits > UNITS


@pytest.mark.parametrize(
    ("inputs", "kernel", "outputs", "is_narrow"),
    [(20, 3, 4, True), (4, 1, 200, True), (1, 7, 3, True), (4, 2, 4, True), (64, 3, 64, False), (20, 3, 40, False)],
)
def test_few_outputs_or_weights_of_floats_take_narrow_tiles(inputs, kernel, outputs, is_narrow):
    window = (kernel, kernel, 1, 1, 1, 1, -(kernel // 2), -(kernel // 2))
    geometry = ConvolutionGeometry(layout(16, 56, inputs), layout(16, 56, outputs), window)
    plan = convolution_tiles.plan_weights(geometry, False, "float", "nvidia-9.0", UNITS)
    assert plan is not None
    (tile,) = (key[2] for key, family in convolution_tiles.FAMILIES.items() if family is plan.family)
    assert (min(tile.rows, tile.columns) == 16) == is_narrow


@pytest.mark.parametrize(
    ("images", "size", "inputs", "kernel", "outputs", "metal_type"),
    [
        (1, 14, 256, 3, 256, "float"),
        (1, 14, 256, 3, 256, "half"),
        (32, 1, 2048, 1, 1000, "float"),
        (32, 1, 2048, 1, 1000, "half"),
        (3, 17, 37, 5, 3, "float"),
        (1, 56, 64, 3, 64, "float"),
    ],
)
def test_splits_of_small_convolutions_fill_a_gpu(images, size, inputs, kernel, outputs, metal_type):
    source, result = layout(images, size, inputs), layout(images, size, outputs)
    window = (kernel, kernel, 1, 1, 1, 1, -(kernel // 2), -(kernel // 2))
    geometry = ConvolutionGeometry(source, result, window)
    plan = convolution_tiles.plan_gather(geometry, False, metal_type, "nvidia", UNITS)
    assert plan is not None and plan.sums is not None
    assert plan.threadgroups >= 0.4 * UNITS
    geometry = ConvolutionGeometry(layout(512, 56, 64), layout(512, 56, 64), window)
    large = convolution_tiles.plan_gather(geometry, False, metal_type, "nvidia", UNITS)
    assert large is not None and large.sums is None


@pytest.mark.usefixtures("without_padding")
@pytest.mark.parametrize(
    ("tiling_name", "replicates", "inputs", "is_in_place"),
    [
        ("nvidia-9.0", False, 64, True),
        ("nvidia-9.0", True, 64, False),
        ("nvidia-9.0", False, 63, False),
        ("nvidia", False, 64, False),
    ],
)
def test_tiles_are_multiplied_in_place_where_the_gpu_can_and_values_outside_are_zeros(
    tiling_name, replicates, inputs, is_in_place
):
    source, result = layout(64, 56, inputs), layout(64, 56, 64)
    geometry = ConvolutionGeometry(source, result, (3, 3, 1, 1, 1, 1, -1, -1), replicates=replicates)
    gather = convolution_tiles.plan_gather(geometry, False, "half", tiling_name, UNITS)
    weights = convolution_tiles.plan_weights(geometry, False, "half", tiling_name, UNITS)
    for plan in (gather, weights):
        assert plan is not None and ("in_place" in plan.kernel) == is_in_place


@pytest.mark.parametrize(
    ("images", "kernel", "goes_on"),
    [(64, 1, True), (1, 1, False), (64, 3, False)],
    ids=["many tiles of one step", "few tiles", "many steps"],
)
def test_threadgroups_go_from_tile_to_tile_where_tiles_are_many_and_short(images, kernel, goes_on):
    window = (kernel, kernel, 1, 1, 1, 1, -(kernel // 2), -(kernel // 2))
    source, result = layout(images, 56, 64), layout(images, 56, 256)
    geometry = ConvolutionGeometry(source, result, window)
    plan = convolution_tiles.plan_gather(geometry, False, "half", "nvidia-9.0", UNITS)
    assert plan is not None and plan.sums is None
    (tile,) = (key[2] for key, family in convolution_tiles.FAMILIES.items() if family is plan.family)
    tiles = -(-images * 56 * 56 // tile.rows) * (256 // tile.columns)
    assert bool(tile.weight_stages) == goes_on
    assert plan.threadgroups < tiles if goes_on else plan.threadgroups == tiles
    assert plan.threadgroups >= 0.9 * min(tiles, tile.resident * UNITS)


@pytest.mark.parametrize("metal_type", ["float", "half"])
@pytest.mark.parametrize(
    "kernel, stride, padding, inputs, outputs, is_joined",
    [(4, 4, 0, 3, 96, True), (11, 4, 2, 3, 16, True), (4, 4, 1, 3, 16, True), (3, 2, 1, 16, 32, False)],
)
def test_pixels_of_one_stride_share_the_columns_of_a_tile(
    kernel, stride, padding, inputs, outputs, is_joined, metal_type
):
    """Where phases would have one for each channel of one pixel, and that costs more than to store one by one."""
    size = (112 + 2 * padding - kernel) // stride + 1
    window = kernel, kernel, stride, stride, 1, 1, -padding, -padding
    geometry = ConvolutionGeometry(layout(16, 112, inputs), layout(16, size, outputs), window)
    plan = convolution_tiles.plan_gather(geometry, True, metal_type, "nvidia-9.0", UNITS)
    assert plan is not None
    (parameters,) = np.frombuffer(plan.parameters, convolution_tiles.GATHER_PARAMETERS.dtype)
    assert parameters["lanes"] == (inputs * stride**2 if is_joined else inputs)


@pytest.mark.parametrize("kernel, stride, padding", [(3, 2, 1), (3, 2, 0), (1, 2, 0), (5, 3, 1), (7, 4, 3)])
@pytest.mark.parametrize("metal_type", ["float", "half"])
def test_the_pixels_of_a_data_gradient_that_use_the_most_taps_come_first(kernel, stride, padding, metal_type):
    size = (56 + 2 * padding - kernel) // stride + 1
    window = kernel, kernel, stride, stride, 1, 1, -padding, -padding
    geometry = ConvolutionGeometry(layout(64, 56, 64), layout(64, size, 64), window)
    plan = convolution_tiles.plan_gather(geometry, True, metal_type, "nvidia-9.0", UNITS)
    assert plan is not None
    (parameters,) = np.frombuffer(plan.parameters, convolution_tiles.GATHER_PARAMETERS.dtype)
    used = [sum((pixel + padding - tap) % stride == 0 for tap in range(kernel)) for pixel in range(stride)]
    for axis in "xy":
        first = parameters[f"first_phase_{axis}"]
        in_order = [used[(first + n) % stride] for n in range(stride)]
        assert in_order == sorted(used, reverse=True)
    assert parameters["tiles_of_phase"] * stride**2 * parameters["column_tiles"] == plan.threadgroups


def test_the_phases_of_the_same_pixels_stay_together_where_all_use_as_many_taps():
    geometry = ConvolutionGeometry(layout(64, 56, 64), layout(64, 28, 64), (4, 4, 2, 2, 1, 1, -1, -1))
    plan = convolution_tiles.plan_gather(geometry, True, "half", "nvidia-9.0", UNITS)
    assert plan is not None
    (parameters,) = np.frombuffer(plan.parameters, convolution_tiles.GATHER_PARAMETERS.dtype)
    assert [parameters[name] for name in ("tiles_of_phase", "first_phase_x", "first_phase_y")] == [0, 0, 0]


def test_weights_that_are_too_many_to_pack_are_read_as_they_are():
    for outputs in (2**14, 2**13):
        geometry = ConvolutionGeometry(layout(1, 1, 2**16), layout(1, 1, outputs), POINT)
        plan = convolution_tiles.plan_gather(geometry, False, "half", "nvidia", UNITS)
        assert (plan is None) == (outputs == 2**14)
