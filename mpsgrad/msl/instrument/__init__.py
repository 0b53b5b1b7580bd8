"""Makes a program report what it does wrong when it runs: checks in its own source, called from where it was written.

The checks (``include/opencl/80_checks.h`` and ``81_own_variables.h``) find which buffer, threadgroup variable or
variable of the thread's own a pointer is in by its address, so types stay as they are. What an access is for, reading
or writing, is read off the expression that it stands in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mpsgrad.msl.analysis.source import Source
from mpsgrad.msl.friends import open_classes
from mpsgrad.msl.instrument.scopes import has_constructors
from mpsgrad.msl.instrument.sites import CONSTANT_NAMES, OWN_NAMES, THREADGROUP_NAMES, Site, member_template
from mpsgrad.msl.instrument.weaver import Weaver
from mpsgrad.msl.program import Kernel, Program
from mpsgrad.msl.tokens import IDENTIFIER, STRING, Token

__all__ = [
    "CONSTANT_NAMES",
    "OWN_NAMES",
    "THREADGROUP_NAMES",
    "Instrumentation",
    "Site",
    "instrument",
    "member_template",
]

_SMALL_TYPES = {1: ("char", "bool", "int8_t"), 2: ("half", "short", "int16_t", "bfloat")}


@dataclass(frozen=True, slots=True)
class Instrumentation:
    """An instrumented program and what the numbers in it mean.

    A check's site is its position in ``sites``, a threadgroup variable's number its position in ``threadgroup`` behind
    ``THREADGROUP_NAMES``, that of a constant of the program its position in ``constants`` behind ``CONSTANT_NAMES``,
    that of a variable of a thread's own its position in ``own`` behind ``OWN_NAMES``, and the lengths of
    ``threadgroup_arguments`` are asked for by position. ``lane_sites`` counts the sites of simdgroup functions.
    ``members`` have a template each in the translation. No access is smaller than ``granule`` bytes. ``unchecked`` are
    places (file, line, column) that were not understood. ``has_constructors`` says that constants may get their values
    when the program runs.
    """

    tokens: list[Token]
    members: tuple[str, ...]
    sites: tuple[Site, ...]
    lane_sites: int
    constants: tuple[str, ...]
    threadgroup: tuple[str, ...]
    threadgroup_arguments: tuple[str, ...]
    own: tuple[str, ...]
    granule: int
    unchecked: tuple[tuple[str, int, int], ...]
    has_constructors: bool

    @property
    def library_names(self) -> tuple[str, ...]:
        """What the program needs of the library beside what it names."""
        own = "own_variables_mtl" if self.own else "no_own_variables_mtl"
        return "checks_mtl", own, "threadgroup_barrier", "simdgroup_barrier"


def instrument(
    program: Program, kernel: str, source: str, filename: str, strings: Mapping[str, str]
) -> Instrumentation:
    """The program with checks in the kernel function that the host calls ``kernel``, and in all that are no kernels.

    ``strings`` are the names that the program has for its string literals.
    """
    # Checks reach the members of objects from anywhere.
    open_classes(program.tokens)
    read = Source(program.tokens, program, (4, 0), False, source, filename)
    words = {token.text for token in program.tokens if token.kind == IDENTIFIER}
    granule = next(
        (size for size, names in _SMALL_TYPES.items() if any(name in word for word in words for name in names)), 4
    )
    weaver = Weaver(read, strings.values(), granule)
    plain = [each for each in program.kernels if each.template is None and _host_name(each) == kernel]
    for function in read.functions:
        if function.kernel is None or function.kernel in plain or (not plain and function.kernel.template is not None):
            weaver.weave(function)
    woven = weaver.woven
    return Instrumentation(
        weaver.edits.applied(),
        tuple(sorted(woven.members)),
        tuple(woven.sites),
        woven.lane_sites,
        (*(name.removeprefix("::") for name in weaver.constants), *strings),
        tuple(woven.threadgroup),
        tuple(woven.threadgroup_arguments),
        tuple(woven.own),
        granule,
        tuple((token.file, token.line, token.column) for token in woven.not_understood),
        has_constructors(read),
    )


def _host_name(kernel: Kernel) -> str:
    attribute = kernel.attribute("host_name")
    if attribute is None:
        return "::".join((*kernel.namespace, kernel.name.text))
    return "".join(token.text[1:-1] for token in attribute.arguments if token.kind == STRING)
