"""Writes COVERAGE.md, docs/porting.md and mpsgrad/mps/__init__.pyi from the manifest of Apple's names and the code.

``make docs`` runs it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from apple_calls import objective_c, ours, ours_by_apple_names, swift
from apple_stubs import stubs

import mpsgrad
from mpsgrad.mps.classes import ours_of
from mpsgrad.mps.manifest import SECTIONS, Declaration, Member, Status, declarations, own_names

ROOT = Path(__file__).parents[2]
SIGNS = {
    Status.DONE: "✅",
    Status.DIFFERENT: "🔶",
    Status.UNAVAILABLE: "⛔",
    Status.CONSTRUCTION: "🚧",
    Status.NOT_PLANNED: "➖",
}
COVERAGE = """\
# Coverage of Metal Performance Shaders

Made by `make docs` from [the manifest](mpsgrad/mps/manifest) and the code: change those, not this page.

Every class, property, method and constant that the headers of MPS declare for convolutional networks, up to macOS 13
and iOS 16, and what becomes of it in `mpsgrad.mps`:

| | | |
|---|---|---|
| ✅ | done | does what MPS does; tests check that each call fits, and run kernels by Apple's names |
| 🔶 | different | can be used; the row says what is different |
| ⛔ | unavailable in MPS | Apple forbids the inherited method: calling it raises `NotImplementedError` here too |
| 🚧 | under construction | raises `NotImplementedError` |
| ➖ | not planned | raises `NotImplementedError`; the row says why, and what to use instead |

Where the numbers differ from MPS although the names agree, the class's docstring says so.

"""
PORTING = """\
# Porting from Objective-C and Swift

Made by `make docs` from [the manifest](../mpsgrad/mps/manifest): change that, not this page.

`mpsgrad.mps` has Apple's classes under Apple's names, so that a program can be carried over line by line.
Each is a subclass of the class with Python's names, the last column, and both may be mixed. What differs:

* The name of a method is the first part of its selector. The first argument is given by position, all others by
  their labels. In Swift's case these are the labels of Objective-C, which this table gives side by side.
* `alloc` falls away: methods that make an object are called on the class.
* What MPS gives back through a pointer (`destinationState:&state`) is a second result: `image, state = ...`.
* Buffers that the CPU reads (`gradientForWeights`) are float32 arrays, which wait for the command buffer.
* Results are regular images, not temporary ones: set `destinationImageAllocator` to
  `MPSTemporaryImage.defaultAllocator()` for those.
* What MPS declares as a method is one, and has parentheses: `state.gamma()` of batch normalization, of which Python's
  names have a property.
* Data sources, padding policies and allocators of your own derive from the protocol of that name and define the
  methods that MPS asks for; arrays stand where MPS takes pointers. What has no arguments may be a method or a value.
* `copied`, `prefetch_storage`, methods for bytes of images like `read_bytes`, those of `MPSCommandBuffer`, and what
  stands for deprecated methods of convolutions are in the last column, but only classes by Apple's names have them.
  Without these `archive.from_bytes(archive.to_bytes(kernel))` copies a kernel, `np.asarray(image)` reads an image and
  `image.write(array)` writes one.
* How to make nodes that share a base, as those of pooling do, is said for one of them.
* `NSKeyedArchiver` is `archive.to_bytes(kernel)`, whose bytes `initWithCoder` takes, or `archive.save` and
  `archive.load`.
* Where numbers differ, as those of weights, which MPS rounds to float16, [the README](../README.md#what-there-is)
  says it.
* A name that cannot be used raises `NotImplementedError` with the reason that [COVERAGE.md](../COVERAGE.md) gives.

Metal's part: `MTLCreateSystemDefaultDevice()`, `MTLCommandQueue(device)` with `commandBuffer()`, and command buffers
with `commit()`, `waitUntilCompleted()`, `addCompletedHandler(handler)`, `status`, `error` and
`gpu_time`, which is `GPUEndTime` less `GPUStartTime`; `MTLSizeMake`,
`MTLOriginMake`, `MTLRegionMake2D`, `MTLRegionMake3D`, `NSMakeRange`, `MPSRectNoClip`; and the functions on batches, or
lists, of images and states, `MPSImageBatchIncrementReadCount` and its like. Constants have Apple's names:
`MPSCNNNeuronTypeReLU`, `MTLStorageModePrivate`.

"""


def coverage() -> str:
    """COVERAGE.md."""
    lines = [COVERAGE]
    lines.append(_row(["part", "classes", *(f"{sign} {status.value}" for status, sign in SIGNS.items())]))
    lines.append(_row(["---", *["---:"] * (1 + len(SIGNS))]))
    totals: Counter[Status] = Counter()
    classes = 0
    for section, title in SECTIONS.items():
        here = _declarations(section)
        counts = Counter(member.status for each in here for member in _own_members(each))
        anchor = title.lower().replace(",", "").replace(" ", "-")
        lines.append(_row([f"[{title}](#{anchor})", str(len(here)), *(str(counts[status] or "") for status in SIGNS)]))
        totals += counts
        classes += len(here)
    lines.append(_row(["**all**", f"**{classes}**", *(f"**{totals[status]}**" for status in SIGNS)]))
    for section, title in SECTIONS.items():
        lines.append(f"\n## {title}\n")
        for declaration in _declarations(section):
            lines += _class_rows(declaration)
    return "\n".join([*lines, *_own()]) + "\n"


def _class_rows(declaration: Declaration) -> list[str]:
    kind = "protocol " if declaration.is_protocol else ""
    python = f" is `{declaration.python}`" if declaration.python and declaration.status.is_callable else ""
    since = f", macOS {declaration.since.replace(' / ', ', iOS ')}" if declaration.since else ""
    reason = f"{declaration.status.value}: {declaration.reason}" if declaration.reason else ""
    head = f"{SIGNS[declaration.status]} {kind}<b>{declaration.name}</b>{python.replace('`', '')}{since}"
    members = _own_members(declaration)
    counts = Counter(member.status for member in members)
    told = ", ".join(f"{counts[status]} {status.value}" for status in SIGNS if counts[status])
    if not declaration.status.is_callable:
        return [f"- {head}: {reason}"]
    if not members:
        return [f"- {head}"]
    rows = [
        _row([SIGNS[member.status], f"`{member.declaration.partition(' -> ')[0]}`", _here(declaration, member)])
        for member in members
    ]
    summary = f"<details><summary>{head} ({told})</summary>\n"
    return [summary, "| | MPS | here |", "|---|---|---|", *rows, "\n</details>\n"]


def _here(declaration: Declaration, member: Member) -> str:
    if not member.status.is_callable:
        return member.reason
    if declaration.is_enumeration:
        return f"`{member.annotations['value']}`"
    call = "" if "kept" in member.annotations else f"`{member.call(ours_of(declaration))}`"
    return "; ".join(filter(None, (call, member.reason)))


def _own() -> list[str]:
    lines = ["\n## What mpsgrad adds\n", "Classes without a name of Apple's:\n", "| class | |", "|---|---|"]
    return lines + [_row([f"`{name}`", reason]) for name, reason in own_names()["classes"].items()]


def porting() -> str:
    """docs/porting.md."""
    lines = [PORTING]
    for section, title in SECTIONS.items():
        rows = []
        for declaration in _declarations(section):
            if declaration.status.is_callable and not declaration.is_protocol and not declaration.is_enumeration:
                of_class = [member for member in _own_members(declaration) if _is_ported(member)]
                rows += [_calls(_shown(declaration, member), member) for member in of_class]
        if rows:
            lines += [f"## {title}\n", "| Objective-C | Swift | `mpsgrad.mps` | `mpsgrad` |", "|---|---|---|---|"]
            lines += [*dict.fromkeys(rows), ""]
    return "\n".join(lines)


def _shown(declaration: Declaration, member: Member) -> Declaration:
    """The class of a row: the first that derives from it, where that only says how to make nodes."""
    cls = ours_of(declaration) or object
    if not member.is_constructor or not issubclass(cls, mpsgrad.FilterNode) or hasattr(cls, "kernel_class"):
        return declaration
    return next(each for each in declarations().values() if each.extends == declaration.name)


def _is_ported(member: Member) -> bool:
    return member.status.is_callable and member.is_method and "Coder" not in member.selector


def _calls(declaration: Declaration, member: Member) -> str:
    writers: tuple[Callable[[Declaration, Member], str], ...] = (objective_c, swift, ours_by_apple_names, ours)
    return _row([f"`{write(declaration, member)}`" for write in writers])


def _declarations(section: str) -> list[Declaration]:
    return [each for each in declarations().values() if each.section == section]


def _own_members(declaration: Declaration) -> list[Member]:
    return [member for member in declaration.members if "inherited" not in member.annotations]


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


PAGES: dict[Path, Callable[[], str]] = {
    ROOT / "COVERAGE.md": coverage,
    ROOT / "docs" / "porting.md": porting,
    ROOT / "mpsgrad" / "mps" / "__init__.pyi": stubs,
}


def main() -> None:
    for path, page in PAGES.items():
        path.write_text(page(), encoding="utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
