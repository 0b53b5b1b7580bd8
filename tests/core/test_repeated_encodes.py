"""An encode that was made before takes over what came out then: it must look like the first one in every way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpsgrad as mg
from mpsgrad import reference
from mpsgrad.padding import VALID_ONLY
from mpsgrad.repeated_encode import REMEMBERED_ENCODES

SHAPE = (2, 6, 5, 8)
PAIRS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "pooling_max": lambda: (mg.PoolingMax(kernel_width=3, kernel_height=2), mg.PoolingMaxGradient(
        kernel_width=3, kernel_height=2)),
    "pooling_max_recorded": lambda: (mg.PoolingMax(kernel_width=2, kernel_height=2, record_maxima=True),
                                     mg.PoolingMaxGradient(kernel_width=2, kernel_height=2)),
    "pooling_l2_norm": lambda: (mg.PoolingL2Norm(kernel_width=3, kernel_height=3), mg.PoolingL2NormGradient(
        kernel_width=3, kernel_height=3)),
    "soft_max": lambda: (mg.SoftMax(), mg.SoftMaxGradient()),
    "neuron": lambda: (mg.NeuronSigmoid(), mg.NeuronGradient(mg.NeuronDescriptor("sigmoid"))),
    "prelu": lambda: (mg.NeuronPReLU(np.arange(8.0)), mg.NeuronGradient(
        mg.NeuronDescriptor.prelu(np.arange(8.0)), computes_gradient_for_slopes=True)),
    "convolution": lambda: _convolution(),
}


def _convolution() -> tuple[Any, Any]:
    weights = np.random.default_rng(5).standard_normal((4, 3, 3, 8)).astype(np.float32)
    data = mg.ConvolutionDataSource.from_arrays(weights, np.ones(4, np.float32))
    return mg.Convolution(data), mg.ConvolutionGradient(data)


def _array(seed: int, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _step(forward: Any, gradient: Any, x: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    source = mg.Image.from_array(x)
    with mg.CommandBuffer() as commands:
        y, state = forward.encode(commands, source, return_state=True)
        incoming = mg.Image.from_array(_array(seed, y.shape))
        second = y if isinstance(gradient, mg.SoftMaxGradient) else source
        dx = gradient.encode(commands, incoming, second, state)
    return np.array(y), np.array(dx)


@pytest.mark.parametrize("name", PAIRS)
def test_the_third_encode_of_other_images_equals_that_of_new_kernels(name: str) -> None:
    forward, gradient = PAIRS[name]()
    for seed in range(4):
        x = _array(seed)
        got, wanted = _step(forward, gradient, x, seed + 10), _step(*PAIRS[name](), x, seed + 10)
        for mine, fresh in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(mine, fresh)


@pytest.mark.parametrize("name", PAIRS)
def test_sizes_may_alternate(name: str) -> None:
    forward, gradient = PAIRS[name]()
    for seed in range(6):
        x = _array(seed, SHAPE if seed % 2 else (1, 7, 4, 8))
        got, wanted = _step(forward, gradient, x, seed + 10), _step(*PAIRS[name](), x, seed + 10)
        for mine, fresh in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(mine, fresh)


SETTINGS: list[tuple[str, Any]] = [
    ("clip_rect", mg.Region(mg.Origin(1, 1, 0), mg.Size(2, 3, 2))),
    ("clip_rect", mg.NO_CLIP),
    ("edge_mode", mg.EdgeMode.CLAMP),
    ("edge_mode", mg.EdgeMode.ZERO),
    ("source_feature_channel_offset", 4),
    ("source_feature_channel_offset", 0),
    ("destination_feature_channel_offset", 0),
    ("offset", mg.Offset(1, 0, 1)),
    ("offset", mg.Offset(0, 0, 0)),
    ("padding", VALID_ONLY),
]


@given(st.lists(st.sampled_from(SETTINGS), max_size=6), st.sampled_from(["pooling_max", "pooling_l2_norm", "neuron"]))
def test_every_property_counts(settings: list[tuple[str, Any]], name: str) -> None:
    """A kernel whose properties change between encodes gives what a new kernel with these properties gives."""
    kernel, _ = PAIRS[name]()
    x = mg.Image.from_array(_array(1))
    applied: list[tuple[str, Any]] = []
    for setting in [None, *settings]:
        if setting is not None:
            applied.append(setting)
            setattr(kernel, *setting)
        fresh, _ = PAIRS[name]()
        for earlier in applied:
            setattr(fresh, *earlier)
        for _ in range(2):
            results = []
            # The policy sets the offset in encodes that return an image, so each gets the one it had before.
            for each in (kernel, fresh):
                before = each.offset
                with mg.CommandBuffer() as commands:
                    results.append(each.encode(commands, x))
                assert each.offset == (fresh.offset if each is fresh else kernel.offset)
                each.offset = before
            np.testing.assert_array_equal(np.asarray(results[0]), np.asarray(results[1]))


def test_properties_after_an_encode_are_those_of_its_state() -> None:
    forward = mg.PoolingAverage(kernel_width=3, kernel_height=3)
    gradient = mg.PoolingAverageGradient(kernel_width=3, kernel_height=3)
    seen: dict[int, list[Any]] = {}
    for round_ in range(3):
        for start in (0, 1):
            forward.clip_rect = mg.Region(mg.Origin(start, 0, 0), mg.Size(3, 3, 2))
            _step(forward, gradient, _array(round_), round_)
            seen.setdefault(start, []).append((gradient.primary_offset, gradient.secondary_offset, gradient.clip_rect))
    for values in seen.values():
        assert values[0] == values[1] == values[2]
    assert seen[0][0] != seen[1][0]


class TestWhatIsWrongTheSecondTimeIsRefused:
    def setup_method(self) -> None:
        self.forward, self.gradient = PAIRS["pooling_max_recorded"]()
        self.source = mg.Image.from_array(_array(1))
        for _ in range(2):
            with mg.CommandBuffer() as self.done:
                self.y, self.state = self.forward.encode(self.done, self.source, return_state=True)
                self.incoming = mg.Image(self.y.descriptor)
                self.dx = self.gradient.encode(self.done, self.incoming, self.source, self.state)

    def test_a_committed_command_buffer(self) -> None:
        with pytest.raises(mg.StateError, match="PoolingMaxGradient.encode is not possible"):
            self.gradient.encode(self.done, self.incoming, self.source, self.state)
        with pytest.raises(mg.StateError, match="PoolingMax.encode is not possible"):
            self.forward.encode(self.done, self.source)

    def test_a_destination_that_is_a_source(self) -> None:
        same = mg.NeuronGradient(mg.NeuronDescriptor("relu"))
        with mg.CommandBuffer() as commands:
            _, state = mg.Neuron(mg.NeuronDescriptor("relu")).encode(commands, self.source, return_state=True)
            for _ in range(2):
                out = mg.Image(self.source.descriptor)
                same.encode(commands, mg.Image(self.source.descriptor), self.source, state, destination_gradient=out)
            with pytest.raises(mg.GeometryError, match="shares memory"):
                same.encode(commands, out, self.source, state, destination_gradient=self.source)

    def test_a_used_up_temporary_image(self) -> None:
        with mg.CommandBuffer() as commands:
            temporary = mg.TemporaryImage(commands, self.source.descriptor)
            self.forward.encode(commands, temporary)
            with pytest.raises(mg.StateError, match="read_count 0"):
                self.forward.encode(commands, temporary)

    def test_a_temporary_image_of_another_command_buffer(self) -> None:
        with mg.CommandBuffer() as other:
            temporary = mg.TemporaryImage(other, self.source.descriptor)
            with mg.CommandBuffer() as commands, pytest.raises(mg.StateError, match="belongs to"):
                self.forward.encode(commands, temporary)

    def test_a_state_of_another_size(self) -> None:
        small = mg.Image.from_array(_array(1, (1, 4, 4, 8)))
        with mg.CommandBuffer() as commands:
            _, state = self.forward.encode(commands, small, return_state=True)
            with pytest.raises(mg.GeometryError, match="gradient_state was made for"):
                self.gradient.encode(commands, self.incoming, self.source, state)

    def test_no_image(self) -> None:
        with mg.CommandBuffer() as commands, pytest.raises(mg.FormatError, match="source_gradient is NoneType"):
            self.gradient.encode(commands, None, self.source, self.state)


def test_a_state_that_recorded_nothing_is_not_taken_for_one_that_did() -> None:
    forward, gradient = PAIRS["pooling_max_recorded"]()
    x, g = _array(1), None
    for _ in range(2):
        source = mg.Image.from_array(x)
        with mg.CommandBuffer() as commands:
            y, state = forward.encode(commands, source, return_state=True)
            g = mg.Image.from_array(_array(2, y.shape))
            wanted = gradient.encode(commands, g, source, state)
    source = mg.Image.from_array(x)
    with mg.CommandBuffer() as commands:
        empty = forward.result_state(source, destination_image=y)
        got = gradient.encode(commands, g, source, empty)
    np.testing.assert_array_equal(np.asarray(got), np.asarray(wanted))


def test_one_image_for_both_sources_is_not_taken_for_two() -> None:
    descriptor = mg.NeuronDescriptor("sigmoid")
    forward, gradient = mg.Neuron(descriptor), mg.NeuronGradient(descriptor)
    x, g = _array(1), _array(2)
    source, incoming = mg.Image.from_array(x), mg.Image.from_array(g)
    with mg.CommandBuffer() as commands:
        _, state = forward.encode(commands, source, return_state=True)
        gradient.encode(commands, source, source, state)
        both = gradient.encode(commands, source, source, state)
        two = gradient.encode(commands, incoming, source, state)
        again = gradient.encode(commands, incoming, source, state)
    expected = reference.neuron_gradient(g, x, type="sigmoid")
    np.testing.assert_allclose(np.asarray(two), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(np.asarray(two), np.asarray(again))
    np.testing.assert_allclose(
        np.asarray(both), reference.neuron_gradient(x, x, type="sigmoid"), rtol=1e-5, atol=1e-6
    )


def test_new_weights_reach_the_next_encode() -> None:
    weights = np.ones((4, 1, 1, 8), np.float32)
    data = mg.ConvolutionDataSource.from_arrays(weights, np.zeros(4, np.float32))
    kernel = mg.Convolution(data)
    source = mg.Image.from_array(np.ones(SHAPE, np.float32))
    for factor in (1.0, 2.0, 3.0):
        data.weights[...] = factor
        kernel.reload_weights_and_biases_from_data_source()
        for _ in range(2):
            with mg.CommandBuffer() as commands:
                y = kernel.encode(commands, source)
            np.testing.assert_array_equal(np.asarray(y), np.float32(8 * factor))


def test_no_more_encodes_are_kept_than_the_limit() -> None:
    kernel = mg.NeuronReLU()
    with mg.CommandBuffer() as commands:
        for width in range(1, REMEMBERED_ENCODES + 20):
            kernel.encode(commands, mg.Image.from_array(np.ones((1, 1, width, 4), np.float32)))
            assert len(kernel._encodes) <= REMEMBERED_ENCODES
