"""The ``mpsgrad`` command: its output, its exit statuses, and what it says when something is wrong."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mpsgrad as mg
from mpsgrad import cli
from mpsgrad.commands import devices as devices_command
from mpsgrad.devices import available_devices, best_device, cuda_compiler, metal, opencl, unavailable
from mpsgrad.msl import translate
from mpsgrad.shader import ShaderFamily, families, shader_directory

registry: Any = importlib.import_module("mpsgrad.devices")


def usage_error(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    output = capsys.readouterr()
    assert output.out == ""
    return output.err


def test_no_command_and_unknown_commands_show_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert "usage: mpsgrad" in usage_error(capsys, "rendr")
    assert cli.main([]) == 2
    output = capsys.readouterr()
    assert output.out == "" and all(command in output.err for command in ("usage: mpsgrad", "devices", "render"))


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert all(word in text for word in ("devices", "render"))


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"mpsgrad {mg.__version__}\n"


# mpsgrad devices


def test_devices_lists_each_device_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["devices"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for device in mg.available_devices():
        row = next(line for line in lines if device.identifier in line)
        units = str(device.compute_units) if device.compute_units else "unknown"
        for cell in (device.name, device.driver, device.driver_version, units, *device.features):
            assert cell in row
        assert f"{device.memory_bytes / 2**30:.1f} GiB" in row and f"{device.threadgroup_memory_bytes >> 10} KiB" in row
        assert (f"{device.identifier} *" in row) == (device is mg.default_device())


def test_devices_says_what_is_missing_and_what_was_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metal, "refused", lambda: ["AMD Radeon [/5500M]: is no Apple GPU"])
    monkeypatch.setattr(opencl, "refused", lambda: ["old (PoCL): lacks cl_khr_fp16"])
    assert cli.main(["devices"]) == 0
    lines = capsys.readouterr().out.splitlines()
    missing = unavailable()
    assert missing
    assert all(f"{driver}: {reason}" in lines for driver, reason in missing.items())
    assert lines[-2:] == [
        "not usable: AMD Radeon [/5500M]: is no Apple GPU",
        "not usable: old (PoCL): lacks cl_khr_fp16",
    ]


def test_devices_without_any_device(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_devices_of", lambda name: ())
    monkeypatch.setattr(devices_command, "_refused", list)
    assert cli.main(["devices"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["metal", "cuda", "opencl"]
    assert "pip install metalcompute" in lines[0]


def test_devices_still_lists_them_when_the_chosen_default_does_not_exist(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = mg.default_device().identifier.partition(":")[0]
    monkeypatch.setenv("MPSGRAD_DEVICE", f"{driver}:99")
    monkeypatch.setattr(devices_command, "default_device", best_device)
    assert cli.main(["devices"]) == 1
    output = capsys.readouterr()
    assert mg.default_device().identifier in output.out
    assert "* the default" not in output.out
    assert output.err.startswith(f"mpsgrad: MPSGRAD_DEVICE: no device '{driver}:99'")


# mpsgrad render


def rendered(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["render", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "name", sorted(name for name in families() if (shader_directory() / f"{name}.metal.j2").is_file())
)
def test_render_prints_every_family_in_metal(capsys: pytest.CaptureFixture[str], name: str) -> None:
    family = families()[name]
    for dtype in family.dtypes:
        text = rendered(capsys, name, "--dtype", dtype)
        assert text == family.render(dtype, "apple").source
        assert "#line" not in text
        assert "kernel void" in text


def test_render_takes_a_kernel_functions_name_and_a_dtype(capsys: pytest.CaptureFixture[str]) -> None:
    single = rendered(capsys, "soft_max_gradient")
    assert single == rendered(capsys, "soft_max") == rendered(capsys, "soft_max", "--dtype", "float")
    half = rendered(capsys, "soft_max_gradient", "--dtype", "half", "--for", "metal")
    assert "device half* destination" in half
    assert "device half*" not in single
    assert rendered(capsys, "soft_max_spread") == single  # a kernel that has several forms


def test_render_shows_line_directives_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    text = rendered(capsys, "soft_max", "--line-directives")
    assert text == families()["soft_max"].render("float", "apple").with_line_directives()
    assert '#line 1 "shaders/soft_max.metal.j2"' in text


@pytest.mark.parametrize(("target", "device_family"), [("opencl", "cpu"), ("cuda", "nvidia")])
def test_render_translates(capsys: pytest.CaptureFixture[str], target: Any, device_family: str) -> None:
    tunings = {device.identifier.partition(":")[0]: device.tuning for device in available_devices()}
    source = families()["soft_max"].render("half", device_family, tunings.get(target)).with_line_directives()
    text = rendered(capsys, "soft_max", "--dtype", "half", "--for", target)
    assert text == translate(source, target, filename="shaders/soft_max.metal.j2").source
    assert {"opencl": "__kernel void ", "cuda": "__global__ void"}[target] in text


def test_render_is_what_the_device_compiles(capsys: pytest.CaptureFixture[str]) -> None:
    device = mg.default_device()
    source = families()["soft_max"].source(device, "float")
    target = device.identifier.partition(":")[0]
    assert rendered(capsys, "soft_max", "--for", target) == device.translate(source, name="shaders/soft_max.metal.j2")


def test_render_suggests_a_name_and_lists_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    misspelt = {"softmax": "soft_max", "loss_soft_max_gradent_for_labels": "loss_soft_max_gradient_for_labels"}
    for wrong, right in misspelt.items():
        assert cli.main(["render", wrong]) == 2
        output = capsys.readouterr()
        assert output.out == ""
        lines = output.err.splitlines()
        assert lines[0] == f"mpsgrad render: there is no {wrong!r}; did you mean {right!r}?"
        assert set(families()) == set(" ".join(lines[2:]).replace(",", "").split())
    assert cli.main(["render", "zzzzz"]) == 2
    assert capsys.readouterr().err.startswith("mpsgrad render: there is no 'zzzzz'\n")


@pytest.fixture
def own_family(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers as ``soft_max`` goes when it ends."""
    monkeypatch.setitem(families(), "soft_max", families()["soft_max"])


def test_render_names_the_dtypes_that_a_family_has(capsys: pytest.CaptureFixture[str], own_family: None) -> None:
    families()["soft_max"] = ShaderFamily("soft_max", families()["soft_max"].structs, dtypes=("float",))
    assert cli.main(["render", "soft_max", "--dtype", "half"]) == 2
    assert capsys.readouterr().err == "mpsgrad render: soft_max has no half kernels, only float\n"


def test_render_uses_the_tunables_of_the_device(capsys: pytest.CaptureFixture[str], own_family: None) -> None:
    family = families()["soft_max"]
    sizes = {"apple": 32, "cpu": 64, "nvidia": 96}
    tunables = {name: {"threads": size} for name, size in sizes.items()}
    ShaderFamily("soft_max", family.structs, family.constants, tunables, family.measured)
    assert "[[max_total_threads_per_threadgroup(32)]]" in rendered(capsys, "soft_max")
    assert "reqd_work_group_size(64, 1, 1)" in rendered(capsys, "soft_max", "--for", "opencl")
    assert "__launch_bounds__(96)" in rendered(capsys, "soft_max", "--for", "cuda")


def test_render_refuses_other_dtypes_and_targets(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--dtype" in usage_error(capsys, "render", "soft_max", "--dtype", "double")
    assert "--for" in usage_error(capsys, "render", "soft_max", "--for", "vulkan")


def test_errors_of_the_package_are_printed_without_a_traceback(
    capsys: pytest.CaptureFixture[str], own_family: None
) -> None:
    ShaderFamily("soft_max")
    assert cli.main(["render", "soft_max"]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("mpsgrad: shaders/soft_max.metal.j2:")
    assert "undefined" in output.err
    assert "Traceback" not in output.err


# mpsgrad report

needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.core") is None,
    reason="cuda-core is not installed (pip install 'mpsgrad[cuda]')",
)


@needs_compiler
def test_report_lists_the_kernels_of_a_family(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", "loss", "fill", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["architecture"] == "sm_90a"
    kernels = {(row["family"], row["dtype"], row["kernel"]) for row in output["kernels"]}
    assert {("fill", "float", "fill_with_zeros"), ("loss", "half", "loss_reduce")} <= kernels
    assert all(8 <= row["registers"] <= 255 and row["threads"] % 32 == 0 for row in output["kernels"])
    assert any(row["threadgroup_bytes"] > 0 for row in output["kernels"])
    assert cli.main(["report", "fill"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "fill_with_zeros" in line]
    registers = [str(row["registers"]) for row in output["kernels"] if row["family"] == "fill"]
    assert [line.split("│")[5].strip() for line in lines] == registers


@needs_compiler
def test_report_refuses_what_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", "softmax"]) == 2
    said = "mpsgrad report: there is no family 'softmax' for NVIDIA GPUs; there are arithmetic, "
    assert capsys.readouterr().err.startswith(said)
    assert cli.main(["report", "fill", "--architecture", "sm_12"]) == 2
    assert "--architecture is 'sm_12'; it has to be one of sm_" in capsys.readouterr().err


def test_report_without_a_compiler(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    cuda_compiler.version.cache_clear()
    cuda_compiler.architectures.cache_clear()
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    assert cli.main(["report", "fill"]) == 1
    words = "mpsgrad: NVIDIA's run-time compiler cannot be loaded (pip install 'mpsgrad[cuda]')"
    assert capsys.readouterr().err.startswith(words)


# As a process


def started(*arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(mg.__file__).parent.parent), "PYTHONUNBUFFERED": ""}
    return subprocess.Popen(
        [sys.executable, "-m", "mpsgrad", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def test_the_module_runs_as_a_command() -> None:
    process = started("render", "soft_max", "--for", "metal")
    output, _ = process.communicate()
    assert process.returncode == 0
    assert output == families()["soft_max"].render("float", "apple").source
    process = started("render", "softmax")
    output, errors = process.communicate()
    assert (process.returncode, output) == (2, "")
    assert "did you mean 'soft_max'" in errors


@pytest.mark.parametrize("arguments", [["render", "soft_max"], ["render", "fill"], ["devices"]])
def test_a_reader_that_closes_the_pipe_ends_the_command_quietly(arguments: list[str]) -> None:
    process = started(*arguments)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 1
    assert "Traceback" not in errors
    assert "BrokenPipe" not in errors
