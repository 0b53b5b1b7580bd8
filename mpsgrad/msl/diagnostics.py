"""What compilers print, as data: the file, line, column, severity and words of each message."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mpsgrad.msl.signature import Target, Translation

RENAMED_SUFFIX = "_mtl"
SIZES_SUFFIX = "_sizes_mtl"

_PLACED = r"(?P<severity>catastrophic error|fatal error|error|warning|remark|note)"
_CLANG = re.compile(rf"^(?P<file>.+?):(?P<line>\d+):(?P<column>\d+): {_PLACED}: (?P<text>.*)$")
_NVRTC = re.compile(rf"^(?P<file>.+?)\((?P<line>\d+)\)\s?: {_PLACED}\s?(?:#[\w-]+)?\s?: (?P<text>.*)$")
_WITHOUT_COLUMN = re.compile(rf"^(?P<file>.+?):(?P<line>\d+): {_PLACED}: (?P<text>.*)$")
# NVRTC indents what it quotes by two spaces.
_MARK = re.compile(r"  (\s*)\^\s*$")


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One message about a place in the source; ``column`` is None where the compiler does not give one."""

    file: str
    line: int
    column: int | None
    severity: Literal["error", "warning", "note"]
    message: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" + (f":{self.column}" if self.column is not None else "")
        return f"{place}: {self.severity}: {self.message}"


def parse_compiler_log(log: str, target: Target, translation: Translation | None = None) -> list[Diagnostic]:
    """The messages in a compiler's log, in order.

    Reads clang's format (``file:line:column: error: ...``) and NVRTC's (``file(line): error: ...``, with a mark below
    the line that it quotes). Names that the translator renamed to keep them apart from the target's own appear as the
    user wrote them, and with ``translation`` columns are those of the Metal source.
    """
    patterns = (_CLANG, _WITHOUT_COLUMN) if target == "opencl" else (_NVRTC, _CLANG, _WITHOUT_COLUMN)
    found = []
    lines = log.splitlines()
    for position, text in enumerate(lines):
        match = next((match for match in (pattern.match(text) for pattern in patterns) if match), None)
        if match is None:
            continue
        written = match["severity"]
        severity: Literal["error", "warning", "note"] = "note"
        if "error" in written:
            severity = "error"
        elif written == "warning":
            severity = "warning"
        file, line = match["file"], int(match["line"])
        number = match.groupdict().get("column")
        column = int(number) if number else _marked_column(lines[position + 1 :]) if target == "cuda" else None
        if column is not None and translation is not None:
            column = translation.column(file, line, column)
        found.append(Diagnostic(file, line, column, severity, user_words(match["text"])))
    return found


def _marked_column(lines: Sequence[str]) -> int | None:
    """The column that NVRTC marks below a message, whose own words may take some lines; None if it marks none."""
    for text in itertools.takewhile(lambda text: text.strip() and not _NVRTC.match(text), lines):
        mark = _MARK.match(text)
        if mark:
            return len(mark[1]) + 1
    return None


def user_words(text: str) -> str:
    """A compiler's message in the words of the Metal source."""
    text = re.sub(r"\b(\w+?)(?:_own)?" + RENAMED_SUFFIX + r"\b", r"\1", text)
    text = re.sub(r"\bconst __global\b", "constant", text)
    text = re.sub(r"__private\b ?", "", text).replace("__global", "device").replace("__local", "threadgroup")
    return text
