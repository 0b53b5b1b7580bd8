"""What one encode costs the host: Python's part, and everything up to the end of the wait, on a tiny image."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

import mpsgrad as mg
from bench.selection import modules
from bench.tiny_op import TinyOp

REPEATS = 20


@dataclass(frozen=True)
class HostCost:
    """Microseconds, medians. ``encode``: one call of a kernel's encode. ``run``: encode, commit and wait, alone."""

    encode: float
    run: float


def host_cost(op: TinyOp, device: mg.Device, samples: int) -> HostCost:
    """The cost of the encode of ``op``."""
    encodes, runs = [], []
    for _ in range(samples + 1):
        commands = mg.CommandBuffer(device)
        spent = 0.0
        for _ in range(REPEATS):
            op.prepare(commands)
            started = time.perf_counter()
            op.encode(commands)
            spent += time.perf_counter() - started
        encodes.append(spent / REPEATS)
        commands.commit()
        commands.wait_until_completed()
        spent = 0.0
        for _ in range(REPEATS):
            with mg.CommandBuffer(device) as commands:
                op.prepare(commands)
            started = time.perf_counter()
            with mg.CommandBuffer(device) as commands:
                op.encode(commands)
            spent += time.perf_counter() - started
        runs.append(spent / REPEATS)
    return HostCost(float(np.median(encodes[1:])) * 1e6, float(np.median(runs[1:])) * 1e6)


def tiny_ops(device: mg.Device) -> Iterator[TinyOp]:
    """An op for each kernel class, from the modules of rows that have some."""
    for module in modules():
        yield from getattr(importlib.import_module(f"bench.rows.{module}"), "tiny_ops", lambda device: ())(device)


def host_costs(device: mg.Device, samples: int) -> dict[str, HostCost]:
    """The cost of each kernel class."""
    return {op.name: host_cost(op, device, samples) for op in tiny_ops(device)}
