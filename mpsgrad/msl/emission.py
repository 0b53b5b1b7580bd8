"""Writes tokens back as text in which each keeps its file and line, and as far as possible its column."""

from __future__ import annotations

from collections.abc import Sequence

from mpsgrad.msl.diagnostics import LIBRARY_FILE
from mpsgrad.msl.tokens import Token

_FEW_LINES = 8
_MERGING = frozenset("+-<>=&|*/%^!:#.")

Shifts = dict[tuple[str, int], tuple[tuple[int, int], ...]]


def emit(tokens: Sequence[Token], filename: str, prelude: str) -> tuple[str, Shifts]:
    """The text of ``prelude`` and ``tokens``, and for each line where columns moved the pairs (written, original)."""
    parts = [_directive(1, LIBRARY_FILE), prelude, _directive(1, filename)]
    shifts: dict[tuple[str, int], list[tuple[int, int]]] = {}
    file, line, column = filename, 1, 1
    last = ""
    shift = 0
    for token in tokens:
        text = token.text
        if not text:
            continue
        if token.kind in ("pragma", "part"):
            if column > 1:
                parts.append("\n")
            parts += [_directive(token.line, token.file), text, "\n", _directive(token.line + 1, token.file)]
            file, line, column, last, shift = token.file, token.line + 1, 1, "", 0
            continue
        if token.file != file or token.line < line or token.line > line + _FEW_LINES:
            if column > 1:
                parts.append("\n")
            parts.append(_directive(token.line, token.file))
            file, line, column, last, shift = token.file, token.line, 1, "", 0
        elif token.line > line:
            parts.append("\n" * (token.line - line))
            line, column, last, shift = token.line, 1, "", 0
        if column < token.column:
            parts.append(" " * (token.column - column))
            column = token.column
        elif last and (token.spaced or _merges(last, text)):
            parts.append(" ")
            column += 1
        if column - token.column != shift:
            shift = column - token.column
            shifts.setdefault((file, line), []).append((column, token.column))
        parts.append(text)
        column += len(text)
        last = text
    parts.append("\n")
    return "".join(parts), {place: tuple(pairs) for place, pairs in shifts.items()}


def _directive(line: int, file: str) -> str:
    escaped = file.replace("\\", "\\\\").replace('"', '\\"')
    return f'#line {line} "{escaped}"\n'


def _merges(left: str, right: str) -> bool:
    a, b = left[-1], right[0]
    word_a, word_b = a.isalnum() or a == "_", b.isalnum() or b == "_"
    if word_a and (word_b or b in "\"'" or (b == "." and a.isdigit())):
        return True
    if a == "." and b.isdigit():
        return True
    return a in _MERGING and b in _MERGING
