"""What a call does, as metalcompute does it: the grid, its stray threads, copies, order, and the wait on release."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import mpsgrad as mg
import mpsgrad.metalcompute as mc

HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"
SCALE = f"""{HEADER}
[[max_total_threads_per_threadgroup(64)]]
kernel void scale(device const float* source [[buffer(0)]], device float* destination [[buffer(1)]],
                  constant float& factor [[buffer(2)]], uint i [[thread_position_in_grid]])
{{
    destination[i] = factor * source[i];
}}
"""
WHO = """
kernel void NAME(device uint* runs [[buffer(0)]], device uint* sizes [[buffer(1)]],
                 uint i [[thread_position_in_grid]], uint grid [[threads_per_grid]],
                 uint group [[threads_per_threadgroup]])
{
    runs[i] += 1;
    sizes[0] = grid;
    sizes[1] = group;
}
"""


@pytest.fixture(scope="module")
def device() -> mc.Device:
    return mc.Device()


@pytest.fixture(scope="module")
def scale(device: mc.Device) -> Any:
    return device.kernel(SCALE).function("scale")


def floats(buffer: Any) -> np.ndarray:
    return np.frombuffer(buffer, np.float32)


# The grid.


@pytest.fixture(scope="module")
def who(device: mc.Device) -> dict[int, Any]:
    """By declared size (0: none), a kernel whose threads count themselves."""
    source = HEADER
    for size in (0, 32, 48, 64, 992, 1000, 1024):
        source += f"[[max_total_threads_per_threadgroup({size})]]" * (size > 0) + WHO.replace("NAME", f"who_{size}")
    kernel = device.kernel(source)
    return {size: kernel.function(f"who_{size}") for size in (0, 32, 48, 64, 992, 1000, 1024)}


@given(count=st.integers(1, 5000), declared=st.sampled_from([0, 32, 48, 64, 992, 1000, 1024]))
@example(count=1, declared=0)
@example(count=1024, declared=0)
@example(count=1025, declared=0)
@example(count=33, declared=48)
def test_the_grid_is_rounded_up_to_whole_threadgroups(device, who, count, declared):
    threadgroup = 32 * ((declared or 1024) // 32)
    threads = -(-count // threadgroup) * threadgroup
    runs, sizes = device.buffer(4 * (threads + 1)), device.buffer(8)
    who[declared](count, runs, sizes)
    assert np.frombuffer(sizes, np.uint32).tolist() == [threads, threadgroup]
    assert np.frombuffer(runs, np.uint32).tolist() == [1] * threads + [0]


@pytest.mark.parametrize("count", [0, -1, -5000])
def test_no_threads(device: mc.Device, scale: Any, count: int) -> None:
    destination = device.buffer(np.ones(64, np.float32))
    scale(count, np.ones(64, np.float32), destination, np.float32(3))
    assert (floats(destination) == 1).all()


@pytest.mark.parametrize("count", [64.9, np.int64(64), np.float32(64.5), True + 63, np.array(64)])
def test_counts_are_cut_to_integers(device: mc.Device, scale: Any, count: Any) -> None:
    destination = device.buffer(4 * 128)
    scale(count, np.ones(128, np.float32), destination, np.float32(3))
    assert floats(destination).tolist() == [3] * 64 + [0] * 64


@pytest.mark.parametrize("lanes", [1, 4, 16])
def test_what_stray_threads_write_is_harmless(device: mc.Device, lanes: int) -> None:
    """An unguarded kernel writes up to 1023 * 64 bytes beyond its buffer; its neighbours keep what they have."""
    source = f"""{HEADER}
    struct Item {{ float lanes[{lanes}]; }};
    kernel void fill(device Item* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {{
        for (int lane = 0; lane < {lanes}; ++lane) out[i].lanes[lane] = i + 1;
    }}"""
    fill = device.kernel(source).function("fill")
    before, out, after = (device.buffer(4 * lanes) for _ in range(3))
    for _ in range(3):
        fill(1, out)
        assert floats(out).tolist() == [1] * lanes
        assert not floats(before).any() and not floats(after).any()
    assert not floats(device.buffer(4 * lanes)).any(), "what stray threads wrote shows in no later buffer"


@pytest.mark.parametrize("rows", [1000, 1023, 3000])
def test_stray_threads_that_each_write_a_row(device: mc.Device, rows: int) -> None:
    source = f"""{HEADER}
    kernel void sums(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                     constant uint& width [[buffer(2)]], uint row [[thread_position_in_grid]]) {{
        float sum = 0;
        for (uint i = 0; i < width; ++i) {{ sum += x[row * width + i]; y[row * width + i] = sum; }}
    }}"""
    width = 333
    x = np.arange(rows * width, dtype=np.float32).reshape(rows, width) % 5
    y = device.buffer(x.nbytes)
    device.kernel(source).function("sums")(rows, x, y, np.uint32(width))
    np.testing.assert_array_equal(floats(y).reshape(x.shape), x.cumsum(1))


# Arguments.


def test_python_objects_are_copied_when_the_call_is_made(device: mc.Device, scale: Any) -> None:
    source, factor, destination = np.ones(64, np.float32), bytearray(np.float32(2)), device.buffer(256)
    handle = scale(64, source, destination, factor)
    source[:] = 9
    factor[:] = bytes(4)
    del handle
    assert (floats(destination) == 2).all()


def test_a_kernel_writes_to_a_copy_of_a_python_object(device: mc.Device, scale: Any) -> None:
    source, destination = np.ones(64, np.float32), np.zeros(64, np.float32)
    scale(64, source, destination, np.float32(2))
    assert not destination.any()


def test_numbers_of_python_are_lengths_and_those_of_numpy_are_bytes(device: mc.Device, scale: Any) -> None:
    destination = device.buffer(np.ones(64, np.float32))
    scale(64, 256, destination, np.float32(2))
    assert not floats(destination).any()
    scale(64, np.full(64, 3, np.float32), destination, 4.9)
    assert not floats(destination).any()


def test_the_number_of_buffers_is_not_checked(device: mc.Device, scale: Any) -> None:
    destination = device.buffer(np.ones(64, np.float32))
    scale(64, np.ones(64, np.float32), destination, np.float32(3), b"ignored")
    assert (floats(destination) == 3).all()
    scale(64, np.ones(64, np.float32), destination)
    assert not floats(destination).any()
    scale(1 << 20, np.ones(1 << 20, np.float32))  # writes where nothing is bound


def test_buffers_are_bound_by_index(device: mc.Device) -> None:
    source = f"""{HEADER}
    kernel void copy(device float* y [[buffer(3)]], device float* x [[buffer(1)]]) {{ y[0] = x[0]; }}"""
    y = device.buffer(4)
    device.kernel(source).function("copy")(1, b"none", np.float32(5), b"none", y)
    assert floats(y) == [5]


def test_one_buffer_may_be_two_arguments(device: mc.Device, scale: Any) -> None:
    both = device.buffer(np.arange(64, dtype=np.float32))
    scale(64, both, both, np.float32(2))
    np.testing.assert_array_equal(floats(both), 2 * np.arange(64))


# Order and waiting.


def test_calls_run_in_order_whichever_handle_is_released(device: mc.Device, scale: Any) -> None:
    count = 1 << 16
    buffers = [device.buffer(np.ones(count, np.float32)) for _ in range(8)]
    handles = [
        scale(count, source, destination, np.float32(2))
        for source, destination in zip(buffers, buffers[1:], strict=False)
    ]
    del handles[-1]
    assert [set(floats(each).tolist()) for each in buffers] == [{2.0**power} for power in range(8)]
    del handles


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> tuple[mc.Device, list[str]]:
    """A device whose submissions note that they are waited for."""
    device, log = mc.Device(), []
    submit = device._device.submit

    class Watched:
        def __init__(self, submission: Any, label: str) -> None:
            self.submission, self.label = submission, label

        def wait(self) -> None:
            self.submission.wait()
            log.append(self.label)

    monkeypatch.setattr(
        device._device, "submit", lambda dispatches, label: Watched(submit(dispatches, label), label)
    )
    return device, log


def test_a_call_returns_without_waiting_and_releasing_its_handle_waits(watched: tuple[mc.Device, list[str]]) -> None:
    device, log = watched
    scale = device.kernel(SCALE).function("scale")
    handle = scale(64, np.ones(64, np.float32), device.buffer(256), np.float32(2))
    assert (str(handle), log) == ("metalcompute.Run", [])
    also = handle
    del handle
    assert log == []
    del also
    assert log == ["scale"]
    scale(64, np.ones(64, np.float32), device.buffer(256), np.float32(2))
    assert log == ["scale"] * 2, "a handle that nobody keeps is released at once"


SPIN = f"""
import atexit, sys, threading
sys.path.insert(0, {str(Path(mg.__file__).parent.parent)!r})

def check():
    assert memoryview(done).cast("i")[0] == memoryview(copied).cast("i")[0] == 7

atexit.register(check)  # the first that is registered is the last that runs
import numpy as np
import mpsgrad.metalcompute as mc

SOURCE = '''{HEADER}
kernel void spin(device volatile int* flag [[buffer(0)]], device int* done [[buffer(1)]]) {{
    while (flag[0] == 0) {{}}
    done[0] = flag[0];
}}
kernel void copy(device int* from [[buffer(0)]], device int* to [[buffer(1)]]) {{ to[0] = from[0]; }}
'''
device = mc.Device()
kernel = device.kernel(SOURCE)
spin, copy = kernel.function("spin"), kernel.function("copy")
flag, done, copied = (device.buffer(4) for _ in range(3))
view = memoryview(flag).cast("i")
first = spin(1, flag, done)
second = copy(1, done, copied)
assert memoryview(done).cast("i")[0] == memoryview(copied).cast("i")[0] == 0

def stop():
    view[0] = 7

WAIT
"""
"""A kernel runs until Python writes to its buffer: if a call waited, or a release kept others from running, forever."""


def spinning(wait: str) -> None:
    """Fails after a minute instead of hanging."""
    result = subprocess.run(
        [sys.executable, "-c", SPIN.replace("WAIT", wait)], capture_output=True, text=True, timeout=60
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_calls_are_queued_while_a_kernel_runs() -> None:
    spinning("stop(); del second; check()")


def test_other_threads_run_while_a_release_waits() -> None:
    spinning("threading.Timer(0.2, stop).start(); del second; check()")


def test_at_the_end_of_a_program_runs_are_waited_for() -> None:
    spinning("threading.Timer(0.2, stop).start()")


def test_several_threads_use_one_device(device: mc.Device, scale: Any) -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        for _ in range(20):
            source = rng.standard_normal(1000).astype(np.float32)
            middle, last = device.buffer(4 * 1024), device.buffer(4 * 1024)
            first = scale(1000, source, middle, np.float32(2))
            second = scale(1000, middle, last, np.float32(number))
            del first, second
            if not np.array_equal(floats(last)[:1000], 2 * source * np.float32(number)):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_failure_on_the_device_is_reported_when_the_handle_is_released(
    device: mc.Device, scale: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda problem: reported.append(problem.exc_value))

    class Failed:
        def wait(self) -> None:
            raise mg.DeviceError("the device was lost")

    monkeypatch.setattr(device._device, "submit", lambda dispatches, label: Failed())
    scale(64, np.ones(64, np.float32), device.buffer(256), np.float32(2))
    assert [str(each) for each in reported] == ["the device was lost"]
