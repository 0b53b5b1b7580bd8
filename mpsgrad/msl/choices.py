"""The ``?:`` of a program that need help where some scalar types are classes, as half is in CUDA.

There ``c ? h : 0.0f`` is ambiguous, since each arm converts to the other's type. So it is written
``choose_mtl(c ? arm_mtl(h) : 0.0f)``: the library makes of the class a type that converts one way only, and back.

In OpenCL objects of classes have different types where one is a variable and the other what a function returns, and in
different address spaces. So ``c ? f() : x`` is written ``c ? copy_mtl(f()) : copy_mtl(x)`` there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from mpsgrad.msl.analysis.expressions import Expressions
from mpsgrad.msl.analysis.source import Source
from mpsgrad.msl.analysis.statements import Range
from mpsgrad.msl.analysis.template_brackets import template_brackets
from mpsgrad.msl.analysis.types import SIZES, Type, built_in
from mpsgrad.msl.backend import floating_literal
from mpsgrad.msl.program import ADDRESS_SPACES
from mpsgrad.msl.tokens import IDENTIFIER, NUMBER, OPENING, STRING, matching_angle

_BOUNDARIES = frozenset("; { } , ( [ ? : = += -= *= /= %= &= |= ^= <<= >>= return else do case".split())
_ARITHMETIC = frozenset({"+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>"})
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
    if not source.places("?") or not mentions(source, scalars):
        return []
    found = []
    for extent, arms, kinds in _choices(source):
        wrapped = tuple(arm for arm, kind in zip(arms, kinds, strict=True) if kind is None or kind.base in scalars)
        if wrapped and _may_differ(kinds):
            found.append(Choice(extent, wrapped))
    return found


def arms_of_objects(source: Source) -> list[Range]:
    """The arms of choices between values of classes or matrices, one of which a function returns or is made there, or
    which lie in two address spaces."""
    if not source.places("?"):
        return []
    found: list[Range] = []
    for _, arms, kinds in _choices(source):
        if all(kind is None or _is_object(kind) for kind in kinds):
            if any(_is_literal(source, *arm) for arm in arms):
                continue
            is_of_vectors = any(kind is not None and kind.is_vector and _is_object(kind) for kind in kinds)
            is_made = any(is_object_made(source, *arm) for arm in arms)
            if any(kind is not None and kind.base == "bfloat" for kind in kinds):
                is_made = is_made or any(_is_bfloat_made(source, *arm) for arm in arms)
            if is_of_vectors or is_made or _lie_apart(source, *arms) or _are_apart(kinds):
                found += arms
    return found


def _is_object(kind: Type) -> bool:
    """Whether values of a type are objects of a class in OpenCL."""
    is_class = kind.base not in SIZES or kind.base == "bfloat" or (kind.base == "bool" and kind.width > 1)
    return not kind.pointers and (kind.columns > 0 or is_class)


def _choices(source: Source) -> list[tuple[Range, tuple[Range, Range], list[Type | None]]]:
    """The ranges of each ``c ? a : b`` that is no statement and has a value, left to right, and of its arms, and the
    arms' types; ``a ?: b`` has none."""
    brackets = template_brackets(source)
    expressions = Expressions(source)
    found = []
    # From the last on, so that those in the arms are known.
    ends: dict[int, int] = {}
    for index in reversed(source.places("?")):
        start = _start(source, brackets, index)
        colon = _end(source, brackets, index + 1, ends)
        end = ends[index] = _end(source, brackets, colon + 1, ends) if source.text(colon) == ":" else colon
        if source.text(colon) != ":" or colon == index + 1:
            continue
        if source.text(start - 1) in (";", "{", "}") and source.text(end) == ";":
            continue
        if source.texts[index + 1 : index + 4] == ["(", "void", ")"]:
            continue
        arms = ((index + 1, colon), (colon + 1, end))
        found.append(((start, end), arms, [expressions.type_of(*arm) for arm in arms]))
    return found[::-1]


def alternatives(source: Source) -> Iterator[tuple[int, int, int, int]]:
    """Where each ``a ?: b`` begins, its operators, and where it ends."""
    brackets = template_brackets(source)
    for index in source.places("?"):
        if source.text(index + 1) == ":":
            yield _start(source, brackets, index), index, index + 1, _end(source, brackets, index + 2, {})


def _is_literal(source: Source, start: int, end: int) -> bool:
    """Whether an arm may be a null pointer, or text."""
    if end != start + 1 or source.kind(start) == NUMBER and floating_literal(source.text(start)) is not None:
        return False
    return source.kind(start) in (NUMBER, STRING) or source.text(start) in ("nullptr", "NULL")


def is_object_made(source: Source, start: int, end: int) -> bool:
    """Whether an arm, of a type that cannot be told, is certainly a value: a call, a construction or arithmetic."""
    opening = start
    while opening < end and source.text(opening) not in (*OPENING, "<"):
        if source.text(opening) in _ARITHMETIC and opening > start:
            return True
        opening += 1
    if opening == start and source.text(start) == "(":
        inside = source.close(start)
        if inside == end - 1:
            return is_object_made(source, start + 1, inside)
        return source.text(inside + 1) in _ARITHMETIC
    name = source.text(opening - 1)
    if opening == start or source.kind(opening - 1) != IDENTIFIER:
        return False
    if source.text(opening) == "<":
        close = matching_angle(source.tokens, opening, end)
        if close is None:
            return False
        opening = close + 1
        if source.text(opening) == "::":
            name, opening = source.text(opening + 1), opening + 2
    if source.text(opening) not in ("(", "{"):
        return opening < end and source.text(source.close(opening) + 1) in _ARITHMETIC
    behind = source.close(opening) + 1
    if behind < end:
        return source.text(behind) in _ARITHMETIC
    if name == "static_cast":
        return not {"*", "&"} & set(source.texts[start:opening])
    kind = built_in(name)
    if kind is not None or name in source.struct_bodies or name in source.aliases:
        return kind is None or _is_object(kind)
    variable = source.variable(name, opening - 1)
    is_called_object = variable is not None and "auto" not in source.words_before(variable.place, "(", ",")
    functions = source.functions_by_name.get(")" if is_called_object else name, [])
    heads = [source.texts[function.start : function.opening] for function in functions]
    return bool(heads) and not any({"&", "*", "void", "auto"} & set(head) for head in heads)


def _is_bfloat_made(source: Source, start: int, end: int) -> bool:
    """Whether an arm beside a bfloat is a literal, a cast or a negative."""
    while source.text(start) == "(" and source.close(start) == end - 1:
        start, end = start + 1, end - 1
    if source.text(start) in ("static_cast", "as_type"):
        return source.text(end - 1) == ")"
    if source.text(start) == "-" or source.kind(start) == NUMBER:
        return True
    return source.texts[start : start + 3] == ["(", "bfloat", ")"]


def _are_apart(kinds: Sequence[Type | None]) -> bool:
    """Whether two arms are objects in different address spaces by their types."""
    spaces = {kind.space or "thread" for kind in kinds if kind is not None}
    return None not in kinds and len(spaces) == 2


def _lie_apart(source: Source, yes: Range, no: Range) -> bool:
    """Whether two arms are certainly objects in different address spaces."""
    spaces = {_space_of(source, *yes), _space_of(source, *no)}
    return len(spaces) == 2 and None not in spaces


def _space_of(source: Source, start: int, end: int) -> str | None:
    """The address space of the variable, its element or its member that an arm names; None where it is something else.
    """
    index, last = start + 1, start
    while index < end:
        if source.text(index) == "[" and source.close(index) < end:
            index = source.close(index) + 1
        elif source.text(index) in (".", "::") and source.kind(index + 1) == IDENTIFIER:
            last = index + 1
            index += 2
        elif source.text(index) == "<":
            close = matching_angle(source.tokens, index, end)
            if close is None:
                return None
            index = close + 1
        else:
            return None
    if source.kind(last) != IDENTIFIER:
        return None
    if source.text(last) in source.keep("constants of classes", lambda: _constants_of_classes(source)):
        return "constant"
    variable = source.variable(source.text(start), start)
    if variable is None or source.text(start + 1) in ("::", "<"):
        return None
    words = set(source.words_before(variable.place, "(", ",", ")"))
    spaces = words & ADDRESS_SPACES
    if not spaces:
        return None if words & {"*", "&", "auto"} else "thread"
    return spaces.pop() if len(spaces) == 1 else None


def _constants_of_classes(source: Source) -> frozenset[str]:
    """The names of static members, which lie in the constant address space."""
    found = set()
    for index in source.places("static"):
        end = index
        while source.text(end) not in ("", "=", ";", "(", "{"):
            end += 1
        if source.text(end) in ("=", "{") and "constant" in source.texts[index:end]:
            found.add(source.text(end - 1))
    return frozenset(found)


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


def _end(source: Source, brackets: dict[int, int], index: int, ends: dict[int, int]) -> int:
    """The index behind the expression at ``index``, which a colon may end; ``ends`` has those of choices in it."""
    choices_open = 0
    while index < len(source.tokens) and source.kind(index) != "pragma":
        text = source.text(index)
        if text in ("(", "[", "{") and source.close(index) > index:
            index = source.close(index)
        elif text == "<" and index in brackets:
            index = brackets[index]
        elif text == "?" and index in ends and not choices_open:
            return ends[index]
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
