"""Convolutions with groups of few channels on CPUs whose threads spread the source over their lanes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_convolution import Layer
from test_convolution_variants import (
    SINGLE,
    always_by_eights,
    check_against_the_references,
    check_in_a_part_of_larger_images,
    make,
    names,
)

import mpsgrad as mg
from mpsgrad.kernels import convolution_group_rows, convolution_weights
from mpsgrad.kernels.convolution_dispatch import Algorithm
from mpsgrad.kernels.convolution_small_groups import SPREADS
from mpsgrad.testing import batch_sizes

pytestmark = pytest.mark.skipif(mg.default_device().family != "cpu", reason="for CPUs")

# (name, layer's arguments, which of the forward kernel, the data gradient and the weight gradient spread the source)
CASES = [
    *(
        (
            f"{inputs}_to_{lanes}",
            ((9, 11), 18 * inputs, 18 * lanes, (3, 3)),
            {"padding": (1, 1), "groups": 18},
            (lanes <= 4 or inputs == 1, lanes <= 4, True),
        )
        for inputs, lanes in SPREADS
        if inputs * lanes > 1
    ),
    ("three_to_three", ((9, 7), 21, 21, (3, 3)), {"padding": (1, 1), "groups": 7}, (True, True, True)),
    ("five_lanes", ((7, 8), 4, 20, (3, 2)), {"padding": (1, 1), "groups": 4}, (True, False, True)),
    ("fifteen_lanes", ((7, 8), 3, 45, (2, 3)), {"padding": (1, 2), "groups": 3}, (True, False, False)),
    ("sixteen_lanes", ((7, 8), 3, 48, (2, 3)), {"padding": (1, 2), "groups": 3}, (False, False, False)),
    ("seven_lanes", ((7, 8), 6, 21, (3, 2)), {"padding": (1, 1), "groups": 3}, (True, False, False)),
    ("eight_lanes", ((7, 8), 6, 24, (3, 2)), {"padding": (1, 1), "groups": 3}, (False, False, False)),
    ("eight_of_few", ((10, 13), 24, 9, (3, 4)), {"stride": (2, 3), "groups": 3}, (False, True, False)),
    ("five_in_phases", ((10, 13), 15, 9, (3, 4)), {"stride": (2, 3), "groups": 3}, (False, True, False)),
    ("strides_of_one", ((7, 8), 3, 24, (3, 3)), {"stride": (1, 2), "groups": 3}, (False, False, True)),
    ("few_lanes", ((7, 8), 4, 8, (2, 3)), {"padding": (1, 2), "groups": 4}, (True, True, True)),
    ("strides", ((13, 12), 34, 34, (3, 4)), {"stride": (2, 3), "padding": (1, 2), "groups": 17}, (True, True, True)),
    ("dilated", ((12, 13), 16, 32, (3, 3)), {"dilation": (2, 3), "groups": 8}, (True, True, True)),
    ("long_strides", ((12, 13), 16, 32, (2, 2)), {"stride": (5, 2), "groups": 8}, (True, False, True)),
    ("two_of_eight", ((10, 13), 24, 27, (3, 4)), {"stride": (2, 3), "groups": 3}, (False, True, False)),
    ("pairs_of_eight", ((10, 13), 32, 36, (3, 3)), {"stride": (2, 1), "groups": 4}, (False, True, False)),
    ("pointwise", ((6, 5), 32, 32, SINGLE), {"groups": 8}, (False, False, False)),
    ("window_above_image", ((2, 3), 20, 40, (5, 7)), {"padding": (3, 4), "groups": 20}, (True, True, True)),
    ("wide_image", ((3, 300), 24, 24, (3, 3)), {"padding": (1, 1), "groups": 6, "images": 1}, (True, True, True)),
    ("many_images", ((5, 4), 8, 16, (3, 3)), {"padding": (1, 1), "groups": 8, "images": 70}, (True, True, True)),
    ("too_many_values", ((9, 9), 16, 16, (7, 7)), {"padding": (3, 3), "groups": 4}, (True, True, False)),
    ("depthwise", ((9, 8), 20, 20, (5, 4)), {"stride": (2, 3), "groups": 20}, (False, False, False)),
    ("replicated", ((6, 7), 16, 32, (3, 3)), {"padding": (2, 1), "groups": 16, "edge": "clamp"}, (False,) * 3),
]
IDS = [case[0] for case in CASES]


@pytest.fixture(scope="module", autouse=True)
def no_tiles() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolution_weights, "algorithm_for", lambda device: Algorithm.SIMDGROUPS)
        patch.setattr(convolution_group_rows, "plan_gather", lambda *geometry: None)
        yield


def spreads(layer: Layer) -> tuple[bool, ...]:
    return tuple(name in ("small_groups", "groups_of_eight") for name in names(layer))


@pytest.mark.parametrize(("arguments", "options", "expected"), [case[1:] for case in CASES], ids=IDS)
def test_each_case_against_the_references(arguments, options, expected):
    layer = make(*arguments, **options)
    with always_by_eights():
        assert spreads(layer) == expected
        check_against_the_references(layer, runs=3)
    if mg.default_device().tuning == "cpu":
        assert spreads(layer) == expected
        check_against_the_references(layer)


@pytest.mark.skipif(mg.default_device().tuning != "cpu", reason="for CPUs with many registers")
@pytest.mark.parametrize(("stride", "expected"), [(1, "small_groups"), (2, "patches")])
def test_weights_of_one_channel_to_lanes_that_are_copied_one_by_one(stride, expected):
    layer = make((7, 8), 3, 15, (3, 3), stride=(1, stride), groups=3)
    assert names(layer)[2] == expected
    check_against_the_references(layer)


@pytest.mark.skipif(mg.default_device().tuning != "cpu", reason="for CPUs with many registers")
@pytest.mark.parametrize(("stride", "expected"), [((1, 1), (False, False)), ((2, 3), (False, True))])
def test_few_groups_that_leave_lanes_empty_are_left_to_others_where_windows_overlap(stride, expected):
    layer = make((9, 13), 6, 6, (2, 3), padding=(1, 1), stride=stride, groups=3)
    assert spreads(layer)[:2] == expected
    check_against_the_references(layer)


@pytest.mark.skipif(mg.default_device().tuning != "cpu", reason="for simdgroups of two registers")
@pytest.mark.parametrize(("channels", "expected"), [(255, False), (260, True)])
def test_weights_of_depthwise_layers_whose_pixels_lie_far_apart(channels, expected):
    layer = make((9, 8), channels, channels, (5, 4), stride=(2, 3), padding=(2, 2), groups=channels)
    assert spreads(layer) == (False, False, expected)
    check_against_the_references(layer)


@pytest.mark.parametrize(("arguments", "options", "expected"), [case[1:] for case in CASES], ids=IDS)
def test_only_the_clip_rectangle_is_written(arguments, options, expected):
    check_in_a_part_of_larger_images(make(*arguments, **options), before=0, behind=0)


@st.composite
def layers_of_small_groups(draw: Any) -> Layer:
    """Up to 4 channels in a group, up to 40 groups, any window."""
    size = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    kernel = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    dilation = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    padding = tuple(draw(st.integers(max(0, (e - n + 1) // 2), e)) for e, n in zip(extents, size, strict=True))
    groups, inputs = draw(st.integers(2, 40)), draw(st.integers(1, 4))
    lanes = draw(st.integers(1, max(4, 15 // inputs)))
    return make(
        size,
        groups * inputs,
        groups * lanes,
        kernel,
        groups=groups,
        padding=padding,
        dilation=dilation,
        stride=(draw(st.integers(1, 3)), draw(st.integers(1, 3))),
        images=draw(batch_sizes()),
    )


@given(layers_of_small_groups())
@settings(max_examples=40)
def test_random_layers_against_the_references(layer):
    check_against_the_references(layer)
