"""A graph as a table that people can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mpsgrad.graph.memory import bytes_text
from mpsgrad.graph.nodes import GradientFilterNode, ImageNode
from mpsgrad.graph.shapes import source_name

if TYPE_CHECKING:
    from mpsgrad.graph.graph import Graph


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: frozenset[int] = frozenset()) -> str:
    """Columns as wide as their longest entry; those of ``right`` are set to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = []
    for row in (header, *rows):
        cells = [
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def parameter_count(kernels: Sequence[Any]) -> int:
    """How many numbers the data source of a forward kernel trains."""
    kernel = kernels[0]
    if hasattr(kernel, "export_weights_and_biases"):
        weights, biases = kernel.weights_and_biases
        return int(np.size(weights) + (0 if biases is None else np.size(biases)))
    return 2 * kernel.number_of_feature_channels if hasattr(kernel, "reload_gamma_and_beta_from_data_source") else 0


def shape_texts(graph: Graph) -> Mapping[ImageNode, str]:
    """The extents of images, as in the last plan; none before it."""
    plan = graph.last_plan
    return {} if plan is None else {image: shape.shape_text for image, shape in plan.shapes.of.items()}


def summary(graph: Graph) -> str:
    """A line for each filter: its name, what it is, what it reads and computes, and how many parameters it has."""
    structure, shapes = graph._structure, shape_texts(graph)
    names = {image: source_name(image, index) for index, image in enumerate(structure.sources)}
    names |= {node.result_image: structure.names[node] for node in structure.filters}
    rows, total = [], 0
    for node in structure.filters:
        count = 0 if isinstance(node, GradientFilterNode) else parameter_count(graph._kernels[node])
        total += count
        rows.append(
            (
                structure.names[node],
                node.description,
                ", ".join(names[image] for image in node.source_images),
                shapes.get(node.result_image, "?"),
                f"{count:,}" if count else "",
            )
        )
    lines = [repr(graph)]
    for index, source in enumerate(structure.sources):
        lines.append(f"source image {source_name(source, index)}: {shapes.get(source, '?')}")
    for index, state in enumerate(structure.source_states):
        lines.append(f"source state {source_name(state, index)}: labels")
    lines.append(table(("filter", "kind", "reads", "result", "parameters"), rows, frozenset({4})))
    lines.append(f"{total:,} parameters, {bytes_text(4 * total)}")
    if graph.last_plan is not None:
        lines.append(f"memory: {graph.last_plan.memory}")
    return "\n".join(lines)
