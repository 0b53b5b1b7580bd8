"""Finds the tunables of the present device by measuring: ``make tune`` or ``python -m bench.tune --help``.

One tunable after the other takes the number with which its ops are fastest, and the file of the device's tuning is
written.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import mpsgrad as mg
from bench import pytorch
from bench.case import Case, Part
from bench.check import check_ours, run_once
from bench.gpu_timing import GPUTimer
from bench.selection import all_cases, hardware
from bench.summary import geometric_mean
from bench.timing import Timer, WallTimer
from mpsgrad.shader import use_tunables
from mpsgrad.tunables import CHOICES, Tunables, path, tunables, write

OPS: Mapping[str, tuple[str, ...]] = {
    "neuron_elements_per_simdgroup": ("neuron_relu", "neuron_relu_gradient", "neuron_gelu_gradient"),
    "neuron_loads_before_a_store": ("neuron_relu", "neuron_relu_gradient", "neuron_gelu_gradient"),
    "soft_max_elements_per_simdgroup": ("soft_max", "soft_max_gradient"),
    "soft_max_rows_at_once": ("soft_max", "soft_max_gradient"),
    "loss_pixels_per_simdgroup": ("loss_softmax_cross_entropy",),
    "optimizer_elements_per_thread": ("optimizer_sgd_momentum",),
    "convolution_sums_per_thread": ("convolution_gradient_weights",),
    "normalization_sums_per_lane": ("batch_normalization", "batch_normalization_gradient"),
    "convolution_pixels_per_tile": ("convolution", "convolution_gradient_data"),
    "convolution_weights_rows_at_once": ("convolution_gradient_weights",),
    "convolution_by_eights": ("convolution", "convolution_gradient_data", "convolution_gradient_weights"),
    "pooling_gradient_by_eights": ("pooling_max_gradient_recorded",),
    "chunk_elements": ("batch_normalization", "batch_normalization_gradient"),
    "stream_elements": ("batch_normalization", "batch_normalization_gradient"),
    "cached_bytes": ("neuron_linear_gradient", "neuron_relu_gradient"),
    "most_chunks": ("batch_normalization", "batch_normalization_gradient"),
}
"""What a tunable changes."""
GROUPS = ("design", "small")
ROUNDS, SAMPLES = 3, 5
SECONDS_PER_ROW = 0.5
LEAST_GAIN = 1.02
"""A number has to be so many times as fast as the present one to replace it: less is noise."""


def times(name: str, numbers: Tunables, device: mg.Device, timer: Timer, cases: Sequence[Case]) -> dict[int, float]:
    """For each number that the tunable ``name`` may have, the geometric mean of its ops' times in milliseconds.

    The numbers take turns, so that a drift of the machine's speed hits all. Raises ``AssertionError`` if a result is
    wrong with one.
    """
    found: dict[int, list[float]] = {number: [] for number in CHOICES[name]}
    for case in cases:
        rounds: dict[int, list[float]] = {number: [] for number in found}
        parts: list[Part] = []
        for turn in range(ROUNDS):
            for number, taken in rounds.items():
                use_tunables(device.tuning, numbers.with_number(name, number))
                # Kernels remember what they encoded with the numbers before.
                work = case.prepare(device)
                if turn == 0:
                    run_once(work, device)
                    parts = parts or work.parts()
                    check_ours(work, parts)
                taken.append(timer.measure(work, {}, SAMPLES, SECONDS_PER_ROW).repeated.median_ms)
        for number, taken in rounds.items():
            found[number].append(float(np.median(taken)))
    return {number: geometric_mean(of_cases) or 0.0 for number, of_cases in found.items()}


def best(name: str, present: int, found: Mapping[int, float]) -> int:
    """The fastest number, or the ``present`` one if that is about as fast."""
    fastest = min(found, key=lambda number: found[number])
    return fastest if found[present] > LEAST_GAIN * found[fastest] else present


def tuned(device: mg.Device, timer: Timer, names: Sequence[str], console: Console) -> Tunables:
    """The present numbers of the device's family with the best found for ``names``."""
    numbers = tunables(device.tuning)
    rows = [case for case in all_cases("float32", hardware(device)) if case.group in GROUPS]
    table = Table(title=f"{device.name}: milliseconds, geometric means")
    for column in ("tunable", "times", "before", "now"):
        table.add_column(column)
    try:
        for name in names:
            found = times(name, numbers, device, timer, [case for case in rows if case.op in OPS[name]])
            before = getattr(numbers, name)
            now = best(name, before, found)
            numbers = numbers.with_number(name, now)
            listed = ", ".join(f"{number}: {time:.4f}" for number, time in found.items())
            table.add_row(name, listed, str(before), str(now))
    finally:
        # What was tried last is not the best.
        use_tunables(device.tuning, numbers)
    console.print(table)
    return numbers


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.tune", description="Finds the tunables of a device.")
    parser.add_argument("--device", help="a device such as opencl:0 (default: the default device)")
    parser.add_argument("--only", nargs="+", choices=list(OPS), help="only these tunables")
    parser.add_argument("--output", type=Path, help="the file to write (default: that of the device's tuning)")
    options = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 200)
    device = mg.find_device(options.device) if options.device else mg.default_device()
    where = pytorch.counterpart(device)
    timer = GPUTimer(device, where) if device.identifier.startswith("cuda") else WallTimer(device)
    numbers = tuned(device, timer, options.only or list(OPS), console)
    output = options.output or path(device.tuning)
    comment = f"Measured by make tune on {device.name} with {device.compute_units} compute units, "
    write(output, numbers, comment + f"{datetime.date.today().isoformat()}.")
    console.print(f"written to {output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
