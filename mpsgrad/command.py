"""``CommandBuffer``: work that is collected while kernels encode, and handed to the device at ``commit``."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any, NoReturn

from mpsgrad.checked_attribute import fixed, text_or_none
from mpsgrad.device_bound import DeviceBound
from mpsgrad.devices import Buffer, Device, Dispatch, Function, RecordedWork, Submission, require_device
from mpsgrad.errors import DeviceError, FormatError, MPSGradError, StateError
from mpsgrad.joined_dispatch import JoinedDispatch
from mpsgrad.neighbouring_dispatches import with_neighbours_joined


class CommandBufferStatus(enum.IntEnum):
    """How far a command buffer has come. Source: ``MTLCommandBufferStatus``."""

    NOT_ENQUEUED = 0
    COMMITTED = 2
    COMPLETED = 4
    ERROR = 5


class CommandBuffer:
    """An ordered list of dispatches for one device.

    Kernels append to it with ``encode``; nothing runs before ``commit``. Leaving the ``with`` block commits and waits;
    leaving it through an exception discards the work. Source: ``MTLCommandBuffer``.
    """

    # Refuses attributes that it has not, as ``KnownAttributes`` does, which would take longer than all else in a call.
    __slots__ = (
        "__weakref__",
        "_device",
        "_discarded",
        "_dispatches",
        "_error",
        "_finished",
        "_handlers",
        "_is_open",
        "_lent_buffers",
        "_read_from",
        "_recorded",
        "_repeated",
        "_submission",
        "_taken",
        "_undo",
        "_written",
        "label",
    )

    device: Device = fixed("_device", "Where the work runs.")

    def __init__(self, device: Device | None = None, *, label: str | None = None) -> None:
        self._device = require_device("CommandBuffer", device)
        self.label = label if label is None else text_or_none("CommandBuffer", "label", label)
        self._dispatches: list[Dispatch] = []
        self._written: list[Any] = []
        self._read_from: dict[tuple[CommandBuffer, Buffer | None], tuple[str, str]] = {}
        self._lent_buffers: _LentBuffers | None = None
        self._is_open = True
        self._submission: Submission | None = None
        self._error: MPSGradError | None = None
        self._recorded = False
        self._finished = False
        self._discarded = False
        self._undo: list[Callable[[], Any]] | None = None
        # The encodes that kernels repeat, while somebody wants to know them.
        self._repeated: list[Any] | None = None
        self._handlers: tuple[Callable[[CommandBuffer], Any], ...] = ()
        # Of what recorded work writes what others were the last to write or to wait for: the next replay changes that.
        self._taken: list[Any] = []

    __deepcopy__ = DeviceBound.__deepcopy__
    __reduce_ex__ = DeviceBound.__reduce_ex__

    def __copy__(self) -> NoReturn:
        raise TypeError("CommandBuffer cannot be copied: its work is run once; make another one")

    @property
    def _lent(self) -> _LentBuffers:
        """What encodes were lent, until the work is handed over; most need nothing."""
        lent = self._lent_buffers
        if lent is None:
            lent = self._lent_buffers = _LentBuffers()
        return lent

    def _takes_back(self) -> _LentBuffers | None:
        """What encodes were lent, which they no longer are."""
        lent, self._lent_buffers = self._lent_buffers, None
        return lent

    def scratch(self, nbytes: int) -> Buffer:
        """A new buffer for dispatches of one encode, of which nothing outlives the command buffer."""
        buffer = self._device.allocate(nbytes)
        self._lent.scratch.append(buffer)
        return buffer

    def workspace(self, nbytes: int) -> Buffer:
        """A buffer of ``nbytes`` or more for dispatches of one encode: those of another encode may have it, too."""
        workspaces = self._lent.workspaces
        if not workspaces or workspaces[-1].nbytes < nbytes:
            workspaces.append(self._device.allocate(nbytes))
        return workspaces[-1]

    def varying(self, evaluate: Callable[[], bytes]) -> Buffer:
        """A buffer with what ``evaluate`` gives now, for numbers that differ from one encode to the next.

        After ``record`` each replay but the first calls it again, so that a replay computes what another encode would.
        """
        made = VaryingBuffer(self._device, evaluate, evaluate())
        self._lent.varying.append(made)
        return made.buffer

    def steady(self, numbers: SteadyNumbers, evaluate: Callable[[], bytes]) -> Buffer:
        """A buffer with what ``evaluate`` gives now, for ``numbers`` that mostly stay the same from encode to encode.

        Encodes that find the same ones have the same buffer. After ``record`` replays evaluate them again, as those of
        ``varying``. Only joined dispatches may have it.
        """
        data = evaluate()
        buffer = numbers.buffer_of(data)
        self._lent.steady[buffer] = evaluate, data
        return buffer

    def _position(self) -> tuple[int, int]:
        """How many dispatches and how many buffers of scratch memory there are."""
        return len(self._dispatches), len(self._lent.scratch)

    def add_dispatch(self, function: Function, threadgroups: int, *buffers: Buffer) -> None:
        """Appends one run of ``function`` over ``threadgroups`` threadgroups with ``buffers`` as its arguments.

        Raises ``StateError`` after ``commit``.
        """
        self._require_open("add_dispatch")
        if threadgroups > 0:
            self._dispatches.append(Dispatch(function, threadgroups, buffers))

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Takes the dispatches of the block back if an exception leaves it, and what was noted of them."""
        dispatches, varying, outer = len(self._dispatches), len(self._lent.varying), self._undo
        reads = dict(self._read_from)
        undo = self._undo = []
        try:
            yield
        except BaseException:
            del self._dispatches[dispatches:], self._lent.varying[varying:]
            self._read_from = reads
            for step in reversed(undo):
                step()
            raise
        else:
            if outer is not None:
                outer += undo
        finally:
            self._undo = outer

    def _if_taken_back(self, undo: Callable[[], Any]) -> None:
        """Has ``undo`` called if the dispatches that were added last are taken back: it corrects what was noted."""
        if self._undo is not None:
            self._undo.append(undo)

    def add_completed_handler(self, handler: Callable[[CommandBuffer], Any]) -> None:
        """Has ``handler`` called with this command buffer once it has completed, in ``wait_until_completed``.

        Handlers are called in the order of their addition, all of them even if one raises. Raises ``StateError`` after
        ``commit``.
        """
        self._require_open("add_completed_handler")
        if not callable(handler):
            raise FormatError(f"CommandBuffer: handler is {handler!r}; it has to be callable with the command buffer")
        self._handlers += (handler,)

    def commit(self) -> None:
        """Hands the work to the device and returns at once.

        Raises ``StateError`` if it was committed before, or reads what a command buffer writes that has not been
        committed: commit that one first.
        """
        if not self._is_open:
            self._require_open("commit")
        dispatches: Sequence[Dispatch] = self._dispatches
        if len(dispatches) != 1 or type(dispatches[0]) is not Dispatch:
            dispatches = with_neighbours_joined(dispatches)
        if self._read_from:
            self._forget_what_is_not_read(dispatches)
            self._require_sources_written()
        self._dispatches = []
        try:
            self._submission = self._device.submit(dispatches, self.label)
        except MPSGradError as error:
            self._error = error
            self._is_open = False
            self._finished = True
            raise
        self._is_open = False
        self._lent_buffers = None
        self._written.clear()

    def record(self) -> Recording:
        """Keeps the work instead of committing it: ``Recording.replay`` runs it, any number of times.

        Raises ``StateError`` after ``commit``, and ``NotImplementedError`` for work that the device cannot keep.
        """
        self._require_open("record")
        self._own_steady_numbers()
        dispatches = with_neighbours_joined(self._dispatches)
        self._forget_what_is_not_read(dispatches)
        work = self._device.record(dispatches, self.label)
        self._dispatches = []
        self._is_open = False
        self._recorded = True
        self._taken, self._written = list({id(each): each for each in self._written}.values()), []
        lent = self._takes_back()
        return Recording(self, work, lent.varying if lent is not None else [])

    def _own_steady_numbers(self) -> None:
        """Has the work read them from buffers of its own, to which replays may write."""
        lent = self._lent_buffers
        if lent is None or not lent.steady:
            return
        own: dict[Buffer, Buffer] = {}
        for buffer, (evaluate, data) in lent.steady.items():
            made = VaryingBuffer(self._device, evaluate, data)
            lent.varying.append(made)
            own[buffer] = made.buffer
        for dispatch in self._dispatches:
            if isinstance(dispatch, JoinedDispatch):
                dispatch.exchange(own)

    def wait_until_completed(self) -> None:
        """Blocks until the work has run, then calls the handlers once; after ``record``, once for each replay.

        Raises ``StateError`` before ``commit`` or the first replay and after an exception discarded the work, and
        ``DeviceError`` if the device failed.
        """
        if self._submission is None:
            if self._error is not None:
                raise self._error
            if self._discarded:
                raise StateError(f"{self}: was discarded after an exception, so what it was to compute does not exist")
            if self._recorded:
                raise StateError(f"{self}: was recorded but has not been replayed, so its results do not exist yet")
            raise StateError(f"{self}: wait_until_completed before commit would wait for ever")
        if self._finished:
            if self._error is not None:
                raise self._error
            return
        try:
            self._submission.wait()
        except MPSGradError as error:
            self._error = error
            raise
        finally:
            self._finished = True
            if self._handlers:
                self._call_handlers()

    def _call_handlers(self) -> None:
        handlers = self._handlers
        if not self._recorded:
            self._handlers = ()
        with ExitStack() as calls:
            for handler in reversed(handlers):
                calls.callback(handler, self)

    @property
    def status(self) -> CommandBufferStatus:
        """How far the work has come."""
        if self._error is not None:
            return CommandBufferStatus.ERROR
        if self._submission is None:
            return CommandBufferStatus.NOT_ENQUEUED
        if self._finished or self._submission.is_complete:
            return CommandBufferStatus.COMPLETED
        return CommandBufferStatus.COMMITTED

    @property
    def error(self) -> MPSGradError | None:
        """What the device reported, or None."""
        return self._error

    @property
    def gpu_time(self) -> float | None:
        """Seconds from the start of the first dispatch to the end of the last, or None where the driver has no clock.

        Waits for completion. Raises ``StateError`` before ``commit``.
        """
        self.wait_until_completed()
        assert self._submission is not None
        return self._submission.gpu_time

    @property
    def is_open(self) -> bool:
        """Whether work can still be added."""
        return self._is_open

    @property
    def is_recorded(self) -> bool:
        """Whether the work was kept by ``record``, to be run by replays."""
        return self._recorded

    @property
    def _has_run(self) -> bool:
        """Whether the work was handed to the device, or was lost."""
        return self._submission is not None or not self._takes_effect

    @property
    def _takes_effect(self) -> bool:
        """Whether the work has run or can still run."""
        return (self._error is None or self._recorded) and not self._discarded

    def _require_open(self, what: str) -> None:
        if not self._is_open:
            how = "was discarded after an exception" if self._discarded else "has been committed"
            how = "has been recorded" if self._recorded else how
            raise StateError(f"{self}: {what} is not possible because the command buffer {how}; make a new one")

    def _wait_for(self, owner: str, what: str, *, needs_result: bool) -> None:
        """Waits until this command buffer no longer writes ``owner``; raises ``StateError`` if it was not committed.

        With ``needs_result`` raises also if it was discarded or failed.
        """
        if self.is_open:
            raise StateError(
                f"{owner}: {what} before its command buffer was committed; leave the 'with' block or call commit() "
                "first"
            )
        if needs_result:
            self.wait_until_completed()
        elif self._submission is not None:
            with suppress(DeviceError):
                self.wait_until_completed()

    def _require_submitted(self, owner: str, what: str) -> None:
        """Raises ``StateError`` unless the work was committed, and the error if it failed; does not wait."""
        if self.is_open or self._submission is None or self._error is not None:
            self._wait_for(owner, what, needs_result=True)

    def _writes(self, target: Any) -> None:
        """Makes ``target``, an image, a state or a vector, wait for this command buffer before the CPU reads it."""
        previous = target._writer
        if previous is not self:
            if self._undo is not None:
                self._undo.append(partial(setattr, target, "_writer", previous))
            if previous is not None and previous._recorded:
                previous._taken.append(target)
            target._writer = self
        self._written.append(target)

    def _becomes_writer_of(self, target: Any) -> None:
        previous = target._writer
        if previous is not None and previous is not self and previous._recorded:
            previous._taken.append(target)
        target._writer = self

    def _is_done_with(self, target: Any) -> None:
        """Called when nobody has to wait for this command buffer before ``target`` is read, until the next replay."""
        target._writer = None
        if self._recorded:
            self._taken.append(target)

    def _run_again(self, work: RecordedWork) -> None:
        """Starts recorded work."""
        self._require_sources_written()
        self._error = None
        self._finished = False
        try:
            self._submission = work.submit()
        except MPSGradError as error:
            self._error = error
            self._finished = True
            raise
        taken, self._taken = self._taken, []
        for target in taken:
            self._becomes_writer_of(target)

    def _reads_freely(self, writer: CommandBuffer) -> bool:
        """Whether there is nothing to note or to object to where the work reads what ``writer`` wrote last."""
        return writer is self or (writer._submission is not None and writer._error is None)

    def _reads(
        self, owner: str, name: str, writer: CommandBuffer | None, buffer: Buffer | None = None
    ) -> None:
        """Notes that the work reads what ``writer`` wrote last, the argument ``name`` of the kernel ``owner``.

        With ``buffer``, where that lies, the note counts only if a dispatch has the buffer: the encode may still fail.
        Raises ``StateError`` if that was discarded or failed, so that there is nothing to read.
        """
        if writer is None or self._reads_freely(writer):
            return
        if not writer._takes_effect:
            how = "was discarded after an exception" if writer._discarded else f"failed with {writer._error}"
            raise StateError(
                f"{owner}: {name} was to be written by {writer}, which {how}, so what it was to be does not exist"
            )
        if not writer._has_run:
            self._read_from[writer, buffer] = owner, name

    def _reads_from(self, owner: str, name: str, writers: Iterable[CommandBuffer]) -> None:
        """``_reads`` of what several command buffers wrote."""
        for writer in writers:
            self._reads(owner, name, writer)

    def _forget_what_is_not_read(self, dispatches: Sequence[Dispatch]) -> None:
        """Drops the notes of encodes that failed after they were made."""
        if self._read_from:
            used = {buffer for each in dispatches for buffer in (*each.buffers, *each.held)}
            kept = {key: what for key, what in self._read_from.items() if key[1] is None or key[1] in used}
            self._read_from = kept

    def _require_sources_written(self) -> None:
        """Raises ``StateError`` if another command buffer writes what this one reads and was not committed before."""
        for (writer, _), (owner, name) in self._read_from.items():
            if not writer._has_run:
                how = "recorded but not replayed; replay" if writer.is_recorded else "not committed; commit"
                raise StateError(f"{self}: {owner}: {name} is written by {writer}, which is {how} it first")
            self._reads(owner, name, writer)
        self._read_from.clear()

    def _reuse_buffer(self, nbytes: int) -> Buffer | None:
        """Memory of a temporary image or state of this command buffer whose read count reached 0, or None.

        Its new owner has to forget it where the work is taken back that it is for.
        """
        free = self._lent.free.get(nbytes)
        if not free:
            return None
        buffer = free.pop()
        self._if_taken_back(partial(free.append, buffer))
        return buffer

    def _give_back(self, buffer: Buffer) -> None:
        if self.is_open:
            free = self._lent.free.setdefault(buffer.nbytes, [])
            free.append(buffer)
            self._if_taken_back(partial(free.remove, buffer))

    def __enter__(self) -> CommandBuffer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            if self.is_open:
                self._dispatches = []
                self._takes_back()
                self._written.clear()
                self._read_from.clear()
                self._is_open = False
                self._discarded = True
            return
        if self._is_open:
            self.commit()
        if self._submission is not None:
            self.wait_until_completed()

    def __repr__(self) -> str:
        name = f" {self.label!r}" if self.label else ""
        return f"<CommandBuffer{name} on {self._device.identifier}: {len(self._dispatches)} dispatches>"


class _LentBuffers:
    """The buffers that encodes of one command buffer are lent, and those that may be lent again, by their sizes."""

    __slots__ = ("free", "scratch", "steady", "varying", "workspaces")

    def __init__(self) -> None:
        self.scratch: list[Buffer] = []
        self.workspaces: list[Buffer] = []
        self.varying: list[VaryingBuffer] = []
        self.steady: dict[Buffer, tuple[Callable[[], bytes], bytes]] = {}
        self.free: dict[int, list[Buffer]] = {}


class SteadyNumbers:
    """The buffer with the numbers of the last encode, for ``CommandBuffer.steady``."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._last: tuple[Buffer, bytes] | None = None

    def buffer_of(self, data: bytes) -> Buffer:
        """A buffer with ``data``, to which nobody writes again."""
        last = self._last
        if last is None or last[1] != data:
            buffer = self._device.allocate(len(data))
            buffer.write(data)
            last = self._last = buffer, data
        return last[0]


class VaryingBuffer:
    """A buffer with what ``evaluate`` gave last: at first ``data``."""

    __slots__ = ("_data", "_evaluate", "buffer")

    def __init__(self, device: Device, evaluate: Callable[[], bytes], data: bytes) -> None:
        self._evaluate = evaluate
        self._data = data
        self.buffer = device.allocate(len(data))
        self.buffer.write(data)

    def change(self, before: Submission) -> None:
        """Evaluates again, for work behind ``before``."""
        data = self._evaluate()
        if data != self._data:
            if not self.buffer.device.orders_writes:
                with suppress(DeviceError):
                    before.wait()
            self.buffer.write(data)
            self._data = data


class Recording:
    """The work of a command buffer, kept by the device: what its kernels encoded, to be run as often as wanted.

    A replay runs the same kernels on the same memory. So fill the source images anew (``Image.write``) and read the
    results between replays. What differs from one encode to the next is computed anew for each replay but the first:
    ``learning_rate`` and ``time_step`` of optimizers, the masks of ``Dropout``. Other parameters stay as they were
    encoded. On NVIDIA GPUs this is a CUDA graph, which the host starts with one call; on CPUs a list of kernels that
    have their arguments; Metal is given the list of kernels again. Made by ``CommandBuffer.record``.
    """

    def __init__(
        self,
        command_buffer: CommandBuffer,
        work: RecordedWork,
        varying: Sequence[VaryingBuffer],
    ) -> None:
        self.command_buffer = command_buffer
        self._work = work
        self._varying = varying

    def replay(self) -> CommandBuffer:
        """Starts the work and returns its command buffer at once, which then speaks of this replay.

        Replays run one after the other, in order with all other work of the device. Raises ``DeviceError`` if the
        device refuses it.
        """
        before = self.command_buffer._submission
        if before is not None:
            for each in self._varying:
                each.change(before)
        self.command_buffer._run_again(self._work)
        return self.command_buffer

    def __repr__(self) -> str:
        return f"<Recording of {self.command_buffer}>"
