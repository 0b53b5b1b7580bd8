"""Writes docs/metal-stdlib.md: every tested name of metal_stdlib with its types and the largest error measured.

``make docs`` runs it. Engines that this machine lacks keep their columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from metal_functions import Function
from metal_manifest import FUNCTIONS, names_of
from metal_probes import PROBES
from metal_programs import HEADER, Case, program, programs
from metal_specification import LEFT_OUT

import mpsgrad as mg
from mpsgrad.devices import available_devices

PATH = Path(__file__).parents[2] / "docs" / "metal-stdlib.md"
ENGINES = {"opencl": "OpenCL", "cuda": "CUDA"}
COMPILED = "compiled"
TITLES = {
    "math": "Math", "common": "Common", "integer": "Integer", "relational": "Relational", "geometric": "Geometric",
    "simd": "Simdgroup", "quad": "Quadgroup", "conversion": "Conversions", "constant": "Constants",
    "limit": "Numeric limits", "trait": "Type traits and templates", "pack": "Pack and unpack", "matrix": "Matrices",
    "simdgroup matrix": "Simdgroup matrices", "packed vector": "Packed vectors", "atomic": "Atomics",
    "synchronization": "Synchronization", "type": "Sizes and alignments",
}  # fmt: skip
INTRODUCTION = """\
# metal_stdlib

Made by `make docs` from the tests in `tests/msl`: change those, not this page.

{names} names of Metal's standard library, on {types} types in vectors of the widths listed, against NumPy's float64
or exact integers: over special values (zeros, subnormal numbers, the ends of each type, infinity, NaN) and random ones
of every magnitude. Errors are in units in the last place (ulp), as section 8.4 of the Metal specification defines them;
for sums of terms, such as `dot`, they are counted in the last place of the largest term. *Granted* is what the
specification allows without fast math, and with it where that is looser. `precise::` and `fast::` exist for `float` and
are tested under the same bounds; plain names are tested with and without fast math. Numbers too small to be normal may
count as zero, as in Metal.

*{compiled}* says that the function is translated and compiled for an engine that the tests' machine did not have.
"""


@dataclass
class Row:
    """One line of the table: what is tested, and what each engine gave."""

    section: str
    name: str
    types: list[str]
    widths: tuple[int, ...]
    granted: str
    results: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def identity(self) -> tuple[str, ...]:
        """The cells that do not depend on measurements."""
        widths = "" if self.widths in ((), (1,)) else ", ".join(map(str, self.widths))
        return (f"`{self.name}`", ", ".join(self.types), widths, self.granted)


def rows() -> dict[tuple[str, str], Row]:
    """The lines of the table by section and name."""
    found: dict[tuple[str, str], Row] = {}
    for function in FUNCTIONS:
        for name in _rows_of(function):
            row = found.setdefault(
                (function.section, name), Row(function.section, name, [], function.widths, _granted(function))
            )
            row.types += [each for each in function.types if each not in row.types and _belongs(function, name, each)]
    for probe in PROBES:
        for name in probe.names:
            granted = "" if probe.bound == 0 else f"{probe.bound:g}"
            row = found.setdefault((probe.section, name), Row(probe.section, name, [], (), granted))
            row.types += [each for each in probe.types if each not in row.types]
    return found


def _rows_of(function: Function) -> list[str]:
    if "{T}" in function.name:
        return sorted(names_of(function))
    return [function.name]


def _belongs(function: Function, name: str, type_name: str) -> bool:
    return "{T}" not in function.name or function.name.replace("{T}", type_name) == name


def _granted(function: Function) -> str:
    accuracy = function.accuracy
    bounds = {name: getattr(accuracy, name) for name in ("half", "float") if name in function.types}
    if not any(bounds.values()):
        return ""
    text = ", ".join(f"{name} {bound:g}" for name, bound in bounds.items())
    return text + (f" (fast math {accuracy.fast:g})" if accuracy.fast is not None else "")


def measure(device: mg.Device, table: dict[tuple[str, str], Row], engine: str) -> None:
    """Runs every test on ``device`` and notes the largest error of each type."""
    for fast_math in (True, False):
        for cases in programs(FUNCTIONS, fast_math):
            library = mg.compile(program(cases), device=device, fast_math=fast_math)
            for case in cases:
                _note(table[case.function.section, case.name], engine, _kind(case), case.worst(case.run(library)).error)
    for probe in PROBES:
        error = probe.run(mg.compile(HEADER + probe.source, device=device))
        for name in probe.names:
            _note(table[probe.section, name], engine, "all", error)


def _kind(case: Case) -> str:
    return case.variant.removesuffix("::") or case.type


def _note(row: Row, engine: str, kind: str, error: float) -> None:
    results = row.results.setdefault(engine, {})
    results[kind] = max(results.get(kind, 0.0), error)


def _shown(results: dict[str, float] | None) -> str:
    if results is None:
        return COMPILED
    if not any(results.values()):
        return "exact"
    wanted = {kind: error for kind, error in results.items() if error}
    plain = wanted.get("float")
    # A qualified name is mentioned where it does better or worse than the plain one.
    qualified = ("fast", "precise")
    shown = {
        kind: error for kind, error in wanted.items() if kind not in qualified or f"{error:.2f}" != f"{plain:.2f}"
    }
    return ", ".join(f"{'' if kind == 'all' else kind + ' '}{error:.2f}" for kind, error in shown.items())


def written() -> dict[tuple[str, str], tuple[str, ...]]:
    """The cells of the table as it lies in the documents, by section and name."""
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    section = ""
    if not PATH.exists():
        return found
    sections = {title: name for name, title in TITLES.items()}
    for line in PATH.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = sections.get(line[3:], "")
        elif section and line.startswith("| `"):
            cells = tuple(cell.strip() for cell in line.strip("|").split(" | "))
            found[section, cells[0].strip("` ")] = cells
    return found


def document(table: dict[tuple[str, str], Row], before: dict[tuple[str, str], tuple[str, ...]]) -> str:
    """The page; ``before`` has the cells of the present one, for engines that were not measured."""
    types = {each for row in table.values() for each in row.types}
    lines = [INTRODUCTION.format(names=len({row.name for row in table.values()}), types=len(types), compiled=COMPILED)]
    heads = ["name", "types", "widths", "granted, ulp", *(f"{title}, ulp" for title in ENGINES.values())]
    for section, title in TITLES.items():
        lines += [f"## {title}\n", _line(heads), _line(["---"] * len(heads))]
        for key, row in table.items():
            if key[0] != section:
                continue
            cells = list(row.identity)
            for place, engine in enumerate(ENGINES, len(cells)):
                old = before.get(key, ())
                is_kept = engine not in row.results and place < len(old)
                cells.append(old[place] if is_kept else _shown(row.results.get(engine)))
            lines.append(_line(cells))
        lines.append("")
    lines += ["## Left out\n", _line(["name", "why"]), _line(["---", "---"])]
    lines += [_line([f"`{name}`", reason]) for name, reason in LEFT_OUT.items()]
    return "\n".join(lines) + "\n"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    table = rows()
    for engine in ENGINES:
        for device in [each for each in available_devices() if each.identifier == f"{engine}:0"]:
            measure(device, table, engine)
    text = document(table, written())
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(text, encoding="utf-8")
    print(f"{PATH.name}: {len(written())} names")


if __name__ == "__main__":
    main()
