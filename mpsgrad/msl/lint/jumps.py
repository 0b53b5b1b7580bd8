"""Rule 56: statements stand where they have a meaning."""

from __future__ import annotations

from collections.abc import Iterator

from mpsgrad.msl.analysis.expressions import expressions_of
from mpsgrad.msl.analysis.source import Function, Source
from mpsgrad.msl.analysis.statements import LOOPS, Range
from mpsgrad.msl.analysis.types import SIZES
from mpsgrad.msl.lint.returns import returns_a_value
from mpsgrad.msl.lint.rule import Found, rule
from mpsgrad.msl.tokens import IDENTIFIER, NUMBER

_ENDS = frozenset({";", "{", "}", ":"})
_OPERATORS = frozenset("and and_eq bitand bitor compl not not_eq or or_eq xor xor_eq".split())


@rule(
    56,
    "jump",
    words="'break' statement not in loop or switch statement",
    why="break, continue, case and return belong to a loop, a switch or a function, and fit what that is.",
)
def jumps_have_a_target(source: Source) -> Iterator[Found]:
    """Sees case labels whose values can be told from the source, and values returned whose types can; functions with
    lambdas are left to the compiler. Semicolons are missed at the ends of blocks and behind numbers."""
    for function in source.functions:
        start, end = function.body_open, function.body_close
        if source.text(start) != "{" or _has_lambdas(source, start, end):
            continue
        yield from _semicolons(source, function)
        loops = list(_bodies(source, LOOPS, start, end))
        switches = list(_bodies(source, ("switch",), start, end))
        for index in source.places("break", "continue", start=start, end=end):
            is_break = source.text(index) == "break"
            if not any(first <= index < last for first, last in loops + switches * is_break):
                target = "loop or switch" if is_break else "loop"
                yield source.tokens[index], f"'{source.text(index)}' statement not in {target} statement"
        for body in switches:
            yield from _labels(source, body, [other for other in switches if body[0] < other[0] < body[1]])
        yield from _returns(source, function)


def _semicolons(source: Source, function: Function) -> Iterator[Found]:
    for index in source.places("}", start=function.body_open, end=function.body_close + 1):
        opening, last = source.close(index), index - 1
        while source.kind(last) == "pragma":
            last -= 1
        if source.text(last) not in _ENDS and _is_block(source, opening, function) and not _ends_pragma(source, last):
            yield source.tokens[last], "expected ';' after expression"
    for index in range(function.body_open, function.body_close):
        if source.kind(index) == NUMBER and source.kind(index + 1) in (IDENTIFIER, NUMBER):
            if source.text(index + 1) not in _OPERATORS:
                yield source.tokens[index], "expected ';' after expression"


def _is_block(source: Source, opening: int, function: Function) -> bool:
    """Whether the bracket at ``opening`` begins statements, and no values."""
    while opening != function.body_open and source.text(opening - 1) == "{":
        opening -= 1
    before = source.text(opening - 1)
    if opening == function.body_open or before in (";", "}", ":", "else", "do"):
        return True
    return before == ")" and source.text(source.close(opening - 1) - 1) in ("if", "for", "while", "switch")


def _ends_pragma(source: Source, index: int) -> bool:
    return source.text(index) == ")" and source.text(source.close(index) - 1) in ("_Pragma", "__attribute__")


def _has_lambdas(source: Source, start: int, end: int) -> bool:
    return any(source.text(index + 1) in ("(", "{") for index in source.places("]", start=start, end=end))


def _bodies(source: Source, words: tuple[str, ...], start: int, end: int) -> Iterator[Range]:
    """The bodies of the statements that begin with ``words``."""
    for each in source.statements.deciding(*words, start=start, end=end):
        yield from each.parts


def _labels(source: Source, body: Range, inner: list[Range]) -> Iterator[Found]:
    values: set[int] = set()
    for index in source.places("case", start=body[0], end=body[1]):
        if any(first <= index < last for first, last in inner):
            continue
        colon = next((place for place in range(index, body[1]) if source.text(place) == ":"), index)
        value = source.integer(source.tokens[index + 1 : colon])
        if value in values:
            yield source.tokens[index], f"duplicate case value '{value}'"
        elif value is not None:
            values.add(value)


def _returns(source: Source, function: Function) -> Iterator[Found]:
    head = source.texts[function.start : function.opening - 1]
    is_void = "void" in head and "*" not in head and source.kind(function.opening - 1) == IDENTIFIER
    expressions = expressions_of(source)
    inner = [each for each in source.functions if function.body_open < each.opening < function.body_close]
    for index in source.places("return", start=function.body_open, end=function.body_close):
        if any(each.body_open < index < each.body_close for each in inner):
            continue
        if source.text(index + 1) == ";":
            if returns_a_value(source, function):
                yield source.tokens[index], f"non-void function '{function.name}' should return a value"
        elif is_void:
            kind = expressions.type_of(index + 1, source.expression_end(index + 1))
            if kind is not None and (kind.pointers or kind.base in SIZES):
                yield source.tokens[index], f"void function '{function.name}' should not return a value"
