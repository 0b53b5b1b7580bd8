"""Runs every kernel of the package on an NVIDIA GPU under each tool of compute-sanitizer: ``make sanitize``.

    python tests/sanitize_cuda.py [--tools memcheck racecheck ...] [--kernels PART_OF_A_NAME ...] [PYTEST ARGUMENTS]

The tests of the kernels run once without a tool, with few examples, to see which kernels each of them runs. Then the
tools get tests that together run each kernel function for each dtype ``TIMES`` times, in several processes. Each
buffer is an allocation of its own and of its exact size, and is freed when it is no longer used, so that memcheck sees
what lies outside and initcheck what was not written. Fails if a tool finds something, if a test fails, or if no test
runs a kernel.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parent
sys.path.insert(0, str(TESTS.parent))
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
# PyTorch's kernels are not ours to judge.
ARGUMENTS = [
    *(str(TESTS / name) for name in ("kernels", "core/test_joined_dispatch.py")),
    "--ignore-glob=*_against_pytorch.py",
]
PROGRAM = "compute-sanitizer"
FOUND = 86
"""The exit status that stands for findings, whatever that of the tests is."""
SUMMARY = re.compile(r"^========= (?:ERROR|RACECHECK) SUMMARY: (\d+)", re.MULTILINE)
SHOWN_LINES = 60
TIMES = 2


def program() -> str | None:
    """Where compute-sanitizer is: on the path, or in the CUDA toolkit's usual place."""
    toolkits = sorted(Path("/usr/local").glob(f"cuda*/bin/{PROGRAM}"))
    return shutil.which(PROGRAM) or (str(toolkits[-1]) if toolkits else None)


class Sanitized:
    """A pytest plugin: every ``count``-th test, on memory that the tools can judge; notes what each test starts.

    ``chosen`` are the ids of the tests that run, or None for all.
    """

    def __init__(self, part: int, count: int, notes: Path, chosen: set[str] | None) -> None:
        self.part, self.count, self.notes, self.chosen = part, count, notes, chosen
        self.started: dict[str, set[str]] = {}
        self.seconds: dict[str, float] = {}
        self._present: set[str] = set()

    def pytest_configure(self) -> None:
        from mpsgrad.devices import cuda, cuda_launch, default_device
        from mpsgrad.devices.cuda_api import api, checked
        from mpsgrad.devices.cuda_memory import MemoryPool

        class ExactMemory(MemoryPool):
            """Asks CUDA for each buffer."""

            def take(self, nbytes: int) -> tuple[int, int]:
                return self._allocate(nbytes, nbytes), nbytes

            def give_back(self, address: int, size: int) -> None:
                with self._device.active:
                    checked(api().cuMemFree(address))

        device = default_device()
        assert isinstance(device, cuda.CUDADevice)
        device._pool = ExactMemory(device)
        launch = cuda_launch.CUDAFunction.launch

        def noted(function: Any, *arguments: Any) -> None:
            self._present.add(described(function.signature))
            launch(function, *arguments)

        cuda_launch.CUDAFunction.launch = noted  # type: ignore[method-assign]

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        chosen = [item for item in items if self.chosen is None or item.nodeid in self.chosen]
        items[:] = chosen[self.part :: self.count]

    def pytest_runtest_setup(self, item: Any) -> None:
        self._present = self.started[item.nodeid] = set()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call":
            self.seconds[report.nodeid] = report.duration

    def pytest_sessionfinish(self) -> None:
        tests = {name: [self.seconds.get(name, 0.0), sorted(started)] for name, started in self.started.items()}
        self.notes.write_text(json.dumps(tests))


def described(signature: Any) -> str:
    """A kernel function with the types of its arguments, which tell its variants for float and half apart."""
    return f"{signature.name}({', '.join(argument.type for argument in signature.arguments)})"


def kernels() -> set[str]:
    """All kernel functions of the package, as ``described`` says."""
    from mpsgrad.msl import translate
    from mpsgrad.shader import families

    found: set[str] = set()
    for family in families().values():
        for dtype in family.dtypes if "nvidia" in family.device_families else ():
            source = family.render(dtype, "nvidia").with_line_directives()
            found |= {described(each) for each in translate(source, "cuda").kernels.values()}
    return found


def choose(tests: dict[str, list[Any]], wanted: set[str]) -> set[str]:
    """Tests that run each kernel of ``wanted`` ``TIMES`` times, or as often as there are tests that do; short ones."""
    needed = dict.fromkeys(wanted, TIMES)
    left, chosen = dict(tests), set()
    while True:
        gains = {name: sum(needed.get(each, 0) > 0 for each in started) for name, (_, started) in left.items()}
        best = max(left, key=lambda name: gains[name] / (0.05 + left[name][0]), default=None)
        if best is None or not any(gains.values()):
            return chosen
        chosen.add(best)
        for each in left.pop(best)[1]:
            if each in needed:
                needed[each] -= 1


def judge(tool: str, outcomes: list[tuple[int | None, Path]]) -> bool:
    """Prints what the processes of ``tool`` came to, their statuses and logs; whether nothing was found."""
    findings, troubles, shown = 0, [], []
    for status, log in outcomes:
        text = log.read_text(errors="replace")
        counts = SUMMARY.findall(text)
        findings += sum(map(int, counts))
        if status == 0 and counts:
            continue
        reason = {None: "did not end in time", FOUND: "found something"}.get(status, f"ended with status {status}")
        troubles.append(f"{log.name} {reason}")
        lines = text.splitlines()
        marked = [line for line in lines if line.startswith("=========") and "Host Frame" not in line]
        shown += marked[:SHOWN_LINES] if status == FOUND else lines[-SHOWN_LINES:]
    print(f"{tool}: {findings} findings" + "".join(f"; {each}" for each in troubles))
    print("\n".join(shown), end="\n" * bool(shown))
    return not findings and not troubles


class Session:
    """Processes that run the tests, each writing a log and its notes into ``folder``."""

    def __init__(self, folder: Path, arguments: list[str], seconds: float) -> None:
        self.folder, self.arguments = folder, arguments
        self.deadline = time.monotonic() + seconds
        self._processes: list[Any] = []
        folder.mkdir(parents=True, exist_ok=True)
        self.environment = {**os.environ, "MPSGRAD_DEVICE": "cuda", "MPSGRAD_HYPOTHESIS_PROFILE": "sanitizer"}
        paths = filter(None, [str(TESTS.parent), os.environ.get("PYTHONPATH")])
        self.environment |= {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}

    def start(self, name: str, command: list[str], parts: int, chosen: Path | None = None) -> list[tuple[Any, Path]]:
        """Starts ``parts`` processes of ``command``, which is what stands before the Python program."""
        started = []
        for part in range(parts):
            log = self.folder / f"{name}-{part}.log"
            options = ["--part", f"{part}/{parts}", "--output", str(log.with_suffix(".json"))]
            options += ["--chosen", str(chosen)] if chosen else []
            with log.open("w") as output:
                process = subprocess.Popen(
                    [*command, sys.executable, __file__, *options, *self.arguments],
                    stdout=output, stderr=subprocess.STDOUT, env=self.environment, start_new_session=True,
                )  # fmt: skip
            self._processes.append(process)
            started.append((process, log))
        return started

    def finish(self, processes: list[tuple[Any, Path]]) -> list[tuple[int | None, Path]]:
        """The status of each, None for those that the time was too short for."""
        return [(_wait(process, self.deadline), log) for process, log in processes]

    def stop(self) -> None:
        """Ends what still runs, with the programs that it runs."""
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def notes(self, name: str) -> dict[str, list[Any]]:
        """By test, its seconds and what it started."""
        found: dict[str, list[Any]] = {}
        for path in self.folder.glob(f"{name}-*.json"):
            found |= json.loads(path.read_text())
        return found


def run(tools: list[str], names: list[str], session: Session) -> int:
    """Chooses tests for the kernels that have one of ``names`` in theirs, and runs ``tools`` over them side by side."""
    sanitizer = program()
    if sanitizer is None:
        print(f"{PROGRAM} was not found; it comes with NVIDIA's CUDA toolkit", file=sys.stderr)
        return 2
    # The processes find the kernels compiled.
    subprocess.run([sys.executable, "-c", "import mpsgrad"], env=session.environment, check=True)
    cores = os.cpu_count() or 1
    surveyed = session.finish(session.start("survey", [], cores))
    for status, log in surveyed:
        if status != 0:
            print(f"the tests fail without a tool: {log}\n{log.read_text()[-2000:]}", file=sys.stderr)
            return 1
    tests = session.notes("survey")
    wanted = {each for each in kernels() if any(name in each for name in names)}
    chosen = choose(tests, wanted)
    never = sorted(wanted.difference(*(started for _, started in tests.values())))
    print(f"{len(chosen)} of {len(tests)} tests run {len(wanted) - len(never)} of {len(wanted)} kernel functions")
    if never:
        print(f"no test runs {', '.join(never)}")
    listed = session.folder / "chosen.txt"
    listed.write_text("\n".join(sorted(chosen)))
    running = {}
    for tool in tools:
        # It takes several times as long as the others together.
        parts = min(max(cores // (2 if tool == "racecheck" else 6), 1), max(len(chosen), 1))
        command = [sanitizer, "--tool", tool, "--error-exitcode", str(FOUND)]
        running[tool] = session.start(tool, command, parts, listed)
    passed = not never
    for tool, processes in running.items():
        passed &= judge(tool, session.finish(processes))
    return 0 if passed else 1


def _wait(process: Any, deadline: float) -> int | None:
    try:
        return int(process.wait(max(deadline - time.monotonic(), 0)))
    except subprocess.TimeoutExpired:
        return None


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs every kernel on an NVIDIA GPU under compute-sanitizer.")
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--kernels", nargs="+", default=[""], help="only those with one of these in their names")
    parser.add_argument("--seconds", type=float, default=3600.0, help="what does not end within this time fails")
    parser.add_argument("--output", type=Path, help="the folder of the logs")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--chosen", type=Path, help=argparse.SUPPRESS)
    options, arguments = parser.parse_known_args()
    arguments = arguments or ARGUMENTS
    if options.part is not None:
        part, count = map(int, options.part.split("/"))
        plugins = ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:benchmark"]
        chosen = set(options.chosen.read_text().splitlines()) if options.chosen else None
        return int(pytest.main([*plugins, *arguments], [Sanitized(part, count, options.output, chosen)]))
    folder = options.output or Path(tempfile.mkdtemp(prefix="sanitize-"))
    print(f"logs in {folder}")
    session = Session(folder, arguments, options.seconds)
    try:
        return run(options.tools, options.kernels, session)
    finally:
        session.stop()


if __name__ == "__main__":
    sys.exit(main())
