"""What a Metal source defines outside of functions, and the part of it that some kernel functions need.

A family of shaders is one source with up to a hundred kernel functions, of which a program uses a few: a compiler takes
as long for each as for all that is written before them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_DIRECTIVE = re.compile(r"^[^\S\n]*\#(?:[^\\\n]|\\.)*", re.DOTALL | re.MULTILINE)
_SIGN = re.compile(
    rf"""
    {_COMMENT.pattern}
  | (?P<directive>{_DIRECTIVE.pattern})
  | "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*'
  | (?P<sign>[{{}}();])
    """,
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)
_IS_CONTINUED = re.compile(r"\s*\w*\s*[;,=]")
_WORD = re.compile(r"[A-Za-z_]\w*")
_FUNCTION = re.compile(
    r"\s*(?:\[\[[\w\s:(),]*\]\]\s*)*(?P<template>template\s*<[\w\s,]*>\s*)?"
    r"(?P<kind>kernel\s+void\s|[A-Za-z_][\w\s:&*<>,]*[\s&*>])(?P<name>[A-Za-z_]\w*)\s*\([^{};=]*\)\s*\{"
)
_STRUCT = re.compile(r"\s*struct\s+(?P<name>[A-Za-z_]\w*)\s*\{.*\}\s*;\s*", re.DOTALL)


class _Item(NamedTuple):
    """A run of lines, from ``start`` up to ``end``, that begins and ends outside of all brackets.

    ``name`` is that of the one function or struct in it, and empty for all else. ``words`` are the identifiers in it.
    """

    start: int
    end: int
    name: str
    is_kernel: bool
    words: frozenset[str]


class Outline:
    """The functions and structs at program scope of the source of these lines."""

    def __init__(self, lines: Sequence[str]) -> None:
        source = "\n".join(lines)
        # A name that macros put together is in no text.
        self._items = [] if "##" in source else [_item(lines, *bounds) for bounds in _runs(source)]

    @cached_property
    def kernels(self) -> tuple[str, ...]:
        """The names of the kernel functions that ``lines_for`` can be asked for, in their order; not those made of
        templates."""
        return tuple(item.name for item in self._items if item.is_kernel)

    def lines_for(self, kernels: Collection[str]) -> list[int]:
        """The indices of the lines that these kernel functions need: all but functions and structs that are not named
        in what they need."""
        waiting = [item for item in self._items if not item.name or item.name in kernels]
        named = defaultdict(list)
        for item in self._items:
            if item.name and item.name not in kernels:
                named[item.name].append(item)
        needed: list[_Item] = []
        while waiting:
            item = waiting.pop()
            needed.append(item)
            for word in item.words & named.keys():
                waiting += named.pop(word)
        return [index for item in sorted(needed) for index in range(item.start, item.end)]


def _runs(source: str) -> Iterator[tuple[int, int, int]]:
    """The shortest runs of whole lines that begin and end outside of all brackets and conditions of the preprocessor,
    each with the number of statements, definitions and directives that end in it."""
    start = line = position = depth = conditions = ends = 0
    is_begun = False
    for found in _SIGN.finditer(source):
        between = source[position : found.start()]
        passed = between.count("\n")
        if ends and passed and not (conditions or is_begun):
            yield start, line + 1, ends
            start, ends = line + 1, 0
        line += passed
        is_begun = is_begun or bool(between.strip())
        sign, directive = found["sign"], found["directive"]
        if directive is not None:
            word = directive.strip(" \t#")
            conditions += word.startswith("if") - word.startswith("endif")
            ends += not (depth or conditions or is_begun)
        elif sign is not None:
            depth += (sign in "({") - (sign in ")}")
            is_over = sign == ";" or sign == "}" and not _IS_CONTINUED.match(source, found.end())
            is_begun = depth > 0 or not is_over
            ends += not is_begun
        line += found[0].count("\n")
        position = found.end()
    yield start, source.count("\n") + 1, ends


def _item(lines: Sequence[str], start: int, end: int, ends: int) -> _Item:
    text = _COMMENT.sub("", "\n".join(lines[start:end]))
    words = frozenset(_WORD.findall(text))
    text = _DIRECTIVE.sub("", text) if ends == 1 else ""
    function = _FUNCTION.match(text)
    found = function or _STRUCT.fullmatch(text)
    is_kernel = function is not None and function["kind"].startswith("kernel") and not function["template"]
    return _Item(start, end, found["name"] if found else "", is_kernel, words)
