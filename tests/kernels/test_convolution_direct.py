"""Convolutions whose values are sums of few products by their kernels for GPUs, on whatever device the tests have."""

from __future__ import annotations

from collections.abc import Iterator

import gpu_forms
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_convolution import Layer
from test_convolution_tiles import UNITS, forget_plans, kernels_of_transposed, layout
from test_convolution_variants import (
    check_against_the_references,
    check_in_a_part_of_larger_images,
    make,
    names,
)

import mpsgrad as mg
from mpsgrad import testing
from mpsgrad.kernels import convolution_direct, convolution_tiles, convolution_weights
from mpsgrad.kernels.convolution_direct import is_faster
from mpsgrad.kernels.convolution_dispatch import Algorithm
from mpsgrad.kernels.convolution_geometry import ConvolutionGeometry
from mpsgrad.testing import assert_within, batch_sizes, channel_formats


@pytest.fixture(scope="module", autouse=True)
def wherever_possible() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolution_weights, "algorithm_for", lambda device: Algorithm.TILES)
        patch.setattr(convolution_direct, "is_faster", lambda *products: True)
        patch.setattr(convolution_direct, "MOST_STEPS", 1 << 20)
        patch.setattr(testing, "CHANNEL_FORMATS", gpu_forms.FORMATS)
        forget_plans()
        yield
    forget_plans()


@pytest.fixture(params=[True, False], ids=["a pixel", "pixels"])
def of_one(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """How many pixels a thread has."""
    monkeypatch.setattr(convolution_direct, "FEWEST_THREADS_PER_UNIT", 1 << 20 if request.param else 0)
    forget_plans()
    yield 1 if request.param else 4
    forget_plans()


# (geometry, options, how many channels the kernel and that of the data gradient read at a time, and how many fours of
# those of the result a thread with several pixels has)
LAYERS = [
    (((9, 11), 8, 4, (3, 3)), {"padding": (1, 1)}, "44", "12"),
    (((9, 11), 7, 35, (3, 2)), {"padding": (1, 0)}, "11", "32"),
    (((20, 18), 1, 40, (3, 3)), {"padding": (1, 1), "stride": (2, 3)}, "14", "21"),
    (((13, 17), 4, 1, (1, 1)), {"stride": (3, 3)}, "41", "11"),
    (((11, 10), 3, 6, (3, 4)), {"stride": (2, 2), "dilation": (2, 1), "padding": (2, 2)}, "11", "21"),
    (((9, 9), 12, 3, (2, 2)), {"stride": (4, 2), "dilation": (2, 2)}, "41", "13"),
    (((4, 5), 2, 67, (5, 6)), {"padding": (3, 4), "images": 5}, "11", "11"),
    (((1, 1), 8, 8, (1, 1)), {"images": 7}, "44", "22"),
]


@pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
@pytest.mark.parametrize(("arguments", "options", "widths", "fours"), LAYERS)
def test_each_kernel_against_the_references(arguments, options, widths, fours, of_one, dtype):
    layer = make(*arguments, **options, dtype=dtype)
    results = "11" if of_one == 1 else fours
    assert names(layer)[:2] == tuple(
        f"direct_by_{width}_of_{of_one}_to_{4 * int(count)}" for width, count in zip(widths, results, strict=True)
    )
    check_against_the_references(layer, runs=2)


@pytest.mark.parametrize(("inputs", "outputs", "width"), [(3, 24, 4), (5, 15, 1)])
def test_strided_data_gradients_of_groups_of_one_channel(inputs, outputs, width, of_one):
    layer = make((10, 8), inputs, outputs, (1, 2), stride=(3, 3), groups=inputs)
    forward, gradient, _ = names(layer)
    assert forward.startswith("tiles") and gradient == f"direct_in_groups_by_{width}_of_{of_one}"
    check_against_the_references(layer, runs=2)


@pytest.mark.parametrize(("before", "behind"), [(0, 4), (4, 2)])
def test_channels_in_a_part_of_larger_images(before, behind, of_one):
    check_in_a_part_of_larger_images(make((9, 11), 4, 8, (3, 3), padding=(1, 1)), before, behind)


@st.composite
def layers_of_few_products(draw: st.DrawFn) -> Layer:
    kernel = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    size = draw(st.integers(1, 20)), draw(st.integers(1, 20))
    dilation = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    extent = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True))
    least = tuple(max(0, (e - n + 1) // 2) for e, n in zip(extent, size, strict=True))
    return make(
        size,
        draw(st.integers(1, 9)),
        draw(st.sampled_from([1, 3, 4, 30, 36, 65])),
        kernel,
        stride=(draw(st.integers(1, 4)), draw(st.integers(1, 4))),
        dilation=dilation,
        padding=(draw(st.integers(least[0], least[0] + 2)), draw(st.integers(least[1], least[1] + 2))),
        images=draw(batch_sizes()),
        dtype=draw(channel_formats()).dtype,
    )


@given(layers_of_few_products(), st.booleans())
@settings(max_examples=30)
def test_random_layers(layer, is_of_one):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolution_direct, "FEWEST_THREADS_PER_UNIT", 1 << 20 if is_of_one else 0)
        forget_plans()
        check_against_the_references(layer)
    forget_plans()


def test_a_value_that_is_not_finite_reaches_its_window_alone():
    layer = make((12, 13), 3, 8, (3, 3), padding=(1, 1), images=1)
    layer.source[0, 5, 6, 1] = np.nan
    with mg.CommandBuffer() as commands:
        result = layer.convolution().encode(commands, mg.Image.from_array(layer.source))
    y = np.array(result)
    outside = np.ones(y.shape, bool)
    outside[0, 4:7, 5:8] = False
    assert np.isnan(y[~outside]).all()
    assert_within(y[outside], layer.expected[outside], layer.forward_bound[outside])


def test_a_transposed_convolution_adds_its_biases(monkeypatch):
    kernels = kernels_of_transposed(monkeypatch, convolution_direct, "plan_gather", 5)
    assert kernels == ["convolution_direct_by_1_of_1_to_4"] * 2


@pytest.mark.parametrize(
    ("metal_type", "products", "channels", "results", "expected"),
    [
        ("float", 48, 4, 208, True),
        ("float", 48, 4, 209, False),
        ("float", 49, 49, 13, False),
        ("float", 16, 2, 32, True),
        ("float", 27, 3, 20, False),
        ("float", 144, 4, 12, True),
        ("float", 145, 5, 1, False),
        ("float", 33, 33, 2, False),
        ("half", 9, 1, 412, True),
        ("half", 9, 1, 408, False),
        ("half", 10, 5, 60, True),
        ("half", 10, 5, 65, False),
        ("half", 36, 9, 16, True),
        ("half", 37, 37, 5, False),
        ("half", 48, 12, 12, True),
        ("half", 49, 12, 5, False),
        ("half", 36, 4, 20, True),
        ("half", 36, 4, 21, False),
        ("float", 16, 1, 32, True),
        ("float", 17, 1, 8, False),
        ("float", 25, 1, 4, True),
        ("half", 48, 12, 4, True),
        ("half", 49, 49, 1, False),
    ],
)
def test_long_sums_and_those_of_many_channels_are_left_to_tiles(metal_type, products, channels, results, expected):
    assert is_faster(metal_type, products, channels, results) is expected


@pytest.mark.parametrize(
    ("images", "size", "kernel", "channels", "expected"),
    [(1, 30, 3, 3, False), (64, 128, 3, 3, True), (1, 30, 1, 32, True), (1, 30, 3, 5, False), (1, 30, 3, 4, True)],
)
def test_few_threads_do_not_wait_for_many_products(images, size, kernel, channels, expected, monkeypatch):
    monkeypatch.setattr(convolution_direct, "is_faster", is_faster)
    monkeypatch.setattr(convolution_direct, "MOST_STEPS", 10)
    forget_plans()
    window = kernel, kernel, 1, 1, 1, 1, -(kernel // 2), -(kernel // 2)
    geometry = ConvolutionGeometry(layout(images, size, channels), layout(images, size, 8), window)
    plan = convolution_tiles.plan_gather(geometry, False, "float", "nvidia", UNITS)
    assert plan is not None and plan.kernel.startswith("convolution_direct") == expected
    forget_plans()


def test_groups_of_several_channels_and_replicated_edges_are_left_to_tiles():
    assert not names(make((9, 11), 6, 4, (3, 3), groups=2))[0].startswith("direct")
    assert not names(make((9, 11), 4, 8, (3, 3), groups=4))[1].startswith("direct")
    window = 1, 1, 3, 3, 1, 1, 0, 0
    for of_group, of_halves in ((8, True), (3, False)):
        geometry = ConvolutionGeometry(layout(2, 99, 5), layout(2, 33, 5 * of_group), window, 5)
        plans = (convolution_direct.plan_gather(geometry, True, metal_type, UNITS) for metal_type in ("float", "half"))
        assert [plan is not None for plan in plans] == [True, of_halves]
    assert not names(make((6, 7), 3, 4, (3, 3), padding=(1, 1), edge="clamp"))[0].startswith("direct")
