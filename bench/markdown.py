"""Reports as Markdown: what was measured where, tables of every op and of every row, and of training steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.families import FAMILIES, OTHERS, family_of, pass_of
from bench.reasons import moves_bytes_slowly, reason, reason_for_bytes
from bench.screen import number
from bench.summary import geometric_mean, summaries

Report = Mapping[str, Any]


def ratio(value: float | None) -> str:
    """A ratio, with a red mark where PyTorch is faster."""
    if value is None:
        return ""
    return f"🔴 {value:.2f}" if value < 1 else f"**{value:.2f}**"


def faster_rows(report: Report) -> str:
    """How many rows are faster than PyTorch's at the same precision: ``5 of 7``."""
    rows = [row for row in report["rows"] if row["torch_precision"] != "tf32"]
    ratios = [row["ratio"] for row in rows if row["ratio"] is not None]
    return f"{sum(ratio >= 1 for ratio in ratios)} of {len(ratios)}"


def score(report: Report) -> str:
    """``faster_rows`` in a sentence."""
    return f"Faster than PyTorch: {faster_rows(report)} rows."


def scores(reports: Iterable[Report]) -> str:
    """``faster_rows`` of all devices, in a sentence."""
    counts = [f"{faster_rows(report)} rows on {report['device']}" for report in reports]
    return f"Faster than PyTorch: {'; '.join(counts)}."


def conditions(report: Report) -> str:
    """What was measured where, in a sentence."""
    versions = report["versions"]
    torch = f"PyTorch {versions['torch']}" if "torch" in versions else "no PyTorch"
    limits = [f"a copy moved {report['copy_gbps']:,.0f} GB/s"]
    limits += [f"{dtype} products ran at {rate:.3g} TFLOP/s" for dtype, rate in report["peak_tflops"].items()]
    return f"Measured on {report['date']} beside {torch}; in the same run {', '.join(limits)}."


def _milliseconds(value: float) -> str:
    """With three digits that count, and none in powers of ten: 0.182, 4.26, 1,620."""
    return f"{float(f'{value:.3g}'):,g}"


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


def by_family(reports: Sequence[Report]) -> str:
    """A line for each family of ops and each pass, a column for each device and dtype.

    A cell has the geometric mean of PyTorch's time over ours on the ``design`` shapes and behind it the lowest.
    """
    ratios: dict[tuple[str, str], dict[str, list[float]]] = {}
    columns: list[str] = []
    for report in reports:
        rows = [row for row in report["rows"] if row["group"] == "design" and row["ratio"] is not None]
        for row in rows:
            if row["torch_precision"] != "tf32":
                column = f"{report['device']}, {row['dtype']}"
                columns += [] if column in columns else [column]
                line = ratios.setdefault((family_of(row["op"]), pass_of(row["op"])), {})
                line.setdefault(column, []).append(row["ratio"])
    order = [*FAMILIES, OTHERS]
    lines = []
    for family, which in sorted(ratios, key=lambda key: (order.index(key[0]), key[1])):
        found = [ratios[family, which].get(column) for column in columns]
        cells = ["" if each is None else f"{ratio(geometric_mean(each))} ({min(each):.2f})" for each in found]
        lines.append([f"{family}, {which}" if which else family, *cells])
    return "\n".join(_table(["ops", *columns], 1, lines))


SLOWEST = 8
"""So many filters are shown of a network that PyTorch trains faster."""


def training(report: Report) -> str:
    """What ``bench.training`` measured: a line for each network, and the slowest filters where PyTorch is faster."""
    versions = report["versions"]
    torch = f"PyTorch {versions['torch']}" if "torch" in versions else "no PyTorch"
    header = ["network", "batch", "precision", "images/s", "ms a step", "host ms", "GPU idle", "ms encoded"]
    header += ["PyTorch NCHW ms", "NHWC ms", "PyTorch / ours"]
    lines, details = [], []
    for case in report["cases"]:
        rows = {row["name"]: row for row in case["rows"]}
        if not rows:
            continue
        replayed, encoded = rows["replayed"], rows["encoded"]
        beside = [rows.get(f"PyTorch eager, {layout}") for layout in ("NCHW", "NHWC")]
        lines.append(
            [
                f"{case['network']}, {'x'.join(map(str, case['shape']))}",
                str(case["batch_size"]),
                case["precision"],
                f"{replayed['images_per_second']:,.0f}",
                _milliseconds(replayed["step_ms"]),
                f"{replayed['host_ms']:.2g}",
                number(replayed["gpu_idle_share"], ".0%"),
                _milliseconds(encoded["step_ms"]),
                *("" if row is None else _milliseconds(row["step_ms"]) for row in beside),
                ratio(case["ratio"]),
            ]
        )
        if case["ratio"] is not None and case["ratio"] < 1:
            total = sum(each["ms"] for each in case["filters"])
            slowest = sorted(case["filters"], key=lambda each: -each["ms"])[:SLOWEST]
            text = ", ".join(f"{each['name']} ({each['kind']}, {each['result']}) {each['ms']:.3g}" for each in slowest)
            details.append(
                f"{case['network']}, batches of {case['batch_size']}, {case['precision']}: the {len(case['filters'])} "
                f"filters one by one take {total:.3g} ms, the slowest are {text}."
            )
    text = (
        f"Training steps (`python -m bench.training`), measured on {report['date']} beside {torch}, eager: forward, "
        "backward and an update by gradient descent with momentum; recorded once and replayed."
    )
    parts = [text, "", *_table(header, 3, lines)]
    if details:
        parts += ["", "<details><summary>Where PyTorch is faster</summary>", "", "\n\n".join(details), "", "</details>"]
    return "\n".join(parts)


def _precision(row: Mapping[str, Any]) -> str:
    return f"{row['dtype']} (PyTorch: TF32)" if row["torch_precision"] == "tf32" else row["dtype"]


def every_row(report: Report) -> str:
    """A line for each row of the report."""
    rows = report["rows"]
    has_cold = any(row["cold_ms"] is not None for row in rows)
    header = ["op", "shape", "dtype", "ms", "p20-p80", "of copy", "GFLOP/s", "of peak", "PyTorch ms", "layout"]
    header += ["PyTorch / ours", "p20-p80", "compiled / ours"]
    header += ["cold ms", "cold ratio", "alone ms", "alone ratio"] * has_cold
    header += ["error", "PyTorch's error"]
    lines = []
    for row in rows:
        cells = [
            f"`{row['op']}`",
            row["shape"],
            _precision(row),
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
    return "\n".join(_table(header, 3, lines))


def slower(report: Report) -> str:
    """A line with the reason for each row in which PyTorch is faster, the slowest first."""
    rows = [row for row in report["rows"] if row["ratio"] is not None and row["ratio"] < 1]
    rows.sort(key=lambda row: row["ratio"])
    lines = [
        [f"`{row['op']}`", row["shape"], _precision(row), reason(row, report), f"{row['ratio']:.2f}"] for row in rows
    ]
    return "\n".join(_table(["op", "shape", "dtype", "reason", "PyTorch / ours"], 4, lines))


def slow_bytes(report: Report) -> str:
    """A line with the reason for each row whose bytes move slowly on a GPU, the slowest first."""
    rows = [row for row in report["rows"] if row["torch_precision"] != "tf32" and moves_bytes_slowly(row, report)]
    rows.sort(key=lambda row: row["fraction_of_copy"])
    lines = []
    for row in rows:
        cells = [f"`{row['op']}`", row["shape"], row["dtype"], reason_for_bytes(row, report)]
        cells += [f"{row['fraction_of_copy']:.2f}", number(row["fraction_of_peak"], ".2f"), ratio(row["ratio"])]
        lines.append(cells)
    header = ["op", "shape", "dtype", "reason", "of copy", "of peak", "PyTorch / ours"]
    return "\n".join(_table(header, 4, lines)) if lines else ""


def full(report: Report, plots: Mapping[str, str]) -> str:
    """A page with the ``plots`` and their captions, every op, every row, what failed and what was left out."""
    page = [f"# Benchmark: {report['device']}", "", f"{conditions(report)} {score(report)}", ""]
    for plot, caption in plots.items():
        page += [f"![{caption}]({plot})", "", caption, ""]
    page += ["## Every op", "", "Geometric means over the shapes that the first picture shows; the largest errors.", ""]
    page += [summary(report), "", "## Where PyTorch is faster", "", slower(report), ""]
    bytes_moved = slow_bytes(report)
    if bytes_moved:
        page += ["## Where bytes move at less than .6 of a copy, and products at less than .5 of their limit", ""]
        page += [bytes_moved, ""]
    page += ["## Every row", "", every_row(report), ""]
    for row in report["rows"]:
        for layout, difference in row["torch_disagrees"].items():
            page.append(f"* `{row['op']}` {row['shape']} {row['dtype']}: PyTorch's {layout} is left out: {difference}")
    page += [f"* failed: {each['row']}: {each['reason']}" for each in report["failures"]]
    if report["left_out"]:
        page.append(f"* The time was over before {len(report['left_out'])} rows: {'; '.join(report['left_out'])}.")
    return "\n".join(page).rstrip() + "\n"
