"""The parts that a translation of several kernel functions is compiled in, each at the first use of a function in it.

Intel's compiler takes a twentieth of a second to read a program, and longer for each kernel function in it. So the
functions of a long source are divided: where ``PART_MACRO`` is defined, the translation has the functions of the part
with that number only.
"""

from __future__ import annotations

from mpsgrad.msl.program import Kernel, Program
from mpsgrad.msl.reach import Reach
from mpsgrad.msl.signature import PART_MACRO, WHOLE
from mpsgrad.msl.tokens import Token

# How long a function takes to compile, in tokens of one without simdgroups, of which 3000 take about a second.
_SIMDGROUP_FACTOR = 5
_MOST_TOKENS = 1000
_MOST_PARTS_OF_WHOLE = 2


def parts_of(program: Program, reach: Reach) -> dict[int, int]:
    """The part of each kernel function by the index of its first token, from 1; empty if the program is one part.

    What only the compiler's last steps find has to be found when the source is compiled, so a program stays whole in
    which a function may call itself or lack a body. One of more parts does not: all of a hundred kernel functions took
    minutes, so there that is found at the first use, too.
    """
    templates = {kernel.name.text: kernel for kernel in program.kernels if kernel.template is not None}
    functions = [(kernel.start, kernel) for kernel in program.kernels if kernel.template is None]
    for one in program.instantiations:
        if one.name.text in templates:
            functions.append((one.start, templates[one.name.text]))
    parts: dict[int, int] = {}
    part, tokens = 1, 0
    for start, kernel in sorted(functions, key=lambda function: function[0]):
        more = _tokens(kernel, reach)
        if tokens and tokens + more > _MOST_TOKENS:
            part, tokens = part + 1, 0
        tokens += more
        parts[start] = part
    if part > _MOST_PARTS_OF_WHOLE:
        return parts
    return parts if part > 1 and not program.has_prototypes and not reach.may_recurse() else {}


def _tokens(kernel: Kernel, reach: Reach) -> int:
    return reach.tokens(kernel) * (_SIMDGROUP_FACTOR if reach.uses_simdgroups(kernel) else 1)


def in_part(part: int, function: list[Token], first: Token, last: Token) -> list[Token]:
    """The tokens of ``function``, which stands from ``first`` to ``last``, as one of ``part``."""
    if part == WHOLE:
        return function
    opening = Token("part", f"#if !defined({PART_MACRO}) || {PART_MACRO} == {part}", first.file, first.line, 1)
    return [opening, *function, Token("part", "#endif", last.file, last.line, 1)]
