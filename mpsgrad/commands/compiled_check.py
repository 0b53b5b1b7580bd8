"""What a compiler finds wrong in Metal sources beyond the rules of the lint.

The compiler is that of the OpenCL device on the CPU, which reads the source's translation. What only the translation
lacks, and not Metal, is said to be a limit of this package; what follows it in a file may be a consequence, and is left
out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mpsgrad.devices.contract import CompileOptions
from mpsgrad.errors import DeviceNotFoundError, ShaderError
from mpsgrad.msl.diagnostics import LIBRARY_FILE, Diagnostic, diagnostic
from mpsgrad.msl.lint import Finding

_LIMIT = re.compile(
    r"not supported|OpenCL|address of function is not allowed|pointers to functions are not allowed"
    r"|invalid vector element type 'bfloat'"
)


class FrontEnd:
    """The compiler's part that finds errors, and makes no code."""

    def __init__(self) -> None:
        """Raises ``DeviceNotFoundError``, with the reason, if there is no OpenCL device."""
        from mpsgrad.devices import opencl

        devices = opencl.devices()
        if not devices:
            raise DeviceNotFoundError(opencl.unavailable_reason() or "no OpenCL device was found")
        self._device = devices[0]
        self._device.start_compiler()

    def errors(self, source: str, name: str, options: CompileOptions) -> list[Finding]:
        """What is wrong with ``source``, called ``name``."""
        try:
            return findings(self._device.find_errors(source, name=name, options=options))
        except ShaderError as error:
            return findings([diagnostic(error)])


def findings(errors: Sequence[Diagnostic]) -> list[Finding]:
    """``errors`` up to the first that is a limit of this package, which is a warning."""
    found = []
    for error in errors:
        is_limit = error.file == LIBRARY_FILE or _LIMIT.search(error.message) is not None
        message = f"not checked from here on, a limit of mpsgrad: {error.message}" if is_limit else error.message
        found.append(Finding(error.file, error.line, error.column, "warning" if is_limit else "error", message))
        if is_limit:
            break
    return found
