"""What OpenCL's compiler says of a translation, as errors of the Metal source."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from mpsgrad.devices.opencl_compiler import CompilerFault, CompilerRefusal
from mpsgrad.errors import ShaderError
from mpsgrad.msl import Translation, parse_compiler_log, shader_error


@contextlib.contextmanager
def errors_of_source(translation: Translation, source: str, name: str) -> Iterator[None]:
    """Turns what a compiler in a process of its own says into errors of the source."""
    try:
        yield
    except CompilerRefusal as refusal:
        raise error_of_source(str(refusal), translation, source, name) from refusal
    except CompilerFault as fault:
        raise ShaderError(str(fault), file=name) from fault


def error_of_source(log: str, translation: Translation, source: str, name: str) -> ShaderError:
    """The compiler's first error, pointing at the line of Metal source that it came from."""
    errors = [entry for entry in parse_compiler_log(log, "opencl", translation, source) if entry.severity == "error"]
    if errors:
        return shader_error(errors[0], source, name)
    recursive = re.search(r"Unsupported recursive call in function:\s*((?:\S+\s+)*?)(?=\w+:|\Z)", log)
    for mangled in recursive[1].split() if recursive else ():
        function = _name_of(mangled)
        for line, text in enumerate(source.splitlines(), 1):
            called = re.search(rf"\b{function}\s*\(", text) if function else None
            if called:
                message = f"'{function}' calls itself: OpenCL has no recursion on CPUs"
                return ShaderError(message, file=name, line=line, column=called.start() + 1, source_line=text)
    return ShaderError(f"the OpenCL compiler failed:\n{log}", file=name)


def _name_of(mangled: str) -> str:
    """The name of a function, without its classes, in a name such as ``_Z3fibi``; empty for what has another form."""
    position, name = mangled.find("_Z"), ""
    while position >= 0 and (length := re.compile(r"\D*?(\d+)").match(mangled, position)):
        name = mangled[length.end() : length.end() + int(length[1])]
        position = length.end() + int(length[1])
        if mangled[position : position + 1].islower() or mangled[position : position + 1] == "I":
            break
    return name if name.isidentifier() else ""
