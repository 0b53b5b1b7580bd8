"""Instance and group normalization against the float64 reference: results, gradients, states and data sources."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpsgrad as mg
from mpsgrad import archive, functional, reference
from mpsgrad.kernels import group_normalization_dispatch
from mpsgrad.kernels.pointwise import VECTORS
from mpsgrad.shader import use_tunables
from mpsgrad.testing import FencedImage, assert_within, batch_sizes, channel_formats, error_bound, values
from mpsgrad.tunables import ALWAYS, WHERE_FEWER, tunables

EPS = float(np.finfo(np.float32).eps)
each_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float16])


@dataclass
class Case:
    """Images, parameters and the number of groups; None is instance normalization."""

    x: np.ndarray
    g: np.ndarray
    gamma: np.ndarray
    beta: np.ndarray
    groups: int | None = None
    epsilon: float = 1e-3

    @classmethod
    def draw(cls, shape: tuple[int, ...], groups: int | None = None, dtype: Any = np.float32, seed: int = 0) -> Case:
        generator = np.random.default_rng(seed)
        x, g = (generator.standard_normal(shape).astype(dtype) for _ in range(2))
        gamma, beta = (generator.standard_normal(shape[-1]).astype(np.float32) for _ in range(2))
        return cls(x, g, gamma, beta, groups)

    def kernel(self) -> Any:
        if self.groups is None:
            data = mg.InstanceNormalizationDataSource.from_arrays(self.gamma, self.beta, epsilon=self.epsilon)
            return mg.InstanceNormalization(data)
        data = mg.GroupNormalizationDataSource.from_arrays(self.groups, self.gamma, self.beta, epsilon=self.epsilon)
        return mg.GroupNormalization(data)

    def gradient(self) -> Any:
        return mg.InstanceNormalizationGradient() if self.groups is None else mg.GroupNormalizationGradient()

    @property
    def of_reference(self) -> tuple[int, float]:
        return self.groups or self.x.shape[3], float(np.float32(self.epsilon))


@dataclass
class Expected:
    """What a case has to give, and how far from that rounding may lead."""

    mean: np.ndarray
    variance: np.ndarray
    y: np.ndarray
    dx: np.ndarray
    for_gamma: np.ndarray
    for_beta: np.ndarray
    bounds: dict[str, np.ndarray]

    @classmethod
    def of(cls, case: Case) -> Expected:
        groups, epsilon = case.of_reference
        x, g = case.x.astype(np.float64), case.g.astype(np.float64)
        mean, variance = reference.group_normalization_statistics(x, groups)
        y = reference.group_normalization(x, case.gamma, case.beta, groups, epsilon)
        dx, for_gamma, for_beta = reference.group_normalization_gradient(g, x, case.gamma, groups, epsilon)
        pixels = x.shape[1] * x.shape[2]
        terms = pixels * x.shape[3] // groups

        def of_group(z: np.ndarray) -> np.ndarray:
            return reference.group_normalization_statistics(z, groups)[0]

        # Deviations are summed from the first pixel of each channel, and a group's from its first channel.
        distance = of_group(np.abs(x - x[:, :1, :1]) + np.abs(x[:, :1, :1] - x[:, :1, :1, :1]))
        mean_bound = error_bound(np.float32, terms, distance, mean) + 4 * EPS * np.abs(mean)
        spread = of_group(np.abs(x - mean[:, None, None]))
        variance_bound = error_bound(np.float32, terms + 8, variance, variance)
        variance_bound += 2 * mean_bound * spread + mean_bound**2
        inverse = 1 / np.sqrt(variance + epsilon)
        of_inverse = (0.5 * variance_bound * inverse**2 + 4 * EPS)[:, None, None]
        inverse, error = inverse[:, None, None], mean_bound[:, None, None]
        xhat = np.abs(x - mean[:, None, None]) * inverse
        of_xhat = inverse * error + xhat * of_inverse
        gamma = np.abs(case.gamma.astype(np.float64))
        y_bound = error_bound(case.x.dtype, 6, gamma * xhat + np.abs(case.beta), y) + gamma * of_xhat
        sums = {"for_beta": np.abs(g), "for_gamma": np.abs(g) * xhat}
        bounds = {name: error_bound(np.float32, pixels + 6, v.sum((1, 2)), 0) for name, v in sums.items()}
        bounds["for_gamma"] += (np.abs(g) * of_xhat).sum((1, 2))
        h = gamma * np.abs(g)
        mean_h, mean_product = of_group(h)[:, None, None], of_group(h * xhat)[:, None, None]
        magnitude = inverse * (h + mean_h + xhat * mean_product)
        dx_bound = error_bound(case.x.dtype, terms + 12, magnitude, dx) + magnitude * 2 * of_inverse
        dx_bound += inverse * (of_xhat * mean_product + xhat * of_group(h * of_xhat)[:, None, None])
        bounds |= {"mean": mean_bound, "variance": variance_bound, "y": y_bound, "dx": dx_bound}
        return cls(mean, variance, y, dx, for_gamma, for_beta, bounds)

    def check(self, **results: Any) -> None:
        for name, result in results.items():
            assert_within(result, getattr(self, name), self.bounds[name], name=name)


def run(case: Case) -> tuple[np.ndarray, np.ndarray, Any]:
    """The result and the source's gradient, from encodes into fenced images, and the state."""
    source, incoming = mg.Image.from_array(case.x), mg.Image.from_array(case.g)
    y, dx = FencedImage.of(source.descriptor), FencedImage.of(source.descriptor)
    kernel = case.kernel()
    state = kernel.result_state(source, destination_image=y.image)
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, source, destination_image=y.image, destination_state=state)
        case.gradient().encode(commands, incoming, source, state, destination_gradient=dx.image)
    return y.check(), dx.check(), state


def check(case: Case) -> None:
    y, dx, state = run(case)
    Expected.of(case).check(
        y=y,
        dx=dx,
        mean=state.mean,
        variance=state.variance,
        for_gamma=state.gradient_for_gamma,
        for_beta=state.gradient_for_beta,
    )


@pytest.mark.parametrize("channels", [3, 16])
def test_the_mean_of_a_large_image_whose_first_pixel_is_far_from_it(channels):
    """Rounding has to go with how far pixels are from their mean, not from one of them."""
    case = Case.draw((1, 112, 112, channels))
    case.x[0, 0, 0] = 40
    exact, _ = reference.group_normalization_statistics(case.x.astype(np.float64), channels)
    spread = np.abs(case.x - exact[:, None, None]).mean((1, 2))
    _, _, state = run(case)
    # Errors of rounding that are independent grow by the root of their number.
    assert_within(state.mean, exact, 4 * np.sqrt(112 * 112) * EPS / 2 * spread + EPS * np.abs(exact))


@st.composite
def groups_and_channels(draw: Any) -> tuple[int | None, int]:
    each = draw(st.sampled_from([1, 2, 3, 8, 31, 33]))
    groups = draw(st.integers(1, 4))
    channels = draw(st.sampled_from([1, 3, 4, 32, 65]))
    return (groups, groups * each) if draw(st.booleans()) else (None, channels)


@given(data=st.data())
def test_results_statistics_and_gradients_match_the_reference(data):
    dtype = data.draw(channel_formats()).dtype
    groups, channels = data.draw(groups_and_channels())
    shape = (data.draw(batch_sizes()), data.draw(st.integers(1, 9)), data.draw(st.integers(1, 14)), channels)
    case = Case.draw(shape, groups, dtype, data.draw(st.integers(0, 2**32 - 1)))
    case.epsilon = data.draw(st.sampled_from([1e-5, 1e-3, 0.5]))
    check(case)


@pytest.fixture(params=[0, group_normalization_dispatch.KEPT_BYTES], ids=["by_chunks", "in_one"])
def kept_bytes(request, monkeypatch):
    """CPUs cut images that caches do not keep into chunks: all of them, or those that they cut anyway."""
    monkeypatch.setattr(group_normalization_dispatch, "KEPT_BYTES", request.param)


@pytest.mark.usefixtures("kept_bytes")
@pytest.mark.parametrize("groups", [None, 1, 4])
def test_large_images_are_cut_into_chunks(groups):
    check(Case.draw((2, 70, 41, 8), groups))
    check(Case.draw((3, 31, 33, 64), groups))
    check(Case.draw((1, 17, 17, 532), groups))
    check(Case.draw((2, 21, 33, 20), groups, np.float16))


@each_dtype
@pytest.mark.parametrize(
    "shape", [(2, 33, 37, 2), (1, 49, 43, 1), (1, 80, 81, 3), (2, 19, 15, 10), (1, 23, 13, 8), (1, 79, 61, 12)]
)
def test_many_pixels_of_few_channels_are_taken_by_longer_rows(shape, dtype):
    check(Case.draw(shape, dtype=dtype))
    check(Case.draw(shape, 1, dtype))


@pytest.mark.parametrize("shape", [(2, 41, 50, 64), (2, 11, 13, 1040)])
@pytest.mark.parametrize("groups", [None, 16])
def test_images_that_caches_do_not_hold_give_the_same_bits(groups, shape):
    """CPUs read their rows in another order and write past the caches."""
    case, device = Case.draw(shape, groups), mg.default_device()
    before, found = tunables(device.tuning), []
    try:
        for cached_bytes in (before.cached_bytes, 1 << 20):
            use_tunables(device.tuning, before.with_number("cached_bytes", cached_bytes))
            y, dx, state = run(case)
            found.append((y, dx, state.gradient_for_gamma, state.gradient_for_beta))
    finally:
        use_tunables(device.tuning, before)
    for held, not_held in zip(*found, strict=True):
        np.testing.assert_array_equal(held, not_held)
    check(case)


@pytest.mark.skipif(mg.default_device().family != "cpu", reason="for CPUs")
@pytest.mark.parametrize(("channels", "groups", "blocks"), [(1024, None, 4), (1200, 30, 3), (1536, 2, 2), (1040, 5, 1)])
def test_long_pixels_are_cut_into_blocks_of_the_same_bits(channels, groups, blocks, monkeypatch):
    """Where CPUs have many registers: into such of whole groups and whole cache lines."""
    case, device = Case.draw((3, 5, 6, channels), groups), mg.default_device()
    before, found = tunables(device.tuning), []
    try:
        use_tunables(device.tuning, before.with_number("convolution_by_eights", WHERE_FEWER))
        for most in (group_normalization_dispatch.BLOCKS_OF_LONG_PIXELS, 1):
            monkeypatch.setattr(group_normalization_dispatch, "BLOCKS_OF_LONG_PIXELS", most)
            monkeypatch.setattr(device, "compute_units", 2)
            y, dx, state = run(case)
            found.append((y, dx, state.gradient_for_gamma, state.gradient_for_beta))
            with mg.CommandBuffer() as commands:
                case.kernel().encode(commands, mg.Image.from_array(case.x))
                assert commands._dispatches[-1].threadgroups == 3 * min(blocks, most)
    finally:
        use_tunables(device.tuning, before)
    for cut, whole in zip(*found, strict=True):
        np.testing.assert_array_equal(cut, whole)
    check(case)


@pytest.mark.parametrize("groups", [None, 3])
def test_many_images_have_the_bits_of_each_alone(groups):
    """CPUs read their rows in another order where nearer caches do not hold all images."""
    case = Case.draw((9, 28, 28, 81), groups)
    alone = replace(case, x=case.x[4:5], g=case.g[4:5])
    (y, dx, state), (y_alone, dx_alone, state_alone) = run(case), run(alone)
    np.testing.assert_array_equal(y[4:5], y_alone)
    np.testing.assert_array_equal(dx[4:5], dx_alone)
    np.testing.assert_array_equal(state.gradient_for_gamma[4:5], state_alone.gradient_for_gamma)
    check(alone)


@pytest.mark.skipif(mg.default_device().family != "cpu", reason="for CPUs")
@each_dtype
@pytest.mark.parametrize(
    ("shape", "groups", "lanes"),
    [
        ((2, 9, 11, 15), None, 8),
        ((2, 9, 11, 16), None, 16),
        ((3, 9, 11, 37), None, 16),
        ((1, 8, 9, 63), 3, 16),
        ((2, 8, 9, 119), 7, 16),
        # Rows of 96, 48 and 24 columns.
        ((2, 90, 90, 3), None, 16),
        ((1, 41, 39, 3), 1, 16),
        ((2, 5, 7, 3), None, 8),
    ],
)
def test_columns_that_threads_with_many_registers_take_at_a_time(shape, groups, lanes, dtype):
    case, device = Case.draw(shape, groups, dtype), mg.default_device()
    before = tunables(device.tuning)
    try:
        for by_eights, most in ((WHERE_FEWER, lanes), (ALWAYS, 8)):
            use_tunables(device.tuning, before.with_number("convolution_by_eights", by_eights))
            check(case)
            with mg.CommandBuffer() as commands:
                case.kernel().encode(commands, mg.Image.from_array(case.x))
                assert commands._dispatches[-1].function.name == f"normalize_images_in_one_of_{VECTORS[most]}"
    finally:
        use_tunables(device.tuning, before)


MOVNTPS = re.compile(rb"(\xc5|\xc4.)[\x78\xf8]\x2b", re.DOTALL)
"""The instruction of x86 that stores four floats past the caches, of registers that AVX2 has too."""


def test_results_past_caches_are_written_by_instructions_for_that(opencl_device):
    """Compilers may take it for the store on the other way: then memory that is overwritten is read first."""
    import pyopencl as cl

    function = group_normalization_dispatch.FAMILY.function(opencl_device, "normalize_images_in_one_of_eights", "float")
    program = function.kernel.get_info(cl.kernel_info.PROGRAM)
    (binary,) = program.get_info(cl.program_info.BINARIES)
    assert len(MOVNTPS.findall(binary)) > 20


def test_a_mean_far_above_the_deviation_costs_no_accuracy():
    case = Case.draw((2, 20, 20, 8), 2)
    case.x += 4096
    y, _, state = run(case)
    expected = Expected.of(case)
    expected.check(mean=state.mean, variance=state.variance, y=y)
    assert (expected.bounds["variance"] < 0.02 * expected.variance).all()


@each_dtype
@pytest.mark.parametrize("groups", [None, 1, 3])
def test_flat_images_have_variance_zero_and_stay_finite_with_the_smallest_epsilon(groups, dtype):
    case = Case.draw((2, 5, 7, 6), groups, dtype)
    case.x[...] = dtype(0.1)
    case.epsilon = float(np.finfo(np.float32).tiny)
    case.gamma[...] = 1
    y, _, state = run(case)
    assert (state.variance == 0).all()
    np.testing.assert_array_equal(y, np.broadcast_to(case.beta.astype(dtype), y.shape))


@pytest.mark.parametrize("groups", [None, 2])
def test_gradients_for_a_source_add_up_to_zero_over_each_group(groups):
    case = Case.draw((2, 6, 5, 8), groups)
    _, dx, _ = run(case)
    grouped = dx.astype(np.float64).reshape(2, 30, groups or 8, -1)
    np.testing.assert_allclose(grouped.sum((1, 3)), 0, atol=1e-3)


def test_images_do_not_mix():
    case = Case.draw((3, 4, 5, 6), 2)
    y, dx, state = run(case)
    for n in range(3):
        alone = Case(case.x[n : n + 1], case.g[n : n + 1], case.gamma, case.beta, 2)
        one_y, one_dx, one_state = run(alone)
        np.testing.assert_array_equal(one_y[0], y[n])
        np.testing.assert_array_equal(one_dx[0], dx[n])
        np.testing.assert_array_equal(one_state.gradient_for_gamma[0], state.gradient_for_gamma[n])


def test_as_many_groups_as_channels_are_instance_normalization():
    case = Case.draw((2, 4, 5, 6))
    y, dx, state = run(case)
    case.groups = 6
    grouped_y, grouped_dx, grouped_state = run(case)
    np.testing.assert_allclose(grouped_y, y, rtol=1e-6)
    np.testing.assert_allclose(grouped_dx, dx, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(grouped_state.gradient_for_gamma, state.gradient_for_gamma, rtol=1e-5)


# geometry


@given(data=st.data())
def test_offset_clip_rectangle_edge_and_channel_ranges(data):
    """Statistics are of the whole source; what is read outside of it is normalized like a pixel of value 0."""
    dtype = data.draw(channel_formats()).dtype
    groups = data.draw(st.sampled_from([None, 1, 4]))
    height, width, images = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 6)), data.draw(st.integers(1, 3))
    size = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 7))
    offset = data.draw(st.integers(-3, 7)), data.draw(st.integers(-3, 7))
    origin = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2)), data.draw(st.integers(0, 1))
    first, channels, target = data.draw(st.sampled_from([0, 4])), 8, data.draw(st.sampled_from([0, 8]))
    x = data.draw(values((images + 1, height, width, 14), dtype))
    case = Case.draw((images, height, width, channels), groups, dtype)
    case.x = np.ascontiguousarray(x[1:, :, :, first : first + channels])
    kernel = case.kernel()
    kernel.offset = mg.Offset(offset[1], offset[0], 1)
    kernel.clip_rect = mg.Region(mg.Origin(origin[1], origin[0], origin[2]), mg.Size(size[1], size[0], images))
    kernel.source_feature_channel_offset, kernel.source_feature_channel_max_count = first, channels
    kernel.destination_feature_channel_offset = target
    shape = (images + origin[2], size[0] + origin[0] + 1, size[1] + origin[1] + 1, 18)
    before = data.draw(values(shape, dtype))
    source, result = mg.Image.from_array(x), mg.Image.from_array(before)
    state = kernel.result_state(source, destination_image=result)
    g = data.draw(values(shape, dtype))
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, source, destination_image=result, destination_state=state)
        dx = case.gradient().encode(commands, mg.Image.from_array(g), source, state)
    part = np.index_exp[
        origin[2] : origin[2] + images,
        origin[0] : origin[0] + size[0],
        origin[1] : origin[1] + size[1],
        target : target + channels,
    ]
    incoming = np.zeros(case.x.shape)
    plain = Expected.of(case)
    inverse = 1 / np.sqrt(plain.variance + case.of_reference[1])
    of_zero = case.beta - case.gamma * plain.mean * inverse
    y = np.array(result)
    for row, column in np.ndindex(*size):
        there = row + offset[0], column + offset[1]
        written = y[part][:, row, column]
        if 0 <= there[0] < height and 0 <= there[1] < width:
            incoming[:, there[0], there[1]] = g[part][:, row, column]
            assert_within(written, plain.y[:, *there], plain.bounds["y"][:, *there])
        else:
            bound = error_bound(dtype, 60, np.abs(of_zero) + 4 * inverse * np.abs(case.gamma), of_zero)
            assert_within(written, of_zero, bound + plain.bounds["variance"] * inverse**3 * 2)
    y[part] = before[part]
    np.testing.assert_array_equal(y, before)
    case.g = incoming
    expected = Expected.of(case)
    expected.check(dx=np.asarray(dx)[1:, :, :, first : first + channels])
    assert not np.asarray(dx)[0].any()
    expected.check(for_gamma=state.gradient_for_gamma, for_beta=state.gradient_for_beta)


# states, batches, forms of encode


@pytest.mark.parametrize("groups", [None, 3])
@pytest.mark.parametrize("temporary", [False, True])
def test_batches_and_encode_forms_give_the_same_bits(groups, temporary):
    case = Case.draw((3, 5, 4, 6), groups)
    y, dx, state = run(case)
    kernel, gradient = case.kernel(), case.gradient()
    for together in (True, False):
        with mg.CommandBuffer() as commands:
            sources = mg.ImageBatch.from_array(case.x) if together else [mg.Image.from_array(one) for one in case.x]
            incoming = mg.ImageBatch.from_array(case.g) if together else [mg.Image.from_array(one) for one in case.g]
            results, states = kernel.encode_batch(commands, sources, return_state=True, state_is_temporary=temporary)
            gradients = gradient.encode_batch(commands, incoming, sources, states)
        np.testing.assert_array_equal(np.asarray(results), y)
        np.testing.assert_array_equal(np.asarray(gradients), dx)
        assert len(states) == 3
        if temporary:
            assert all(each.read_count == 0 for each in states)
            continue
        for name in ("mean", "variance", "gradient_for_gamma", "gradient_for_beta"):
            rows = [getattr(each, name) for each in states]
            assert all(row.shape == (1, 6) for row in rows)
            np.testing.assert_array_equal(np.concatenate(rows), getattr(state, name))


def test_repeated_encodes_give_the_same_bits_and_follow_new_parameters():
    case = Case.draw((2, 5, 4, 6), 2)
    y, dx, _ = run(case)
    kernel, gradient = case.kernel(), case.gradient()
    source, incoming = mg.Image.from_array(case.x), mg.Image.from_array(case.g)

    def again() -> tuple[np.ndarray, np.ndarray, Any]:
        with mg.CommandBuffer() as commands:
            result, state = kernel.encode(commands, source, return_state=True)
            made = gradient.encode(commands, incoming, source, state)
        return np.asarray(result), np.asarray(made), state

    for _ in range(3):
        result, made, state = again()
        np.testing.assert_array_equal(result, y)
        np.testing.assert_array_equal(made, dx)
    new = mg.NormalizationGammaAndBetaState.from_arrays(2 * case.gamma, 2 * case.beta)
    with mg.CommandBuffer() as commands:
        kernel.reload_gamma_and_beta_with_command_buffer(commands, new)
    result, made, state = again()
    np.testing.assert_array_equal(result, 2 * y)
    np.testing.assert_array_equal(made, 2 * dx)
    np.testing.assert_array_equal(state.gamma, 2 * case.gamma)
    kernel.reload_gamma_and_beta_from_data_source()
    np.testing.assert_array_equal(again()[0], y)
    kernel.epsilon = 3.0
    case.epsilon = 3.0
    for _ in range(2):
        result, made, _ = again()
        Expected.of(case).check(y=result, dx=made)


def test_a_state_says_what_it_holds():
    case = Case.draw((2, 3, 4, 6), 2)
    kernel = case.kernel()
    source = mg.Image.from_array(case.x)
    with mg.CommandBuffer() as commands:
        _, state = kernel.encode(commands, source, return_state=True)
        assert state.group_normalization is kernel
        assert state.gradient_for_gamma is None
        with pytest.raises(mg.StateError, match="read before its command buffer was committed"):
            _ = state.mean
    assert state.mean.shape == (2, 6)
    np.testing.assert_array_equal(state.gamma, case.gamma)
    np.testing.assert_array_equal(state.beta, case.beta)
    empty = kernel.result_state(source, destination_image=source)
    assert empty.mean is None
    with mg.CommandBuffer() as commands:
        instance = Case.draw((2, 3, 4, 6)).kernel()
        assert instance.encode(commands, source, return_state=True)[1].instance_normalization is instance


def test_a_data_source_of_ones_own_is_loaded_once_and_updated():
    class Own(mg.InstanceNormalizationDataSource):
        number_of_feature_channels = 3
        loads = purges = 0
        scale = np.array([1, 2, 3], np.float32)
        gamma = property(lambda self: self.scale)  # type: ignore[assignment]

        def load(self) -> bool:
            self.loads += 1
            return True

        def purge(self) -> None:
            self.purges += 1

        def update_gamma_and_beta_with_instance_normalization_state_batch(
            self, instance_normalization_state_batch: Any
        ) -> bool:
            self.scale = self.scale - sum(each.gradient_for_gamma for each in instance_normalization_state_batch)[0]
            return True

    data = Own()
    kernel = mg.InstanceNormalization(data)
    assert (data.loads, data.purges) == (1, 1)
    assert kernel.epsilon == pytest.approx(np.finfo(np.float32).tiny)
    x = np.random.default_rng(0).standard_normal((2, 4, 4, 3)).astype(np.float32)
    batch = mg.ImageBatch.from_array(x)
    with mg.CommandBuffer() as commands:
        _, states = kernel.encode_batch(commands, batch, return_state=True)
        mg.InstanceNormalizationGradient().encode_batch(commands, batch, batch, states)
    before = data.scale
    assert data.update_gamma_and_beta_with_instance_normalization_state_batch(states)
    kernel.reload_gamma_and_beta_from_data_source()
    gradient = sum(each.gradient_for_gamma[0] for each in states)
    np.testing.assert_array_equal(kernel._gamma_and_beta.gamma, before - gradient)


def test_a_kernel_from_an_archive_gives_the_same_bits():
    for groups in (None, 2):
        case = Case.draw((1, 3, 4, 6), groups)
        restored = archive.from_bytes(archive.to_bytes(case.kernel()))
        with mg.CommandBuffer() as commands:
            y = restored.encode(commands, mg.Image.from_array(case.x))
        np.testing.assert_array_equal(np.asarray(y), run(case)[0])


def test_functional_calls_sum_the_gradients_over_the_batch():
    case = Case.draw((3, 4, 5, 6), 3)
    y = functional.group_normalization(case.x, 3, case.gamma, case.beta, epsilon=case.epsilon)
    np.testing.assert_array_equal(y, run(case)[0])
    dx, for_gamma, for_beta = functional.group_normalization_gradient(case.g, case.x, 3, case.gamma, epsilon=1e-3)
    expected = Expected.of(case)
    expected.check(dx=dx)
    np.testing.assert_allclose(for_gamma, expected.for_gamma.sum(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(for_beta, expected.for_beta.sum(0), rtol=1e-4, atol=1e-5)
    case.groups = None
    y = functional.instance_normalization(case.x, case.gamma, case.beta, epsilon=case.epsilon)
    np.testing.assert_array_equal(y, run(case)[0])
    dx, *_ = functional.instance_normalization_gradient(case.g, case.x, case.gamma, epsilon=1e-3)
    Expected.of(case).check(dx=dx)


# bad input


def arrays(count: int, *more: Any) -> Any:
    return mg.GroupNormalizationDataSource.from_arrays(2, *more, number_of_feature_channels=count)


def encoded(case: Case, g: tuple[int, ...] = (1, 2, 3, 4), x: tuple[int, ...] = (1, 2, 3, 4), **arguments: Any) -> None:
    """The gradient of a state that was filled from ``case``, with images of other sizes."""
    kernel, gradient = case.kernel(), arguments.get("gradient", case.gradient())
    source = mg.Image.from_array(case.x)
    for name, value in arguments.get("set", {}).items():
        setattr(kernel, name, value)
    with mg.CommandBuffer() as commands:
        _, state = kernel.encode(commands, source, return_state=True)
        if arguments.get("empty"):
            state = kernel.result_state(source, destination_image=source)
        gradient.encode(
            commands, mg.Image.from_array(np.zeros(g, np.float32)), mg.Image.from_array(np.zeros(x, np.float32)), state
        )


def forward(kernel: Any, channels: int) -> None:
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, mg.Image.from_array(np.zeros((1, 2, 2, channels), np.float32)))


CASE = Case.draw((1, 2, 3, 4), 2)
INSTANCE = Case.draw((1, 2, 3, 4))
WIDE = {"offset": mg.Offset(-1, 0, 0), "padding": mg.ExplicitPadding(x=1, y=0), "edge_mode": mg.EdgeMode.CLAMP}
BAD_INPUT = {
    "groups that do not divide": (
        lambda: arrays(5), mg.GeometryError, "from_arrays: number_of_groups is 2 but it has to divide the 5 channels"),
    "no groups": (
        lambda: mg.GroupNormalizationDataSource.from_arrays(0, number_of_feature_channels=4), mg.GeometryError,
        "number_of_groups is 0"),
    "no arrays and no number": (
        lambda: mg.InstanceNormalizationDataSource.from_arrays(), mg.GeometryError, "no number_of_feature_channels"),
    "gamma in float64": (
        lambda: arrays(4, np.ones(4)), mg.FormatError, "gamma is dtype('float64'); it has to be float32"),
    "gamma and beta of two lengths": (
        lambda: arrays(4, np.ones(4, np.float32), np.ones(3, np.float32)), mg.GeometryError, "beta has shape (3,)"),
    "an epsilon of 0": (
        lambda: mg.InstanceNormalizationDataSource.from_arrays(number_of_feature_channels=4, epsilon=0),
        mg.GeometryError, "epsilon is 0.0; it has to be positive"),
    "a negative epsilon later": (
        lambda: setattr(CASE.kernel(), "epsilon", -1), mg.GeometryError, "GroupNormalization: epsilon is -1.0"),
    "no data source": (
        lambda: mg.InstanceNormalization(3), mg.FormatError, "it has to be an InstanceNormalizationDataSource"),
    "a data source without groups": (
        lambda: mg.GroupNormalization(mg.InstanceNormalizationDataSource.from_arrays(number_of_feature_channels=4)),
        mg.FormatError, "which has no number_of_groups; it has to be a GroupNormalizationDataSource"),
    "other channels": (
        lambda: forward(CASE.kernel(), 5), mg.GeometryError, "has 4 feature channels but 5 are read from source_image"),
    "a gradient of another size": (
        lambda: encoded(CASE, g=(1, 2, 2, 4)), mg.GeometryError, "source_gradient is 1x2x2x4 but GroupNormalization"),
    "a source of another size": (
        lambda: encoded(CASE, x=(1, 2, 2, 4)), mg.GeometryError, "source_image is 1x2x2x4 but gradient_state was made"),
    "the other kernel's state": (
        lambda: encoded(CASE, gradient=mg.InstanceNormalizationGradient()), mg.StateError,
        "gradient_state was made by GroupNormalization; it has to be made by InstanceNormalization"),
    "a state without statistics": (
        lambda: encoded(INSTANCE, empty=True), mg.StateError,
        "InstanceNormalizationGradient: gradient_state holds no statistics of image 0; encode InstanceNormalization"),
    "repeated edges": (
        lambda: encoded(INSTANCE, g=(1, 2, 5, 4), set=WIDE), NotImplementedError,
        "InstanceNormalizationGradient: the forward kernel read pixels -1 to 4 along x of a source with 3"),
    "a gamma state of other channels": (
        lambda: CASE.kernel().reload_gamma_and_beta_with_command_buffer(
            mg.CommandBuffer(), mg.NormalizationGammaAndBetaState(3)), mg.GeometryError,
        "GroupNormalization: gamma_and_beta_state has 3 feature channels but the kernel has 4"),
}  # fmt: skip


@pytest.mark.parametrize(("build", "error", "words"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_named(build, error, words):
    with pytest.raises(error) as raised:
        build()
    assert words in str(raised.value)


def test_images_encoded_with_different_parameters_have_no_common_gradient():
    case = Case.draw((2, 3, 4, 4))
    kernel, batch = case.kernel(), mg.ImageBatch.from_array(case.x)
    whole = kernel.result_state(batch.whole, destination_image=batch.whole)
    results = mg.ImageBatch.from_array(np.zeros_like(case.x))
    with mg.CommandBuffer() as commands:
        for index, state in enumerate(whole.batch_representation()):
            kernel.epsilon = 1.0 + index
            kernel.encode(commands, batch[index], destination_image=results[index], destination_state=state)
        with pytest.raises(mg.StateError, match="different gamma, beta or epsilon"):
            case.gradient().encode(commands, batch.whole, batch.whole, whole)


@pytest.mark.usefixtures("kept_bytes")
@pytest.mark.parametrize(("shape", "groups"), [((2, 3, 3, 9), 3), ((2, 20, 15, 41), None), ((1, 16, 16, 72), 6)])
def test_any_number_of_pixels_and_channels_matches_the_reference(shape, groups):
    """Few pixels are added up at once, many in parts; the last channels may be read with some of those before them."""
    check(Case.draw(shape, groups, np.float32, seed=12))


@pytest.mark.usefixtures("shaders_of_gpus")
class TestTheShadersOfGPUs:
    """Vectors and single channels, rows of one threadgroup and of several, contiguous and not."""

    @each_dtype
    @pytest.mark.parametrize(
        ("shape", "groups"),
        [
            ((1, 1, 1, 100), None),
            ((3, 9, 7, 5), 1),
            ((2, 17, 9, 40), 5),
            ((2, 60, 50, 33), 3),
            ((2, 50, 50, 64), 8),
            ((2, 40, 40, 64), None),
        ],
    )
    def test_everything_matches_the_reference(self, shape, groups, dtype):
        check(Case.draw(shape, groups, dtype, seed=11))

    def test_offset_clip_rectangle_edge_and_channel_ranges(self):
        test_offset_clip_rectangle_edge_and_channel_ranges()

    def test_an_image_gives_the_same_bits_alone_and_in_a_batch(self):
        test_images_do_not_mix()
        test_batches_and_encode_forms_give_the_same_bits(3, False)

    def test_a_mean_far_above_the_deviation_costs_no_accuracy(self):
        test_a_mean_far_above_the_deviation_costs_no_accuracy()
