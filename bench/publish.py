"""Makes what is shown of the committed results: ``python -m bench.publish``.

For each ``bench/results/NAME.json`` its plots and ``NAME.md`` with every op and every row, and in the README a table of
all by families of ops, and a picture of each with the training steps of ``bench/results/training/NAME.json``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from bench import markdown
from bench.plots import write_plots

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results"
README = ROOT / "README.md"
BEGIN, END = "<!-- made by python -m bench.publish -->\n", "<!-- end -->\n"
BEGIN_SCORES = "<!-- scores, made by python -m bench.publish -->\n"
TRAINING = "training"
"""The folder of the reports of ``bench.training``, which have the same names."""
CAPTIONS = {
    "ratios": "PyTorch's time over ours, op by op: above 1 is faster, each dot is a shape.",
    "roofline": "The rate of each row over the operations that it does for a byte; the lines are what memory and "
    "multiply-adds allow.",
    "scan": "How fast sizes are moved: ours, and dotted PyTorch's.",
}
"""What the plots show, by the end of their names."""


def reports(folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """The committed reports by name, those of GPUs first."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    return dict(sorted(found.items(), key=lambda item: item[1]["hardware"] == "cpu"))


def readme_section(folder: Path = RESULTS) -> str:
    """What stands between ``BEGIN`` and ``END`` in the README."""
    found = reports(folder)
    dates = "; ".join(f"{each['device']}: {each['date']}" for each in found.values())
    parts = [
        f"PyTorch's time over ours: its geometric mean over the shapes of the pictures below, and the lowest. {dates}.",
        "",
        markdown.by_family(list(found.values())),
        "",
    ]
    for name, report in found.items():
        path = f"bench/results/{name}"
        parts += [f"### {report['device']}", "", f"{markdown.conditions(report)} {markdown.score(report)}", ""]
        parts += [f"![{CAPTIONS['ratios']}]({path}-ratios.svg)", ""]
        parts += [f"{CAPTIONS['ratios']} [Every op and every row]({path}.md).", ""]
        trained = folder / TRAINING / f"{name}.json"
        if trained.is_file():
            parts += [markdown.training(json.loads(trained.read_text())), ""]
    return "\n".join(parts)


def scores(folder: Path = RESULTS) -> str:
    """What stands between ``BEGIN_SCORES`` and ``END`` in the README."""
    return f"{markdown.scores(reports(folder).values())} [The tables](#speed) say of each slower row why.\n"


def with_section(readme: str, section: str, beginning: str = BEGIN) -> str:
    """The README with ``section`` between ``beginning`` and ``END``; raises ``ValueError`` if it has none."""
    before, begin, rest = readme.partition(beginning)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the README has no lines {beginning.strip()!r} and {END.strip()!r}")
    return f"{before}{begin}{section}{end}{after}"


def published(readme: str) -> str:
    """The README with everything in it that comes from the results."""
    return with_section(with_section(readme, scores(), BEGIN_SCORES), readme_section())


def page(name: str, report: dict[str, Any], folder: Path = RESULTS) -> str:
    """``NAME.md``, with the plots that lie beside it."""
    plots = {f"{name}-{kind}.svg": caption for kind, caption in CAPTIONS.items()}
    return markdown.full(report, {plot: caption for plot, caption in plots.items() if (folder / plot).is_file()})


def main() -> int:
    for name, report in reports().items():
        for path in write_plots(report, RESULTS, name):
            print(path.relative_to(ROOT))
        (RESULTS / f"{name}.md").write_text(page(name, report))
    README.write_text(published(README.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
