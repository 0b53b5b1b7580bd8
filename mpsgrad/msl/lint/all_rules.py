"""All rules in one table, and a source looked at by each of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from mpsgrad.errors import ShaderError
from mpsgrad.msl.analysis.source import Source
from mpsgrad.msl.bracketed_names import without_bracketed_names
from mpsgrad.msl.declarations import read_program
from mpsgrad.msl.lint import (
    address_spaces,
    atomics_and_simd,
    attributes,
    behaviour,
    jumps,
    kernels,
    language,
    library,
    loop_exits,
    member_functions,
    metalcompute,
    names,
    narrowing,
    operands,
    redeclarations,
    returns,
    uninitialised,
    values,
)
from mpsgrad.msl.lint.rule import CATALOGUE, Finding, Rule
from mpsgrad.msl.preprocessor import Preprocessor
from mpsgrad.msl.tokens import Token
from mpsgrad.msl.versions import LANGUAGE_VERSIONS, without_coherence

# Importing a module enters its rules into the table.
_SUBJECTS = (
    address_spaces, atomics_and_simd, attributes, behaviour, jumps, kernels, language, library, loop_exits,
    member_functions, metalcompute, names, narrowing, operands, redeclarations, returns, uninitialised, values,
)  # fmt: skip

RULES: dict[int, Rule] = dict(sorted(CATALOGUE.items()))

# What reading the outline of a program already refuses, by rule.
_REFUSED_BY_READER = (
    (16, re.compile(r"invalid return type|cannot be called 'main'|cannot be variadic|cannot be a member function")),
    (17, re.compile(r"C\+\+ standard library header")),
)

# What Apple's compiler takes and the reader does not.
_BEYOND_READER = re.compile(r"not supported(?!.*Metal has only)")

_LATER_STAGES = re.compile(r"'(mesh|object)' functions are not supported")


def lint(
    source: str,
    *,
    filename: str = "<metal>",
    language_version: str = "2.3",
    metalcompute: bool = False,
    resolve: Callable[[str, bool], tuple[str, str] | None] | None = None,
    definitions: Mapping[str, str] | None = None,
) -> list[Finding]:
    """What Apple's compiler would refuse in ``source`` and what bites although it compiles, in order of place.

    ``filename`` names the lines that no ``#line`` directive renames. ``language_version`` is one of
    ``LANGUAGE_VERSIONS``; another raises ``ValueError``. ``metalcompute`` adds what metalcompute cannot launch.
    ``resolve(name, quoted)`` finds an included file (its text and name). ``definitions`` are macros, as ``-D`` would
    set them.
    """
    if language_version not in LANGUAGE_VERSIONS:
        known = ", ".join(LANGUAGE_VERSIONS)
        raise ValueError(f"lint: language_version is {language_version!r} but must be one of {known}")
    major, minor = (int(part) for part in language_version.split("."))
    definitions = {"__METAL_VERSION__": f"{major}{minor}0", **(definitions or {})}
    tokens: list[Token] = []
    try:
        tokens = without_coherence(Preprocessor(resolve, definitions).run(source, filename), (major, minor))
        program = read_program(without_bracketed_names(tokens))
    except ShaderError as found:
        line, message = found.line or 1, found.message
        if message == "expected a kernel function's definition" and _in_braces(tokens, line, found.column):
            message = "kernel function cannot be a member function"
        number = next((number for number, words in _REFUSED_BY_READER if words.search(message)), 0)
        stage = _LATER_STAGES.match(message)
        if stage and float(language_version) < 3:
            message = f"'{stage[1]}' attribute requires Metal language standard macos-metal3.0 or higher"
            return [Finding(found.file, line, found.column, "error", message, 26)]
        if number == 0 and _BEYOND_READER.search(message):
            message = f"not checked from here on: {message}"
            return [Finding(found.file, line, found.column, "warning", message)]
        return [Finding(found.file, line, found.column, "error", message, number)]
    checked = Source(program.tokens, program, (major, minor), metalcompute, source, filename)
    findings: dict[Finding, None] = {}
    for number, rule in RULES.items():
        for token, message, *severity in rule.check(checked):
            level = severity[0] if severity else rule.severity
            findings[Finding(token.file, token.line, token.column, level, message, number)] = None
    return sorted(findings, key=lambda finding: (finding.line, finding.column or 0, finding.rule))


def _in_braces(tokens: list[Token], line: int, column: int | None) -> bool:
    """Whether the last brace opened before this place is not closed."""
    depth = 0
    for token in tokens:
        if (token.line, token.column) == (line, column):
            break
        depth += (token.text == "{") - (token.text == "}")
    return depth > 0
