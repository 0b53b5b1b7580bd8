"""PyTorch's compiler: the second column of a comparison, as far as the time for it goes."""

from __future__ import annotations

import time
from collections.abc import Mapping

from bench.case import TorchCall


class Compiler:
    """Compiles calls until ``seconds`` are spent; what fails to compile is left out, and after two in a row all is."""

    def __init__(self, seconds: float) -> None:
        self.seconds_left = seconds
        self._failures = 0

    def compiled(self, calls: Mapping[str, TorchCall]) -> TorchCall | None:
        """Compiled code for one of ``calls``, on the memory layout that ours has if it is among them, or None."""
        fusing = {layout: call for layout, call in calls.items() if call.fuses}
        if not fusing or self.seconds_left <= 0 or self._failures > 1:
            return None
        preferred = [fusing[layout] for layout in ("matrix", "NHWC") if layout in fusing]
        call = (preferred or list(fusing.values()))[0]
        import torch

        started = time.perf_counter()
        try:
            # A function may be compiled for a few shapes only before PyTorch goes back to running it as it is.
            torch._dynamo.reset()
            result = TorchCall(torch.compile(call.function, dynamic=False), call.arguments, call.results)
            result()
        except Exception:
            # Whatever a compiler of another project raises, the row has its main columns without it.
            self._failures += 1
            return None
        finally:
            self.seconds_left -= time.perf_counter() - started
        self._failures = 0
        return result
