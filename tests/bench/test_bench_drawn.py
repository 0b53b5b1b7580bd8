"""Drawn shapes: the same of the same seed, of every module, fair when time is short, and checked as the fixed ones."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from by_turns import by_turns
from tiny_rows import DRAWN_IN_USE

import mpsgrad as mg
from bench import __main__ as command_line
from bench import drawn, selection
from bench.case import Case
from bench.check import check_ours, run_once
from bench.drawn import Draw
from bench.families import family_of, pass_of
from bench.selection import DTYPES, modules, selected_drawn
from mpsgrad import reference


def _names(cases: list[Case]) -> list[str]:
    return [case.name for case in cases]


def _run(tmp_path: Any, *arguments: str, status: int = 0) -> dict[str, Any]:
    path = tmp_path / "results.json"
    assert command_line.main(["--quick", "--output", str(path), *arguments]) == status
    return json.loads(path.read_text())


@pytest.fixture
def as_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits that a user's run has: nothing is computed."""
    for name, value in DRAWN_IN_USE.items():
        monkeypatch.setattr(drawn, name, value)


@pytest.mark.parametrize("hardware", ["cpu", "gpu"])
@pytest.mark.usefixtures("as_in_use")
def test_the_same_seed_draws_the_same_and_another_seed_others(hardware: str) -> None:
    first = _names(selected_drawn(hardware, None, None, 7))
    assert first == _names(selected_drawn(hardware, None, None, 7))
    others = _names(selected_drawn(hardware, None, None, 8))
    assert len(set(first) & set(others)) < len(first) / 20


@pytest.mark.usefixtures("as_in_use")
def test_options_leave_the_same_cases_in_the_same_order() -> None:
    everything = selected_drawn("cpu", None, None, 3)
    assert {case.dtype for case in everything} == set(DTYPES)
    assert {case.group for case in everything} == {drawn.GROUP}
    gradients = selected_drawn("cpu", None, ["pooling", "soft_max_gradient"], 3)
    assert gradients
    assert _names(gradients) == _names(
        [case for case in everything if "pooling" in case.op or "soft_max_gradient" in case.op]
    )
    halves = selected_drawn("cpu", "float16", None, 3)
    assert halves
    assert _names(halves) == _names([case for case in everything if case.dtype == "float16"])


@pytest.mark.parametrize("hardware", ["cpu", "gpu"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("module", modules())
@pytest.mark.usefixtures("as_in_use")
def test_every_module_draws_as_many_shapes_and_none_that_takes_long(module: str, dtype: str, hardware: str) -> None:
    cases = selection.drawn_cases(module, dtype, hardware, 5)
    if (module, dtype) == ("optimizer", "float16"):
        assert not cases
        return
    shapes = Counter(case.shape for case in cases)
    assert len(shapes) > selection.DRAWN_SHAPES / 2
    assert selection.DRAWN_SHAPES <= len(cases) <= selection.CASES_OF_A_SHAPE * selection.DRAWN_SHAPES
    most = {"cpu": 2e9, "gpu": 3e10}[hardware]
    assert all(0 < case.nbytes < most / 10 and case.operations < most for case in cases)


@pytest.mark.usefixtures("as_in_use")
def test_the_beginning_of_a_run_is_of_all_families() -> None:
    cases = selected_drawn("cpu", None, None, 0)
    beginning = cases[: len(cases) // 4]
    assert {family_of(case.op) for case in beginning} == {family_of(case.op) for case in cases}
    assert {case.dtype for case in beginning} == set(DTYPES)


@pytest.mark.usefixtures("as_in_use")
def test_shapes_are_small_and_large_odd_and_even() -> None:
    draw = Draw(1, "any", "float32", "cpu")
    shapes = np.array([draw.shape() for _ in range(400)])
    assert shapes.min() == 1
    sizes = shapes.prod(1)
    assert sizes.min() < 2 * drawn.LEAST_ELEMENTS["cpu"] and sizes.max() > drawn.MOST_ELEMENTS["cpu"] / 2
    assert shapes[:, 1:].prod(1).max() < 2 * drawn.MOST_OF_AN_IMAGE
    images, heights, widths, channels = shapes.T
    assert images.max() > drawn.MOST_IMAGES["cpu"] / 2
    assert 0.2 < (channels <= 8).mean() < 0.6 and channels.max() > drawn.MOST_CHANNELS / 2
    assert 0.2 < (channels % 4 == 0).mean() < 0.7
    assert 0.3 < (heights % 2).mean() < 0.7
    assert (heights > widths).any() and (heights < widths).any()
    few = np.array([draw.shape(smallest=5, channels=3, most_elements=2**12) for _ in range(100)])
    assert few[:, 1:3].min() >= 5 and set(few[:, 3]) == {3}
    assert np.median(few.prod(1)) <= 2**12


@pytest.mark.parametrize(("module", "dtype"), by_turns(modules(), DTYPES, of=2))
def test_what_is_drawn_passes_its_check(module: str, dtype: str, device: mg.Device) -> None:
    for case in selection.drawn_cases(module, dtype, "cpu", 2):
        work = case.prepare(device)
        run_once(work, device)
        assert check_ours(work, work.parts()).over_bound <= 1, case.name


def test_grouped_convolutions_are_checked_too(device: mg.Device) -> None:
    convolution = importlib.import_module("bench.rows.convolution")
    for row in (
        convolution.Row(2, 6, 6, 3, 9, padding=1, groups=3),
        convolution.Row(2, 5, 4, 3, 8, stride=2, groups=2),
        convolution.Row(2, 5, 4, 3, 4, groups=4),
    ):
        for case in convolution.cases_of(row, "float32", "drawn"):
            work = case.prepare(device)
            run_once(work, device)
            assert check_ours(work, work.parts()).over_bound <= 1
        assert ("depthwise" in row.text) == (row.groups == row.inputs)


def test_a_run_reports_families_and_gradients_apart(
    tmp_path: Any, device: mg.Device, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    report = _run(tmp_path, "--drawn", "4", "--ops", "soft_max", "pad")
    expected = selected_drawn(selection.hardware(device), None, ["soft_max", "pad"], 4)
    assert [(row["op"], row["shape"], row["dtype"], row["group"]) for row in report["rows"]] == [
        (case.op, case.shape, case.dtype, "drawn") for case in expected
    ]
    assert report["drawn"]["seed"] == 4
    seen = {(each["family"], each["is_gradient"], each["dtype"]): each for each in report["drawn"]["families"]}
    assert sum(each["rows"] for each in seen.values()) == len(expected)
    for (family, is_gradient, dtype), each in seen.items():
        rows = [row for row in report["rows"] if (family_of(row["op"]), row["dtype"]) == (family, dtype)]
        rows = [row for row in rows if bool(pass_of(row["op"])) is is_gradient]
        assert each["rows"] == len(rows)
        ratios = [row["ratio"] for row in rows if row["ratio"] is not None]
        assert each["lowest_ratio"] == min(ratios)
        assert each["share_not_slower"] == np.mean(np.array(ratios) >= 1)
        assert each["ratio"] == pytest.approx(np.exp(np.mean(np.log(ratios))))
        assert min(ratios) <= each["ratio_p20"] == pytest.approx(np.percentile(ratios, 20))
    printed = capsys.readouterr().out
    assert "drawn shapes" in printed and "softmax, gradient" in printed and "geometric means" not in printed


def test_fixed_rows_have_no_families(tmp_path: Any) -> None:
    report = _run(tmp_path, "--ops", "soft_max_gradient")
    assert "drawn" not in report
    assert "drawn" not in {row["group"] for row in report["rows"]}


def test_a_wrong_result_of_a_drawn_shape_is_reported(
    tmp_path: Any, device: mg.Device, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    exact = reference.pad
    monkeypatch.setattr(reference, "pad", lambda *arguments: exact(*arguments) + 1)
    report = _run(tmp_path, "--drawn", "4", "--ops", "pad", "--dtype", "float32", status=1)
    drawn_rows = selected_drawn(selection.hardware(device), "float32", ["pad"], 4)
    wrong = [case for case in drawn_rows if "gradient" not in case.op]
    assert wrong
    assert [failure["row"] for failure in report["failures"]] == _names(wrong)
    assert f"failed: {wrong[0].name}" in capsys.readouterr().out


def test_a_seed_below_0_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command_line.main(["--drawn", "-1"])
    assert "-1 is below 0" in capsys.readouterr().err
