"""The README's examples are run as they stand, and what it says to install can be installed."""

from __future__ import annotations

import doctest
import re
import tomllib
from pathlib import Path

import pytest

import mpsgrad as mg
from mpsgrad import cli

README = Path(__file__).parent.parent / "README.md"
CODE = "mpsgrad", "bench", "examples"


def test_the_examples_of_the_readme(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(README.parent)
    parsed = doctest.DocTestParser().get_doctest(README.read_text(), {}, "README.md", str(README), 0)
    assert len(parsed.examples) > 15
    if not mg.available_devices(("opencl",)):
        # Kernels are checked by the OpenCL device alone.
        checked = [example for example in parsed.examples if ".check(" in example.source]
        assert checked
        for example in checked:
            example.options[doctest.SKIP] = True
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(parsed, clear_globs=False).failed == 0
    drawn = parsed.globs["training"].draw(tmp_path / "training.svg")
    assert drawn == (README.parent / "docs" / "training-graph.svg").read_text(), "docs/training-graph.svg is stale"


def test_the_block_with_apples_names_runs() -> None:
    (block,) = re.findall(r"### Apple's names\n.*?```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert "commandBuffer.commit()" in block
    exec(compile(block, str(README), "exec"), {})


def test_every_extra_that_is_named_can_be_installed() -> None:
    root = README.parent
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named: dict[str, str] = {}
    for path in (README, root / "Makefile", *(path for folder in CODE for path in (root / folder).rglob("*.py"))):
        named |= {extra: path.name for extra in re.findall(r"'(?:mpsgrad|\.)\[(\w+)\]'", path.read_text())}
    assert {"bench", "cuda", "tensorboard", "test", "train"} <= set(named)
    assert {extra: file for extra, file in named.items() if extra not in extras} == {}


def test_the_metal_source_of_the_readme_is_the_example() -> None:
    blocks = re.findall(r"```metal\n(.*?)```", README.read_text(), re.DOTALL)
    assert blocks == [(README.parent / "examples" / "swish.metal").read_text()]


def test_the_run_command_of_the_readme(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(README.parent)
    found = re.search(r"\$ mpsgrad (run .*)\n(y = .*)\nGPU time: .* ms\n", README.read_text())
    assert found is not None
    assert cli.main(found[1].split()) == 0
    numbers = re.findall(r"-?[0-9.]+", found[2])
    printed = capsys.readouterr().out.splitlines()
    assert [float(each) for each in re.findall(r"-?[0-9.]+", printed[0])] == pytest.approx(
        [float(each) for each in numbers], abs=2e-6
    )
    assert printed[1].startswith("GPU time: ")


def test_the_checked_run_of_the_readme(
    opencl_device: mg.Device, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(README.parent)
    pattern = r"\$ mpsgrad (check .*--run .*)\n(.*\n.*\n.*\n)\.\.\.\n\$ mpsgrad (check --explain .*)\n"
    found = re.search(pattern, README.read_text())
    assert found is not None
    assert cli.main(found[1].split()) == 1
    assert found[2] in capsys.readouterr().out
    assert cli.main(found[3].split()) == 0
