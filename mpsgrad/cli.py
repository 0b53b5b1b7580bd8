"""The ``mpsgrad`` command. Each subcommand is a module of ``mpsgrad.commands`` that is listed here."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from mpsgrad import __version__
from mpsgrad.commands import check, devices, render, report, run, train
from mpsgrad.errors import MPSGradError

INTERRUPTED = 130
"""128 and the number of the signal, as shells have it."""

COMMANDS = (check, devices, render, report, run, train)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status: 0, 1 after an error, 2 for wrong usage, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="mpsgrad",
        description="The gradient kernels of Metal Performance Shaders, on Apple GPUs, NVIDIA GPUs and any CPU.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in COMMANDS:
        command.add_parser(subparsers).set_defaults(run=command.run)
    parsed = parser.parse_args(arguments)
    if "run" not in parsed:
        parser.print_help(sys.stderr)
        return 2
    # A caller that gives arguments may have used a device, or catch what is printed.
    is_own_process = arguments is None
    start = run.run_in_child if is_own_process and parsed.run is run.run else parsed.run
    try:
        status = start(parsed)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The reader, such as head, has what it wanted; the interpreter must not fail when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (MPSGradError, OSError, MemoryError) as error:
        print(f"mpsgrad: {error or type(error).__name__}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as interrupt:
        print("; ".join(["mpsgrad: interrupted", *map(str, interrupt.args)]), file=sys.stderr)
        return INTERRUPTED
