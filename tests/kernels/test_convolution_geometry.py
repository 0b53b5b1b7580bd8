"""What follows from the geometry of a convolution, against what its single windows and elements say."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsgrad.kernels.convolution_axis import plain_axes, share_inside
from mpsgrad.kernels.convolution_geometry import POINT, ConvolutionGeometry


@st.composite
def layouts(draw, width: int, height: int, channels: int, images: int) -> tuple[int, ...]:
    pixel = channels + draw(st.sampled_from([0, 0, 2]))
    row = pixel * width + draw(st.sampled_from([0, 0, 3]))
    image = row * height + draw(st.sampled_from([0, 0, 5]))
    return draw(st.integers(0, 4)), pixel, row, image, width, height, channels, images


@st.composite
def geometries(draw, *, is_pointwise: bool = False) -> ConvolutionGeometry:
    size, few = st.integers(1, 4), st.integers(1, 3)
    (width, height), images, groups = draw(st.tuples(size, size)), draw(few), draw(few)
    inputs, outputs = groups * draw(few), groups * draw(few)
    result_size = (width, height) if is_pointwise else draw(st.tuples(size, size))
    source = draw(layouts(width, height, inputs, images))
    result = draw(layouts(*result_size, outputs, images))
    taps, origin = st.integers(1, 3), st.integers(-2, 2)
    window = draw(st.tuples(taps, taps, taps, taps, taps, taps, origin, origin))
    if is_pointwise:
        window = (*POINT[:4], *window[4:6], *POINT[6:])
    return ConvolutionGeometry(source, result, window, groups)


def elements(layout: tuple[int, ...]) -> list[int]:
    """Where each element lies, image by image, row by row, pixel by pixel."""
    start, pixel, row, image, width, height, channels, images = layout
    each = itertools.product(range(images), range(height), range(width), range(channels))
    return [start + n * image + y * row + x * pixel + c for n, y, x, c in each]


@given(geometries())
def test_counts_and_reach_are_those_of_the_windows(geometry):
    width, height, stride_x, stride_y, dilation_x, dilation_y, origin_x, origin_y = geometry.window
    *_, columns, rows, _, images = geometry.result
    windows = list(itertools.product(range(images), range(rows), range(columns)))
    taps = list(itertools.product(range(height), range(width)))
    reads = {
        (origin_x + stride_x * x + dilation_x * tap_x, origin_y + stride_y * y + dilation_y * tap_y)
        for _, y, x in windows
        for tap_y, tap_x in taps
    }
    size = geometry.source[4:6]
    inside = {(x, y) for x, y in reads if 0 <= x < size[0] and 0 <= y < size[1]}
    assert geometry.reaches_outside((0, 0), size) == (inside != reads)
    assert (geometry.pixels, geometry.taps) == (len(windows), len(taps))
    assert geometry.weights_count == geometry.outputs * len(taps) * geometry.group_inputs
    assert geometry.ends(is_gradient=False) == geometry.ends(is_gradient=True)[::-1]
    if geometry.is_fully_connected:
        assert reads == inside and len(reads) == size[0] * size[1] and columns == rows == geometry.groups == 1


@given(geometries(is_pointwise=True))
def test_joined_images_have_the_same_elements_in_the_same_order(geometry):
    assert geometry.is_pointwise
    joined = geometry.in_one_row()
    if joined is not None:
        assert joined.source[5] == joined.source[7] == joined.result[5] == joined.result[7] == 1
        assert elements(joined.source) == elements(geometry.source)
        assert elements(joined.result) == elements(geometry.result)
    for name in ("source", "result"):
        *_, width, height, channels, images = layout = getattr(geometry, name)
        dense = (0, channels, width * channels, height * width * channels, *layout[4:])
        geometry = replace(geometry, **{name: dense})
    assert geometry.in_one_row() is not None


@given(geometries())
def test_a_fully_connected_source_is_one_pixel_with_the_same_elements(geometry):
    *_, width, height, inputs, images = geometry.source
    result = (*geometry.result[:4], 1, 1, geometry.outputs, images)
    geometry = replace(geometry, result=result, window=(width, height, 1, 1, 1, 1, 0, 0), groups=1)
    assert geometry.is_fully_connected
    joined = geometry.with_long_pixels()
    is_dense = geometry.source[1:3] == (inputs, width * inputs)
    assert joined is not None or not is_dense
    if joined is not None:
        assert joined.is_pointwise and joined.inputs == width * height * inputs
        assert elements(joined.source) == elements(geometry.source)


@given(geometries(), st.booleans())
def test_the_share_of_taps_inside_is_that_of_each_pixel_and_tap(geometry, is_gradient):
    extent = geometry.ends(is_gradient)[0][4]
    axis = plain_axes(geometry, is_gradient)[0]
    positions = [
        axis.stride * axis.divisor * pixel + axis.origin + phase + axis.step * tap
        for pixel, phase, tap in itertools.product(range(axis.size), range(axis.divisor), range(axis.taps))
    ]
    used = [position // axis.divisor for position in positions if position % axis.divisor == 0]
    inside = sum(0 <= pixel < extent for pixel in used)
    assert share_inside(axis, extent) == inside / max(len(used), 1)


def rows_of_taps(geometry: ConvolutionGeometry, column: int) -> list[range]:
    """Where the values of each row of taps of a window in that column lie that has its first tap in row 0."""
    start, pixel, row, *_, channels, _ = geometry.source
    (x, y), taps = geometry.axes, geometry.window[1]
    assert x.dilation == 1 and pixel == channels
    firsts = (start + y.dilation * tap * row + (x.origin + x.stride * column) * pixel for tap in range(taps))
    return [range(first, first + x.taps * channels) for first in firsts]


@pytest.mark.parametrize("other", ["", "pixel", "width", "stride", "dilation", "origin", "groups", "replicates"])
@given(geometry=geometries())
def test_joined_columns_have_the_values_of_a_row_of_taps(geometry, other):
    """They exist where windows lie side by side along x, and not if anything is ``other`` than that needs."""
    start, _, row, image, _, *others = geometry.source
    (taps, taps_y, _, stride_y, _, dilation_y, _, origin_y), columns = geometry.window, geometry.result[4]
    pixel, width = geometry.inputs + (other == "pixel"), taps * columns + (other == "width")
    of_x = taps + (other == "stride"), 1 + (other == "dilation"), int(other == "origin")
    geometry = replace(
        geometry,
        source=(start, pixel, row, image, width, *others),
        window=(taps, taps_y, of_x[0], stride_y, of_x[1], dilation_y, of_x[2], origin_y),
        groups=2 if other == "groups" else 1,
        replicates=other == "replicates",
    )
    joined = geometry.with_joined_columns()
    assert (joined is not None) == (taps > 1 and other == "")
    if joined is not None:
        assert joined.window[0] == 1 and joined.source[4] == joined.result[4]
        assert elements(joined.source) == elements(geometry.source)
        for column in range(columns):
            assert rows_of_taps(joined, column) == rows_of_taps(geometry, column)
        assert joined.window_values == geometry.window_values
        assert (joined.result, joined.axes[1]) == (geometry.result, geometry.axes[1])
