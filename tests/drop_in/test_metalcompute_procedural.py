"""Version 0.1 of metalcompute's interface: init, compile, run, rerun and release, and what they say out of order."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import mpsgrad.metalcompute as mc

ADD_ONE = """#include <metal_stdlib>
using namespace metal;
kernel void add_one(device const float* in [[buffer(0)]], device float* out [[buffer(1)]],
                    uint id [[thread_position_in_grid]]) { out[id] = in[id] + 1.0; }
kernel void flip(device const uchar* in [[buffer(0)]], device uchar* out [[buffer(1)]],
                 uint id [[thread_position_in_grid]]) { out[id] = 255 - in[id]; }
"""


@pytest.fixture(autouse=True)
def released() -> Iterator[None]:
    mc.release()
    yield
    mc.release()


def refused(words: str, action: Any, *arguments: Any) -> None:
    with pytest.raises(mc.error) as caught:
        action(*arguments)
    assert str(caught.value) == words


def test_a_program() -> None:
    mc.init()
    mc.compile(ADD_ONE, "add_one")
    source = np.arange(100_000, dtype=np.float32)
    result = np.full(100_000, 7, np.float32)
    assert mc.run(source, result, 100_000) is None
    np.testing.assert_array_equal(result, source + 1)
    assert mc.rerun(100_000) is None
    mc.compile(ADD_ONE, "flip")
    flipped = bytearray(3)
    mc.run(b"abc", flipped, 3)
    assert flipped == bytes(255 - letter for letter in b"abc")


def test_the_output_is_what_the_run_wrote_and_zero_elsewhere() -> None:
    mc.init(0)
    mc.compile(ADD_ONE, "add_one")
    result = array("f", [7] * 2000)
    mc.run(array("f", [1] * 1024), result, 1)
    assert result.tolist() == [2] * 1024 + [0] * 976


def test_the_order_of_the_calls() -> None:
    floats, result = array("f", [1, 2]), array("f", [0, 0])
    refused("Not ready to compile", mc.compile, ADD_ONE, "add_one")
    refused("Not ready to compute", mc.run, floats, result, 2)
    refused("Failed to make output buffer", mc.rerun, 2)  # what 0.2.9 says for "Not ready to run"
    mc.init()
    refused("Not ready to compute", mc.run, floats, result, 2)
    refused("Failed to find function", mc.compile, ADD_ONE, "add_two")
    refused("Not ready to compute", mc.run, floats, result, 2)
    mc.compile(ADD_ONE, "add_one")
    refused("Failed to make output buffer", mc.rerun, 2)
    mc.run(floats, result, 2)
    mc.rerun(2)
    with pytest.raises(mc.error, match="^program_source:1:1: error: "):
        mc.compile("invalid_kernel", "add_one")
    mc.rerun(2)
    mc.compile(ADD_ONE, "add_one")
    refused("Failed to make output buffer", mc.rerun, 2)
    mc.init()
    refused("Not ready to compute", mc.run, floats, result, 2)
    mc.compile(ADD_ONE, "add_one")
    mc.release()
    refused("Not ready to compute", mc.run, floats, result, 2)
    refused("Failed to make output buffer", mc.rerun, 2)
    mc.release()


def test_formats() -> None:
    mc.init()
    mc.compile(ADD_ONE, "add_one")
    floats, result = np.ones(4, np.float32), np.zeros(4, np.float32)
    for source in (None, 5, "text", np.ones(4), np.ones(4, np.int32), np.ones((4, 4), np.float32).T, floats[::2]):
        refused("Unsupported input format", mc.run, source, result, 4)
    locked = np.zeros(4, np.float32)
    locked.flags.writeable = False
    for destination in (None, bytes(4), np.ones(4), locked, np.ones((4, 4), np.float32).T, result[::2]):
        refused("Unsupported output format", mc.run, floats, destination, 4)
    refused("Unsupported output format", mc.run, np.ones(4), np.ones(4), 4)
    refused("Failed to make input buffer", mc.run, b"", result, 4)
    refused("Failed to make output buffer", mc.run, floats, bytearray(), 4)
    assert not result.any()


@pytest.mark.parametrize(
    ("count", "error", "words"),
    [
        (2.0, TypeError, "'float' object cannot be interpreted as an integer"),
        ("2", TypeError, "'str' object cannot be interpreted as an integer"),
        (1 << 31, OverflowError, "signed integer is greater than maximum"),
        (-(1 << 31) - 1, OverflowError, "signed integer is less than minimum"),
    ],
)
def test_counts_are_c_integers(count: Any, error: type[Exception], words: str) -> None:
    mc.init()
    mc.compile(ADD_ONE, "add_one")
    with pytest.raises(error, match=words):
        mc.run(array("f", [1]), array("f", [1]), count)
    with pytest.raises(error, match=words):
        mc.rerun(count)


def test_programs_and_names_are_strings() -> None:
    mc.init()
    with pytest.raises(TypeError, match="argument 1 must be str, not bytes"):
        mc.compile(ADD_ONE.encode(), "add_one")
    with pytest.raises(TypeError, match="argument 2 must be str, not NoneType"):
        mc.compile(ADD_ONE, None)


def test_threads_take_turns() -> None:
    mc.init()
    mc.compile(ADD_ONE, "add_one")
    wrong: list[float] = []

    def work(start: float) -> None:
        for _ in range(20):
            result = np.zeros(5000, np.float32)
            mc.run(np.full(5000, start, np.float32), result, 5000)
            wrong.extend(result[result != start + 1].tolist())

    threads = [threading.Thread(target=work, args=(10.0 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
