"""Command buffers: when work runs, when it does not, and what becomes of a device's errors."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from fake_device import FakeDevice
from window_kernels import WindowDifference, WindowSum

import mpsgrad as mg
from mpsgrad import mps
from mpsgrad.command import CommandBufferStatus

WINDOW = {"kernel_width": 1, "kernel_height": 1}
X = np.random.default_rng(3).standard_normal((2, 3, 4, 5)).astype(np.float32)


@pytest.fixture
def fake() -> FakeDevice:
    return FakeDevice()


def encode(commands: mg.CommandBuffer) -> mg.Image:
    """One encode, and one dispatch, on the command buffer's device."""
    kernel = WindowSum(**WINDOW, device=commands.device)
    return kernel.encode(commands, mg.Image.from_array(X, commands.device))


def test_the_block_commits_and_waits():
    with mg.CommandBuffer() as commands:
        y = encode(commands)
        assert commands.is_open and commands.status is CommandBufferStatus.NOT_ENQUEUED
    assert not commands.is_open and commands.status is CommandBufferStatus.COMPLETED
    np.testing.assert_array_equal(np.asarray(y), X)


def test_nothing_is_submitted_before_commit(fake):
    commands = mg.CommandBuffer(fake)
    encode(commands)
    assert fake.submitted == []
    commands.commit()
    assert [len(dispatches) for dispatches in fake.submitted] == [1]
    assert commands.status is CommandBufferStatus.COMMITTED
    commands.wait_until_completed()
    assert commands.status is CommandBufferStatus.COMPLETED


def test_dispatches_are_submitted_in_the_order_of_the_encodes(fake):
    image, one, two = mg.Image.from_array(X, fake), WindowSum(**WINDOW, device=fake), WindowDifference(device=fake)
    with mg.CommandBuffer(fake) as commands:
        for _ in range(2):
            one.encode(commands, image)
            two.encode(commands, image, image)
    (dispatches,) = fake.submitted
    assert [dispatch.function.name for dispatch in dispatches] == ["window_sum", "window_difference"] * 2


def test_a_command_buffer_committed_in_its_block_is_not_committed_again(fake):
    with mg.CommandBuffer(fake) as commands:
        encode(commands)
        commands.commit()
    assert len(fake.submitted) == 1 and commands.status is CommandBufferStatus.COMPLETED


def test_an_exception_discards_the_work(fake):
    with pytest.raises(KeyError), mg.CommandBuffer(fake) as commands:
        y = encode(commands)
        raise KeyError
    assert fake.submitted == [] and not commands.is_open
    for forbidden in (commands.commit, lambda: encode(commands), lambda: commands.add_completed_handler(print)):
        with pytest.raises(mg.StateError, match="discarded after an exception"):
            forbidden()
    for waiting in (commands.wait_until_completed, lambda: commands.gpu_time, lambda: np.asarray(y)):
        with pytest.raises(mg.StateError, match="discarded after an exception, so what it was to compute"):
            waiting()


def test_an_exception_after_commit_leaves_the_work_alone(fake):
    with pytest.raises(KeyError), mg.CommandBuffer(fake) as commands:
        encode(commands)
        commands.commit()
        raise KeyError
    assert len(fake.submitted) == 1
    commands.wait_until_completed()
    assert commands.status is CommandBufferStatus.COMPLETED


def test_a_second_commit_and_late_work_are_refused():
    commands = mg.CommandBuffer(label="step")
    commands.commit()
    source = mg.Image.from_array(X)
    refused = {
        "commit": commands.commit,
        "SoftMax.encode": lambda: mg.SoftMax().encode(commands, source),
        "add_dispatch": lambda: commands.add_dispatch(None, 1),
        "add_completed_handler": lambda: commands.add_completed_handler(print),
    }
    for what, call in refused.items():
        with pytest.raises(mg.StateError, match=f"'step'.*{what} is not possible because.*has been committed"):
            call()


def test_waiting_before_commit_is_refused():
    commands = mg.CommandBuffer()
    for call in (commands.wait_until_completed, lambda: commands.gpu_time):
        with pytest.raises(mg.StateError, match="before commit would wait for ever"):
            call()


def test_handlers_are_called_once_and_after_the_work():
    seen = []
    commands = mg.CommandBuffer()
    y = encode(commands)
    commands.add_completed_handler(lambda buffer: seen.append((buffer, np.asarray(y).shape)))
    commands.add_completed_handler(lambda buffer: seen.append(buffer.status))
    commands.commit()
    assert seen == []
    for _ in range(3):
        commands.wait_until_completed()
    assert seen == [(commands, (2, 3, 4, 5)), CommandBufferStatus.COMPLETED]


def test_a_handler_that_raises_does_not_keep_others_from_being_called():
    seen = []
    commands = mg.CommandBuffer()
    with pytest.raises(mg.FormatError, match="handler is None; it has to be callable"):
        commands.add_completed_handler(None)
    for number in range(3):
        commands.add_completed_handler(lambda _, number=number: seen.append(1 // (number - 1)))
    commands.commit()
    with pytest.raises(ZeroDivisionError):
        commands.wait_until_completed()
    commands.wait_until_completed()
    assert seen == [-1, 1]


def test_an_empty_command_buffer_completes():
    with mg.CommandBuffer() as commands:
        pass
    assert commands.status is CommandBufferStatus.COMPLETED and commands.error is None
    assert commands.gpu_time is not None and commands.gpu_time >= 0


def test_what_was_noted_of_work_that_is_taken_back_is_corrected_from_its_end(fake):
    commands, undone = mg.CommandBuffer(fake), []
    with pytest.raises(ZeroDivisionError), commands._all_or_nothing():
        for step in range(3):
            commands._if_taken_back(lambda step=step: undone.append(step))
        raise ZeroDivisionError
    assert undone == [2, 1, 0]


def test_encodes_share_a_workspace_that_is_large_enough(fake):
    commands = mg.CommandBuffer(fake)
    first = commands.workspace(64)
    assert commands.workspace(64) is commands.workspace(32) is first is not commands.workspace(65)


def test_no_threadgroups_are_no_dispatch(fake):
    commands = mg.CommandBuffer(fake)
    commands.add_dispatch(None, 0)
    commands.commit()
    assert fake.submitted == [[]]


def test_gpu_time_waits_and_is_the_devices(fake):
    commands = mg.CommandBuffer(fake)
    encode(commands)
    commands.commit()
    assert commands.gpu_time == 0.25 and commands.status is CommandBufferStatus.COMPLETED
    fake.time = None
    with mg.CommandBuffer(fake) as commands:
        encode(commands)
    assert commands.gpu_time is None


def test_gpu_time_of_real_work_is_positive():
    with mg.CommandBuffer() as commands:
        encode(commands)
    assert commands.gpu_time is None or 0 < commands.gpu_time < 60


def test_a_device_that_fails_while_it_works(fake):
    fake.fails_in_wait = True
    seen = []
    commands = mg.CommandBuffer(fake)
    y = encode(commands)
    commands.add_completed_handler(lambda buffer: seen.append(buffer.error))
    commands.commit()
    for call in (commands.wait_until_completed, lambda: commands.gpu_time, lambda: np.asarray(y)):
        with pytest.raises(mg.DeviceError, match="was told to fail"):
            call()
    assert commands.status is CommandBufferStatus.ERROR
    assert isinstance(commands.error, mg.DeviceError) and seen == [commands.error]
    y.write(X)
    np.testing.assert_array_equal(np.asarray(y), X)


def test_a_device_that_fails_at_the_end_of_the_block(fake):
    fake.fails_in_wait = True
    with pytest.raises(mg.DeviceError, match="was told to fail"), mg.CommandBuffer(fake) as commands:
        encode(commands)
    assert commands.status is CommandBufferStatus.ERROR


def test_a_device_that_refuses_the_work(fake):
    fake.fails_in_submit = True
    commands = mg.CommandBuffer(fake)
    y = encode(commands)
    for call in (commands.commit, commands.wait_until_completed, lambda: np.asarray(y)):
        with pytest.raises(mg.DeviceError, match="refused the work"):
            call()
    assert commands.status is CommandBufferStatus.ERROR and not commands.is_open
    with pytest.raises(mg.StateError, match="is not possible"):
        commands.commit()


def test_work_and_images_stay_on_their_device(fake):
    with mg.CommandBuffer(fake) as commands:
        assert commands.device is fake
        image = mg.TemporaryImage(commands, mg.ImageDescriptor())
        assert image.device is fake and mg.State([4], command_buffer=commands).device is fake
    assert WindowSum(**WINDOW, device=fake).device is fake


def test_many_command_buffers_in_flight():
    """Later command buffers read what earlier ones write, without a wait between them."""
    image, kernel = mg.Image.from_array(X), mg.LogSoftMax()
    pending = []
    for _ in range(50):
        commands = mg.CommandBuffer()
        image = kernel.encode(commands, image)
        commands.commit()
        pending.append(commands)
    expected = X.astype(np.float64)
    for _ in range(50):
        expected = expected - np.log(np.exp(expected).sum(-1, keepdims=True))
    np.testing.assert_allclose(np.asarray(image), expected, atol=1e-4)
    for commands in pending:
        commands.wait_until_completed()


@pytest.mark.parametrize("times", [1, 2])
def test_work_is_not_committed_before_what_it_reads(times):
    kernel = mg.NeuronReLU()
    for _ in range(times):
        first, second = mg.CommandBuffer(label="first"), mg.CommandBuffer(label="second")
        image = mg.NeuronReLU().encode(first, mg.Image.from_array(np.full((1, 1, 1, 2), 3, np.float32)))
        result = kernel.encode(second, image)
        with pytest.raises(mg.StateError, match="'second'.*NeuronReLU: .*source.*'first'.*commit it first"):
            second.commit()
        first.commit()
        second.commit()
        np.testing.assert_array_equal(result, np.full((1, 1, 1, 2), 3, np.float32))


def test_a_failed_encode_waits_for_nothing():
    first, second = mg.CommandBuffer(), mg.CommandBuffer()
    source = mg.Image.from_array(np.ones((1, 2, 2, 4), np.float32))
    pending, state = mg.NeuronReLU().encode(first, source, return_state=True)
    gradient = mg.NeuronGradient(mg.NeuronDescriptor(mg.NeuronType.RELU))
    for result in (mg.Image.from_array(np.ones((1, 2, 2, 3), np.float32)), pending):
        with pytest.raises(mg.GeometryError):
            mg.NeuronReLU().encode(second, pending, destination_image=result)
        with pytest.raises(mg.GeometryError):
            gradient.encode(second, pending, source, state, destination_gradient=result)
    weights = mg.ConvolutionDataSource.from_arrays(np.ones((1, 1, 1, 4), np.float32))
    few = mg.Convolution(mg.ConvolutionDataSource.from_arrays(np.ones((1, 1, 1, 1), np.float32)))
    with pytest.raises(mg.GeometryError):
        few.reload_weights_and_biases(second, mg.Convolution(weights).export_weights_and_biases(first))
    values, short = mg.Vector(4), mg.Vector(3)
    sgd = mg.OptimizerStochasticGradientDescent(mg.OptimizerDescriptor(learning_rate=1.0))
    sgd.encode(first, input_gradient_vector=values, input_values_vector=values, result_values_vector=values)
    with pytest.raises(mg.GeometryError):
        sgd.encode(second, input_gradient_vector=values, input_values_vector=values, result_values_vector=short)
    labels = mg.LossLabels.from_images(pending)
    with pytest.raises(mg.GeometryError):
        mg.Loss(mg.LossDescriptor("huber")).encode(
            second, source, labels, destination_image=mg.Image.from_array(np.ones((1, 2, 2, 3), np.float32))
        )
    result = mg.NeuronReLU().encode(second, source)
    second.commit()
    np.testing.assert_array_equal(result, source)


def test_attributes_that_a_command_buffer_has_not_are_refused():
    commands = mg.CommandBuffer()
    commands.label = "named"
    for thing in (commands, mps.MTLCommandQueue().commandBuffer()):
        with pytest.raises(AttributeError, match="lable"):
            thing.lable = "another"
    with pytest.raises(TypeError, match="CommandBuffer cannot be copied"):
        copy.copy(commands)


def test_gradients_are_not_committed_before_the_forward_work():
    first, second = mg.CommandBuffer(), mg.CommandBuffer()
    source = mg.Image.from_array(np.array([[[[-1.0, 2.0]]]], np.float32))
    result, state = mg.NeuronReLU().encode(first, source, return_state=True)
    gradient = mg.NeuronGradient(mg.NeuronDescriptor(mg.NeuronType.RELU)).encode(second, result, source, state)
    with pytest.raises(mg.StateError, match="NeuronGradient: .*commit it first"):
        second.commit()
    first.commit()
    second.commit()
    np.testing.assert_array_equal(gradient, [[[[0, 2]]]])


def test_replays_come_after_what_they_read():
    first, second = mg.CommandBuffer(), mg.CommandBuffer()
    image = mg.NeuronReLU().encode(first, mg.Image.from_array(np.full((1, 1, 1, 2), 3, np.float32)))
    result = mg.NeuronReLU().encode(second, image)
    recording = second.record()
    with pytest.raises(mg.StateError, match="commit it first"):
        recording.replay()
    first.commit()
    recording.replay()
    np.testing.assert_array_equal(result, np.full((1, 1, 1, 2), 3, np.float32))


@pytest.mark.parametrize("kernel", [mg.NeuronReLU(), mg.SoftMax()])
def test_what_was_discarded_cannot_be_read(kernel):
    image = mg.Image.from_array(np.ones((1, 1, 1, 2), np.float32))
    with mg.CommandBuffer() as commands:
        kernel.encode(commands, image)
    with pytest.raises(ZeroDivisionError), mg.CommandBuffer() as discarded:
        lost = mg.NeuronReLU().encode(discarded, image)
        raise ZeroDivisionError
    with pytest.raises(mg.StateError, match="source.*was discarded"):
        kernel.encode(mg.CommandBuffer(), lost)
    lost.write(np.ones((1, 1, 1, 2), np.float32))
    kernel.encode(mg.CommandBuffer(), lost)
    late = mg.CommandBuffer()
    with pytest.raises(ZeroDivisionError), mg.CommandBuffer() as discarded:
        kernel.encode(late, mg.NeuronReLU().encode(discarded, image))
        raise ZeroDivisionError
    with pytest.raises(mg.StateError, match="was discarded"):
        late.commit()


def test_an_image_of_losses_is_a_result():
    source = mg.Image.from_array(np.array([[[[1.0, 2.0]]]], np.float32))
    labels = mg.LossLabels.from_array(np.array([[[[1.0, 0.0]]]], np.float32))
    kernel = mg.Loss(mg.LossDescriptor("mean_squared_error", "sum"))
    first, *others = (mg.CommandBuffer() for _ in range(3))
    for commands in (first, *others):
        kernel.encode(commands, source, labels)
    for commands in (*others, first):
        commands.commit()
    assert np.asarray(labels.loss_image).item() == 4


@pytest.mark.parametrize("times", [1, 2])
def test_two_command_buffers_write_one_image_in_any_order(times):
    kernel, source = mg.NeuronReLU(), mg.Image.from_array(np.full((1, 1, 1, 2), 3, np.float32))
    result = mg.Image(source.descriptor)
    for _ in range(times):
        first, second = mg.CommandBuffer(), mg.CommandBuffer()
        for commands in (first, second):
            kernel.encode(commands, source, destination_image=result)
        for commands in (second, first):
            commands.commit()
    np.testing.assert_array_equal(result, source)
