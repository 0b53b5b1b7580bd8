"""docs/families.md shows a picture for each family, drawn of the references."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

DOCUMENTS = Path(__file__).parents[1] / "docs"


def test_the_page_shows_every_picture_and_they_can_be_drawn() -> None:
    spec = importlib.util.spec_from_file_location("draw_families", DOCUMENTS / "draw_families.py")
    assert spec is not None and spec.loader is not None
    drawing: Any = importlib.util.module_from_spec(spec)
    sys.modules["draw_families"] = drawing
    spec.loader.exec_module(drawing)
    families = [make() for make in drawing.FAMILIES]
    shown = (DOCUMENTS / "families.md").read_text(encoding="utf-8")
    assert shown == drawing.page(families), "docs/families.md is stale: run make docs"
    assert {path.stem for path in (DOCUMENTS / "families").glob("*.svg")} == {each.name for each in families}
    figure = families[0].draw()
    assert len(figure.axes) == 4
    drawing.plt.close(figure)
