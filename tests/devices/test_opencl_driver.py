"""The OpenCL driver's memory: recycling while work is in flight, views that outlive their buffers; recorded work."""

from __future__ import annotations

import gc
import itertools
import mmap
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad.devices import Dispatch, opencl, opencl_brief, opencl_launch, opencl_memory, opencl_threads
from mpsgrad.devices.opencl_threads import RuntimeThreads
from mpsgrad.errors import ShaderError

SHAPE = (16, 56, 56, 64)
TRIALS = opencl_brief.WARMING_RUNS + opencl_brief.TRIALS


def test_memory_of_a_dropped_submission_is_not_recycled_while_it_runs(opencl_device: mg.Device) -> None:
    source = mg.Image.from_array(np.ones(SHAPE, np.float32), opencl_device)
    kernel = mg.SoftMax(device=opencl_device)
    for _ in range(10):
        commands = mg.CommandBuffer(opencl_device)
        for _ in range(4):
            result = kernel.encode(commands, source)
        commands.commit()
        del result, commands
        reused = [mg.Image.from_array(np.full(SHAPE, 7, np.float32), opencl_device) for _ in range(4)]
        marker = mg.CommandBuffer(opencl_device)
        kernel.encode(marker, source)
        marker.commit()
        marker.wait_until_completed()
        assert all((np.asarray(image) == 7).all() for image in reused)


@pytest.mark.parametrize("blocks", [0, 1, 3])
def test_no_more_memory_than_the_limit_is_kept(opencl_device: Any, monkeypatch: Any, blocks: int) -> None:
    nbytes = 3 << 20
    buffers = [opencl_device.allocate(nbytes) for _ in range(4)]
    (size,) = {buffer._memory.size for buffer in buffers}
    free = opencl_device._pool[size]
    pooled = sum(size * len(free) for size, free in opencl_device._pool.items())
    before, mapped = len(free), opencl_device._mapped_bytes
    monkeypatch.setattr(opencl_memory, "POOL_LIMIT_BYTES", pooled + blocks * size)
    del buffers
    assert len(free) == before + blocks
    assert opencl_device._mapped_bytes == mapped - (4 - blocks) * size


def test_blocks_begin_at_different_places_of_their_pages(opencl_device: Any) -> None:
    blocks = [opencl_memory.Memory(opencl_device._context, 4096, []) for _ in range(8)]
    assert len({block.address % mmap.PAGESIZE for block in blocks}) == len(blocks)
    assert not any(block.address % opencl_device.part_alignment for block in blocks)
    assert all(block.array.nbytes == 4096 and block.array.ctypes.data == block.address for block in blocks)


def test_a_view_keeps_its_memory(opencl_device: mg.Device) -> None:
    image = mg.Image.from_array(np.full(SHAPE, 3, np.float32), opencl_device)
    view = np.asarray(image)
    del image
    gc.collect()
    others = [mg.Image.from_array(np.zeros(SHAPE, np.float32), opencl_device) for _ in range(3)]
    assert (view == 3).all()
    assert len(others) == 3


def test_parts_of_a_buffer_keep_its_memory(opencl_device: mg.Device) -> None:
    alignment = opencl_device.part_alignment
    assert alignment is not None
    whole = opencl_device.allocate(4 * alignment)
    parts = [whole.part(k * alignment, alignment) for k in range(4)]
    for number, part in enumerate(parts):
        part.write(np.full(alignment, number, np.uint8))
    np.testing.assert_array_equal(whole.read(0, whole.nbytes), np.repeat(np.arange(4, dtype=np.uint8), alignment))
    del whole
    gc.collect()
    other = opencl_device.allocate(4 * alignment)
    other.write(np.full(4 * alignment, 9, np.uint8))
    assert [part.read(0, 1)[0] for part in parts] == [0, 1, 2, 3]


def test_freed_memory_is_used_again(opencl_device: mg.Device) -> None:
    first = opencl_device.allocate(1 << 20)
    address = first.memory.ctypes.data if first.memory is not None else 0
    del first
    gc.collect()
    second = opencl_device.allocate(1 << 20)
    assert second.memory is not None
    assert second.memory.ctypes.data == address


def test_too_much_memory_names_what_was_asked_for(opencl_device: mg.Device) -> None:
    with pytest.raises(mg.DeviceError, match=r"cannot allocate \d+ bytes; the device has \d+"):
        opencl_device.allocate(1 << 60)


def test_source_that_does_not_compile_leaves_no_file(
    opencl_device: mg.Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ShaderError, match="use of undeclared identifier"):
        mg.compile("kernel void f(device float* x) { x[0] = undeclared; }", device=opencl_device)
    assert list(tmp_path.iterdir()) == []


def chain(device: mg.Device) -> tuple[mg.CommandBuffer, mg.Image, mg.Image]:
    """A command buffer of five dispatches that each double, what the first reads, and what the last writes."""
    commands = mg.CommandBuffer(device, label="doubles")
    double = mg.NeuronLinear(a=2, b=0, device=device)
    source = image = mg.Image.from_array(np.ones((1, 4, 4, 4), np.float32), device)
    for _ in range(5):
        image = double.encode(commands, image)
    return commands, source, image


@pytest.mark.parametrize("finds_entry_point", [True, False])
def test_replays_are_of_all_launches_in_order(
    opencl_device: mg.Device, monkeypatch: pytest.MonkeyPatch, finds_entry_point: bool
) -> None:
    assert opencl_launch.entry_point() is not None
    if not finds_entry_point:
        monkeypatch.setattr(opencl_launch, "entry_point", lambda: None)
    commands, source, result = chain(opencl_device)
    recording = commands.record()
    back = mg.CommandBuffer(opencl_device)
    copy = mg.NeuronLinear(a=1, b=0, device=opencl_device)
    copy.encode(back, result, destination_image=source)
    again = back.record()
    # Replays of two recordings in turn, which are still on the queue when they are put there once more.
    for _ in range(4):
        recording.replay()
        again.replay()
    again.command_buffer.wait_until_completed()
    assert commands.gpu_time is not None and commands.gpu_time > 0
    del recording, again
    gc.collect()
    np.testing.assert_array_equal(np.asarray(result), np.full(result.shape, 2.0**20, np.float32))
    np.testing.assert_array_equal(np.asarray(source), np.full(source.shape, 2.0**20, np.float32))


def test_a_replay_that_is_refused(opencl_device: mg.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyopencl

    recording = chain(opencl_device)[0].record()
    enqueue, count = opencl_launch.entry_point(), 0
    assert enqueue is not None

    def refuses_the_third(*arguments: Any) -> int:
        nonlocal count
        count += 1
        return int(pyopencl.status_code.OUT_OF_RESOURCES) if count == 2 else enqueue(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(opencl_launch, "entry_point", lambda: refuses_the_third)
        with pytest.raises(mg.DeviceError, match=r"neuron\w*: the device refused the dispatch: OUT_OF_RESOURCES"):
            recording.replay()
    recording.replay().wait_until_completed()


def test_brief_work_is_done_at_once_to_the_same_bits(opencl_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert opencl_device.immediate_queue is not None, "the runtime has such queues"
    values = np.random.default_rng(5).standard_normal((1, 8, 8, 4)).astype(np.float32)
    values[0, 0] = np.float32(3e-39)
    source = mg.Image.from_array(values, opencl_device)
    mean = mg.ReduceRowMean(device=opencl_device)
    double = mg.NeuronLinear(a=2, b=0, device=opencl_device)
    made = []
    entry_point = opencl_launch.entry_point()
    for queue, enqueue in (
        (opencl_device.immediate_queue, entry_point),
        (opencl_device.immediate_queue, None),
        (None, None),
    ):
        monkeypatch.setattr(opencl_device, "immediate_queue", queue)
        monkeypatch.setattr(opencl_brief, "entry_point", lambda enqueue=enqueue: enqueue)
        commands = mg.CommandBuffer(opencl_device)
        results = mean.encode(commands, source), double.encode(commands, source)
        commands.commit()
        if queue is not None:
            assert commands.status is mg.CommandBufferStatus.COMPLETED
        assert commands.gpu_time is not None and commands.gpu_time > 0
        made.append([np.array(result).view(np.uint32) for result in results])
    for at_once, by_events, queued in zip(*made, strict=True):
        np.testing.assert_array_equal(at_once, queued)
        np.testing.assert_array_equal(by_events, queued)


def test_brief_work_that_is_refused(opencl_device: mg.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyopencl

    source = mg.Image.from_array(np.ones((1, 1, 1, 4), np.float32), opencl_device)
    neuron = mg.NeuronReLU(device=opencl_device)
    monkeypatch.setattr(opencl_brief, "entry_point", lambda: lambda *_: int(pyopencl.status_code.OUT_OF_RESOURCES))
    commands = mg.CommandBuffer(opencl_device)
    neuron.encode(commands, source)
    with pytest.raises(mg.DeviceError, match=r"neuron_relu\w*: the device refused the dispatch: OUT_OF_RESOURCES"):
        commands.commit()
    assert commands.status is mg.CommandBufferStatus.ERROR and not commands.is_open
    monkeypatch.undo()
    with mg.CommandBuffer(opencl_device) as commands:
        result = neuron.encode(commands, source)
    np.testing.assert_array_equal(np.asarray(result), np.asarray(source))


def test_work_of_one_threadgroup_is_done_at_once_though_it_is_on_more_memory(opencl_device: Any) -> None:
    source = mg.Image.from_array(np.ones((8, 1, 1, 1000), np.float32), opencl_device)
    for _ in range(3):
        commands = mg.CommandBuffer(opencl_device)
        result = mg.SoftMax(device=opencl_device).encode(commands, source)
        assert [dispatch.threadgroups for dispatch in commands._dispatches] == [1]
        commands.commit()
        assert opencl_device._is_idle()
        np.testing.assert_allclose(np.asarray(result), 1e-3, rtol=1e-5)


def test_work_of_one_threadgroup_on_yet_more_memory_is_not_tried_on_the_queue(
    opencl_device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opencl_device.immediate_queue, "_work", {})
    monkeypatch.setattr(opencl_brief, "LONGEST_SECONDS_OF_A_THREADGROUP", 1.0)
    source = mg.Image.from_array(np.ones((1, 50, 50, 64), np.float32), opencl_device)
    for _ in range(TRIALS + 3):
        commands = mg.CommandBuffer(opencl_device)
        result = mg.ReductionSpatialMean(device=opencl_device).encode(commands, source)
        assert [dispatch.threadgroups for dispatch in commands._dispatches] == [1]
        commands.commit()
        assert isinstance(commands._submission, opencl_brief.FinishedWork)
        np.testing.assert_allclose(np.asarray(result), 1, rtol=1e-6)


def test_work_of_one_threadgroup_may_take_longer_and_more_memory_at_once(opencl_device: Any) -> None:
    for is_of_one_thread in (False, True):
        work = opencl_brief.TimedWork(is_of_one_thread)
        for _ in range(TRIALS):
            work.add_at_once(1.5 * opencl_brief.LONGEST_SECONDS)
        assert work.decide() and work.is_at_once == is_of_one_thread
    image = mg.Image.from_array(np.ones((1, 1, 1, 8), np.float32), opencl_device)
    with mg.CommandBuffer(opencl_device) as commands:
        mg.SoftMax(device=opencl_device).encode(commands, image)
        function = commands._dispatches[0].function
    for nbytes, threadgroups, is_timed in ((3 << 20, 1, True), (3 << 20, 2, False), (9 << 20, 1, False)):
        dispatch = Dispatch(function, threadgroups, (opencl_device.allocate(nbytes),))
        assert (opencl_device.immediate_queue._work_of([dispatch]) is not opencl_brief.LEFT_TO_OTHERS) == is_timed


@pytest.mark.parametrize(
    ("seconds", "seconds_of_waiting", "trials", "is_at_once"),
    [
        (2e-5, 1.0, [True] * TRIALS + [False] * TRIALS, True),
        (2e-5, -1.0, [True] * TRIALS + [False] * TRIALS, False),
        (5e-6, -1.0, [True] * TRIALS, True),
        (1.0, 2.0, [True, True], False),
    ],
    ids=["sooner", "later", "short", "too long"],
)
def test_work_is_done_at_once_where_that_was_faster_in_trials(
    opencl_device: Any,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    seconds_of_waiting: float,
    trials: list[bool],
    is_at_once: bool,
) -> None:
    monkeypatch.setattr(opencl_device.immediate_queue, "_work", {})
    monkeypatch.setattr(opencl_brief, "RUNS_BETWEEN_TRIALS", 3)
    run = opencl_brief.ImmediateQueue._run
    monkeypatch.setattr(opencl_brief.ImmediateQueue, "_run", lambda *given: run(*given) * 0 + seconds)
    clock = itertools.count(0.0, seconds_of_waiting)
    wait = opencl_launch.OpenCLSubmission.wait

    def takes_long(submission: opencl_launch.OpenCLSubmission) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(opencl_launch.time, "perf_counter", lambda: next(clock))
            wait(submission)

    monkeypatch.setattr(opencl_launch.OpenCLSubmission, "wait", takes_long)
    values = np.arange(64 * 1024, dtype=np.float32).reshape(1, 32, 32, 64)
    source = mg.Image.from_array(values, opencl_device)
    double = mg.NeuronLinear(a=2, b=0, device=opencl_device)
    at_once = []
    # Both ways are tried, until one is known to be faster, and after some runs again; the next time after more of them.
    expected = [*trials, *[is_at_once] * 3, *trials, *[is_at_once] * 6, *trials]
    for _ in expected:
        commands = mg.CommandBuffer(opencl_device)
        result = double.encode(commands, source)
        assert commands._dispatches[0].threadgroups > 1
        commands.commit()
        at_once.append(isinstance(commands._submission, opencl_brief.FinishedWork))
        np.testing.assert_array_equal(np.asarray(result), 2 * values)
    assert at_once == expected


def test_work_is_looked_up_once_and_forgotten(opencl_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    immediate = opencl_device.immediate_queue
    monkeypatch.setattr(immediate, "_work", {})
    monkeypatch.setattr(immediate, "_work_of_patterns", {})
    monkeypatch.setattr(opencl_brief, "WORK_REMEMBERED", 2)
    looked_up: list[int] = []
    work_of = immediate._work_of
    monkeypatch.setattr(immediate, "_work_of", lambda given: looked_up.append(len(given)) or work_of(given))
    shapes = [(1, size, size, 4) for size in (2, 20, 30, 40, 400)]
    images = [mg.Image.from_array(np.ones(shape, np.float32), opencl_device) for shape in shapes]
    double = mg.NeuronLinear(a=2, b=0, device=opencl_device)
    for image in images:
        for _ in range(5):
            with mg.CommandBuffer(opencl_device) as commands:
                result = double.encode(commands, image)
            assert (np.asarray(result) == 2).all()
            assert len(immediate._work_of_patterns) <= 2 and len(immediate._work) <= 2
    # Of each image the encodes that find the dispatch, which are two for a new kernel, and the one after them.
    assert len(looked_up) <= 3 * len(images)


def test_cold_caches_and_threads_that_woke_up_late_do_not_decide() -> None:
    work = opencl_brief.TimedWork()
    cold = 2 * opencl_brief.LONGEST_SECONDS
    for seconds in [cold] * opencl_brief.WARMING_RUNS + [cold, cold, 20e-6, 20e-6, 20e-6]:
        assert work.is_tried_at_once and not work.decide()
        work.add_at_once(seconds)
    slow, fast = 200e-6, 10e-6
    for seconds in [slow] * opencl_brief.WARMING_RUNS + [slow, slow, fast, fast, fast]:
        assert not work.decide()
        work.add_queued(opencl_launch.HostTime(seconds))
    assert work.decide() and not work.is_at_once


def test_the_host_is_busy_until_work_is_on_the_queue_and_while_it_waits(opencl_device: Any) -> None:
    source = mg.Image.from_array(np.ones((4, 256, 256, 8), np.float32), opencl_device)
    commands = mg.CommandBuffer(opencl_device)
    mg.NeuronReLU(device=opencl_device).encode(commands, source)
    commands.commit()
    submission: Any = commands._submission
    submission.host_time = opencl_launch.HostTime(1.0)
    started = time.perf_counter()
    commands.wait_until_completed()
    ended = time.perf_counter()
    assert 1 < submission.host_time.seconds <= 1 + ended - started
    submission.wait()
    assert submission.host_time.seconds <= 1 + ended - started


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads choose their cores by themselves")
def test_threads_of_the_runtime_leave_the_core_of_the_thread_that_submits(
    opencl_device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = os.sched_getaffinity(0)
    if len(allowed) == 1:
        pytest.skip("there is one core only")
    # The runtime has threads once there is a queue, which another device of the process may have had before.
    assert opencl_device.queue and opencl.OpenCLDevice(opencl_device._handle, 0).queue
    assert opencl.OpenCLDevice._threads_of_runtime == set(opencl_device.runtime_threads.threads)
    runtime, done = opencl_device.runtime_threads, threading.Event()
    own = threading.Thread(target=done.wait)
    own.start()
    try:
        assert own.native_id not in runtime.threads
        room = RuntimeThreads([own.native_id or 0])
        for core in allowed:
            os.sched_setaffinity(0, {core})
            # What may use one core only cannot leave it to others.
            room.make_room()
            assert os.sched_getaffinity(own.native_id or 0) == allowed
        os.sched_setaffinity(0, allowed)
        monkeypatch.setattr(opencl_threads, "MOST_THREADS", 0)
        RuntimeThreads([own.native_id or 0]).make_room()
        assert os.sched_getaffinity(own.native_id or 0) == allowed
        monkeypatch.undo()
        RuntimeThreads([own.native_id or 0]).make_room()
        assert len(os.sched_getaffinity(own.native_id or 0)) == len(allowed) - 1
        for thread in runtime.threads:
            os.sched_setaffinity(thread, allowed)
        runtime._core = -1
        source = mg.Image.from_array(np.ones((4, 256, 256, 8), np.float32), opencl_device)
        with mg.CommandBuffer(opencl_device) as commands:
            mg.NeuronReLU(device=opencl_device).encode(commands, source)
        assert runtime.threads
        for thread in runtime.threads:
            assert len(os.sched_getaffinity(thread)) == len(allowed) - 1
    finally:
        os.sched_setaffinity(0, allowed)
        done.set()
        own.join()


def test_work_on_much_memory_is_not_tried_at_once(opencl_device: Any) -> None:
    source = mg.Image.from_array(np.ones((1, 512, 512, 1), np.float32), opencl_device)
    commands = mg.CommandBuffer(opencl_device)
    mg.NeuronReLU(device=opencl_device).encode(commands, source)
    commands.commit()
    assert not isinstance(commands._submission, opencl_brief.FinishedWork)
    commands.wait_until_completed()


def test_brief_work_comes_after_what_is_on_the_queue(opencl_device: mg.Device) -> None:
    large = mg.Image.from_array(np.ones(SHAPE, np.float32), opencl_device)
    mean = mg.ReductionSpatialMean(device=opencl_device)
    add_one = mg.NeuronLinear(a=1, b=1, device=opencl_device)
    total = mg.Image.from_array(np.zeros((SHAPE[0], 1, 1, SHAPE[3]), np.float32), opencl_device)
    for _ in range(3):
        long, brief = mg.CommandBuffer(opencl_device), mg.CommandBuffer(opencl_device)
        mean.encode(long, large, destination_image=total)
        result = add_one.encode(brief, total)
        long.commit()
        brief.commit()
        np.testing.assert_array_equal(np.asarray(result), np.full(result.shape, 2, np.float32))
        total.write(np.zeros(total.shape, np.float32))
