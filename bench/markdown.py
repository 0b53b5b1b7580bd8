"""Reports as Markdown: a table of every row, and the summary that the README shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.screen import number
from bench.summary import summaries

Report = Mapping[str, Any]


def ratio(value: float | None) -> str:
    """A ratio, with a red mark where PyTorch is faster."""
    if value is None:
        return ""
    return f"🔴 {value:.2f}" if value < 1 else f"**{value:.2f}**"


def score(report: Report) -> str:
    """How many rows are faster than PyTorch's at the same precision, in a sentence."""
    rows = [row for row in report["rows"] if row["torch_precision"] != "tf32"]
    ratios = [row["ratio"] for row in rows if row["ratio"] is not None]
    return f"Faster than PyTorch: {sum(ratio >= 1 for ratio in ratios)} of {len(ratios)} rows."


def conditions(report: Report) -> str:
    """What was measured where, in a sentence."""
    versions = report["versions"]
    torch = f"PyTorch {versions['torch']}" if "torch" in versions else "no PyTorch"
    limits = [f"a copy moved {report['copy_gbps']:,.0f} GB/s"]
    limits += [f"{dtype} products ran at {rate:.3g} TFLOP/s" for dtype, rate in report["peak_tflops"].items()]
    return f"Measured on {report['date']} beside {torch}; in the same run {', '.join(limits)}."


def _table(header: Sequence[str], numbers_from: int, rows: Iterable[Sequence[str]]) -> list[str]:
    rule = ["---"] * numbers_from + ["---:"] * (len(header) - numbers_from)
    lines = [f"| {' | '.join(header)} |", f"|{'|'.join(rule)}|"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def summary(report: Report) -> str:
    """A line for each op over its ``design`` shapes: geometric means, and the worst of the errors."""
    rows = [row for row in report["rows"] if row["group"] == "design"]
    has_compiled = any(row["compiled_ratio"] is not None for row in rows)
    header = ["op", "dtype", "PyTorch / ours", "lowest", *["compiled / ours"] * has_compiled]
    header += ["of copy", "of peak", "error", "PyTorch's error"]
    lines = []
    for each in summaries(rows):
        precision = f"{each.dtype} (PyTorch: TF32)" if each.torch_precision == "tf32" else each.dtype
        cells = [f"`{each.op}`", precision, ratio(each.ratio), ratio(each.lowest_ratio)]
        cells += [ratio(each.compiled_ratio)] * has_compiled
        cells += [f"{each.fraction_of_copy:.2f}", number(each.fraction_of_peak, ".2f")]
        cells += [number(each.error, ".0e"), number(each.torch_error, ".0e")]
        lines.append(cells)
    return "\n".join(_table(header, 2, lines))


def training(report: Report) -> str:
    """What ``bench.training`` measured: its conditions, and a line for each way to train."""
    versions = report["versions"]
    torch = f"PyTorch {versions['torch']}" if "torch" in versions else "no PyTorch"
    header = ["", "images/s", "ms a step", "host ms a step", "host µs a dispatch", "GPU ms a step", "GPU idle"]
    lines = [
        [
            row["name"],
            f"{row['images_per_second']:,.0f}",
            f"{row['step_ms']:.3f}",
            f"{row['host_ms']:.3f}",
            number(row["host_us_per_dispatch"], ".2f"),
            number(row["gpu_ms"], ".3f"),
            number(row["gpu_idle_share"], ".0%"),
        ]
        for row in report["rows"]
    ]
    text = (
        f"Training (`python -m bench.training`), measured on {report['date']} beside {torch}: batches of "
        f"{report['batch_size']} pictures of 32 x 32 x 3, float32, {report['dispatches']} dispatches a step."
    )
    return "\n".join([text, "", *_table(header, 1, lines)])


def full(report: Report, plots: Sequence[str]) -> str:
    """A page with every row, what failed and what was left out."""
    rows = report["rows"]
    has_cold = any(row["cold_ms"] is not None for row in rows)
    header = ["op", "shape", "dtype", "ms", "p20-p80", "of copy", "GFLOP/s", "of peak", "PyTorch ms", "layout"]
    header += ["PyTorch / ours", "p20-p80", "compiled / ours"]
    header += ["cold ms", "cold ratio", "alone ms", "alone ratio"] * has_cold
    header += ["error", "PyTorch's error"]
    lines = []
    for row in rows:
        precision = f"{row['dtype']} (PyTorch: TF32)" if row["torch_precision"] == "tf32" else row["dtype"]
        cells = [
            f"`{row['op']}`",
            row["shape"],
            precision,
            f"{row['median_ms']:.4g}",
            f"{row['p20_ms']:.4g}-{row['p80_ms']:.4g}",
            f"{row['fraction_of_copy']:.2f}",
            number(row["tflops"] and row["tflops"] * 1e3, ".4g"),
            number(row["fraction_of_peak"], ".2f"),
            number(row["torch_ms"], ".4g"),
            row["torch_layout"] or "",
            ratio(row["ratio"]),
            f"{row['ratio_p20']:.2f}-{row['ratio_p80']:.2f}" if row["ratio"] is not None else "",
            ratio(row["compiled_ratio"]),
        ]
        if has_cold:
            cells += [number(row["cold_ms"], ".4g"), ratio(row["cold_ratio"])]
            cells += [number(row["alone_ms"], ".4g"), ratio(row["alone_ratio"])]
        cells += [number(row["error"], ".1e"), number(row["torch_error"], ".1e")]
        lines.append(cells)
    page = [f"# Benchmark: {report['device']}", "", conditions(report), ""]
    page += [f"![{plot}]({plot})" for plot in plots]
    page += ["", *_table(header, 3, lines), ""]
    for row in rows:
        for layout, reason in row["torch_disagrees"].items():
            page.append(f"* `{row['op']}` {row['shape']} {row['dtype']}: PyTorch's {layout} is left out: {reason}")
    page += [f"* failed: {each['row']}: {each['reason']}" for each in report["failures"]]
    if report["left_out"]:
        page.append(f"* The time was over before {len(report['left_out'])} rows: {'; '.join(report['left_out'])}.")
    return "\n".join(page).rstrip() + "\n"
