"""The benchmark's command line: ``python -m bench --help``."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import gc
import importlib.metadata
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

import mpsgrad as mg
from bench import pytorch
from bench.case import Case
from bench.compiled import Compiler
from bench.gpu_timing import GPUTimer
from bench.host_cost import host_costs
from bench.inputs import forget_inputs
from bench.kernels import all_kernels, compile_kernels
from bench.peaks import arithmetic_peaks, copy_bandwidth
from bench.row import Row
from bench.screen import print_report
from bench.selection import DTYPES, described, hardware, selected, selected_drawn
from bench.summary import family_summaries
from bench.timing import Timer, WallTimer

DEFAULT_OUTPUT = Path("bench/output/results.json")
SAMPLES, QUICK_SAMPLES = {"cpu": 21, "gpu": 7}, 5
"""Times by a GPU's clock vary by a percent only."""
MINUTES = 4.5
"""A run ends within this time: ``make bench`` is to take less than 5 minutes."""
COMPILING_SHARE = 0.2
"""What ``torch.compile`` may take of a run's time."""
DESIGN_WEIGHT = 2.0
"""Rows of ``design`` get so many times the time of others."""

_PACKAGES = ("numpy", "pyopencl", "intel-opencl-rt", "cuda-core", "cuda-bindings", "metalcompute", "torch", "triton")


def versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "mpsgrad": mg.__version__}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _seed(text: str) -> int:
    seed = int(text)
    if seed < 0:
        raise argparse.ArgumentTypeError(f"{seed} is below 0")
    return seed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Times every op beside PyTorch.")
    parser.add_argument("--ops", nargs="+", metavar="OP", help="only ops whose names contain one of these")
    parser.add_argument(
        "--drawn", type=_seed, metavar="SEED", help="shapes drawn from this seed instead of the fixed ones"
    )
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        help="only this dtype (default: float32, on a GPU also some rows of float16; both of drawn shapes)",
    )
    parser.add_argument("--device", help="a device such as opencl:0 (default: the default device)")
    parser.add_argument("--quick", action="store_true", help="the most important shapes, few samples of each")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"ends within this time (default: {MINUTES})")
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT, help="the JSON file to write")
    return parser


class Run:
    """All rows of one run on one device, and the report of them."""

    def __init__(
        self, device: mg.Device, where: Any, timer: Timer, samples: int, deadline: float, compiler: Compiler | None
    ) -> None:
        self.device, self.where, self.timer = device, where, timer
        self.samples, self.deadline = samples, deadline
        self._compiler = compiler
        self.hardware = hardware(device)
        self.report: dict[str, Any] = {
            "device": described(device),
            "hardware": self.hardware,
            "driver": device.driver_version,
            "date": datetime.date.today().isoformat(),
            "versions": versions(),
            "copy_gbps": copy_bandwidth(device, where, timer, self.hardware, samples),
            "peak_tflops": arithmetic_peaks(device, where, self.hardware),
            "rows": [],
            "failures": [],
            "left_out": [],
            "host_cost_us": {},
        }

    def take(self, cases: list[Case], progress: Progress) -> None:
        """Adds a row for each case; one that fails is reported, and the others go on."""
        task = progress.add_task("timing", total=len(cases))
        weights = [DESIGN_WEIGHT if case.group == "design" else 1.0 for case in cases]
        for index, case in enumerate(cases):
            progress.update(task, description=f"timing {case.name}", advance=1)
            seconds_left = self.deadline - time.perf_counter()
            if seconds_left <= 0:
                self.report["left_out"].append(case.name)
                continue
            share = weights[index] / sum(weights[index:])
            self._take_one(case, share * seconds_left)
            # A row's images and tensors go before the next row. What stays is not looked through again: PyTorch and its
            # compiler have so many objects that it would take longer than most rows.
            gc.collect()
            gc.freeze()
        gc.unfreeze()

    def _take_one(self, case: Case, seconds: float) -> None:
        row = Row(case, self.device, self.where)
        compiler = self._compiler if case.group == "design" else None
        try:
            self.report["rows"].append(row.measure(self.timer, compiler, self.samples, seconds, self.report))
        except Exception as error:
            # Whatever a row meets, the rows after it are still wanted; the run fails in the end.
            reason = str(error).splitlines()
            text = f"{type(error).__name__}: {reason[0] if reason else ''}"
            self.report["failures"].append({"row": case.name, "reason": text})


def main(arguments: list[str] | None = None) -> int:
    started = time.perf_counter()
    options = _parser().parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 240)
    device = mg.find_device(options.device) if options.device else mg.default_device()
    if options.drawn is None:
        cases = selected(hardware(device), options.dtype, options.ops, options.quick)
    else:
        cases = selected_drawn(hardware(device), options.dtype, options.ops, options.drawn)
    if not cases:
        console.print(f"no op contains {' or '.join(options.ops)}")
        return 2
    where = pytorch.counterpart(device)
    if where is not None:
        pytorch.use_best_settings()
    elif not pytorch.is_installed():
        console.print("PyTorch is not installed, so there is nothing beside it: pip install 'mpsgrad[bench]'")
    timer = GPUTimer(device, where) if device.identifier.startswith("cuda") else WallTimer(device)
    samples = QUICK_SAMPLES if options.quick else SAMPLES[hardware(device)]
    seconds = 60 * options.minutes
    is_nvidia = where is not None and where.type == "cuda"
    compiler = Compiler(COMPILING_SHARE * seconds) if is_nvidia else None
    if is_nvidia and not (options.ops or options.quick):
        compile_kernels(device, all_kernels())
    run = Run(device, where, timer, samples, started + seconds, compiler)
    with Progress(console=console, transient=True, disable=not sys.stdout.isatty()) as progress:
        run.take(cases, progress)
    forget_inputs()
    if options.drawn is not None:
        families = [dataclasses.asdict(each) for each in family_summaries(run.report["rows"])]
        run.report["drawn"] = {"seed": options.drawn, "families": families}
    costs = {} if options.ops else host_costs(device, samples)
    run.report["host_cost_us"] = {name: dataclasses.asdict(cost) for name, cost in costs.items()}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(run.report, indent=1) + "\n")
    print_report(console, run.report, costs)
    console.print(f"written to {options.output} after {time.perf_counter() - started:.0f} s")
    return 1 if run.report["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
