"""The CUDA driver: on a GPU where there is one, else over a stand-in for NVIDIA's driver, run by the OpenCL engine."""

from __future__ import annotations

import gc
import importlib.util
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad import devices
from mpsgrad.devices import Dispatch, cuda, cuda_api, cuda_compiler, cuda_memory, opencl
from mpsgrad.devices.contract import CompileOptions
from mpsgrad.devices.cuda_compiler import OWN_MATH, compile_cubin, kernel_usages
from mpsgrad.msl import translate
from mpsgrad.shader import families

needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("cuda.core") is None if importlib.util.find_spec("cuda") else True,
    reason="cuda-core is not installed (pip install 'mpsgrad[cuda]')",
)
HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
SCALE = HEAD + """
[[max_total_threads_per_threadgroup(64)]]
kernel void scale(device float* x, constant float& by, uint i [[thread_position_in_grid]]) { x[i] *= by; }
[[max_total_threads_per_threadgroup(64)]]
kernel void add(device float* x, device const float* y, uint i [[thread_position_in_grid]]) { x[i] += y[i]; }
"""


def has_gpu() -> bool:
    return bool(devices._devices_of("cuda"))


@pytest.fixture
def stand_in() -> Iterator[Any]:
    """The stand-in, for what a GPU cannot be made to do."""
    if not devices._devices_of("opencl"):
        pytest.skip("the stand-in runs kernels on the OpenCL device, and there is none")
    from cuda_stand_in import installed

    with installed() as module:
        yield module


@pytest.fixture
def gpu(request: pytest.FixtureRequest) -> Any:
    if not has_gpu():
        request.getfixturevalue("stand_in")
    return mg.find_device("cuda")


def floats(device: Any, values: Any) -> Any:
    array = np.asarray(values, np.float32)
    buffer = device.allocate(array.nbytes)
    buffer.write(array)
    return buffer


def read(buffer: Any) -> np.ndarray:
    return buffer.read(0, buffer.nbytes).view(np.float32)


def function(device: Any, name: str = "scale", source: str = SCALE) -> Any:
    return device.compile(source, name="scale.metal").function(name)


def constant(device: Any, value: float) -> Any:
    return device.constant_buffer(np.float32(value).tobytes())


# What there is, and what is missing.


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert cuda.unavailable_reason() == "the Python package cuda-core is not installed (pip install 'mpsgrad[cuda]')"
    assert cuda.devices() == [] and cuda.refused() == []


def test_without_nvidias_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(cuda_api, "_LIBRARY", "libcuda-of-no-machine.so.1")
    expected = "NVIDIA's driver is not installed: libcuda-of-no-machine.so.1 was not found"
    assert cuda.unavailable_reason() == expected
    assert cuda.devices() == [] and cuda.refused() == []


@needs_compiler
def test_without_a_gpu(stand_in: Any) -> None:
    stand_in.device_capabilities = []
    assert cuda.unavailable_reason() == "NVIDIA's driver lists no GPU"
    assert cuda.devices() == [] and cuda.refused() == []


@needs_compiler
def test_a_driver_that_does_not_work(stand_in: Any) -> None:
    stand_in.fault = stand_in.CUresult.CUDA_ERROR_INVALID_HANDLE
    assert cuda.unavailable_reason() == "NVIDIA's driver does not work: CUDA_ERROR_INVALID_HANDLE, invalid handle"
    assert cuda.devices() == [] and cuda.refused() == []


@needs_compiler
def test_a_gpu_that_is_too_old(stand_in: Any) -> None:
    stand_in.device_capabilities = [(6, 1), (9, 0)]
    assert [device.identifier for device in cuda.devices()] == ["cuda:0"]
    assert cuda.refused() == ["Stand-in GPU: has compute capability 6.1; 7.5 or later is needed"]
    stand_in.device_capabilities = [(6, 1)]
    assert cuda.unavailable_reason() == cuda.refused()[0]


@needs_compiler
def test_a_driver_that_is_older_than_the_compiler(stand_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "version", lambda: "13.2")
    assert cuda.unavailable_reason() is None
    stand_in.driver_version = 12080
    assert cuda.unavailable_reason() == (
        "NVIDIA's driver supports CUDA 12.8 but the run-time compiler is of CUDA 13.2: install a newer driver, or the "
        "compiler for this one (pip install 'cuda-core[cu12]')"
    )
    assert cuda.devices() == []


@needs_compiler
def test_without_a_compiler(stand_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> str:
        raise mg.DeviceError("NVIDIA's run-time compiler cannot be loaded")

    monkeypatch.setattr(cuda, "version", fails)
    assert cuda.unavailable_reason() == "NVIDIA's run-time compiler cannot be loaded"
    assert cuda.devices() == []


@needs_compiler
def test_a_gpu_that_is_newer_than_the_compiler(stand_in: Any) -> None:
    stand_in.device_capabilities = [(99, 0)]
    with pytest.raises(mg.DeviceError, match=r"compute capability 99.0; NVIDIA's run-time compiler \d+.\d+ compiles"):
        function(cuda.devices()[0])


@needs_compiler
def test_several_gpus_are_several_devices(stand_in: Any) -> None:
    stand_in.device_capabilities = [(9, 0), (9, 0), (8, 9)]
    devices._devices_of.cache_clear()
    found = cuda.devices()
    assert [device.identifier for device in found] == ["cuda:0", "cuda:1", "cuda:2"]
    assert mg.find_device("cuda:2").architecture == "sm_89"  # type: ignore[attr-defined]
    scale = function(found[0])
    with pytest.raises(mg.DeviceError, match="scale: was compiled for cuda:0 but a buffer is on cuda:1"):
        found[0].submit([Dispatch(scale, 1, (floats(found[1], [1]), constant(found[0], 2)))])


@needs_compiler
def test_the_default_device_is_a_gpu_where_there_is_one(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MPSGRAD_DEVICE", raising=False)
    monkeypatch.setattr(devices, "_default", None)
    if not devices._devices_of("metal"):
        assert mg.default_device() is gpu
    assert (gpu.family, gpu.unified_memory, gpu.simd_width, gpu.driver) == ("nvidia", False, 32, "CUDA")
    assert "compute capability" in gpu.driver_version and gpu.compute_units > 0 and gpu.memory_bytes > 0


# Launches that overlap.


def test_kernels_that_may_overlap_begin_by_waiting() -> None:
    for launch, begins in (("whole", True), ("box", False)):
        text = translate(SCALE, "cuda", filename="scale.metal", launch=launch).source
        bodies = [part.partition("{")[2] for part in text.partition("#line 1 ")[2].split("__global__")[1:]]
        starts = [body.startswith(" begin_launch_mtl();") for body in bodies if "sizes_mtl[0] =" not in body]
        assert starts == [begins] * 2


@needs_compiler
@pytest.mark.parametrize(("capability", "overlaps"), [((9, 0), True), ((8, 9), False)])
def test_launches_overlap_where_the_gpu_can(stand_in: Any, capability: tuple[int, int], overlaps: bool) -> None:
    stand_in.device_capabilities = [capability]
    devices._devices_of.cache_clear()
    (gpu,) = cuda.devices()
    x = floats(gpu, [1, 2])
    work = [Dispatch(function(gpu), 1, (floats(gpu, np.ones(64)), constant(gpu, 3)))] * 2
    gpu.submit(work).wait()
    assert (stand_in.calls["cuLaunchKernelEx"], stand_in.calls["cuLaunchKernel"]) == ((2, 0) if overlaps else (0, 2))
    library = gpu.compile(SCALE, name="scale.metal", options=CompileOptions())
    before = stand_in.calls["cuLaunchKernelEx"]
    gpu.submit([Dispatch(library.function("scale"), (1, 1, 1), (x, constant(gpu, 3)), (2, 1, 1), (2, 1, 1))]).wait()
    assert stand_in.calls["cuLaunchKernelEx"] == before, "nothing says that the user's kernels wait"


@needs_compiler
def test_each_kernel_sees_what_those_before_it_wrote(gpu: Any) -> None:
    x, y = floats(gpu, np.zeros(64 * 500)), floats(gpu, np.ones(64 * 500))
    add = function(gpu, "add")
    work = [Dispatch(add, 500, pair) for pair in ((x, y), (y, x)) * 15]
    recording = gpu.record(work)
    gpu.submit(work).wait()
    np.testing.assert_array_equal(read(x), 832040)
    recording.submit().wait()
    # Fibonacci's numbers, in which float32 rounds from the 36th on: in the order of the kernels.
    expected = [np.float32(832040), np.float32(1346269)]
    for step in range(30):
        expected[step % 2] += expected[1 - step % 2]
    np.testing.assert_array_equal([read(x)[0], read(y)[0]], expected)
    assert np.ptp(read(x)) == np.ptp(read(y)) == 0


# Memory.


@needs_compiler
@pytest.mark.parametrize("nbytes", [1, 4, 1000, (64 << 10) + 1, (4 << 20) - 3, (20 << 20) + 5])
def test_what_is_written_is_read_again(gpu: Any, nbytes: int) -> None:
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    buffer = gpu.allocate(nbytes)
    given = data.copy()
    buffer.write(given)
    given[:] = 0
    np.testing.assert_array_equal(buffer.read(0, nbytes), data)
    buffer.write(b"\1", nbytes - 1)
    assert buffer.read(nbytes - 1, 1).tolist() == [1]
    np.testing.assert_array_equal(buffer.read(0, nbytes - 1), data[:-1])
    assert buffer.memory is None


@needs_compiler
def test_what_lies_outside_a_buffer_is_refused(gpu: Any) -> None:
    buffer = gpu.allocate(16)
    for call in (
        lambda: buffer.write(bytes(8), 9),
        lambda: buffer.write(bytes(8), -1),
        lambda: buffer.read(0, 17),
        lambda: buffer.read(-1, 4),
    ):
        with pytest.raises(mg.GeometryError, match="in a buffer of 16"):
            call()
    assert gpu.allocate(0).read(0, 0).size == 0


@needs_compiler
def test_freed_memory_is_used_again(gpu: Any) -> None:
    # What tests before it left in cycles would be given back last, and used first.
    gc.collect()
    for nbytes in (100, 5 << 20):
        first = gpu.allocate(nbytes)
        address = first.address
        del first
        assert gpu.allocate(nbytes).address == address


@needs_compiler
def test_parts_of_a_buffer_keep_its_memory(gpu: Any) -> None:
    alignment = gpu.part_alignment
    whole = gpu.allocate(3 * alignment)
    parts = [whole.part(k * alignment, alignment) for k in range(3)]
    for number, part in enumerate(parts):
        part.write(np.full(alignment, number, np.uint8))
    np.testing.assert_array_equal(whole.read(0, whole.nbytes), np.repeat(np.arange(3, dtype=np.uint8), alignment))
    with pytest.raises(mg.GeometryError, match="cannot be divided in a buffer of"):
        whole.part(alignment, 3 * alignment)
    address = whole.address
    del whole
    gc.collect()
    assert gpu.allocate(3 * alignment).address != address
    assert [part.read(0, 1)[0] for part in parts] == [0, 1, 2]


def test_buffers_do_not_overlap(gpu: Any) -> None:
    sizes = [1, 511, 512, 513, 4096, 100_000, 1 << 20, (1 << 20) + 1, 3 << 20] * 4
    buffers = [gpu.allocate(nbytes) for nbytes in sizes]
    places = sorted((buffer.address, buffer.nbytes) for buffer in buffers)
    for (start, nbytes), (following, _) in zip(places, places[1:], strict=False):
        assert start + nbytes <= following and start % 256 == 0


@needs_compiler
def test_too_much_memory_says_how_much_was_asked_and_is_free(gpu: Any) -> None:
    with pytest.raises(mg.DeviceError, match=r"cuda:0: cannot allocate \d+ bytes; \d+ of the device's \d+ bytes are f"):
        gpu.allocate(1 << 60)
    with pytest.raises(mg.DeviceError, match=r"cannot allocate 36893488147419103232 bytes"):
        gpu.allocate(1 << 65)
    assert read(floats(gpu, [1, 2])).tolist() == [1, 2]


@needs_compiler
def test_unused_memory_is_given_up_for_another_size(stand_in: Any) -> None:
    stand_in.memory_bytes = 100 << 20
    device = cuda.devices()[0]
    first = device.allocate(60 << 20)
    with pytest.raises(mg.DeviceError, match=f"cannot allocate {70 << 20} bytes; {40 << 20} of the device's"):
        device.allocate(70 << 20)
    del first
    assert device.allocate(70 << 20).nbytes == 70 << 20


@needs_compiler
def test_an_encode_allocates_nothing_in_steady_state(stand_in: Any) -> None:
    device = mg.find_device("cuda")
    source = mg.Image.from_array(np.ones((2, 16, 16, 32), np.float32), device)
    pool = mg.PoolingMax(kernel_width=2, kernel_height=2, device=device)
    gradient = mg.PoolingMaxGradient(kernel_width=2, kernel_height=2, device=device)

    def step() -> None:
        with mg.CommandBuffer(device) as commands:
            result, state = pool.encode(commands, source, return_state=True)
            gradient.encode(commands, result, source, state)

    for _ in range(3):
        step()
    before = stand_in.calls.copy()
    for _ in range(10):
        step()
    new = stand_in.calls - before
    assert not [name for name in new if "Alloc" in name or "Create" in name or "Memcpy" in name]
    assert stand_in.contexts == []


@needs_compiler
@pytest.mark.parametrize(("stream", "waiting"), [(None, [1]), (0, [1]), (1, [1]), (2, [2]), (-1, [])])
def test_another_librarys_stream_waits_for_an_image(stand_in: Any, stream: int | None, waiting: list[int]) -> None:
    device = mg.find_device("cuda")
    source = mg.Image.from_array(np.ones((1, 2, 2, 4), np.float32), device)
    commands = mg.CommandBuffer(device)
    result = mg.NeuronReLU(device=device).encode(commands, source)
    commands.commit()
    result.__dlpack__(stream=stream)
    assert [each.handle for each in stand_in.streams if each.handle in (1, 2) and each.queue] == waiting
    commands.wait_until_completed()


class Lender:
    """An array in the memory of an image, and what contexts were the thread's when it was lent."""

    def __init__(self, image: mg.Image, stand_in: Any) -> None:
        self._image = image
        self._stand_in = stand_in
        self.contexts: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._image.__dlpack_device__()

    def __dlpack__(self, stream: int) -> Any:
        self.contexts = list(self._stand_in.contexts)
        return self._image.__dlpack__(stream=stream)


@needs_compiler
def test_a_library_that_lends_only_what_is_on_the_current_gpu(stand_in: Any) -> None:
    """As PyTorch does: its current GPU need not be the one that an array is on."""
    stand_in.device_capabilities = [(9, 0), (9, 0)]
    devices._devices_of.cache_clear()
    device = mg.available_devices(["cuda"])[1]
    lender = Lender(mg.Image.from_array(np.ones((1, 2, 2, 4), np.float32), device), stand_in)
    with device.active:  # type: ignore[attr-defined]
        (context,) = stand_in.contexts
    assert mg.Image.from_dlpack(lender).device is device
    assert lender.contexts == [context] and stand_in.contexts == []


def test_lent_memory_goes_when_names_of_modules_are_gone(stand_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they may be when the interpreter ends."""
    buffer, errors = floats(mg.find_device("cuda"), [1]), []
    buffer.lend(1)
    monkeypatch.setattr(cuda_memory, "sys", None)
    monkeypatch.setattr(sys, "unraisablehook", errors.append)
    del buffer
    gc.collect()
    assert errors == []


# Memory that the host sees.


def shared_floats(device: Any, count: int) -> tuple[Any, np.ndarray]:
    buffer = device.allocate_shared(4 * count)
    return buffer, buffer.memory.view(np.float32)


@pytest.fixture(params=["managed", "pinned"])
def sharing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A GPU whose shared memory is of either kind."""
    gpu = cuda.devices()[0] if has_gpu() else request.getfixturevalue("stand_in") and cuda.devices()[0]
    monkeypatch.setattr(type(gpu._shared_pool), "_is_managed", request.param == "managed")
    return gpu


@needs_compiler
def test_the_host_sees_shared_memory(sharing: Any) -> None:
    buffer, values = shared_floats(sharing, 64)
    values[:] = np.arange(64)
    buffer.write(np.float32(7), 4)
    sharing.submit([Dispatch(function(sharing), 1, (buffer, constant(sharing, 3)))]).wait()
    expected = 3.0 * np.arange(64)
    expected[1] = 21
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(read(buffer), expected)
    assert sharing.allocate(16).memory is None
    with pytest.raises(mg.GeometryError, match="in a buffer of 256"):
        buffer.write(bytes(8), 250)


@needs_compiler
def test_shared_memory_is_kept_while_it_is_used(sharing: Any) -> None:
    buffer, values = shared_floats(sharing, 1 << 20)
    address = buffer.address
    scale, by = function(sharing), constant(sharing, 2)
    values[:] = 1
    submission = sharing.submit([Dispatch(scale, 1 << 14, (buffer, by))])
    del buffer, values
    gc.collect()
    other, values = shared_floats(sharing, 1 << 20)
    assert other.address != address, "the kernel may still run"
    submission.wait()
    del submission, other
    gc.collect()
    third, _ = shared_floats(sharing, 1 << 20)
    assert third.address == address
    values[:] = 5
    sharing.submit([Dispatch(scale, 1 << 14, (third, by))]).wait()
    assert (values == 5).all(), "an array over memory keeps it"


@needs_compiler
def test_shared_memory_is_managed_where_both_sides_may_use_it_at_once(stand_in: Any) -> None:
    for access, allocates in ((1, "cuMemAllocManaged"), (0, "cuMemHostAlloc")):
        stand_in.concurrent_managed_access = access
        stand_in.calls.clear()
        cuda.devices()[0].allocate_shared(4)
        assert {name for name in stand_in.calls if "Alloc" in name} == {allocates}


@needs_compiler
def test_managed_memory_is_never_more_than_is_free(stand_in: Any) -> None:
    stand_in.memory_bytes = 100 << 20
    device = cuda.devices()[0]
    first = device.allocate_shared(40 << 20)
    with pytest.raises(mg.DeviceError, match=f"cannot allocate {40 << 20} bytes; {60 << 20} of the device's"):
        device.allocate_shared(40 << 20)
    with pytest.raises(mg.DeviceError, match="cannot allocate"):
        device.allocate_shared(1 << 70)
    del first
    gc.collect()
    assert device.allocate_shared(90 << 20).nbytes == 90 << 20


# Programs.


@needs_compiler
def test_errors_point_at_the_metal_source(gpu: Any) -> None:
    source = SCALE.replace("x[i] *= by", "x[i] *= bye")
    with pytest.raises(mg.ShaderError) as caught:
        gpu.compile(source, name="scale.metal")
    assert (caught.value.file, caught.value.line) == ("scale.metal", 5)
    assert caught.value.message == "use of undeclared identifier 'bye'"
    assert caught.value.column == source.splitlines()[4].index("bye") + 1
    assert caught.value.source_line == source.splitlines()[4]


def test_a_few_of_the_packages_kernels_are_compiled_at_a_time(gpu: Any) -> None:
    family = families()["reduction"]
    kernels = family.kernels(gpu, "half")
    sources = {family.function_source(gpu, name, "half") for name in kernels[:12]}
    assert [source.count("kernel void ") for source in sources] == [8, 8] and len(kernels) > 16


@needs_compiler
def test_programs_are_kept_on_disk(gpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("MPSGRAD_CACHE", str(tmp_path))
    assert not gpu.is_compiled(SCALE, name="scale.metal")
    function(gpu)
    assert gpu.is_compiled(SCALE, name="scale.metal")

    def fails(*_: Any) -> Any:
        raise AssertionError("compiled again")

    monkeypatch.setattr(cuda, "compile_cubin", fails)
    assert function(gpu).threadgroup_size == 64
    with pytest.raises(AssertionError, match="compiled again"):
        gpu.compile(SCALE, name="scale.metal", options=CompileOptions())


@needs_compiler
def test_the_options_of_the_arithmetic_are_part_of_the_name() -> None:
    names = {
        cuda_compiler.cache_name("source", architecture, arithmetic)
        for architecture in ("sm_90", "sm_89")
        for arithmetic in (OWN_MATH, cuda_compiler.FAST_MATH, cuda_compiler.STRICT_MATH)
    }
    assert len(names) == 6


@needs_compiler
def test_a_function_that_does_not_exist(gpu: Any) -> None:
    with pytest.raises(KeyError, match="no kernel function 'half'; there are add, scale"):
        gpu.compile(SCALE, name="scale.metal").function("half")


@needs_compiler
def test_what_the_compiler_says_of_registers() -> None:
    source = HEAD + (
        "kernel void f(device float* x, uint i [[thread_position_in_grid]]) {\n"
        "    threadgroup float shared[64]; float kept[200];\n"
        "    for (int k = 0; k < 200; k++) kept[k] = x[k * 7 + i] * x[k];\n"
        "    shared[i & 63] = kept[i % 200] + kept[int(x[i]) % 200]; threadgroup_barrier(mem_flags::mem_threadgroup);\n"
        "    x[i] = shared[i & 7];\n}\n"
    )
    translation = translate(source, "cuda", filename="f.metal")
    code, log = compile_cubin(translation, source, "f.metal", "sm_90", OWN_MATH)
    assert code[:4] == b"\x7fELF"
    (usage,) = kernel_usages(log)
    assert usage.entry_point == "f" and 8 <= usage.registers <= 255
    assert usage.threadgroup_bytes == 256 and usage.stack_bytes >= 160
    assert (usage.spill_store_bytes, usage.spill_load_bytes) == (0, 0)


# Work.


@needs_compiler
def test_dispatches_run_in_order(gpu: Any) -> None:
    values = np.arange(128, dtype=np.float32)
    x, y = floats(gpu, values), floats(gpu, np.ones(128))
    scale, add = function(gpu), function(gpu, "add")
    submission = gpu.submit(
        [
            Dispatch(scale, 2, (x, constant(gpu, 3))),
            Dispatch(add, 2, (x, y)),
            Dispatch(scale, 2, (x, constant(gpu, 2))),
        ]
    )
    x.write(np.float32(7), 4)
    submission.wait()
    expected = 2 * (3 * values + 1)
    expected[1] = 7
    np.testing.assert_array_equal(read(x), expected)
    assert submission.is_complete
    assert submission.gpu_time is not None and 0 < submission.gpu_time < 60


@needs_compiler
def test_nothing_submitted_is_complete_at_once(gpu: Any) -> None:
    submission = gpu.submit([])
    submission.wait()
    assert submission.is_complete and submission.gpu_time == 0


@needs_compiler
def test_a_constant_that_lies_in_device_memory(gpu: Any) -> None:
    scale, x, by = function(gpu), floats(gpu, np.ones(64)), floats(gpu, [2])
    gpu.submit([Dispatch(scale, 1, (by, constant(gpu, 2))), Dispatch(scale, 1, (x, by))]).wait()
    assert (read(x) == 4).all()


@needs_compiler
def test_a_constant_buffer_as_device_memory(gpu: Any) -> None:
    add, x = function(gpu, "add"), floats(gpu, np.ones(64))
    ones = gpu.constant_buffer(np.full(64, 5, np.float32).tobytes())
    gpu.submit([Dispatch(add, 1, (x, ones))]).wait()
    assert (read(x) == 6).all()
    assert ones.read(4, 4).view(np.float32) == 5
    with pytest.raises(mg.GeometryError, match="a constant buffer cannot be written"):
        ones.write(b"\0")


@needs_compiler
def test_unfit_buffers_are_refused(gpu: Any) -> None:
    scale, x = function(gpu), floats(gpu, np.ones(64))
    with pytest.raises(mg.DeviceError, match="scale: takes 2 buffers but was given 1"):
        gpu.submit([Dispatch(scale, 1, (x,))])
    with pytest.raises(mg.DeviceError, match="scale: 'by' has 4 bytes but its buffer 2"):
        gpu.submit([Dispatch(scale, 1, (x, gpu.constant_buffer(b"ab")))])
    gpu.submit([Dispatch(scale, 1, (x, constant(gpu, 3)))]).wait()
    assert (read(x) == 3).all()


@needs_compiler
def test_grids_of_more_threadgroups_than_cuda_has(gpu: Any) -> None:
    library = gpu.compile(SCALE, name="scale.metal", options=CompileOptions())
    work = Dispatch(library.function("scale"), (1 << 20, 1 << 12, 1), (gpu.allocate(4),) * 2, (1, 1, 1))
    with pytest.raises(mg.GeometryError, match="4294967296 threadgroups; CUDA's limit is 2147483647"):
        gpu.submit([work])


@needs_compiler
def test_memory_of_a_dropped_submission_is_not_written_too_early(gpu: Any) -> None:
    scale = function(gpu)
    for _ in range(20):
        x = floats(gpu, np.full(1 << 20, 2))
        gpu.submit([Dispatch(scale, 1 << 14, (x, constant(gpu, 3)))] * 8)
        del x
        y = floats(gpu, np.full(1 << 20, 5))
        assert (read(y) == 5).all()


@needs_compiler
def test_threads_share_a_device(gpu: Any) -> None:
    scale = function(gpu)
    failures: list[Any] = []

    def work(seed: int) -> None:
        try:
            for repeat in range(10):
                x = floats(gpu, np.full(64, seed))
                gpu.submit([Dispatch(scale, 1, (x, constant(gpu, repeat)))]).wait()
                assert (read(x) == seed * repeat).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


CHECKED = HEAD + "kernel void k(device float* x, uint i [[thread_position_in_grid]]) { x[i + 1] = 1; }"


@needs_compiler
def test_kernels_are_checked_on_the_cpu(gpu: Any, opencl_device: mg.Device) -> None:
    kernel = mg.compile(CHECKED, device=gpu).function("k")
    vector, image = mg.Vector(4, gpu), mg.Image.from_array(np.zeros((1, 2, 2, 1), np.float32), gpu)
    for memory in (vector, image, vector.buffer, np.zeros(4, np.float32)):
        (found,) = kernel.check(4, memory)
        assert (found.name, found.index, found.length) == ("out-of-bounds", 4, 4)
    assert not np.asarray(image).any()


@needs_compiler
def test_without_opencl_nothing_is_checked(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = mg.compile(CHECKED, device=gpu).function("k")
    monkeypatch.setattr(devices, "_devices_of", lambda name: ())
    monkeypatch.setattr(opencl, "unavailable_reason", lambda: "pyopencl is not installed")
    with pytest.raises(mg.DeviceNotFoundError, match="no device 'opencl': pyopencl is not installed"):
        kernel.check(4, np.zeros(4, np.float32))


# Failures.

FAULT = """
import numpy as np, mpsgrad as mg
library = mg.compile('''#include <metal_stdlib>
using namespace metal;
kernel void harmless(device float* x, uint i [[thread_position_in_grid]]) { x[i] += 1; }
kernel void wild(device float* x, uint i [[thread_position_in_grid]]) { x[i + (1ul << 40)] = 1; }''',
    device=mg.find_device("cuda"))
x = np.zeros(64, np.float32)
library.function("harmless")(64, x)
for call in (lambda: library.function("wild")(64, x), lambda: library.function("harmless")(64, x)):
    try:
        call()
    except mg.DeviceError as error:
        print(error)
"""


def test_a_kernel_that_leaves_its_memory_is_named() -> None:
    if not has_gpu():
        pytest.skip("needs a GPU")
    run = subprocess.run([sys.executable, "-c", FAULT], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    first, second = run.stdout.splitlines()
    assert first.startswith("wild failed on cuda:0: CUDA_ERROR_ILLEGAL_ADDRESS")
    assert first.endswith("this process cannot use the GPU any more")
    assert second == first


@needs_compiler
def test_the_kernels_that_may_have_failed_are_named(stand_in: Any) -> None:
    gpu = cuda.devices()[0]
    scale, add = function(gpu), function(gpu, "add")
    x = floats(gpu, np.ones(64))
    gpu.submit([Dispatch(add, 1, (x, x))]).wait()  # type: ignore[arg-type]
    stand_in.faulty = {"scale"}
    first = gpu.submit([Dispatch(scale, 1, (x, constant(gpu, 2)))])
    second = gpu.submit([Dispatch(add, 1, (x, x))] * 2)  # type: ignore[arg-type]
    names = r"one of the kernels scale, add \(CUDA_LAUNCH_BLOCKING=1.* failed on cuda:0: CUDA_ERROR_ILLEGAL_ADDRESS"
    for call in (
        second.wait,
        first.wait,
        lambda: gpu.allocate(64 << 20),
        lambda: x.write(bytes(4)),
        lambda: read(x),
        lambda: gpu.submit([]),
    ):
        with pytest.raises(mg.DeviceError, match=names):
            call()


@needs_compiler
def test_the_kernel_that_failed_is_named(stand_in: Any) -> None:
    gpu = cuda.devices()[0]
    x = floats(gpu, np.ones(64))
    stand_in.faulty = {"scale"}
    submission = gpu.submit([Dispatch(function(gpu), 1, (x, constant(gpu, 2)))])
    for _ in range(2):
        with pytest.raises(mg.DeviceError, match="scale failed on cuda:0: CUDA_ERROR_ILLEGAL_ADDRESS"):
            submission.wait()
    assert submission.is_complete


LARGE = HEAD + """
constant int N = {count};
[[max_total_threads_per_threadgroup(64)]]
kernel void reverse(device float* x, uint i [[thread_position_in_grid]])
{{
    threadgroup float2 values[N / 2], last[1];
    threadgroup half shares[2][32];
    for (int k = int(i); k < N / 2; k += 64) {{
        values[k] = float2(float(k), x[k % 64]);
    }}
    shares[i / 32][i % 32] = half(i);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    last[0] = values[N / 2 - 1];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    x[i] = values[63 - i].y + float(shares[i / 32][i % 32]) + last[0].x;
}}
"""


def test_threadgroup_variables_for_which_fixed_memory_is_too_small_lie_in_memory_of_the_launch() -> None:
    fixed = 49152 - 8 - 128
    for count, nbytes in ((fixed // 4, 0), (fixed // 4 + 2, 49024 + 16 + 128), (20000, 80000 + 16 + 128)):
        assert translate(LARGE.format(count=count), "cuda").kernels["reverse"].threadgroup_bytes == nbytes
        assert translate(LARGE.format(count=count), "opencl").kernels["reverse"].threadgroup_bytes == 0


def test_the_extents_of_threadgroup_variables_are_those_of_their_own_kernel() -> None:
    kernel = "kernel void f%d(device float* x) {{ constexpr int N = %d; threadgroup float4 t[N]; x[0] = t[0].x; }}\n"
    kernels = translate(HEAD + (kernel % (4, 4) + kernel % (4096, 4096)).format(), "cuda").kernels
    assert {name: each.threadgroup_bytes for name, each in kernels.items()} == {"f4": 0, "f4096": 65536}


@needs_compiler
def test_large_threadgroup_memory(gpu: Any) -> None:
    x = floats(gpu, np.arange(64))
    gpu.submit([Dispatch(function(gpu, "reverse", LARGE.format(count=20000)), 1, (x,))]).wait()
    assert np.array_equal(read(x), np.full(64, 63 + 9999, np.float32))
    most = gpu.threadgroup_memory_bytes
    refusal = rf"^reverse: needs \d+ bytes of threadgroup memory; {gpu.identifier} has {most}$"
    with pytest.raises(mg.DeviceError, match=refusal):
        function(gpu, "reverse", LARGE.format(count=most // 4))
