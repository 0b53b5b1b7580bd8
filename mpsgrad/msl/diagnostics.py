"""What compilers print, as data: the file, line, column, severity and words of each message."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mpsgrad.errors import ShaderError
from mpsgrad.msl.signature import Target, Translation

RENAMED_SUFFIX = "_mtl"
SIZES_SUFFIX = "_sizes_mtl"
LIBRARY_FILE = "<metal_stdlib>"

_PLACED = r"(?P<severity>catastrophic error|fatal error|error|warning|remark|note)"
_CLANG = re.compile(rf"^(?P<file>.+?):(?P<line>\d+):(?P<column>\d+): {_PLACED}: (?P<text>.*)$")
_NVRTC = re.compile(rf"^(?P<file>.+?)\((?P<line>\d+)\)\s?: {_PLACED}\s?(?:#[\w-]+)?\s?: (?P<text>.*)$")
_WITHOUT_COLUMN = re.compile(rf"^(?P<file>.+?):(?P<line>\d+): {_PLACED}: (?P<text>.*)$")
_CLANG_WORDS = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r'^identifier "([^"]+)" is undefined$', r"use of undeclared identifier '\1'"),
        (
            r'^no instance of overloaded function "([^"]+)" matches the argument list$',
            r"no matching function for call to '\1'",
        ),
        (
            r'^(?:function "[^"]*\boperator.*" .*cannot be referenced -- it is a deleted function'
            r'|no operator "[^"]+" matches these operands)$',
            r"invalid operands to binary expression",
        ),
        (r'^(?:class|enum|namespace) "([^"]+)" has no member "([^"]+)"$', r"no member named '\2' in '\1'"),
        (
            r'^no instance of (?:function template )?"([^"]+)" matches the argument list$',
            r"no matching function for call to '\1'",
        ),
        (
            r'^more than one instance of overloaded function "([^"]+)" matches the argument list:$',
            r"call to '\1' is ambiguous",
        ),
        (r"^expression must be a modifiable lvalue$", "expression is not assignable"),
        (r"^initializer not allowed for __shared__ variable\s*$", "'threadgroup' variable cannot have an initializer"),
        (r'^function "([^"]+)" has already been defined .*$', r"redefinition of '\1'"),
        (r'^"([^"]+)" has already been declared in the current scope$', r"redefinition of '\1'"),
        (
            r'^operand of "\*" must be a pointer but has type "([^"]+)"$',
            r"indirection requires pointer operand ('\1' invalid)",
        ),
        (
            r'^a value of type "([^"]+)" cannot be used to initialize an entity of type "([^"]+)"(?: \(aka .*\))?$',
            r"cannot initialize a variable of type '\2' with a value of type '\1'",
        ),
        (
            r'^a value of type "([^"]+)" cannot be assigned to an entity of type "([^"]+)"(?: \(aka .*\))?$',
            r"assigning to '\2' from incompatible type '\1'",
        ),
        (
            r'^no suitable (?:user-defined conversion|conversion function) from "([^"]+)"(?: \(aka "[^"]+"\))?'
            r' to "([^"]+)"(?: \(aka .*\))? exists$',
            r"no viable conversion from '\1' to '\2'",
        ),
        (
            r"^a break statement may only be used within a loop or switch$",
            "'break' statement not in loop or switch statement",
        ),
        (
            r'^expression must have class type but it has type "([^"]+)".*$',
            r"member reference base type '\1' is not a structure or union",
        ),
        (r'^expected an? "?([^"]+?)"?$', r"expected '\1'"),
        (r"^expected '(expression|identifier|declaration|statement)'$", r"expected \1"),
    )
)
_NO_FUNCTION = "no matching function for call to"
_CALLED = re.compile(r"^in instantiation of function template specialization '(?:metal::)?(\w+)")
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


def parse_compiler_log(
    log: str, target: Target, translation: Translation | None = None, source: str = ""
) -> list[Diagnostic]:
    """The messages in a compiler's log, in order.

    Reads clang's format (``file:line:column: error: ...``) and NVRTC's (``file(line): error: ...``, with a mark below
    the line that it quotes), whose most frequent messages are put in clang's words. Names that the translator renamed
    to keep them apart from the target's own appear as the user wrote them, and with ``translation`` columns are those
    of the Metal source. ``source`` tells which of the types that are one for the target the program has.
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
        words = user_words(_with_spaces(match["text"], source))
        found.append(Diagnostic(file, line, column, severity, _clang_words(words) if target == "cuda" else words))
    return _at_users_lines(found)


def _at_users_lines(entries: Sequence[Diagnostic]) -> list[Diagnostic]:
    """``entries`` with errors inside the library where a note says that the program asked for what failed; those
    that no note places come last."""
    placed, unplaced = [], []
    for index, entry in enumerate(entries):
        if entry.severity == "error" and entry.file == LIBRARY_FILE:
            notes = itertools.takewhile(lambda later: later.severity == "note", entries[index + 1 :])
            note = next((note for note in notes if note.file != LIBRARY_FILE), None)
            if note is None:
                unplaced.append(entry)
                continue
            called = _CALLED.search(note.message)
            message = entry.message
            if called is not None and message.startswith(_NO_FUNCTION):
                message = f"{_NO_FUNCTION} '{called[1]}'"
            entry = replace(entry, file=note.file, line=note.line, column=note.column, message=message)
        placed.append(entry)
    return placed + unplaced


def _with_spaces(text: str, source: str) -> str:
    """What the translation calls ``const __global`` as ``source`` does: ``constant`` or ``const device``."""

    def spelled(match: re.Match[str]) -> str:
        of_type = rf"\s+(?:const\s+|metal::)*{re.escape(match[1])}\b"
        is_device = re.search(rf"\b(?:const\s+device|device\s+const){of_type}", source)
        is_constant = not is_device or re.search(rf"\bconstant{of_type}", source)
        return f"{'constant' if is_constant else 'const device'} {match[1]}"

    return re.sub(r"\bconst __global (\w+)", spelled, text)


def _marked_column(lines: Sequence[str]) -> int | None:
    """The column that NVRTC marks below a message, whose own words may take some lines; None if it marks none."""
    for text in itertools.takewhile(lambda text: text.strip() and not _NVRTC.match(text), lines):
        mark = _MARK.match(text)
        if mark:
            return len(mark[1]) + 1
    return None


def _clang_words(text: str) -> str:
    """NVRTC's most frequent messages as clang, and so Apple's compiler, says the same."""
    for pattern, words in _CLANG_WORDS:
        text = pattern.sub(words, text)
    return text


def user_words(text: str) -> str:
    """A compiler's message in the words of the Metal source."""
    text = text.replace("must reside in global or constant address space", "must reside in constant address space")
    text = text.replace("zero-length arrays are not permitted in OpenCL", "zero-length arrays are not permitted in C++")
    text = text.replace(
        "function scope variable cannot be declared in global address space",
        "automatic variable qualified with an address space",
    )
    text = re.sub(r"static assertion failed due to requirement '[^']*': (as_type cast .*)", r"\1", text)
    text = re.sub(rf"static assertion failed due to requirement '[^']*{RENAMED_SUFFIX}[^']*': ", "", text)
    text = re.sub(r"(\S+) (?:__private )?lift" + RENAMED_SUFFIX + r"\(\) \1", r"\1", text)
    text = re.sub(r"(\w+) __attribute__\(\(ext_vector_type\((\d)\)\)\)", r"\1\2", text)
    text = re.sub(r"\b(\w+?)(?:_own|_inner\d+)?" + RENAMED_SUFFIX + r"\b", r"\1", text)
    text = re.sub(r"'(\w+)'; did you mean '\1'\?", r"'\1'", text)
    text = re.sub(r"\bconst __global\b", "constant", text)
    text = re.sub(r"__(?:private|generic)\b ?", "", text)
    text = re.sub(
        r"^too few elements in vector initialization \(expected \d elements, have 1\)$",
        "one value in the braces of a vector: write it in parentheses to have it in all components",
        text,
    )
    text = re.sub(
        r"^binding reference of type '([^']+)' to value of type '\1' changes address space$",
        r"non-const lvalue reference to type '\1' cannot bind to a temporary of type '\1'",
        text,
    )
    return text.replace("__global", "device").replace("__local", "threadgroup")


def diagnostic(error: ShaderError) -> Diagnostic:
    """``error`` as data."""
    return Diagnostic(error.file, error.line or 1, error.column, "error", error.message)


def shader_error(found: ShaderError | Diagnostic, source: str, filename: str) -> ShaderError:
    """What was ``found`` in ``source`` as an error with the text of its line."""
    texts = source_lines(source, filename, found.file, found.line)
    # A template's loop gives several lines one place: the right one has what the message quotes in that column.
    quoted = tuple(re.findall(r"['\"]([^'\"]+)['\"]", found.message))
    start = (found.column or 1) - 1
    text = next((text for text in texts if quoted and text.startswith(quoted, start)), None)
    text = text if text is not None else next((text for text in texts if text.strip()), None)
    return ShaderError(found.message, file=found.file, line=found.line, column=found.column, source_line=text)


def source_lines(source: str, filename: str, file: str, line: int | None) -> list[str]:
    """The texts of ``file``:``line``, found through the ``#line`` directives of ``source``."""
    found: list[str] = []
    shown, number = filename, 0
    for text in source.split("\n"):
        number += 1
        directive = re.match(r'\s*#\s*(?:line\s+)?(\d+)(?:\s+"([^"]*)")?\s*$', text)
        if directive:
            number = int(directive[1]) - 1
            shown = directive[2] if directive[2] is not None else shown
        elif number == line and shown == file:
            found.append(text)
    return found
