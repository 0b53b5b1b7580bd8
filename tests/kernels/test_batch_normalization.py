"""Batch normalization against the float64 reference: statistics, forward and both gradients."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import gpu_forms
import numpy as np
import pytest
from batch_normalization_case import FLT_MIN, NEURONS, Case, Outcome, batch, check, encode_statistics, run
from by_turns import by_turns
from hypothesis import given, settings
from hypothesis import strategies as st

import mpsgrad as mg
from mpsgrad import reference
from mpsgrad.devices import Dispatch
from mpsgrad.kernels import (
    batch_normalization_at_once,
    batch_normalization_dispatch,
    batch_normalization_families,
    group_normalization_dispatch,
)
from mpsgrad.kernels.batch_normalization_dispatch import (
    plan_at_once,
    plan_in_clusters,
    plan_in_memory,
    plan_tiles,
    takes_singles,
)
from mpsgrad.kernels.batch_normalization_families import IN_LARGE_MEMORY, IN_MEMORY, TILE_PARAMETERS
from mpsgrad.kernels.normalization_encoder import NormalizationEncoder
from mpsgrad.kernels.normalization_tiles import Tiles
from mpsgrad.neighbouring_dispatches import with_neighbours_joined
from mpsgrad.shader import use_tunables
from mpsgrad.testing import (
    assert_within,
    batch_sizes,
    channel_counts,
    channel_formats,
    error_bound,
    values,
)
from mpsgrad.tunables import ALWAYS, WHERE_FEWER, tunables


@given(data=st.data())
@settings(max_examples=40)
def test_everything_matches_the_reference(data):
    shape = (data.draw(batch_sizes()), data.draw(st.integers(1, 30)), data.draw(st.integers(1, 30)))
    shape = (*shape, data.draw(channel_counts()))
    dtype = data.draw(channel_formats()).dtype
    x = data.draw(values(shape, dtype, ties=data.draw(st.booleans())))
    case = Case.draw(shape, dtype, seed=data.draw(st.integers(0, 99)), epsilon=data.draw(st.sampled_from([1e-3, 0.1])))
    case.x = x
    check(case, run(case))


@pytest.mark.parametrize(("name", "shape"), by_turns(NEURONS, [(3, 5, 4, 37), (2, 8, 7, 5), (2, 3, 5, 64)], of=3))
def test_fused_neurons(name, shape):
    if name is None:
        neuron = None
    else:
        slopes = np.linspace(-1, 1, shape[-1]) if name == "prelu" else None
        neuron = mg.NeuronDescriptor(name, *NEURONS[name], data=slopes)
    case = Case.draw(shape, seed=len(str(name)), neuron=neuron)
    check(case, run(case))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("shape", [(1, 1, 5, 65), (1, 7, 1, 129), (1, 1, 7, 5), (1, 11, 1, 3)])
def test_few_pixels_of_which_some_are_left_over(shape, dtype):
    """CPUs take four of 65 channels as a row, and to add up six of 5: there are too few for rows of whole eights."""
    case = Case.draw(shape, dtype, seed=11)
    check(case, run(case))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("shape", [(2, 9, 11, 131), (3, 7, 9, 357), (1, 5, 5, 1018), (2, 4, 5, 1025)])
def test_gradients_of_odd_numbers_of_many_channels(shape, dtype):
    """CPUs add up those of eight or four pixels as a row, up to 8192 columns; with few registers statistics, too."""
    case = Case.draw(shape, dtype, seed=17)
    check(case, run(case))


def test_sums_of_images_that_nearer_caches_do_not_hold():
    """CPUs with few registers add up each of their rows on its own."""
    case = Case.draw((2, 81, 130, 50), seed=19)
    check(case, run(case))


@pytest.mark.parametrize("neuron", [None, mg.NeuronDescriptor("relu", 0.25)], ids=["plain", "relu"])
@pytest.mark.parametrize("shape", [(2, 40, 41, 3), (3, 31, 33, 64), (2, 45, 47, 37)])
def test_halves_of_images_of_many_pixels(shape, neuron):
    """CPUs take them by eights: small ones in one kernel, and pixels that no row has on their own."""
    case = Case.draw(shape, np.float16, seed=13, neuron=neuron)
    check(case, run(case))


@pytest.mark.parametrize(
    "shape", [(2, 31, 33, 64), (2, 40, 40, 3), (1, 64, 64, 33), (4, 1, 1, 300), (1, 1, 1, 40), (3, 7, 9, 357)]
)
@pytest.mark.parametrize("mean, deviation", [(1e3, 1.0), (-1e4, 0.5), (0.0, 1e-3), (1.0, 100.0)])
def test_a_mean_far_above_the_deviation_costs_no_accuracy(shape, mean, deviation):
    case = Case.draw(shape, seed=7)
    case.x = (mean + deviation * case.x).astype(np.float32)
    outcome = run(case)
    check(case, outcome)
    exact_mean, exact_variance = reference.batch_normalization_statistics(case.x)
    if case.x[..., 0].size > 1:
        np.testing.assert_allclose(outcome.state.variance, exact_variance, rtol=1e-5)
    np.testing.assert_allclose(outcome.state.mean, exact_mean, rtol=1e-6, atol=1e-6 * deviation)


def test_the_first_pixels_do_not_decide_the_accuracy():
    """A shift by the first pixel alone would fail here: it is far from all others."""
    case = Case.draw((2, 30, 30, 32), seed=8)
    case.x = (1e4 + case.x).astype(np.float32)
    case.x[0, 0, 0] = 0
    check(case, run(case))
    mean, variance = reference.batch_normalization_statistics(case.x)
    np.testing.assert_allclose(run(case).state.variance, variance, rtol=1e-5)


@pytest.mark.parametrize("value", [0.1, 1e6, -3e-5, 0.0])
@pytest.mark.parametrize("shape", [(3, 20, 21, 40), (1, 50, 50, 3)])
def test_a_constant_channel_has_variance_zero_and_gives_beta_even_with_the_smallest_epsilon(value, shape):
    case = Case.draw(shape, epsilon=FLT_MIN)
    case.x[...] = value
    case.gamma *= 100
    outcome = run(case)
    state = outcome.state
    np.testing.assert_array_equal(state.mean, case.x[0, 0, 0])
    np.testing.assert_array_equal(state.variance, np.zeros(shape[-1]))
    np.testing.assert_array_equal(outcome.y, np.broadcast_to(case.beta, shape))
    np.testing.assert_array_equal(state.gradient_for_gamma, np.zeros(shape[-1]))
    assert np.isfinite(outcome.dx).all()


def test_worked_case():
    x = np.array([1, 2, 3, 5], np.float32).reshape(2, 1, 2, 1)
    g = np.array([1, -1, 2, 3], np.float32).reshape(2, 1, 2, 1)
    case = Case(x, g, np.array([2], np.float32), np.array([0.5], np.float32))
    outcome = run(case)
    np.testing.assert_allclose(outcome.state.mean, [2.75], rtol=1e-6)
    np.testing.assert_allclose(outcome.state.variance, [2.1875], rtol=1e-6)
    np.testing.assert_allclose(outcome.y.ravel(), [-1.865891, -0.513953, 0.837984, 3.54186], rtol=1e-5)
    np.testing.assert_allclose(outcome.state.gradient_for_gamma, [4.224806], rtol=1e-5)
    np.testing.assert_allclose(outcome.state.gradient_for_beta, [5], rtol=1e-6)
    np.testing.assert_allclose(outcome.dx.ravel(), [1.351166, -2.317939, 0.772646, 0.194127], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("parts", [[4, 1, 3], [1] * 8, [8]])
@pytest.mark.parametrize("several", [False, True], ids=["one command buffer", "several"])
@pytest.mark.parametrize("apart", [False, True], ids=["joined", "apart"])
def test_phases_accumulate_over_parts_of_the_batch(parts, several, apart):
    case = Case.draw((8, 5, 7, 33), seed=9, neuron=mg.NeuronDescriptor("relu", 0.25))
    case.x = (case.x + 50).astype(np.float32)
    bounds = np.cumsum([0, *parts])
    slices = [slice(a, b) for a, b in zip(bounds[:-1], bounds[1:], strict=True)]
    kernel = case.kernel()
    whole = mg.Image.from_array(case.x)
    state = kernel.result_state(whole)
    sources = [batch(case.x[part], apart) for part in slices]
    gradients = [batch(case.g[part], apart) for part in slices]
    results: dict[str, list[Any]] = {"y": [], "dx": []}

    def step(encode):
        if several:
            for index in range(len(parts)):
                with mg.CommandBuffer() as commands:
                    encode(commands, index)
        else:
            with mg.CommandBuffer() as commands:
                for index in range(len(parts)):
                    encode(commands, index)

    statistics, sums, gradient = mg.BatchNormalizationStatistics(), case.statistics_gradient(), case.gradient()
    step(lambda commands, i: statistics.encode_batch(commands, sources[i], state))
    step(
        lambda commands, i: results["y"].append(
            kernel.encode_batch(commands, sources[i], batch_normalization_state=state)
        )
    )
    step(lambda commands, i: sums.encode_batch(commands, gradients[i], sources[i], state))
    step(lambda commands, i: results["dx"].append(gradient.encode_batch(commands, gradients[i], sources[i], state)))
    y, dx = (np.concatenate([np.asarray(part) for part in results[name]]) for name in ("y", "dx"))
    check(case, Outcome(state, y, dx))


def test_batches_and_repetitions_give_the_same_bits():
    case = Case.draw((3, 9, 8, 37), np.float16, seed=10, neuron=mg.NeuronDescriptor("relu", 0.25))
    first = run(case)
    for _ in range(20):
        again = run(case)
        np.testing.assert_array_equal(again.y, first.y)
        np.testing.assert_array_equal(again.dx, first.dx)
        for name in ("mean", "variance", "gradient_for_gamma", "gradient_for_beta"):
            np.testing.assert_array_equal(getattr(again.state, name), getattr(first.state, name))
    kernel, gradient = case.kernel(), case.gradient()
    joined, apart = batch(case.x), batch(case.x, apart=True)
    incoming = batch(case.g)
    state = kernel.result_state(mg.Image.from_array(case.x))
    with mg.CommandBuffer() as commands:
        mg.BatchNormalizationStatistics().encode_batch(commands, joined, state)
        images = [kernel.encode(commands, image, batch_normalization_state=state) for image in apart]
        results = kernel.encode_batch(commands, apart, batch_normalization_state=state)
        case.statistics_gradient().encode_batch(commands, incoming, joined, state)
        gradients = [gradient.encode(commands, g, x, state) for g, x in zip(incoming, apart, strict=True)]
        together = gradient.encode_batch(commands, incoming, apart, state)
    for index in range(3):
        np.testing.assert_array_equal(np.asarray(images[index])[0], first.y[index])
        np.testing.assert_array_equal(np.asarray(gradients[index])[0], first.dx[index])
    np.testing.assert_array_equal(np.asarray(results), first.y)
    np.testing.assert_array_equal(np.asarray(together), first.dx)


@pytest.mark.parametrize("neuron", [None, mg.NeuronDescriptor("prelu", data=np.linspace(-1, 1, 120))])
def test_images_that_caches_do_not_hold_give_the_same_bits(neuron):
    """CPUs add them up in the order of memory, and others some columns after the other."""
    case, device = Case.draw((2, 31, 41, 120), np.float32, neuron=neuron), mg.default_device()
    before, found = tunables(device.tuning), []
    try:
        for cached_bytes in (before.cached_bytes, 1 << 20):
            use_tunables(device.tuning, before.with_number("cached_bytes", cached_bytes))
            found.append(run(case))
    finally:
        use_tunables(device.tuning, before)
    held, not_held = found
    np.testing.assert_array_equal(held.dx, not_held.dx)
    np.testing.assert_array_equal(held.state.gradient_for_gamma, not_held.state.gradient_for_gamma)
    check(case, held)


@pytest.mark.skipif(mg.default_device().family != "cpu", reason="for CPUs")
@pytest.mark.parametrize("by_eights", [ALWAYS, WHERE_FEWER], ids=["few registers", "many registers"])
@pytest.mark.parametrize("per_image", [False, True], ids=["batch", "instance"])
def test_what_is_normalized_past_the_caches(per_image, by_eights):
    """CPUs with many registers write results there if all images are more than half of what the caches hold."""
    device, case = mg.default_device(), Case.draw((1, 40, 70, 64))
    source, before, found = mg.Image.from_array(case.x), tunables(device.tuning), []
    parameters = (group_normalization_dispatch if per_image else batch_normalization_families).PARAMETERS
    try:
        for cached_bytes in (1 << 20, 1 << 21, 1 << 22):
            numbers = before.with_number("convolution_by_eights", by_eights)
            use_tunables(device.tuning, numbers.with_number("cached_bytes", cached_bytes))
            with mg.CommandBuffer() as commands:
                if per_image:
                    data = mg.InstanceNormalizationDataSource.from_arrays(case.gamma, case.beta)
                    mg.InstanceNormalization(data).encode(commands, source)
                else:
                    kernel = case.kernel()
                    state = kernel.result_state(source)
                    encode_statistics(case, commands, state)
                    kernel.encode(commands, source, batch_normalization_state=state)
                constants = commands._dispatches[-1].buffers[-1]
                found.append(bool(parameters.values_in(constants)["exceeds_caches"]))
    finally:
        use_tunables(device.tuning, before)
    assert 1 << 20 < 2 * case.x.nbytes < 1 << 21
    assert found == [True, by_eights == WHERE_FEWER, False]


def test_automatic_encodes_equal_manual_ones():
    case = Case.draw((2, 4, 5, 8), seed=11)
    first = run(case)
    source, incoming = mg.Image.from_array(case.x), mg.Image.from_array(case.g)
    kernel = case.kernel()
    state = kernel.result_state(source)
    with mg.CommandBuffer() as commands:
        mg.BatchNormalizationStatistics().encode_batch(commands, source.batch_representation(), state)
        y = kernel.encode(commands, source, batch_normalization_state=state)
        case.statistics_gradient().encode_batch(
            commands, incoming.batch_representation(), source.batch_representation(), state
        )
        dx = case.gradient().encode(commands, incoming, source, state)
    np.testing.assert_array_equal(np.asarray(y), first.y)
    np.testing.assert_array_equal(np.asarray(dx), first.dx)


@given(data=st.data())
def test_inference_uses_the_statistics_of_the_data_source(data):
    channels = data.draw(channel_counts())
    dtype = data.draw(channel_formats()).dtype
    shape = (data.draw(batch_sizes()), data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9)), channels)
    x = data.draw(values(shape, dtype))
    mean, gamma, beta = (data.draw(values((channels,), np.float32)) for _ in range(3))
    variance = data.draw(values((channels,), np.float32)) ** 2
    given_arrays = {"gamma": gamma, "beta": beta, "mean": mean, "variance": variance}
    present = {name: data.draw(st.booleans()) for name in given_arrays}
    arrays = {name: array if present[name] else None for name, array in given_arrays.items()}
    source = mg.BatchNormalizationDataSource.from_arrays(**arrays, number_of_feature_channels=channels, epsilon=1e-3)
    kernel = mg.BatchNormalization(source)
    with mg.CommandBuffer() as commands:
        y = kernel.encode(commands, mg.Image.from_array(x))
    defaults = {"gamma": 1.0, "beta": 0.0, "mean": 0.0, "variance": 1.0}
    full = {name: np.full(channels, defaults[name]) if a is None else a for name, a in arrays.items()}
    epsilon = float(np.float32(1e-3))
    expected = reference.batch_normalization(x, full["mean"], full["variance"], full["gamma"], full["beta"], epsilon)
    scale = np.abs(full["gamma"]) / np.sqrt(full["variance"] + epsilon)
    magnitude = np.abs(x - full["mean"]) * scale + np.abs(full["beta"])
    assert_within(np.asarray(y), expected, error_bound(dtype, 6, magnitude, expected))
    with mg.CommandBuffer() as commands:
        parts = kernel.encode_batch(commands, batch(x, apart=True))
    np.testing.assert_array_equal(np.asarray(parts), np.asarray(y))


@pytest.mark.parametrize("offset", [(0, 0), (2, -1), (-3, 1), (9, 0)])
@pytest.mark.parametrize("neuron", [None, mg.NeuronDescriptor("relu", 0.25)], ids=["plain", "relu"])
def test_offsets_clip_rect_and_channel_ranges(offset, neuron):
    """Result pixels outside the clip rectangle have no gradient; reads outside the source are zeros."""
    generator = np.random.default_rng(12)
    x = generator.standard_normal((2, 5, 6, 12)).astype(np.float32)
    before, g = (generator.standard_normal((2, 7, 6, 16)).astype(np.float32) for _ in range(2))
    inner = Case.draw((2, 5, 6, 8), seed=13, neuron=neuron)
    inner.x = np.ascontiguousarray(x[..., 4:])
    kernel, sums, gradient = inner.kernel(), inner.statistics_gradient(), inner.gradient()
    dx_offset, dy_offset = offset
    kernel.offset = mg.Offset(dx_offset, dy_offset)
    kernel.clip_rect = mg.Region(mg.Origin(1, 2, 0), mg.Size(4, 5, 2))
    kernel.source_feature_channel_offset = 4
    kernel.destination_feature_channel_offset = 8
    statistics = mg.BatchNormalizationStatistics()
    statistics.source_feature_channel_offset = 4
    source, result, incoming = mg.Image.from_array(x), mg.Image.from_array(before), mg.Image.from_array(g)
    state = kernel.result_state(source, destination_image=result)
    with mg.CommandBuffer() as commands:
        statistics.encode_batch(commands, source.batch_representation(), state)
        kernel.encode(commands, source, batch_normalization_state=state, destination_image=result)
        sums.encode_batch(commands, incoming.batch_representation(), source.batch_representation(), state)
        dx = gradient.encode(commands, incoming, source, state)

    def moved(array, dy, dx, height, width):
        taken = np.zeros((array.shape[0], height, width, array.shape[3]), np.float32)
        for row in range(height):
            for column in range(width):
                if 0 <= row + dy < array.shape[1] and 0 <= column + dx < array.shape[2]:
                    taken[:, row, column] = array[:, row + dy, column + dx]
        return taken

    m, v = state.mean.astype(np.float64), state.variance.astype(np.float64)
    read = Case(moved(inner.x, dy_offset, dx_offset, 5, 4), g[:, 2:, 1:5, 8:], inner.gamma, inner.beta, neuron=neuron)
    y = read.expected(m, v)[0]
    expected = before.astype(np.float64)
    expected[:, 2:7, 1:5, 8:] = y
    np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-5, atol=1e-5)
    outside = np.ones(before.shape, bool)
    outside[:, 2:7, 1:5, 8:] = False
    np.testing.assert_array_equal(np.asarray(result)[outside], before[outside])

    inner.g = moved(g[:, 2:7, 1:5, 8:], -dy_offset, -dx_offset, 5, 6)
    _, dx_expected, dgamma, dbeta = inner.expected(m, v)
    np.testing.assert_allclose(state.gradient_for_gamma, dgamma, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(state.gradient_for_beta, dbeta, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(np.asarray(dx)[..., 4:], dx_expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(np.asarray(dx)[..., :4], np.zeros((2, 5, 6, 4)))


# States


def test_reads_beyond_a_clamped_edge_have_no_gradient():
    case = Case.draw((2, 3, 4, 5))
    kernel = case.kernel()
    kernel.edge_mode, kernel.offset = mg.EdgeMode.CLAMP, mg.Offset(2, 0)
    state = kernel.result_state(mg.Image.from_array(case.x))
    with mg.CommandBuffer() as commands:
        encode_statistics(case, commands, state)
        with pytest.raises(NotImplementedError, match="Gradient: the forward kernel read pixels 2 to 6 along x"):
            case.statistics_gradient().encode_batch(commands, batch(case.g), batch(case.x), state)


def functions_added(monkeypatch):
    """The names of the kernels of tiles that encodes add from here on."""
    functions = []
    monkeypatch.setattr(
        batch_normalization_dispatch._TileEncoder,
        "add",
        lambda self, name, *rest: functions.append(name) or NormalizationEncoder.add(self, name, *rest),
    )
    return functions


def kernels_of_checked_case(monkeypatch, shape, dtype, seed, name):
    """The names of the kernels of tiles for a case with that neuron, whose results are the reference's."""
    slopes = np.linspace(-1, 1, shape[-1]) if name == "prelu" else None
    case = Case.draw(shape, dtype, seed=seed, neuron=name and mg.NeuronDescriptor(name, 0.25, data=slopes))
    functions = functions_added(monkeypatch)
    check(case, run(case))
    return functions


@dataclass(eq=False)
class Foreign:
    """A function that none of the families made."""

    name: str


def check_one_kernel(case, threads, of_gradient=None):
    """Checks that one kernel does both halves of normalization and of its gradient, to the same bits as two.

    Of the gradient's kernel the threads may be others, ``of_gradient``.
    """
    at_once = run(case)
    check(case, at_once)
    source, gradient = mg.Image.from_array(case.x), mg.Image.from_array(case.g)
    kernel, images = case.kernel(), source.batch_representation()
    state, results = kernel.result_state(source), {}
    for encodes in (
        lambda commands: mg.BatchNormalizationStatistics().encode_batch(commands, images, state),
        lambda commands: results.update(y=kernel.encode(commands, source, batch_normalization_state=state)),
        lambda commands: case.statistics_gradient().encode_batch(
            commands, gradient.batch_representation(), images, state
        ),
        lambda commands: results.update(dx=case.gradient().encode(commands, gradient, source, state)),
    ):
        with mg.CommandBuffer() as commands:
            encodes(commands)
    for name, exact in (("y", at_once.y), ("dx", at_once.dx)):
        np.testing.assert_array_equal(np.asarray(results[name]), exact)
    with mg.CommandBuffer() as commands:
        mg.BatchNormalizationStatistics().encode_batch(commands, images, state)
        kernel.encode(commands, source, batch_normalization_state=state)
        case.statistics_gradient().encode_batch(commands, gradient.batch_representation(), images, state)
        case.gradient().encode(commands, gradient, source, state)
        (forward, backward) = (each.function.name for each in with_neighbours_joined(commands._dispatches))
        statistics, stream, *_ = commands._dispatches
        foreign = Dispatch(Foreign(stream.function.name), 1, statistics.buffers[:1])
        assert with_neighbours_joined([statistics, foreign]) == [statistics, foreign]
    assert re.match(f"normalize_at_once_by_{threads}", forward)
    assert re.match(f"normalization_gradient_at_once_by_{of_gradient or threads}", backward)


LARGE_CLUSTERS = (
    ("4096", (2, 64, 50, 36)),
    ("4096", (1, 95, 48, 116)),
    ("4096", (3, 65, 71, 72)),
    ("4096", (2, 28, 28, 99)),
    ("4096", (2, 30, 39, 222)),
    ("4096", (4, 26, 39, 127)),
    ("4096_in_memory", (7, 40, 31, 99)),
    ("4096_in_memory", (4, 26, 41, 127)),
    ("4096_in_memory", (11, 12, 21, 315)),
    ("4096_in_memory", (2, 54, 82, 114)),
    # Behind single channels that are long, and where clusters with registers would take turns.
    ("4096_in_memory", (3, 25, 44, 937)),
    ("4096_in_memory", (2, 25, 39, 533)),
    # More pixels.
    ("4096_in_memory", (1, 50, 66, 700)),
)
LARGEST_CLUSTERS = (
    (np.float32, (4, 35, 70, 212)),
    (np.float32, (1, 60, 100, 399)),
    (np.float16, (6, 39, 34, 398)),
    (np.float16, (1, 100, 92, 331)),
)
"""Of gradients, for which threadgroups have all memory of a compute unit; images alone take half of it."""


@pytest.mark.parametrize(("threads", "shape"), LARGE_CLUSTERS)
@pytest.mark.parametrize("name", [None, "relu"])
@pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
def test_large_clusters(device, threads, shape, name, dtype):
    """They have pixels in registers or in threadgroup memory; one threadgroup has too few threads for them."""
    if not device.has_clusters:
        pytest.skip("the device has no clusters")
    neuron = name and mg.NeuronDescriptor(name, 0.25)
    check_one_kernel(Case.draw(shape, dtype, seed=15, neuron=neuron), threads)


@pytest.mark.parametrize(("dtype", "shape"), LARGEST_CLUSTERS)
@pytest.mark.parametrize("name", [None, "relu"])
def test_gradients_in_all_memory_of_a_compute_unit(device, shape, name, dtype):
    if not device.has_clusters:
        pytest.skip("the device has no clusters")
    case = Case.draw(shape, dtype, seed=15, neuron=name and mg.NeuronDescriptor(name, 0.25))
    check_one_kernel(case, "4096_in_memory", "4096_in_large_memory")


@pytest.mark.parametrize("shape", [(1, 100, 92, 331), (6, 39, 34, 398)])
def test_images_in_all_memory_of_a_compute_unit(device, monkeypatch, shape):
    if not device.has_clusters:
        pytest.skip("the device has no clusters")
    functions = kernels_of_checked_case(monkeypatch, shape, np.float32, 15, None)
    assert functions[0].startswith("batch_statistics_at_once_by_4096_in_large_memory")


def clusters_of(monkeypatch, metal_type, shape, images):
    """The threads of the clusters that normalize such an image on an H200, or its gradient if two are read."""
    monkeypatch.setattr(batch_normalization_dispatch._TileEncoder, "_units", 132)
    encoder = object.__new__(batch_normalization_dispatch._TileEncoder)
    count, height, width, encoder.channels = shape
    encoder.metal_type, row = metal_type, width * encoder.channels
    layout = (0, encoder.channels, row, height * row, width, height, encoder.channels, count)
    tiles, in_memory = encoder._clusters(math.prod(shape[:3]), [layout] * images)
    return tiles and f"{tiles.across * tiles.row_lanes}{in_memory}"


@pytest.mark.parametrize(("threads", "shape"), LARGE_CLUSTERS)
@pytest.mark.parametrize("metal_type", ["float", "half"])
@pytest.mark.parametrize("images", [1, 2])
def test_large_clusters_are_planned_for_an_h200(monkeypatch, threads, shape, metal_type, images):
    assert clusters_of(monkeypatch, metal_type, shape, images) == threads


@pytest.mark.parametrize(("dtype", "shape"), LARGEST_CLUSTERS)
def test_gradients_that_fit_in_all_memory_of_a_compute_unit_are_planned_for_an_h200(monkeypatch, dtype, shape):
    metal_type = "float" if dtype == np.float32 else "half"
    planned = [clusters_of(monkeypatch, metal_type, shape, images) for images in (1, 2)]
    assert planned == ["4096_in_memory", "4096_in_large_memory"]


@pytest.mark.usefixtures("shaders_of_gpus")
class TestTheShadersOfGPUs:
    """Vectors and single channels, rows of one threadgroup and of several, contiguous and not."""

    @pytest.mark.parametrize(
        "shape", [(1, 1, 1, 100), (3, 9, 7, 5), (2, 60, 50, 33), (4, 40, 40, 64), (1, 50, 50, 300)]
    )
    @pytest.mark.parametrize("name", [None, "prelu", "sigmoid"])
    def test_everything_matches_the_reference(self, shape, name):
        slopes = np.linspace(-1, 1, shape[-1]) if name == "prelu" else None
        neuron = None if name is None else mg.NeuronDescriptor(name, *NEURONS[name], data=slopes)
        case = Case.draw(shape, seed=11, neuron=neuron)
        check(case, run(case))

    @pytest.mark.parametrize("shape", [(3, 9, 7, 5), (4, 40, 40, 64), (2, 99, 99, 24)])
    @pytest.mark.parametrize("name", ["relu", "prelu"] if gpu_forms.HALVES else ["relu"])
    def test_halves(self, shape, name):
        slopes = np.linspace(-1, 1, shape[-1]) if name == "prelu" else None
        case = Case.draw(shape, np.float16, seed=12, neuron=mg.NeuronDescriptor(name, 0.25, data=slopes))
        check(case, run(case))

    @pytest.mark.parametrize("shape", [(2, 31, 33, 64), (1, 64, 64, 33), (4, 1, 1, 300)])
    def test_a_mean_far_above_the_deviation_costs_no_accuracy(self, shape):
        test_a_mean_far_above_the_deviation_costs_no_accuracy(shape, -1e4, 0.5)

    def test_the_first_pixels_do_not_decide_the_accuracy(self):
        test_the_first_pixels_do_not_decide_the_accuracy()

    @pytest.mark.parametrize("shape", [(3, 20, 21, 40), (1, 50, 50, 3)])
    def test_a_constant_channel(self, shape):
        test_a_constant_channel_has_variance_zero_and_gives_beta_even_with_the_smallest_epsilon(0.1, shape)

    @pytest.mark.parametrize("apart", [False, True], ids=["joined", "apart"])
    def test_phases_accumulate_over_parts_of_the_batch(self, apart):
        test_phases_accumulate_over_parts_of_the_batch([4, 1, 3], False, apart)

    def test_batches_and_repetitions_give_the_same_bits(self):
        test_batches_and_repetitions_give_the_same_bits()

    @pytest.mark.parametrize("offset", [(0, 0), (2, -1), (9, 0)])
    def test_offsets_clip_rect_and_channel_ranges(self, offset):
        test_offsets_clip_rect_and_channel_ranges(offset, mg.NeuronDescriptor("relu", 0.25))

    @pytest.mark.parametrize("shape", [(2, 60, 50, 33), (2, 100, 160, 7), (4, 50, 40, 31), (2, 60, 50, 34)])
    @pytest.mark.parametrize("name", [None, "prelu"])
    @pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
    def test_pixels_are_joined_where_channels_are_no_vectors(self, monkeypatch, shape, name, dtype):
        for fewest in ("ROWS_JOINED", "VALUES_JOINED", "CHANNELS_JOINED", "ROWS_OF_PAIRS_JOINED"):
            monkeypatch.setattr(batch_normalization_dispatch, f"FEWEST_{fewest}", 0)
        functions = kernels_of_checked_case(monkeypatch, shape, dtype, 14, name)
        assert {name for name in functions if not name.startswith("merge")} == {
            f"{name}_of_joined_pixels"
            for name in ("batch_statistics", "normalize", "normalization_gradient_sums", "normalization_gradient")
        }

    @pytest.mark.parametrize("shape", [(2, 61, 51, 30), (1, 101, 163, 2), (2, 67, 51, 60)])
    @pytest.mark.parametrize("name", [None, "prelu"])
    @pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
    def test_threads_take_parts_of_vectors_where_these_fit(self, monkeypatch, shape, name, dtype):
        monkeypatch.setattr(batch_normalization_dispatch, "FEWEST_VALUES_OF_PARTS", 0)
        monkeypatch.setattr(batch_normalization_dispatch, "FEWEST_VALUES_JOINED", 0)
        monkeypatch.setattr(batch_normalization_dispatch, "plan_in_clusters", lambda *sizes: None)
        functions = kernels_of_checked_case(monkeypatch, shape, dtype, 16, name)
        ending = "_of_pairs" if shape[-1] % 4 else "_of_fours" if dtype is np.float16 else "_of_vectors"
        assert {name for name in functions if not name.startswith("merge")} == {
            f"{name}{ending}"
            for name in ("batch_statistics", "normalize", "normalization_gradient_sums", "normalization_gradient")
        }

    @pytest.mark.parametrize("shape", [(2, 61, 51, 33), (1, 101, 163, 7)])
    @pytest.mark.parametrize("name", [None, "prelu"])
    @pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
    def test_threads_take_more_rows_of_single_channels_of_many_pixels(self, monkeypatch, shape, name, dtype):
        monkeypatch.setattr(batch_normalization_dispatch, "FEWEST_VALUES_OF_LONG_CHANNELS", 0)
        monkeypatch.setattr(batch_normalization_dispatch, "plan_in_clusters", lambda *sizes: None)
        functions = kernels_of_checked_case(monkeypatch, shape, dtype, 15, name)
        assert {name for name in functions if name.endswith("_of_long_channels")} == {
            f"{name}_of_long_channels"
            for name in ("normalize", "normalization_gradient_sums", "normalization_gradient")
        }

    @gpu_forms.of_halves
    @pytest.mark.parametrize(
        ("shape", "endings"),
        [
            ((1, 101, 163, 24), ("pairs", "vectors", "pairs", "vectors")),
            ((1, 81, 82, 64), ("fours", "fours", "vectors", "fours")),
            ((1, 41, 101, 264), ("vectors", "vectors", "vectors", "fours")),
        ],
    )
    @pytest.mark.parametrize("name", [None, "prelu"])
    def test_threads_take_as_much_of_a_vector_of_halves_as_is_fastest(self, monkeypatch, shape, endings, name):
        monkeypatch.setattr(batch_normalization_dispatch._TileEncoder, "_add_at_once", lambda *arguments: False)
        monkeypatch.setattr(batch_normalization_dispatch, "takes_singles", lambda *sizes, **kinds: False)
        functions = kernels_of_checked_case(monkeypatch, shape, np.float16, 17, name)
        names = "batch_statistics", "normalize", "normalization_gradient_sums", "normalization_gradient"
        assert [function for function in functions if not function.startswith("merge")] == [
            f"{function}_of_{ending}" for function, ending in zip(names, endings, strict=True)
        ]

    @pytest.mark.parametrize(
        "channels, images, adds_up, small, large",
        [(47, 1, True, 2, 8), (48, 1, True, 4, 8), (256, 1, True, 4, 8), (257, 1, True, 8, 8)]
        + [(47, 2, True, 2, 8), (48, 2, True, 8, 8), (47, 1, False, 8, 8), (48, 1, False, 4, 8)]
        + [(257, 1, False, 8, 8), (47, 2, False, 8, 8), (48, 2, False, 4, 4), (257, 2, False, 4, 4)],
    )
    def test_parts_of_vectors_of_halves(self, channels, images, adds_up, small, large):
        most = (1 << 23) // channels
        for rows, expected in ((most, small), (most + 1, large)):
            assert batch_normalization_dispatch.width_of_halves(rows, channels, images, adds_up) == expected

    @pytest.mark.parametrize(("channels", "width", "tiles"), [(128, 4, 1), (132, 4, 3), (128, 1, 1), (129, 1, 3)])
    def test_rows_of_512_bytes_are_written_whole(self, channels, width, tiles):
        assert plan_tiles(802816, channels, width, 4, 132, None).tiles == tiles

    @pytest.mark.parametrize(
        "channels, pixels, joined",
        [(302, 13314, 2), (298, 13314, 1), (302, 13312, 1), (302, 13315, 1), (304, 13314, 1)],
    )
    def test_pixels_of_many_channels_are_joined_where_two_fit(self, monkeypatch, device, channels, pixels, joined):
        monkeypatch.setattr(batch_normalization_dispatch, "FEWEST_VALUES_JOINED", 0)
        encoder = object.__new__(batch_normalization_dispatch._TileEncoder)
        encoder.device, encoder.metal_type, encoder.channels = device, "float", channels
        ((_, _, _, _, rows, _, columns, _),) = encoder._merged([(0, channels, 0, 0, pixels, 1, channels, 1)])
        assert (rows, columns) == (pixels // joined, channels * joined)

    @pytest.mark.parametrize(
        "start, pixel, pixels, joined",
        [(0, 7, 12000, 4), (28, 7, 12000, 4), (0, 7, 10400, 1), (7, 7, 12000, 1), (0, 8, 12000, 1), (0, 7, 12001, 1)],
    )
    def test_pixels_are_joined_to_whole_vectors_only(self, monkeypatch, device, start, pixel, pixels, joined):
        monkeypatch.setattr(batch_normalization_dispatch, "FEWEST_VALUES_JOINED", 0)
        encoder = object.__new__(batch_normalization_dispatch._TileEncoder)
        encoder.device, encoder.metal_type, encoder.channels = device, "float", 7
        ((_, _, _, _, width, _, channels, _),) = encoder._merged([(start, pixel, 0, 0, pixels, 1, 7, 1)])
        assert (width, channels) == (pixels // joined, 7 * joined)

    @pytest.mark.parametrize("shape", [(1, 28, 28, 8), (2, 20, 31, 1), (3, 9, 7, 40), (4, 1, 1, 37)])
    @pytest.mark.parametrize("name", [None, "relu"])
    def test_images_of_few_pixels_are_normalized_at_once(self, shape, name):
        """By one kernel for one or two vectors or channels of a threadgroup, to the same bits as by two."""
        check_one_kernel(Case.draw(shape, seed=13, neuron=name and mg.NeuronDescriptor(name, 0.25)), "(128|256)")

    @pytest.mark.parametrize("name", [None, "relu"])
    def test_images_of_long_channels_are_normalized_at_once(self, monkeypatch, name):
        monkeypatch.setattr(batch_normalization_dispatch, "FEWEST_VALUES_OF_LONG_CHANNELS", 0)
        case = Case.draw((2, 20, 20, 5), seed=13, neuron=name and mg.NeuronDescriptor(name, 0.25))
        check_one_kernel(case, "(128|256)")

    @pytest.mark.parametrize(
        "shape",
        [(3, 30, 31, 7), (2, 40, 33, 19), (3, 19, 20, 37)]
        + [(2, 65, 33, 24), (2, 33, 17, 44), (2, 33, 17, 46), (2, 33, 17, 48)]
        + [(2, 33, 17, 152), (1, 27, 37, 270), (1, 27, 37, 133)],
    )
    @pytest.mark.parametrize("name", [None, "relu"])
    @pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
    def test_images_of_more_pixels_are_normalized_by_clusters(self, device, monkeypatch, shape, name, dtype):
        """The same, for up to eight channels or vectors of a cluster, which is a threadgroup where there are none."""
        monkeypatch.setattr(type(device), "has_clusters", True)
        monkeypatch.setattr(batch_normalization_dispatch._TileEncoder, "_units", 132)
        neuron = name and mg.NeuronDescriptor(name, 0.25)
        check_one_kernel(Case.draw(shape, dtype, seed=14, neuron=neuron), "1024")

    @pytest.mark.parametrize("name", [None, "relu"])
    @pytest.mark.parametrize("dtype", gpu_forms.DTYPES)
    def test_clusters_normalize_what_threads_would_take_in_parts_of_vectors(self, device, monkeypatch, name, dtype):
        monkeypatch.setattr(type(device), "has_clusters", True)
        monkeypatch.setattr(batch_normalization_dispatch._TileEncoder, "_units", 132)
        monkeypatch.setattr(batch_normalization_dispatch, "FEWEST_VALUES_OF_PARTS", 0)
        neuron = name and mg.NeuronDescriptor(name, 0.25)
        check_one_kernel(Case.draw((2, 33, 17, 46), dtype, seed=17, neuron=neuron), "1024")

    @pytest.mark.parametrize(
        ("first", "width", "is_joined"), [(4, 4, True), (4, 8, False), (6, 4, False), (5, 1, True)]
    )
    def test_kernels_for_vectors_are_joined_where_results_are_aligned(self, first, width, is_joined):
        values = dict.fromkeys(TILE_PARAMETERS.fields, 1)
        source = (0, 40, 0, 0, 1122, 1, 40, 1)
        values |= {"gradient": source, "source": source, "destination": source, "neuron": (0,) * 3, "pixels": 0}
        sums = TILE_PARAMETERS.pack(**values)
        stream = TILE_PARAMETERS.pack(**values | {"destination": (first, 48, 0, 0, 1122, 1, 40, 1)})
        assert (batch_normalization_at_once._joined(sums, stream, width) is not None) == is_joined

    @pytest.mark.parametrize(
        "rows, channels, width, expected",
        [
            (2048, 7, 1, None),
            (2049, 7, 1, (1, 1, 1024, 7)),
            (8192, 16, 8, (1, 1, 1024, 16)),
            (8193, 16, 8, None),
            (4096, 31, 1, (1, 2, 512, 16)),
            (4097, 31, 1, (1, 4, 1024, 8)),
            (4097, 32, 4, (4, 1, 1024, 8)),
            (1024, 40, 4, None),
            (512, 596, 4, None),
            (513, 528, 4, (4, 4, 256, 33)),
            (513, 524, 4, None),
            (891, 596, 4, (4, 4, 256, 38)),
            (950, 542, 2, (2, 8, 128, 34)),
            (1025, 40, 4, (4, 2, 512, 5)),
            (1025, 36, 4, (4, 2, 512, 5)),
            (6272, 128, 8, (8, 1, 1024, 16)),
            (6272, 136, 8, (4, 4, 1024, 9)),
            (6272, 256, 8, (4, 4, 1024, 16)),
            (6272, 272, 8, (4, 4, 1024, 17)),
            (6272, 304, 8, None),
            (13992, 112, 8, (8, 2, 2048, 7)),
            (4512, 116, 4, (2, 4, 1024, 15)),
            (6000, 72, 4, (2, 4, 1024, 9)),
            (6000, 212, 4, (4, 4, 1024, 14)),
            (4000, 212, 4, (2, 8, 512, 14)),
            (14336, 40, 4, (4, 2, 2048, 5)),
            (14337, 40, 4, None),
            (4512, 118, 2, (2, 4, 1024, 15)),
            (2340, 222, 2, (2, 8, 512, 14)),
            (1936, 622, 2, (2, 4, 256, 78)),
            (1806, 287, 1, (1, 16, 256, 18)),
            (3294, 307, 1, None),
            (2240, 460, 4, (4, 2, 512, 58)),
            (4096, 768, 8, (8, 2, 512, 48)),
            (4096, 1024, 8, None),
            (1568, 99, 1, (1, 16, 256, 7)),
            (1890, 469, 1, (1, 16, 256, 30)),
            (1560, 662, 2, (2, 4, 256, 83)),
            (2970, 203, 1, (1, 8, 512, 26)),
            (5120, 150, 2, (2, 4, 1024, 19)),
        ],
    )
    def test_clusters_own_all_pixels_where_that_is_faster(self, rows, channels, width, expected):
        tiles = plan_in_clusters(rows, channels, width, 132)
        assert (tiles and (tiles.width, tiles.across, tiles.row_lanes, tiles.tiles)) == expected

    @pytest.mark.parametrize(
        "rows, channels, width, element_bytes, images, expected",
        [
            (8680, 99, 1, 2, 1, (8, 512, 13, IN_MEMORY)),
            (7776, 127, 1, 2, 2, (16, 256, 8, IN_MEMORY)),
            (2772, 315, 1, 4, 2, (32, 128, 10, IN_MEMORY)),
            (6864, 309, 1, 4, 1, (32, 128, 10, IN_LARGE_MEMORY)),
            (4410, 353, 1, 4, 2, (32, 128, 12, IN_LARGE_MEMORY)),
            (6460, 432, 4, 2, 1, (8, 512, 14, IN_MEMORY)),
            (6460, 344, 4, 2, 2, (8, 512, 11, IN_MEMORY)),
            (9648, 216, 4, 2, 2, (4, 1024, 14, IN_MEMORY)),
            (9800, 212, 2, 4, 2, (8, 512, 14, IN_LARGE_MEMORY)),
            (10400, 399, 1, 2, 2, (32, 128, 13, IN_LARGE_MEMORY)),
            (10401, 399, 1, 2, 2, None),
            (10400, 114, 2, 4, 1, (4, 1024, 15, IN_MEMORY)),
            (10401, 114, 2, 4, 1, None),
            (13312, 212, 2, 4, 1, (8, 512, 14, IN_MEMORY)),
            (13313, 212, 2, 4, 1, None),
            (13312, 212, 2, 2, 2, None),
            (13312, 300, 4, 2, 1, (8, 512, 10, IN_MEMORY)),
            (13000, 254, 2, 2, 1, None),
            (11200, 105, 1, 2, 1, (8, 512, 14, IN_MEMORY)),
            (12001, 105, 1, 2, 1, None),
            (2208, 960, 2, 4, 2, (16, 256, 30, IN_MEMORY)),
            (2208, 961, 1, 4, 2, None),
            (1025, 33, 1, 2, 1, (8, 512, 5, IN_MEMORY)),
            (1024, 33, 1, 2, 1, None),
            (1025, 32, 1, 2, 1, None),
        ],
    )
    def test_clusters_keep_in_memory_what_fits_there(self, rows, channels, width, element_bytes, images, expected):
        plan = plan_in_memory(rows, channels, width, element_bytes, images, 132)
        assert (plan and (plan[0].across, plan[0].row_lanes, plan[0].tiles, plan[1])) == expected

    @pytest.mark.parametrize(
        "metal_type, tiles, expected",
        [
            ("float", Tiles(4, 2, 2048, 18, 1), True),
            ("float", Tiles(2, 4, 1024, 28, 1), False),
            ("float", Tiles(4, 2, 2048, 15, 1), False),
            ("float", Tiles(4, 4, 1024, 18, 1), False),
            ("float", Tiles(4, 2, 512, 58, 1), False),
            ("half", Tiles(4, 2, 2048, 18, 1), False),
        ],
    )
    def test_large_clusters_of_floats_take_turns(self, monkeypatch, metal_type, tiles, expected):
        monkeypatch.setattr(batch_normalization_dispatch._TileEncoder, "_units", 132)
        encoder = object.__new__(batch_normalization_dispatch._TileEncoder)
        encoder.metal_type = metal_type
        assert encoder._take_turns(tiles) == expected

    @pytest.mark.parametrize("rows, channels", [(802816, 64), (784, 64), (1024, 4096), (1025, 4), (4495, 37), (7, 1)])
    @pytest.mark.parametrize("width", [1, 4])
    def test_threadgroups_that_own_all_pixels_cover_everything_once(self, rows, channels, width):
        if channels % width:
            return
        tiles = plan_at_once(rows, channels, width, 132)
        if tiles is None:
            assert rows > 1024
            return
        assert tiles.across * tiles.row_lanes in (128, 256) and 8 * tiles.row_lanes >= rows
        assert (tiles.tiles - 1) * tiles.across < channels // width <= tiles.tiles * tiles.across

    @pytest.mark.parametrize(
        "rows, channels, width, single",
        [
            (784, 64, 8, True),
            (784, 128, 4, False),
            (196, 320, 8, True),
            (1568, 96, 4, False),
            (3136, 96, 4, True),
            (6272, 64, 8, True),
            (6272, 64, 4, False),
            (12544, 160, 8, False),
            (50176, 256, 8, False),
        ],
    )
    def test_threads_take_single_channels_of_small_images(self, rows, channels, width, single):
        assert takes_singles(rows, channels, width, 132) == single

    @pytest.mark.parametrize("rows, channels", [(802816, 64), (784, 64), (1568, 2048), (4495, 37), (1, 4096), (7, 1)])
    @pytest.mark.parametrize("width", [1, 4])
    @pytest.mark.parametrize("summed_rows", [None, 8])
    def test_tiles_cover_everything_once(self, rows, channels, width, summed_rows):
        if channels % width:
            return
        tiles = plan_tiles(rows, channels, width, 4, 132, summed_rows)
        assert tiles.across * tiles.row_lanes <= 256
        assert (tiles.tiles - 1) * tiles.across < channels // width <= tiles.tiles * tiles.across
        if summed_rows is not None:
            assert 1 <= tiles.splits <= -(-rows // (tiles.row_lanes * summed_rows))
