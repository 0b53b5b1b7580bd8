"""What a run tells TensorBoard: numbers of each step and of each epoch, in an event file."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from mpsgrad.errors import MPSGradError


class TensorBoardLog:
    """An event file in ``folder`` for a run that begins at ``first_step``.

    TensorBoard forgets what an interrupted run wrote of that step and those behind it. Raises ``MPSGradError`` if
    tensorboardX is not installed or the file cannot be written.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise MPSGradError("--tensorboard needs tensorboardX: pip install 'mpsgrad[tensorboard]'") from None
        try:
            self._writer = SummaryWriter(str(folder), purge_step=first_step)
        except OSError as error:
            raise MPSGradError(f"{folder}: cannot write the log: {error.strerror or error}") from error

    def write(self, step: int, **numbers: float) -> None:
        """Adds ``numbers`` to the curves of their names, as those after ``step`` steps."""
        for name, number in numbers.items():
            self._writer.add_scalar(name, number, step)

    def __enter__(self) -> TensorBoardLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()
