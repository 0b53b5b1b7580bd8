"""Plots of a report as SVG: ratios to PyTorch, the roofline, and how throughput grows with size."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.families import FAMILIES, OTHERS, family_of
from bench.summary import Row, summaries

FASTER, SLOWER = "#2a7f3f", "#c62828"
COLORS = (
    *("#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd", "#8c564b", "#e377c2", "#bcbd22", "#17becf", "#7f7f7f", "#d62728"),
    *("#aec7e8", "#ffbb78", "#98df8a", "#c5b0d5", "#c49c94", "#f7b6d2"),
)


def write_plots(report: Mapping[str, Any], folder: Path, name: str) -> list[Path]:
    """Writes the plots that the report has rows for, as ``name-….svg``, and returns their paths."""
    import matplotlib

    # The same report gives the same bytes.
    settings: Any = {"svg.hashsalt": name, "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False}
    written = []
    with matplotlib.rc_context(settings):
        for kind, draw in (("ratios", _ratios), ("roofline", _roofline), ("scan", _scan)):
            figure = draw(report)
            if figure is not None:
                path = folder / f"{name}-{kind}.svg"
                figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None}, bbox_inches="tight")
                written.append(path)
    return written


def _figure(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    return figure, figure.subplots()


def _ratios(report: Mapping[str, Any]) -> Any:
    """A bar for the geometric mean of each op on the ``design`` shapes, red below 1, and a dot for each row."""
    rows = [row for row in report["rows"] if row["group"] == "design" and row["ratio"] is not None]
    bars = [each for each in summaries(rows) if each.ratio is not None]
    if not bars:
        return None
    figure, axes = _figure(8, 1 + 0.19 * len(bars))
    for place, each in enumerate(bars):
        ratio = each.ratio or 1.0
        axes.barh(place, ratio - 1, left=1, color=FASTER if ratio >= 1 else SLOWER, height=0.7)
        dots = [r["ratio"] for r in rows if _key(r) == (each.op, each.dtype, each.torch_precision)]
        axes.plot(dots, [place] * len(dots), "o", color="black", markersize=2)
    axes.set_yticks(range(len(bars)), [_label(each) for each in bars])
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_xscale("log")
    _plain_ticks(axes.xaxis)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("PyTorch's time / ours, above 1 is faster; dots are single shapes")
    axes.set_title(f"{report['device']}, {report['date']}")
    return figure


def _key(row: Row) -> tuple[str, str, str]:
    return row["op"], row["dtype"], row["torch_precision"]


def _label(each: Any) -> str:
    precision = "" if each.torch_precision == "float32" else f" {each.torch_precision}"
    return each.op + precision


def _plain_ticks(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(10, (1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _roofline(report: Mapping[str, Any]) -> Any:
    """Rates over arithmetic intensity, below what the copy and the multiply-adds of the same run allow."""
    import numpy as np

    rows = [row for row in report["rows"] if row["tflops"]]
    if not rows or not report["peak_tflops"]:
        return None
    figure, axes = _figure(8, 5)
    intensities = [1e3 * row["tflops"] / row["gbps"] for row in rows]
    reach = np.geomspace(min(intensities) / 2, max(max(intensities) * 2, 1e3), 200)
    copy = report["copy_gbps"] * 1e-3
    for dtype, peak in report["peak_tflops"].items():
        if any(row["dtype"] == dtype for row in rows):
            axes.plot(reach, np.minimum(reach * copy, peak), color="black", linewidth=1)
            axes.annotate(f"{dtype}: {peak:.3g} TFLOP/s", (reach[-1], peak), ha="right", va="bottom")
    for color, family in zip(COLORS, (*FAMILIES, OTHERS), strict=False):
        members = [(x, row) for x, row in zip(intensities, rows, strict=True) if family_of(row["op"]) == family]
        for dtype, marker in (("float32", "o"), ("float16", "^")):
            points = [(x, row["tflops"]) for x, row in members if row["dtype"] == dtype]
            if points:
                xs, ys = zip(*points, strict=True)
                axes.plot(xs, ys, marker, color=color, markersize=4, alpha=0.7, label=f"{family}, {dtype}")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations per byte")
    axes.set_ylabel("TFLOP/s")
    axes.set_title(f"{report['device']}: copy {report['copy_gbps']:.0f} GB/s")
    axes.legend(fontsize=7, loc="lower right")
    return figure


def _scan(report: Mapping[str, Any]) -> Any:
    """GB/s over the number of elements, ours and PyTorch's."""
    rows = [row for row in report["rows"] if row["group"] == "scan"]
    if not rows:
        return None
    figure, axes = _figure(8, 5)
    ops = list(dict.fromkeys(row["op"] for row in rows))
    for index, op in enumerate(ops):
        color = COLORS[index % len(COLORS)]
        members = [row for row in rows if row["op"] == op]
        sizes = [_elements(row["shape"]) for row in members]
        axes.plot(sizes, [row["gbps"] for row in members], "-o", color=color, markersize=3, label=op)
        theirs = [
            (size, row["gbps"] * row["median_ms"] / row["torch_ms"])
            for size, row in zip(sizes, members, strict=True)
            if row["torch_ms"]
        ]
        if theirs:
            axes.plot(*zip(*theirs, strict=True), ":", color=color, linewidth=1)
    axes.axhline(report["copy_gbps"], color="black", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("elements of the source")
    axes.set_ylabel("GB/s (dotted: PyTorch; line: copy)")
    axes.set_title(f"{report['device']}, {report['date']}")
    axes.legend(fontsize=7, loc="lower right")
    return figure


def _elements(shape: str) -> int:
    product = 1
    for extent in shape.split(" ")[0].split("x"):
        product *= int(extent)
    return product
