"""Recordings: the work of a command buffer, run again and again."""

from __future__ import annotations

import numpy as np
import pytest
from fake_device import FakeDevice
from window_kernels import WindowSum

import mpsgrad as mg
from mpsgrad import reference
from mpsgrad.command import CommandBufferStatus

WINDOW = {"kernel_width": 1, "kernel_height": 1}
X = np.random.default_rng(3).standard_normal((2, 3, 4, 5)).astype(np.float32)


def test_a_replay_reads_what_is_there_then():
    source = mg.Image.from_array(X)
    kernel = mg.NeuronLinear(a=2, b=1)
    commands = mg.CommandBuffer(label="twice")
    y = kernel.encode(commands, source)
    z = kernel.encode(commands, y)
    recording = commands.record()
    for factor in (1, -3, 5):
        source.write(factor * X)
        assert recording.replay() is commands
        np.testing.assert_allclose(np.asarray(z), 4 * factor * X + 3, rtol=1e-6, atol=1e-5)
        np.testing.assert_allclose(np.asarray(y), 2 * factor * X + 1, rtol=1e-6, atol=1e-5)
        assert commands.status is CommandBufferStatus.COMPLETED
        assert commands.gpu_time is None or commands.gpu_time > 0


def test_replays_follow_each_other_without_a_wait():
    values, gradient = mg.Vector.from_array(np.zeros(37, np.float32)), mg.Vector.from_array(np.ones(37, np.float32))
    optimizer = mg.OptimizerStochasticGradientDescent.with_learning_rate(0.25)
    commands = mg.CommandBuffer()
    optimizer.encode(
        commands, input_gradient_vector=gradient, input_values_vector=values, result_values_vector=values
    )
    recording = commands.record()
    for _ in range(40):
        recording.replay()
    np.testing.assert_array_equal(np.asarray(values), np.full(37, -10, np.float32))
    recording.replay()
    np.testing.assert_array_equal(np.asarray(values), np.full(37, -10.25, np.float32))


@pytest.mark.parametrize("recorded", [False, True])
def test_a_replay_makes_the_next_step_of_an_optimizer_at_the_rate_of_then(recorded):
    gradient = mg.Vector.from_array(np.linspace(-2, 3, 37, dtype=np.float32))
    values = [mg.Vector.from_array(np.zeros(37, np.float32)) for _ in range(2)]
    slots = [[mg.Vector.from_array(np.zeros(37, np.float32)) for _ in range(3)] for _ in range(2)]
    descent = mg.OptimizerStochasticGradientDescent.with_learning_rate(0.5)
    adam = mg.OptimizerAdam.with_learning_rate(0.5)

    def encode(commands: mg.CommandBuffer) -> None:
        common = {"input_gradient_vector": gradient}
        for optimizer, value, (momentum, velocity, _) in zip((descent, adam), values, slots, strict=True):
            own = {"input_momentum_vector": momentum}
            if optimizer is adam:
                own["input_velocity_vector"] = velocity
            optimizer.encode(commands, **common, **own, input_values_vector=value, result_values_vector=value)

    commands = mg.CommandBuffer()
    encode(commands)
    recording = commands.record()
    exact = [np.zeros(37), np.zeros(37)]
    momenta, velocity, g = [np.zeros(37), np.zeros(37)], np.zeros(37), np.asarray(gradient).astype(np.float64)
    for step, rate in enumerate([0.5, 0.5, 0.25, 0.125]):
        descent.learning_rate = adam.learning_rate = rate
        if recorded or step == 0:
            recording.replay()
        else:
            with mg.CommandBuffer() as again:
                encode(again)
        exact[0], momenta[0] = reference.stochastic_gradient_descent(g, exact[0], momenta[0], learning_rate=rate)
        exact[1], momenta[1], velocity, *_ = reference.adam(
            g, exact[1], momenta[1], velocity, time_step=step, learning_rate=rate
        )
        assert adam.time_step == step + 1
    for value, expected in zip(values, exact, strict=True):
        np.testing.assert_allclose(np.asarray(value), expected, rtol=1e-5, atol=1e-6)


def test_a_replay_draws_the_masks_of_the_next_encode():
    source = mg.Image.from_array(np.ones((2, 4, 4, 40), np.float32))

    def masks(recorded: bool) -> list[bytes]:
        kernel, found = mg.Dropout(0.5, seed=3), []
        commands = mg.CommandBuffer()
        result = kernel.encode(commands, source)
        recording = commands.record()
        for step in range(4):
            if recorded or step == 0:
                recording.replay()
            else:
                with mg.CommandBuffer() as commands:
                    result = kernel.encode(commands, source)
            found.append(np.asarray(result).tobytes())
            assert kernel.drawn_images == 2 * step + 2
        return found

    eager = masks(False)
    assert len(set(eager)) == 4
    assert masks(True) == eager


def test_replays_do_not_count_what_was_taken_back():
    kernel = mg.Dropout(0.5)
    source = mg.Image.from_array(X)
    commands = mg.CommandBuffer()
    with pytest.raises(ZeroDivisionError), commands._all_or_nothing():
        kernel.encode(commands, source)
        raise ZeroDivisionError
    kernel.encode(commands, source)
    recording = commands.record()
    for images in (2, 4, 6):
        recording.replay().wait_until_completed()
        assert kernel.drawn_images == images


def test_replays_leave_the_learning_rates_of_other_encodes_alone():
    optimizer = mg.OptimizerStochasticGradientDescent.with_learning_rate(0.5)
    gradient = mg.Vector.from_array(np.ones(5, np.float32))
    values = [mg.Vector(5) for _ in range(3)]

    def encode(commands: mg.CommandBuffer, value: mg.Vector) -> None:
        optimizer.encode(
            commands, input_gradient_vector=gradient, input_values_vector=value, result_values_vector=value
        )

    waiting, commands = mg.CommandBuffer(), mg.CommandBuffer()
    encode(waiting, values[0])
    with pytest.raises(ZeroDivisionError), commands._all_or_nothing():
        encode(commands, values[1])
        raise ZeroDivisionError
    encode(commands, values[1])
    encode(commands, values[2])
    rates = {run.buffers[-1] for each in (waiting, commands) for dispatch in each._dispatches for run in dispatch.runs}
    assert len(rates) == 1
    recording = commands.record()
    for rate in (0.5, 0.25, 0.125):
        optimizer.learning_rate = rate
        recording.replay()
    waiting.commit()
    assert [np.asarray(value).tolist() for value in values] == [[-0.5] * 5, [-0.875] * 5, [-0.875] * 5]


def test_temporary_images_are_kept_for_the_replays():
    source = mg.Image.from_array(X)
    kernel = mg.NeuronLinear(a=2, b=0)
    kernel.destination_image_allocator = mg.TemporaryImage.default_allocator()
    last = mg.NeuronLinear(a=1, b=1)
    commands = mg.CommandBuffer()
    image = source
    for _ in range(5):
        image = kernel.encode(commands, image)
    result = last.encode(commands, image)
    recording = commands.record()
    others = [mg.Image.from_array(np.full_like(X, 7)) for _ in range(8)]
    for _ in range(3):
        recording.replay()
        np.testing.assert_allclose(np.asarray(result), 32 * X + 1, rtol=1e-6)
    assert all((np.asarray(other) == 7).all() for other in others)


def test_a_recorded_training_step_trains():
    def losses(recorded: bool) -> list[float]:
        generator = np.random.default_rng(5)
        x = mg.Image.from_array(generator.standard_normal((4, 6, 6, 3)).astype(np.float32))
        target = np.eye(2, dtype=np.float32)[generator.integers(0, 2, (4, 6, 6))]
        weights = (0.3 * generator.standard_normal((2, 3, 3, 3))).astype(np.float32)
        source = mg.ConvolutionDataSource.from_arrays(weights, np.zeros(2, np.float32))
        convolution, gradient = mg.Convolution(source), mg.ConvolutionGradient(source)
        loss = mg.Loss(mg.LossDescriptor("softmax_cross_entropy", reduction_type="mean"))
        labels = mg.LossLabels.from_array(target)
        optimizer = mg.OptimizerStochasticGradientDescent.with_learning_rate(0.001)
        after = mg.ConvolutionWeightsAndBiasesState.with_descriptor(convolution.descriptor)

        def encode(commands: mg.CommandBuffer) -> None:
            y, state = convolution.encode(commands, x, return_state=True)
            dy = loss.encode(commands, y, labels)
            gradient.encode(commands, dy, x, state)
            exported = convolution.export_weights_and_biases(commands)
            optimizer.encode_convolution(commands, state, exported, result_state=after)
            convolution.reload_weights_and_biases(commands, after)
            gradient.reload_weights_and_biases(commands, after)

        seen = []
        recording = None
        for _ in range(4):
            if recording is None:
                commands = mg.CommandBuffer()
                encode(commands)
                recording = commands.record() if recorded else None
                if not recorded:
                    commands.commit()
            if recording is not None:
                commands = recording.replay()
            commands.wait_until_completed()
            seen.append(float(np.asarray(labels.loss_image).sum()))
        return seen

    eager = losses(False)
    assert eager[-1] < eager[0]
    assert losses(True) == eager


def test_what_was_recorded_takes_no_more_work():
    commands = mg.CommandBuffer(label="kept")
    source = mg.Image.from_array(X)
    y = mg.SoftMax().encode(commands, source)
    recording = commands.record()
    refused = {
        "commit": commands.commit,
        "record": commands.record,
        "SoftMax.encode": lambda: mg.SoftMax().encode(commands, source),
        "add_completed_handler": lambda: commands.add_completed_handler(print),
    }
    for what, call in refused.items():
        with pytest.raises(mg.StateError, match=f"'kept'.*{what} is not possible because.*has been recorded"):
            call()
    assert commands.status is CommandBufferStatus.NOT_ENQUEUED and commands.is_recorded and not commands.is_open
    for call in (lambda: np.asarray(y), commands.wait_until_completed, lambda: commands.gpu_time):
        with pytest.raises(mg.StateError, match="was recorded but has not been replayed"):
            call()
    assert "'kept'" in repr(recording)
    committed = mg.CommandBuffer()
    committed.commit()
    with pytest.raises(mg.StateError, match="record is not possible because.*has been committed"):
        committed.record()


def test_recording_in_a_block_runs_nothing():
    with mg.CommandBuffer() as commands:
        y = mg.NeuronLinear(a=3, b=0).encode(commands, mg.Image.from_array(X))
        recording = commands.record()
    with pytest.raises(mg.StateError, match="has not been replayed"):
        np.asarray(y)
    recording.replay()
    np.testing.assert_allclose(np.asarray(y), 3 * X, rtol=1e-6)


def test_an_empty_recording():
    recording = mg.CommandBuffer().record()
    assert recording.replay().gpu_time is None or recording.replay().gpu_time >= 0
    assert recording.command_buffer.status is CommandBufferStatus.COMPLETED


def test_each_replay_calls_the_handlers_and_is_waited_for():
    device = FakeDevice()
    commands = mg.CommandBuffer(device)
    y = WindowSum(**WINDOW, device=device).encode(commands, mg.Image.from_array(X, device))
    seen: list[object] = []
    commands.add_completed_handler(seen.append)
    recording = commands.record()
    assert device.submitted == []
    for count in (1, 2, 3):
        recording.replay()
        assert len(device.submitted) == count and len(device.submitted[-1]) == 1
        assert commands.status is CommandBufferStatus.COMMITTED and seen == [commands] * (count - 1)
        np.asarray(y)
        assert commands.status is CommandBufferStatus.COMPLETED and seen == [commands] * count
        commands.wait_until_completed()
        assert seen == [commands] * count


def test_a_replay_that_fails_says_so_and_the_next_may_run():
    device = FakeDevice()
    commands = mg.CommandBuffer(device)
    y = WindowSum(**WINDOW, device=device).encode(commands, mg.Image.from_array(X, device))
    recording = commands.record()
    device.fails_in_submit = True
    with pytest.raises(mg.DeviceError, match="refused the work"):
        recording.replay()
    assert commands.status is CommandBufferStatus.ERROR
    device.fails_in_submit, device.fails_in_wait = False, True
    recording.replay()
    with pytest.raises(mg.DeviceError, match="was told to fail"):
        np.asarray(y)
    device.fails_in_wait = False
    recording.replay().wait_until_completed()
    assert commands.status is CommandBufferStatus.COMPLETED and commands.error is None


def test_each_replay_is_the_last_to_write_what_others_wrote_or_read_since() -> None:
    x = mg.Image.from_array(np.full((1, 2, 2, 4), 2, np.float32))
    y = mg.Image.from_array(np.zeros((1, 2, 2, 4), np.float32))
    recordings = []
    for factor in (3, 5):
        commands = mg.CommandBuffer()
        mg.NeuronLinear(a=factor).encode(commands, x, destination_image=y)
        recordings.append(commands.record())
    for _ in range(2):
        for recording, factor in zip(recordings, (3, 5), strict=True):
            recording.replay()
            assert y._writer is recording.command_buffer
            np.testing.assert_array_equal(y, np.full(y.shape, 2 * factor, np.float32))
    with mg.CommandBuffer() as commands:
        mg.NeuronLinear(a=7).encode(commands, x, destination_image=y)
    recordings[0].replay()
    assert y._writer is recordings[0].command_buffer
    recordings[1].replay()
    recordings[0].replay()
    np.testing.assert_array_equal(y, np.full(y.shape, 6, np.float32))
