"""Padding policies: sizes and offsets along an axis, custom policies, TensorFlow's and PyTorch's rules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from window_kernels import WindowDifference, WindowSum
from worked_cases import PADDING

import mpsgrad as mg
from mpsgrad import reference
from mpsgrad.padding import TensorflowAveragePooling, forward_size_and_offset, transposed_size_and_offset

Method = mg.PaddingMethod
SIZES = {"valid": Method.SIZE_VALID_ONLY, "same": Method.SIZE_SAME, "full": Method.SIZE_FULL}
ALIGNMENTS = {
    "centered": Method.ALIGN_CENTERED,
    "top_left": Method.ALIGN_TOP_LEFT,
    "bottom_right": Method.ALIGN_BOTTOM_RIGHT,
}
REMAINDERS = {
    Method.ADD_REMAINDER_TO_TOP_LEFT: ("top_left", "top_left"),
    Method.ADD_REMAINDER_TO_TOP_RIGHT: ("bottom_right", "top_left"),
    Method.ADD_REMAINDER_TO_BOTTOM_LEFT: ("top_left", "bottom_right"),
    Method.ADD_REMAINDER_TO_BOTTOM_RIGHT: ("bottom_right", "bottom_right"),
}
"""For each remainder, the side along x and the side along y."""

def kernel_along(axis: str, taps: int, stride: int, dilation: int = 1) -> WindowSum:
    return WindowSum(
        **{"kernel_width": 1, "kernel_height": 1}
        | {f"kernel_{'width' if axis == 'x' else 'height'}": taps}
        | {f"stride_in_pixels_{axis}": stride, f"dilation_rate_{axis}": dilation}
    )


def applied(kernel: WindowSum, width: int, height: int) -> tuple[int, int, mg.Offset]:
    """The width and height of an automatic result, and the offset that the policy set."""
    source = mg.Image(mg.ImageDescriptor(width=width, height=height, feature_channels=2))
    descriptor = kernel.destination_image_descriptor([source])
    return descriptor.width, descriptor.height, kernel.offset


@pytest.mark.parametrize("axis", ["x", "y"])
@pytest.mark.parametrize(("n", "stride", "k", "size", "dest", "top_left", "bottom_right"), PADDING)
def test_the_table_of_worked_cases(axis, n, stride, k, size, dest, top_left, bottom_right):
    for remainder, expected in (
        (Method.ADD_REMAINDER_TO_TOP_LEFT, top_left),
        (Method.ADD_REMAINDER_TO_BOTTOM_RIGHT, bottom_right),
    ):
        kernel = kernel_along(axis, k, stride)
        kernel.padding = mg.DefaultPadding(SIZES[size] | remainder)
        width, height, offset = applied(kernel, *((n, 1) if axis == "x" else (1, n)))
        assert (width, height) == ((dest, 1) if axis == "x" else (1, dest))
        assert getattr(offset, axis) == expected


@given(
    st.sampled_from(sorted(SIZES)),
    st.sampled_from(sorted(ALIGNMENTS)),
    st.sampled_from(sorted(REMAINDERS)),
    st.tuples(*[st.integers(1, 40)] * 2),
    st.tuples(*[st.integers(1, 9)] * 2),
    st.tuples(*[st.integers(1, 6)] * 2),
    st.tuples(*[st.integers(1, 4)] * 2),
)
def test_every_policy_matches_the_reference_along_both_axes(size, align, remainder, extents, taps, strides, dilations):
    method = SIZES[size] | ALIGNMENTS[align] | remainder
    kernel = WindowSum(
        kernel_width=taps[0], kernel_height=taps[1], stride_in_pixels_x=strides[0], stride_in_pixels_y=strides[1],
        dilation_rate_x=dilations[0], dilation_rate_y=dilations[1],
    )  # fmt: skip
    kernel.padding = mg.DefaultPadding(method)
    windows = [reference.window_extent(k, d) for k, d in zip(taps, dilations, strict=True)]
    try:
        sizes = [
            reference.padding_size(n, k, s, size) for n, k, s in zip(extents, windows, strides, strict=True)
        ]
    except ValueError:
        with pytest.raises(mg.GeometryError, match=r"WindowSum: a window of \d+ pixels along [xy] does not fit"):
            applied(kernel, *extents)
        return
    offsets = [
        reference.padding_offset(n, m, k, s, align, side)
        for n, m, k, s, side in zip(extents, sizes, windows, strides, REMAINDERS[remainder], strict=True)
    ]
    assert applied(kernel, *extents) == (*sizes, mg.Offset(*offsets))


def test_a_window_that_is_one_pixel_too_large_does_not_fit():
    with pytest.raises(mg.GeometryError, match="a window of 4 pixels along x does not fit a source of 3 pixels"):
        forward_size_and_offset("kernel", "x", Method.SIZE_VALID_ONLY, 3, 4, 1)
    with pytest.raises(mg.GeometryError, match="over 2 pixels at a stride of 1 leaves 0 pixels"):
        transposed_size_and_offset("kernel", "x", Method.SIZE_VALID_ONLY, 2, 3, 1)


def test_the_default_is_the_same_size_with_the_remainder_at_the_top_left():
    kernel = WindowSum(kernel_width=2, kernel_height=2)
    assert kernel.padding == mg.SAME and mg.SAME.padding_method == Method.SIZE_SAME
    assert applied(kernel, 6, 5) == (6, 5, mg.Offset(0, 0))
    assert mg.VALID_ONLY.padding_method == Method.SIZE_VALID_ONLY


def test_negative_remainders_truncate_toward_zero():
    """extra is -2 and r is 1: C gives (-2 + 1) / 2 = 0, Python's floor -1."""
    assert forward_size_and_offset("kernel", "x", Method.SIZE_SAME, 6, 1, 3) == (2, 0)
    assert forward_size_and_offset("kernel", "x", Method.SIZE_VALID_ONLY, 6, 3, 4) == (1, 2)


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 5))
def test_tensorflow_same_wherever_pixels_are_missing(n, k, s):
    """TensorFlow: ceil(n / s) pixels, half of what is missing on the left and the odd one on the right."""
    method = Method.SIZE_SAME | Method.ADD_REMAINDER_TO_BOTTOM_RIGHT
    size, offset = forward_size_and_offset("kernel", "x", method, n, k, s)
    assert size == -(-n // s)
    missing = (size - 1) * s + k - n
    if missing >= 0:
        assert k // 2 - offset == missing // 2


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 5))
def test_valid_windows_lie_inside_the_image(n, k, s):
    if k > n:
        return
    size, offset = forward_size_and_offset("kernel", "x", Method.SIZE_VALID_ONLY, n, k, s)
    first = offset - k // 2
    assert size == (n - k) // s + 1
    assert first >= 0 and first + (size - 1) * s + k <= n


def test_z_of_the_offset_is_the_applications():
    kernel = WindowSum(kernel_width=3, kernel_height=3)
    kernel.offset = mg.Offset(9, 9, 2)
    source = mg.Image(mg.ImageDescriptor(width=5, height=5, number_of_images=5))
    assert kernel.destination_image_descriptor([source]).number_of_images == 3
    assert kernel.offset == mg.Offset(0, 0, 2)


@pytest.mark.parametrize("bits", [3, 3 << 4, 1 << 6, 0x7F0])
def test_unknown_bits_are_refused(bits):
    with pytest.raises(mg.FormatError, match=f"DefaultPadding: method {bits:#x} has an unknown (alignment|size)"):
        mg.DefaultPadding(bits)


def test_the_markers_do_not_change_the_geometry():
    plain, marked = WindowSum(kernel_width=4, kernel_height=3), WindowSum(kernel_width=4, kernel_height=3)
    marked.padding = mg.DefaultPadding(
        mg.SAME.padding_method | Method.EXCLUDE_EDGES | Method.CUSTOM_ALLOW_FOR_NODE_FUSION
    )
    assert applied(plain, 7, 8) == applied(marked, 7, 8)


def test_policies_compare_by_their_bits():
    assert mg.DefaultPadding.with_method(16) == mg.SAME == mg.DefaultPadding(Method.SIZE_SAME, label="same")
    assert hash(mg.DefaultPadding(16)) == hash(mg.SAME)
    assert mg.DefaultPadding(0) != mg.SAME and mg.DefaultPadding(0) == mg.VALID_ONLY
    assert "SIZE_SAME" in repr(mg.SAME)
    assert mg.ExplicitPadding(1, 2) == mg.ExplicitPadding(x=1, y=2) != mg.ExplicitPadding(2, 1)
    assert repr(mg.ExplicitPadding(1, 2)) == "ExplicitPadding(x=1, y=2)"


# inverse


@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.parametrize(("size", "opposite"), [("valid", "full"), ("same", "same"), ("full", "valid")])
def test_the_inverse_exchanges_valid_and_full(size, opposite, remainder):
    policy = mg.DefaultPadding(SIZES[size] | remainder | Method.ALIGN_TOP_LEFT, label="there")
    inverse = policy.inverse()
    assert inverse.padding_method == SIZES[opposite] | remainder | Method.ALIGN_TOP_LEFT
    assert inverse.label == "there" and inverse.inverse() == policy


@given(st.integers(1, 30), st.integers(1, 7), st.integers(1, 4), st.sampled_from(sorted(SIZES)))
def test_the_inverse_can_give_the_source_its_size_back(n, k, s, size):
    """Several sources have one result; the reverse filter with the inverse policy gives one of them."""
    try:
        forward = reference.padding_size(n, k, s, size)
        back = reference.padding_reverse_size(forward, k, s, {"valid": "full", "full": "valid"}.get(size, size))
    except ValueError:
        return
    assert reference.padding_size(back, k, s, size) == forward


def test_the_inverse_of_a_custom_policy_is_built_in():
    inverse = mg.DefaultPadding.for_tensorflow_average_pooling_valid_only().inverse()
    assert inverse.padding_method == Method.SIZE_FULL | Method.ADD_REMAINDER_TO_BOTTOM_RIGHT
    kernel = WindowSum(kernel_width=3, kernel_height=3)
    kernel.padding = inverse
    assert applied(kernel, 5, 5)[:2] == (7, 7)


# custom policies


@pytest.mark.parametrize(
    ("policy", "size"),
    [
        (mg.DefaultPadding.for_tensorflow_average_pooling(), Method.SIZE_SAME),
        (mg.DefaultPadding.for_tensorflow_average_pooling_valid_only(), Method.SIZE_VALID_ONLY),
    ],
)
def test_the_tensorflow_policies_clamp_the_edge(policy, size):
    assert isinstance(policy, TensorflowAveragePooling)
    assert policy.padding_method == Method.CUSTOM | size | Method.ADD_REMAINDER_TO_BOTTOM_RIGHT
    kernel, plain = (mg.PoolingAverage(kernel_width=2, kernel_height=3, stride_in_pixels_x=2) for _ in range(2))
    kernel.padding = policy
    plain.padding = mg.DefaultPadding(policy.padding_method & ~Method.CUSTOM)
    assert applied(kernel, 7, 6) == applied(plain, 7, 6)
    assert (kernel.edge_mode, plain.edge_mode) == (mg.EdgeMode.CLAMP, mg.EdgeMode.ZERO)


def test_a_policy_of_ones_own_sees_the_suggestion_and_sets_the_offset():
    class Half:
        padding_method = Method.CUSTOM | Method.SIZE_SAME
        calls: list = []

        def destination_image_descriptor(self, source_images, source_states, kernel, suggested_descriptor):
            self.calls.append((source_images, source_states, kernel.offset, suggested_descriptor))
            kernel.offset = mg.Offset(2, 0, kernel.offset.z)
            return replace(suggested_descriptor, width=suggested_descriptor.width // 2)

    x = np.arange(12, dtype=np.float32).reshape(1, 1, 12, 1)
    source, kernel = mg.Image.from_array(x), WindowSum(kernel_width=1, kernel_height=1)
    kernel.padding = Half()
    with mg.CommandBuffer() as commands:
        y, state = kernel.encode(commands, source, return_state=True)
    np.testing.assert_array_equal(np.asarray(y).ravel(), np.arange(2, 8))
    assert state.snapshot.offset == mg.Offset(2, 0)
    (images, states, offset, suggested), = Half.calls
    assert images == [source] and states == [] and offset == mg.Offset(0, 0) and suggested == source.descriptor


def test_source_states_have_their_say_before_a_custom_policy():
    order = []

    class State(mg.GradientState):
        def destination_image_descriptor(self, source_images, source_states, kernel, suggested_descriptor):
            order.append("state")
            return replace(suggested_descriptor, height=3)

    class Policy:
        padding_method = Method.CUSTOM

        def destination_image_descriptor(self, source_images, source_states, kernel, suggested_descriptor):
            order.append("policy")
            assert suggested_descriptor.height == 3 and source_states == [state]
            return suggested_descriptor

    source = mg.Image(mg.ImageDescriptor(width=4, height=4))
    kernel = WindowSum(kernel_width=1, kernel_height=1)
    snapshot = kernel.result_state(source, destination_image=source).snapshot
    state = State(snapshot)
    kernel.padding = Policy()
    assert kernel.destination_image_descriptor([source], [state]).shape == (1, 3, 4, 1)
    assert order == ["state", "policy"]


@given(
    st.integers(1, 30), st.integers(1, 7), st.integers(1, 4), st.integers(1, 3), st.integers(0, 4), st.booleans()
)
def test_explicit_padding_is_pytorchs_rule(n, k, s, dilation, padding, along_x):
    extent = (k - 1) * dilation + 1
    kernel = kernel_along("x" if along_x else "y", k, s, dilation)
    kernel.padding = mg.ExplicitPadding(**{"x" if along_x else "y": padding})
    source = (n, 1) if along_x else (1, n)
    if n + 2 * padding < extent:
        with pytest.raises(mg.GeometryError, match=f"a window of {extent} pixels .* {n} pixels with {padding} pixels"):
            applied(kernel, *source)
        return
    width, height, offset = applied(kernel, *source)
    size, start = (width, offset.x) if along_x else (height, offset.y)
    assert size == (n + 2 * padding - dilation * (k - 1) - 1) // s + 1
    assert start - extent // 2 == -padding


def test_explicit_padding_is_not_for_two_sources():
    kernel, image = mg.Add(), mg.Image.from_array(np.ones((1, 2, 3, 4), np.float32))
    kernel.padding = mg.ExplicitPadding(1, 1)
    with pytest.raises(NotImplementedError, match=r"Add: padding is ExplicitPadding\(x=1, y=1\), .* one source image"):
        kernel.encode(mg.CommandBuffer(), image, image)


def test_explicit_padding_gives_pytorchs_sums():
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(2).standard_normal((2, 9, 8, 1)).astype(np.float32)
    kernel = WindowSum(kernel_width=4, kernel_height=3, stride_in_pixels_x=2, stride_in_pixels_y=3, dilation_rate_x=2)
    kernel.padding = mg.ExplicitPadding(x=3, y=1)
    with mg.CommandBuffer() as commands:
        y = kernel.encode(commands, mg.Image.from_array(x))
    weights = torch.arange(1, 13, dtype=torch.float32).reshape(1, 1, 3, 4)
    expected = torch.nn.functional.conv2d(
        torch.from_numpy(x).permute(0, 3, 1, 2), weights, stride=(3, 2), padding=(1, 3), dilation=(1, 2)
    )
    np.testing.assert_allclose(np.asarray(y), expected.permute(0, 2, 3, 1).numpy(), rtol=1e-4, atol=1e-4)


def test_a_policy_is_asked_for_each_of_two_sources():
    kernel = WindowDifference(kernel_width=3, kernel_height=3)
    kernel.secondary_stride_in_pixels_x = 2
    kernel.padding = mg.VALID_ONLY
    sources = [mg.Image(mg.ImageDescriptor(width=n, height=6)) for n in (5, 8)]
    assert kernel.destination_image_descriptor(sources).shape == (1, 4, 3, 1)
    assert kernel.primary_offset == mg.Offset(1, 1)
    assert kernel.secondary_offset == mg.Offset(1, 1)
