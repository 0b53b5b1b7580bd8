"""The bench of what replays cost the host."""

from __future__ import annotations

import pytest

import mpsgrad as mg
from bench import replay


def test_it_prints_the_cost_of_a_node(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(replay, "REPLAYS", 2)
    replay.main(["--model", "lenet", "--device", mg.default_device().identifier])
    title, *costs = capsys.readouterr().out.splitlines()
    assert "lenet, 23 nodes" in title
    assert [line.split(":")[0] for line in costs] == ["median", "fastest"]
    assert all("us a node" in line for line in costs)
