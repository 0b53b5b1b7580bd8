"""Tuning: which number wins, that results stay right with every one, and what is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import mpsgrad as mg
from bench import tune
from bench.selection import all_cases
from bench.timing import Measurement, summarize
from mpsgrad.shader import use_tunables
from mpsgrad.tunables import CHOICES, Tunables, read, tunables

NO_RECOMPILATION = ("soft_max_elements_per_simdgroup", "chunk_elements", "most_chunks")
"""Numbers that kernels get as parameters."""


@pytest.fixture(autouse=True)
def present_numbers(device: mg.Device) -> Iterator[Tunables]:
    before = tunables(device.tuning)
    yield before
    use_tunables(device.tuning, before)


class _Timer:
    """Says that a number is the faster the nearer it is to 2048, and which numbers took turns."""

    def __init__(self, device: mg.Device, name: str) -> None:
        self.device, self.name = device, name
        self.seen: list[int] = []

    def measure(self, work: Any, calls: Mapping[str, Any], samples: int, seconds: float) -> Measurement:
        assert not calls
        number = getattr(tunables(self.device.tuning), self.name)
        self.seen.append(number)
        return Measurement(summarize([1e-3 * (1 + abs(number - 2048))], {}))


def test_every_tunable_has_ops_that_show_it() -> None:
    assert tune.OPS.keys() == CHOICES.keys()
    ops = {case.op for case in all_cases("float32", "gpu")}
    assert {op for names in tune.OPS.values() for op in names} <= ops


@pytest.mark.parametrize("name", NO_RECOMPILATION)
def test_the_fastest_number_wins_and_all_are_checked_in_turns(name: str, device: mg.Device) -> None:
    timer = _Timer(device, name)
    numbers = tune.tuned(device, timer, [name], Console(quiet=True))
    assert getattr(numbers, name) == 2048
    cases = [case for case in all_cases("float32", "cpu") if case.op in tune.OPS[name]]
    assert timer.seen == list(CHOICES[name]) * tune.ROUNDS * len(cases)
    assert tunables(device.tuning) is numbers


def test_a_number_that_gives_wrong_results_is_no_choice(device: mg.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(work: Any, parts: Any) -> None:
        raise AssertionError("wrong")

    before = tunables(device.tuning)
    monkeypatch.setattr(tune, "check_ours", wrong)
    with pytest.raises(AssertionError, match="wrong"):
        tune.tuned(device, _Timer(device, "chunk_elements"), ["chunk_elements"], Console(quiet=True))
    assert tunables(device.tuning) is before


def test_a_little_faster_is_not_enough() -> None:
    assert tune.best("x", 4, {2: 1.0, 4: 1.01, 8: 3.0}) == 4
    assert tune.best("x", 4, {2: 1.0, 4: 1.03, 8: 3.0}) == 2


def test_the_command_writes_the_file_of_the_family(
    tmp_path: Path, device: mg.Device, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tune, "SAMPLES", 1)
    monkeypatch.setattr(tune, "ROUNDS", 1)
    monkeypatch.setattr(tune, "SECONDS_PER_ROW", 0.0)
    output = tmp_path / "x.toml"
    use_tunables(device.tuning, tunables(device.tuning).with_number("optimizer_elements_per_thread", 16384))
    assert tune.main(["--only", "most_chunks", "--output", str(output)]) == 0
    assert read(output).optimizer_elements_per_thread == 16384
    assert device.name in output.read_text()
    assert "most_chunks" in capsys.readouterr().out
