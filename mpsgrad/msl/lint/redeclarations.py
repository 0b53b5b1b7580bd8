"""Rule 55: one name is declared once in each block."""

from __future__ import annotations

from collections.abc import Iterator

from mpsgrad.msl.analysis.source import Source, Variable
from mpsgrad.msl.lint.rule import Found, rule


@rule(
    55,
    "one-declaration",
    words="redefinition of 'x'",
    why="In one block a name means one variable; a block inside may use it for another.",
)
def names_are_declared_once(source: Source) -> Iterator[Found]:
    """Looks at the variables and parameters of functions and at the members of structs; those at program scope are left
    to the compiler."""
    for name, variables in source.variables.items():
        earlier: dict[tuple[int, int], Variable] = {}
        for variable in sorted(variables, key=lambda each: each.place):
            block = _block(source, variable)
            if block is None:
                continue
            first = earlier.setdefault(block, variable)
            if first.place != variable.place:
                kind = "duplicate member" if not source.in_body(variable.place) and block[1] else "redefinition of"
                yield source.tokens[variable.place], f"{kind} '{name}'"


def _block(source: Source, variable: Variable) -> tuple[int, int] | None:
    """What tells the block that ``variable`` is declared in; None where it is not certain to be a block's variable."""
    is_at_program_scope = any(start < variable.place < end for start, end in source.program.variables)
    if is_at_program_scope or variable.name == "operator" or source.text(variable.place + 1) == "(":
        return None
    for bodies in source.struct_bodies.values():
        for start, end, _ in bodies:
            if variable.first == start and variable.last == end:
                return end, start
    place = variable.place
    while place > 0 and source.text(place - 1) not in (";", "{", "}"):
        if source.text(place - 1) in (")", "]") and source.close(place - 1) > 0:
            place = source.close(place - 1)
        elif source.text(place - 1) == "(":
            is_parameter = any(function.opening == place - 1 for function in source.functions)
            return (variable.last, 0) if is_parameter else None
        place -= 1
    return (variable.last, 0) if source.in_body(variable.place) else None
