"""Pictures of graphs: Mermaid and SVG, forward filters on the left and backward filters on the right."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from mpsgrad.graph.nodes import FilterNode, GradientFilterNode, ImageNode
from mpsgrad.graph.shapes import source_name
from mpsgrad.graph.structure import Structure
from mpsgrad.graph.summary import shape_texts

if TYPE_CHECKING:
    from mpsgrad.graph.graph import Graph

BOX_WIDTH, BOX_HEIGHT = 210, 40
ROW, COLUMN, MARGIN = 78, 330, 24
BEND = 90
LETTER = 6.2
"""Width of a letter of the small text."""
FONT, SMALLEST_FONT = 12, 6
"""The size of a picture's font, and the smallest that can be read."""
BOLD_LETTER, PLAIN_LETTER = 0.65, 0.58
"""Widths of letters in parts of their font's size."""


@dataclass(frozen=True)
class Edge:
    """An image on its way from ``start`` to ``end``; ``is_state`` for a state."""

    start: FilterNode | ImageNode
    end: FilterNode
    text: str
    is_state: bool


class Picture:
    """The filters and sources of a graph, which of them are backward ones, and what goes from one to another."""

    def __init__(self, graph: Graph) -> None:
        self.structure: Structure = graph._structure
        shapes = shape_texts(graph)
        backward: set[FilterNode] = {node for node in self.structure.filters if isinstance(node, GradientFilterNode)}
        for node in self.structure.filters:
            # Additions of gradients belong to the backward pass.
            if any(image.producer in backward for image in node.source_images):
                backward.add(node)
        self.backward = backward
        self.edges: list[Edge] = []
        for node in self.structure.filters:
            for image in dict.fromkeys(node.source_images):
                self.edges.append(Edge(image.producer or image, node, shapes.get(image, ""), False))
            for state in node.source_states:
                if state.producer is not None:
                    self.edges.append(Edge(state.producer, node, "", True))
        boxes: list[FilterNode | ImageNode] = [*self.structure.sources, *self.structure.filters]
        self.numbers = {each: number for number, each in enumerate(boxes)}
        self.handed_out = {node for node in self.structure.filters if self.structure.is_handed_out(node.result_image)}

    def lines_of(self, each: FilterNode | ImageNode) -> tuple[str, str]:
        """The two lines of text in a box."""
        if isinstance(each, ImageNode):
            return source_name(each, self.structure.sources.index(each)), "source image"
        return self.structure.names[each], each.description


def mermaid(graph: Graph) -> str:
    """A flow chart in Mermaid's language: https://mermaid.js.org."""
    picture = Picture(graph)
    groups: Mapping[str, list[FilterNode | ImageNode]] = {
        "forward": [
            *picture.structure.sources,
            *(node for node in picture.structure.filters if node not in picture.backward),
        ],
        "backward": [node for node in picture.structure.filters if node in picture.backward],
    }
    lines = ["flowchart TB"]
    for name, members in groups.items():
        if not members:
            continue
        lines.append(f"    subgraph {name}")
        for each in members:
            first, second = (_mermaid_text(text) for text in picture.lines_of(each))
            left, right = ("([", "])") if isinstance(each, ImageNode) else ("[", "]")
            lines.append(f'        n{picture.numbers[each]}{left}"{first}<br/>{second}"{right}')
        lines.append("    end")
    for edge in picture.edges:
        start, end = picture.numbers[edge.start], picture.numbers[edge.end]
        text = f'|"{_mermaid_text(edge.text)}"|' if edge.text else ""
        lines.append(f"    n{start} {'-.->' if edge.is_state else '-->'}{text} n{end}")
    for node in picture.handed_out:
        lines.append(f"    style n{picture.numbers[node]} stroke-width:3px")
    return "\n".join(lines) + "\n"


_ENTITIES = str.maketrans(
    {"#": "#35;", "&": "#amp;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "`": "#96;", "*": "#42;"}
)
_LIST_MARK = re.compile(r"^(\d*)([.)+-])(?=\s)")
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _mermaid_text(text: str) -> str:
    """``text`` without what Mermaid takes for the end of a text, an entity, HTML or Markdown."""
    text = _NOT_IN_XML.sub("\ufffd", text).translate(_ENTITIES)
    return _LIST_MARK.sub(lambda mark: f"{mark[1]}#{ord(mark[2])};", text)


def _svg_text(text: str) -> str:
    return escape(_NOT_IN_XML.sub("\ufffd", text))


def svg(graph: Graph) -> str:
    """The same as a picture that needs nothing else."""
    picture = Picture(graph)
    places = _places(picture)
    rows = max(row for _, row in places.values()) + 1
    columns = max(column for column, _ in places.values()) + 1
    width = 2 * MARGIN + (columns - 1) * COLUMN + BOX_WIDTH
    height = 2 * MARGIN + (rows - 1) * ROW + BOX_HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0L8 4L0 8z" fill="#555"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    labels: list[tuple[float, float, float]] = []
    parts += [_svg_edge(edge, places, labels) for edge in picture.edges]
    parts += [_svg_box(each, picture, places[each]) for each in picture.numbers]
    return "\n".join([*parts, "</svg>"]) + "\n"


Places = dict[FilterNode | ImageNode, tuple[float, int]]


def _places(picture: Picture) -> Places:
    """Column and row of each box: a row below everything that a forward filter reads, and beside each forward filter
    those that differentiate it."""
    structure = picture.structure
    rows: dict[FilterNode | ImageNode, int] = dict.fromkeys(structure.sources, 0)
    taken: set[tuple[float, int]] = {(float(index), 0) for index in range(len(structure.sources))}
    places: Places = {source: (float(index), 0) for index, source in enumerate(structure.sources)}
    for node in structure.filters:
        if node in picture.backward:
            continue
        above = [rows[image.producer or image] for image in node.source_images]
        rows[node] = max(above, default=-1) + 1
        column = 0.0
        while (column, rows[node]) in taken:
            column += 1
        places[node] = (column, rows[node])
        taken.add(places[node])
    first = max((column for column, _ in places.values()), default=-1.0) + 1
    # Gradients go up: an addition lies below what reads it, at the filter whose result's gradient it is.
    for node in structure.filters:
        if node not in picture.backward:
            continue
        if isinstance(node, GradientFilterNode):
            row = rows.get(node.inference_node, 0)
        else:
            row = max(min(places[image.producer][1] for image in node.source_images if image.producer in places) - 1, 0)
        column = first
        while (column, row) in taken:
            column += 1
        places[node] = (column, row)
        taken.add(places[node])
    return places


def _corner(place: tuple[float, int]) -> tuple[float, float]:
    return MARGIN + place[0] * COLUMN, MARGIN + place[1] * ROW


def _svg_box(each: FilterNode | ImageNode, picture: Picture, place: tuple[float, int]) -> str:
    x, y = _corner(place)
    first, second = picture.lines_of(each)
    fill = "#eef6ff" if each not in picture.backward else "#fff1e6"
    if isinstance(each, ImageNode):
        fill = "#f2f2f2"
    stroke = 2.5 if each in picture.handed_out else 1
    middle = x + BOX_WIDTH / 2
    (size, first), (small, second) = _fitted(first, FONT, BOLD_LETTER), _fitted(second, 11, PLAIN_LETTER)
    return (
        f'<g><rect x="{x:g}" y="{y:g}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6" fill="{fill}" stroke="#555" '
        f'stroke-width="{stroke}"/>'
        f'<text x="{middle:g}" y="{y + 16:g}" text-anchor="middle" font-weight="bold"{size}>{first}</text>'
        f'<text x="{middle:g}" y="{y + 32:g}" text-anchor="middle"{small} fill="#444">{second}</text>'
        "</g>"
    )


def _fitted(text: str, size: float, letter: float) -> tuple[str, str]:
    """An attribute and the text as it fits into a box: in ``size``, or in a smaller font if it is long.

    A letter's width is ``letter`` times that of the font. What would be too small to be read loses its middle; the
    whole is shown where the pointer rests on it.
    """
    room = BOX_WIDTH - 8
    longest = int(room / (letter * SMALLEST_FONT))
    shown, title = text, ""
    if len(text) > longest:
        shown, title = f"{text[: longest // 2]}\u2026{text[-(longest // 2 - 1) :]}", f"<title>{_svg_text(text)}</title>"
    fitting = min(size, int(10 * room / (letter * max(len(shown), 1))) / 10)
    return f' font-size="{fitting:g}"' if fitting != FONT else "", f"{title}{_svg_text(shown)}"


def _svg_edge(edge: Edge, places: Places, labels: list[tuple[float, float, float]]) -> str:
    """A curve from one box to the other: down, up, or across, by where they lie.

    Its label stays clear of the earlier ``labels``: their middles and half their widths.
    """
    (x0, y0), (x1, y1) = _corner(places[edge.start]), _corner(places[edge.end])
    column0, column1 = places[edge.start][0], places[edge.end][0]
    is_next = abs(places[edge.start][1] - places[edge.end][1]) == 1
    if is_next and not edge.is_state and (column0 == column1 or y1 > y0):
        down = y1 > y0
        # What crosses over leaves and meets boxes apart from what goes straight down or up.
        aside = (column1 > column0) * BOX_WIDTH / 3
        start = (x0 + BOX_WIDTH / 2 + aside, y0 + (BOX_HEIGHT if down else 0))
        end = (x1 + BOX_WIDTH / 2 - aside, y1 + (0 if down else BOX_HEIGHT))
        lean = (end[1] - start[1]) / 3
        controls = ((start[0], start[1] + lean), (end[0], end[1] - lean))
    else:
        right = column1 >= column0
        height = BOX_HEIGHT * (0.5 if edge.is_state else 0.75)
        start = (x0 + (BOX_WIDTH if right else 0), y0 + height)
        end = (x1 + (BOX_WIDTH if column1 == column0 or not right else 0), y1 + height)
        reach = BEND if column1 == column0 else (end[0] - start[0]) / 2
        controls = ((start[0] + reach, start[1]), (end[0] + (reach if column1 == column0 else -reach), end[1]))
    points = " ".join(f"{x:g} {y:g}" for x, y in (*controls, end))
    dashes = ' stroke-dasharray="4 3"' if edge.is_state else ""
    path = f'<path d="M{start[0]:g} {start[1]:g}C{points}" fill="none" stroke="#555" marker-end="url(#arrow)"{dashes}/>'
    if not edge.text:
        return path
    x = (start[0] + 3 * controls[0][0] + 3 * controls[1][0] + end[0]) / 8
    y = (start[1] + 3 * controls[0][1] + 3 * controls[1][1] + end[1]) / 8
    half = LETTER * len(edge.text) / 2
    while any(abs(x - other) < half + width and abs(y - height) < 14 for other, height, width in labels):
        y += 14
    labels.append((x, y, half))
    return (
        f'{path}<rect x="{x - half:g}" y="{y - 8:g}" width="{2 * half:g}" height="14" fill="white" '
        'fill-opacity="0.85"/>'
        f'<text x="{x:g}" y="{y + 3:g}" text-anchor="middle" font-size="10" fill="#333">{_svg_text(edge.text)}</text>'
    )
