"""``mpsgrad report``: what each kernel takes of an NVIDIA GPU's multiprocessor, as the compiler for it says."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from mpsgrad import msl
from mpsgrad.devices.cuda_compiler import (
    OWN_MATH,
    KernelUsage,
    architecture_name,
    architectures,
    compile_cubin,
    kernel_usages,
)
from mpsgrad.errors import DeviceError
from mpsgrad.shader import ShaderFamily, families

DEVICE_FAMILY = "nvidia"
DEFAULT_ARCHITECTURE = "sm_90a"

_UNWRAPPED = 200


@dataclass(frozen=True, slots=True)
class KernelReport:
    """One kernel function of a family for images of ``dtype``; ``threads`` are those of a threadgroup."""

    family: str
    dtype: str
    kernel: str
    threads: int
    usage: KernelUsage


def add_parser(subparsers: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Declares the subcommand."""
    parser = subparsers.add_parser(
        "report",
        help="list registers, threadgroup memory and spills of the kernels on NVIDIA GPUs",
        description="Compiles the kernels for NVIDIA GPUs, which needs none, and lists what a thread of each takes. A "
        "spill is a register that is stored to memory and loaded again.",
    )
    parser.add_argument("names", metavar="NAME", nargs="*", help="shader families, such as soft_max (default: all)")
    parser.add_argument(
        "--architecture",
        default=DEFAULT_ARCHITECTURE,
        help=f"the GPU's (default: {DEFAULT_ARCHITECTURE}, an H100 or H200)",
    )
    parser.add_argument("--json", action="store_true", help="print the numbers as data")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Prints a row for each kernel; status 2 for a family or an architecture that there is not."""
    for_gpus = {name: family for name, family in families().items() if DEVICE_FAMILY in family.device_families}
    unknown = [name for name in arguments.names if name not in for_gpus]
    if unknown:
        known_names = ", ".join(sorted(for_gpus))
        print(
            f"mpsgrad report: there is no family {unknown[0]!r} for NVIDIA GPUs; there are {known_names}",
            file=sys.stderr,
        )
        return 2
    known = [architecture_name(number) for number in architectures()]
    if arguments.architecture not in known:
        print(
            f"mpsgrad report: --architecture is {arguments.architecture!r}; it has to be one of {', '.join(known)}",
            file=sys.stderr,
        )
        return 2
    rows = reports([for_gpus[name] for name in arguments.names or for_gpus], arguments.architecture)
    if arguments.json:
        kernels = [{**dataclasses.asdict(row), **dataclasses.asdict(row.usage)} for row in rows]
        for kernel in kernels:
            del kernel["usage"]
        print(json.dumps({"architecture": arguments.architecture, "kernels": kernels}, indent=1))
        return 0
    _print_table(rows)
    return 0


def reports(families: list[ShaderFamily], architecture: str) -> list[KernelReport]:
    """What the kernels of ``families`` take on ``architecture``, for all their dtypes.

    Raises ``DeviceError`` if there is no compiler, or if it says nothing of registers.
    """
    parts = [(family, dtype) for family in families for dtype in family.dtypes]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(lambda part: report(part[0], part[1], architecture), parts)
        return [row for rows in found for row in rows]


def report(family: ShaderFamily, dtype: str, architecture: str) -> list[KernelReport]:
    """What the kernels of ``family`` for images of ``dtype`` take, in the order of the source."""
    source = family.render(dtype, DEVICE_FAMILY).with_line_directives()
    translation = msl.translate(source, "cuda", filename=family.path)
    # What the compiler finds in a cache of its own it does not report again.
    _, log = compile_cubin(translation, source, family.path, architecture, {**OWN_MATH, "no_cache": True})
    usages = {usage.entry_point: usage for usage in kernel_usages(log)}
    rows = []
    for kernel in translation.kernels.values():
        if kernel.entry_point not in usages:
            raise DeviceError(f"NVIDIA's run-time compiler says nothing of the registers of {kernel.name}")
        usage, size = usages[kernel.entry_point], kernel.threadgroup_size or 0
        # Memory that launches ask for is none of the compiler's.
        usage = dataclasses.replace(usage, threadgroup_bytes=max(usage.threadgroup_bytes, kernel.threadgroup_bytes))
        rows.append(KernelReport(family.name, dtype, kernel.name, size, usage))
    return rows


def _print_table(rows: list[KernelReport]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for name in ("Family", "Images", "Kernel"):
        table.add_column(name, overflow="fold")
    for name in ("Threads", "Registers", "Threadgroup B", "Stack B", "Spilled B"):
        table.add_column(name, justify="right")
    for row in rows:
        usage = row.usage
        numbers = (row.threads, usage.registers, usage.threadgroup_bytes, usage.stack_bytes)
        spilled = f"{usage.spill_store_bytes} + {usage.spill_load_bytes}" if usage.spill_load_bytes else "0"
        table.add_row(row.family, row.dtype, row.kernel, *map(str, numbers), spilled)
    Console(width=None if sys.stdout.isatty() else _UNWRAPPED).print(table)
