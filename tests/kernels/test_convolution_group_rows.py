"""Convolutions with groups of up to 32 channels on CPUs whose threads keep the rows that their windows reach."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_convolution import Layer
from test_convolution_variants import check_against_the_references, check_in_a_part_of_larger_images, make, names

import mpsgrad as mg
from mpsgrad.tunables import WHERE_FEWER, tunables

pytestmark = pytest.mark.skipif(
    mg.default_device().family != "cpu" or tunables(mg.default_device().tuning).convolution_by_eights != WHERE_FEWER,
    reason="for CPUs with registers of 16 floats",
)

# (name, layer's arguments, which of the forward kernel and the data gradient keep rows)
CASES = [
    ("pairs_of_eight", ((5, 22), 48, 48, (3, 3)), {"padding": (1, 1), "groups": 6}, (True, True)),
    ("strides_of_eight", ((11, 31), 32, 32, (3, 3)), {"stride": (2, 2), "padding": (1, 1), "groups": 4}, (True, True)),
    ("odd_groups_of_eight", ((5, 6), 24, 24, (3, 3)), {"padding": (1, 1), "groups": 3}, (True, True)),
    ("last_pair_in_two_blocks", ((9, 8), 40, 40, (3, 3)), {"stride": (2, 2), "groups": 5}, (True, True)),
    ("twelve_to_nine", ((6, 15), 36, 27, (3, 3)), {"padding": (1, 1), "groups": 3}, (True, True)),
    ("strides_of_twelve", ((11, 31), 24, 24, (3, 3)), {"stride": (2, 2), "padding": (1, 1), "groups": 2}, (True, True)),
    ("one_to_eight", ((11, 31), 5, 40, (3, 3)), {"stride": (2, 2), "padding": (1, 1), "groups": 5}, (True, False)),
    ("eight_to_three", ((9, 17), 32, 12, (3, 3)), {"stride": (2, 2), "padding": (1, 1), "groups": 4}, (False, True)),
    ("narrow_to_eight", ((7, 5), 15, 24, (3, 3)), {"padding": (1, 1), "groups": 3}, (False, False)),
    ("one_to_fifteen", ((7, 13), 3, 45, (2, 3)), {"groups": 3}, (True, False)),
    ("ten_to_two_blocks", ((7, 8), 20, 64, (3, 3)), {"padding": (1, 1), "groups": 2}, (True, True)),
    ("seven_to_two_blocks", ((7, 8), 14, 64, (3, 3)), {"padding": (1, 1), "groups": 2}, (False, False)),
    ("narrow", ((7, 5), 24, 24, (3, 3)), {"padding": (1, 1), "groups": 2}, (False, False)),
    ("sixteen", ((6, 7), 48, 48, (3, 3)), {"padding": (1, 1), "groups": 3, "images": 5}, (True, True)),
    ("strides", ((12, 30), 32, 32, (3, 3)), {"stride": (2, 2), "padding": (1, 1), "groups": 2}, (True, True)),
    ("long_strides", ((13, 20), 32, 32, (2, 3)), {"stride": (3, 4), "groups": 2}, (False, True)),
    ("rows_apart", ((13, 20), 32, 32, (2, 3)), {"stride": (4, 1), "groups": 2}, (True, True)),
    ("more_of_either", ((7, 9), 64, 96, (3, 3)), {"padding": (1, 1), "groups": 2}, (True, False)),
    ("dilated", ((12, 13), 32, 64, (3, 3)), {"dilation": (2, 3), "padding": (2, 1), "groups": 2}, (True, True)),
    ("even_windows", ((9, 8), 32, 32, (4, 2)), {"padding": (1, 0), "groups": 2}, (True, True)),
    ("window_above_image", ((2, 3), 32, 32, (5, 7)), {"padding": (3, 4), "groups": 4}, (True, True)),
    ("too_wide_image", ((3, 350), 32, 32, (3, 3)), {"padding": (1, 1), "groups": 2, "images": 1}, (False, False)),
    ("many_images", ((3, 4), 32, 32, (3, 3)), {"padding": (1, 1), "groups": 4, "images": 70}, (True, True)),
    ("pointwise", ((5, 4), 32, 32, (1, 1)), {"groups": 2}, (False, False)),
    ("replicated", ((6, 7), 32, 32, (3, 3)), {"padding": (1, 1), "groups": 2, "edge": "clamp"}, (False, False)),
]
IDS = [case[0] for case in CASES]


def keep(layer: Layer) -> tuple[bool, ...]:
    return tuple(name.startswith("group_rows") for name in names(layer)[:2])


@pytest.mark.parametrize(("arguments", "options", "expected"), [case[1:] for case in CASES], ids=IDS)
def test_each_case_against_the_references(arguments, options, expected):
    layer = make(*arguments, **options)
    assert keep(layer) == expected
    check_against_the_references(layer, runs=2)


@pytest.mark.parametrize("channels", [8, 16])
@pytest.mark.parametrize("stride", [1, 2])
def test_only_the_clip_rectangle_is_written(channels, stride):
    layer = make((9, 17), 32, 32, (3, 3), padding=(1, 1), stride=(stride, stride), groups=32 // channels)
    check_in_a_part_of_larger_images(layer, before=16, behind=16)


@st.composite
def layers_of_groups(draw: Any) -> Layer:
    """Groups of 3 to 32 channels, any window."""
    size = draw(st.integers(1, 9)), draw(st.integers(1, 20))
    kernel = draw(st.integers(1, 5)), draw(st.integers(2, 5))
    dilation = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    padding = tuple(draw(st.integers(max(0, (e - n + 1) // 2), e)) for e, n in zip(extents, size, strict=True))
    inputs, outputs = draw(st.sampled_from([(8, 8), (16, 16), (32, 16), (16, 32), (12, 9), (20, 13), (3, 8)]))
    groups = draw(st.integers(2, 5))
    return make(
        size,
        groups * inputs,
        groups * outputs,
        kernel,
        groups=groups,
        padding=padding,
        dilation=dilation,
        stride=(draw(st.integers(1, 3)), draw(st.integers(1, 3))),
        images=draw(st.integers(1, 3)),
    )


@given(layers_of_groups())
@settings(max_examples=25)
def test_random_layers_against_the_references(layer):
    assert layer.geometry["stride"][1] > 2 or layer.result_shape[2] < 6 or keep(layer)[0]
    check_against_the_references(layer)
