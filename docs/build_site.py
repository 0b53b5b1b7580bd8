"""Writes the documentation as a static site: README.md as the first page, and whatever it and the other pages link to.

``make docs`` runs it: ``python docs/build_site.py site``. Markdown becomes a page, source is shown in colours, a folder
as a list of its files, and pictures are copied. A link to something that does not exist is an error. pdoc makes the
reference of the API of the docstrings.
"""

from __future__ import annotations

import re
import shutil
import sys
import warnings
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

import pdoc
from jinja2 import Template
from markdown_it import MarkdownIt
from markdown_it.token import Token
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_by_name, get_lexer_for_filename
from pygments.util import ClassNotFound

ROOT = Path(__file__).parents[1]
MENU = {
    "README.md": "Overview",
    "docs/tutorial.md": "Tutorial",
    "docs/backward-pass.md": "The backward graph",
    "docs/families.md": "The families of kernels",
    "docs/porting.md": "Porting from Objective-C and Swift",
    "docs/pytorch.md": "For who knows PyTorch",
    "COVERAGE.md": "Coverage of Apple's names",
    "docs/metal-stdlib.md": "Metal's standard library",
    "bench/results/cpu-avx512.md": "Speed on a CPU with AVX-512",
    "bench/results/cpu-avx2.md": "Speed on a CPU with AVX2",
    "bench/results/nvidia-h200.md": "Speed on an H200",
}
"""The pages that every page links to, and what they are called there."""
MODULES = (
    "mpsgrad",
    "mpsgrad.metalcompute",
    "mpsgrad.torch_mps",
    "mpsgrad.mlx_fast",
    "!mpsgrad.graph",
    "!mpsgrad.mps",
)
"""What the reference of the API shows: names of the graph are those of the package, and docs/porting.md has Apple's."""
REFERENCE = PurePosixPath("api/index.html")
PICTURES = (".svg", ".png")
PAGE = Template(
    """\
<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{{ title }} - mpsgrad</title>
<style>
body { margin: 0; font: 16px/1.5 sans-serif; color: #222; display: flex; }
nav { flex: none; width: 15em; height: 100vh; position: sticky; top: 0; padding: 1em; box-sizing: border-box;
      background: #f4f4f6; }
nav a { display: block; margin: .3em 0; color: #333; text-decoration: none; } nav a.here { font-weight: bold; }
main { min-width: 0; max-width: 60em; padding: 1em 2em; }
pre { background: #f8f8f8; padding: .7em; overflow-x: auto; font-size: 85%; line-height: 1.35; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
td, th { border: 1px solid #ccc; padding: .2em .5em; text-align: left; } img { max-width: 100%; }
@media (max-width: 50em) { body { display: block; } nav { position: static; width: auto; height: auto; } }
{{ colours }}
</style>
<nav>{% for link, name, is_here in menu %}<a href="{{ link }}"{% if is_here %} class="here"{% endif %}>{{ name }}</a>
{% endfor %}</nav>
<main>
{{ body }}
</main>
</html>
""",
    autoescape=False,
)


class Site:
    """The pages of ``root``, written to ``folder``."""

    def __init__(self, folder: Path, root: Path = ROOT) -> None:
        self.folder, self.root = folder, root
        self._waiting = [PurePosixPath(each) for each in MENU]
        self._seen = set(self._waiting)
        self._markdown = MarkdownIt("commonmark", {"highlight": self._coloured}).enable("table")

    def write(self) -> int:
        """Writes all pages and returns how many. Raises ``FileNotFoundError`` for a link to nothing."""
        count = 0
        while self._waiting:
            source = self._waiting.pop()
            target = self.folder / self.target(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.suffix in PICTURES:
                shutil.copyfile(self.root / source, target)
                continue
            target.write_text(self._page(source), encoding="utf-8")
            count += 1
        return count

    def write_reference(self, *modules: str) -> None:
        """Writes what the docstrings of modules say, and of those in them; a name with ``!`` leaves a module out."""
        pdoc.render.configure(docformat="restructuredtext", show_source=False)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Error parsing type annotation")  # names imported for type checkers only
            pdoc.pdoc(*modules, output_directory=self.folder / REFERENCE.parent)

    def target(self, source: PurePosixPath) -> PurePosixPath:
        """Where the page of a file or folder lies."""
        if source == PurePosixPath("README.md"):
            return PurePosixPath("index.html")
        if (self.root / source).is_dir():
            return source / "index.html"
        if source.suffix in PICTURES:
            return source
        return source.with_suffix(".html") if source.suffix == ".md" else source.with_name(f"{source.name}.html")

    def _page(self, source: PurePosixPath) -> str:
        path = self.root / source
        title = MENU.get(str(source), source.name)
        if path.is_dir():
            files = sorted(each.name for each in path.iterdir() if each.is_file() and not each.name.startswith("."))
            links = "\n".join(f"* [{name}]({name})" for name in files)
            body = self._rendered(f"# {source}\n\n{links}\n", source / "index.md")
        elif source.suffix == ".md":
            body = self._rendered(path.read_text(encoding="utf-8"), source)
        else:
            body = f"<h1>{source}</h1>\n" + self._coloured(path.read_text(encoding="utf-8"), source.name, "")
        menu = [
            (self._between(source, PurePosixPath(page)), name, page == str(source)) for page, name in MENU.items()
        ]
        menu.append((_relative(REFERENCE, self.target(source).parent), "Reference of the API", False))
        return PAGE.render(title=title, body=body, menu=menu, colours=HtmlFormatter().get_style_defs("pre"))

    def _rendered(self, text: str, source: PurePosixPath) -> str:
        tokens = self._markdown.parse(text)
        used: dict[str, int] = {}
        for index, token in enumerate(tokens):
            if token.type == "heading_open":
                token.attrSet("id", _anchor(_text(tokens[index + 1]), used))
            for child in token.children or ():
                for name in ("href", "src"):
                    if name in child.attrs:
                        child.attrs[name] = self._link(str(child.attrs[name]), source)
        return self._markdown.renderer.render(tokens, self._markdown.options, {})

    def _link(self, link: str, source: PurePosixPath) -> str:
        """The link as the site has it; what it leads to becomes a page, too."""
        parts = urlsplit(link)
        if parts.scheme or not parts.path:
            return link
        path = (self.root / source.parent / unquote(parts.path)).resolve()
        if not path.exists() or not path.is_relative_to(self.root):
            raise FileNotFoundError(f"{source}: links to {link!r}, which does not exist")
        linked = PurePosixPath(path.relative_to(self.root).as_posix())
        if linked not in self._seen:
            self._seen.add(linked)
            self._waiting.append(linked)
        return self._between(source, linked) + (f"#{parts.fragment}" if parts.fragment else "")

    def _between(self, source: PurePosixPath, linked: PurePosixPath) -> str:
        return _relative(self.target(linked), self.target(source).parent)

    def _coloured(self, code: str, name: str, attributes: Any) -> str:
        """``code`` in colours; ``name`` is the language of a block or the name of a file."""
        if code.startswith(">>> "):
            name = "pycon"
        try:
            lexer = get_lexer_for_filename(name) if "." in name else get_lexer_by_name({"metal": "c++"}.get(name, name))
        except ClassNotFound:
            lexer = TextLexer()
        return f"<pre>{highlight(code, lexer, HtmlFormatter(nowrap=True))}</pre>"


def _relative(target: PurePosixPath, folder: PurePosixPath) -> str:
    shared = 0
    for one, other in zip(target.parts[:-1], folder.parts, strict=False):
        if one != other:
            break
        shared += 1
    return "/".join([*[".."] * (len(folder.parts) - shared), *target.parts[shared:]])


def _text(heading: Token) -> str:
    return "".join(child.content for child in heading.children or ())


def _anchor(text: str, used: dict[str, int]) -> str:
    """The name that GitHub gives a heading; a number follows if there were others of that name."""
    name = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
    used[name] = used.get(name, -1) + 1
    return name if not used[name] else f"{name}-{used[name]}"


if __name__ == "__main__":
    site = Site(Path(sys.argv[1]))
    site.write_reference(*MODULES)
    print(f"{site.write()} pages in {site.folder}")
