"""What programs of Metal that are C++, too, compute by ``g++``; ``host/metal_stdlib`` has what they need for that."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
OPTIONS = ("-std=c++17", "-O0", "-w", "-fsingle-precision-constant", "-fno-strict-aliasing")


def write_parts(folder: Path) -> None:
    """The names of several components of vectors."""
    for width in (2, 3, 4):
        lines = []
        for size in (2, 3, 4):
            for places in itertools.product(range(width), repeat=size):
                name = "".join("xyzw"[place] for place in places)
                lines.append(f"PART({name}, {size}, {', '.join(map(str, places))})\n")
        (folder / f"parts_{width}.h").write_text("".join(lines))


def run_on_host(
    source: str, kernels: Sequence[str], x: np.ndarray, shape: tuple[int, int], folder: Path, *options: str
) -> np.ndarray:
    """What each of ``kernels``, which have ``x``, a result and a thread's position, writes for the ``shape`` of the
    result, threads and numbers of each. Raises ``CalledProcessError`` where the compiler or a program stops."""
    write_parts(folder)
    threads, numbers = shape
    # What a threadgroup shares.
    source = source.replace("\n    threadgroup ", "\n    static ")
    lines = ["#include <cstdio>", source, "int main() {", f"    static int x[{x.size}], y[{threads * numbers}];"]
    lines.append("    if (fread(x, sizeof x, 1, stdin) != 1) return 1;")
    for name in kernels:
        lines += [
            "    memset(y, 0, sizeof y);",
            f"    metal::run_threadgroup({threads}, [](int k) {{ {name}(x, y, k); }});",
            "    fwrite(y, sizeof y, 1, stdout);",
        ]
    (folder / "programs.cpp").write_text("\n".join([*lines, "}\n"]))
    command = ["g++", *OPTIONS, *options, f"-I{HERE / 'host'}", f"-I{folder}", "programs.cpp", "-o", "programs"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    done = subprocess.run([folder / "programs"], input=x.tobytes(), check=True, capture_output=True, timeout=20)
    return np.frombuffer(done.stdout, np.int32).reshape(len(kernels), threads, numbers)
