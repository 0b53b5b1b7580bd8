"""Batch normalization by threads of a CPU that own channels and make all passes over them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from batch_normalization_case import Case, check, run

import mpsgrad as mg
from mpsgrad.kernels.batch_normalization_dispatch import threads_by_channels
from mpsgrad.kernels.pointwise import dense_layout
from mpsgrad.neighbouring_dispatches import with_neighbours_joined
from mpsgrad.shader import use_tunables
from mpsgrad.tunables import ALWAYS, WHERE_FEWER, tunables

pytestmark = pytest.mark.skipif(mg.default_device().family != "cpu", reason="other kernels")

NEURONS = [None, mg.NeuronDescriptor("relu", 0.25)]
FORWARD, BACKWARD = "normalize_by_channels", "normalization_gradient_by_channels"


@pytest.fixture(autouse=True)
def few_registers_and_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kernels of CPUs with 16 registers of eight floats, of which two cores have enough channels each."""
    device = mg.default_device()
    monkeypatch.setattr(device, "compute_units", 2)
    before = tunables(device.tuning)
    use_tunables(device.tuning, before.with_number("convolution_by_eights", ALWAYS))
    yield
    use_tunables(device.tuning, before)


def names_of(commands: mg.CommandBuffer) -> list[str]:
    return [dispatch.function.name for dispatch in with_neighbours_joined(commands._dispatches)]


class Encodes:
    """The kernels of a case with images and a state, and what they make of these."""

    def __init__(self, case: Case) -> None:
        self.source, self.incoming = mg.Image.from_array(case.x), mg.Image.from_array(case.g)
        self.kernel, self.gradient, self.sums = case.kernel(), case.gradient(), case.statistics_gradient()
        self.state = self.kernel.result_state(self.source)

    def add_statistics(self, commands: mg.CommandBuffer) -> None:
        mg.BatchNormalizationStatistics().encode_batch(commands, self.source.batch_representation(), self.state)

    def normalize(self, commands: mg.CommandBuffer, destination: mg.Image | None = None) -> mg.Image:
        arguments = {} if destination is None else {"destination_image": destination}
        return self.kernel.encode(commands, self.source, batch_normalization_state=self.state, **arguments)

    def add_sums(self, commands: mg.CommandBuffer) -> None:
        batches = (image.batch_representation() for image in (self.incoming, self.source))
        self.sums.encode_batch(commands, *batches, self.state)

    def differentiate(self, commands: mg.CommandBuffer) -> mg.Image:
        return self.gradient.encode(commands, self.incoming, self.source, self.state)


@pytest.mark.parametrize("neuron", NEURONS, ids=["plain", "relu"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    "shape", [(3, 5, 5, 64), (1, 9, 7, 130), (2, 8, 3, 201), (1, 1, 1, 128), (2, 28, 28, 96), (1, 41, 40, 131)]
)
def test_everything_matches_the_reference(shape, dtype, neuron):
    case = Case.draw(shape, dtype, neuron=neuron)
    check(case, run(case))


@pytest.mark.parametrize("mean, deviation", [(1e3, 1.0), (-1e4, 0.5), (0.0, 1e-3)])
def test_a_mean_far_above_the_deviation_costs_no_accuracy(mean, deviation):
    case = Case.draw((2, 14, 15, 134))
    case = replace(case, x=(mean + deviation * case.x).astype(np.float32))
    check(case, run(case))


def test_a_constant_channel_has_variance_zero():
    case = Case.draw((2, 9, 9, 72), epsilon=1e-3)
    case = replace(case, x=np.full_like(case.x, 0.1))
    outcome = run(case)
    assert not np.asarray(outcome.state.variance).any()
    np.testing.assert_array_equal(outcome.y, np.broadcast_to(case.beta, case.x.shape))


@pytest.mark.parametrize("neuron", NEURONS, ids=["plain", "relu"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("shape", [(2, 9, 8, 64), (3, 7, 9, 129), (1, 33, 33, 96)])
def test_both_passes_are_one_kernel_with_the_same_bits_as_two(shape, dtype, neuron):
    """Its threads write nothing else than those whose encodes are apart."""
    case = Case.draw(shape, dtype, neuron=neuron)
    joined, apart = Encodes(case), Encodes(case)
    with mg.CommandBuffer() as commands:
        joined.add_statistics(commands)
        y = joined.normalize(commands)
        joined.add_sums(commands)
        dx = joined.differentiate(commands)
        assert names_of(commands) == [FORWARD, BACKWARD]
    steps = (apart.add_statistics, apart.normalize, apart.add_sums, apart.differentiate)
    results = []
    for step in steps:
        with mg.CommandBuffer() as commands:
            results.append(step(commands))
    _, own_y, _, own_dx = results
    for ours, theirs in ((y, own_y), (dx, own_dx)):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
    for name in ("mean", "variance", "gradient_for_gamma", "gradient_for_beta"):
        np.testing.assert_array_equal(getattr(joined.state, name), getattr(apart.state, name))


@pytest.mark.parametrize("neuron", NEURONS, ids=["plain", "relu"])
@pytest.mark.parametrize(
    ("shape", "names"),
    [
        ((2, 9, 8, 64), ["normalize_in_one", "normalization_gradient_in_one"]),
        ((2, 14, 14, 704), ["normalize_in_one", BACKWARD]),
        ((2, 19, 20, 704), [FORWARD, BACKWARD]),
    ],
)
def test_with_many_registers_one_thread_takes_all_channels_of_smaller_images(shape, names, neuron):
    """And of larger ones than with few."""
    device = mg.default_device()
    use_tunables(device.tuning, tunables(device.tuning).with_number("convolution_by_eights", WHERE_FEWER))
    case = Case.draw(shape, neuron=neuron)
    check(case, run(case))
    encodes = Encodes(case)
    with mg.CommandBuffer() as commands:
        encodes.add_statistics(commands)
        encodes.normalize(commands)
        encodes.add_sums(commands)
        encodes.differentiate(commands)
        assert names_of(commands) == names


@pytest.mark.parametrize("channels", [64, 131, 264])
def test_results_among_other_channels(channels):
    """Whose pixels are no rows of several, as those of the source may be, and lie further apart."""
    case = Case.draw((2, 9, 8, channels))
    expected = run(case)
    encodes = Encodes(case)
    wide = mg.Image.from_array(np.full((2, 9, 8, channels + 9), 7, np.float32))
    encodes.kernel.destination_feature_channel_offset = 4
    with mg.CommandBuffer() as commands:
        encodes.add_statistics(commands)
        encodes.normalize(commands, wide)
        assert names_of(commands) == [FORWARD]
    result = np.asarray(wide)
    np.testing.assert_array_equal(result[..., 4 : 4 + channels], expected.y)
    assert (result[..., :4] == 7).all() and (result[..., 4 + channels :] == 7).all()


def test_normalization_of_other_pixels_is_a_kernel_of_its_own():
    case = Case.draw((2, 9, 8, 64))
    encodes, whole = Encodes(case), run(case)
    encodes.kernel.offset = mg.Offset(1, 0)
    encodes.kernel.clip_rect = mg.Region(mg.Origin(0, 0, 0), mg.Size(7, 9, 2))
    result = mg.Image(encodes.source.descriptor)
    with mg.CommandBuffer() as commands:
        encodes.add_statistics(commands)
        encodes.normalize(commands, result)
        assert FORWARD not in names_of(commands)
    np.testing.assert_array_equal(np.asarray(result)[:, :, :7], whole.y[:, :, 1:])


@pytest.mark.parametrize(
    ("shape", "images", "threads"),
    [
        ((1, 14, 21, 490), 1, 4),
        ((1, 14, 21, 127), 2, 0),  # threads would write to the same lines
        ((1, 14, 21, 96), 2, 2),  # and do not where pixels are whole ones
        ((1, 14, 21, 48), 2, 0),
        ((1, 50, 50, 130), 1, 4),
        ((1, 50, 50, 130), 2, 0),  # too many pixels for the nearer caches
        ((1, 64, 64, 96), 1, 2),  # which hold more whole lines
        ((1, 40, 40, 256), 1, 0),  # but few that lie a power of two apart
        ((3, 30, 30, 900), 1, 0),  # too many pages
    ],
)
def test_threads_own_channels_whose_pixels_caches_hold(shape, images, threads):
    count, height, width, channels = shape
    assert threads_by_channels([dense_layout(width, height, channels, count)] * images, 4, 2) == threads
