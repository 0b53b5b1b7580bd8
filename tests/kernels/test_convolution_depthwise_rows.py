"""Depthwise convolutions on CPUs whose threads keep the rows that their windows reach."""

from __future__ import annotations

import pytest
from test_convolution_variants import check_against_the_references, check_in_a_part_of_larger_images, make, names

import mpsgrad as mg
from mpsgrad.tunables import NEVER, tunables

pytestmark = pytest.mark.skipif(
    mg.default_device().family != "cpu" or tunables(mg.default_device().tuning).convolution_by_eights == NEVER,
    reason="for CPUs that compute by eights",
)

# (name, layer's arguments, whether threads keep rows)
CASES = [
    ("5x5", ((9, 17), 40, 40, (5, 5)), {"padding": (2, 2)}, True),
    ("7x7", ((14, 14), 48, 48, (7, 7)), {"padding": (3, 3), "images": 5}, True),
    ("even_windows", ((6, 15), 35, 35, (6, 4)), {"padding": (1, 2)}, True),
    ("few_channels", ((7, 8), 5, 5, (3, 3)), {"padding": (1, 1)}, True),
    ("dilated", ((12, 13), 20, 20, (3, 5)), {"dilation": (3, 2), "padding": (2, 5)}, True),
    ("window_above_image", ((2, 3), 33, 33, (5, 7)), {"padding": (3, 4)}, True),
    ("wide_image", ((4, 300), 20, 20, (7, 7)), {"padding": (3, 3), "images": 1}, True),
    ("many_images", ((5, 4), 40, 40, (5, 5)), {"padding": (2, 2), "images": 70}, True),
    ("few_taps", ((7, 8), 40, 40, (3, 3)), {"padding": (1, 1)}, False),
    ("strides", ((9, 9), 20, 20, (5, 5)), {"stride": (2, 1)}, False),
    ("far_reach", ((62, 5), 8, 8, (3, 3)), {"dilation": (30, 1), "padding": (0, 10)}, True),
    ("too_far_reach", ((122, 4), 8, 8, (3, 3)), {"dilation": (60, 1), "padding": (0, 1)}, False),
]
IDS = [case[0] for case in CASES]


@pytest.mark.parametrize(("arguments", "options", "keeps"), [case[1:] for case in CASES], ids=IDS)
def test_each_case_against_the_references(arguments, options, keeps):
    layer = make(*arguments, **options, groups=arguments[1])
    assert [name == "depthwise_rows" for name in names(layer)] == [keeps, keeps, False]
    check_against_the_references(layer, runs=2)


def test_only_the_clip_rectangle_is_written():
    check_in_a_part_of_larger_images(make((9, 17), 40, 40, (5, 5), padding=(2, 2), groups=40), before=4, behind=3)
