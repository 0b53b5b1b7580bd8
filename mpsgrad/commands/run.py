"""``mpsgrad run``: runs one kernel function of a Metal file with arrays from files."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

DESCRIPTION = """\
Compiles FILE and runs its kernel function KERNEL once.

Each --arg is one argument of the kernel, in the order of the buffer indices:
  x.npy               the array in a file (name it ./x.npy if it could be mistaken)
  zeros:float:64x32   an array of zeros, as for an output; the type is Metal's or NumPy's
  undefined:float:8   an array whose contents mean nothing, which 'mpsgrad check --run' keeps an eye on
  3.0f  -7  true      a number for a reference or pointer that is only read, in the type that the kernel declares
                      (--arg=-3.0f where the shell's reader of options would take it for an option)
  int:5  float4:1,2,3,4   an array of these numbers, in the type given
  {"rate": 0.5, "size": [7, 8]}   a struct that is only read, as JSON with all of its members

A kernel may leave its arguments here, as on a GPU: it then reads and writes other memory, or ends its process, which
is an error. 'mpsgrad check --run FILE KERNEL' with the same options says where it does, and keeps it from happening.

Each --out is an argument to show after the run, by its name in the kernel or its position from 0:
  --out y             prints it
  --out y=y.npy       writes it to a file
"""
EXAMPLE = """\
example:
  mpsgrad run saxpy.metal saxpy --grid 1024 --arg 2.0f --arg x.npy --arg zeros:float:1024 --out y=y.npy
"""

UNDEFINED = "undefined"
"""What the text of an argument begins with whose contents mean nothing."""

_NUMBER = re.compile(r"([+-]?(?:0[xX][0-9a-fA-F]+|[0-9]+))[uU]?[lL]?$")
_REAL = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?inf|nan)[fFhH]?$")


def add_parser(subparsers: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Declares the subcommand."""
    parser = subparsers.add_parser(
        "run",
        help="run a kernel function of a Metal file",
        description=DESCRIPTION,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="a Metal source file")
    parser.add_argument("kernel", metavar="KERNEL", help="the kernel function's name")
    add_launch_options(parser, "see above", needs_grid=True)
    parser.add_argument(
        "--out", dest="outputs", metavar="NAME[=FILE]", action="append", default=[], help="see above"
    )
    parser.add_argument("--strict-math", action="store_true", help="compile without fast math")
    parser.add_argument("--language-version", metavar="VERSION", default="2.3", help="of Metal (default 2.3)")
    parser.add_argument("--device", help="a device such as opencl:0 (default: the default device)")
    return parser


def add_launch_options(parser: argparse._ActionsContainer, argument_help: str, *, needs_grid: bool) -> None:
    """Declares what says how a kernel is launched."""
    parser.add_argument(
        "--grid", metavar="N[,M[,K]]", type=_extents, required=needs_grid, help="threads along each axis; no others run"
    )
    parser.add_argument(
        "--grid-of-threadgroups", action="store_true", help="--grid counts threadgroups instead of threads"
    )
    parser.add_argument("--threadgroup", metavar="N[,M[,K]]", type=_extents, help="threads of a threadgroup")
    parser.add_argument(
        "--threadgroup-memory",
        metavar="BYTES[,...]",
        type=_extents,
        help="the length of each [[threadgroup(n)]] argument",
    )
    parser.add_argument("--arg", dest="arguments", metavar="VALUE", action="append", default=[], help=argument_help)
    parser.add_argument(
        "--constant",
        dest="constants",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=_constant,
        help="the value of a function constant",
    )


def run_in_child(arguments: argparse.Namespace) -> int:
    """``run`` in a child of this process, which must not have used a device: 1 where the kernel ends that. The child
    returns, too."""
    child = os.fork() if hasattr(os, "fork") else 0
    if not child:
        return run(arguments)
    # What interrupts both is for the child to report.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status >= 0:
        return status
    try:
        cause = signal.Signals(-status).name
    except ValueError:
        cause = f"signal {-status}"
    print(
        f"mpsgrad run: {arguments.kernel} ended its process ({cause}), as a kernel does that reads or writes outside of"
        f" its arguments; 'mpsgrad check --run {arguments.file} {arguments.kernel}' with the same options says where",
        file=sys.stderr,
    )
    return 1


def run(arguments: argparse.Namespace) -> int:
    """Runs the kernel and prints its GPU time; 1 if it cannot run, 2 for arguments that mean nothing."""
    from mpsgrad.devices import find_device
    from mpsgrad.runtime import compile

    try:
        values = [parse_value(text) for text in arguments.arguments]
        device = find_device(arguments.device) if arguments.device else None
        library = compile(
            arguments.file,
            device=device,
            function_constants=dict(arguments.constants),
            fast_math=not arguments.strict_math,
            language_version=arguments.language_version,
        )
        function = library.function(arguments.kernel)
        _require_elements(arguments.arguments, values)
        names = [each.name for each in function.arguments]
        outputs = [_output(text, names, values) for text in arguments.outputs]
        result = function(
            arguments.grid,
            *values,
            threadgroup=arguments.threadgroup,
            grid_of_threadgroups=arguments.grid_of_threadgroups,
            threadgroup_memory=arguments.threadgroup_memory,
        )
        for name, value, path in outputs:
            if path is not None:
                np.save(path, value, allow_pickle=False)
                print(f"{name}: wrote {value.dtype} {'x'.join(map(str, value.shape))} to {path}")
            else:
                print(f"{name} = {np.array2string(value, threshold=200)}")
    except (argparse.ArgumentTypeError, KeyError) as error:
        print(f"mpsgrad run: {error.args[0]}", file=sys.stderr)
        return 2
    except (OSError, EOFError, ValueError, NotImplementedError) as error:
        from mpsgrad.errors import MPSGradError

        if isinstance(error, MPSGradError):
            raise
        print(f"mpsgrad run: {error}", file=sys.stderr)
        return 1
    time = "unknown" if result.gpu_time is None else f"{result.gpu_time * 1e3:.3f} ms"
    print(f"GPU time: {time}")
    return 0


def parse_value(text: str) -> Any:
    """The array, number or struct that ``--arg`` text stands for; raises ``ArgumentTypeError``."""
    kind, separator, rest = text.partition(":")
    if separator and kind in ("zeros", UNDEFINED):
        type_name, _, shape = rest.rpartition(":")
        if not type_name or not re.fullmatch(r"[0-9]+(x[0-9]+)*", shape):
            raise argparse.ArgumentTypeError(f"{text!r} has to be like {kind}:float:1024 or {kind}:half:64x32")
        return np.zeros(tuple(map(int, shape.split("x"))), _dtype(type_name, text))
    if text.startswith("{"):
        try:
            return json.loads(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is no JSON: {error}") from None
    if text.endswith(".npy"):
        try:
            return np.ascontiguousarray(np.load(text, allow_pickle=False))
        except (EOFError, ValueError) as error:
            raise ValueError(f"{text!r} is no .npy file of numbers, or is damaged") from error
    if separator:
        numbers = [_number(each, text) for each in rest.split(",")]
        dtype = _dtype(kind, text)
        try:
            converted = np.array(numbers, dtype)
        except (OverflowError, ValueError):
            raise argparse.ArgumentTypeError(f"{text!r}: not every number fits into {kind}") from None
        if dtype.kind != "f" and converted.tolist() != numbers:
            raise argparse.ArgumentTypeError(f"{text!r}: not every number fits into {kind}")
        return converted
    return _number(text, text)


def _require_elements(texts: Sequence[str], values: Sequence[Any]) -> None:
    """Raises ``ArgumentTypeError`` for an array of nothing: whatever the kernel reads or writes of it is elsewhere."""
    for text, value in zip(texts, values, strict=True):
        if isinstance(value, np.ndarray) and not value.size:
            raise argparse.ArgumentTypeError(f"--arg {text}: an array without elements, but Metal has no empty buffers")


def _dtype(name: str, text: str) -> np.dtype:
    """The numbers of a type that Metal or else NumPy calls ``name``."""
    from mpsgrad.runtime.element_types import element_type

    element = element_type(name)
    if element is not None:
        return element.dtype
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError, SyntaxError):
        dtype = np.dtype(object)
    if dtype.kind not in "biuf":
        raise argparse.ArgumentTypeError(f"{text!r}: {name!r} is no type of Metal or NumPy")
    return dtype


def _number(number: str, text: str) -> bool | int | float:
    if number in ("true", "false"):
        return number == "true"
    integer = _NUMBER.match(number)
    if integer:
        return int(integer[1], 16 if "x" in number.lower() else 10)
    real = _REAL.match(number)
    if real:
        return float(real[1])
    raise argparse.ArgumentTypeError(
        f"{text!r} is no argument; it has to be a .npy file, zeros:TYPE:SHAPE, a number, or TYPE:NUMBER,NUMBER..."
    )


def _extents(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"-?[0-9]+(,-?[0-9]+)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} has to be integers with commas between them")
    return tuple(map(int, text.split(",")))


def _constant(text: str) -> tuple[str | int, Any]:
    name, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r} has to be like flag=true or 3=1.5")
    numbers = [_number(each, text) for each in value.split(",")]
    return (int(name) if name.isdecimal() else name), numbers[0] if len(numbers) == 1 else tuple(numbers)


def _output(text: str, names: list[str], values: list[Any]) -> tuple[str, np.ndarray, Path | None]:
    """The name, the array and the file of an ``--out``."""
    name, separator, path = text.partition("=")
    position = int(name) if name.isdecimal() else names.index(name) if name in names else len(names)
    if position >= min(len(names), len(values)):
        listed = ", ".join(f"{index} {each}" for index, each in enumerate(names)) or "none"
        raise argparse.ArgumentTypeError(f"--out {text}: there is no argument {name!r}; the kernel has {listed}")
    if not isinstance(values[position], np.ndarray):
        raise argparse.ArgumentTypeError(f"--out {text}: argument {name!r} is a number or a struct, not an array")
    return names[position], values[position], Path(path) if separator else None
