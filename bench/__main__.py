"""The benchmark's command line: ``python -m bench --help``."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib
import importlib.metadata
import json
import os
import pkgutil
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import bench.rows
import mpsgrad as mg
from bench.case import Case
from bench.host_cost import HostCost, host_costs
from bench.load import TOLERABLE_CORES, OtherProcesses
from bench.timing import copy_bandwidth, measure

DEFAULT_OUTPUT = Path("bench/output/results.json")


def all_cases(dtypes: list[str], device: mg.Device) -> Iterator[Case]:
    """The cases of every module in ``bench.rows``."""
    for module in sorted(m.name for m in pkgutil.iter_modules(bench.rows.__path__)):
        rows = importlib.import_module(f"bench.rows.{module}")
        for dtype in dtypes:
            yield from rows.cases(dtype, device)


def check(case: Case, device: mg.Device) -> None:
    """Runs the op once and compares it with the reference; raises ``AssertionError`` that names the row."""
    with mg.CommandBuffer(device) as commands:
        result = case.encode(commands)
    try:
        case.check(result)
    except AssertionError as error:
        raise AssertionError(f"{case.op} {case.shape} {case.dtype}: {error}") from error


def _row(case: Case, device: mg.Device, samples: int, copy_gbps: float) -> dict[str, Any]:
    check(case, device)
    others = OtherProcesses()
    result = measure(case, device, samples)
    other_cores = others.cores()
    gbps = case.nbytes / (result.median_ms * 1e-3) / 1e9
    return {
        "op": case.op,
        "shape": case.shape,
        "dtype": case.dtype,
        **dataclasses.asdict(result),
        "gbps": gbps,
        "fraction_of_copy": gbps / copy_gbps,
        "other_cores": other_cores,
        "tflops": case.operations / (result.median_ms * 1e-3) / 1e12 if case.operations else None,
    }


def _table(rows: list[dict[str, Any]], title: str) -> Table:
    table = Table(title=title)
    for column in ("op", "shape"):
        table.add_column(column, no_wrap=True)
    for column in ("ms", "p20-p80", "GB/s", "of copy", "GFLOP/s", "PyTorch ms", "layout", "ratio", "p20-p80"):
        table.add_column(column, justify="right")
    table.add_column("other layouts ms")
    for row in rows:
        ratio = row["ratio"]
        style = None if ratio is None else "red" if ratio < 1 else "green"
        table.add_row(
            row["op"],
            row["shape"],
            f"{row['median_ms']:.3f}",
            f"{row['p20_ms']:.3f}-{row['p80_ms']:.3f}",
            f"{row['gbps']:.1f}",
            f"{row['fraction_of_copy']:.2f}",
            f"{row['tflops'] * 1e3:.0f}" if row["tflops"] else "",
            f"{row['torch_ms']:.3f}" if row["torch_ms"] is not None else "",
            row["torch_layout"] or "",
            f"[{style}]{ratio:.2f}[/]" if style else "",
            f"{row['ratio_p20']:.2f}-{row['ratio_p80']:.2f}" if ratio is not None else "",
            ", ".join(f"{n} {ms:.3f}" for n, ms in row["torch_layouts_ms"].items() if n != row["torch_layout"]),
        )
    return table


def _host_table(costs: dict[str, HostCost]) -> Table:
    table = Table(title="host cost of one op on a tiny image, in microseconds")
    table.add_column("kernel")
    for column in ("encode", "encode, commit and wait"):
        table.add_column(column, justify="right")
    for name, cost in costs.items():
        table.add_row(name, f"{cost.encode:.0f}", f"{cost.run:.0f}")
    return table


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "mpsgrad": mg.__version__}
    for name in ("numpy", "pyopencl", "intel-opencl-rt", "metalcompute", "torch"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Times every op beside PyTorch.")
    parser.add_argument("--ops", nargs="+", metavar="OP", help="only ops whose names contain one of these")
    parser.add_argument("--dtype", choices=("float32", "float16"), help="only this dtype (default: float32)")
    parser.add_argument("--device", help="a device such as opencl:0 (default: the default device)")
    parser.add_argument("--quick", action="store_true", help="few samples of each row")
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT, help="the JSON file to write")
    options = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 200)
    device = mg.find_device(options.device) if options.device else mg.default_device()
    samples = 5 if options.quick else 21
    try:
        import torch

        torch.set_num_threads(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    except ImportError:
        console.print("PyTorch is not installed, so there is nothing beside it: pip install 'mpsgrad[bench]'")
    copy_gbps = copy_bandwidth(device, samples)
    rows = []
    with Progress(console=console, transient=True, disable=not sys.stdout.isatty()) as progress:
        task = progress.add_task("timing", total=None)
        for case in all_cases([options.dtype or "float32"], device):
            if not options.ops or any(name in case.op for name in options.ops):
                progress.update(task, description=f"timing {case.op} {case.shape}")
                rows.append(_row(case, device, samples, copy_gbps))
    if not rows:
        console.print(f"no op contains {' or '.join(options.ops)}")
        return 2
    title = f"{device.name}, {device.compute_units} units, copy {copy_gbps:.1f} GB/s, {rows[0]['dtype']}"
    console.print(_table(rows, f"{title}; ratio = PyTorch / ours"))
    disturbed = [row["op"] for row in rows if (row["other_cores"] or 0) > TOLERABLE_CORES]
    if disturbed:
        console.print(
            f"[bold red]Other processes were busy during {len(disturbed)} of {len(rows)} rows: do not quote these. "
            "PyTorch's threads wait for each other, so it loses the most.[/]"
        )
    costs = {} if options.ops else host_costs(device, samples)
    if costs:
        console.print(_host_table(costs))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    report = {
        "device": device.name,
        "driver": device.driver_version,
        "date": datetime.date.today().isoformat(),
        "versions": _versions(),
        "copy_gbps": copy_gbps,
        "rows": rows,
        "host_cost_us": {name: dataclasses.asdict(cost) for name, cost in costs.items()},
    }
    options.output.write_text(json.dumps(report, indent=1) + "\n")
    console.print(f"written to {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
