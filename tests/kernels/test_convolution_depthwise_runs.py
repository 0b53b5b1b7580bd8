"""Depthwise convolutions of few channels on CPUs: threads whose lanes have pixels side by side."""

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
from mpsgrad.tunables import NEVER, tunables

pytestmark = pytest.mark.skipif(
    mg.default_device().family != "cpu" or tunables(mg.default_device().tuning).convolution_by_eights == NEVER,
    reason="for CPUs that compute by eights",
)

# (name, layer's arguments, whether this kernel computes the result, the data gradient and the gradient for weights)
CASES = [
    ("3x3", ((9, 40), 3, 3, (3, 3)), {"padding": (1, 1)}, [True] * 3),
    ("few_values", ((5, 3), 2, 2, (3, 3)), {"padding": (1, 1)}, [True] * 3),
    ("whole_sixteens", ((7, 24), 4, 4, (2, 5)), {"padding": (1, 2)}, [True] * 3),
    ("eight_channels", ((11, 14), 8, 8, (7, 7)), {"padding": (3, 3)}, [True] * 3),
    ("long_period", ((6, 30), 7, 7, (3, 3)), {"padding": (1, 1)}, [True] * 3),
    ("dilated", ((12, 13), 5, 5, (3, 6)), {"dilation": (3, 2), "padding": (2, 5)}, [True] * 3),
    ("window_above_image", ((2, 3), 6, 6, (5, 7)), {"padding": (3, 4)}, [True] * 3),
    ("wide_image", ((3, 800), 7, 7, (3, 4)), {"padding": (1, 2), "images": 1}, [True] * 3),
    ("many_images", ((5, 4), 3, 3, (5, 5)), {"padding": (2, 2), "images": 70}, [True] * 3),
    ("one_row", ((1, 50), 7, 7, (1, 9)), {"padding": (0, 4)}, [True] * 3),
    ("far_reach", ((62, 5), 8, 8, (3, 3)), {"dilation": (30, 1), "padding": (0, 10)}, [True] * 3),
    ("too_far_reach", ((702, 2), 8, 8, (3, 3)), {"dilation": (350, 1), "padding": (0, 9)}, [False] * 3),
    ("only_for_weights", ((6, 30), 15, 15, (3, 3)), {"padding": (1, 1)}, [False, False, True]),
    ("many_weights", ((10, 10), 7, 7, (10, 10)), {}, [False, False, True]),
    ("too_many_weights", ((13, 13), 7, 7, (13, 13)), {}, [False] * 3),
    ("strides", ((9, 9), 3, 3, (5, 5)), {"stride": (2, 1)}, [False] * 3),
    ("many_channels", ((9, 9), 17, 17, (3, 3)), {}, [False] * 3),
    ("few_taps", ((9, 21), 20, 20, (2, 2)), {}, [True, True, False]),
    ("few_taps_long_period", ((5, 14), 23, 23, (2, 3)), {"padding": (1, 1)}, [True, True, False]),
    ("few_taps_of_a_sixteen", ((5, 14), 16, 16, (2, 2)), {}, [False] * 3),
]
IDS = [case[0] for case in CASES]


@pytest.mark.parametrize("eights", [always_by_eights, nullcontext])
@pytest.mark.parametrize(("arguments", "options", "expected"), [case[1:] for case in CASES], ids=IDS)
def test_each_case_against_the_references(arguments, options, expected, eights):
    layer = make(*arguments, **options, groups=arguments[1])
    with eights():
        assert [name == "depthwise_runs" for name in names(layer)] == expected
        check_against_the_references(layer, runs=2)


def test_only_the_clip_rectangle_is_written():
    check_in_a_part_of_larger_images(make((9, 17), 6, 6, (5, 5), padding=(2, 2), groups=6), before=4, behind=3)


def test_gradients_for_weights_are_added_to_what_a_state_holds():
    check_additions_to_a_state(make((9, 7), 3, 3, (3, 3), padding=(1, 1), groups=3, images=3))
