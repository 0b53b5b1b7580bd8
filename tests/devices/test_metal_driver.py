"""The Metal driver from end to end over ``mpsgrad.metalcompute``, which takes the place of ``metalcompute``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest
from by_turns import by_turns

import mpsgrad as mg
import mpsgrad.metalcompute
from mpsgrad.devices import Dispatch, available_devices, best_device, cuda, find_device, metal, opencl, unavailable
from mpsgrad.precompile import compile_library
from mpsgrad.shader import families, shader_directory
from mpsgrad.testing import assert_within, error_bound

registry: Any = importlib.import_module("mpsgrad.devices")

ENGINE = opencl if opencl.devices() else cuda
"""The driver that runs the kernels."""
ENGINE_NAME = ENGINE.__name__.rpartition(".")[2]

SCALE = """#include <metal_stdlib>
using namespace metal;
[[max_total_threads_per_threadgroup(64)]]
kernel void scale(device const float* source [[buffer(0)]], device float* destination [[buffer(1)]],
                  constant float& factor [[buffer(2)]], uint i [[thread_position_in_grid]])
{
    destination[i] = factor * source[i];
}
"""


def machine(*names: str) -> list[mg.Device]:
    """The engine's devices under the names of others."""
    found = []
    for name in names:
        device = ENGINE.devices()[0]
        device.name = name
        found.append(device)
    return found


@contextmanager
def metal_installed(module: Any = mpsgrad.metalcompute, names: Sequence[str] = ("Apple M2",)) -> Iterator[None]:
    """``metalcompute`` is ``module`` inside the block, on a machine with these devices.

    The registry asks the Metal driver anew; its other devices stay the objects that they are, since kernels compiled
    for them belong to them.
    """
    with pytest.MonkeyPatch.context() as patch:
        known = registry._devices_of
        devices = machine(*names)
        patch.setitem(sys.modules, "metalcompute", module)
        patch.setattr(registry, "available_devices", lambda drivers: devices)
        patch.setattr(
            registry, "_devices_of", cache(lambda name: tuple(metal.devices()) if name == "metal" else known(name))
        )
        patch.delenv("MPSGRAD_DEVICE", raising=False)
        yield


@pytest.fixture
def metalcompute() -> Iterator[Any]:
    with metal_installed():
        yield mpsgrad.metalcompute


@pytest.fixture
def gpu(metalcompute: Any) -> mg.Device:
    return find_device("metal")


@pytest.fixture
def compiled(metalcompute: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each source that ``metalcompute`` compiles."""
    sources: list[str] = []
    kernel = metalcompute.Device.kernel

    def recorded(device: Any, source: str) -> Any:
        sources.append(source)
        return kernel(device, source)

    monkeypatch.setattr(metalcompute.Device, "kernel", recorded)
    return sources


def floats(device: mg.Device, values: Any) -> Any:
    array = np.asarray(values, np.float32)
    buffer = device.allocate(array.nbytes)
    buffer.write(array)
    return buffer


# Which devices there are.


def test_the_registry_finds_the_gpu_first(metalcompute: Any) -> None:
    device = available_devices()[0]
    assert device is find_device("metal") is find_device("metal:0")
    assert best_device() is device
    assert (device.identifier, device.name, device.driver) == ("metal:0", "Apple M2", "metalcompute")
    assert (device.family, device.unified_memory, device.simd_width) == ("apple", True, 32)
    assert device.memory_bytes == find_device(ENGINE_NAME).memory_bytes
    assert "gpu_time" not in device.features
    assert "metal" not in unavailable()
    assert metal.unavailable_reason() is None


def test_nothing_of_it_is_left_behind() -> None:
    before = available_devices()
    with metal_installed():
        assert len(available_devices()) == len(before) + 1
    assert available_devices() == before
    assert "metalcompute" not in sys.modules
    assert "metal" in unavailable()


def test_without_the_package_the_reason_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metal.sys, "platform", "darwin")
    with metal_installed(module=None):
        assert metal.devices() == []
        assert metal.refused() == []
        assert metal.unavailable_reason() == (
            "the Python package metalcompute is not installed (pip install metalcompute)"
        )
        monkeypatch.setattr(metal.sys, "platform", "linux")
        with pytest.raises(mg.DeviceNotFoundError, match=r"'metal'.*only on macOS.*pip install metalcompute"):
            find_device("metal")


def test_other_gpus_are_refused_with_the_reason() -> None:
    reason = "AMD Radeon Pro 5500M: is no Apple GPU, so its simdgroups need not have 32 threads"
    with metal_installed(names=["AMD Radeon Pro 5500M", "Apple M4"]):
        found = metal.devices()
        assert [(device.identifier, device.name) for device in found] == [("metal:0", "Apple M4")]
        assert str(found[0]._handle) == "metalcompute.Device(Apple M4)"
        assert metal.refused() == [reason]
    with metal_installed(names=["AMD Radeon Pro 5500M"]):
        assert metal.devices() == []
        assert metal.unavailable_reason() == reason


def test_a_machine_without_metal_devices(metalcompute: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with metal_installed(names=[]):
        assert metal.devices() == []
        assert "macOS lists no Metal device" in str(metal.unavailable_reason())

    def fails() -> None:
        raise metalcompute.error("Cannot create device")

    monkeypatch.setattr(metalcompute, "get_devices", fails)
    assert metal.devices() == []
    assert metal.unavailable_reason() == "Metal devices cannot be listed: Cannot create device"


def test_a_device_that_cannot_be_opened_is_left_out(metalcompute: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(position: int) -> None:
        raise metalcompute.error("Cannot create command queue")

    monkeypatch.setattr(metalcompute, "Device", fails)
    assert metal.devices() == []
    assert metal.refused() == ["Apple M2: Cannot create command queue"]


# Kernels.


@pytest.mark.parametrize(
    ("forward", "backward"), [("SoftMax", "SoftMaxGradient"), ("LogSoftMax", "LogSoftMaxGradient")]
)
def test_kernels_give_what_the_device_below_gives(gpu: mg.Device, forward: str, backward: str) -> None:
    """Within rounding: ``metalcompute`` gets the rendering for Apple GPUs and compiles with fast math."""
    below = find_device(ENGINE_NAME)
    generator = np.random.default_rng(7)
    values, gradients = (generator.standard_normal((2, 3, 5, 7, 37)) * [[[[[4]]]], [[[[1]]]]]).astype(np.float32)
    results = []
    for device in (gpu, below):
        with mg.CommandBuffer(device) as commands:
            image = mg.Image.from_array(values, device)
            result, state = getattr(mg, forward)(device=device).encode(commands, image, return_state=True)
            gradient = getattr(mg, backward)(device=device).encode(
                commands, mg.Image.from_array(gradients, device), result, state
            )
        assert commands.status is mg.CommandBufferStatus.COMPLETED
        assert (commands.gpu_time is None) == (device is gpu)
        results.append((np.array(result), np.array(gradient)))
    assert np.any(results[0][1])
    for ours, theirs in zip(*results, strict=True):
        assert_within(ours, theirs, error_bound(np.float32, values.shape[-1], np.abs(theirs).max(), theirs))


# One for each template: the arguments have the same order in all. That metalcompute can pass them is a rule of the
# lint, which sees every shader, so most of them are compiled nightly.
FOR_METAL = {
    family.file: family
    for family in families().values()
    if "apple" in family.device_families and (shader_directory() / family.file).is_file()
}


@pytest.mark.parametrize("file", by_turns(FOR_METAL, of=4))
def test_every_shader_can_be_dispatched(
    gpu: mg.Device, metalcompute: Any, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    given: list[str] = []
    monkeypatch.setattr(metalcompute.Device, "kernel", lambda device, source: given.append(source))
    family = FOR_METAL[file]
    gpu.compile(family.source(gpu, family.dtypes[-1]), name=f"shaders/{file}")
    assert len(given) == 1


def test_importing_compiles_nothing(gpu: mg.Device, compiled: list[str]) -> None:
    assert gpu.is_compiled(SCALE, name="scale.metal")
    compile_library(gpu)
    assert compiled == []


def test_metal_gets_no_line_directives(gpu: mg.Device, compiled: list[str]) -> None:
    rendering = families()["fill"].render("float", "apple")
    source = rendering.with_line_directives()
    assert "#line" in source
    gpu.compile(source, name="shaders/fill.metal.j2")
    assert compiled == [rendering.source]
    assert gpu.translate(source, name="shaders/fill.metal.j2") == rendering.source


@pytest.mark.parametrize(
    ("directive", "place"),
    [
        ("", ("user.metal", 7)),
        ('#line 40 "shaders/template.metal.j2"\n', ("shaders/template.metal.j2", 40)),
        ('  # 40 "shaders/lib/macros.metal.j2"\n', ("shaders/lib/macros.metal.j2", 40)),
        ("#line 40\n", ("user.metal", 40)),
        ('#line 3 "shaders/template.metal.j2"\n#line 40\n', ("shaders/template.metal.j2", 40)),
    ],
)
def test_compile_errors_point_at_the_template(gpu: mg.Device, directive: str, place: tuple[str, int]) -> None:
    statement = "    destination[i] = factr * source[i];"
    source = SCALE.replace("    destination[i] = factor * source[i];", directive + statement)
    with pytest.raises(mg.ShaderError, match="factr") as caught:
        gpu.compile(source, name="user.metal")
    error = caught.value
    assert (error.file, error.line, error.column) == (*place, statement.index("factr") + 1)
    assert error.source_line == statement
    assert isinstance(error.__cause__, mpsgrad.metalcompute.error)


def test_errors_without_a_place_and_in_other_files(
    gpu: mg.Device, metalcompute: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(words: str) -> mg.ShaderError:
        def kernel(self: Any, source: str) -> None:
            raise metalcompute.error(words)

        monkeypatch.setattr(metalcompute.Device, "kernel", kernel)
        with pytest.raises(mg.ShaderError) as caught:
            gpu.compile(SCALE, name="user.metal")
        return caught.value

    assert str(fails("Compiler service is gone")) == "user.metal: the Metal compiler failed: Compiler service is gone"
    header = "/System/Library/metal_math:812:9: error: no matching function\n"
    assert str(fails(f"Compilation failed: \n\n{header}")) == "/System/Library/metal_math:812:9: no matching function"
    ours = "program_source:7:5: error: read-only variable is not assignable\n"
    assert str(fails(f"{header}{ours}")).startswith("user.metal:7:5: read-only variable is not assignable\n    ")


@pytest.mark.parametrize(
    ("attribute", "words"),
    [
        ("", r"needs \[\[max_total_threads_per_threadgroup\(N\)\]\]"),
        ("[[max_total_threads_per_threadgroup(1)]]", r"\(1\), but .* must be a multiple of 32 from 32 to 1024\n"),
        ("[[max_total_threads_per_threadgroup(16)]]", r"\(16\), but on Metal"),
        ("[[max_total_threads_per_threadgroup(48)]]", r"\(48\), but on Metal"),
        ("[[max_total_threads_per_threadgroup(1000)]]", r"\(1000\), but on Metal"),
        ("[[max_total_threads_per_threadgroup(1056)]]", "1056"),
    ],
)
def test_threadgroup_sizes_that_metalcompute_would_crash_on(gpu: mg.Device, attribute: str, words: str) -> None:
    source = SCALE.replace("[[max_total_threads_per_threadgroup(64)]]", attribute)
    with pytest.raises(mg.ShaderError, match=words) as caught:
        gpu.compile(source, name="user.metal")
    assert caught.value.file == "user.metal"
    if "1056" not in attribute:
        assert "'scale'" in caught.value.message
        assert caught.value.line == 4
        assert caught.value.source_line == source.splitlines()[3]


def test_kernels_of_one_template_line_are_told_apart(gpu: mg.Device) -> None:
    parts = [
        f'#line 3 "loop.metal.j2"\n[[max_total_threads_per_threadgroup({size})]]\n'
        f"kernel void scale_{size}(device float* a) {{ a[0] = 1; }}\n"
        for size in (64, 80)
    ]
    with pytest.raises(mg.ShaderError, match="'scale_80'") as caught:
        gpu.compile("".join(parts), name="user.metal")
    assert (caught.value.file, caught.value.line) == ("loop.metal.j2", 4)
    assert caught.value.source_line == "kernel void scale_80(device float* a) { a[0] = 1; }"


@pytest.mark.parametrize("size", [32, 96, 1024])
def test_threadgroup_sizes_that_are_accepted(gpu: mg.Device, size: int) -> None:
    function = gpu.compile(SCALE.replace("(64)", f"({size})"), name="user.metal").function("scale")
    assert function.threadgroup_size == size


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ("device float* a [[buffer(0)]], device float* b [[buffer(2)]]", "has the buffer indices 0, 2"),
        ("device float* a [[buffer(1)]]", "has the buffer indices 1, but"),
        ("device float* a [[buffer(0)]], threadgroup float* b [[threadgroup(0)]]", "threadgroup argument 'b'"),
        ("uint i [[thread_position_in_grid]]", "takes no buffer"),
    ],
)
def test_arguments_that_metalcompute_cannot_pass(gpu: mg.Device, parameters: str, words: str) -> None:
    source = f"[[max_total_threads_per_threadgroup(64)]] kernel void odd({parameters}) {{}}\n"
    with pytest.raises(mg.ShaderError, match=f"'odd'.*{words}"):
        gpu.compile(source, name="user.metal")


def test_functions_are_made_once_and_unknown_ones_are_named(gpu: mg.Device) -> None:
    library = gpu.compile(SCALE, name="user.metal")
    assert library.function("scale") is library.function("scale")
    with pytest.raises(KeyError, match=r"'skale'; there are scale"):
        library.function("skale")


# Buffers.


def test_buffers_share_their_memory(gpu: mg.Device) -> None:
    buffer = gpu.allocate(np.int64(12))
    assert buffer.memory is not None
    assert buffer.memory.shape == (12,)
    buffer.write(np.arange(3, dtype=np.float32))
    buffer.memory.view(np.float32)[1] = 7
    copy = buffer.read(4, 8)
    buffer.write(b"\xff\xff", 10)
    np.testing.assert_array_equal(copy.view(np.float32), [7, 2])
    assert bytes(buffer.memory[8:]) == b"\0\0\xff\xff"


def test_a_view_outlives_its_buffer(gpu: mg.Device) -> None:
    view = floats(gpu, [1, 2, 3]).memory
    np.testing.assert_array_equal(view.view(np.float32), [1, 2, 3])


def test_empty_and_impossible_buffers(gpu: mg.Device) -> None:
    empty = gpu.allocate(0)
    assert (empty.nbytes, empty.memory.size) == (0, 0)
    for nbytes in (1 << 60, 1 << 70):
        with pytest.raises(
            mg.DeviceError, match=f"metal:0: cannot allocate {nbytes} bytes; the device has {gpu.memory_bytes} in all"
        ):
            gpu.allocate(nbytes)


# Submissions.


def test_dispatches_run_in_order_and_only_waiting_completes_them(gpu: mg.Device) -> None:
    function = gpu.compile(SCALE, name="user.metal").function("scale")
    values = np.arange(192, dtype=np.float32)
    first, second, third = floats(gpu, values), floats(gpu, 0 * values), floats(gpu, 0 * values)
    submission = gpu.submit(
        [
            Dispatch(function, 3, (first, second, gpu.constant_buffer(np.float32(2).tobytes()))),
            Dispatch(function, 3, (second, third, gpu.constant_buffer(np.float32(5).tobytes()))),
        ]
    )
    assert not submission.is_complete
    submission.wait()
    assert submission.is_complete
    assert submission.gpu_time is None
    np.testing.assert_array_equal(third.memory.view(np.float32), 10 * values)
    submission.wait()
    nothing = gpu.submit([])
    nothing.wait()
    assert nothing.is_complete


def test_a_wrong_number_of_buffers_is_refused_before_anything_runs(gpu: mg.Device) -> None:
    function = gpu.compile(SCALE, name="user.metal").function("scale")
    ones, zeros, two = floats(gpu, np.ones(64)), floats(gpu, np.zeros(64)), floats(gpu, [2])
    for given in ((ones, zeros), (ones, zeros, two, two)):
        dispatches = [Dispatch(function, 1, (ones, zeros, two)), Dispatch(function, 1, given)]
        with pytest.raises(mg.DeviceError, match=f"scale: takes 3 buffers but was given {len(given)}"):
            gpu.submit(dispatches)
    assert not zeros.memory.any()


def test_a_refused_dispatch_waits_for_those_before_it(
    gpu: mg.Device, metalcompute: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = gpu.compile(SCALE, name="user.metal").function("scale")
    large = gpu.compile(SCALE.replace("(64)", "(1024)"), name="user.metal").function("scale")
    device = gpu._handle._device  # type: ignore[attr-defined]
    submit = device.submit

    def refuses_large_threadgroups(dispatches: Sequence[Dispatch], label: str) -> Any:
        if dispatches[0].function.threadgroup_size > 896:
            raise mg.DeviceError("out of registers")
        return submit(dispatches, label)

    monkeypatch.setattr(device, "submit", refuses_large_threadgroups)
    ones, zeros, two = floats(gpu, np.ones(64)), floats(gpu, np.zeros(64)), floats(gpu, [2])
    dispatches = [Dispatch(small, 1, (ones, zeros, two)), Dispatch(large, 1, (ones, zeros, two))]
    with pytest.raises(mg.DeviceError, match=r"scale: the device refused the dispatch: .*pipeline.*\(1024\)"):
        gpu.submit(dispatches)
    np.testing.assert_array_equal(zeros.memory.view(np.float32), np.full(64, 2))
