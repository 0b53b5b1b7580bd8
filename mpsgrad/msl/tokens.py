"""Tokens of Metal source, each knowing the file, line and column where it was written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mpsgrad.errors import ShaderError

IDENTIFIER = "identifier"
NUMBER = "number"
STRING = "string"
PUNCTUATION = "punctuation"
SITE = "site"
"""What numbers the places that checks at run time report: sources that differ in nothing else are the same."""
ASSIGNMENTS = frozenset({"=", "+=", "-=", "*=", "/=", "%=", "|=", "&=", "^=", "<<=", ">>="})
UNKNOWN = "unknown"
"""What begins no token. It is text in an ``#error`` and in branches that are left out, and refused anywhere else."""

_CHARACTER = re.compile(r"'(?:([^\\])|\\x([0-9a-fA-F]+)|\\([0-7]{1,3})|\\([nt\\'\"rabfv?]))'$")
_ESCAPED = dict(zip("nt\\'\"rabfv?", "\n\t\\'\"\r\a\b\f\v?", strict=True))
_BYTE_ORDER_MARK = "\ufeff"
_TOKEN = re.compile(
    r"""
    ((?:[^\S\n]+|\\\r?\n|//(?:[^\n\\]|\\\r?\n|\\)*|/\*[^*]*\*+(?:[^/*][^*]*\*+)*/)+)?
    (?:(\n)
      |([A-Za-z_$][A-Za-z0-9_$]*)
      |(\.?[0-9](?:[eEpP][+-]|'(?=[0-9A-Za-z_])|[0-9A-Za-z_.])*)
      |("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      |(["'][^\n]*)
      |(\.\.\.|<<=|>>=|->\*|::|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|\#\#|\.\*|\S)
      |\Z)
    """,
    re.VERBOSE,
)


class Token:
    """One token. ``spaced`` says whether white space stands before it; ``text`` may be replaced by a rewriter."""

    __slots__ = ("column", "file", "hidden", "kind", "line", "spaced", "text")

    def __init__(
        self,
        kind: str,
        text: str,
        file: str,
        line: int,
        column: int,
        spaced: bool = False,
        hidden: frozenset[str] = frozenset(),
    ) -> None:
        self.kind = kind
        self.text = text
        self.file = file
        self.line = line
        self.column = column
        self.spaced = spaced
        self.hidden = hidden

    def __repr__(self) -> str:
        return f"{self.text}@{self.line}:{self.column}"

    def at(self, place: Token, *, spaced: bool | None = None) -> Token:
        """A copy that stands where ``place`` does."""
        return Token(
            self.kind,
            self.text,
            place.file,
            place.line,
            place.column,
            self.spaced if spaced is None else spaced,
            self.hidden,
        )

    def replaced(self, text: str, kind: str | None = None) -> Token:
        """A copy with other text at the same place."""
        return Token(kind or self.kind, text, self.file, self.line, self.column, self.spaced, self.hidden)


class Span(NamedTuple):
    """Tokens of a program, which others may be put between: the first, and the one behind the last."""

    first: Token
    behind: Token


def made_at(place: Token, *words: str) -> list[Token]:
    """A token for each of ``words``, where ``place`` stands."""
    made = []
    for word in words:
        kind = NUMBER if word[0].isdigit() else IDENTIFIER if word[0].isalpha() or word[0] == "_" else PUNCTUATION
        made.append(Token(kind, word, place.file, place.line, place.column, kind != PUNCTUATION))
    return made


def tokenize_lines(source: str, file: str) -> Iterator[list[Token]]:
    """The tokens of each logical line (a backslash at the end of a line joins it to the next), empty lines left out.

    Raises ``ShaderError`` for an unterminated comment. A quote without partner makes the rest of its line ``UNKNOWN``.
    Only lines whose first token is ``#`` end with the line; a caller joins the others freely.
    """
    source = source.removeprefix(_BYTE_ORDER_MARK)
    line = 1
    line_start = position = 0
    current: list[Token] = []
    # Every character belongs to a part of a match, so that the lengths of the parts give the places.
    for space, newline, identifier, number, string, quote, punctuation in _TOKEN.findall(source):
        if space:
            if "\n" in space:
                line += space.count("\n")
                line_start = position + space.rindex("\n") + 1
            position += len(space)
        if identifier:
            kind, text = IDENTIFIER, identifier
            if identifier in _WORDS_OF_OPERATORS and not is_message(current):
                operator = _WORDS_OF_OPERATORS[identifier]
                current.append(Token(PUNCTUATION, operator, file, line, position - line_start + 1, True))
                position += len(identifier)
                continue
        elif punctuation:
            kind, text = PUNCTUATION, punctuation
            if text not in _KNOWN_PUNCTUATION:
                if source.startswith("/*", position):
                    column = position - line_start + 1
                    raise ShaderError("unterminated comment", file=file, line=line, column=column)
                if text != "/":
                    kind = UNKNOWN
        elif newline:
            if current:
                yield current
                current = []
            line += 1
            position += 1
            line_start = position
            continue
        elif number:
            kind, text = NUMBER, number
        elif string:
            kind, text = STRING, string
        elif quote:
            kind, text = UNKNOWN, quote
        else:
            break
        current.append(Token(kind, text, file, line, position - line_start + 1, space != ""))
        position += len(text)
    if current:
        yield current


_WORDS_OF_OPERATORS = {
    "and": "&&", "or": "||", "not": "!", "xor": "^", "bitand": "&", "bitor": "|", "compl": "~", "not_eq": "!=",
    "and_eq": "&=", "or_eq": "|=", "xor_eq": "^=",
}  # fmt: skip
_KNOWN_PUNCTUATION = frozenset(
    "... <<= >>= ->* :: -> ++ -- << >> <= >= == != && || -= += *= /= %= &= |= ^= ## .* { } [ ] # ( ) < > % : ; . ? * +"
    " - ^ & | ~ ! = ,".split()
)


def is_message(line: Sequence[Token]) -> bool:
    """Whether a line is the text of an ``#error`` or a ``#warning``."""
    return len(line) > 1 and line[0].text == "#" and line[1].text in ("error", "warning")


def refuse_unknown(line: Sequence[Token]) -> None:
    """Raises ``ShaderError`` for the first token of a line that is none."""
    for token in line:
        if token.kind == UNKNOWN:
            is_quote = token.text[0] in "\"'"
            raise error("missing terminating quote" if is_quote else f"unexpected character {token.text!r}", token)


OPENING = {"(": ")", "[": "]", "{": "}"}
CLOSING = frozenset(OPENING.values())


def matching(tokens: Sequence[Token], start: int, end: int | None = None) -> int:
    """The index of the bracket that closes ``tokens[start]``; raises ``ShaderError`` at a bracket without partner."""
    stack: list[int] = []
    for index in range(start, len(tokens) if end is None else end):
        token = tokens[index]
        if token.kind != PUNCTUATION:
            continue
        if token.text in OPENING:
            stack.append(index)
        elif token.text in CLOSING:
            if not stack or OPENING[tokens[stack[-1]].text] != token.text:
                if stack and token.text == "}":
                    start = stack[-1]
                    break
                raise error(f"unexpected '{token.text}'", token)
            stack.pop()
            if not stack:
                return index
    opening = tokens[stack[-1] if stack else start]
    raise error(f"expected '{OPENING[opening.text]}' to match this '{opening.text}'", opening)


DEEPEST_BRACKETS = 256
"""Clang takes no bracket within more than these, by its option -fbracket-depth."""


def matching_angle(tokens: Sequence[Token], start: int, end: int | None = None, *, certain: bool = False) -> int | None:
    """The index of the ``>`` that closes the ``<`` at ``start``, or None if it is no template bracket.

    ``certain`` says that it is one, as behind ``template``, though ``&&`` or ``||`` may stand in it. ``>>`` counts as
    two; where its first half closes, its index is returned too, so callers split it beforehand.
    """
    depth = 0
    index = start
    stop = len(tokens) if end is None else end
    while index < stop:
        text = tokens[index].text
        if text == "<":
            # Behind a bracket or a number it compares: sizeof(T) < 8.
            depth += index == start or tokens[index - 1].kind == IDENTIFIER
            if depth > DEEPEST_BRACKETS:
                return None
        elif text == ">":
            depth -= 1
            if depth == 0:
                return index
        elif text == ">>":
            depth -= 2
            if depth <= 0:
                return index
        elif text in ("(", "["):
            try:
                index = matching(tokens, index, stop)
            except ShaderError:
                return None
        elif text in (";", "{", "}", ")", "]") or text in ("&&", "||") and not certain:
            return None
        index += 1
    return None


def split_commas(tokens: Sequence[Token]) -> list[list[Token]]:
    """``tokens`` split at commas outside brackets and template brackets; an empty list gives no part."""
    parts: list[list[Token]] = []
    current: list[Token] = []
    depth = 0
    index = 0
    angle_end = -1
    while index < len(tokens):
        token = tokens[index]
        text = token.text
        if token.kind == PUNCTUATION:
            if text in OPENING:
                depth += 1
            elif text in CLOSING:
                depth -= 1
            elif text == "<" and depth == 0 and index > angle_end and index and tokens[index - 1].kind == IDENTIFIER:
                angle_end = max(angle_end, matching_angle(tokens, index) or -1)
            elif text == "," and depth == 0 and index > angle_end:
                parts.append(current)
                current = []
                index += 1
                continue
        current.append(token)
        index += 1
    if current or parts:
        parts.append(current)
    return parts


def skip_attributes(tokens: Sequence[Token], index: int, end: int) -> int:
    """The index behind ``__attribute__((...))``, ``alignas(...)`` and ``[[...]]`` groups."""
    while index < end:
        text = tokens[index].text
        following = tokens[index + 1].text if index + 1 < end else ""
        if (text in ("__attribute__", "alignas") and following == "(") or (text == "[" and following == "["):
            depth = 0
            index += text not in "["
            while index < end:
                depth += (tokens[index].text in ("(", "[")) - (tokens[index].text in (")", "]"))
                index += 1
                if depth == 0:
                    break
        else:
            break
    return index


def character_value(token: Token) -> int | None:
    """The value of a character such as ``'a'`` or ``'\\n'``, which is a signed byte; None for any other token."""
    found = _CHARACTER.match(token.text) if token.kind == STRING else None
    if found is None:
        return None
    plain, hexadecimal, octal, escaped = found.groups()
    if plain or escaped:
        value = ord(plain or _ESCAPED[escaped])
    else:
        value = int(hexadecimal, 16) if hexadecimal else int(octal, 8)
    return (value + 128) % 256 - 128


def error(message: str, token: Token) -> ShaderError:
    """A ``ShaderError`` that points at ``token``."""
    return ShaderError(message, file=token.file, line=token.line, column=token.column)


def spell(tokens: Sequence[Token]) -> str:
    """The tokens as text on one line, with the spaces a reader expects."""
    text = ""
    for token in tokens:
        if not token.text:
            continue
        if text and (text[-1].isalnum() or text[-1] in "_>*&,") and (token.text[0].isalnum() or token.text[0] == "_"):
            text += " "
        text += token.text
    return text
