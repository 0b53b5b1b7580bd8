"""The README's table of results: ``python -m bench.markdown bench/results/cpu.json`` prints it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def table(report: dict[str, Any]) -> str:
    """A Markdown table of a report that ``python -m bench`` wrote."""
    lines = [
        "| op | shape | ms | of copy | GFLOP/s | PyTorch ms | PyTorch / ours | p20-p80 |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in report["rows"]:
        compared = row["ratio"] is not None
        cells = (
            f"`{row['op']}`",
            row["shape"],
            f"{row['median_ms']:.3f}",
            f"{row['fraction_of_copy']:.2f}",
            f"{row['tflops'] * 1e3:.0f}" if row["tflops"] else "",
            f"{row['torch_ms']:.3f}" if compared else "",
            f"**{row['ratio']:.2f}**" if compared else "",
            f"{row['ratio_p20']:.2f}-{row['ratio_p80']:.2f}" if compared else "",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(json.loads(Path(sys.argv[1]).read_text())))
