"""Convolutions whose results have few channels on CPUs whose threads have pixels in their lanes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_convolution import EDGES, Layer
from test_convolution_variants import (
    SINGLE,
    always_by_eights,
    check_additions_to_a_state,
    check_against_the_references,
    check_in_a_part_of_larger_images,
    make,
    names,
)

import mpsgrad as mg
from mpsgrad.kernels import convolution_planes, convolution_weights
from mpsgrad.kernels.convolution_dispatch import Algorithm
from mpsgrad.testing import batch_sizes

pytestmark = pytest.mark.skipif(mg.default_device().family != "cpu", reason="for CPUs")

# (name, layer's arguments, which of the forward kernel, the data gradient and the weight gradient use planes)
CASES = [
    *(
        (f"to_{outputs}", ((9, 17), inputs, outputs, (3, 4)), {"padding": (1, 2)}, (True, True, True))
        for outputs, inputs in enumerate((1, 2, 3, 4, 9, 5, 7, 8), start=1)
    ),
    ("to_ten", ((9, 37), 2, 10, (5, 7)), {"padding": (2, 3)}, (True, True, True)),
    ("from_many", ((9, 17), 40, 3, (3, 3)), {"padding": (1, 1)}, (True, True, True)),
    ("in_two_packs", ((7, 10), 39, 37, (3, 3)), {"padding": (1, 1)}, (True, True, False)),
    ("phases", ((14, 19), 3, 10, (3, 5)), {"stride": (2, 3), "padding": (1, 2)}, (True, True, False)),
    ("phases_without_taps", ((11, 13), 3, 5, (2, 2)), {"stride": (3, 4)}, (True, True, False)),
    ("phases_of_one", ((11, 13), 1, 5, (2, 2)), {"stride": (2, 2)}, (True, False, False)),
    *(
        (f"by_{inputs}", ((9, 40), inputs, 6, (4, 4)), {"stride": (2, 2), "padding": (1, 1)}, (True, True, False))
        for inputs in (2, 3, 4, 5, 20)
    ),
    ("stride_from_outside", ((8, 70), 2, 3, (3, 5)), {"stride": (1, 4), "padding": (2, 4)}, (True, True, False)),
    ("stride_in_packs", ((13, 40), 39, 35, (2, 3)), {"stride": (3, 2), "padding": (1, 2)}, (True, True, False)),
    (
        "replicated_stride",
        ((9, 50), 3, 5, (3, 4)),
        {"stride": (2, 3), "padding": (2, 3), "edge": "clamp"},
        (True, False, False),
    ),
    ("apart", ((11, 71), 4, 6, (1, 2)), {"stride": (3, 4)}, (True, True, False)),
    ("pixels_apart", ((10, 50), 3, 7, SINGLE), {"stride": (1, 2)}, (True, True, False)),
    ("dilated", ((11, 19), 3, 2, (3, 3)), {"dilation": (2, 3), "padding": (2, 3)}, (True, True, True)),
    ("dilated_phases", ((12, 19), 3, 6, (3, 3)), {"dilation": (2, 3), "stride": (2, 2)}, (True, True, False)),
    ("replicated", ((6, 17), 3, 5, (3, 4)), {"padding": (2, 3), "edge": "clamp"}, (True, False, True)),
    ("window_above_image", ((2, 3), 2, 6, (5, 7)), {"padding": (3, 4)}, (True, True, False)),
    ("rows_outside", ((10, 9), 16, 6, (5, 4)), {"padding": (4, 3)}, (True, True, True)),
    ("rows_outside_in_packs", ((5, 4), 9, 11, (5, 5)), {"dilation": (2, 1), "padding": (8, 4)}, (True, True, False)),
    ("wide_windows", ((11, 16), 2, 3, (1, 9)), {"padding": (0, 4)}, (True, True, True)),
    ("wide_images", ((3, 1200), 5, 3, (3, 3)), {"padding": (1, 1)}, (True, True, True)),
    ("many_images", ((8, 7), 3, 4, (3, 3)), {"padding": (1, 1), "images": 70}, (True, True, True)),
    ("too_many_outputs", ((6, 9), 3, 50, (3, 3)), {}, (False, True, False)),
    ("from_many_to_nine", ((9, 17), 16, 9, (3, 3)), {"padding": (1, 1)}, (True, True, False)),
    ("one_pixel", ((6, 9), 3, 3, SINGLE), {}, (True, True, True)),
    *((f"pixels_of_{count}", ((3, 19), count, 9 - count, SINGLE), {}, (True, True, True)) for count in (1, 2, 3, 4)),
    ("pixels_of_many", ((5, 40), 37, 13, SINGLE), {}, (True, True, False)),
    ("fully_connected", ((6, 9), 3, 3, (6, 9)), {}, (False, False, False)),
    ("groups", ((6, 9), 4, 4, (3, 3)), {"groups": 2}, (False, False, False)),
]
IDS = [case[0] for case in CASES]


@pytest.fixture(scope="module", autouse=True)
def no_tiles() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolution_weights, "algorithm_for", lambda device: Algorithm.SIMDGROUPS)
        yield


@contextmanager
def wherever_possible(**values: int) -> Iterator[None]:
    """Has small images computed in planes, too, which are mostly windows' edges, with these ``values`` of limits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolution_planes, "_work_of_others", lambda *geometry: float("inf"))
        patch.setattr(convolution_planes, "_divides_runs", lambda numbers: True)
        patch.setattr(convolution_planes, "MOST_OUTPUTS_OF_FEW_VALUES", convolution_planes.MOST_OUTPUTS)
        patch.setattr(convolution_planes, "MOST_GRADIENTS_OF_FEW_REGISTERS", convolution_planes.MOST_GRADIENTS)
        for name, value in values.items():
            patch.setattr(convolution_planes, name, value)
        for plan in convolution_planes.plan_gather, convolution_planes.plan_weights:
            plan.cache_clear()
        yield
    for plan in convolution_planes.plan_gather, convolution_planes.plan_weights:
        plan.cache_clear()


def uses_planes(layer: Layer) -> tuple[bool, ...]:
    return tuple(name == "planes" for name in names(layer))


@pytest.mark.parametrize("eights", [always_by_eights, nullcontext])
@pytest.mark.parametrize(("arguments", "options", "expected"), [case[1:] for case in CASES], ids=IDS)
def test_each_case_against_the_references(arguments, options, expected, eights):
    layer = make(*arguments, **options)
    with wherever_possible(), eights():
        assert uses_planes(layer) == expected
        check_against_the_references(layer, runs=2)


@pytest.mark.parametrize(("arguments", "options", "expected"), [case[1:] for case in CASES], ids=IDS)
def test_only_the_clip_rectangle_is_written(arguments, options, expected):
    layer = make(*arguments, **options)
    with wherever_possible():
        check_in_a_part_of_larger_images(layer, before=0, behind=0)
        check_in_a_part_of_larger_images(layer, before=4, behind=0)


def test_channels_that_do_not_fit_are_copied_in_chunks():
    layer = make((20, 19), 39, 5, (3, 3), padding=(1, 1))
    with wherever_possible(PLANE_VALUES=16 * 110):
        assert uses_planes(layer) == (True, True, True)
        check_against_the_references(layer)
    with wherever_possible(PLANE_VALUES=4 * 3 * 3):
        assert uses_planes(layer) == (False, False, False)


@st.composite
def layers_of_few(draw: Any) -> Layer:
    """Up to 12 channels on either side, and any window."""
    size = draw(st.integers(1, 20)), draw(st.integers(1, 40))
    kernel = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    padding = tuple(draw(st.integers(max(0, (k - n + 1) // 2), k)) for k, n in zip(kernel, size, strict=True))
    return make(
        size,
        draw(st.integers(1, 12)),
        draw(st.integers(1, 12)),
        kernel,
        padding=padding,
        stride=(draw(st.integers(1, 3)), draw(st.integers(1, 3))),
        images=draw(batch_sizes()),
        edge=draw(st.sampled_from(sorted(EDGES))),
    )


@given(layers_of_few())
@settings(max_examples=40)
def test_layers_of_few_channels_against_the_references(layer):
    with wherever_possible():
        check_against_the_references(layer)


@pytest.mark.parametrize("pixels", [1, 10**6])
def test_any_number_of_splits_adds_to_what_a_state_holds(pixels):
    with wherever_possible(FEWEST_GRADIENT_PIXELS=pixels):
        names_of_kernels = check_additions_to_a_state(make((29, 31), 3, 6, (3, 3), padding=(1, 1), images=3))
    assert ("sum_of_splits" in names_of_kernels) == (pixels == 1)


@pytest.mark.parametrize(
    ("arguments", "options", "expected"),
    [
        (((28, 28), 1, 6, (5, 5)), {"padding": (2, 2), "images": 64}, (True, True, True)),
        (((32, 32), 3, 16, (3, 3)), {"padding": (1, 1), "images": 32}, (False, True, False)),
        (((31, 31), 37, 37, (3, 3)), {"images": 5}, (True, True, False)),
        (((64, 64), 64, 1, (3, 3)), {"padding": (1, 1), "images": 8}, (True, False, True)),
        (((8, 8), 32, 32, (3, 3)), {"padding": (1, 1), "images": 8}, (False, False, False)),
    ],
)
def test_planes_are_used_where_they_take_less_work(arguments, options, expected):
    with always_by_eights():
        assert uses_planes(make(*arguments, **options)) == expected
