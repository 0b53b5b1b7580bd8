"""The run under compute-sanitizer: which tests it chooses, and what it takes for a finding."""

from __future__ import annotations

from pathlib import Path

import pytest
import sanitize_cuda


def test_the_chosen_tests_run_each_kernel_as_often_as_can_be() -> None:
    tests = {
        "all": [9.0, ["a", "b", "c"]],
        "ab": [0.1, ["a", "b"]],
        "b": [0.1, ["b"]],
        "a": [0.1, ["a"]],
        "slow a": [5.0, ["a"]],
        "other": [0.1, ["of a user"]],
    }
    assert sanitize_cuda.choose(tests, {"a", "b"}) == {"ab", "a", "b"}
    assert sanitize_cuda.choose(tests, {"a", "b", "c"}) == {"ab", "a", "b", "all"}
    assert sanitize_cuda.choose(tests, {"d"}) == set()


@pytest.mark.parametrize(
    ("status", "log", "words"),
    [
        (0, "3 passed\n========= ERROR SUMMARY: 0 errors\n", None),
        (0, "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n", None),
        (0, "========= RACECHECK SUMMARY: 2 hazards displayed (0 errors, 2 warnings)\n", "2 findings"),
        (86, "========= Invalid read\n========= ERROR SUMMARY: 1 error\n", "1 findings; x-0.log found something"),
        (1, "1 failed\n========= ERROR SUMMARY: 0 errors\n", "0 findings; x-0.log ended with status 1"),
        (0, "3 passed\n", "0 findings; x-0.log ended with status 0"),
        (None, "....", "0 findings; x-0.log did not end in time"),
    ],
)
def test_what_is_taken_for_a_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], status: int | None, log: str, words: str | None
) -> None:
    path = tmp_path / "x-0.log"
    path.write_text(log)
    assert sanitize_cuda.judge("x", [(status, path)]) is (words is None)
    assert capsys.readouterr().out.splitlines()[0] == f"x: {words or '0 findings'}"


def test_without_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sanitize_cuda, "program", lambda: None)
    assert sanitize_cuda.run(["memcheck"], [""], sanitize_cuda.Session(tmp_path, [], 1.0)) == 2
    assert "compute-sanitizer was not found" in capsys.readouterr().err
