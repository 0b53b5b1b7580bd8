"""One row: prepared, checked, timed, and put into the form that the report has."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import mpsgrad as mg
from bench import pytorch
from bench.case import Case, TorchCall, Work
from bench.check import Error, check_ours, check_pytorch, run_once
from bench.compiled import Compiler
from bench.load import OtherProcesses
from bench.timing import COMPILED, Measurement, Result, Timer


class Row:
    """What is measured of one case; ``where`` is PyTorch's device, None without PyTorch."""

    def __init__(self, case: Case, device: mg.Device, where: Any) -> None:
        self.case, self.device, self.where = case, device, where
        self.errors: dict[str, Error] = {}
        self.disagreements: dict[str, str] = {}

    def check(self, compiler: Compiler | None) -> tuple[Work, dict[str, TorchCall]]:
        """The work and the calls of PyTorch that agree with float64; raises ``AssertionError`` if ours does not."""
        work = self.case.prepare(self.device)
        run_once(work, self.device)
        parts = work.parts()
        self.errors["ours"] = check_ours(work, parts)
        if self.where is None:
            return work, {}
        calls = self._agreeing(work.torch_calls(self.where), parts)
        compiled = compiler.compiled(calls) if compiler else None
        return work, calls | self._agreeing({COMPILED: compiled} if compiled else {}, parts)

    def _agreeing(self, calls: Mapping[str, TorchCall], parts: Any) -> dict[str, TorchCall]:
        kept = {}
        for layout, call in calls.items():
            try:
                error = check_pytorch(call, parts)
            except (RuntimeError, NotImplementedError) as failure:
                self.disagreements[layout] = str(failure).splitlines()[0]
                continue
            if error.over_bound > pytorch.DISAGREES:
                self.disagreements[layout] = f"off by {error.over_bound:.3g} times the bound"
                continue
            self.errors[layout] = error
            kept[layout] = call
        return kept

    def measure(
        self, timer: Timer, compiler: Compiler | None, samples: int, seconds: float, limits: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The row of the report; ``limits`` has ``copy_gbps`` and ``peak_tflops`` of the run."""
        with pytorch.tf32(self.case.tf32) if self.where is not None else nullcontext():
            work, calls = self.check(compiler)
            others = OtherProcesses()
            measurement = timer.measure(work, calls, samples, seconds)
            return self._report(measurement, others.cores(), limits)

    def _report(self, measured: Measurement, other_cores: float | None, limits: Mapping[str, Any]) -> dict[str, Any]:
        case, repeated = self.case, measured.repeated
        theirs = self.errors.get(repeated.torch_layout or "")
        peak = limits["peak_tflops"].get(case.dtype)
        gbps = _per_second(case.nbytes, repeated) / 1e9
        tflops = _per_second(case.operations, repeated) / 1e12
        return {
            "op": case.op,
            "shape": case.shape,
            "dtype": case.dtype,
            "group": case.group,
            "torch_precision": "tf32" if case.tf32 else case.dtype,
            **vars(repeated),
            "gbps": gbps,
            "fraction_of_copy": gbps / limits["copy_gbps"],
            "tflops": tflops,
            "fraction_of_peak": tflops / peak if peak else None,
            **_columns("cold", measured.cold),
            **_columns("alone", measured.alone),
            "error": self.errors["ours"].relative,
            "torch_error": theirs.relative if theirs else None,
            "torch_disagrees": self.disagreements,
            "other_cores": other_cores,
        }


def _per_second(count: int, result: Result) -> float:
    return count / (result.median_ms * 1e-3)


def _columns(prefix: str, result: Result | None) -> dict[str, float | None]:
    return {
        f"{prefix}_ms": result.median_ms if result else None,
        f"{prefix}_torch_ms": result.torch_ms if result else None,
        f"{prefix}_ratio": result.ratio if result else None,
    }
