"""``case 3 ... 5:`` as the labels that it stands for, and ``= {[0 ... n - 1] = x}`` as a loop, where a target's
compiler does not know ranges."""

from __future__ import annotations

from collections.abc import Sequence

from mpsgrad.msl.constant_expressions import constants_of, integer_value
from mpsgrad.msl.diagnostics import RENAMED_SUFFIX
from mpsgrad.msl.tokens import IDENTIFIER, NUMBER, PUNCTUATION, Token, error, matching

_MOST_LABELS = 4096


def expand_case_ranges(tokens: list[Token]) -> list[Token]:
    """The tokens with a label for each value of a range; raises ``ShaderError`` for one that has too many."""
    if not any(token.text == "..." for token in tokens):
        return tokens
    constants: dict[str, int] | None = None
    output: list[Token] = []
    index = 0
    while index < len(tokens):
        colon = _label_end(tokens, index) if tokens[index].text == "case" else index
        dots = next((k for k in range(index, colon) if tokens[k].text == "..."), None)
        if dots is None:
            output.append(tokens[index])
            index += 1
            continue
        constants = constants_of(tokens, in_functions=True) if constants is None else constants
        first = integer_value(tokens[index + 1 : dots], tokens[index], constants)
        last = integer_value(tokens[dots + 1 : colon], tokens[index], constants)
        if last - first >= _MOST_LABELS:
            raise error(f"a range of more than {_MOST_LABELS} cases is not supported for CUDA", tokens[index])
        for value in range(first, last + 1):
            output += [tokens[index], tokens[index + 1].replaced(f"({value})", NUMBER), tokens[colon]]
        index = colon + 1
    return output


def _label_end(tokens: Sequence[Token], index: int) -> int:
    while index < len(tokens) and tokens[index].text not in (":", ";", "{", "}"):
        index += 1
    return index


def fill_ranges(tokens: list[Token]) -> list[Token]:
    """``tokens`` with ``T a[n]; for (...) a[i] = x;`` for ``T a[n] = {[0 ... n - 1] = x};``."""
    made: list[Token] = []
    start = 0
    for index in range(4, len(tokens) - 6):
        if [token.text for token in tokens[index - 2 : index + 4]] != ["]", "=", "{", "[", "0", "..."]:
            continue
        end, close = matching(tokens, index), matching(tokens, index + 1)
        opening = next(at for at in range(index - 2, 0, -1) if tokens[at].text == "[")
        count, last = tokens[opening + 1 : index - 2], tokens[index + 4 : close]
        name, is_ended = tokens[opening - 1], tokens[end + 1].text == ";"
        is_whole = [token.text for token in last] == [*(token.text for token in count), "-", "1"]
        if not is_whole or not is_ended or name.kind != IDENTIFIER or tokens[close + 1].text != "=":
            continue
        place = f"place{RENAMED_SUFFIX}"
        words = ["for", "(", "int", place, "=", "0", ";", place, "<", *(token.text for token in count), ";", place]
        words = [";", *words, "++", ")", name.text, "[", place, "]", "="]
        made += tokens[start : index - 1]
        made += [Token(_kind(word), word, name.file, name.line, name.column, True) for word in words]
        made += tokens[close + 2 : end]
        start = end + 1
    return made + tokens[start:] if made else tokens


def _kind(word: str) -> str:
    return IDENTIFIER if word.isidentifier() else NUMBER if word[0].isdigit() else PUNCTUATION
