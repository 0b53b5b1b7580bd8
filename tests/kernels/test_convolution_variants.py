"""Every shader that a convolution can choose: that its geometry leads to it, and that it does what the others do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_convolution import EDGES, Layer, layers, run

import mpsgrad as mg
from mpsgrad.kernels import (
    convolution_depthwise_rows,
    convolution_depthwise_runs,
    convolution_dispatch,
    convolution_group_rows,
    convolution_patches,
    convolution_planes,
    convolution_simdgroups,
    convolution_small_groups,
    convolution_weights,
    convolution_weights_gradient,
)
from mpsgrad.kernels.convolution_dispatch import Algorithm
from mpsgrad.kernels.convolution_geometry import ConvolutionGeometry
from mpsgrad.kernels.convolution_packing import PackedWeights
from mpsgrad.shader import use_tunables
from mpsgrad.testing import assert_within, batch_sizes, channel_counts, channel_formats
from mpsgrad.tunables import ALWAYS, WHERE_FEWER, Tunables, tunables

SINGLE = (1, 1)
COPYING = (
    convolution_depthwise_rows,
    convolution_depthwise_runs,
    convolution_patches,
    convolution_planes,
    convolution_small_groups,
)


def always_by_eights() -> AbstractContextManager[None]:
    """Has threads compute, on eights of channels, what a CPU of larger registers leaves to simdgroups as well."""
    return _by_eights(ALWAYS)


def many_registers() -> AbstractContextManager[None]:
    """As on a CPU of larger registers."""
    return _by_eights(WHERE_FEWER)


@contextmanager
def _by_eights(where: int) -> Iterator[None]:
    tuning = mg.default_device().tuning
    before = tunables(tuning)
    use_tunables(tuning, before.with_number("convolution_by_eights", where))
    try:
        yield
    finally:
        use_tunables(tuning, before)


@pytest.fixture(scope="module", autouse=True)
def neither_tiles_nor_copies() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolution_weights, "algorithm_for", lambda device: Algorithm.SIMDGROUPS)
        for module in COPYING:
            patch.setattr(module, "plan_gather", lambda *geometry: None)
            patch.setattr(module, "plan_weights", lambda *geometry: None)
        patch.setattr(convolution_group_rows, "plan_gather", lambda *geometry: None)
        yield


def make(
    source: tuple[int, int],
    inputs: int,
    outputs: int,
    kernel: tuple[int, int],
    *,
    stride: tuple[int, int] = SINGLE,
    dilation: tuple[int, int] = SINGLE,
    padding: tuple[int, int] = (0, 0),
    groups: int = 1,
    images: int = 2,
    edge: str = "zero",
    dtype: Any = np.float32,
) -> Layer:
    """A layer with ``padding`` rows and columns before the source and at least as many behind it."""
    random = np.random.default_rng(0)
    extent = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True))
    size = tuple((n + 2 * p - e) // s + 1 for n, p, e, s in zip(source, padding, extent, stride, strict=True))
    return Layer(
        random.standard_normal((images, *source, inputs)).astype(dtype),
        random.standard_normal((outputs, *kernel, inputs // groups)).astype(np.float32),
        random.standard_normal(outputs).astype(np.float32),
        random.standard_normal((images, *size, outputs)).astype(dtype),
        {
            "stride": stride,
            "dilation": dilation,
            "offset": tuple(e // 2 - p for e, p in zip(extent, padding, strict=True)),
            "size": size,
        },
        groups,
        edge,
    )


# (name, layer's arguments, variant of the forward kernel, of the data gradient, of the weight gradient)
VARIANTS = [
    ("3x3", ((9, 11), 37, 40, (3, 3)), {"padding": (1, 1)}, "dense", "dense", "dense"),
    ("long_runs", ((6, 9), 4, 33, (2, 5)), {"padding": (1, 2)}, "dense", "fold", "few"),
    ("phases", ((11, 10), 34, 33, (3, 4)), {"stride": (2, 3), "padding": (1, 2)}, "dense", "dense", "dense"),
    (
        "phases_without_taps",
        ((9, 9), 33, 17, (2, 2)),
        {"stride": (4, 2), "dilation": (2, 2)},
        "dense",
        "dense",
        "dense",
    ),
    ("dilated", ((9, 9), 20, 33, (3, 3)), {"dilation": (2, 3), "padding": (2, 3)}, "dense", "dense", "dense"),
    ("window_above_image", ((2, 3), 25, 33, (5, 7)), {"padding": (3, 4)}, "dense", "dense", "dense"),
    # With tiles of several pixels of the same place, the last one with fewer images.
    ("many_images", ((4, 3), 34, 40, (3, 3)), {"padding": (1, 1), "images": 23}, "dense", "dense", "dense"),
    (
        "phases_of_many_images",
        ((5, 4), 34, 33, (3, 4)),
        {"stride": (2, 3), "padding": (1, 2), "images": 23},
        "dense",
        "dense",
        "dense",
    ),
    ("to_few_of_many_images", ((4, 5), 20, 3, (3, 3)), {"padding": (1, 1), "images": 23}, "fold", "dense", "dense"),
    ("pointwise", ((5, 7), 33, 40, SINGLE), {}, "point", "point", "dense"),
    ("pointwise_dilated", ((5, 7), 20, 33, SINGLE), {"dilation": (2, 3)}, "point", "point", "dense"),
    ("pointwise_from_few", ((5, 7), 3, 43, SINGLE), {"images": 70}, "point", "point", "dense"),
    ("pointwise_groups_of_many", ((5, 5), 80, 44, SINGLE), {"groups": 2}, "point", "point", "dense"),
    ("pointwise_to_few", ((5, 7), 33, 3, SINGLE), {}, "point", "point", "dense"),
    ("to_few_of_groups", ((8, 9), 34, 6, (3, 3)), {"groups": 2, "padding": (1, 1)}, "fold", "dense", "dense"),
    ("pointwise_stride", ((5, 7), 20, 33, SINGLE), {"stride": (2, 2)}, "dense", "dense", "dense"),
    ("to_few", ((8, 9), 20, 3, (3, 3)), {"padding": (1, 1)}, "fold", "dense", "dense"),
    ("from_few", ((13, 14), 3, 33, (5, 5)), {"stride": (2, 2), "padding": (2, 2)}, "dense", "fold", "few"),
    ("from_two_by_strides", ((17, 18), 2, 33, (9, 8)), {"stride": (4, 4), "padding": (2, 1)}, "dense", "fold", "few"),
    ("from_one", ((12, 12), 1, 20, (5, 5)), {}, "dense", "fold", "few"),
    ("groups", ((7, 9), 24, 12, (3, 3)), {"groups": 6, "padding": (1, 1)}, "fold", "fold", "dense"),
    ("pointwise_groups", ((5, 5), 24, 30, SINGLE), {"groups": 6}, "point", "point", "dense"),
    ("large_groups", ((5, 5), 68, 66, (3, 3)), {"groups": 2}, "dense", "dense", "dense"),
    ("groups_to_single_eights", ((5, 7), 68, 40, (3, 3)), {"groups": 2, "padding": (1, 1)}, "dense", "dense", "dense"),
    ("to_a_single_eight", ((5, 7), 17, 24, (3, 3)), {"stride": (2, 1)}, "dense", "dense", "dense"),
    ("pointwise_to_a_single_eight", ((5, 7), 6, 23, SINGLE), {}, "point", "point", "dense"),
    ("depthwise", ((7, 19), 37, 37, (3, 3)), {"groups": 37, "padding": (1, 1)}, *["depthwise"] * 3),
    ("depthwise_wide", ((6, 12), 70, 70, (2, 5)), {"groups": 70, "padding": (0, 2)}, *["depthwise"] * 3),
    (
        "depthwise_phases",
        ((9, 25), 33, 33, (3, 4)),
        {"groups": 33, "stride": (2, 3), "dilation": (1, 2), "padding": (1, 1)},
        *["depthwise"] * 3,
    ),
    ("depthwise_stride", ((7, 19), 55, 55, (3, 3)), {"groups": 55, "stride": (2, 2)}, *["depthwise"] * 3),
    ("depthwise_5x5_stride", ((8, 21), 48, 48, (5, 5)), {"groups": 48, "stride": (2, 2)}, *["depthwise"] * 3),
    ("depthwise_below", ((3, 3), 5, 5, (3, 3)), {"groups": 5, "padding": (1, 1)}, *["depthwise"] * 3),
    ("fully_connected", ((2, 3), 20, 37, (2, 3)), {"images": 9}, "point", "point", "dense"),
    ("fully_connected_long", ((7, 6), 26, 261, (7, 6)), {"images": 10}, "rows", "point_unpacked", "dense"),
    ("fully_connected_of_one", ((7, 6), 26, 37, (7, 6)), {"images": 1}, "rows", "point_unpacked", "dense"),
    ("fully_connected_512", ((1, 1), 512, 3, SINGLE), {"images": 4}, "rows", "point_unpacked", "dense"),
    ("fully_connected_of_many", ((1, 1), 521, 40, SINGLE), {"images": 70}, "rows", "point_unpacked", "dense"),
    ("replicated", ((6, 7), 18, 33, (3, 3)), {"padding": (2, 3), "edge": "clamp"}, "dense", "replicated", "dense"),
    (
        "replicated_few",
        ((6, 7), 3, 4, (3, 3)),
        {"padding": (1, 1), "edge": "clamp", "stride": (2, 1)},
        "fold",
        "replicated",
        "dense",
    ),
    (
        "replicated_depthwise",
        ((6, 7), 34, 34, (3, 3)),
        {"padding": (2, 2), "edge": "clamp", "groups": 34},
        "fold",
        "replicated",
        "dense",
    ),
    ("clamped_but_inside", ((6, 7), 3, 33, (3, 3)), {"edge": "clamp"}, "dense", "fold", "few"),
]
IDS = [variant[0] for variant in VARIANTS]


def names(layer: Layer) -> tuple[str, str, str]:
    """The variants that the forward kernel, the data gradient and the weight gradient of ``layer`` run, by lanes or by
    eights."""
    kernel, gradient_kernel = layer.convolution(), mg.ConvolutionGradient(layer.data_source())
    source, gradient = mg.Image.from_array(layer.source), mg.Image.from_array(layer.gradient)
    state = kernel.result_state(source, destination_image=gradient)
    found = []
    for option in mg.ConvolutionGradientOption(0), *(mg.ConvolutionGradientOption(i) for i in (1, 2)):
        commands = mg.CommandBuffer()
        gradient_kernel.gradient_option = option
        if option:
            gradient_kernel.encode(commands, gradient, source, state)
        else:
            kernel.encode(commands, source, destination_image=mg.Image(gradient.descriptor))
        ran = [dispatch.function.name for dispatch in commands._dispatches]
        (chosen,) = (name for name in ran if name.startswith("convolution"))
        prefix = {1: "convolution_gradient_data_", 2: "convolution_gradient_weights_"}.get(int(option), "convolution_")
        for suffix in "_of_eights", "_of_few", "_of_blocks", "_few_outputs":
            chosen = chosen.removesuffix(suffix)
        found.append(chosen.removeprefix(prefix).removeprefix("convolution_"))
    return found[0], found[1], found[2]


def check_against_the_references(layer: Layer, runs: int = 1) -> None:
    """Also that so many ``runs`` give the same bits."""
    y, dx, state = run(layer)
    assert_within(y, layer.expected, layer.forward_bound, name="result")
    assert_within(dx, layer.expected_data, layer.data_bound, name="gradient for the source")
    layer.check_state(state)
    for _ in range(runs - 1):
        again_y, again_dx, again = run(layer)
        assert np.array_equal(again_y, y) and np.array_equal(again_dx, dx), "other bits on another run"
        assert np.array_equal(again.gradient_for_weights, state.gradient_for_weights)
        assert np.array_equal(again.gradient_for_biases, state.gradient_for_biases)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("variant", VARIANTS, ids=IDS)
def test_each_variant_against_the_references(variant, dtype):
    _, arguments, options, *expected = variant
    layer = make(*arguments, **options, dtype=dtype)
    assert names(layer) == tuple(expected)
    check_against_the_references(layer, runs=20)


def check_in_a_part_of_larger_images(layer: Layer, before: int, behind: int) -> None:
    """Channels 8 and up of a clip rectangle of a larger result, of a source with channels ``before`` and ``behind``;
    the rest stays."""
    images, height, width, outputs = layer.result_shape
    random = np.random.default_rng(1)
    read = (..., slice(before, before + layer.inputs))
    wide = random.standard_normal((*layer.source.shape[:3], before + layer.inputs + behind)).astype(np.float32)
    wide[read] = layer.source
    background = random.standard_normal((images, height + 3, width + 2, outputs + 9)).astype(np.float32)
    incoming = background.copy()
    part = (slice(None), slice(2, 2 + height), slice(1, 1 + width), slice(8, 8 + outputs))
    incoming[part] = layer.gradient
    kernel, gradient_kernel = layer.convolution(), mg.ConvolutionGradient(layer.data_source())
    kernel.clip_rect = mg.Region(mg.Origin(1, 2, 0), mg.Size(width, height, images))
    kernel.source_feature_channel_offset, kernel.destination_feature_channel_offset = before, 8
    source, result = mg.Image.from_array(wide), mg.Image.from_array(background)
    state = kernel.result_state(source, destination_image=result)
    gradient = mg.Image.from_array(np.full(wide.shape, 7, np.float32))
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, source, destination_image=result, destination_state=state)
        gradient_kernel.encode(commands, mg.Image.from_array(incoming), source, state, destination_gradient=gradient)
    values = np.array(result)
    assert_within(values[part], layer.expected, layer.forward_bound, name="result")
    values[part] = background[part]
    assert np.array_equal(values, background), "pixels or channels outside the clip rectangle changed"
    dx = np.array(gradient)
    assert_within(dx[read], layer.expected_data, layer.data_bound, name="gradient for the source")
    dx[read] = 7
    assert (dx == 7).all() or not dx[..., :before].any(), "channels that were not read changed"
    layer.check_state(state)


def check_additions_to_a_state(layer: Layer) -> list[str]:
    """The gradients for weights and biases of three images, those of two added to the first one's; the kernels run."""
    kernel, gradient_kernel = layer.convolution(), mg.ConvolutionGradient(layer.data_source())
    gradient_kernel.gradient_option = mg.ConvolutionGradientOption.GRADIENT_WITH_WEIGHTS_AND_BIAS
    source, gradient = mg.Image.from_array(layer.source), mg.Image.from_array(layer.gradient)
    state = kernel.result_state(source, destination_image=gradient)
    with mg.CommandBuffer() as commands:
        gradient_kernel.encode(commands, gradient._images(0, 1), source._images(0, 1), state)
        gradient_kernel.encode(commands, gradient._images(1, 2), source._images(1, 2), state)
        kernels = [each.function.name for each in commands._dispatches]
    layer.check_state(state)
    return kernels


@pytest.mark.skipif(mg.default_device().family != "cpu", reason="for CPUs")
@pytest.mark.parametrize("variant", VARIANTS, ids=IDS)
def test_each_variant_by_eights(variant):
    _, arguments, options, *expected = variant
    layer = make(*arguments, **options)
    with always_by_eights():
        assert names(layer) == tuple(expected)
        check_against_the_references(layer, runs=2)


@pytest.mark.parametrize("variant", VARIANTS, ids=IDS)
def test_each_variant_in_a_part_of_larger_images(variant):
    _, arguments, options, *_ = variant
    check_in_a_part_of_larger_images(make(*arguments, **options), before=4, behind=3)


@pytest.mark.parametrize("variant", VARIANTS, ids=IDS)
def test_each_variant_adds_to_what_a_state_holds(variant):
    _, arguments, options, *_ = variant
    check_additions_to_a_state(make(*arguments, **{**options, "images": 3}))


@pytest.mark.skipif(
    mg.default_device().family != "cpu" or tunables(mg.default_device().tuning).convolution_by_eights != WHERE_FEWER,
    reason="for CPUs with registers of 16 floats",
)
@pytest.mark.parametrize(
    ("arguments", "options", "kernel", "has_splits"),
    [
        (((13, 12), 132, 47, (3, 3)), {"padding": (1, 1)}, "blocks", False),
        (((9, 8), 260, 1040, SINGLE), {}, "blocks", False),
        (((11, 14), 130, 131, SINGLE), {}, "blocks", True),
        (((11, 14), 47, 130, SINGLE), {"stride": (1, 2), "padding": (1, 1)}, "blocks", True),
        (((17, 33), 33, 33, (2, 3)), {"stride": (2, 1), "dilation": (3, 2)}, "blocks", True),
        (((6, 5), 140, 20, (3, 3)), {"padding": (1, 1)}, "blocks", False),
        (((6, 5), 140, 3, (2, 2)), {"padding": (0, 1)}, "blocks", True),
        (((7, 11), 160, 9, SINGLE), {}, "blocks", False),
        (((45, 16), 256, 16, SINGLE), {"stride": (2, 1)}, "eights", False),
        (((25, 14), 512, 33, SINGLE), {}, "eights", False),
        (((13, 12), 32, 64, (3, 3)), {"padding": (1, 1), "groups": 2}, "eights", False),
        (((13, 12), 64, 32, (3, 3)), {"stride": (1, 2), "groups": 2}, "eights", False),
    ],
    ids=[
        "3x3",
        "wide",
        "pointwise",
        "outside",
        "dilated",
        "few_pixels",
        "half_a_block",
        "half_a_block_of_pixels",
        "few_outputs",
        "far_apart",
        "groups_of_16",
        "groups_of_32",
    ],
)
def test_weights_of_many_channels_in_registers_of_16_floats(arguments, options, kernel, has_splits):
    layer = make(*arguments, **options, images=3)
    kernels = check_additions_to_a_state(layer)
    assert {name for name in kernels if name != "sum_of_splits"} == {f"convolution_gradient_weights_dense_of_{kernel}"}
    assert ("sum_of_splits" in kernels) == has_splits
    check_against_the_references(layer, runs=2)


@pytest.mark.skipif(mg.default_device().family != "cpu", reason="for CPUs")
@pytest.mark.parametrize(
    ("outputs", "family"),
    [
        (13, "single_sixteens"),
        (16, "single_sixteens"),
        (48, "three_sixteens"),
        (79, "three_sixteens"),
        (137, "three_sixteens"),
    ],
)
@pytest.mark.parametrize("window", [(3, 3), SINGLE])
@pytest.mark.parametrize("groups", [1, 2])
def test_widths_of_tiles_where_there_are_many_registers(outputs, family, window, groups):
    check_width_of_tiles(WHERE_FEWER, family, (5, 7), 34, outputs, window, groups)


@pytest.mark.skipif(mg.default_device().family != "cpu", reason="for CPUs")
@pytest.mark.parametrize(
    ("inputs", "outputs", "family"),
    [
        (34, 24, "three_eights"),
        (34, 71, "three_eights"),
        (34, 120, "three_eights"),
        (80, 120, "eights"),
        (34, 128, "eights"),
        (34, 40, "single_eights"),
    ],
)
@pytest.mark.parametrize("size", [(5, 7), (1, 1)])
@pytest.mark.parametrize("window", [(3, 3), SINGLE])
@pytest.mark.parametrize("groups", [1, 2])
def test_widths_of_tiles_where_there_are_few_registers(inputs, outputs, family, size, window, groups):
    if (inputs, window) == (80, SINGLE):
        family = "three_eights"
    check_width_of_tiles(ALWAYS, family, size, inputs, outputs, window, groups)


@pytest.mark.skipif(mg.default_device().family != "cpu", reason="for CPUs")
@pytest.mark.parametrize(
    ("arguments", "options", "kernel"),
    [
        (((13, 12), 64, 128, (3, 3)), {"padding": (1, 1)}, "blocks"),
        (((9, 11), 144, 256, SINGLE), {}, "blocks"),
        (((21, 24), 64, 128, SINGLE), {}, "blocks"),
        (((11, 14), 80, 128, SINGLE), {"stride": (1, 2), "padding": (1, 1)}, "blocks"),
        (((17, 33), 64, 128, (2, 3)), {"stride": (2, 1), "dilation": (3, 2)}, "blocks"),
        (((9, 8), 72, 128, (3, 3)), {}, "eights"),
        (((9, 8), 64, 136, (3, 3)), {}, "eights"),
        (((9, 8), 128, 256, (3, 3)), {"groups": 2}, "eights"),
    ],
    ids=["3x3", "pointwise", "in_splits", "outside", "dilated", "half_a_block", "not_apart", "groups"],
)
def test_weights_of_gradients_that_lie_apart_where_there_are_few_registers(arguments, options, kernel):
    layer = make(*arguments, **options, images=3)
    with always_by_eights():
        kernels = check_additions_to_a_state(layer)
        assert {name for name in kernels if name.startswith("conv")} == {
            f"convolution_gradient_weights_dense_of_{kernel}"
        }
        check_against_the_references(layer, runs=2)


@pytest.mark.skipif(mg.default_device().family != "cpu", reason="for CPUs")
def test_weights_of_some_channels_of_gradients_that_lie_apart():
    with always_by_eights():
        check_in_a_part_of_larger_images(make((6, 7), 64, 119, (3, 3), padding=(1, 1)), before=4, behind=0)


@pytest.mark.skipif(mg.default_device().family != "cpu", reason="for CPUs")
@pytest.mark.parametrize(
    ("size", "inputs", "kernel", "has_splits"),
    [((22, 22), 57, (3, 3), False), ((22, 22), 25, (3, 3), True), ((33, 33), 57, (3, 3), True)],
    ids=["few_pixels_of_many_tiles", "few_tiles", "many_pixels"],
)
def test_splits_of_gradients_for_weights_where_there_are_few_registers(size, inputs, kernel, has_splits):
    layer = make(size, inputs, 13, kernel, padding=(1, 1), images=3)
    with always_by_eights():
        kernels = check_additions_to_a_state(layer)
        assert "convolution_gradient_weights_dense_of_eights" in kernels
        assert ("sum_of_splits" in kernels) == has_splits
        check_against_the_references(layer, runs=2)


@pytest.mark.skipif(mg.default_device().family != "cpu", reason="for CPUs")
@pytest.mark.parametrize(
    ("inputs", "outputs", "window", "options"),
    [
        (37, 5, (5, 5), {"padding": (2, 2)}),
        (23, 7, (2, 3), {"padding": (0, 1), "stride": (2, 3)}),
        (17, 11, (1, 2), {"padding": (0, 3)}),
        (42, 6, (3, 1), {"groups": 3, "dilation": (2, 1)}),
    ],
    ids=["two_tiles_of_taps", "two_of_fours", "two_of_sixes", "groups"],
)
def test_weights_of_few_outputs_where_there_are_few_registers(inputs, outputs, window, options):
    layer = make((5, 8), inputs, outputs, window, images=3, **options)
    with always_by_eights():
        kernels = check_additions_to_a_state(layer)
        assert "convolution_gradient_weights_dense_few_outputs_of_eights" in kernels
        check_against_the_references(layer)


@pytest.mark.skipif(mg.default_device().family != "cpu", reason="for CPUs")
@pytest.mark.parametrize(
    ("inputs", "outputs", "window", "options", "kernel"),
    [
        (37, 3, (5, 5), {"padding": (2, 2), "stride": (2, 2)}, "dense_few_outputs_of_eights"),
        (75, 7, (2, 3), {"padding": (0, 1), "stride": (2, 3)}, "dense_few_outputs_of_eights"),
        (37, 4, SINGLE, {}, "dense_few_outputs_of_eights"),
        (26, 7, (2, 3), {"padding": (0, 1), "stride": (2, 3)}, "dense"),
        (44, 7, SINGLE, {}, "dense_few_outputs_of_eights"),
        (64, 7, SINGLE, {}, "dense"),
        (35, 11, (3, 3), {"padding": (1, 1), "stride": (2, 1)}, "dense_of_eights"),
        (60, 20, (3, 3), {"padding": (1, 1)}, "dense_of_eights"),
        (60, 29, (3, 3), {"padding": (1, 1)}, "dense_of_eights"),
        (64, 24, (3, 3), {"padding": (1, 1)}, "dense"),
    ],
    ids=[
        "fours",
        "eights",
        "fours_of_pixels",
        "no_fewer_products",
        "eights_of_pixels",
        "no_fewer_products_of_pixels",
        "tiles_of_eight",
        "few_pixels_by_eight",
        "few_pixels_by_sixteen",
        "no_empty_lanes",
    ],
)
def test_weights_of_few_outputs_where_there_are_many_registers(inputs, outputs, window, options, kernel):
    layer = make((5, 17), inputs, outputs, window, images=3, **options)
    with many_registers():
        kernels = check_additions_to_a_state(layer)
        assert f"convolution_gradient_weights_{kernel}" in kernels
        check_against_the_references(layer, runs=2)


def check_width_of_tiles(
    by_eights: int,
    family: str,
    size: tuple[int, int],
    inputs: int,
    outputs: int,
    window: tuple[int, int],
    groups: int,
) -> None:
    """That tiles of ``family`` compute a convolution of groups of so many channels, and rightly."""
    padding, (height, width) = tuple(n // 2 for n in window), size
    layer = make(size, inputs * groups, outputs * groups, window, padding=padding, groups=groups, images=3)
    row, result = (height * width * channels for channels in (layer.inputs, outputs * groups))
    geometry = ConvolutionGeometry(
        (0, layer.inputs, width * layer.inputs, row, width, height, layer.inputs, 3),
        (0, outputs * groups, width * outputs * groups, result, width, height, outputs * groups, 3),
        (*window, 1, 1, 1, 1, *(-n for n in padding)),
        groups,
    )
    tuning = mg.default_device().tuning
    before = tunables(tuning)
    numbers = before.with_number("convolution_by_eights", by_eights)
    assert convolution_simdgroups.plan(geometry, False, "float", numbers).family.name == f"convolution_of_{family}"
    use_tunables(tuning, numbers)
    try:
        check_against_the_references(layer)
        check_in_a_part_of_larger_images(layer, before=4, behind=0)
    finally:
        use_tunables(tuning, before)


@pytest.mark.skipif(mg.default_device().family != "cpu", reason="for CPUs")
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    ("source", "stride", "padding", "is_split"),
    [((7, 6), (2, 2), (0, 0), True), ((5, 7), (1, 3), (0, 0), True), ((4, 4), (2, 2), (1, 0), False)],
)
@pytest.mark.parametrize("groups", [1, 2])
def test_pixels_that_no_window_of_one_pixel_reads(source, stride, padding, is_split, groups, dtype, monkeypatch):
    monkeypatch.setattr(convolution_dispatch, "FEWEST_ZEROED", 1)
    layer = make(source, 20, 34, SINGLE, stride=stride, padding=padding, groups=groups, dtype=dtype)
    check_against_the_references(layer)
    if dtype is np.float32:
        check_in_a_part_of_larger_images(layer, before=4, behind=3)
    geometry = ConvolutionGeometry(
        (0, 20, 200, 2000, *source[::-1], 20, 2),
        (0, 34, 340, 3400, *layer.gradient.shape[2:0:-1], 34, 2),
        (1, 1, *stride[::-1], 1, 1, *(-n for n in padding[::-1])),
    )
    assert (geometry.without_stride() is not None) == is_split


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    ("arguments", "options", "at_least"),
    [
        (((70, 64), 24, 33, (3, 3)), {"padding": (1, 1), "images": 3}, 3),
        (((64, 64), 3, 40, (3, 3)), {"padding": (1, 1), "images": 3}, 2),
        (((48, 64), 36, 36, (3, 3)), {"padding": (1, 1), "images": 3, "groups": 36}, 2),
        (((48, 48), 33, 40, SINGLE), {"images": 3}, 2),
        (((3, 3), 40, 70, (3, 3)), {"padding": (1, 1)}, 1),
    ],
    ids=["dense", "few", "depthwise", "pointwise", "one"],
)
def test_any_number_of_splits_of_the_weight_gradient(arguments, options, at_least, dtype):
    layer = make(*arguments, **options, dtype=dtype)
    commands = mg.CommandBuffer()
    kernel, gradient_kernel = layer.convolution(), mg.ConvolutionGradient(layer.data_source())
    gradient_kernel.gradient_option = mg.ConvolutionGradientOption.GRADIENT_WITH_WEIGHTS_AND_BIAS
    source, gradient = mg.Image.from_array(layer.source), mg.Image.from_array(layer.gradient)
    state = kernel.result_state(source, destination_image=gradient)
    gradient_kernel.encode(commands, gradient, source, state)
    has_sum = "sum_of_splits" in [dispatch.function.name for dispatch in commands._dispatches]
    assert has_sum == (at_least > 1)
    image_bytes = 4 * (layer.source.size + layer.gradient.size)
    assert at_least <= max(1, image_bytes / convolution_weights_gradient.SPLIT_BYTES), "the case is too small"
    commands.commit()
    layer.check_state(state)
    with mg.CommandBuffer() as commands:
        gradient_kernel.encode(commands, gradient, source, state)
    twice = replace(
        layer,
        source=np.concatenate([layer.source] * 2),
        gradient=np.concatenate([layer.gradient] * 2),
    )
    twice.check_state(state)


@pytest.mark.parametrize(
    ("images", "channels", "groups", "kernel", "splits"),
    [
        (1, 64, 1, "blocks", 2),
        (16, 64, 1, "blocks", 8),
        (16, 512, 1, "blocks", 1),
        (1, 128, 4, "eights", 1),
        (9, 128, 8, "eights", 4),
        (64, 128, 8, "eights", 16),
    ],
    ids=["one", "many", "heavy", "groups", "several_of_groups", "many_of_groups"],
)
def test_threads_that_read_images_for_each_tap_have_splits_that_stay_in_caches(
    images, channels, groups, kernel, splits
):
    size = 56 * 64 // channels
    layout = (0, channels, size * channels, size * size * channels, size, size, channels, images)
    geometry = ConvolutionGeometry(layout, layout, (3, 3, 1, 1, 1, 1, -1, -1), groups)
    plan = convolution_weights_gradient.plan(geometry, False, "float", tunables("cpu"))
    assert (plan.kernel, plan.splits) == (f"convolution_gradient_weights_dense_of_{kernel}", splits)


@st.composite
def shaped_layers(draw: Any) -> Layer:
    """Windows of one pixel, windows that are the whole source, few channels and depthwise layers of any size."""
    kind = draw(st.sampled_from(["point", "fully_connected", "few", "depthwise"]))
    options: dict[str, Any] = {
        "images": draw(batch_sizes()),
        "dtype": draw(channel_formats()).dtype,
        "edge": draw(st.sampled_from(sorted(EDGES))),
    }
    size = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    inputs, outputs = draw(channel_counts()), draw(channel_counts())
    if kind == "point":
        return make(size, inputs, outputs, SINGLE, **options)
    if kind == "fully_connected":
        return make(size, inputs, outputs, size, **options)
    kernel = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    padding = tuple(draw(st.integers(max(0, (k - n + 1) // 2), k)) for k, n in zip(kernel, size, strict=True))
    options |= {"padding": padding, "stride": (draw(st.integers(1, 3)), draw(st.integers(1, 3)))}
    if kind == "few":
        return make(size, draw(st.integers(1, 4)), draw(st.integers(1, 40)), kernel, **options)
    return make(size, inputs, inputs, kernel, groups=inputs, **options)


@given(shaped_layers())
@settings(max_examples=60)
def test_shaped_layers_against_the_references(layer):
    check_against_the_references(layer)


def test_random_layers_reach_every_variant():
    reached: list[set[str]] = [set(), set(), set()]

    @given(st.one_of(layers(more_channels=False), shaped_layers()))
    @settings(max_examples=150, database=None)
    def collect(layer: Layer) -> None:
        for variants, name in zip(reached, names(layer), strict=True):
            variants.add(name)

    collect()
    assert reached[0] == {"dense", "fold", "point", "depthwise", "rows"}
    assert reached[1] == {"dense", "fold", "point", "depthwise", "point_unpacked", "replicated"}
    assert reached[2] == {"dense", "few", "depthwise"}


def test_weights_that_do_not_fit_when_packed_are_refused():
    outputs, inputs = 2**10, 2**19
    row = (0, inputs, inputs, inputs, 1, 1, inputs, 1)
    layout = (0, outputs * 3, outputs * 6, outputs * 12, 2, 2, outputs, 1)
    geometry = ConvolutionGeometry(row, layout, (2, 2, 1, 1, 1, 1, -1, -1))
    with pytest.raises(NotImplementedError, match="largest array"):
        convolution_simdgroups.plan(geometry, False, "float", Tunables())


class Reloading:
    """A convolution, another set of its parameters, and what each of them gives."""

    def __init__(self) -> None:
        self.first, other = make((5, 6), 6, 40, (3, 3), padding=(1, 1)), make((5, 6), 6, 40, (3, 3), padding=(1, 1))
        self.second = replace(other, weights=2 * other.weights, biases=other.biases + 1)
        self.kernel, self.source = self.first.convolution(), mg.Image.from_array(self.first.source)
        self.state = mg.ConvolutionWeightsAndBiasesState.from_arrays(self.second.weights, self.second.biases)
        self.before, self.after = run(self.first)[0], run(self.second)[0]
        assert not np.array_equal(self.before, self.after)

    def encode(self, commands: mg.CommandBuffer) -> mg.Image:
        return self.kernel.encode(commands, self.source)

    def reload(self, commands: mg.CommandBuffer) -> None:
        self.kernel.reload_weights_and_biases(commands, self.state)

    def result(self) -> np.ndarray:
        with mg.CommandBuffer() as commands:
            image = self.encode(commands)
        return np.array(image)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_open_command_buffers_may_be_committed_in_any_order(order):
    case = Reloading()
    open_buffers = mg.CommandBuffer(), mg.CommandBuffer()
    images = [case.encode(commands) for commands in open_buffers]
    for index in order:
        open_buffers[index].commit()
    for image in images:
        assert np.array_equal(np.asarray(image), case.before)
    assert np.array_equal(case.result(), case.before)


@pytest.mark.parametrize("was_packed", [False, True])
def test_a_reload_that_is_committed_first_reaches_work_that_was_encoded_first(was_packed):
    case = Reloading()
    if was_packed:
        case.result()
    early, reload = mg.CommandBuffer(), mg.CommandBuffer()
    image = case.encode(early)
    case.reload(reload)
    reload.commit()
    early.commit()
    assert np.array_equal(np.asarray(image), case.after)
    assert np.array_equal(case.result(), case.after)


@pytest.mark.parametrize("was_packed", [False, True])
def test_a_reload_that_is_committed_last_does_not_reach_work_that_was_encoded_last(was_packed):
    case = Reloading()
    if was_packed:
        case.result()
    late, reload = mg.CommandBuffer(), mg.CommandBuffer()
    case.reload(reload)
    image = case.encode(late)
    late.commit()
    reload.commit()
    assert np.array_equal(np.asarray(image), case.before)
    assert np.array_equal(case.result(), case.after)


@pytest.mark.parametrize("was_packed", [False, True])
def test_a_reload_that_is_discarded_changes_nothing(was_packed):
    case = Reloading()
    if was_packed:
        case.result()
    with pytest.raises(RuntimeError, match="on purpose"), mg.CommandBuffer() as commands:
        case.encode(commands)
        case.reload(commands)
        case.encode(commands)
        raise RuntimeError("on purpose")
    assert np.array_equal(case.result(), case.before)


def test_weights_are_packed_once_until_they_change(monkeypatch):
    case = Reloading()
    packed: list[str] = []
    fill = PackedWeights._fill

    def counting(*arguments: Any) -> None:
        packed.append(arguments[2].kernel)
        fill(*arguments)

    monkeypatch.setattr(PackedWeights, "_fill", counting)

    def packings(*steps: Any) -> int:
        packed.clear()
        with mg.CommandBuffer() as commands:
            for step in steps:
                step(commands)
        return len(packed)

    assert packings(case.encode, case.encode) == 1
    assert packings(case.encode, case.encode) == 0
    assert packings(case.encode, case.reload, case.encode) == 1
    assert packings(case.encode) == 0
    case.kernel.weights_and_biases = case.first.weights, case.first.biases
    assert packings(case.encode) == 1
