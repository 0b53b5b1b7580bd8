"""Rule 52: functions that end without the value that they are to return."""

from __future__ import annotations

from collections.abc import Iterator

from mpsgrad.msl.analysis.source import Function, Source
from mpsgrad.msl.analysis.statements import LOOPS, Statement
from mpsgrad.msl.lint.rule import Found, rule
from mpsgrad.msl.tokens import IDENTIFIER

_DEEPEST = 100


@rule(
    52,
    "missing-return",
    words="non-void function does not return a value in all control paths",
    severity="warning",
    why="A function that ends without a return gives any value, and the compiler may drop what leads there.",
)
def functions_return_their_values(source: Source) -> Iterator[Found]:
    """Takes every switch and every if constexpr to return, and every loop whose condition is not written as true to
    end."""
    for function in source.functions:
        if returns_a_value(source, function) and not _leaves(source, function.body_open + 1, function.body_close):
            message = "non-void function does not return a value in all control paths"
            yield source.tokens[function.body_close], message


def returns_a_value(source: Source, function: Function) -> bool:
    """Whether the head of ``function``, which is no kernel, says that it gives a value."""
    name = function.opening - 1
    head = source.texts[function.start : name]
    if function.kernel is not None or source.kind(name) != IDENTIFIER or source.text(function.body_open) != "{":
        return False
    if not head or name in (opening - 1 for opening in source.program.constructors):
        return False
    behind = source.texts[function.closing : function.body_open]
    if "auto" in head and "->" in behind:
        return not {"void", "decltype"} & set(behind)
    return not {"void", "auto", "operator", "~", "decltype"} & set(head) and not {"->", ":", "try"} & set(behind)


def _leaves(source: Source, start: int, end: int, depth: int = 0) -> bool:
    """Whether what stands there never gets to its end."""
    leaves = False
    for each in source.statements.between(start, end):
        leaves = _is_last(source, each, depth + 1)
    return leaves


def _is_last(source: Source, statement: Statement, depth: int) -> bool:
    """Whether what is behind the statement is never got to."""
    if depth > _DEEPEST:
        return True
    text = source.text(statement.word)
    if text == "{":
        return _leaves(source, statement.word + 1, statement.end - 1, depth)
    if not statement.parts:
        return text in ("return", "__builtin_unreachable")
    if text == "switch":
        return True
    leaves = [_is_last(source, source.statements.at(start), depth + 1) for start, _ in statement.parts]
    if text == "if":
        return all(leaves) and (len(leaves) == 2 or statement.is_constexpr)
    if text in LOOPS:
        return _is_endless(source, statement) or text == "do" and leaves[0]
    return leaves[0]


def _is_endless(source: Source, loop: Statement) -> bool:
    condition = loop.condition
    if source.text(loop.word) == "for":
        parts = source.statements.clauses(condition)
        if len(parts) != 3:
            return False
        condition = parts[1]
    is_true = source.texts[slice(*condition)] in ([], ["true"], ["1"])
    start = loop.parts[0][0]
    breaks = source.places("break", start=start, end=loop.end)
    return is_true and all(any(source.statements.around(k, *LOOPS, "switch", start=start)) for k in breaks)
