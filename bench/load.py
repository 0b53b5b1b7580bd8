"""How busy other processes keep the machine meanwhile: what they take, a benchmark does not get."""

from __future__ import annotations

import os
import time
from pathlib import Path

_STATISTICS = Path("/proc/stat")
TOLERABLE_CORES = 0.1


class OtherProcesses:
    """Counts from its creation on."""

    def __init__(self) -> None:
        self._started = self._now()

    @staticmethod
    def _now() -> tuple[float, float, float] | None:
        """Seconds: of the clock, of all cores' work, and of this process's; None where the system does not tell."""
        try:
            line = _STATISTICS.read_text().splitlines()[0]
        except OSError:
            return None
        user, nice, system, _idle, _waiting, interrupts, soft_interrupts, stolen, *_ = map(int, line.split()[1:])
        ticks = user + nice + system + interrupts + soft_interrupts + stolen
        return time.perf_counter(), ticks / os.sysconf("SC_CLK_TCK"), time.process_time()

    def cores(self) -> float | None:
        """How many cores other processes (and other virtual machines) used on average; None where that is unknown."""
        now = self._now()
        if now is None or self._started is None:
            return None
        elapsed, everyone, own = (b - a for a, b in zip(self._started, now, strict=True))
        return max(0.0, everyone - own) / elapsed
