"""The reference of padding policies: what sizes and offsets along an axis mean."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsgrad import reference

sizes = st.integers(1, 40)
extents = st.integers(1, 12)
strides = st.integers(1, 9)
methods = st.sampled_from(["valid", "same", "full"])


@settings(deadline=None)
@given(sizes, extents, strides)
def test_sizes_follow_their_usual_meaning(n, extent, stride):
    assert reference.padding_size(n, extent, stride, "same") == -(-n // stride)
    assert reference.padding_size(n, extent, stride, "full") == -(-(n + extent - 1) // stride)
    if n >= extent:
        assert reference.padding_size(n, extent, stride, "valid") == (n - extent) // stride + 1


@settings(deadline=None)
@given(sizes, extents)
def test_a_window_larger_than_the_image_leaves_no_valid_result(n, extra):
    with pytest.raises(ValueError, match="must be at least 1"):
        reference.padding_size(n, n + extra, 1, "valid")


@settings(deadline=None)
@given(sizes, extents, strides, st.sampled_from([("valid", "full"), ("same", "same"), ("full", "valid")]))
def test_the_reverse_size_of_the_opposite_method_is_the_smallest_source_of_that_size(n, extent, stride, methods):
    there, back = methods
    if there == "valid" and n < extent:
        return
    size = reference.padding_size(n, extent, stride, there)
    if there == "full" and (size - 1) * stride + 1 < extent:
        return
    undone = reference.padding_reverse_size(size, extent, stride, back)
    assert reference.padding_size(undone, extent, stride, there) == size
    assert n - stride < undone <= n


@settings(deadline=None)
@given(sizes, extents, strides, methods, st.sampled_from(["top_left", "bottom_right"]))
def test_centred_windows_leave_as_much_on_both_sides(n, extent, stride, method, remainder):
    if method == "valid" and n < extent:
        return
    size = reference.padding_size(n, extent, stride, method)
    offset = reference.padding_offset(n, size, extent, stride, remainder=remainder)
    left = extent // 2 - offset
    right = offset - extent // 2 + (size - 1) * stride + extent - n
    extra = (size - 1) * stride + extent - n
    assert left + right == extra
    if extra >= 0:
        assert left - right == (extra % 2 if remainder == "top_left" else -(extra % 2))
    else:
        assert abs(left - right) <= 2


@settings(deadline=None)
@given(sizes, extents, strides)
def test_aligned_windows_start_or_end_at_the_border(n, extent, stride):
    size = reference.padding_size(n, extent, stride, "same")
    first_tap = reference.padding_offset(n, size, extent, stride, "bottom_right") - extent // 2
    assert first_tap == 0
    first_tap = reference.padding_offset(n, size, extent, stride, "top_left") - extent // 2
    assert first_tap + (size - 1) * stride + extent == n


@pytest.mark.parametrize(
    ("n", "size", "extent", "stride", "remainder", "offset"),
    [
        (6, 1, 3, 4, "top_left", 2),  # extra -3: -2 / 2 = -1
        (4, 1, 2, 3, "top_left", 1),  # extra -2: -1 / 2 truncates to 0, where flooring gives -1
        (6, 2, 3, 3, "top_left", 1),  # extra 0
        (7, 1, 2, 3, "bottom_right", 3),  # extra -5: -5 / 2 truncates to -2, where flooring gives -3
    ],
)
def test_division_truncates_toward_zero(n, size, extent, stride, remainder, offset):
    assert reference.padding_offset(n, size, extent, stride, remainder=remainder) == offset
