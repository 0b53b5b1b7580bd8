"""The cache on disk and the import of the package: damage, folders that cannot be written, races, and no device."""

from __future__ import annotations

import hashlib
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import mpsgrad as mg
from mpsgrad.devices import cache, opencl, unavailable
from mpsgrad.devices.opencl_runtime import INSTALL_HINT
from mpsgrad.shader import ShaderFamily

USE = """
import numpy as np, mpsgrad as mg
values, gradient = mg.Vector.from_array(np.ones(24, np.float32)), mg.Vector.from_array(np.ones(24, np.float32))
optimizer = mg.OptimizerStochasticGradientDescent.with_learning_rate(0.25)
with mg.CommandBuffer() as commands:
    optimizer.encode(
        commands, input_gradient_vector=gradient, input_values_vector=values, result_values_vector=values
    )
print(np.asarray(values).sum())
"""

SMALL_LIBRARY = """
import importlib.util, sys
spec = importlib.util.find_spec("mpsgrad")
package = sys.modules["mpsgrad"] = importlib.util.module_from_spec(spec)
from mpsgrad import shader
register = shader.ShaderFamily.__post_init__
def register_few(family):
    register(family)
    if family.name not in ("fill", "optimizer"):
        shader._families.pop(family.name, None)
shader.ShaderFamily.__post_init__ = register_few
spec.loader.exec_module(package)
assert set(shader.families()) == {"fill", "optimizer"}
"""
"""Imports the package with two families to compile ahead of time, so that a first import takes seconds."""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("MPSGRAD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs ``code`` in a new process with these environment variables besides ours."""
    root = str(Path(mg.__file__).parent.parent)
    variables = {**os.environ, "PYTHONPATH": root, **environment}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=variables, timeout=300)


def succeeded(process: subprocess.CompletedProcess[str]) -> str:
    assert process.returncode == 0, process.stderr
    return process.stdout


# the cache


def test_what_is_stored_is_loaded(folder):
    assert cache.load("a") is None and not cache.contains("a")
    for payload in (b"", b"payload", bytes(range(256)) * 1000):
        cache.store("a", payload)
        assert cache.load("a") == payload and cache.contains("a")
    assert [file.name for file in folder.iterdir()] == ["a"], "no partial files are left"


def test_keys_depend_on_the_parts_and_where_they_end():
    keys = {cache.key(*parts) for parts in ((), ("",), ("ab",), ("a", "b"), ("", "ab"), ("b", "a"))}
    assert len(keys) == 6 and cache.key("a", "b") == cache.key("a", "b")


def test_settings_of_the_compiler_for_cpus_are_part_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    processor = cache.processor.__wrapped__
    without = processor()
    monkeypatch.setenv("CL_CONFIG_CPU_TARGET_ARCH", "core-avx2")
    assert processor() != without


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "short", "append", "directory"])
def test_damaged_files_count_as_absent(folder, damage):
    cache.store("a", b"payload" * 100)
    path = folder / "a"
    data = path.read_bytes()
    if damage == "directory":
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes(
            {
                "flip": data[:-1] + bytes([data[-1] ^ 1]),
                "truncate": data[: len(data) // 2],
                "empty": b"",
                "short": data[:10],
                "append": data + b"x",
            }[damage]
        )
    assert cache.load("a") is None
    cache.store("a", b"again")
    assert cache.load("a") == (None if damage == "directory" else b"again")


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    blocked = tmp_path / "a file"
    blocked.write_text("not a folder")
    for folder in (blocked, blocked / "below"):
        monkeypatch.setenv("MPSGRAD_CACHE", str(folder))
        cache.store("a", b"payload")
        assert cache.load("a") is None and not cache.contains("a")
    assert blocked.read_text() == "not a folder"


def test_the_users_cache_folder_is_the_default(monkeypatch):
    monkeypatch.delenv("MPSGRAD_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/some/where")
    assert "mpsgrad" in cache.directory().parts


def test_a_damaged_program_is_compiled_again(folder, tmp_path):
    (tmp_path / "again.metal.j2").write_text(
        "#include <metal_stdlib>\nusing namespace metal;\n\n[[max_total_threads_per_threadgroup(32)]]\n"
        "kernel void again(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]])\n"
        "{\n    out[i] = 7.0f;\n}\n"
    )
    device = mg.default_device()
    if device.driver_version == "":
        pytest.fail("a device names its driver's version, or binaries of another driver would be loaded")

    def result() -> float:
        buffer = device.allocate(128)
        with mg.CommandBuffer() as commands:
            function = ShaderFamily("again", directory=tmp_path).function(device, "again", "float")
            commands.add_dispatch(function, 1, buffer)
        return float(buffer.read(0, 4).view("f4")[0])

    assert result() == 7.0
    files = [path for path in folder.iterdir() if path.is_file()]
    assert len(files) == 2, "the program, and what is to be known of it"
    junk = b"this is no program"
    for file in files:
        whole = file.read_bytes()
        for damaged in (b"", whole[:100], whole[:-1], hashlib.sha256(junk).digest() + junk):
            file.write_bytes(damaged)
            assert result() == 7.0
            assert cache.load(file.name) is not None


# importing


def test_four_first_imports_at_once_all_succeed(tmp_path):
    """Four processes with one empty cache compile side by side; each uses a whole program."""
    root = str(Path(mg.__file__).parent.parent)
    variables = {**os.environ, "PYTHONPATH": root, "MPSGRAD_CACHE": str(tmp_path / "cache")}
    code = SMALL_LIBRARY + USE
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=variables)
        for _ in range(4)
    ]
    outputs = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, outputs
    assert [float(out) for out, _ in outputs] == [18] * 4
    left = [file.name for file in (tmp_path / "cache").iterdir() if file.name.startswith(".")]
    assert left == []


def test_importing_where_nothing_can_be_kept(tmp_path):
    blocked = tmp_path / "a file"
    blocked.write_text("not a folder")
    out = succeeded(run(SMALL_LIBRARY + USE, MPSGRAD_CACHE=str(blocked), TMPDIR=str(tmp_path)))
    assert float(out) == 18


@pytest.mark.parametrize(
    ("arguments", "compiles"),
    [
        (["-c", "import mpsgrad"], True),
        (["-c", "from mpsgrad import Image"], True),
        (["-c", "import mpsgrad.metalcompute, mpsgrad"], False),
        (["-c", "from mpsgrad.cli import main"], False),
        (["-c", "import importlib; importlib.import_module('mpsgrad.msl.lint')"], False),
        (["-m", "mpsgrad", "render", "soft_max"], False),
        (["-m", "mpsgrad", "check", "--explain", "1"], False),
    ],
)
def test_only_the_import_of_the_package_itself_compiles(tmp_path, arguments, compiles):
    """The first that compiling does is to ask for devices, here of a driver that ends the process."""
    (tmp_path / "metalcompute.py").write_text("import os\ndef get_devices():\n    os._exit(77)\n")
    root = str(Path(mg.__file__).parent.parent)
    variables = {
        **os.environ, "PYTHONPATH": os.pathsep.join([root, str(tmp_path)]), "MPSGRAD_CACHE": str(tmp_path / "cache"),
        "MPSGRAD_DEVICE": "",
    }  # fmt: skip
    process = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=variables, timeout=300)
    assert process.returncode == (77 if compiles else 0), process.stderr


def test_modules_are_imported_when_their_names_are_used():
    """Where the kernels are compiled already, as for this process."""
    code = """
import sys, numpy
before = {*sys.modules}
import mpsgrad as mg
assert mg.compile and not {"statistics", "mpsgrad.runtime.findings"} & (sys.modules.keys() - before)
import mpsgrad.cli
names = {"mpsgrad.kernels.neuron", "mpsgrad.graph", "mpsgrad.functional", "mpsgrad.archive"}
names |= {"mpsgrad.msl.translator", "mpsgrad.msl.lint.all_rules", "rich", "tomllib"}
assert not names & sys.modules.keys()
assert mg.Neuron.__module__ == "mpsgrad.kernels.neuron"
assert callable(mg.functional.neuron) and "mpsgrad.kernels.pooling" in sys.modules and "ImageNode" in dir(mg)
assert "mpsgrad.graph" not in sys.modules
"""
    succeeded(run(code))


WITHOUT_PYOPENCL = "import sys\nsys.modules['pyopencl'] = None\n"
HIDDEN = "import sys\nsys.modules['metalcompute'] = None\nsys.modules['cuda'] = None\nsys.modules['pyopencl'] = None\n"
FIRST_USE = """
import mpsgrad as mg
descriptor = mg.ImageDescriptor(width=3)
assert mg.available_devices() == []
for use in (mg.default_device, mg.SoftMax, mg.CommandBuffer, lambda: mg.Image(descriptor)):
    try:
        use()
    except mg.DeviceNotFoundError as error:
        print(error)
    else:
        raise SystemExit("no error")
"""


def test_a_program_may_end_while_its_work_runs():
    code = """
import numpy as np, mpsgrad as mg
source, kernel, commands = mg.Image.from_array(np.ones((8, 64, 64, 64), np.float32)), mg.SoftMax(), mg.CommandBuffer()
results = [kernel.encode(commands, source) for _ in range(20)]
commands.commit()
"""
    assert succeeded(run(code)) == ""


def test_without_any_driver_import_works_and_the_first_use_says_what_to_install(tmp_path):
    out = succeeded(run(HIDDEN + FIRST_USE, MPSGRAD_CACHE=str(tmp_path), MPSGRAD_DEVICE=""))
    assert out.count("no device that can run Metal kernels was found") == 4
    for words in ("metal:", "cuda:", "opencl:", INSTALL_HINT, "pip install metalcompute"):
        assert words in out


def test_a_chosen_driver_that_is_missing_says_why(tmp_path):
    code = WITHOUT_PYOPENCL + "import mpsgrad as mg\nmg.SoftMax()"
    process = run(code, MPSGRAD_CACHE=str(tmp_path), MPSGRAD_DEVICE="opencl")
    assert process.returncode != 0
    last = process.stderr.strip().splitlines()[-1]
    assert last.startswith("mpsgrad.errors.DeviceNotFoundError: no device 'opencl'") and INSTALL_HINT in last


def test_import_with_a_driver_that_has_no_device(tmp_path):
    """Apple GPUs and NVIDIA's are never in one machine, so one driver always has none."""
    name, reason = next(iter(unavailable().items()))
    environment = {"MPSGRAD_CACHE": str(tmp_path), "MPSGRAD_DEVICE": name}
    assert succeeded(run("import mpsgrad as mg\nprint('imported')", **environment)) == "imported\n"
    process = run("import mpsgrad as mg\nmg.SoftMax()", **environment)
    assert f"DeviceNotFoundError: no device {name!r}: {reason}" in process.stderr


@pytest.mark.parametrize(
    ("identifier", "words"),
    [
        ("vulkan", "no driver 'vulkan'.*the drivers are metal, cuda, opencl"),
        ("opencl:x", "'opencl:x' is not a driver with an index"),
        ("opencl:-1", "'opencl:-1' is not a driver with an index"),
        ("", "no driver ''"),
    ],
)
def test_devices_that_there_are_not(identifier, words):
    with pytest.raises(mg.DeviceNotFoundError, match=words):
        mg.find_device(identifier)


def test_an_index_that_no_device_has():
    driver = mg.default_device().identifier.partition(":")[0]
    count = sum(device.identifier.startswith(driver) for device in mg.available_devices())
    with pytest.raises(mg.DeviceNotFoundError, match=f"'{driver}:{count}': the last one .* is {driver}:{count - 1}"):
        mg.find_device(f"{driver}:{count}")


def test_the_subpackage_keeps_its_name():
    import mpsgrad.devices

    assert mg.devices is mpsgrad.devices is importlib.import_module("mpsgrad.devices")
    assert mg.available_devices()[0] is mg.find_device(mg.available_devices()[0].identifier)


# OpenCL without what it needs


def test_opencl_without_pyopencl(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    assert opencl.refused() == [] and opencl.devices() == []
    assert opencl.unavailable_reason() == f"the Python package pyopencl is not installed ({INSTALL_HINT})"


def test_opencl_without_a_platform(monkeypatch):
    pyopencl = pytest.importorskip("pyopencl")

    def fails():
        raise pyopencl.LogicError("clGetPlatformIDs failed: PLATFORM_NOT_FOUND_KHR")

    monkeypatch.setattr(pyopencl, "get_platforms", fails)
    assert opencl.refused() == [] and opencl.devices() == []
    assert opencl.unavailable_reason() == f"no OpenCL device was found ({INSTALL_HINT})"


def test_opencl_devices_that_lack_something_are_named(monkeypatch):
    pyopencl = pytest.importorskip("pyopencl")

    class Platform:
        name = "Portable "

        def __init__(self, answers):
            self.answers = answers

        def get_devices(self):
            if not self.answers:
                raise pyopencl.RuntimeError("clGetDeviceIDs failed: DEVICE_NOT_FOUND")
            return [type("Device", (), {"name": " old", "platform": self, "extensions": "cl_khr_fp16"})()]

    monkeypatch.setattr(pyopencl, "get_platforms", lambda: [Platform(False), Platform(True)])
    (line,) = opencl.refused()
    assert line == "old (Portable): lacks cl_khr_subgroup_shuffle, cl_intel_required_subgroup_size"
    assert opencl.devices() == []
    assert opencl.unavailable_reason() == f"{line} ({INSTALL_HINT})"
