"""What stands in expressions and declarations, as far as it can be told from the tokens around it."""

from __future__ import annotations

from collections.abc import Sequence

from mpsgrad.msl.backend import VECTOR_TYPE
from mpsgrad.msl.library_names import SCALAR_OR_VECTOR
from mpsgrad.msl.program import ADDRESS_SPACES
from mpsgrad.msl.tokens import IDENTIFIER, NUMBER, Token, matching, matching_angle


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
    return is_operand(tokens[index])


def declares_indirectly(argument: Sequence[Token], tokens: Sequence[Token], closing: int) -> bool:
    """Whether ``type (argument)`` declares a pointer or reference to an array or function."""
    following = tokens[closing + 1].text if closing + 1 < len(tokens) else ""
    return argument[0].text in ("*", "&") and following in ("[", "(")


def are_values(arguments: Sequence[Sequence[Token]]) -> bool:
    """Whether ``arguments``, what commas part between brackets, are values and not a function's parameters.

    A parameter is a type, or a type and a name; where it is a pointer or reference, an address space begins it.
    """
    for argument in arguments:
        if not argument or argument[0].text in ADDRESS_SPACES or argument[0].text == "const":
            return False
        following = argument[1] if len(argument) > 1 else None
        if argument[0].kind == IDENTIFIER and following is not None and following.kind == IDENTIFIER:
            return False
        ends_type = following is None or following.text in ("*", "&")
        if ends_type and SCALAR_OR_VECTOR.match(argument[0].text):
            return False
    return True


class VectorTypes:
    """Types of a program that may be vectors. ``users`` are names that only later versions of the language define.

    ``aliases`` are names that may stand for a vector type: template type parameters, ``using`` and ``typedef`` names.
    """

    def __init__(self, tokens: Sequence[Token], users: frozenset[str]) -> None:
        self.aliases = _aliases(tokens)
        self._users = users

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
            if self.is_cast(tokens, index):
                return self.end_of_operand(tokens, close + 1)
            index = close + 1
        else:
            index += 1
            while index + 1 < count and tokens[index].text == "::":
                index += 2
            if index < count and tokens[index].text == "<":
                close_angle = matching_angle(tokens, index)
                if close_angle is not None and close_angle + 1 < count and tokens[close_angle + 1].text == "(":
                    index = close_angle + 1
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


def _aliases(tokens: Sequence[Token]) -> frozenset[str]:
    names = set()
    for index, token in enumerate(tokens):
        if token.text in ("typename", "class") and index and tokens[index - 1].text in ("<", ","):
            if index + 1 < len(tokens) and tokens[index + 1].kind == IDENTIFIER:
                names.add(tokens[index + 1].text)
        elif token.text == "using" and index + 2 < len(tokens) and tokens[index + 2].text == "=":
            names.add(tokens[index + 1].text)
        elif token.text == "typedef":
            position = index
            while position < len(tokens) and tokens[position].text not in (";", "{", "("):
                position += 1
            if position < len(tokens) and tokens[position].text == ";" and tokens[position - 1].kind == IDENTIFIER:
                names.add(tokens[position - 1].text)
    return frozenset(names)
