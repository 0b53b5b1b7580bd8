"""Which values of a kernel differ between threads, and what guards them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mpsgrad.msl.analysis.source import Source
from mpsgrad.msl.backend import THREAD_ATTRIBUTES
from mpsgrad.msl.program import Kernel
from mpsgrad.msl.tokens import ASSIGNMENTS, IDENTIFIER

_COMPARISONS = frozenset({"<", ">", "<=", ">=", "==", "!="})
# Beside these a value that differs between threads may give one that does not.
_UNEQUAL = frozenset({"/", ">>", "[", "?"})
# Beside these only where the other operand is no constant that keeps the values apart.
_UNEQUAL_BUT_FOR_CONSTANTS = frozenset({"-", "*", "&", "("})
_BOUNDS = ("min", "clamp", "max", "select")


@dataclass(frozen=True, slots=True)
class ThreadNames:
    """``follows`` are names of all values computed from a thread's position; ``differs`` the places of the variables
    that surely differ between the threads of a threadgroup."""

    follows: frozenset[str]
    differs: frozenset[int]


def thread_names(source: Source, kernel: Kernel, attributes: frozenset[str] = THREAD_ATTRIBUTES) -> ThreadNames:
    """The names in a kernel whose values follow from the thread's position, given by parameters of ``attributes``."""
    return source.keep((thread_names, kernel.start, attributes), lambda: _thread_names(source, kernel, attributes))


def _thread_names(source: Source, kernel: Kernel, attributes: frozenset[str]) -> ThreadNames:
    follows = {
        parameter.name
        for parameter in kernel.parameters
        if any(attribute.name in attributes for attribute in parameter.attributes)
    }
    differs = {variable.place for name in follows if (variable := source.variable(name, kernel.body_open)) is not None}
    follows |= {p.name for p in kernel.parameters if p.attribute("threadgroup_position_in_grid")}
    assignments = source.keep((_assignments, kernel.start), lambda: _assignments(source, kernel))
    for _ in range(2):
        for index, words, variables, keeps in assignments:
            if not words.isdisjoint(follows):
                follows.add(source.text(index - 1))
            target = source.variable(source.text(index - 1), index - 1)
            if keeps and target is not None and not variables.isdisjoint(differs):
                differs.add(target.place)
    return ThreadNames(frozenset(follows), frozenset(differs))


def _assignments(source: Source, kernel: Kernel) -> list[tuple[int, frozenset[str], frozenset[int], bool]]:
    """Where the kernel gives variables values, the words and the places of the variables in those, and whether they
    keep different values different."""
    found = []
    words: set[str] = set()
    variables: set[int] = set()
    is_apart = True
    behind = -1
    for index in reversed(source.places(*ASSIGNMENTS, start=kernel.body_open, end=kernel.body_close)):
        if source.kind(index - 1) != IDENTIFIER or source.text(index - 2) in (".", "->"):
            continue
        end = index + 1
        while end < kernel.body_close and end != behind and source.text(end) not in (";", "{", "}"):
            end += 1
        if end != behind:
            words, variables, is_apart = set(), set(), True
        # What is assigned further on is a part of the value: x = y = z.
        for position, text in enumerate(source.texts[index + 1 : end], index + 1):
            words.add(text)
            if source.kind(position) == IDENTIFIER and (variable := source.variable(text, position)) is not None:
                variables.add(variable.place)
            is_apart = is_apart and (text not in _UNEQUAL_BUT_FOR_CONSTANTS or _keeps_apart(source, position))
        behind = index
        found.append((index, frozenset(words), frozenset(variables), is_apart and words.isdisjoint(_UNEQUAL)))
    return found[::-1]


def _keeps_apart(source: Source, index: int) -> bool:
    """Whether what stands at ``index`` keeps different values different: brackets around a part or a cast, the
    product with a constant other than 0, the difference from a constant, the lowest bit."""
    text = source.text(index)
    if text == "(":
        is_name = source.kind(index - 1) == IDENTIFIER and source.text(index - 1) != "return"
        return not (is_name or source.text(index - 1) == ">") or source.is_type(index - 1)
    constants = [source.integer(source.tokens[place : place + 1]) for place in (index - 1, index + 1)]
    if text == "&":
        return any(constant is not None and constant % 2 == 1 for constant in constants)
    return any(constant is not None and (constant != 0 or text == "-") for constant in constants)


def has_guard(source: Source, kernel: Kernel, names: ThreadNames, before: int) -> bool:
    """Whether something before the token ``before`` bounds a value that follows from the thread's position."""
    words_that_guard = (*_BOUNDS, "%", "&", *_COMPARISONS, "if", "while", "?")
    for index in source.places(*words_that_guard, start=kernel.body_open, end=before):
        text = source.text(index)
        if text in _BOUNDS and source.close(index + 1) > 0:
            words = {source.text(position) for position in range(index + 2, source.close(index + 1))}
            if words & names.follows:
                return True
        elif text in ("%", "&") and source.text(index - 1) in names.follows:
            # A mask counts as an index only: of a value it says nothing about the position.
            if text == "%" or source.text(index - 2) == "[":
                return True
        elif text in _COMPARISONS:
            if names.follows & set(_neighbours(source, index)):
                return True
        elif text in ("if", "while", "?") and source.text(index + 1) == "(" and source.close(index + 1) > 0:
            words = {source.text(position) for position in range(index + 2, source.close(index + 1))}
            if words & names.follows:
                return True
    return False


def _neighbours(source: Source, index: int) -> list[str]:
    """The words on both sides of a comparison, up to the brackets or the statement's ends."""
    words = []
    for step in (-1, 1):
        position = index + step
        while source.text(position) not in (";", "{", "}", "&&", "||", ""):
            words.append(source.text(position))
            position += step
            if abs(position - index) > 40:
                break
    return words


def enclosing_conditions(source: Source, kernel: Kernel, index: int) -> list[tuple[int, int]]:
    """The conditions of the statements of ``kernel`` that hold the token at ``index``."""
    around = source.statements.around(index, "if", "for", "while", "switch", start=kernel.body_open)
    return [each.condition for each, _ in around if not each.is_constexpr]


def depends(
    source: Source, condition: tuple[int, int], differs: frozenset[int], ignored: frozenset[str] = frozenset()
) -> bool:
    """Whether a variable of ``differs`` itself decides the condition. In "position / 32 == 0", as an index or as an
    argument it may give all threads the same answer. The components ``ignored`` do not count."""
    start, end = condition
    index = start
    while index < end:
        text = source.text(index)
        is_name = source.kind(index - 1) == IDENTIFIER and not source.is_type(index - 1)
        is_call = text == "(" and index > start and (is_name or source.text(index - 1) == ">")
        if (is_call or text == "[") and source.close(index) > 0:
            index = source.close(index)
        elif source.kind(index) == IDENTIFIER and source.text(index - 1) not in (".", "->", "/"):
            variable = source.variable(text, index)
            after = index + 1
            while source.text(after) == "." and source.kind(after + 1) == IDENTIFIER:
                after += 2
            is_ignored = after > index + 1 and source.text(index + 2) in ignored
            is_apart = variable is not None and variable.place in differs and not is_ignored
            if is_apart and source.text(after) not in ("/", ">>"):
                differences = [place for place in (index - 1, after) if source.text(place) == "-"]
                if all(_keeps_apart(source, place) for place in differences):
                    return True
        index += 1
    return False


def positions_in_threadgroup(source: Source, kernel: Kernel) -> frozenset[str]:
    """The names of a thread's position in its threadgroup or in the grid, as one number, and of copies of it."""
    numbered = ("thread_index_in_threadgroup", "thread_position_in_threadgroup", "thread_position_in_grid")
    names = {
        parameter.name
        for parameter in kernel.parameters
        if parameter.attribute(*numbered) and re.fullmatch(r"uint(?:16_t|32_t)?|ushort", parameter.type[-1].text)
    }
    for index in source.places("=", start=kernel.body_open, end=kernel.body_close):
        if source.text(index + 1) in names and source.text(index + 2) in (";", ","):
            names.add(source.text(index - 1))
    return frozenset(names)


def splits_simdgroup(source: Source, condition: tuple[int, int], positions: frozenset[str]) -> bool:
    """Whether a comparison of a position in the threadgroup surely gives lanes of one simdgroup different answers.

    ``positions`` are the names of the positions and of their copies. A simdgroup is 32 positions in a row, from a
    multiple of 32 on: "position < 64" and "position / 32 == 1" are one answer for all of its lanes.
    """
    start, end = condition
    parts = source.places(";", start=start, end=end)
    if len(parts) == 2:
        start, end = parts
    subscripts = [(opening, source.close(opening)) for opening in source.places("[", start=start, end=end)]
    for index in source.places(*positions, start=start, end=end):
        if source.text(index - 1) in (".", "->") or any(opening < index < close for opening, close in subscripts):
            continue
        before, after = source.text(index - 1), source.text(index + 1)
        constant = _constant_between(source, index + 2, 1)
        if after == "%":
            return constant is not None and constant > 1
        if after in ("&", "/"):
            return constant is not None and constant % 32 != 0
        if after == ">>":
            return constant is not None and constant < 5
        if "==" in (before, after) or "!=" in (before, after):
            return True
        if before in _MIRRORED:
            constant, after = _constant_between(source, index - 2, -1), _MIRRORED[before]
        # A bound that is not known may be a multiple of 32, but is hardly one less than that.
        if after in ("<", ">=") and constant is not None and constant % 32:
            return True
        if after in (">", "<=") and (constant is None or (constant + 1) % 32):
            return True
    return False


_MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}


def _constant_between(source: Source, index: int, step: int) -> int | None:
    """The constant at ``index`` if it is all that a comparison's side is made of."""
    alone = source.text(index + step) in ("&&", "||", ";", ")", "(", "?", "==", "!=", "<", ">", "<=", ">=", "")
    return source.integer(source.tokens[index : index + 1]) if alone else None
