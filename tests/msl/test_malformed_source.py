"""Good kernels with random edits: rules, translator, checks and compiler give an error or a result, and in time."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from test_msl_diagnostics import edited
from test_msl_lint_foreign import FOREIGN

from mpsgrad.errors import MPSGradError
from mpsgrad.msl import translate
from mpsgrad.msl.lint import lint

SECONDS = 30

COMPILE = """
import json, sys
from mpsgrad.errors import MPSGradError
from mpsgrad.runtime import compile
for number, source in enumerate(json.load(sys.stdin)):
    print(number, end=" ", flush=True)
    try:
        library = compile(source)
        for name in library.function_names:
            library.function(name)
        print("compiled", flush=True)
    except MPSGradError as error:
        print("refused", flush=True)
"""


@contextmanager
def in_time() -> Iterator[None]:
    def expired(*_: Any) -> None:
        raise TimeoutError(f"not done after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, expired)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def malformed(seed: str, count: int) -> Iterator[str]:
    choose = random.Random(seed)
    names = list(FOREIGN)
    for _ in range(count):
        source = FOREIGN[choose.choice(names)]
        yield source[: choose.randrange(len(source))] if choose.random() < 0.1 else edited(source, choose)


def survives(source: str) -> bool:
    """Whether the source is translated."""
    with in_time():
        lint(source, metalcompute=True)
        try:
            kernels = translate(source, "opencl", launch="row").kernels
            for name in list(kernels)[:2]:
                checked = translate(source, "opencl", launch="row", checked=name)
                assert list(checked.kernels) == [name]
        except MPSGradError as error:
            assert str(error)
            return False
    return True


def test_malformed_source_is_refused_or_translated() -> None:
    results = [survives(source) for source in malformed("day", 300)]
    assert 20 < sum(results) < 280


@pytest.mark.nightly
def test_malformed_source_is_refused_or_translated_all_night() -> None:
    for source in malformed("night", 10_000):
        survives(source)


def compile_all(sources: list[str]) -> list[str]:
    """What becomes of each source in a process of its own, that a crash of the compiler ends."""
    results: list[str] = []
    while len(results) < len(sources):
        rest = sources[len(results) :]
        command = [sys.executable, "-c", COMPILE]
        done = subprocess.run(command, input=json.dumps(rest), capture_output=True, text=True, timeout=60 * len(rest))
        lines = done.stdout.split("\n")
        results += [line.split()[1] if len(line.split()) == 2 else "crashed" for line in lines if line.strip()]
        assert done.returncode == 0 or results[-1] == "crashed", done.stderr
    return results


def accepted(seed: str, count: int) -> list[str]:
    """Malformed sources that the translator lets pass."""
    found: list[str] = []
    for source in malformed(seed, 100 * count):
        if len(found) == count:
            break
        try:
            if translate(source, "opencl", launch="row").kernels:
                found.append(source)
        except MPSGradError:
            continue
    return found


def test_malformed_source_is_refused_or_compiled() -> None:
    results = compile_all(accepted("day", 24))
    assert len(results) == 24 and set(results) == {"compiled", "refused"}


def test_long_chains_are_read_in_time() -> None:
    """What is read again for each link of a chain takes ten seconds here."""
    chains = "".join(f"i == {k} ? {k} : " for k in range(1600)), "y[i] = " * 1600
    before = time.process_time()
    for chain in chains:
        assert survives(f"kernel void f(device float* y, uint i [[thread_position_in_grid]]) {{ y[i] = {chain} 0; }}")
    assert time.process_time() - before < 5


@pytest.mark.nightly
def test_malformed_source_is_refused_or_compiled_all_night() -> None:
    assert "crashed" not in compile_all(accepted("night", 500))
