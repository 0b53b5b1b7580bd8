"""What compilers print, as data: the file, line, column, severity and words of each message."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

RENAMED_SUFFIX = "_mtl"

_CLANG = re.compile(
    r"^(?P<file>.+?):(?P<line>\d+):(?P<column>\d+): (?P<severity>fatal error|error|warning|note): (?P<text>.*)$"
)
_NVRTC = re.compile(
    r"^(?P<file>.+?)\((?P<line>\d+)\)\s?: (?P<severity>catastrophic error|error|warning|remark|note)\s?(?:#[\w-]+)?\s?: (?P<text>.*)$"
)
_OUTER_COMPILER = re.compile(
    r"^(?P<file>.+?):(?P<line>\d+): (?P<severity>fatal error|error|warning|note): (?P<text>.*)$"
)


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


def parse_compiler_log(log: str, target: Literal["opencl", "cuda"]) -> list[Diagnostic]:
    """The messages in a compiler's log, in order.

    Reads clang's format (``file:line:column: error: ...``) and NVRTC's (``file(line): error: ...``). Names that the
    translator renamed to keep them apart from the target's own appear as the user wrote them.
    """
    patterns = (_CLANG, _OUTER_COMPILER) if target == "opencl" else (_NVRTC, _CLANG, _OUTER_COMPILER)
    found = []
    for line in log.splitlines():
        for pattern in patterns:
            match = pattern.match(line)
            if match:
                severity = match["severity"]
                short: Literal["error", "warning", "note"] = "note"
                if "error" in severity:
                    short = "error"
                elif severity == "warning":
                    short = "warning"
                column = match.groupdict().get("column")
                text = user_words(match["text"])
                found.append(
                    Diagnostic(match["file"], int(match["line"]), int(column) if column else None, short, text)
                )
                break
    return found


def user_words(text: str) -> str:
    """A compiler's message in the words of the Metal source."""
    text = re.sub(r"\b(\w+?)" + RENAMED_SUFFIX + r"\b", r"\1", text)
    text = re.sub(r"\bconst __global\b", "constant", text)
    text = text.replace("__private ", "").replace("__global", "device").replace("__local", "threadgroup")
    return text
