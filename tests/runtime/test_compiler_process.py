"""Compilers that end their process or do not end: what becomes of the source, and of the next one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread, Timer

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad import devices
from mpsgrad.devices import CompileOptions, cache, opencl, opencl_compiler, opencl_compiler_process, opencl_early
from mpsgrad.devices.opencl import OpenCLDevice
from mpsgrad.msl import parts

SOURCE = "kernel void {}(device float* x, uint i [[thread_position_in_grid]]) {{ x[i] *= 2; }}"
WITH_SIMDGROUPS = "kernel void {}(device float* x, uint i [[thread_index_in_simdgroup]]) {{ x[i] *= 2; }}"
PROCESS = """
import os, sys, time
sys.path.insert(0, {folder!r})
import opencl_compiler_process as process
compile = process.Compiler.compile
def stand_in(self, source, options, is_built):
    if b"sleeps" in source:
        time.sleep(60)
    spared = b"survived_without_optimization" in source and b"-cl-opt-disable" in options
    spared |= b"survived_by_few" in source and "CL_CONFIG_CPU_VECTORIZER_MODE" in os.environ
    if b"survived" in source and is_built and not spared:
        print("0. Running pass 'Chosen' on function '@f'", file=sys.stderr, flush=True)
        os.abort()
    return compile(self, source, options, is_built)
process.Compiler.compile = stand_in
if "SLEEPS_AT_FIRST" in os.environ:
    time.sleep(60)
process.main()
"""


@pytest.fixture
def device(opencl_device: mg.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenCLDevice:
    """A device whose compiler's process ends, or sleeps, at some names; its cache is empty."""
    monkeypatch.setenv("MPSGRAD_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "process.py"
    path.write_text(PROCESS.format(folder=str(Path(opencl_compiler_process.__file__).parent)))
    monkeypatch.setattr(opencl_compiler_process, "__file__", str(path))
    assert isinstance(opencl_device, OpenCLDevice)
    return OpenCLDevice(opencl_device._handle, 0)


def forbid(*_: object, **__: object) -> None:
    raise AssertionError("this was not to be done")


def doubles(name: str, device: mg.Device, source: str = SOURCE) -> bool:
    x = np.arange(32, dtype=np.float32)
    mg.compile(source.format(name), device=device).function(name)(32, x, threadgroup=32)
    return bool((x == 2 * np.arange(32)).all())


def test_a_source_that_ends_the_compiler_is_refused_and_the_next_is_compiled(device: OpenCLDevice) -> None:
    words = r"compiler ended \(SIGABRT; 0. Running pass 'Chosen' on function '@f'\): a fault of the compiler"
    with pytest.raises(mg.ShaderError, match=words) as caught:
        doubles("survived_by_nobody", device)
    assert caught.value.file == "<metal>"
    assert doubles("harmless", device)


def test_what_ends_the_compiler_is_compiled_in_other_ways(device: OpenCLDevice) -> None:
    assert doubles("survived_by_few", device)
    assert doubles("survived_without_optimization", device)
    assert doubles("harmless", device)
    with pytest.raises(mg.ShaderError, match="compiler ended"):
        doubles("survived_by_few_with_lanes", device, WITH_SIMDGROUPS)


def test_only_the_simdgroups_of_a_part_keep_it_from_other_ways(
    device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "_MOST_TOKENS", 5)
    source = f"{SOURCE.format('survived_by_few')}\n{WITH_SIMDGROUPS.format('with_lanes')}"
    library = mg.compile(source, device=device)
    x = np.ones(32, np.float32)
    library.function("survived_by_few")(32, x)
    np.testing.assert_array_equal(x, 2)
    with pytest.raises(mg.ShaderError, match="compiler ended"):
        library.function("with_lanes")


def test_simdgroups_of_one_thread_each_are_refused(device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a loop that is entered at two places, as Intel's compiler makes them, it runs one thread after the other."""
    loop = (
        "uint lane [[thread_index_in_simdgroup]]) {{ uint d = lane, c = lane; device float* w = x;"
        " for (uint k = 0; k < 4; k++) {{ switch (d & 3) {{ case 0: case 1: c -= d++ > 6 && (c & 1) == 0; }}"
        " switch ((c * uint(*w)) & 3) {{ case 0: w = x + 8; d = 1; break; default: c = 26; }} }} x[lane] = c + d;"
    )
    source = WITH_SIMDGROUPS.replace("uint i [[thread_index_in_simdgroup]]) {{ x[i] *= 2;", loop)
    monkeypatch.setattr(opencl, "SAFEGUARDS", "")
    of_two_lines = f"[[max_total_threads_per_threadgroup(32)]]\n{source}"
    for executable, written in ((sys.executable, of_two_lines), (os.devnull, source)):
        monkeypatch.setattr("sys.executable", executable)
        with pytest.raises(mg.ShaderError, match="does not run the threads of apart abreast, as functions of simdgr"):
            doubles("apart", device, written)
    assert doubles("together", device, WITH_SIMDGROUPS)


TOGETHER_OTHERWISE = """#include <metal_stdlib>
using namespace metal;
uint turns_of(uint a, uint b, device const uint* x, int turns) {
  uint c = 3, d = a, flags = b & 7u, mode = a & 3u;
  bool u[4] = {a > b, false, a > b, true};
  if (u[(uint(turns)) & 3u]) {
    for (int k3 = 0; k3 < 4; k3++) {
      auto step = [&](uint n) {
        for (uint k2 = d & 3u; k2 < (((x[88] > 7u) ? uint(turns) : 1u) & 7u); ++k2) d = 2u & (flags + d);
        switch (mode) {
          case 2: case 0: case 3: mode = 2u; break;
          default: a = 186;
        }
        return (c & flags) + n;
      };
      b = step(1u / (flags | 1u));
    }
  }
  return d << (d & 31u);
}
[[max_total_threads_per_threadgroup(64)]]
kernel void otherwise(device const uint* x, device uint* y, constant int& turns,
    uint i [[thread_position_in_grid]]) {
  uint a = x[i], d = i;
  uint any = uint(simd_any(d > 20u));
  if ((a & 1) == 0) {
    for (int k6 = 0; k6 < 4; k6++) {
      uint n = a;
      d = (x[124] > 7u) ? turns_of(n, turns_of(a, 2u, x, turns), x, turns)
                        : turns_of(n, turns_of(a, 2u, x, turns), x, turns);
    }
  }
  y[i] = any;
}
"""


def test_simdgroups_that_other_options_keep_together_are_compiled_with_those(opencl_device: mg.Device) -> None:
    x, y = np.arange(192, dtype=np.uint32), np.zeros(64, np.uint32)
    mg.compile(TOGETHER_OTHERWISE, language_version="3.2").function("otherwise")(64, x, y, np.int32(3))
    np.testing.assert_array_equal(y, 1)


def test_a_compiler_that_does_not_end_is_stopped(device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doubles("first", device)
    monkeypatch.setattr(opencl_compiler, "MOST_SECONDS", 0.2)
    with pytest.raises(mg.ShaderError, match=r"was not done after 0\.2 s"):
        doubles("sleeps", device)
    monkeypatch.undo()
    assert doubles("next", device)


def test_a_compiler_that_nobody_waits_for_ends_while_it_compiles(device: OpenCLDevice) -> None:
    compiler = device._compiler_of(SOURCE)
    started = opencl_compiler._Process(compiler.arguments, {})
    process = started._process
    assert process.stdin is not None
    process.stdin.write(opencl_compiler._request("// sleeps", (), True))
    process.stdin.close()
    try:
        assert process.wait(30) == 0
    finally:
        started.close()


def test_a_compiler_that_does_not_begin_is_stopped_once(device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opencl_compiler, "MOST_SECONDS", 0.2)
    monkeypatch.setenv("SLEEPS_AT_FIRST", "1")
    with pytest.raises(mg.ShaderError, match=r"did not start in 0\.2 s"):
        doubles("first", device)
    monkeypatch.delenv("SLEEPS_AT_FIRST")
    monkeypatch.setattr(opencl_compiler, "MOST_SECONDS", 60)
    assert doubles("next", device)


def test_a_process_that_was_killed_while_it_waits_is_replaced(
    device: OpenCLDevice, two_processes: opencl_compiler.OpenCLCompiler
) -> None:
    processes = [seat._process for seat in two_processes._seats]
    for process in processes:
        assert process is not None
        process._process.kill()
        process._process.wait()
    library = divided(["one", "two", "three"], device)
    for added, name in enumerate(library.function_names):
        x = np.ones(32, np.float32)
        library.function(name)(32, x, threadgroup=32)
        np.testing.assert_array_equal(x, 2 + added)


def test_a_process_that_is_killed_while_it_compiles_is_an_error(
    device: OpenCLDevice, two_processes: opencl_compiler.OpenCLCompiler
) -> None:
    source = WITH_SIMDGROUPS.format("sleeps")

    def kill() -> None:
        for seat in two_processes._seats:
            if seat._process is not None:
                seat._process._process.kill()

    timer = Timer(0.3, kill)
    timer.start()
    with pytest.raises(mg.ShaderError, match="compiler ended .SIGKILL"):
        mg.compile(source, device=device)
    timer.join()
    assert doubles("next", device)


def test_any_number_of_files_may_be_open(device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 1200
    if hard != resource.RLIM_INFINITY and hard < 2 * needed:
        pytest.skip("the system allows few open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * needed), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(needed)]
    monkeypatch.setattr(OpenCLDevice, "_built_here", forbid)
    try:
        assert doubles("first", device) and doubles("second", device)
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_one_process_is_not_asked_whether_it_waits(device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = opencl_compiler.OpenCLCompiler(*device._compiler._arguments)
    monkeypatch.setattr(opencl_compiler._Process, "is_ready", forbid)
    for number in (1, 2):
        compiler.find_errors(f"__kernel void f(__global int* x) {{ x[0] = {number}; }}", opencl.BUILD_OPTIONS)
    compiler._close()


def test_a_process_that_ended_after_a_pause_is_replaced(device: OpenCLDevice) -> None:
    assert doubles("first", device)
    process = device._compiler._seats[0]._process
    assert process is not None and process._process.stdin is not None
    process._process.stdin.close()
    process._process.wait()
    assert doubles("second", device)


def divided(names: list[str], device: OpenCLDevice) -> mg.KernelLibrary:
    sources = [SOURCE.format(name).replace("2;", f"2; x[i] += {added};") for added, name in enumerate(names)]
    return mg.compile("\n".join(sources), device=device)


@pytest.fixture
def two_processes(device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch) -> opencl_compiler.OpenCLCompiler:
    """The compiler of a device, with both of its processes ready; each function is a part of its source."""
    monkeypatch.setattr(parts, "_MOST_TOKENS", 5)
    compiler = device._compiler
    if len(compiler._seats) < 2:
        pytest.skip("there is one core, or a system that cannot tell whether a process waits")
    for seat in compiler._seats:
        seat.start()
        while not seat.is_ready():
            time.sleep(0.01)
    return compiler


def test_parts_are_begun_beside_those_that_are_asked_for(
    device: OpenCLDevice, two_processes: opencl_compiler.OpenCLCompiler
) -> None:
    begun = two_processes._begun
    library = divided(["one", "two", "three", "four", "five"], device)
    assert [b"-DPART_MTL=1" in request for request in begun] == [True]
    counts = []
    for added, name in enumerate(library.function_names):
        x = np.ones(32, np.float32)
        library.function(name)(32, x, threadgroup=32)
        np.testing.assert_array_equal(x, 2 + added)
        counts.append([b"-DPART_MTL=%d" % (added + 2) in request for request in begun])
    assert counts == [[], [True], [True], [True], []]


def test_who_takes_a_single_function_has_no_others_compiled(
    device: OpenCLDevice, two_processes: opencl_compiler.OpenCLCompiler
) -> None:
    library = divided(["one", "two", "three"], device)
    library.function("three")
    library.function("one")
    assert not two_processes._begun


def test_a_part_begun_early_that_ends_the_compiler_fails_where_it_is_asked_for(
    device: OpenCLDevice, two_processes: opencl_compiler.OpenCLCompiler
) -> None:
    library = divided(["survived_by_nobody", "harmless"], device)
    assert len(two_processes._begun) == 1
    with pytest.raises(mg.ShaderError, match="compiler ended"):
        library.function("survived_by_nobody")
    assert doubles("next", device)


def test_a_forked_process_starts_processes_of_its_own(
    device: OpenCLDevice, two_processes: opencl_compiler.OpenCLCompiler
) -> None:
    seats = two_processes._seats
    for seat in seats:
        seat.busy.acquire()
    # As another thread may have it when a process is forked.
    two_processes._lock.acquire()
    two_processes._owner = -1
    forked = Thread(target=lambda: doubles("forked", device), daemon=True)
    forked.start()
    forked.join(60)
    assert not forked.is_alive() and doubles("forked", device)
    assert two_processes._owner == os.getpid() and not set(seats) & set(two_processes._seats)
    for seat in seats:
        seat.close()


def begin_early(source: str) -> list[opencl_compiler._Process]:
    """The processes that are there once a fresh Python would have begun to look for the device."""
    opencl.start_compiler_early(source, "<metal>", CompileOptions())
    return [*opencl_compiler._early]


def test_a_compiler_is_started_before_its_device_is_found(device: OpenCLDevice) -> None:
    assert begin_early(SOURCE.format("any")) == []
    assert doubles("first", device)
    assert begin_early(SOURCE.format("first")) == []
    (process,) = begin_early(SOURCE.format("second"))
    again = OpenCLDevice(device._handle, 0)
    assert doubles("second", again)
    assert again._compiler._seats[0]._process is process and not opencl_compiler._early
    assert begin_early(SOURCE.format("third") + "//" + "-" * opencl_compiler.LONG_SOURCE) == []


def test_a_compiler_started_early_for_another_device_ends(
    device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert doubles("first", device)
    (process,) = begin_early(SOURCE.format("second"))
    monkeypatch.setattr(opencl, "SAFEGUARDS", "")
    monkeypatch.setattr(opencl, "SAVINGS", "")
    again = OpenCLDevice(device._handle, 0)
    assert doubles("second", again)
    assert again._compiler._seats[0]._process is not process and not process.is_usable()


def test_a_compiler_that_does_not_start_early_starts_later(
    device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert doubles("first", device)
    with monkeypatch.context() as patch:
        patch.setattr(opencl_compiler_process, "__file__", os.devnull)
        assert len(begin_early(SOURCE.format("second"))) == 1
    again = OpenCLDevice(device._handle, 0)
    environments = [*again._compiler._environments]
    assert doubles("second", again)
    assert again._compiler._environments == environments


def test_a_compiler_that_was_started_early_and_hangs_or_is_killed_is_replaced(
    device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert doubles("first", device)
    with monkeypatch.context() as patch:
        patch.setenv("SLEEPS_AT_FIRST", "1")
        (process,) = begin_early(SOURCE.format("second"))
    monkeypatch.setattr(opencl_compiler, "MOST_SECONDS", 5)
    again = OpenCLDevice(device._handle, 0)
    assert doubles("second", again)
    assert not process.is_usable() and len(again._compiler._environments) == len(device._compiler._environments)
    (process,) = begin_early(SOURCE.format("third"))
    process._process.kill()
    process._process.wait()
    assert doubles("third", OpenCLDevice(device._handle, 0))


def test_a_cache_that_cannot_be_written_begins_nothing_early(
    device: OpenCLDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MPSGRAD_CACHE", str(tmp_path / "file" / "cache"))
    library = divided(["one", "two"], device)
    x = np.ones(32, np.float32)
    library.function("two")(32, x, threadgroup=32)
    np.testing.assert_array_equal(x, 3)
    assert begin_early(SOURCE.format("other")) == []


def test_a_fresh_process_uses_the_compiler_that_it_starts_early(device: OpenCLDevice) -> None:
    program = """if True:
        import mpsgrad.runtime, mpsgrad.devices.opencl_compiler as compiler
        process = compiler._Process
        started = []
        class Noted(process):
            def __init__(self, *arguments):
                super().__init__(*arguments)
                started.append(self)
        compiler._Process = Noted
        mpsgrad.runtime.compile("kernel void f(device float* x, uint i [[thread_position_in_grid]]) { x[i] = %s; }")
        print([process.is_early for process in started], [process.is_usable() for process in started])
    """
    environment = {name: value for name, value in os.environ.items() if name not in opencl_early._VARIABLES}
    environment |= {"MPSGRAD_DEVICE": "opencl", "PYTHONPATH": os.pathsep.join(sys.path)}
    said = []
    for number in (1, 2, 2):
        command = [sys.executable, "-c", program % number]
        said.append(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip())
    assert said == ["[False] [True]", "[True] [True]", "[] []"]


def test_what_says_nothing_of_a_compiler_starts_none(device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doubles("first", device)
    with monkeypatch.context() as patch:
        patch.setenv("OCL_ICD_VENDORS", "/elsewhere")
        assert begin_early(SOURCE.format("second")) == []
    record = opencl_early._name("short")
    kept = cache.load(record)
    assert kept is not None
    arguments, environment, where, variables = json.loads(kept)
    for damaged in (
        [1], {}, None, "text", [1, 2, 3, 4], [arguments, environment, where, []], [arguments, 7, where, variables],
        [arguments, environment, [None], variables], [arguments, environment, where, {"PYOPENCL_HOME": 7}],
        [["\0"], environment, where, variables], [[1], environment, where, variables],
    ):  # fmt: skip
        cache.store(record, json.dumps(damaged).encode())
        assert begin_early(SOURCE.format("second")) == []
    cache.store(record, b"\xff")
    assert begin_early(SOURCE.format("second")) == []
    cache.store(record, kept)
    with monkeypatch.context() as patch:
        patch.setattr("sys.executable", "/no/such/python")
        assert begin_early(SOURCE.format("second")) == []


def test_early_compilers_are_for_default_devices_that_will_be_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for default, chosen, others, expected in (
        (None, "", False, True), (None, "", True, False), (None, "opencl:0", True, True), (None, "cuda", False, False),
        ("one", "", False, False), ("one", "opencl", False, False),
    ):  # fmt: skip
        monkeypatch.setattr(devices, "_default", default)
        monkeypatch.setattr(devices, "_may_have_devices", lambda name, others=others: name == "opencl" or others)
        monkeypatch.setenv("MPSGRAD_DEVICE", chosen)
        assert devices.is_default_surely("opencl") == expected


def test_a_compiler_that_does_not_know_an_option_compiles_without(
    device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opencl, "SAVINGS", "-no-such-option")
    assert doubles("without_options", device)
    process = device._compiler._seats[0]._process
    assert process is not None and process.is_usable()


def test_without_a_process_this_one_compiles(device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", os.devnull)
    assert doubles("here", device)
    with pytest.raises(mg.ShaderError, match="unknown_here"):
        doubles("here", device, SOURCE.replace("2;", "unknown_here;"))


def test_what_is_checked_again_starts_no_process(device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    def findings() -> list[str]:
        again = OpenCLDevice(device._handle, 0)
        doubled = mg.compile(SOURCE.format("checked"), device=again).function("checked")
        return [str(finding) for finding in doubled.check(5, np.ones(4, np.float32))]

    first = findings()
    monkeypatch.setattr(opencl_compiler, "_Process", forbid)
    assert findings() == first and "out-of-bounds" in first[0]


def test_a_select_that_ends_the_compiler_gives_the_right_numbers() -> None:
    source = """#include <metal_stdlib>
    using namespace metal;
    kernel void f(device const float* a, device long* out, uint i [[thread_position_in_grid]]) {
        char3 v = select(char3(0, 0, 7), char3(0, -116, 9), float3(6e18, 1, 1) != a[i] * a[i]);
        v.xz ^= char2(127, -1) >> char2(31, 1);
        out[i] = v.x;
        out[64 + i] = v.y;
        out[128 + i] = v.z;
    }"""
    a = np.where(np.arange(64) % 3, np.float32(1), np.linspace(-2, 2, 64, dtype=np.float32))
    out = np.zeros((3, 64), np.int64)
    mg.compile(source).function("f")(64, a, out)
    np.testing.assert_array_equal(out[0], [0] * 64)
    np.testing.assert_array_equal(out[1], np.where(a * a == 1, 0, -116))
    np.testing.assert_array_equal(out[2], ~np.where(a * a == 1, 7, 9))
