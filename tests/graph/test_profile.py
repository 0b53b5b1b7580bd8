"""``Graph.profile``: every filter has a time and a part of the trace, and nothing is updated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_updates import digits_network

import mpsgrad as mg
from mpsgrad.training import digits
from mpsgrad.training.graph_network import GraphNetwork

RANDOM = np.random.default_rng(6)


@pytest.fixture(scope="module")
def graph() -> GraphNetwork:
    return digits_network(batch_size=8)


def require_trace(path: Path) -> list[dict[str, Any]]:
    """The events of a trace, after what the Trace Event Format asks of each was checked."""

    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is no JSON number")

    trace = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    assert trace["displayTimeUnit"] in ("ms", "ns")
    named = set()
    for event in trace["traceEvents"]:
        assert isinstance(event["pid"], int) and isinstance(event["name"], str) and isinstance(event["args"], dict)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name") and isinstance(event["args"]["name"], str)
            named.add((event["pid"], event.get("tid")))
            continue
        assert event["ph"] == "X" and isinstance(event["cat"], str)
        assert all(isinstance(event[key], (int, float)) and event[key] >= 0 for key in ("ts", "dur"))
        assert isinstance(event["tid"], int) and (event["pid"], event["tid"]) in named
    return trace["traceEvents"]


def test_every_filter_is_timed_and_nothing_is_updated(graph: GraphNetwork, tmp_path: Path) -> None:
    before = graph.parameters()
    pictures = mg.Image.from_array(RANDOM.standard_normal((8, 8, 8, 1)).astype(np.float32))
    labels = mg.LossLabels.from_array(digits.one_hot(RANDOM.integers(0, 10, 8)))
    profile = graph.training.profile([pictures], [labels], repeats=2)
    for name, value in graph.parameters().items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)
    plan = graph.training.last_plan
    assert plan is not None
    assert len(profile.filters) == len(plan.steps) == 17 and len(graph.training.filters) == 21
    assert all(each.seconds > 0 and each.nbytes > 0 for each in profile.filters)
    first = profile.filters[0]
    assert (first.name, first.shape, first.is_backward) == ("convolution_1", "8x8x8x16", False)
    assert first.nbytes == 4 * (8 * 8 * 8 + 8 * 8 * 8 * 16 + 160)
    last = profile.filters[-1]
    assert last.name == "convolution_1 gradient"
    assert last.nbytes == 4 * (8 * 8 * 8 + 8 * 8 * 8 * 16 + 160), "the gradient for the pictures is left out"
    assert profile.seconds == pytest.approx(sum(each.seconds for each in profile.filters))
    lines = str(profile).splitlines()
    assert len(lines) == 19 and lines[1].startswith("convolution_1") and "GB/s" in lines[-1]
    path = tmp_path / "trace.json"
    profile.write_trace(path)
    events = require_trace(path)
    timed = [event for event in events if event["ph"] == "X"]
    assert [event["name"] for event in timed] == [each.name for each in profile.filters]
    for event, following in zip(timed, timed[1:], strict=False):
        assert following["ts"] == pytest.approx(event["ts"] + event["dur"])
    assert {event["tid"] for event in timed} == {1, 2}
    # The loss was computed, as the forward pass ends with it.
    assert np.asarray(labels.loss_image).min() > 0


def test_temporary_sources_are_refused(graph: GraphNetwork) -> None:
    commands = mg.CommandBuffer()
    source = mg.TemporaryImage(commands, mg.ImageDescriptor(width=8, height=8))
    labels = mg.LossLabels.from_array(digits.one_hot(np.zeros(1, int)))
    with pytest.raises(mg.StateError, match="temporary"):
        graph.training.profile([source], [labels])
