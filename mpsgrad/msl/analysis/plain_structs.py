"""Structs that a program handles member by member only.

Of such a struct's objects each member gets what is written into it by its name, and nothing else: no object is copied,
cast, or made from a list of values.
"""

from __future__ import annotations

from mpsgrad.msl.analysis.source import Source, Variable
from mpsgrad.msl.program import SHARED_SPACES
from mpsgrad.msl.tokens import IDENTIFIER


def is_plain(source: Source, struct: str) -> bool:
    """Whether ``struct`` is one of those."""
    return source.keep(("plain struct", struct), lambda: _is_plain(source, struct))


def _is_plain(source: Source, struct: str) -> bool:
    bodies = source.struct_bodies.get(struct, ())
    if len(bodies) != 1 or bodies[0][2] or source.lambdas or source.places("template"):
        return False
    if any(source.text(index + 1) == "*" for index in source.places("void")):
        return False
    opening, end, _ = bodies[0]
    if source.places("(", "=", start=opening, end=end):
        return False
    declared = []
    for index in source.places(struct):
        if index == opening - 1 and source.text(index - 1) == "struct":
            continue
        name = index + 1 + (source.text(index + 1) in ("*", "&"))
        variable = source.variable(source.text(name), name) if source.kind(name) == IDENTIFIER else None
        if variable is None or variable.place != name or not _is_simple(source, variable):
            return False
        declared.append(variable)
    return all(
        _is_member_or_argument(source, index)
        for variable in declared
        for index in source.places(variable.name, start=variable.place + 1, end=variable.last)
        if source.text(index - 1) not in (".", "->") and source.variable(variable.name, index) is variable
    )


def _is_simple(source: Source, variable: Variable) -> bool:
    """Whether ``variable`` is declared as a thread's object without a value, or is a pointer or reference to some."""
    kind, behind = variable.type, source.text(variable.place + 1)
    if kind is None or variable.extents:
        return False
    if source.text(variable.place - 1) in ("*", "&"):
        return behind in (",", ")") and variable.first < variable.place
    return behind == ";" and kind.space not in SHARED_SPACES and source.in_body(variable.place)


def _is_member_or_argument(source: Source, index: int) -> bool:
    if source.text(index + 1) in (".", "->"):
        return True
    before = index - (source.text(index - 1) in ("&", "*"))
    return source.text(before - 1) in ("(", ",") and source.text(index + 1) in (")", ",")
