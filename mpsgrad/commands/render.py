"""``mpsgrad render``: the text that a device's compiler gets for a family of kernels."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
import textwrap
from functools import cache

from mpsgrad import msl
from mpsgrad.devices import available_devices
from mpsgrad.shader import DTYPES, ShaderFamily, families

DEVICE_FAMILIES = {"metal": "apple", "opencl": "cpu", "cuda": "nvidia"}


def add_parser(subparsers: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Declares the subcommand."""
    parser = subparsers.add_parser(
        "render",
        help="print the shader that a device's compiler gets",
        description="Prints a family of kernels as a device's compiler gets it.",
    )
    parser.add_argument(
        "name", metavar="NAME", help="a shader family such as soft_max, or a kernel of one such as pooling_max_gradient"
    )
    parser.add_argument(
        "--dtype", choices=DTYPES, help="the images' type (default: the first that the family has, mostly float)"
    )
    parser.add_argument(
        "--for", dest="target", choices=DEVICE_FAMILIES, default="metal", help="whose compiler (default: metal)"
    )
    parser.add_argument(
        "--line-directives",
        action="store_true",
        help="keep the #line directives that name the template's lines (with --for metal; the others always have them)",
    )
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Prints the rendering; status 2 with what there is when the name or the dtype is not among it."""
    family = _find(arguments.name)
    if family is None:
        print(_unknown(arguments.name), file=sys.stderr)
        return 2
    dtype = arguments.dtype or family.dtypes[0]
    if dtype not in family.dtypes:
        print(f"mpsgrad render: {family.name} has no {dtype} kernels, only {', '.join(family.dtypes)}", file=sys.stderr)
        return 2
    rendering = family.render(dtype, DEVICE_FAMILIES[arguments.target], _tuning(arguments.target))
    if arguments.target == "metal":
        text = rendering.with_line_directives() if arguments.line_directives else rendering.source
    else:
        source = rendering.with_line_directives()
        text = msl.translate(source, arguments.target, filename=f"shaders/{family.file}").source
    sys.stdout.write(text)
    return 0


def _tuning(target: str) -> str | None:
    """The tuning of this machine's device where devices of one family have several."""
    return next((device.tuning for device in available_devices((target,))), None) if target == "opencl" else None


@cache
def _function_names(family: ShaderFamily) -> list[str]:
    return re.findall(r"^kernel void (\w+)\(", family.render(family.dtypes[0], "apple").source, re.MULTILINE)


def _find(name: str) -> ShaderFamily | None:
    """The family called ``name``, else the first with a kernel function of that name, or with forms of it."""
    if name in families():
        return families()[name]
    # Rendering takes its time: a kernel is mostly in the family that its name begins with.
    likely_first = sorted(families().values(), key=lambda family: not name.startswith(family.name))
    for family in likely_first:
        if any(f"{function}_".startswith(f"{name}_") for function in _function_names(family)):
            return family
    return None


def _unknown(name: str) -> str:
    existing = {family.name: _function_names(family) for family in families().values()}
    candidates = [*existing, *(function for functions in existing.values() for function in functions)]
    close = difflib.get_close_matches(name, dict.fromkeys(candidates), n=1)
    lines = [f"mpsgrad render: there is no {name!r}" + (f"; did you mean {close[0]!r}?" if close else "")]
    families_text = textwrap.fill(", ".join(sorted(existing)), 100, initial_indent="  ", subsequent_indent="  ")
    lines += ["Families, each with kernels of names like its own:", families_text]
    return "\n".join(lines)
