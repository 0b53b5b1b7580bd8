"""The exceptions of the package: ``except MPSGradError`` catches everything that it raises on purpose."""

from __future__ import annotations

from typing import Any, NoReturn


class MPSGradError(Exception):
    """Base class of every error that this package raises on purpose."""


class GeometryError(MPSGradError, ValueError):
    """A size, stride, offset, channel count or other geometric value does not fit its neighbours."""


class FormatError(MPSGradError, TypeError):
    """An argument has the wrong type, dtype, channel format or memory layout."""


class StateError(MPSGradError, RuntimeError):
    """An image, a state or a command buffer is used out of order: too early, twice, or after its end."""


class DeviceError(MPSGradError, RuntimeError):
    """A device reported a failure while it ran what was submitted."""


class DeviceNotFoundError(MPSGradError, RuntimeError):
    """No device that can run Metal kernels was found; the message says what was looked for and what to install."""


class ArchiveError(MPSGradError, ValueError):
    """A saved kernel cannot be restored: not an archive, damaged, or of a version that is not known."""


class DataError(MPSGradError, ValueError):
    """A file of pictures or classes is missing, damaged or not of its format; the message says what was expected."""


class CheckpointError(MPSGradError, RuntimeError):
    """A checkpoint cannot be written, or none can be read; the message names the file."""


class ModelError(MPSGradError, ValueError):
    """A model to train cannot be made or trained; the message names the model, and the node where there is one."""


class ShaderError(MPSGradError):
    """A shader was refused, by this package or by the device's compiler.

    ``file``, ``line`` and ``column`` (from 1; None where unknown) point at the source as it was written: the template
    or the user's Metal file, not what was generated from it. ``source_line`` is the text of that line.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str,
        line: int | None = None,
        column: int | None = None,
        source_line: str | None = None,
    ) -> None:
        self.message = message
        self.file = file
        self.line = line
        self.column = column
        self.source_line = source_line
        super().__init__(str(self))

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are made again from their positional arguments, as by a pool of processes that hands one on.
        return type(self)._of_parts, (self.message, self.file, self.line, self.column, self.source_line)

    @classmethod
    def _of_parts(
        cls, message: str, file: str, line: int | None, column: int | None, source_line: str | None
    ) -> ShaderError:
        return cls(message, file=file, line=line, column=column, source_line=source_line)

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        text = f"{place}: {self.message}"
        if self.source_line is not None:
            text += f"\n    {self.source_line.rstrip()}"
            if self.column is not None:
                lead = "".join(c if c == "\t" else " " for c in self.source_line[: self.column - 1])
                text += f"\n    {lead}^"
        return text


def with_article(name: object) -> str:
    """``name`` behind "a" or "an"; the ``u`` of ``uint`` is no vowel to the ear."""
    return f"an {name}" if str(name)[:1] in "aeio" else f"a {name}"


def refuse_unavailable(owner: str, method: str, instead: str) -> NoReturn:
    """Raises ``NotImplementedError`` for a method that a class has in MPS, too, but marked as unavailable."""
    raise NotImplementedError(f"{owner}.{method} is unavailable; {instead}")
