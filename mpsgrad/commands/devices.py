"""``mpsgrad devices``: what there is to run kernels on, and what to install for what is missing."""

from __future__ import annotations

import argparse
import contextlib
import sys

from mpsgrad.devices import Device, available_devices, cuda, default_device, metal, opencl, unavailable
from mpsgrad.errors import DeviceNotFoundError

_UNWRAPPED = 1000


def add_parser(subparsers: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Declares the subcommand."""
    return subparsers.add_parser(
        "devices",
        help="list the devices that can run kernels, and what to install for others",
        description="Lists the devices that can run kernels. MPSGRAD_DEVICE=IDENTIFIER chooses the default.",
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the table of devices and, below it, a line for each driver and each device that cannot be used."""
    found = available_devices()
    if found:
        _print_table(found)
    for driver, reason in unavailable().items():
        print(f"{driver}: {reason}")
    for line in _refused():
        print(f"not usable: {line}")
    if found:
        try:
            default_device()
        except DeviceNotFoundError as error:
            print(f"mpsgrad: MPSGRAD_DEVICE: {error}", file=sys.stderr)
            return 1
    return 0


def _print_table(found: list[Device]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    default = None
    with contextlib.suppress(DeviceNotFoundError):
        default = default_device()
    table = Table()
    table.add_column("Identifier", no_wrap=True)
    table.add_column("Name", overflow="fold")
    table.add_column("Driver", overflow="fold")
    table.add_column("Memory", justify="right", no_wrap=True)
    table.add_column("Compute units", justify="right")
    table.add_column("Threadgroup memory", justify="right")
    table.add_column("Features")
    for device in found:
        table.add_row(
            Text(f"{device.identifier} *" if device is default else device.identifier),
            Text(device.name),
            Text(f"{device.driver}, {device.driver_version}"),
            f"{device.memory_bytes / 2**30:.1f} GiB",
            str(device.compute_units) if device.compute_units else "unknown",
            f"{device.threadgroup_memory_bytes // 1024} KiB",
            ", ".join(sorted(device.features)),
        )
    Console(width=None if sys.stdout.isatty() else _UNWRAPPED).print(table)
    if default is not None:
        print("* the default")


def _refused() -> list[str]:
    """A line on each device that is present but cannot run the kernels."""
    return [*metal.refused(), *cuda.refused(), *opencl.refused()]
