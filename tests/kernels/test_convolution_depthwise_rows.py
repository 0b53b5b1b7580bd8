"""Depthwise convolutions on CPUs whose threads keep the rows that their windows reach."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from test_convolution_variants import (
    always_by_eights,
    check_additions_to_a_state,
    check_against_the_references,
    check_in_a_part_of_larger_images,
    make,
    names,
)

import mpsgrad as mg
from mpsgrad.tunables import NEVER, WHERE_FEWER, tunables

pytestmark = pytest.mark.skipif(
    mg.default_device().family != "cpu" or tunables(mg.default_device().tuning).convolution_by_eights == NEVER,
    reason="for CPUs that compute by eights",
)

# (name, layer's arguments, whether threads keep rows for results and data gradients, whether they do for weights)
CASES = [
    ("5x5", ((9, 17), 40, 40, (5, 5)), {"padding": (2, 2)}, True, False),
    ("7x7", ((14, 14), 48, 48, (7, 7)), {"padding": (3, 3), "images": 5}, True, False),
    ("even_windows", ((6, 15), 35, 35, (6, 4)), {"padding": (1, 2)}, True, False),
    ("few_channels", ((7, 8), 13, 13, (3, 3)), {"padding": (1, 1)}, True, False),
    ("dilated", ((12, 13), 20, 20, (3, 5)), {"dilation": (3, 2), "padding": (2, 5)}, True, False),
    ("window_above_image", ((2, 3), 33, 33, (5, 7)), {"padding": (3, 4)}, True, False),
    ("wide_image", ((4, 300), 20, 20, (7, 7)), {"padding": (3, 3), "images": 1}, True, False),
    ("many_images", ((5, 4), 40, 40, (5, 5)), {"padding": (2, 2), "images": 70}, True, False),
    ("few_taps", ((7, 8), 40, 40, (3, 3)), {"padding": (1, 1)}, False, True),
    ("strides", ((9, 9), 20, 20, (5, 5)), {"stride": (2, 1)}, False, False),
    ("far_reach", ((62, 5), 9, 9, (3, 3)), {"dilation": (30, 1), "padding": (0, 10)}, True, False),
    ("too_far_reach", ((122, 4), 13, 13, (3, 3)), {"dilation": (60, 1), "padding": (0, 1)}, False, False),
    ("3x3_strides", ((11, 12), 70, 70, (3, 3)), {"stride": (2, 3), "padding": (1, 1), "images": 5}, False, True),
    ("3x3_dilated", ((12, 13), 20, 20, (3, 3)), {"dilation": (3, 2), "stride": (1, 2), "padding": (3, 2)}, False, True),
    ("3x3_long_strides", ((18, 17), 33, 33, (3, 3)), {"stride": (5, 4)}, False, True),
    ("3x3_above_image", ((1, 2), 16, 16, (3, 3)), {"padding": (1, 1)}, True, True),
    ("3x3_many_images", ((3, 4), 100, 100, (3, 3)), {"padding": (1, 1), "images": 70}, False, True),
    ("3x3_wide_image", ((4, 160), 64, 64, (3, 3)), {"padding": (1, 1), "images": 1}, False, True),
    ("3x3_too_wide_image", ((3, 180), 33, 33, (3, 3)), {"padding": (1, 1), "images": 1}, False, False),
]
IDS = [case[0] for case in CASES]
# (layer's arguments) of few channels, whose windows jump over pixels.
STRIDED_CASES = [
    (((11, 12), 12, 12, (3, 3)), {"stride": (2, 2), "padding": (1, 1), "images": 70}),
    (((17, 30), 16, 16, (5, 5)), {"stride": (3, 2), "dilation": (1, 2), "padding": (2, 4)}),
    (((9, 10), 9, 9, (2, 2)), {"stride": (3, 3)}),
    (((9, 40), 10, 10, (3, 3)), {"stride": (2, 2), "dilation": (2, 2), "padding": (2, 2)}),
    (((6, 301), 13, 13, (7, 7)), {"stride": (1, 4), "padding": (3, 2), "images": 1}),
]


@pytest.mark.parametrize("eights", [always_by_eights, nullcontext])
@pytest.mark.parametrize(("arguments", "options", "keeps", "keeps_for_weights"), [case[1:] for case in CASES], ids=IDS)
def test_each_case_against_the_references(arguments, options, keeps, keeps_for_weights, eights):
    layer = make(*arguments, **options, groups=arguments[1])
    with eights():
        has_registers = tunables(mg.default_device().tuning).convolution_by_eights == WHERE_FEWER
        expected = [keeps, keeps, keeps_for_weights and has_registers]
        assert [name == "depthwise_rows" for name in names(layer)] == expected
        check_against_the_references(layer, runs=2)


@pytest.mark.parametrize("eights", [always_by_eights, nullcontext])
@pytest.mark.parametrize(("arguments", "options"), STRIDED_CASES)
def test_data_gradients_of_strides(arguments, options, eights):
    layer = make(*arguments, **options, groups=arguments[1])
    with eights():
        assert [name == "depthwise_rows" for name in names(layer)][:2] == [False, True]
        check_against_the_references(layer, runs=2)


@pytest.mark.parametrize("kernel", [(3, 3), (5, 5)])
def test_only_the_clip_rectangle_is_written(kernel):
    check_in_a_part_of_larger_images(make((9, 17), 40, 40, kernel, padding=(2, 2), groups=40), before=4, behind=3)


def test_gradients_for_weights_are_added_to_what_a_state_holds():
    check_additions_to_a_state(make((9, 7), 40, 40, (3, 3), padding=(1, 1), groups=40, images=3))
