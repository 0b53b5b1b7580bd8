"""What is shown of results: tables, plots, and that the README shows the committed ones."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench import markdown, publish, reasons
from bench.plots import write_plots
from bench.summary import geometric_mean, summaries

ROW: dict[str, Any] = {
    "op": "pooling_max",
    "shape": "2x8x8x64 2x2/2",
    "dtype": "float32",
    "group": "design",
    "torch_precision": "float32",
    "samples": 5,
    "median_ms": 1.0,
    "p20_ms": 0.9,
    "p80_ms": 1.1,
    "torch_ms": 2.0,
    "torch_layout": "NHWC",
    "ratio": 2.0,
    "ratio_p20": 1.9,
    "ratio_p80": 2.1,
    "torch_layouts_ms": {"NHWC": 2.0},
    "compiled_ms": None,
    "compiled_ratio": None,
    "gbps": 100.0,
    "fraction_of_copy": 0.5,
    "tflops": 0.25,
    "fraction_of_peak": 0.25,
    "cold_ms": None,
    "cold_torch_ms": None,
    "cold_ratio": None,
    "alone_ms": None,
    "alone_torch_ms": None,
    "alone_ratio": None,
    "error": 1e-7,
    "torch_error": 2e-7,
    "torch_disagrees": {},
    "other_cores": 0.0,
}
REPORT: dict[str, Any] = {
    "device": "A device",
    "hardware": "gpu",
    "driver": "1",
    "date": "2026-01-02",
    "versions": {"torch": "2.0"},
    "copy_gbps": 200.0,
    "peak_tflops": {"float32": 2.0},
    "rows": [],
    "failures": [],
    "left_out": [],
    "host_cost_us": {},
}


def _report(*changes: dict[str, Any]) -> dict[str, Any]:
    """A report with a row for each of ``changes``."""
    return {**copy.deepcopy(REPORT), "rows": [{**copy.deepcopy(ROW), **change} for change in changes]}


def test_a_summary_has_geometric_means_and_extremes() -> None:
    rows = _report({"ratio": 0.5}, {"ratio": 8.0, "error": 3e-7}, {"ratio": None, "torch_error": None})["rows"]
    (summary,) = summaries(rows)
    assert (summary.rows, summary.slower) == (3, 1)
    assert (summary.ratio, summary.lowest_ratio) == (pytest.approx(2.0), 0.5)
    assert (summary.error, summary.torch_error) == (3e-7, 2e-7)
    assert summary.fraction_of_copy == pytest.approx(0.5)
    assert geometric_mean([None]) is None


def test_rows_are_summed_up_by_op_dtype_precision_and_group() -> None:
    rows = _report({}, {"dtype": "float16"}, {"torch_precision": "tf32"}, {"group": "scan"}, {"op": "other"})["rows"]
    assert [each.rows for each in summaries(rows)] == [1] * 5


def test_the_summary_shows_design_rows_only_and_slower_ones_in_red() -> None:
    text = markdown.summary(_report({"ratio": 0.5}, {"op": "soft_max"}, {"op": "neuron_relu", "group": "scan"}))
    assert "| `pooling_max` | float32 | 🔴 0.50 | 🔴 0.50 | 0.50 | 0.25 | 1e-07 | 2e-07 |" in text
    assert "| `soft_max` | float32 | **2.00** |" in text
    assert "neuron_relu" not in text
    assert "compiled" not in text
    assert "| **4.00** |" in markdown.summary(_report({"compiled_ratio": 4.0}))


def test_families_stand_beside_each_other_for_all_devices() -> None:
    gpu = _report(
        {"ratio": 4.0},
        {"op": "pooling_average", "ratio": 0.5, "dtype": "float16"},
        {"op": "pooling_max_recorded", "ratio": 0.25},
        {"op": "pooling_max", "ratio": 9.0, "group": "scan"},
        {"op": "convolution", "ratio": 9.0, "torch_precision": "tf32"},
        {"op": "convolution_gradient_weights", "ratio": 3.0},
        {"op": "loss_gradient_huber", "ratio": None},
    )
    cpu = {**_report({"ratio": 2.0}, {"op": "something_new_gradient", "ratio": 1.5}), "device": "A CPU"}
    assert markdown.by_family([gpu, cpu]).splitlines() == [
        "| ops | A device, float32 | A device, float16 | A CPU, float32 |",
        "|---|---:|---:|---:|",
        "| convolution, gradient for weights | **3.00** (3.00) |  |  |",
        "| pooling | **1.00** (0.25) | 🔴 0.50 (0.50) | **2.00** (2.00) |",
        "| others, gradient |  |  | **1.50** (1.50) |",
    ]


def test_the_score_counts_rows_of_the_same_precision() -> None:
    report = _report({}, {"ratio": 0.9}, {"ratio": None}, {"torch_precision": "tf32", "ratio": 0.1})
    assert markdown.score(report) == "Faster than PyTorch: 1 of 2 rows."


def test_a_page_has_every_op_every_row_and_what_went_wrong() -> None:
    report = _report({}, {"group": "scan", "torch_disagrees": {"NHWC": "off by 7"}}, {"ratio": None, "torch_ms": None})
    report["hardware"] = "cpu"
    report["failures"] = [{"row": "soft_max 1x1", "reason": "wrong"}]
    report["left_out"] = ["a row", "another"]
    text = markdown.full(report, {"x-ratios.svg": "The ratios."})
    summary, rows = text.split("## Every row")
    assert summary.count("| `pooling_max` |") == 1
    assert rows.count("| `pooling_max` |") == 3
    assert "a copy moved 200 GB/s, float32 products ran at 2 TFLOP/s" in text
    assert "PyTorch's NHWC is left out: off by 7" in text
    assert "failed: soft_max 1x1: wrong" in text
    assert "The time was over before 2 rows: a row; another." in text
    assert "![The ratios.](x-ratios.svg)\n\nThe ratios.\n" in text
    assert "cold" not in text
    cold = markdown.full(_report({"cold_ms": 3.0, "cold_ratio": 0.9, "alone_ms": 5.0, "alone_ratio": 1.5}), {})
    assert "| 3 | 🔴 0.90 | 5 | **1.50** |" in cold


def test_slower_rows_have_reasons_and_the_slowest_is_first() -> None:
    slow = {"ratio": 0.5, "ratio_p80": 0.6}
    report = _report(
        {},
        {**slow, "op": "a", "ratio": 0.9},
        {**slow, "op": "b", "torch_precision": "tf32"},
        {**slow, "op": "c", "ratio": 0.95, "ratio_p80": 1.02},
        {**slow, "op": "d", "ratio": 0.6, "median_ms": 0.008},
        {**slow, "op": "e", "ratio": 0.7, "fraction_of_copy": 0.9},
        {**slow, "op": "f", "ratio": 0.75, "fraction_of_copy": 1.4},
        {**slow, "op": "g", "ratio": 0.8, "fraction_of_peak": 0.85},
    )
    found = {line.split("|")[1].strip(" `"): line for line in markdown.slower(report).splitlines()[2:]}
    assert list(found) == ["b", "d", "e", "f", "g", "a", "c"]
    for op, words in {"b": "TF32", "c": "as fast", "d": "short", "e": "copy bandwidth", "g": "arithmetic"}.items():
        assert words in found[op]
    assert reasons.UNKNOWN in found["a"] and reasons.UNKNOWN in found["f"]


def test_rows_that_move_bytes_slowly_on_gpus_have_reasons_and_the_slowest_is_first() -> None:
    slow = {"fraction_of_copy": 0.5, "fraction_of_peak": 0.1, "median_ms": 0.1}
    rows = (
        {**slow, "op": "a"},
        {**slow, "op": "b", "fraction_of_copy": 0.7},
        {**slow, "op": "c", "fraction_of_peak": 0.6},
        {**slow, "op": "d", "median_ms": 0.01},
        {**slow, "op": "pooling_max", "fraction_of_copy": 0.2, "fraction_of_peak": None, "ratio": None},
        {**slow, "op": "f", "torch_precision": "tf32"},
    )
    report = {**_report(*rows), "hardware": "gpu"}
    found = [line.split("|")[1].strip(" `") for line in markdown.slow_bytes(report).splitlines()[2:]]
    assert found == ["pooling_max", "a"]
    assert markdown.slow_bytes(report) in markdown.full(report, {})
    assert reasons.reason_for_bytes(report["rows"][0], report) == reasons.UNKNOWN
    assert markdown.slow_bytes({**report, "hardware": "cpu"}) == ""


@pytest.mark.parametrize("subject", ["row", "bytes"])
def test_reasons_by_name_are_of_published_rows(subject: str) -> None:
    rows = [{**row, "device": each["device"]} for each in publish.reports().values() for row in each["rows"]]
    assert reasons.named(subject)
    for entry in reasons.named(subject):
        patterns = {name: pattern for name, pattern in entry.items() if name != "reason"}
        assert any(all(re.fullmatch(patterns[name], row[name]) for name in patterns) for row in rows), patterns


def test_every_table_has_as_many_cells_in_each_line(tmp_path: Path) -> None:
    for report in (_report({"ratio": 0.9}), _report({"cold_ms": 1.0, "compiled_ratio": 2.0})):
        for text in markdown.full(report, {}).split("\n## "):
            table = [line for line in text.splitlines() if line.startswith("|")]
            assert len({line.count("|") for line in table}) <= 1


def test_plots_are_svg_and_the_same_at_each_run(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    scan = [{"group": "scan", "shape": f"{n}x8x8x64 2x2/2", "gbps": 10.0 * n} for n in (1, 4, 16)]
    report = _report({}, {"op": "soft_max", "ratio": 0.5}, {"dtype": "float16"}, *scan)
    report["peak_tflops"]["float16"] = 8.0
    paths = write_plots(report, tmp_path, "x")
    assert [path.name for path in paths] == [f"x-{kind}.svg" for kind in publish.CAPTIONS]
    first = [path.read_bytes() for path in paths]
    assert [path.read_bytes() for path in write_plots(report, tmp_path, "x")] == first
    for path in paths:
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
    assert b"#c62828" in first[0], "the slower op is red"
    assert b"#2a7f3f" in first[0]


def test_there_are_no_plots_without_rows_for_them(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert write_plots(_report(), tmp_path, "x") == []
    report = _report({"ratio": None})
    report["peak_tflops"] = {}
    assert write_plots(report, tmp_path, "x") == []


def test_the_section_of_the_readme_is_replaced() -> None:
    readme = f"a\n{publish.BEGIN}old\n{publish.END}b\n"
    assert publish.with_section(readme, "new\n") == f"a\n{publish.BEGIN}new\n{publish.END}b\n"
    with pytest.raises(ValueError, match="has no lines"):
        publish.with_section("no section", "new\n")
    before, after = (f"{publish.BEGIN_SCORES}{line}{publish.END}{readme}" for line in ("", "new\n"))
    assert publish.with_section(before, "new\n", publish.BEGIN_SCORES) == after


def test_reports_of_gpus_come_first(tmp_path: Path) -> None:
    for name, hardware in (("a", "cpu"), ("b", "gpu")):
        (tmp_path / f"{name}.json").write_text(json.dumps({"hardware": hardware}))
    assert list(publish.reports(tmp_path)) == ["b", "a"]


def test_the_readme_and_the_pages_show_the_committed_results() -> None:
    """If this fails, run ``python -m bench.publish``."""
    readme = publish.README.read_text()
    assert publish.published(readme) == readme
    for name, report in publish.reports().items():
        assert (publish.RESULTS / f"{name}.md").read_text() == publish.page(name, report)
        assert (publish.RESULTS / f"{name}-ratios.svg").is_file()
