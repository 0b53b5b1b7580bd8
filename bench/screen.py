"""The tables that a run prints; a ratio below 1, where PyTorch is faster, is red."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.host_cost import HostCost
from bench.load import TOLERABLE_CORES
from bench.summary import FamilySummary, summaries


def number(value: float | None, form: str) -> str:
    """``value`` in a format such as ".2f"; empty if there is none."""
    return "" if value is None else format(value, form)


def ratio(value: float | None) -> str:
    """A ratio with its colour."""
    return "" if value is None else f"[{'red' if value < 1 else 'green'}]{value:.2f}[/]"


def rows_table(rows: list[dict[str, Any]], title: str) -> Table:
    table = Table(title=title)
    for column in ("op", "shape"):
        table.add_column(column, no_wrap=True)
    has_cold = any(row["cold_ms"] is not None for row in rows)
    has_compiled = any(row["compiled_ms"] is not None for row in rows)
    columns = ["dtype", "ms", "p20-p80", "of copy", "GFLOP/s", "of peak", "PyTorch ms", "layout", "ratio", "p20-p80"]
    columns += ["compiled ratio"] * has_compiled
    columns += ["cold ms", "cold ratio", "alone ms", "alone ratio"] * has_cold
    columns += ["error", "PyTorch's error"]
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        cells = [
            row["dtype"] + (" (PyTorch: TF32)" if row["torch_precision"] == "tf32" else ""),
            f"{row['median_ms']:.4f}",
            f"{row['p20_ms']:.4f}-{row['p80_ms']:.4f}",
            f"{row['fraction_of_copy']:.2f}",
            f"{row['tflops'] * 1e3:.0f}",
            number(row["fraction_of_peak"], ".2f"),
            number(row["torch_ms"], ".4f"),
            row["torch_layout"] or "",
            ratio(row["ratio"]),
            f"{row['ratio_p20']:.2f}-{row['ratio_p80']:.2f}" if row["ratio"] is not None else "",
        ]
        cells += [ratio(row["compiled_ratio"])] * has_compiled
        if has_cold:
            cells += [number(row["cold_ms"], ".4f"), ratio(row["cold_ratio"])]
            cells += [number(row["alone_ms"], ".4f"), ratio(row["alone_ratio"])]
        cells += [f"{row['error']:.1e}", number(row["torch_error"], ".1e")]
        table.add_row(row["op"], row["shape"], *cells)
    return table


def summary_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="geometric means")
    for column in ("op", "shapes"):
        table.add_column(column, no_wrap=True)
    for column in ("dtype", "rows", "slower", "ratio", "lowest", "of copy", "of peak"):
        table.add_column(column, justify="right")
    for each in summaries(rows):
        table.add_row(
            each.op,
            each.group,
            each.torch_precision,
            str(each.rows),
            str(each.slower),
            ratio(each.ratio),
            ratio(each.lowest_ratio),
            f"{each.fraction_of_copy:.2f}",
            number(each.fraction_of_peak, ".2f"),
        )
    return table


def families_table(families: Iterable[FamilySummary]) -> Table:
    table = Table(title="drawn shapes")
    for column in ("ops", "dtype"):
        table.add_column(column, no_wrap=True)
    for column in ("rows", "not slower", "ratio", "p20", "lowest"):
        table.add_column(column, justify="right")
    for each in families:
        table.add_row(
            each.family + (", gradient" if each.is_gradient else ""),
            each.dtype,
            str(each.rows),
            number(each.share_not_slower, ".0%"),
            *(ratio(value) for value in (each.ratio, each.ratio_p20, each.lowest_ratio)),
        )
    return table


def host_table(costs: Mapping[str, HostCost]) -> Table:
    table = Table(title="host cost of one op on a tiny image, in microseconds")
    table.add_column("kernel")
    for column in ("encode", "encode, commit and wait"):
        table.add_column(column, justify="right")
    for name, cost in costs.items():
        table.add_row(name, f"{cost.encode:.0f}", f"{cost.run:.0f}")
    return table


def print_report(console: Console, report: Mapping[str, Any], costs: Mapping[str, HostCost]) -> None:
    """Everything that a run found out."""
    rows = report["rows"]
    peaks = ", ".join(f"{dtype} {rate:.2f} TFLOP/s" for dtype, rate in report["peak_tflops"].items())
    title = f"{report['device']}: copy {report['copy_gbps']:.1f} GB/s, multiply-add {peaks}"
    console.print(rows_table(rows, f"{title}; ratio = PyTorch / ours"))
    if costs:
        console.print(host_table(costs))
    if "drawn" in report:
        console.print(families_table(FamilySummary(**each) for each in report["drawn"]["families"]))
    else:
        console.print(summary_table(rows))
    for row in rows:
        for layout, reason in row["torch_disagrees"].items():
            name = f"{row['op']} {row['shape']} {row['dtype']}"
            console.print(f"[yellow]{name}: PyTorch's {layout} is left out: {reason}[/]")
    for failure in report["failures"]:
        console.print(f"[bold red]failed: {failure['row']}: {failure['reason']}[/]")
    left_out = report["left_out"]
    if left_out:
        console.print(f"[red]The time was over before {len(left_out)} rows; the first: {left_out[0]}[/]")
    disturbed = [row["op"] for row in rows if (row["other_cores"] or 0) > TOLERABLE_CORES]
    if disturbed and report["hardware"] == "cpu":
        console.print(
            f"[bold red]Other processes were busy during {len(disturbed)} of {len(rows)} rows: do not quote these. "
            "PyTorch's threads wait for each other, so it loses the most.[/]"
        )
