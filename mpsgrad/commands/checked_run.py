"""``mpsgrad check --run``: runs a kernel with checks and reports what it does wrong."""

from __future__ import annotations

import argparse
from pathlib import Path

from mpsgrad.commands.run import UNDEFINED, add_launch_options, parse_value
from mpsgrad.devices.contract import CompileOptions
from mpsgrad.runtime.findings import MISTAKES, KernelFinding

SIMD_WIDTH = 32
_METALCOMPUTE_THREADGROUP = 1024

ARGUMENT_HELP = "an argument of the kernel, in a form that 'mpsgrad run --help' lists; undefined:float:64 is an output"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declares the options of a checked run."""
    group = parser.add_argument_group("with --run", "how the kernel is launched")
    add_launch_options(group, ARGUMENT_HELP, needs_grid=False)


class UsageError(Exception):
    """The command line asks for what cannot be done; the message says what and why."""


def require_usage(arguments: argparse.Namespace) -> None:
    """Raises ``UsageError`` unless ``arguments`` name a file, a kernel and a grid."""
    if len(arguments.files) != 2:
        raise UsageError(f"--run takes FILE and KERNEL, but {len(arguments.files)} were given")
    if arguments.grid is None:
        raise UsageError("--run needs --grid")


def run_kernel(arguments: argparse.Namespace, source: str, options: CompileOptions) -> list[KernelFinding]:
    """Runs the kernel of ``source`` with the launch that ``arguments`` describe; ``options`` say where its files are.

    Raises ``UsageError`` for arguments that mean nothing, and what compiling or launching raises.
    """
    from mpsgrad.devices import opencl
    from mpsgrad.runtime import compile

    devices = opencl.devices()
    if not devices:
        reason = opencl.unavailable_reason() or "no OpenCL device was found"
        raise UsageError(f"--run checks kernels on the CPU by OpenCL: {reason}")
    try:
        values = [parse_value(text) for text in arguments.arguments]
    except (argparse.ArgumentTypeError, OSError, EOFError, ValueError) as error:
        raise UsageError(f"--arg: {error}") from None
    undefined = [index for index, text in enumerate(arguments.arguments) if text.startswith(f"{UNDEFINED}:")]
    library = compile(
        source,
        device=devices[0],
        function_constants=dict(arguments.constants),
        language_version=options.language_version,
        include_folders=[options.include_directory or Path(), *options.include_folders],
    )
    try:
        function = library.function(arguments.files[1])
    except KeyError as error:
        raise UsageError(f"--run: {error.args[0]}") from None
    threadgroup = arguments.threadgroup
    if arguments.metalcompute and threadgroup is None:
        declared = function.max_total_threads_per_threadgroup or _METALCOMPUTE_THREADGROUP
        threadgroup = max(declared // SIMD_WIDTH, 1) * SIMD_WIDTH
    return list(
        function.check(
            arguments.grid,
            *values,
            threadgroup=threadgroup,
            grid_of_threadgroups=arguments.grid_of_threadgroups,
            threadgroup_memory=arguments.threadgroup_memory,
            undefined=undefined,
            rounded_up=arguments.metalcompute,
        )
    )


def as_object(finding: KernelFinding) -> dict[str, object]:
    """What ``--json`` shows of a finding beside what it shows of any."""
    other = finding.other
    return {
        "kernel": finding.kernel,
        "count": finding.count,
        "thread": finding.thread,
        "threadgroup": finding.threadgroup,
        "argument": finding.argument,
        "index": finding.index,
        "length": finding.length,
        "other": None
        if other is None
        else {"thread": other.thread, "file": other.file, "line": other.line, "column": other.column},
    }


def explain(name: str) -> str:
    """What a kind of finding is about."""
    mistake = MISTAKES[name]
    text = f"{name} ({mistake.severity}, found by --run)\n  {mistake.why}"
    return f"{text}\n  {mistake.limits}" if mistake.limits else text
