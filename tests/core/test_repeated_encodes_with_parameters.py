"""Repeated encodes of kernels with parameters, sums in states and labels: what may change between them, and what fails.

Each kernel is used twice before, so that the encodes under test are ones that take over what came out then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpsgrad as mg

SHAPE = (2, 4, 5, 8)
WEIGHTS = np.random.default_rng(1).standard_normal((4, 3, 3, 8)).astype(np.float32)
BIASES = np.arange(4, dtype=np.float32)


class Stop(Exception):
    pass


def _array(seed: int, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _image(seed: int, shape: tuple[int, ...] = SHAPE) -> mg.Image:
    return mg.Image.from_array(_array(seed, shape))


class Data(mg.ConvolutionDataSource):
    """A data source whose parts may be replaced."""

    def __init__(self) -> None:
        self.weights_now, self.biases_now = WEIGHTS.copy(), BIASES.copy()
        self.descriptor_now = mg.ConvolutionDescriptor(3, 3, 8, 4)

    data_type = mg.DataType.FLOAT32
    weights = property(lambda self: self.weights_now)  # type: ignore[assignment]
    bias_terms = property(lambda self: self.biases_now)  # type: ignore[assignment]
    descriptor = property(lambda self: self.descriptor_now)  # type: ignore[assignment]


def _set(kernel: Any, commands: mg.CommandBuffer, weights: np.ndarray) -> None:
    kernel.weights_and_biases = (weights, -BIASES)


def _reload(kernel: Any, commands: mg.CommandBuffer, weights: np.ndarray) -> None:
    kernel.data_source.weights_now, kernel.data_source.biases_now = weights, -BIASES
    kernel.reload_weights_and_biases_from_data_source()


def _reload_on_the_device(kernel: Any, commands: mg.CommandBuffer, weights: np.ndarray) -> None:
    state = mg.ConvolutionWeightsAndBiasesState.from_arrays(weights, -BIASES, kernel.device)
    kernel.reload_weights_and_biases(commands, state)


CHANGES: list[Callable[..., None]] = [_set, _reload, _reload_on_the_device]


class TestConvolution:
    def setup_method(self) -> None:
        self.forward, self.gradient, self.state = self.used()
        self.source, self.incoming = _image(1), _image(2, (2, 4, 5, 4))

    def used(self) -> tuple[mg.Convolution, mg.ConvolutionGradient, mg.ConvolutionGradientState]:
        data = Data()
        forward, gradient = mg.Convolution(data), mg.ConvolutionGradient(data)
        for _ in range(2):
            source = _image(5)
            with mg.CommandBuffer() as commands:
                y, state = forward.encode(commands, source, return_state=True)
                gradient.encode(commands, mg.Image(y.descriptor), source, state)
                gradient.encode(commands, mg.Image(y.descriptor), source, state)
        return forward, gradient, state

    def results(self, forward: Any, gradient: Any) -> list[Any]:
        with mg.CommandBuffer() as commands:
            y, state = forward.encode(commands, self.source, return_state=True)
            dx = gradient.encode(commands, self.incoming, self.source, state)
        return [np.array(y), np.array(dx), state.gradient_for_weights, state.gradient_for_biases]

    def assert_equal(self, got: list[Any], wanted: list[Any]) -> None:
        for mine, fresh in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(mine, fresh)

    @pytest.mark.parametrize("change", CHANGES)
    def test_new_weights_reach_the_next_encode(self, change: Callable[..., None]) -> None:
        for factor in (2, -1):
            data = Data()
            data.weights_now, data.biases_now = factor * WEIGHTS, -BIASES
            with mg.CommandBuffer() as commands:
                change(self.forward, commands, factor * WEIGHTS)
                change(self.gradient, commands, factor * WEIGHTS)
            wanted = self.results(mg.Convolution(data), mg.ConvolutionGradient(data))
            self.assert_equal(self.results(self.forward, self.gradient), wanted)

    @pytest.mark.parametrize("change", CHANGES)
    def test_new_weights_between_encodes_of_one_command_buffer(self, change: Callable[..., None]) -> None:
        with mg.CommandBuffer() as commands:
            before = self.forward.encode(commands, self.source)
            change(self.forward, commands, 3 * WEIGHTS)
            after = self.forward.encode(commands, self.source)
            change(self.forward, commands, WEIGHTS)
            last = self.forward.encode(commands, self.source)
        np.testing.assert_allclose(np.asarray(after) + BIASES, 3 * (np.asarray(before) - BIASES), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(np.asarray(last) + BIASES, np.asarray(before) - BIASES, rtol=1e-5, atol=1e-5)

    def test_a_reload_that_is_committed_later_is_not_seen_yet(self) -> None:
        state = mg.ConvolutionWeightsAndBiasesState.from_arrays(3 * WEIGHTS, BIASES)
        later = mg.CommandBuffer()
        self.forward.reload_weights_and_biases(later, state)
        with mg.CommandBuffer() as commands:
            before = self.forward.encode(commands, self.source)
        later.commit()
        with mg.CommandBuffer() as commands:
            after = self.forward.encode(commands, self.source)
        data = Data()
        self.assert_equal([np.asarray(before)], self.results(mg.Convolution(data), mg.ConvolutionGradient(data))[:1])
        data.weights_now = 3 * WEIGHTS
        self.assert_equal([np.asarray(after)], self.results(mg.Convolution(data), mg.ConvolutionGradient(data))[:1])

    def test_weights_are_packed_once(self) -> None:
        with mg.CommandBuffer() as commands:
            self.forward.encode(commands, self.source)
            first = [dispatch.function.name for dispatch in commands._dispatches]
            self.forward.encode(commands, self.source)
            both = [dispatch.function.name for dispatch in commands._dispatches]
        assert both == 2 * first
        assert not any("pack" in name for name in both)

    def test_a_neuron_that_the_data_source_has_now(self) -> None:
        for neuron in (mg.NeuronDescriptor("relu"), mg.NeuronDescriptor("relu", a=0.5), None):
            for kernel in (self.forward, mg.Convolution(Data())):
                kernel.data_source.descriptor_now.fused_neuron_descriptor = neuron
                kernel.reload_weights_and_biases_from_data_source()
                with mg.CommandBuffer() as commands:
                    y = kernel.encode(commands, self.source)
                if kernel is self.forward:
                    got = np.array(y)
            np.testing.assert_array_equal(got, np.asarray(y))

    def test_sums_are_added_to_those_of_earlier_encodes_only(self) -> None:
        for _ in range(3):
            with mg.CommandBuffer() as commands:
                y, state = self.forward.encode(commands, self.source, return_state=True)
                self.gradient.encode(commands, self.incoming, self.source, state)
            once = state.gradient_for_weights
            for count in (2, 3):
                with mg.CommandBuffer() as commands:
                    self.gradient.encode(commands, self.incoming, self.source, state)
                np.testing.assert_allclose(state.gradient_for_weights, count * once, rtol=1e-5, atol=1e-5)
            wanted = self.results(mg.Convolution(Data()), mg.ConvolutionGradient(Data()))
            np.testing.assert_array_equal(once, wanted[2])

    def test_sums_of_discarded_work_do_not_count(self) -> None:
        with mg.CommandBuffer() as commands:
            _, state = self.forward.encode(commands, self.source, return_state=True)
        with pytest.raises(Stop), mg.CommandBuffer() as commands:
            self.gradient.encode(commands, self.incoming, self.source, state)
            assert state.has_gradients
            raise Stop
        with mg.CommandBuffer() as commands:
            self.gradient.encode(commands, self.incoming, self.source, state)
        wanted = self.results(mg.Convolution(Data()), mg.ConvolutionGradient(Data()))
        np.testing.assert_array_equal(state.gradient_for_weights, wanted[2])

    def test_sums_are_not_collected_in_two_open_command_buffers(self) -> None:
        first = mg.CommandBuffer()
        _, state = self.forward.encode(first, self.source, return_state=True)
        self.gradient.encode(first, self.incoming, self.source, state)
        with mg.CommandBuffer() as second:
            with pytest.raises(mg.StateError, match="collected in another command buffer that has not been committed"):
                self.gradient.encode(second, self.incoming, self.source, state)
            assert not second._dispatches
            first.commit()
            self.gradient.encode(second, self.incoming, self.source, state)

    @pytest.mark.parametrize("option", list(mg.ConvolutionGradientOption))
    def test_the_option_counts(self, option: mg.ConvolutionGradientOption) -> None:
        fresh = mg.ConvolutionGradient(Data())
        results = []
        for gradient in (self.gradient, fresh):
            gradient.gradient_option = option
            for _ in range(2):
                with mg.CommandBuffer() as commands:
                    _, state = self.forward.encode(commands, self.source, return_state=True)
                    dx = gradient.encode(commands, self.incoming, self.source, state)
            assert state.has_gradients == (option is not mg.ConvolutionGradientOption.GRADIENT_WITH_DATA)
            results.append([0 if dx is None else np.array(dx), state.gradient_for_weights, state.gradient_for_biases])
        self.assert_equal(*results)

    def test_a_state_that_holds_gradients_is_refused_as_destination_state(self) -> None:
        y = mg.Image.from_array(np.zeros((2, 4, 5, 4), np.float32))
        with mg.CommandBuffer() as commands:
            self.forward.encode(commands, self.source, destination_image=y)
            for _ in range(3):
                state = self.forward.result_state(self.source, destination_image=y)
                self.forward.encode(commands, self.source, destination_image=y, destination_state=state)
                self.gradient.encode(commands, self.incoming, self.source, state)
                with pytest.raises(mg.StateError, match="already holds the gradients of a batch"):
                    self.forward.encode(commands, self.source, destination_image=y, destination_state=state)

    def test_a_state_of_another_kernel_is_refused_as_destination_state(self) -> None:
        y = mg.Image.from_array(np.zeros((2, 4, 5, 4), np.float32))
        other = mg.Convolution(Data())
        with mg.CommandBuffer() as commands:
            for kernel in (self.forward, other):
                kernel.encode(commands, self.source)
            for _ in range(2):
                state = self.forward.result_state(self.source, destination_image=y)
                self.forward.encode(commands, self.source, destination_image=y, destination_state=state)
            with pytest.raises(mg.StateError, match="made by another kernel"):
                self.forward.encode(
                    commands,
                    self.source,
                    destination_image=y,
                    destination_state=other.result_state(self.source, destination_image=y),
                )

    def test_a_state_of_another_geometry_is_refused(self) -> None:
        groups = mg.Convolution(mg.ConvolutionDataSource.from_arrays(WEIGHTS[..., :4].copy(), BIASES, groups=2))
        with mg.CommandBuffer() as commands:
            _, state = groups.encode(commands, self.source, return_state=True)
            with pytest.raises(mg.StateError, match="gradient_state was made by a kernel for"):
                self.gradient.encode(commands, self.incoming, self.source, state)

    def test_the_state_of_another_kernel_with_the_same_geometry_serves(self) -> None:
        other = mg.Convolution(Data())
        wanted = self.results(mg.Convolution(Data()), mg.ConvolutionGradient(Data()))
        self.assert_equal(self.results(other, self.gradient), wanted)


def test_fully_connected_kernels_give_what_new_ones_give() -> None:
    weights = np.random.default_rng(1).standard_normal((5, 4, 5, 8)).astype(np.float32)
    data = mg.ConvolutionDataSource.from_arrays(weights, np.ones(5, np.float32))
    forward, gradient = mg.FullyConnected(data), mg.FullyConnectedGradient(data)
    for seed, images in ((1, 2), (2, 2), (3, 2), (4, 3), (5, 2)):
        results = []
        for one, other in ((forward, gradient), (mg.FullyConnected(data), mg.FullyConnectedGradient(data))):
            source = _image(seed, (images, 4, 5, 8))
            with mg.CommandBuffer() as commands:
                y, state = one.encode(commands, source, return_state=True)
                dx = other.encode(commands, _image(seed, y.shape), source, state)
            results.append([np.array(y), np.array(dx), state.gradient_for_weights, state.gradient_for_biases])
        for mine, fresh in zip(*results, strict=True):
            np.testing.assert_array_equal(mine, fresh)
    with mg.CommandBuffer() as commands, pytest.raises(mg.GeometryError, match="source_image is 5x5 pixels"):
        forward.encode(commands, _image(1, (2, 5, 5, 8)))


ROW = np.linspace(0.5, 2, 8, dtype=np.float32)


class Normalization:
    """The four kernels of batch normalization, and a state."""

    def __init__(self, gamma: np.ndarray = ROW, neuron: mg.NeuronDescriptor | None = None, epsilon: float = 1e-3):
        self.data = mg.BatchNormalizationDataSource.from_arrays(gamma.copy(), -gamma, mean=ROW.copy(), variance=ROW)
        self.forward = mg.BatchNormalization(self.data, fused_neuron_descriptor=neuron)
        self.forward.epsilon = epsilon
        self.statistics = mg.BatchNormalizationStatistics()
        self.sums = mg.BatchNormalizationStatisticsGradient(fused_neuron_descriptor=neuron)
        self.gradient = mg.BatchNormalizationGradient(fused_neuron_descriptor=neuron)

    def step(self, state: mg.BatchNormalizationState, x: mg.Image, g: mg.Image) -> list[Any]:
        with mg.CommandBuffer() as commands:
            inference = self.forward.encode(commands, x)
            self.statistics.encode_batch(commands, x.batch_representation(), state)
            y = self.forward.encode(commands, x, batch_normalization_state=state)
            self.sums.encode_batch(commands, g.batch_representation(), x.batch_representation(), state)
            dx = self.gradient.encode(commands, g, x, state)
        images = [np.array(image) for image in (inference, y, dx)]
        return [*images, state.mean, state.variance, state.gradient_for_gamma, state.gradient_for_beta]


class TestBatchNormalization:
    def setup_method(self) -> None:
        self.kernels = Normalization()
        self.x, self.g = _image(1), _image(2)
        self.images, self.gradients = self.x.batch_representation(), self.g.batch_representation()
        for _ in range(2):
            self.state = self.kernels.forward.result_state(self.x)
            self.kernels.step(self.state, self.x, self.g)

    def new_state(self) -> mg.BatchNormalizationState:
        return self.kernels.forward.result_state(self.x)

    def assert_same_as(self, kernels: Normalization, state: mg.BatchNormalizationState | None = None) -> None:
        got = self.kernels.step(state or self.new_state(), self.x, self.g)
        wanted = kernels.step(kernels.forward.result_state(self.x), self.x, self.g)
        for mine, fresh in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(mine, fresh)

    def test_a_state_may_serve_one_batch_after_the_other(self) -> None:
        self.assert_same_as(Normalization(), self.state)

    def test_another_epsilon(self) -> None:
        for epsilon in (0.5, 0.25, 1e-3):
            self.kernels.forward.epsilon = epsilon
            self.assert_same_as(Normalization(epsilon=epsilon))

    def test_states_of_kernels_with_different_epsilons_do_not_mix(self) -> None:
        others = Normalization(epsilon=0.5)
        wanted = others.step(others.forward.result_state(self.x), self.x, self.g)
        others.sums, others.gradient = self.kernels.sums, self.kernels.gradient
        got = others.step(others.forward.result_state(self.x), self.x, self.g)
        for mine, fresh in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(mine, fresh)

    def test_parameters_that_the_data_source_has_now(self) -> None:
        for factor in (2, 3):
            self.kernels.data.gamma[...], self.kernels.data.beta[...] = factor * ROW, -factor * ROW
            self.kernels.data.mean[...] = ROW
            self.kernels.forward.reload_gamma_and_beta_from_data_source()
            self.kernels.forward.reload_mean_and_variance_from_data_source()
            self.assert_same_as(Normalization(np.float32(factor) * ROW))

    def test_statistics_that_the_data_source_has_now(self) -> None:
        self.kernels.data.mean[...] = 5 * ROW
        self.kernels.forward.reload_mean_and_variance_from_data_source()
        others = Normalization()
        others.data.mean[...] = 5 * ROW
        others.forward.reload_mean_and_variance_from_data_source()
        self.assert_same_as(others)

    def test_parameters_reloaded_on_the_device(self) -> None:
        for factor in (2, 3):
            state = mg.NormalizationGammaAndBetaState.from_arrays(factor * ROW, -factor * ROW)
            with mg.CommandBuffer() as commands:
                self.kernels.forward.reload_gamma_and_beta_with_command_buffer(commands, state)
            self.assert_same_as(Normalization(np.float32(factor) * ROW))

    def test_gradients_use_the_parameters_of_the_forward_encode(self) -> None:
        state = self.new_state()
        others = Normalization()
        wanted = others.step(others.forward.result_state(self.x), self.x, self.g)[2]
        with mg.CommandBuffer() as commands:
            self.kernels.statistics.encode_batch(commands, self.images, state)
            self.kernels.forward.encode(commands, self.x, batch_normalization_state=state)
            new = mg.NormalizationGammaAndBetaState.from_arrays(9 * ROW, ROW)
            self.kernels.forward.reload_gamma_and_beta_with_command_buffer(commands, new)
            self.kernels.sums.encode_batch(commands, self.gradients, self.images, state)
            dx = self.kernels.gradient.encode(commands, self.g, self.x, state)
        np.testing.assert_array_equal(np.asarray(dx), wanted)

    def test_parameters_that_another_command_buffer_is_to_write_are_refused(self) -> None:
        other = mg.CommandBuffer()
        for kind, reload in (
            (mg.NormalizationGammaAndBetaState, self.kernels.forward.reload_gamma_and_beta_with_command_buffer),
            (mg.NormalizationMeanAndVarianceState, self.kernels.forward.reload_mean_and_variance_with_command_buffer),
        ):
            reload(other, kind.from_arrays(ROW, ROW))
            with mg.CommandBuffer() as commands:
                with pytest.raises(mg.StateError, match=f"{kind.names[0]} and .* written by another command buffer"):
                    self.kernels.forward.encode(commands, self.x)
                assert not commands._dispatches
            other.commit()
            other = mg.CommandBuffer()
        with mg.CommandBuffer() as commands:
            self.kernels.forward.encode(commands, self.x)

    def test_parts_of_a_batch_are_added_up(self) -> None:
        for _ in range(3):
            state = self.new_state()
            with mg.CommandBuffer() as commands:
                for image in self.images:
                    self.kernels.statistics.encode_batch(commands, [image], state)
                self.kernels.forward.encode(commands, self.x, batch_normalization_state=state)
                for gradient, image in zip(self.gradients, self.images, strict=True):
                    self.kernels.sums.encode_batch(commands, [gradient], [image], state)
                dx = self.kernels.gradient.encode(commands, self.g, self.x, state)
            pixels = _array(1).reshape(-1, 8).astype(np.float64)
            np.testing.assert_allclose(state.mean, pixels.mean(0), atol=1e-5)
            np.testing.assert_allclose(state.variance, pixels.var(0), rtol=1e-4)
            np.testing.assert_allclose(state.gradient_for_beta, _array(2).reshape(-1, 8).sum(0), rtol=1e-4, atol=1e-4)
        others = Normalization()
        wanted = others.step(others.forward.result_state(self.x), self.x, self.g)[2]
        np.testing.assert_allclose(np.asarray(dx), wanted, rtol=1e-3, atol=1e-5)

    def test_a_larger_batch_around_the_same_images_has_more_pixels(self) -> None:
        """The gradient divides by the pixels of the whole batch, of which an encode may see a part only."""
        x, g = self.images[0], self.gradients[0]
        results = []
        for kernels in (self.kernels, Normalization()):
            for batch, gradients in (([x], [g]), ([x, self.images[1]], [g, self.gradients[1]])):
                state = kernels.forward.result_state(self.x)
                with mg.CommandBuffer() as commands:
                    kernels.statistics.encode_batch(commands, batch, state)
                    kernels.sums.encode_batch(commands, gradients, batch, state)
                    for _ in range(2):
                        dx = kernels.gradient.encode(commands, g, x, state)
                results.append(np.array(dx))
        np.testing.assert_array_equal(results[0], results[2])
        np.testing.assert_array_equal(results[1], results[3])

    def test_one_image_for_two_of_a_batch_is_not_taken_for_two(self) -> None:
        first, second = _image(7, (1, 4, 5, 8)), _image(8, (1, 4, 5, 8))
        results = []
        for kernels in (self.kernels, Normalization()):
            for batch in ([first, first], [first, second], [second, first]):
                state = kernels.forward.result_state(self.x)
                with mg.CommandBuffer() as commands:
                    kernels.statistics.encode_batch(commands, batch, state)
                    kernels.sums.encode_batch(commands, self.gradients, batch, state)
                results.append([state.mean, state.variance, state.gradient_for_gamma])
        for mine, fresh in zip(results[:3], results[3:], strict=True):
            for one, other in zip(mine, fresh, strict=True):
                np.testing.assert_array_equal(one, other)

    def test_a_state_without_statistics_is_refused(self) -> None:
        state = self.new_state()
        with mg.CommandBuffer() as commands:
            for encode in (
                lambda: self.kernels.forward.encode(commands, self.x, batch_normalization_state=state),
                lambda: self.kernels.sums.encode_batch(commands, self.gradients, self.images, state),
                lambda: self.kernels.gradient.encode(commands, self.g, self.x, state),
            ):
                with pytest.raises(mg.StateError, match="holds no statistics"):
                    encode()
            assert not commands._dispatches

    def test_gradients_of_more_than_the_batch_are_refused(self) -> None:
        state = self.new_state()
        with mg.CommandBuffer() as commands:
            self.kernels.statistics.encode_batch(commands, self.images, state)
            self.kernels.sums.encode_batch(commands, self.gradients, self.images, state)
            with pytest.raises(mg.StateError, match="gradients of 80 pixels in all"):
                self.kernels.sums.encode_batch(commands, self.gradients, self.images, state)

    def test_gradients_that_are_not_complete_are_refused(self) -> None:
        state = self.new_state()
        with mg.CommandBuffer() as commands:
            self.kernels.statistics.encode_batch(commands, self.images, state)
            with pytest.raises(mg.StateError, match="has gradients of 0 pixels but statistics of 40"):
                self.kernels.gradient.encode(commands, self.g, self.x, state)

    def test_two_open_command_buffers_are_refused(self) -> None:
        first, state = mg.CommandBuffer(), self.new_state()
        self.kernels.statistics.encode_batch(first, self.images, state)
        with mg.CommandBuffer() as second:
            for encode in (
                lambda: self.kernels.statistics.encode_batch(second, self.images, state),
                lambda: self.kernels.forward.encode(second, self.x, batch_normalization_state=state),
            ):
                with pytest.raises(mg.StateError, match="collected in another command buffer"):
                    encode()
            assert not second._dispatches
        first.commit()

    def test_a_used_up_state_is_refused(self) -> None:
        with mg.CommandBuffer() as commands:
            state = self.kernels.forward.temporary_result_state(commands, self.x)
            self.kernels.statistics.encode_batch(commands, self.images, state)
            for encode in (
                lambda: self.kernels.statistics.encode_batch(commands, self.images, state),
                lambda: self.kernels.forward.encode(commands, self.x, batch_normalization_state=state),
                lambda: self.kernels.sums.encode_batch(commands, self.gradients, self.images, state),
                lambda: self.kernels.gradient.encode(commands, self.g, self.x, state),
            ):
                with pytest.raises(mg.StateError, match="read_count 0"):
                    encode()

    def test_states_of_other_kernels_are_refused(self) -> None:
        with_neuron = Normalization(neuron=mg.NeuronDescriptor("relu"))
        state = with_neuron.forward.result_state(self.x)
        with_neuron.step(state, self.x, self.g)
        others = Normalization().forward.result_state(self.x)
        with mg.CommandBuffer() as commands:
            with pytest.raises(mg.StateError, match="fused_neuron_descriptor is None but that of"):
                self.kernels.gradient.encode(commands, self.g, self.x, state)
            self.kernels.statistics.encode_batch(commands, self.images, others)
            with pytest.raises(mg.StateError, match="made by another kernel"):
                self.kernels.forward.encode(commands, self.x, batch_normalization_state=others)

    def test_slopes_of_a_neuron_count(self) -> None:
        for factor in (1, 2):
            kernels = Normalization(neuron=mg.NeuronDescriptor.prelu(factor * ROW))
            state = kernels.forward.result_state(self.x)
            kernels.step(state, self.x, self.g)
            other = Normalization(neuron=mg.NeuronDescriptor.prelu(3 * factor * ROW))
            state = other.forward.result_state(self.x)
            with mg.CommandBuffer() as commands:
                other.statistics.encode_batch(commands, self.images, state)
                with pytest.raises(mg.StateError, match="fused_neuron_descriptor"):
                    kernels.sums.encode_batch(commands, self.gradients, self.images, state)

    def test_a_state_for_another_number_of_channels_is_refused(self) -> None:
        row = np.ones(4, np.float32)
        narrow = mg.BatchNormalization(mg.BatchNormalizationDataSource.from_arrays(row, row))
        narrow.source_feature_channel_max_count = 4
        self.kernels.forward.source_feature_channel_max_count = 8
        for kernel in (narrow, self.kernels.forward):
            state = kernel.result_state(self.x)
            with mg.CommandBuffer() as commands:
                if kernel is narrow:
                    with pytest.raises(mg.GeometryError, match="8 feature channels are read"):
                        self.kernels.statistics.encode_batch(commands, self.images, state)
                else:
                    self.kernels.statistics.encode_batch(commands, self.images, state)


class TestLoss:
    def setup_method(self) -> None:
        self.kernel = mg.Loss(mg.LossDescriptor("softmax_cross_entropy"))
        self.source = _image(1)
        for _ in range(2):
            with mg.CommandBuffer() as commands:
                self.kernel.encode(commands, self.source, self.labels())

    def labels(self, seed: int = 2, weights: np.ndarray | None = None) -> mg.LossLabels:
        return mg.LossLabels.from_array(np.abs(_array(seed)), weights)

    def assert_same_as_new(self, labels: mg.LossLabels, source: mg.Image | None = None) -> None:
        results = []
        for kernel in (self.kernel, mg.Loss(mg.LossDescriptor("softmax_cross_entropy"))):
            with mg.CommandBuffer() as commands:
                dx = kernel.encode(commands, source or self.source, labels)
            results.append([np.array(dx), np.array(labels.loss_image)])
        for mine, fresh in zip(*results, strict=True):
            np.testing.assert_array_equal(mine, fresh)

    def test_labels_and_weights_that_change(self) -> None:
        weights = np.abs(_array(3))
        for labels in (self.labels(4), self.labels(5, weights), self.labels(6), self.labels(7, 2 * weights)):
            self.assert_same_as_new(labels)

    def test_labels_that_are_the_source_are_not_taken_for_others(self) -> None:
        for _ in range(2):
            self.assert_same_as_new(mg.LossLabels.from_images(self.source))
            self.assert_same_as_new(self.labels())
        positive = mg.Image.from_array(np.abs(_array(3)))
        for _ in range(2):
            self.assert_same_as_new(mg.LossLabels.from_images(positive, positive))
            self.assert_same_as_new(mg.LossLabels.from_images(positive, mg.Image.from_array(np.abs(_array(4)))))

    def test_labels_in_a_part_of_an_image(self) -> None:
        wide = mg.Image.from_array(np.abs(_array(3, (2, 4, 5, 16))))
        for first in (0, 8):
            self.assert_same_as_new(mg.LossLabels.from_images(wide.sub_image(first, 8)))

    def test_a_destination_or_none(self) -> None:
        weights = np.abs(_array(3))
        for _ in range(2):
            for labels in (self.labels(4), self.labels(4, weights)):
                given = mg.Image.from_array(np.full(SHAPE, np.nan, np.float32))
                with mg.CommandBuffer() as commands:
                    made = self.kernel.encode(commands, self.source, labels)
                    assert self.kernel.encode(commands, self.source, labels, destination_image=given) is None
                np.testing.assert_array_equal(np.asarray(given), np.asarray(made))

    def test_a_destination_that_is_an_image_of_the_labels_is_refused(self) -> None:
        labels = self.labels(4, np.abs(_array(3)))
        with mg.CommandBuffer() as commands:
            for _ in range(2):
                self.kernel.encode(commands, self.source, labels, destination_image=mg.Image(self.source.descriptor))
            for name in ("labels_image", "weights_image"):
                with pytest.raises(mg.GeometryError, match=f"shares memory with {name}"):
                    self.kernel.encode(commands, self.source, labels, destination_image=getattr(labels, name))

    def test_labels_of_another_size_are_refused(self) -> None:
        small = mg.LossLabels.from_array(np.abs(_array(2, (1, 4, 5, 8))))
        unreduced = mg.LossLabels.from_array(np.abs(_array(2)), loss_image_size=(5, 4, 8))
        with mg.CommandBuffer() as commands:
            with pytest.raises(mg.GeometryError, match="labels are 1x4x5x8"):
                self.kernel.encode(commands, self.source, small)
            with pytest.raises(mg.GeometryError, match="needs 2x1x1x1"):
                self.kernel.encode(commands, self.source, unreduced)
            with pytest.raises(mg.FormatError, match="labels is NoneType"):
                self.kernel.encode(commands, self.source, None)

    def test_used_up_labels_are_refused(self) -> None:
        with mg.CommandBuffer() as commands:
            copy = mg.NeuronLinear()
            copy.destination_image_allocator = mg.TemporaryImage.default_allocator()
            labels = mg.LossLabels.from_images(copy.encode(commands, self.source))
            self.kernel.encode(commands, self.source, labels)
            with pytest.raises(mg.StateError, match="labels_image is a temporary image with read_count 0"):
                self.kernel.encode(commands, self.source, labels)

    def test_the_loss_waits_for_the_last_encode(self) -> None:
        labels = self.labels()
        commands = mg.CommandBuffer()
        self.kernel.encode(commands, self.source, labels)
        with pytest.raises(mg.StateError, match="before its command buffer was committed"):
            np.asarray(labels.loss_image)
        commands.commit()
        assert np.isfinite(np.asarray(labels.loss_image)).all()

    def test_a_property_that_a_loss_has_not(self) -> None:
        self.kernel.source_feature_channel_offset = 4
        words = "source_feature_channel_offset is 4"
        with mg.CommandBuffer() as commands, pytest.raises(mg.GeometryError, match=words):
            self.kernel.encode(commands, self.source, self.labels())


class TestSlopes:
    def setup_method(self) -> None:
        descriptor = mg.NeuronDescriptor.prelu(ROW)
        self.forward = mg.Neuron(descriptor)
        self.gradient = mg.NeuronGradient(descriptor, computes_gradient_for_slopes=True)
        self.x, self.g = _image(1), _image(2)
        for _ in range(2):
            with mg.CommandBuffer() as commands:
                _, self.state = self.forward.encode(commands, self.x, return_state=True)
                self.gradient.encode(commands, self.g, self.x, self.state)
                self.gradient.encode(commands, self.g, self.x, self.state)

    def test_sums_are_added_to_those_of_earlier_encodes_only(self) -> None:
        with mg.CommandBuffer() as commands:
            _, state = self.forward.encode(commands, self.x, return_state=True)
            for _ in range(3):
                self.gradient.encode(commands, self.g, self.x, state)
        x, g = _array(1).astype(np.float64), _array(2)
        wanted = 3 * (g * np.minimum(x, 0)).sum((0, 1, 2))
        np.testing.assert_allclose(state.gradient_for_slopes, wanted, rtol=1e-4, atol=1e-4)

    def test_two_open_command_buffers_are_refused(self) -> None:
        first = mg.CommandBuffer()
        self.gradient.encode(first, self.g, self.x, self.state)
        with mg.CommandBuffer() as second:
            with pytest.raises(mg.StateError, match="gradients for the slopes are collected in another"):
                self.gradient.encode(second, self.g, self.x, self.state)
            assert not second._dispatches
        first.commit()

    def test_slopes_of_another_neuron_are_refused(self) -> None:
        other = mg.Neuron(mg.NeuronDescriptor.prelu(2 * ROW))
        with mg.CommandBuffer() as commands:
            _, state = other.encode(commands, self.x, return_state=True)
            with pytest.raises(mg.StateError, match="gradient_state was made with"):
                self.gradient.encode(commands, self.g, self.x, state)
