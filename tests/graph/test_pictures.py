"""``print(graph)`` and ``Graph.draw``: every filter is there, with the extents that its images have."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

import mpsgrad as mg
from mpsgrad.graph.drawing import svg


def make() -> mg.Graph:
    weights = mg.ConvolutionDataSource.from_arrays(np.ones((8, 3, 3, 2), np.float32), np.zeros(8, np.float32))
    first = mg.ConvolutionNode(mg.ImageNode("<pictures>"), weights, label="first & only")
    relu = mg.NeuronReLUNode(first.result_image)
    total = mg.AdditionNode(relu.result_image, first.result_image)
    loss = mg.LossNode(total.result_image, mg.LabelsNode("answers"), descriptor=mg.LossDescriptor("huber"))
    return mg.Graph(loss.training_graph())


SOURCE = mg.ImageDescriptor(width=7, height=5, feature_channels=2, number_of_images=3)
NAMES = [
    "first & only",
    "NeuronReLU",
    "Addition 1",
    "Loss",
    "Addition 1 gradient 1",
    "NeuronReLU gradient",
    "Addition 1 gradient 2",
    "Addition 2",
    "first & only gradient",
]


def test_a_summary_has_a_line_for_each_filter() -> None:
    graph = make()
    lines = str(graph).splitlines()
    assert lines[:3] == [repr(graph), "source image <pictures>: ?", "source state answers: labels"]
    assert sorted(re.split("  +", line)[0] for line in lines[4:-1]) == sorted(NAMES)
    graph.plan([SOURCE])
    lines = str(graph).splitlines()
    assert "source image <pictures>: 3x5x7x2" in lines
    (line,) = [each for each in lines if each.startswith("first & only ")][:1] or [""]
    assert re.split("  +", line) == ["first & only", "ConvolutionNode 3x3", "<pictures>", "3x5x7x8", "152"]
    assert "Addition 2  " in "".join(lines) and "Addition 1 gradient 1, NeuronReLU gradient" in "".join(lines)
    assert "152 parameters, 0.6 KiB" in lines
    assert lines[-1].startswith("memory: ")


def test_a_mermaid_chart_has_every_filter_and_edge() -> None:
    graph = make()
    graph.plan([SOURCE])
    chart = graph.draw()
    boxes = re.findall(r"^        n(\d+)\(?\[\"(.*)<br/>", chart, re.MULTILINE)
    assert sorted(name for _, name in boxes) == sorted(
        ["#lt;pictures#gt;", *(name.replace("&", "#amp;") for name in NAMES)]
    )
    numbers = {name: number for number, name in boxes}
    gradient, state = numbers["first #amp; only gradient"], numbers["first #amp; only"]
    assert f'    n{numbers["#lt;pictures#gt;"]} -->|"3x5x7x2"| n{gradient}' in chart.splitlines()
    assert f"    n{state} -.-> n{gradient}" in chart.splitlines()
    assert chart.index("subgraph forward") < chart.index("subgraph backward") < chart.index("Addition 2")


def test_an_svg_is_well_formed_and_inside_its_frame(tmp_path: Path) -> None:
    graph = make()
    graph.plan([SOURCE])
    path = tmp_path / "graph.svg"
    text = graph.draw(path)
    assert path.read_text() == text
    root = ElementTree.fromstring(text)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    space = "{http://www.w3.org/2000/svg}"
    labels = [element.text for element in root.iter(f"{space}text")]
    assert set(NAMES) | {"<pictures>", "3x5x7x2", "3x5x7x8"} <= set(labels)
    boxes = []
    for group in root.iter(f"{space}g"):
        box = group.find(f"{space}rect")
        assert box is not None
        x, y = float(box.attrib["x"]), float(box.attrib["y"])
        assert 0 <= x <= width - float(box.attrib["width"]) and 0 <= y <= height - float(box.attrib["height"])
        boxes.append((x, y))
    assert len(set(boxes)) == len(boxes) == len(NAMES) + 1


@pytest.mark.parametrize(
    ("label", "in_mermaid", "in_svg"),
    [
        ('a "q" #1; `x`', "a #quot;q#quot; #35;1; #96;x#96;", 'a "q" #1; `x`'),
        ("two\nlines", "two lines", "two lines"),
        ("1. first", "1#46; first", "1. first"),
        ("\x07\x1b[1m", "\ufffd\ufffd[1m", "\ufffd\ufffd[1m"),
        ("7", "7", "7"),
    ],
)
def test_any_label_can_be_drawn_and_printed(label: str, in_mermaid: str, in_svg: str) -> None:
    graph = mg.Graph(mg.NeuronReLUNode(mg.ImageNode(label), label=label))
    graph.plan([SOURCE])
    chart = graph.draw()
    assert f'n0(["{in_mermaid}<br/>source image"])' in chart and f'n1["{in_mermaid}<br/>NeuronReLUNode"]' in chart
    texts = [element.text for element in ElementTree.fromstring(svg(graph)).iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count(in_svg) == 2
    assert len(str(graph).splitlines()) == 6


@pytest.mark.parametrize("length", [20, 40, 300])
def test_long_names_stay_inside_their_boxes(length: int) -> None:
    name = "".join(chr(97 + index % 26) for index in range(length))
    graph = mg.Graph(mg.NeuronReLUNode(mg.ImageNode("x"), label=name))
    (text,) = [
        element
        for element in ElementTree.fromstring(svg(graph)).iter("{http://www.w3.org/2000/svg}text")
        if "".join(element.itertext()).startswith("abcde")
    ]
    (title, shown), size = (text[0].text, text[0].tail) if len(text) else (name, text.text), text.get("font-size", "12")
    assert title == name and shown is not None and (shown == name) == (length < 50)
    assert len(shown) * 0.65 * float(size) <= 210 and float(size) >= 6 and (size == "12") == (length == 20)


def test_other_endings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(mg.FormatError, match=r"graph.png'; the name has to end in .mmd or .svg"):
        make().draw(tmp_path / "graph.png")
