"""From Metal source to a compiled library, or to the messages that Apple's compiler would give."""

from __future__ import annotations

from mpsgrad import devices
from mpsgrad.errors import ShaderError
from mpsgrad.metalcompute.exception import error
from mpsgrad.msl import shader_error
from mpsgrad.msl.lint import lint

SOURCE_NAME = "program_source"
"""What Metal calls source that was not read from a file."""


def compile_source(device: devices.Device, source: str) -> devices.Library:
    """``source`` as Metal 2.3 with fast math; raises ``error`` with every message."""
    refusals = [
        shader_error(finding, source, SOURCE_NAME)
        for finding in lint(source, filename=SOURCE_NAME)
        if finding.severity == "error"
    ]
    if refusals:
        raise error("".join(map(_message, refusals)))
    try:
        return device.compile(source, name=SOURCE_NAME, options=devices.CompileOptions())
    except ShaderError as refusal:
        raise error(_message(refusal)) from refusal


def _message(found: ShaderError) -> str:
    """A compiler's error as Metal prints it, with the line and a mark below its column."""
    place = ":".join(str(part) for part in (found.file, found.line, found.column) if part is not None)
    text = f"{place}: error: {found.message}\n"
    if found.source_line is not None:
        text += f"{found.source_line}\n"
        if found.column is not None:
            text += f"{' ' * (found.column - 1)}^\n"
    return text
