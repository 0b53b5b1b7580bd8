"""The README's examples are run as they stand."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from mpsgrad import cli

README = Path(__file__).parent.parent / "README.md"


def test_the_examples_of_the_readme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(README.parent)
    result = doctest.testfile(str(README), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert result.attempted > 15
    assert result.failed == 0


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


def test_the_checked_run_of_the_readme(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(README.parent)
    pattern = r"\$ mpsgrad (check .*--run .*)\n(.*\n.*\n.*\n)\.\.\.\n\$ mpsgrad (check --explain .*)\n"
    found = re.search(pattern, README.read_text())
    assert found is not None
    assert cli.main(found[1].split()) == 1
    assert found[2] in capsys.readouterr().out
    assert cli.main(found[3].split()) == 0
