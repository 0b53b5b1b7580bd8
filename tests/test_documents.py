"""The pages of docs/ are run as they stand, and the links of the site lead somewhere."""

from __future__ import annotations

import doctest
import importlib.util
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from mpsgrad.errors import GeometryError

DOCUMENTS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("name", ["tutorial", "backward-pass"])
def test_the_blocks_of_a_page(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = DOCUMENTS / f"{name}.md"
    monkeypatch.chdir(tmp_path)
    parsed = doctest.DocTestParser().get_doctest(page.read_text(), {}, page.name, str(page), 0)
    blocks = page.read_text().count("```python\n>>> ")
    assert blocks == page.read_text().count("```python") > 3 and len(parsed.examples) >= blocks
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(parsed).failed == 0
    for picture in tmp_path.iterdir():
        assert picture.read_text() == (DOCUMENTS / picture.name).read_text(), f"docs/{picture.name} is stale"


class Page(HTMLParser):
    """The links of a page, and the anchors that it has."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("href", "src"):
                self.links.append(value or "")
            elif name == "id":
                self.anchors.add(value or "")


def builder() -> Any:
    """The module that writes the site; skips the test where pdoc, which makes the reference of the API, is missing."""
    pytest.importorskip("pdoc", reason="pdoc, of the extra docs, is not installed")
    spec = importlib.util.spec_from_file_location("build_site", DOCUMENTS / "build_site.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_link_of_the_site_leads_somewhere(tmp_path: Path) -> None:
    module = builder()
    site = module.Site(tmp_path)
    count = site.write()
    pages = {path: Page(path) for path in tmp_path.rglob("*.html")}
    assert len(pages) == count > len(module.MENU)
    site.write_reference("mpsgrad.errors")
    reference = tmp_path / module.REFERENCE
    pages[reference] = Page(reference)
    errors = (tmp_path / "api" / "mpsgrad" / "errors.html").read_text(encoding="utf-8")
    assert 'id="GeometryError"' in errors and str(GeometryError.__doc__).split("\n")[0] in unescape(errors)
    broken = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if parts.scheme:
                continue
            if not target.is_file() or (parts.fragment and parts.fragment not in pages[target].anchors):
                broken.append(f"{path.relative_to(tmp_path)}: {link}")
    assert not broken, broken
    reachable, waiting = set(), [tmp_path / "index.html"]
    while waiting:
        path = waiting.pop()
        if path not in reachable:
            reachable.add(path)
            waiting += [(path.parent / urlsplit(link).path).resolve() for link in pages[path].links if ".html" in link]
    assert reachable == set(pages)
    for document in DOCUMENTS.glob("*.md"):
        assert tmp_path / "docs" / f"{document.stem}.html" in reachable, document.name


def test_a_link_to_nothing_is_named(tmp_path: Path) -> None:
    module = builder()
    for page in module.MENU:
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / page).write_text("# A page\n")
    (tmp_path / "docs" / "tutorial.md").write_text("[gone](../gone.md)\n")
    with pytest.raises(FileNotFoundError, match="docs/tutorial.md: links to '../gone.md', which does not exist"):
        module.Site(tmp_path / "site", tmp_path).write()
