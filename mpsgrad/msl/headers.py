"""The parts of metal_stdlib that a target lacks: C++ headers, of which a program gets what it names.

They lie in ``include/common`` and ``include/<target>`` and are ordered by file name.

A header is made of sections. A line ``//@ a b c`` starts one and lists the names that call for it; ``//@ a : x y`` adds
that the section itself needs those of ``x`` and ``y``. A name that the target defines otherwise is written with the
suffix ``_mtl``, and the translator renames it in the program too. A section ``//@ *`` belongs to every program.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources

from mpsgrad.msl.diagnostics import RENAMED_SUFFIX


@dataclass(frozen=True, slots=True)
class Section:
    """One section: its place in the order of the headers, what calls for it, what it needs, and its text."""

    order: int
    names: tuple[str, ...]
    needs: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Library:
    """All sections for one target, by name, and the names that carry the suffix."""

    sections: dict[str, tuple[Section, ...]]
    always: tuple[Section, ...]
    renamed: frozenset[str]

    def closure(self, names: Iterable[str]) -> set[str]:
        """``names`` and all that their sections need in turn."""
        todo = [name for section in self.always for name in section.needs]
        todo += [name for name in names if name in self.sections]
        found: set[str] = set()
        while todo:
            name = todo.pop()
            if name not in found:
                found.add(name)
                todo += [needed for section in self.sections.get(name, ()) for needed in section.needs]
        return found

    def prelude(self, names: Iterable[str]) -> str:
        """The text of every section that ``names`` call for, in the order of the headers."""
        chosen = {section.order: section for section in self.always}
        for name in self.closure(names):
            for section in self.sections.get(name, ()):
                chosen[section.order] = section
        return "".join(chosen[order].text for order in sorted(chosen))


@cache
def library(target: str) -> Library:
    """The library for ``target``, read once from the package's headers."""
    include = resources.files("mpsgrad.msl") / "include"
    files = [file for folder in ("common", target) for file in (include / folder).iterdir() if file.name.endswith(".h")]
    texts = [file.read_text(encoding="utf-8") for file in sorted(files, key=lambda file: file.name)]
    sections: dict[str, tuple[Section, ...]] = {}
    always: list[Section] = []
    renamed: set[str] = set()
    order = 0
    for text in texts:
        for block in re.split(r"^//@ ", text, flags=re.MULTILINE)[1:]:
            first, _, body = block.partition("\n")
            listed, _, needed = first.partition(" : ")
            body = re.sub(r"^\s*//.*\n|^\s*\n", "", body, flags=re.MULTILINE)
            section = Section(order, tuple(listed.split()), tuple(needed.split()), body)
            order += 1
            if section.names == ("*",):
                always.append(section)
                continue
            suffixed = set(re.findall(rf"\b(\w+){RENAMED_SUFFIX}\b", block))
            for name in section.names:
                sections[name] = (*sections.get(name, ()), section)
                if name in suffixed:
                    renamed.add(name)
    return Library(sections, tuple(always), frozenset(renamed))
