"""Where the parts of statements begin and end."""

from __future__ import annotations

from mpsgrad.msl.analysis.expressions import Expressions
from mpsgrad.msl.analysis.source import Source
from mpsgrad.msl.analysis.types import Type
from mpsgrad.msl.tokens import IDENTIFIER


def operand_start(source: Source, index: int) -> int | None:
    """Where the left side of the assignment at ``index`` begins, if it begins a statement."""
    position = index - 1
    while position >= 0:
        text = source.text(position)
        if text in (")", "]") and source.close(position) >= 0:
            position = source.close(position)
        elif text in (";", "{", "}"):
            break
        elif not (source.kind(position) == IDENTIFIER or text in (".", "->", "*")):
            return None
        position -= 1
    start = position + 1
    first = source.text(start)
    if (
        source.kind(start) == IDENTIFIER
        and source.kind(start + 1) == IDENTIFIER
        or first in ("if", "for", "while", "else")
    ):
        return None
    return start if start < index else None


def object_before(source: Source, expressions: Expressions, dot: int) -> Type | None:
    """The type of the variable, subscript or member chain that ends before the ``.`` at ``dot``."""
    position = source.chain_start(dot)
    if source.kind(position) != IDENTIFIER or source.text(position - 1) == "::":
        return None
    return expressions.type_of(position, dot)
