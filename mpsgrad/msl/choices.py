"""The ``?:`` of a program that need help where some scalar types are classes, as half is in CUDA.

There ``c ? h : 0.0f`` is ambiguous, since each arm converts to the other's type. So it is written
``choose_mtl(c ? arm_mtl(h) : 0.0f)``: the library makes of the class a type that converts one way only, and back.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from mpsgrad.msl.analysis.expressions import Expressions, Range
from mpsgrad.msl.analysis.source import Source
from mpsgrad.msl.analysis.template_brackets import template_brackets
from mpsgrad.msl.analysis.types import Type
from mpsgrad.msl.backend import floating_literal

_BOUNDARIES = frozenset("; { } , ( [ ? : = += -= *= /= %= &= |= ^= <<= >>= return else do case".split())
_SUFFIXES = {"half": "h", "bfloat": "bf"}


@dataclass(frozen=True)
class Choice:
    """The range of ``c ? a : b``, and those of the arms that may be an object of a class."""

    extent: Range
    arms: tuple[Range, ...]


def mentions(source: Source, scalars: Collection[str]) -> bool:
    """Whether the program has values of one of these types, or of vectors of them."""
    suffixes = {_SUFFIXES[name] for name in scalars}
    for text in {token.text for token in source.tokens}:
        if text[:1].isdigit() or text[:1] == ".":
            parts = floating_literal(text)
            if parts is not None and parts[1] in suffixes:
                return True
        elif any(name in text.lower() for name in scalars):
            return True
    return False


def choices(source: Source, scalars: Collection[str]) -> list[Choice]:
    """The choices of ``source`` between values one of which may have one of the types ``scalars``, left to right."""
    if all(token.text != "?" for token in source.tokens) or not mentions(source, scalars):
        return []
    brackets = template_brackets(source)
    expressions = Expressions(source)
    found = []
    for index, token in enumerate(source.tokens):
        if token.text != "?":
            continue
        start = _start(source, brackets, index)
        colon = _end(source, brackets, index + 1)
        if source.text(colon) != ":":
            continue
        end = _end(source, brackets, colon + 1)
        if source.text(start - 1) in (";", "{", "}") and source.text(end) == ";":
            continue
        arms = ((index + 1, colon), (colon + 1, end))
        kinds = [expressions.type_of(*arm) for arm in arms]
        wrapped = tuple(arm for arm, kind in zip(arms, kinds, strict=True) if kind is None or kind.base in scalars)
        if wrapped and _may_differ(kinds):
            found.append(Choice((start, end), wrapped))
    return found


def _may_differ(kinds: list[Type | None]) -> bool:
    """Whether two arms may be scalars of different types."""
    if any(kind is not None and not kind.is_scalar for kind in kinds):
        return False
    yes, no = kinds
    return yes is None or no is None or yes.value != no.value


def _start(source: Source, brackets: dict[int, int], index: int) -> int:
    """Where the condition before the ``?`` at ``index`` begins."""
    while index > 0 and source.kind(index - 1) != "pragma":
        text = source.text(index - 1)
        if text in (")", "]") and source.close(index - 1) >= 0:
            index = source.close(index - 1)
        elif text == ">" and index - 1 in brackets:
            index = brackets[index - 1]
        elif text in _BOUNDARIES:
            break
        else:
            index -= 1
    return index


def _end(source: Source, brackets: dict[int, int], index: int) -> int:
    """The index behind the expression at ``index``, which a colon may end."""
    choices_open = 0
    while index < len(source.tokens) and source.kind(index) != "pragma":
        text = source.text(index)
        if text in ("(", "[", "{") and source.close(index) > index:
            index = source.close(index)
        elif text == "<" and index in brackets:
            index = brackets[index]
        elif text == "?":
            choices_open += 1
        elif text == ":":
            if not choices_open:
                break
            choices_open -= 1
        elif text in (";", ",", ")", "]", "}"):
            break
        index += 1
    return index
