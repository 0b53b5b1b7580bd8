"""The objects of metalcompute: what they offer, what they refuse, and the words of each error."""

from __future__ import annotations

import copy
import gc
import importlib
import pickle
import weakref
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpsgrad as mg
import mpsgrad.metalcompute as mc
from mpsgrad.devices import cuda, opencl

registry: Any = importlib.import_module("mpsgrad.devices")

HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"
ADD_ONE = f"{HEADER}kernel void add_one(device float* x, uint i [[thread_position_in_grid]]) {{ x[i] += 1.0; }}\n"


@pytest.fixture(scope="module")
def device() -> mc.Device:
    return mc.Device()


@pytest.fixture(scope="module")
def add_one(device: mc.Device) -> Any:
    return device.kernel(ADD_ONE).function("add_one")


def refused(words: str, action: Callable[[], Any]) -> None:
    with pytest.raises(mc.error) as caught:
        action()
    assert type(caught.value) is mc.error
    assert str(caught.value) == words


# The module and its devices.


def test_the_interface_is_that_of_version_0_2_9() -> None:
    assert sorted(mc.__all__) == ["Device", "compile", "error", "get_devices", "init", "release", "rerun", "run"]
    assert issubclass(mc.error, Exception)


def test_devices_are_listed_with_metalcomputes_fields(device: mc.Device) -> None:
    listed = mc.get_devices()
    assert isinstance(listed, tuple)
    for index, information in enumerate(listed):
        assert information._fields == (
            "deviceName", "recommendedWorkingSetSize", "maxTransferRate", "hasUnifiedMemory",
        )  # fmt: skip
        assert information.recommendedWorkingSetSize > 1 << 20
        assert str(mc.Device(index)) == f"{mc.Device(index)}" == f"metalcompute.Device({information.deviceName})"
    assert str(mc.Device()) == str(mc.Device(-1)) == str(mc.Device(-7)) == str(device)


def test_the_default_device_is_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    other = (opencl.devices() or cuda.devices())[0]
    other.name = "another"
    monkeypatch.setattr(registry, "_default", other)
    assert str(mc.Device()) == "metalcompute.Device(another)"
    assert "another" not in str(mc.Device(0))


@pytest.mark.parametrize("index", [99, 1 << 70])
def test_devices_that_there_are_not(index: int) -> None:
    refused("Cannot create device", lambda: mc.Device(index))


def test_a_machine_without_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_devices_of", lambda name: ())
    monkeypatch.setattr(registry, "_default", None)
    assert mc.get_devices() == ()
    refused("Cannot create device", lambda: mc.Device(0))
    refused("Cannot create device", mc.Device)
    with pytest.raises(mc.error) as caught:
        mc.Device()
    assert "pip install" in str(caught.value.__cause__)
    refused("Cannot create device", mc.init)


@pytest.mark.parametrize("index", ["0", 0.0, None])
def test_an_index_is_an_integer(index: Any) -> None:
    with pytest.raises(TypeError):
        mc.Device(index)


# Kernels.


@pytest.mark.parametrize(
    ("broken", "marked", "words"),
    [
        ("x[i] += y;", "y;", "use of undeclared identifier 'y'"),
        ("float* p = x; x[i] += 1;", "* p", "pointer type must have explicit address space qualifier"),
        ("double d = 1;", "double", "'double' is not supported in Metal"),
    ],
)
def test_errors_of_the_compiler_and_of_the_check(device: mc.Device, broken: str, marked: str, words: str) -> None:
    source = ADD_ONE.replace("x[i] += 1.0;", broken)
    line = source.splitlines()[2]
    with pytest.raises(mc.error) as caught:
        device.kernel(source)
    first, shown, mark = str(caught.value).splitlines()[:3]
    assert first.startswith(f"program_source:3:{line.index(marked) + 1}: error: {words}")
    assert (shown, mark) == (line, " " * line.index(marked) + "^")


def test_every_finding_is_reported(device: mc.Device) -> None:
    source = ADD_ONE.replace("x[i] += 1.0;", "\ndouble a = 1;\n double b = 2;")
    with pytest.raises(mc.error) as caught:
        device.kernel(source)
    places = [line.split(" ")[0] for line in str(caught.value).splitlines() if "error:" in line]
    assert places == ["program_source:4:1:", "program_source:5:2:"]


def test_errors_follow_line_directives(device: mc.Device) -> None:
    source = '#line 90 "mine.metal"\n' + ADD_ONE.replace("x[i] += 1.0", "\ny = 1")
    with pytest.raises(mc.error, match=r"^mine\.metal:93:1: error: use of undeclared identifier 'y'\ny = 1; }\n\^\n$"):
        device.kernel(source)


def test_the_language_is_metal_2_3(device: mc.Device) -> None:
    source = f"{HEADER}kernel void version(device int* x) {{ x[0] = __METAL_VERSION__; }}\n"
    x = device.buffer(4)
    device.kernel(source).function("version")(1, x)
    assert np.frombuffer(x, np.int32) == [230]
    with pytest.raises(mc.error, match="bfloat"):
        device.kernel(source.replace("int* x", "bfloat* x"))


def test_names_of_functions(device: mc.Device) -> None:
    kernel = device.kernel(ADD_ONE)
    assert str(kernel) == "metalcompute.Kernel"
    assert str(kernel.function("add_one")) == "metalcompute.Function"
    refused("Function not found", lambda: kernel.function("add_two"))
    refused("Function not found", lambda: kernel.function(""))


def test_an_empty_program_has_no_functions(device: mc.Device) -> None:
    refused("Function not found", lambda: device.kernel("").function("add_one"))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            "[[max_total_threads_per_threadgroup(16)]] kernel void f(device float* x) { x[0] = 1; }",
            "f: max_total_threads_per_threadgroup is 16; below 32 metalcompute divides by zero",
        ),
        (
            "kernel void f(device float* x, threadgroup float* t [[threadgroup(0)]]) { t[0] = 1; x[0] = t[0]; }",
            "f: metalcompute cannot set the length of the argument 't'",
        ),
        (
            "constant int n [[function_constant(0)]];\nkernel void f(device float* x) { x[0] = n; }",
            "f: the function constants n have no value",
        ),
    ],
)
def test_what_would_end_the_process_is_refused(device: mc.Device, source: str, words: str) -> None:
    others = "\nkernel void g(device float* x) { x[0] = 1; }\n"
    kernel = device.kernel(HEADER + source + others)
    with pytest.raises(mc.error) as caught:
        kernel.function("f")
    assert str(caught.value).startswith(words)
    kernel.function("g")(1, b"1234")


@pytest.mark.parametrize("value", [b"bytes", 5, None])
def test_names_and_programs_are_strings(device: mc.Device, value: Any) -> None:
    expected = f"argument 2 must be str, not {type(value).__name__}"
    with pytest.raises(TypeError, match=expected):
        device.kernel(value)
    with pytest.raises(TypeError, match=expected):
        device.kernel(ADD_ONE).function(value)
    with pytest.raises(ValueError, match="embedded null character"):
        device.kernel(ADD_ONE + "\0")


# Calls.


def test_arguments_of_a_call(device: mc.Device, add_one: Any) -> None:
    buffer = device.buffer(4)
    refused("Buffer not found", lambda: add_one())
    refused("Buffer not found", lambda: add_one(64))
    refused("Buffer not found", lambda: add_one(buffer))
    for count in ("64", b"64", None, buffer, [64]):
        refused("First argument should be an integer kernel count", lambda count=count: add_one(count, buffer))
    refused("Unsupported input format", lambda: add_one(64, None))
    refused("Unsupported input format", lambda: add_one(64, np.zeros((4, 4)).T))
    refused("Could not make buffer", lambda: add_one(64, b""))
    refused("Could not make buffer", lambda: add_one(64, 0))
    refused("Buffer not found", lambda: add_one(64, mc.Device().buffer(4)))
    refused(f"{1 << 32} threads are above the limit of {2**31 - 1}", lambda: add_one(1 << 32, buffer))
    assert not any(memoryview(buffer))


def test_a_dispatch_that_the_device_refuses(
    device: mc.Device, add_one: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(dispatches: Any, label: str) -> None:
        raise mg.DeviceError("too much threadgroup memory")

    monkeypatch.setattr(device._device, "submit", fails)
    with pytest.raises(mc.error, match="^Cannot create command encoder$") as caught:
        add_one(64, b"1234")
    assert str(caught.value.__cause__) == "too much threadgroup memory"


# Buffers.


@pytest.mark.parametrize(
    ("given", "contents"),
    [
        (5, bytes(5)),
        (5.9, bytes(5)),
        ("12", bytes(12)),
        (True, bytes(1)),
        (b"abc", b"abc"),
        (bytearray(b"abc"), b"abc"),
        (array("f", [1, 2]), np.array([1, 2], np.float32).tobytes()),
        (np.arange(6, dtype=np.int16).reshape(2, 3), np.arange(6, dtype=np.int16).tobytes()),
        (np.float32(3), np.float32(3).tobytes()),
        (np.int64(3), np.int64(3).tobytes()),
        (np.zeros((), [("a", "f4"), ("b", "u1")]), bytes(5)),
        (memoryview(b"abcd")[1:3], b"bc"),
    ],
)
def test_what_a_buffer_is_made_from(device: mc.Device, given: Any, contents: bytes) -> None:
    buffer = device.buffer(given)
    assert bytes(buffer) == contents
    assert str(buffer) == f"metalcompute.Buffer(length={len(contents)})"
    assert bytes(device.buffer(buffer)) == contents


@pytest.mark.parametrize("given", [None, "twelve", [1, 2], float("inf"), np.arange(9).reshape(3, 3).T, 1j])
def test_what_a_buffer_cannot_be_made_from(device: mc.Device, given: Any) -> None:
    refused("Unsupported input format", lambda: device.buffer(given))


@pytest.mark.parametrize("given", [0, -1, b"", np.zeros(0), 1 << 60, 1 << 70, -(1 << 70)])
def test_buffers_that_cannot_be(device: mc.Device, given: Any) -> None:
    refused("Could not make buffer", lambda: device.buffer(given))


def test_the_buffer_protocol(device: mc.Device) -> None:
    buffer = device.buffer(array("f", [1, 2, 3]))
    view = memoryview(buffer)
    assert (view.format, view.itemsize, view.shape, view.readonly, view.contiguous) == ("B", 1, (12,), False, True)
    view.cast("f")[1] = 7
    assert np.frombuffer(buffer, np.float32).tolist() == [1, 7, 3]
    assert np.asarray(buffer).tolist() == view.tolist()
    assert type(np.asarray(buffer)) is np.ndarray
    np.frombuffer(buffer, np.float32)[2] = 9
    assert list(view.cast("f", (3, 1)).tolist()) == [[1], [7], [9]]


def test_a_view_keeps_the_memory(device: mc.Device) -> None:
    view = memoryview(device.buffer(b"abcd"))
    gc.collect()
    others = [device.buffer(b"wxyz") for _ in range(8)]
    assert bytes(view) == b"abcd"
    del others


def test_new_buffers_are_zero(device: mc.Device) -> None:
    for _ in range(3):
        buffer = device.buffer(100_000)
        assert not any(memoryview(buffer))
        memoryview(buffer)[:] = b"x" * 100_000


def test_buffers_have_the_buffer_protocol_and_nothing_else(device: mc.Device) -> None:
    buffer, other = device.buffer(b"abc"), device.buffer(b"abc")
    for use in (
        len, iter, int, float, copy.copy, copy.deepcopy, pickle.dumps,
        lambda b: b[0], lambda b: b + 1, lambda b: 1 in b, lambda b: b.__setitem__(0, 1),
    ):  # fmt: skip
        with pytest.raises(TypeError):
            use(buffer)
    for name in ("shape", "dtype", "sum", "tobytes"):
        assert not hasattr(buffer, name)
    assert buffer == buffer != other
    assert {buffer: 1, other: 2}[buffer] == 1
    assert bool(device.buffer(1)) is True
    assert repr(buffer) == f"<metalcompute.Buffer object at {id(buffer):#x}>"


def test_buffers_are_freed(device: mc.Device, add_one: Any) -> None:
    buffer = device.buffer(1 << 20)
    gone = weakref.ref(buffer)
    handle = add_one(16, buffer)
    del buffer, handle
    gc.collect()
    assert gone() is None
