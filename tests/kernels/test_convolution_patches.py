"""Convolutions of few channels on CPUs whose threads copy what their windows read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from test_convolution_variants import (
    SINGLE,
    always_by_eights,
    check_additions_to_a_state,
    check_against_the_references,
    check_in_a_part_of_larger_images,
    make,
    many_registers,
    names,
    shaped_layers,
)

import mpsgrad as mg
from mpsgrad.kernels import convolution_patches, convolution_planes, convolution_small_groups, convolution_weights
from mpsgrad.kernels.convolution_dispatch import Algorithm

pytestmark = pytest.mark.skipif(mg.default_device().family != "cpu", reason="for CPUs")

# (name, layer's arguments, which of the forward kernel, the data gradient and the weight gradient copy patches)
CASES = [
    ("from_one", ((9, 11), 1, 6, (5, 5)), {"padding": (2, 2)}, (True, True, True)),
    ("from_three", ((10, 13), 3, 16, (3, 3)), {"padding": (1, 1)}, (True, True, True)),
    ("to_three_blocks", ((5, 30), 4, 37, (3, 2)), {"padding": (1, 0)}, (True, False, True)),
    ("to_few_in_both_directions", ((9, 8), 5, 3, (4, 1)), {"padding": (2, 0)}, (True, True, True)),
    ("stride", ((14, 17), 3, 10, (3, 5)), {"stride": (2, 3), "padding": (1, 2)}, (True, True, True)),
    ("dilated_rows", ((11, 9), 2, 9, (3, 3)), {"dilation": (3, 1), "padding": (3, 1)}, (True, True, True)),
    ("dilated_columns", ((9, 11), 2, 9, (3, 3)), {"dilation": (1, 2)}, (True, True, True)),
    ("one_pixel_of_many", ((5, 7), 20, 20, SINGLE), {"stride": (2, 2)}, (True, True, False)),
    ("one_pixel_of_too_many", ((5, 7), 97, 97, SINGLE), {"stride": (2, 2)}, (False, False, False)),
    ("twenty_channels", ((5, 7), 20, 20, (2, 3)), {}, (True, True, True)),
    ("one_pixel", ((5, 7), 3, 20, SINGLE), {"stride": (2, 2)}, (True, True, True)),
    ("replicated", ((6, 7), 3, 9, (3, 4)), {"padding": (2, 3), "edge": "clamp"}, (True, False, True)),
    ("window_above_image", ((2, 3), 2, 17, (5, 7)), {"padding": (3, 4)}, (True, False, True)),
    ("long_rows", ((2, 400), 7, 8, (3, 3)), {"padding": (1, 1), "images": 1}, (True, True, True)),
    ("many_images", ((6, 5), 3, 8, (3, 3)), {"padding": (1, 1), "images": 70}, (True, True, True)),
    ("large_window", ((9, 9), 4, 8, (7, 7)), {"padding": (3, 3)}, (False, False, True)),
    ("larger_window", ((9, 9), 11, 8, (7, 7)), {"padding": (3, 3)}, (False, False, True)),
    ("window_of_1020_values", ((9, 19), 15, 17, (4, 17)), {"padding": (2, 8)}, (False, False, True)),
    ("too_large_window", ((9, 9), 13, 8, (9, 9)), {"padding": (4, 4)}, (False, False, False)),
    ("parts_of_rows_of_few_channels", ((6, 60), 15, 17, (5, 5)), {"padding": (2, 2)}, (False, False, True)),
    ("three_eights", ((7, 9), 5, 20, (3, 3)), {"padding": (1, 1)}, (True, True, True)),
    ("groups_of_eight", ((9, 11), 24, 24, (3, 3)), {"padding": (1, 1), "groups": 3}, (True, True, True)),
    ("groups_of_four", ((9, 10), 16, 12, (3, 3)), {"padding": (1, 1), "groups": 4}, (True, True, True)),
    ("groups_in_phases", ((10, 13), 28, 32, (3, 4)), {"stride": (2, 3), "groups": 4}, (True, True, True)),
    ("large_groups", ((6, 7), 46, 40, (3, 3)), {"padding": (1, 1), "groups": 2}, (True, True, True)),
    ("dilated_groups", ((9, 11), 18, 18, (3, 3)), {"dilation": (2, 2), "groups": 2}, (True, True, True)),
    ("groups_of_one_to_many", ((8, 9), 3, 54, (3, 3)), {"stride": (2, 1), "groups": 3}, (True, True, True)),
    ("pointwise_groups", ((5, 7), 18, 20, SINGLE), {"groups": 2}, (False, False, False)),
    ("window_of_many_values", ((7, 9), 20, 52, (5, 5)), {"padding": (2, 2)}, (False, False, True)),
    ("of_many_products", ((7, 9), 22, 22, (5, 4)), {"padding": (2, 2)}, (False, False, False)),
    ("of_parts_of_rows", ((6, 60), 20, 17, (5, 5)), {"padding": (2, 2)}, (False, False, False)),
]


@pytest.fixture(scope="module", autouse=True)
def no_tiles() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, always_by_eights():
        patch.setattr(convolution_weights, "algorithm_for", lambda device: Algorithm.SIMDGROUPS)
        for module in convolution_planes, convolution_small_groups:
            patch.setattr(module, "plan_gather", lambda *geometry: None)
            patch.setattr(module, "plan_weights", lambda *geometry: None)
        yield


@pytest.mark.parametrize(("arguments", "options", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_each_case_against_the_references(arguments, options, expected):
    layer = make(*arguments, **options)
    assert tuple(name.startswith("patches") for name in names(layer)) == expected
    check_against_the_references(layer, runs=4)


@pytest.mark.parametrize(("inputs", "outputs"), [(1, 30), (3, 64), (7, 57)])
def test_tiles_of_four_eights_where_there_are_many_registers(inputs, outputs):
    layer = make((9, 11), inputs, outputs, (3, 4), padding=(1, 2), stride=(2, 1))
    with many_registers():
        assert names(layer)[0] == "patches_by_4"
        check_against_the_references(layer)
        check_in_a_part_of_larger_images(layer, before=0, behind=0)


@pytest.mark.skipif(mg.default_device().tuning != "cpu", reason="for CPUs with many registers")
@pytest.mark.parametrize("inputs", [4, 5, 6, 7, 11, 13])
@pytest.mark.parametrize("stride", [(1, 1), (2, 3)])
def test_weights_of_runs_of_values(inputs, stride):
    layer = make((14, 17), inputs, 25, (3, 5), padding=(1, 2), stride=stride)
    with many_registers():
        assert names(layer)[2] == "patches"
        check_against_the_references(layer)


@pytest.mark.skipif(mg.default_device().tuning != "cpu", reason="for CPUs with many registers")
@pytest.mark.parametrize(
    ("size", "channels", "kernel", "expected"),
    [
        ((5, 7), (37, 33), (3, 3), "patches"),
        ((5, 7), (47, 33), (3, 3), "dense"),
        ((3, 60), (19, 29), (5, 5), "patches"),
    ],
)
def test_weights_of_many_values_where_others_leave_lanes_empty(size, channels, kernel, expected):
    layer = make(size, *channels, kernel, padding=(1, 2))
    with many_registers():
        assert names(layer)[2] == expected
        check_against_the_references(layer)


@pytest.mark.skipif(mg.default_device().tuning != "cpu", reason="for CPUs with many registers")
@pytest.mark.parametrize(
    ("inputs", "outputs", "expected"),
    [(15, 40, "patches"), (16, 40, "dense"), (20, 52, "patches"), (24, 64, "patches"), (25, 64, "dense")],
)
def test_disjoint_windows_of_many_channels_are_left_to_others_without_tiles_of_four_eights(inputs, outputs, expected):
    layer = make((8, 10), inputs, outputs, (2, 2), stride=(2, 2))
    with many_registers():
        assert names(layer)[0].partition("_")[0] == expected
        check_against_the_references(layer)


@pytest.mark.skipif(mg.default_device().tuning != "cpu", reason="for CPUs with many registers")
@pytest.mark.parametrize(
    ("channels", "kernel", "expected"),
    [((1, 4), (4, 4), "patches"), ((10, 4), (3, 3), "patches"), ((11, 4), (3, 3), "fold")],
)
def test_few_outputs_of_few_channels_are_not_left_to_threads_that_copy_nothing(channels, kernel, expected):
    layer = make((14, 17), *channels, kernel, stride=(2, 1), padding=(1, 1))
    with many_registers():
        assert names(layer)[0].partition("_")[0] == expected
        check_against_the_references(layer)


@pytest.mark.skipif(mg.default_device().tuning != "cpu", reason="for CPUs with many registers")
@pytest.mark.parametrize(
    ("size", "inputs", "outputs", "expected"),
    [
        ((20, 23), 8, 16, "patches"),
        ((20, 23), 8, 17, "few"),
        ((20, 23), 4, 33, "patches"),
        ((20, 23), 5, 60, "few"),
        ((11, 12), 8, 17, "patches"),
    ],
)
def test_weights_of_runs_that_leave_few_lanes_empty_are_left_to_simdgroups(size, inputs, outputs, expected):
    layer = make(size, inputs, outputs, (3, 3), padding=(1, 1))
    with many_registers():
        assert names(layer)[2] == expected
        check_against_the_references(layer)


@given(shaped_layers())
@settings(max_examples=40)
def test_shaped_layers_against_the_references(layer):
    check_against_the_references(layer)


@pytest.mark.parametrize(("arguments", "options", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_only_the_clip_rectangle_is_written(arguments, options, expected):
    check_in_a_part_of_larger_images(make(*arguments, **options), before=0, behind=0)


@pytest.mark.parametrize("threads", [1, 128])
def test_any_number_of_splits_adds_to_what_a_state_holds(monkeypatch, threads):
    monkeypatch.setattr(convolution_patches, "SUM_THREADS_WANTED", threads)
    convolution_patches.plan_weights.cache_clear()
    names_of_kernels = check_additions_to_a_state(make((13, 15), 3, 20, (3, 3), padding=(1, 1), images=3))
    assert ("sum_of_splits" in names_of_kernels) == (threads > 1)
    convolution_patches.plan_weights.cache_clear()
