"""States and data sources of batch normalization."""

from __future__ import annotations

import numpy as np
import pytest
from batch_normalization_case import FLT_MIN, Case, Outcome, batch, check, encode_statistics, run

import mpsgrad as mg
from mpsgrad import archive, reference


def test_accessors_are_none_until_something_was_produced():
    case = Case.draw((2, 3, 4, 5))
    kernel = case.kernel()
    source = mg.Image.from_array(case.x)
    state = kernel.result_state(source)
    assert state.batch_normalization is kernel
    np.testing.assert_array_equal(state.gamma, case.gamma)
    np.testing.assert_array_equal(state.beta, case.beta)
    names = ("mean", "variance", "gradient_for_gamma", "gradient_for_beta")
    assert [getattr(state, name) for name in names] == [None] * 4
    with mg.CommandBuffer() as commands:
        encode_statistics(case, commands, state)
        with pytest.raises(mg.StateError, match="before its command buffer was committed"):
            _ = state.mean
    assert state.mean is not None and state.variance is not None
    assert state.gradient_for_gamma is None and state.gradient_for_beta is None
    with pytest.raises(mg.StateError, match="no gradients yet"):
        _ = state.gradient_vectors
    with mg.CommandBuffer() as commands:
        case.statistics_gradient().encode_batch(commands, batch(case.g), batch(case.x), state)
    for vector, name in zip(state.gradient_vectors, names[2:], strict=True):
        np.testing.assert_array_equal(np.asarray(vector), getattr(state, name))
    for index, name in enumerate(("gamma", "beta", *names)):
        values = state.resource(index).read(0, 4 * 5).view(np.float32)
        np.testing.assert_array_equal(values, getattr(state, name))
    state.reset()
    assert [getattr(state, name) for name in names] == [None] * 4


def test_a_state_starts_anew_once_it_was_used():
    """Statistics after the forward encode, and gradients after the data gradient, belong to the next batch."""
    first, second = Case.draw((2, 3, 4, 5), seed=1), Case.draw((2, 3, 4, 5), seed=2)
    second.gamma, second.beta = first.gamma, first.beta
    kernel, sums, gradient = first.kernel(), first.statistics_gradient(), first.gradient()
    state = kernel.result_state(mg.Image.from_array(first.x))
    for case in (first, second, first):
        source, incoming = mg.Image.from_array(case.x), mg.Image.from_array(case.g)
        with mg.CommandBuffer() as commands:
            mg.BatchNormalizationStatistics().encode_batch(commands, source.batch_representation(), state)
            y = kernel.encode(commands, source, batch_normalization_state=state)
            for _ in range(2):
                sums.encode_batch(commands, incoming.batch_representation(), source.batch_representation(), state)
                dx = gradient.encode(commands, incoming, source, state)
        check(case, Outcome(state, np.asarray(y), np.asarray(dx)))


def test_without_use_statistics_accumulate_until_reset():
    case = Case.draw((2, 3, 4, 5), seed=3)
    state = case.kernel().result_state(mg.Image.from_array(case.x))
    with mg.CommandBuffer() as commands:
        encode_statistics(case, commands, state)
        encode_statistics(case, commands, state, 3.0)
    both = np.concatenate([case.x, 3 * case.x])
    mean, variance = reference.batch_normalization_statistics(both)
    np.testing.assert_allclose(state.variance, variance, rtol=1e-5)
    state.reset()
    with mg.CommandBuffer() as commands:
        encode_statistics(case, commands, state)
    mean, variance = reference.batch_normalization_statistics(case.x)
    np.testing.assert_allclose(state.mean, mean, atol=1e-6)
    np.testing.assert_allclose(state.variance, variance, rtol=1e-5)


def test_discarded_work_counts_for_nothing():
    case = Case.draw((2, 3, 4, 5), seed=4)
    state = case.kernel().result_state(mg.Image.from_array(case.x))
    with mg.CommandBuffer() as commands:
        encode_statistics(case, commands, state)

    class Stop(Exception):
        pass

    with pytest.raises(Stop), mg.CommandBuffer() as commands:
        encode_statistics(case, commands, state, 9.0)
        raise Stop
    with mg.CommandBuffer() as commands:
        encode_statistics(case, commands, state, 3.0)
    mean, variance = reference.batch_normalization_statistics(np.concatenate([case.x, 3 * case.x]))
    np.testing.assert_allclose(state.mean, mean, atol=1e-6)
    np.testing.assert_allclose(state.variance, variance, rtol=1e-5)


def test_two_open_command_buffers_are_refused():
    case = Case.draw((2, 3, 4, 5))
    kernel, source, incoming = case.kernel(), batch(case.x), batch(case.g)
    state = kernel.result_state(source[0])
    first, second = mg.CommandBuffer(), mg.CommandBuffer()
    encode_statistics(case, first, state)
    words = "collected in another command buffer that has not been committed"
    with pytest.raises(mg.StateError, match=f"BatchNormalizationStatistics: statistics are {words}"):
        encode_statistics(case, second, state)
    with pytest.raises(mg.StateError, match=f"BatchNormalization: statistics are {words}"):
        kernel.encode_batch(second, source, batch_normalization_state=state)
    first.commit()
    kernel.encode_batch(second, source, batch_normalization_state=state)
    case.statistics_gradient().encode_batch(second, incoming, source, state)
    third = mg.CommandBuffer()
    with pytest.raises(mg.StateError, match=f"BatchNormalizationGradient: gradients are {words}"):
        case.gradient().encode_batch(third, incoming, source, state)
    second.commit()
    case.gradient().encode_batch(third, incoming, source, state)
    third.commit()
    third.wait_until_completed()


def test_temporary_states_count_their_reads():
    case = Case.draw((2, 3, 4, 5), seed=5)
    expected = run(case)
    kernel = case.kernel()
    for apart in (False, True):
        source, incoming = batch(case.x, apart), batch(case.g, apart)
        with mg.CommandBuffer() as commands:
            state = kernel.temporary_result_state(commands, source[0])
            assert state.is_temporary and state.read_count == 1
            state.read_count = 4
            mg.BatchNormalizationStatistics().encode_batch(commands, source, state)
            assert state.read_count == 3
            y = kernel.encode_batch(commands, source, batch_normalization_state=state)
            assert state.read_count == 2
            case.statistics_gradient().encode_batch(commands, incoming, source, state)
            assert state.read_count == 1
            with pytest.raises(mg.StateError, match="no CPU access"):
                _ = state.mean
            dx = case.gradient().encode_batch(commands, incoming, source, state)
            assert state.read_count == 0
            with pytest.raises(mg.StateError, match="read_count 0"):
                mg.BatchNormalizationStatistics().encode_batch(commands, source, state)
        np.testing.assert_allclose(np.asarray(y), expected.y, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(np.asarray(dx), expected.dx, rtol=1e-5, atol=1e-5)


def test_the_gradient_uses_the_parameters_of_the_forward_encode():
    """Gamma, beta and epsilon may change between the forward encode and the backward one."""
    case = Case.draw((2, 3, 4, 5), seed=6)
    data_source = case.data_source
    kernel = mg.BatchNormalization(data_source)
    source, incoming = mg.Image.from_array(case.x), mg.Image.from_array(case.g)
    state = kernel.result_state(source)
    expected = run(case)
    with mg.CommandBuffer() as commands:
        mg.BatchNormalizationStatistics().encode_batch(commands, source.batch_representation(), state)
        y = kernel.encode(commands, source, batch_normalization_state=state)
        data_source.gamma[...] = 9
        kernel.reload_gamma_and_beta_from_data_source()
        kernel.epsilon = 5.0
        case.statistics_gradient().encode_batch(
            commands, incoming.batch_representation(), source.batch_representation(), state
        )
        dx = case.gradient().encode(commands, incoming, source, state)
    assert state.epsilon == case.epsilon
    np.testing.assert_array_equal(np.asarray(y), expected.y)
    np.testing.assert_array_equal(np.asarray(dx), expected.dx)


# Data sources and parameters


class Source(mg.BatchNormalizationDataSource):
    """A data source that counts its loads and purges, and has no epsilon of its own."""

    label = "counting"

    def __init__(self, gamma, loads=True):
        self._gamma, self._loads, self.calls = gamma, loads, []

    @property
    def number_of_feature_channels(self):
        return len(self._gamma)

    @property
    def gamma(self):
        assert self.calls[-1] == "load"
        return self._gamma

    def load(self):
        self.calls.append("load")
        return self._loads

    def purge(self):
        self.calls.append("purge")


def test_a_data_source_is_loaded_read_and_purged():
    source = Source(np.ones(4, np.float32))
    kernel = mg.BatchNormalization(source)
    assert source.calls == ["load", "purge"]
    assert kernel.epsilon == FLT_MIN and kernel.number_of_feature_channels == 4 and kernel.data_source is source
    source._gamma = np.full(4, 2, np.float32)
    x = np.ones((1, 1, 1, 4), np.float32)

    def infer():
        with mg.CommandBuffer() as commands:
            return kernel.encode(commands, mg.Image.from_array(x))

    np.testing.assert_array_equal(np.asarray(infer()), x)
    kernel.reload_gamma_and_beta_from_data_source()
    np.testing.assert_array_equal(np.asarray(infer()), 2 * x)
    kernel.reload_mean_and_variance_from_data_source()
    assert source.calls == ["load", "purge"] * 3
    with pytest.raises(mg.StateError, match=r"'counting' could not load \(load\(\) gave False\)"):
        mg.BatchNormalization(Source(np.ones(4, np.float32), loads=False))
    source._gamma = np.ones(5, np.float32)
    with pytest.raises(mg.GeometryError, match="has 5 feature channels now but the kernel 4"):
        kernel.reload_gamma_and_beta_from_data_source()


def test_parameters_reloaded_on_the_device():
    generator = np.random.default_rng(14)
    gamma, beta, mean = (generator.standard_normal(70).astype(np.float32) for _ in range(3))
    variance = mean**2
    x = generator.standard_normal((2, 3, 4, 70)).astype(np.float32)
    image = mg.Image.from_array(x)
    plain = mg.BatchNormalization(mg.BatchNormalizationDataSource.from_arrays(gamma, beta, mean, variance, epsilon=0.1))
    kernel = mg.BatchNormalization(
        mg.BatchNormalizationDataSource.from_arrays(number_of_feature_channels=70, epsilon=0.1)
    )
    with mg.CommandBuffer() as commands:
        expected = plain.encode(commands, image)
        before = kernel.encode(commands, image)
        kernel.reload_gamma_and_beta_with_command_buffer(
            commands, mg.NormalizationGammaAndBetaState.from_arrays(gamma, beta)
        )
        statistics = mg.NormalizationMeanAndVarianceState.from_arrays(mean, variance)
        kernel.reload_mean_and_variance_with_command_buffer(commands, statistics)
        after = kernel.encode(commands, image)
    np.testing.assert_array_equal(np.asarray(after), np.asarray(expected))
    assert not np.array_equal(np.asarray(before), np.asarray(expected))
    # The kernel holds a copy.
    statistics._write(0, 0 * mean)
    with mg.CommandBuffer() as commands:
        again = kernel.encode(commands, image)
    np.testing.assert_array_equal(np.asarray(again), np.asarray(expected))


def test_parameters_from_temporary_states_that_a_kernel_writes():
    x = np.ones((1, 1, 1, 6), np.float32)
    kernel = mg.BatchNormalization(mg.BatchNormalizationDataSource.from_arrays(number_of_feature_channels=6))
    gradient = mg.Vector.from_array(np.full(6, -1, np.float32))
    optimizer = mg.OptimizerStochasticGradientDescent.with_learning_rate(0.5)
    with mg.CommandBuffer() as commands:
        state = mg.NormalizationGammaAndBetaState.temporary(commands, 6)
        for vector in state.parameter_vectors:
            optimizer.encode(
                commands,
                input_gradient_vector=gradient,
                input_values_vector=mg.Vector.from_array(np.ones(6, np.float32)),
                result_values_vector=vector,
            )
        kernel.reload_gamma_and_beta_with_command_buffer(commands, state)
        assert state.read_count == 0
        y = kernel.encode(commands, mg.Image.from_array(x))
    np.testing.assert_allclose(np.asarray(y), 3 * x, rtol=1e-6)


def test_an_optimizer_updates_gamma_and_beta_on_the_device():
    case = Case.draw((2, 3, 4, 5), seed=15)
    outcome = run(case)
    kernel = outcome.state.batch_normalization
    updated = mg.NormalizationGammaAndBetaState(5)
    optimizer = mg.OptimizerStochasticGradientDescent.with_learning_rate(0.1)
    with mg.CommandBuffer() as commands:
        optimizer.encode_batch_normalization(commands, outcome.state, result_state=updated)
        kernel.reload_gamma_and_beta_with_command_buffer(commands, updated)
        y = kernel.encode(commands, mg.Image.from_array(case.x))
    gamma = case.gamma - 0.1 * outcome.state.gradient_for_gamma
    beta = case.beta - 0.1 * outcome.state.gradient_for_beta
    np.testing.assert_allclose(updated.gamma, gamma, rtol=1e-6)
    np.testing.assert_allclose(updated.beta, beta, rtol=1e-6, atol=1e-6)
    expected = reference.batch_normalization(case.x, np.zeros(5), np.ones(5), gamma, beta, case.epsilon)
    np.testing.assert_allclose(np.asarray(y), expected, rtol=1e-5, atol=1e-6)


def test_reloads_of_unfinished_or_discarded_work_are_refused():
    kernel = mg.BatchNormalization(mg.BatchNormalizationDataSource.from_arrays(number_of_feature_channels=2))
    image = mg.Image.from_array(np.ones((1, 1, 1, 2), np.float32))
    ones = np.ones(2, np.float32)
    first = mg.CommandBuffer()
    kernel.reload_gamma_and_beta_with_command_buffer(first, mg.NormalizationGammaAndBetaState.from_arrays(ones, ones))
    with mg.CommandBuffer() as second:
        with pytest.raises(mg.StateError, match="gamma and beta are written by another command buffer"):
            kernel.encode(second, image)
        first.commit()
        kernel.encode(second, image)

    class Stop(Exception):
        pass

    with pytest.raises(Stop), mg.CommandBuffer() as third:
        kernel.reload_mean_and_variance_with_command_buffer(
            third, mg.NormalizationMeanAndVarianceState.from_arrays(ones, ones)
        )
        raise Stop
    words = "mean and variance was discarded or failed"
    with mg.CommandBuffer() as commands, pytest.raises(mg.StateError, match=words):
        kernel.encode(commands, image)


@pytest.mark.parametrize("neuron", [None, mg.NeuronDescriptor("tanh", 0.5, 2), mg.NeuronDescriptor.prelu([0.1] * 5)])
def test_archives_give_the_same_bits(neuron):
    case = Case.draw((2, 3, 4, 5), seed=16, neuron=neuron)
    case.neuron = neuron
    kernel, gradient, sums = case.kernel(), case.gradient(), case.statistics_gradient()
    kernel.epsilon = 0.25
    restored = archive.from_bytes(archive.to_bytes(kernel))
    assert restored.epsilon == 0.25 and restored.fused_neuron_descriptor == neuron
    image = mg.Image.from_array(case.x)
    with mg.CommandBuffer() as commands:
        y, again = kernel.encode(commands, image), restored.encode(commands, image)
    np.testing.assert_array_equal(np.asarray(again), np.asarray(y))
    for one in (gradient, sums):
        copied = archive.from_bytes(archive.to_bytes(one))
        assert type(copied) is type(one) and copied.fused_neuron_descriptor == neuron
    archive.from_bytes(archive.to_bytes(mg.BatchNormalizationStatistics()))


def test_flags_that_a_graph_reads():
    case = Case.draw((1, 1, 1, 4))
    assert case.kernel().is_result_state_reused_across_batch and not case.kernel().append_batch_barrier
    for kernel in (mg.BatchNormalizationStatistics(), case.statistics_gradient()):
        assert kernel.append_batch_barrier and kernel.is_state_modified
    assert not case.gradient().append_batch_barrier
    states = case.kernel().result_state_batch(
        batch(np.ones((3, 1, 1, 4), np.float32)), destination_images=batch(np.ones((3, 1, 1, 4), np.float32))
    )
    assert len(states) == 3 and states[0] is states[2]


# Bad input
