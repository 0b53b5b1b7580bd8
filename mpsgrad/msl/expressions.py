"""What stands in expressions and declarations, as far as it can be told from the tokens around it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property

from mpsgrad.msl.backend import VECTOR_TYPE
from mpsgrad.msl.library_names import SCALAR_OR_VECTOR
from mpsgrad.msl.program import ADDRESS_SPACES
from mpsgrad.msl.tokens import IDENTIFIER, NUMBER, Token, matching, matching_angle
from mpsgrad.msl.type_names import type_names


def is_operand(token: Token) -> bool:
    """Whether an operand may begin with ``token``."""
    return token.kind in (IDENTIFIER, NUMBER) or token.text in ("(", "-", "+", "~", "!")


def begins_operand(tokens: Sequence[Token], opening: int, index: int) -> bool:
    """Whether the bracketed type at ``opening`` is a cast of the operand at ``index``."""
    before = tokens[opening - 1] if opening else None
    if before is not None and (before.text in (")", "]", "sizeof", "operator") or before.kind == NUMBER):
        return False
    if before is not None and before.kind == IDENTIFIER and before.text not in ("return", "case", "else", "do"):
        return False
    # Behind a member's parameters: operator++(int) thread {
    return is_operand(tokens[index]) and tokens[index].text not in (*ADDRESS_SPACES, "const")


def declares_indirectly(argument: Sequence[Token], tokens: Sequence[Token], closing: int) -> bool:
    """Whether ``type (argument)`` declares a pointer or reference to an array or function, or a name in brackets."""
    following = tokens[closing + 1].text if closing + 1 < len(tokens) else ""
    is_name = len(argument) == 1 and argument[0].kind == IDENTIFIER
    return (argument[0].text in ("*", "&") and following in ("[", "(")) or (is_name and following == "=")


def are_values(arguments: Sequence[Sequence[Token]]) -> bool:
    """Whether ``arguments``, what commas part between brackets, are values and not a function's parameters.

    A parameter is a type, or a type and a name; where it is a pointer or reference, an address space begins it.
    """
    for each in arguments:
        argument = each
        while len(argument) > 2 and argument[1].text == "::":
            argument = argument[2:]
        if not argument or argument[0].text in ADDRESS_SPACES or argument[0].text == "const":
            return False
        following = argument[1] if len(argument) > 1 else None
        if argument[0].kind == IDENTIFIER and following is not None and following.kind == IDENTIFIER:
            return False
        angle = matching_angle(argument, 1) if following is not None and following.text == "<" else None
        if angle is not None and [token.kind for token in argument[angle + 1 :]] in ([], [IDENTIFIER]):
            return False
        ends_type = following is None or following.text in ("*", "&")
        if ends_type and SCALAR_OR_VECTOR.match(argument[0].text):
            return False
    return True


class VectorTypes:
    """Types of a program that may be vectors. ``users`` are names that only later versions of the language define.

    ``aliases`` are names that may stand for a vector type: template type parameters, and ``using`` and ``typedef``
    names but those of the program's own classes.
    """

    def __init__(self, tokens: Sequence[Token], users: frozenset[str]) -> None:
        self._users = users
        self._meanings = [(each.name.text, each.meaning) for each in type_names(tokens) if not each.defines_class]
        self.aliases = _type_parameters(tokens) | {name for name, _ in self._meanings} - self._class_aliases(tokens)

    def _class_aliases(self, tokens: Sequence[Token]) -> set[str]:
        """The names that ``using`` and ``typedef`` give to classes of the program, and to nothing else."""
        classes = _classes(tokens)
        return self._aliases_that(lambda meaning, found: _last_name(meaning) in classes | found)

    @cached_property
    def vector_aliases(self) -> frozenset[str]:
        """Those of ``aliases`` that stand for vector types wherever they are declared."""

        def names_vector(meaning: Sequence[Token], found: Collection[str]) -> bool:
            name = _last_name(meaning)
            return name is not None and (name == "vec" or name in found or self.is_vector(name))

        return frozenset(self._aliases_that(names_vector))

    def _aliases_that(self, holds: Callable[[Sequence[Token], set[str]], bool]) -> set[str]:
        """The aliases of which this holds wherever they are declared, given those of which it is known."""
        found: set[str] = set()
        while True:
            others = {name for name, meaning in self._meanings if not holds(meaning, found)}
            more = {name for name, _ in self._meanings} - others
            if more == found:
                return found
            found = more

    def is_vector(self, name: str) -> bool:
        """Whether ``name`` is a vector type's own."""
        return VECTOR_TYPE.match(name) is not None and name not in self._users

    def end_of_type(self, tokens: Sequence[Token], index: int) -> int | None:
        """The index behind the type at ``index`` if that may be a vector's, by its own name or by another one."""
        while index + 1 < len(tokens) and tokens[index + 1].text == "::" and tokens[index].text == "metal":
            index += 2
        if index >= len(tokens):
            return None
        text = tokens[index].text
        if text == "vec" or text in self.aliases:
            if index + 1 < len(tokens) and tokens[index + 1].text == "<":
                close = matching_angle(tokens, index + 1)
                return None if close is None else close + 1
            return index + 1 if text != "vec" else None
        return index + 1 if self.is_vector(text) else None

    def qualified_type(self, tokens: Sequence[Token], index: int) -> tuple[int, bool] | None:
        """The index behind the type at ``index`` if that may be a vector's, also of a class or with ``typename`` before
        it, and whether it is for certain."""
        count = len(tokens)
        index += index < count and tokens[index].text == "typename"
        while index < count and tokens[index].kind == IDENTIFIER:
            is_template = index + 1 < count and tokens[index + 1].text == "<"
            end = matching_angle(tokens, index + 1) if is_template else index
            if end is None:
                return None
            if end + 1 == count or tokens[end + 1].text != "::":
                name = tokens[index].text
                is_vector = name == "vec" or name in self.vector_aliases or self.is_vector(name)
                return (end + 1, is_vector) if is_vector or name in self.aliases else None
            index = end + 2
        return None

    def is_cast(self, tokens: Sequence[Token], index: int) -> bool:
        """Whether the operand at ``index`` begins with a cast to a scalar or vector type."""
        if tokens[index].text != "(":
            return False
        close = matching(tokens, index)
        is_type = self.end_of_type(tokens, index + 1) == close or (
            close == index + 2 and SCALAR_OR_VECTOR.match(tokens[index + 1].text) is not None
        )
        return is_type and close + 1 < len(tokens) and is_operand(tokens[close + 1])

    def end_of_operand(self, tokens: Sequence[Token], index: int) -> int:
        """The index behind the operand of a cast at ``index``: signs, further casts, a primary and its suffixes."""
        count = len(tokens)
        while index < count and tokens[index].text in ("-", "+", "~", "!", "*", "&"):
            index += 1
        if index < count and tokens[index].text == "(":
            close = matching(tokens, index)
            # Nothing but a cast is followed by a name or a number.
            is_cast = close + 1 < count and tokens[close + 1].kind in (IDENTIFIER, NUMBER)
            if is_cast or self.is_cast(tokens, index):
                return self.end_of_operand(tokens, close + 1)
            index = close + 1
        else:
            index += 1
            while index + 1 < count and tokens[index].text == "::":
                index += 2
            if index < count and tokens[index].text == "<":
                close_angle = matching_angle(tokens, index)
                if close_angle is not None and close_angle + 1 < count and tokens[close_angle + 1].text in ("(", "{"):
                    index = close_angle + 1
            if index < count and tokens[index].text == "{":
                index = matching(tokens, index) + 1
        while index < count:
            text = tokens[index].text
            if text in ("(", "["):
                index = matching(tokens, index) + 1
            elif text in (".", "->"):
                index += 2
            elif text in ("++", "--"):
                index += 1
            else:
                break
        return index


def _type_parameters(tokens: Sequence[Token]) -> frozenset[str]:
    return frozenset(
        tokens[index + 1].text
        for index in range(1, len(tokens) - 1)
        if tokens[index].text in ("typename", "class")
        and tokens[index - 1].text in ("<", ",")
        and tokens[index + 1].kind == IDENTIFIER
    )


def _classes(tokens: Sequence[Token]) -> set[str]:
    """The names of the classes that a program defines."""
    found = set()
    for index in range(len(tokens) - 2):
        if tokens[index].text in ("struct", "class", "union") and tokens[index + 1].kind == IDENTIFIER:
            if tokens[index + 2].text in ("{", ":", "<"):
                found.add(tokens[index + 1].text)
    return found


def _last_name(meaning: Sequence[Token]) -> str | None:
    """The name of a type, without what it is qualified by and its arguments; None for what is more than that."""
    index = 1 if meaning[0].text in ("typename", "const") else 0
    while index < len(meaning):
        is_template = index + 1 < len(meaning) and meaning[index + 1].text == "<"
        end = matching_angle(meaning, index + 1) if is_template else index
        if end is None:
            return None
        if end == len(meaning) - 1:
            return meaning[index].text
        if meaning[end + 1].text != "::":
            return None
        index = end + 2
    return None
