"""The parts of declarations in function bodies."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from mpsgrad.msl.analysis.source import Source
from mpsgrad.msl.instrument.tree import NotUnderstood
from mpsgrad.msl.program import ADDRESS_SPACES
from mpsgrad.msl.tokens import IDENTIFIER, matching_angle

_SPECIFIERS = frozenset(
    "const constexpr volatile static inline extern struct class union enum typename mutable restrict __restrict".split()
)
_ARITHMETIC = frozenset({"unsigned", "signed", "char", "short", "int", "long"})
_DECLARATOR_WORDS = frozenset({"*", "&", "&&", "(", "const", "restrict", "__restrict", *ADDRESS_SPACES})


class Declarator(NamedTuple):
    """One of the variables of a declaration, whose name stands at ``place`` and whose extents end before ``end``."""

    name: str
    place: int
    end: int
    is_reference: bool
    is_object: bool
    is_array: bool
    """Whether it has an extent, and not only the attributes of an object."""


class DeclaratorReader:
    """Reads declarations of one source. ``is_variable`` says whether a name means a variable where it stands."""

    def __init__(self, source: Source, is_variable: Callable[[str], bool]) -> None:
        self._source = source
        self._text = source.text
        self._is_variable = is_variable

    def _closing(self, opening: int) -> int:
        close = self._source.close(opening)
        if close < 0:
            raise NotUnderstood(opening)
        return close

    def specifiers(self, start: int, stop: int) -> tuple[int | None, set[str]]:
        """The index behind the type that a declaration begins with, and its words; None if there is no type."""
        tokens = self._source.tokens
        words: set[str] = set()
        has_type = False
        index = start
        while index < stop:
            text = tokens[index].text
            if text in ADDRESS_SPACES or text in _SPECIFIERS:
                words.add(text)
            elif text in ("alignas", "__attribute__") and self._text(index + 1) == "(":
                words.add("alignas")
                index = self._closing(index + 1)
            elif text == "decltype" and self._text(index + 1) == "(" and not has_type:
                has_type = True
                index = self._closing(index + 1)
            elif text in _ARITHMETIC and (not has_type or self._text(index - 1) in _ARITHMETIC):
                has_type = True
                words.add(text)
            elif tokens[index].kind == IDENTIFIER and has_type:
                break
            elif text == "::" or tokens[index].kind == IDENTIFIER:
                if text != "::":
                    if self._is_variable(text) and self._text(index + 1) != "::":
                        return None, words
                    has_type = self._text(index + 1) != "::"
                    words.add(text)
                    if self._text(index + 1) == "<":
                        close = matching_angle(tokens, index + 1, stop)
                        if close is None or tokens[close].text != ">":
                            return None, words
                        index = close
                        has_type = self._text(index + 1) != "::"
            else:
                break
            index += 1
        return (index if has_type else None), words

    def begins(self, index: int, stop: int) -> bool:
        """Whether what stands behind a type at ``index`` declares a variable."""
        position = index
        in_brackets = self._text(position) == "("
        if in_brackets and self._text(position + 1) not in ("*", "&") and not self._source.is_type(index - 1):
            return False
        while position < stop and self._text(position) in _DECLARATOR_WORDS:
            position += 1
        if position >= stop or self._source.kind(position) != IDENTIFIER:
            return False
        following = self._text(position + 1) if position + 1 < stop else ";"
        if in_brackets:
            return following == ")" and self._text(position + 2) in ("[", "=", ";", ",", "{")
        return following in ("=", ";", ",", "[", "(", "{")

    def read(self, index: int, stop: int) -> Declarator:
        """What a declaration declares at ``index``."""
        pointers = references = 0
        while index < stop and self._text(index) in _DECLARATOR_WORDS:
            pointers += self._text(index) == "*"
            references += self._text(index) in ("&", "&&")
            index += 1
        name_at = index
        if index >= stop or self._source.kind(index) != IDENTIFIER:
            raise NotUnderstood(index)
        index += 1
        while self._text(index) == ")":
            index += 1
        is_array = False
        while index < stop and self._text(index) == "[":
            is_array = is_array or self._text(index + 1) != "["
            index = self._source.close(index) + 1
            if index <= 0:
                raise NotUnderstood(name_at)
        is_object = not pointers and not references
        return Declarator(self._text(name_at), name_at, index, bool(references), is_object, is_array)
