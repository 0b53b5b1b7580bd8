"""The memory plan: no image is overwritten while somebody still reads it, and memory is shared well."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from residual_network import residual_network

import mpsgrad as mg
from mpsgrad.graph.memory import _ORDERS, Lifetime, MemoryPlan, _narrowest_gap, _placed, plan_memory


def require_sound(graph: mg.Graph, source: mg.ImageDescriptor) -> MemoryPlan:
    """Runs the steps of the plan with names in place of values: each read has to find every byte that it wants."""
    plan = graph.plan([source])
    alignment = graph.device.part_alignment or 1
    written: dict[mg.ImageNode, tuple[int, int, int]] = {}
    renamed: dict[mg.ImageNode, mg.ImageNode] = {}
    for step in plan.steps:
        if step.passes_on is not None:
            renamed[step.result] = renamed.get(step.passes_on, step.passes_on)
            continue
        images = [(renamed.get(image, image), reads) for image, reads in step.sources]
        made = step.result
        for image, reads in images:
            if reads and (producer := image.producer) is not None and has_planned_memory(plan, image):
                assert image in written, f"{step.node} reads what {producer} wrote, but it was overwritten"
        if step.planned is None:
            continue
        buffer, start = plan.memory.places[step.planned]
        end = start + plan.shapes.of[made].nbytes
        assert start % alignment == 0 and end <= plan.memory.buffer_sizes[buffer]
        for image, (other, first, last) in list(written.items()):
            if other == buffer and first < end and start < last:
                assert image not in [each for each, reads in images if reads], f"{step.node} writes to what it reads"
                del written[image]
        written[made] = buffer, start, end
    return plan.memory


def has_planned_memory(plan: Any, image: mg.ImageNode) -> bool:
    return any(step.planned is not None and step.result is image for step in plan.steps)


def random_graph(seed: int, count: int) -> mg.Graph:
    """A training graph of ``count`` forward filters that read what is there, some of it many times."""
    random = np.random.default_rng(seed)
    images = [(mg.ImageNode("x"), 4)]

    def some() -> tuple[mg.ImageNode, int]:
        return images[int(random.integers(max(0, len(images) - 4), len(images)))]

    for _ in range(count):
        (image, channels), (other, others) = some(), some()
        kind = random.integers(6)
        node: Any
        if kind == 0:
            made = int(random.integers(1, 9))
            weights = random.standard_normal((made, 1, 1, channels)).astype(np.float32)
            node = mg.ConvolutionNode(image, mg.ConvolutionDataSource.from_arrays(weights))
            channels = made
        elif kind == 1 and channels + others < 64:
            node = mg.ConcatenationNode([image, other])
            channels += others
        elif kind == 2:
            node = mg.MultiplicationNode(image, image)
        elif kind == 3 and channels == others:
            node = mg.AdditionNode(image, other)
        else:
            node = (mg.NeuronTanHNode if kind == 4 else mg.SoftMaxNode)(image)
        images.append((node.result_image, channels))
    last = mg.ConcatenationNode([image for image, _ in images[-3:]])
    last.result_image.export_from_graph = bool(random.integers(2))
    loss = mg.LossNode(last.result_image, descriptor=mg.LossDescriptor("mean_squared_error"))
    return mg.Graph(loss.training_graph(), results_are_needed=bool(random.integers(2)))


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 30))
def test_no_image_is_overwritten_before_its_last_read(seed: int, count: int) -> None:
    descriptor = mg.ImageDescriptor(width=3, height=2, feature_channels=4)
    report = require_sound(random_graph(seed, count), descriptor)
    assert report.largest_live_bytes <= report.planned_bytes <= report.bytes_without_reuse


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 20), st.integers(0, 20)), max_size=25),
    st.booleans(),
    st.sampled_from([4, 20, 1000]),
)
def test_images_that_live_at_the_same_time_share_no_byte(
    drawn: list[tuple[int, int, int]], divides: bool, largest: int
) -> None:
    lifetimes = [Lifetime(str(i), size, min(a, b), max(a, b)) for i, (size, a, b) in enumerate(drawn)]
    plan = plan_memory(lifetimes, divides_buffers=divides, largest_buffer=largest)
    for step in range(21):
        owners: dict[tuple[int, int], int] = {}
        for index, each in enumerate(lifetimes):
            if each.first <= step <= each.last:
                buffer, offset = plan.places[index]
                assert 0 <= offset <= plan.buffer_sizes[buffer] - each.nbytes
                for byte in range(offset, offset + each.nbytes):
                    assert owners.setdefault((buffer, byte), index) == index
        assert len(owners) <= plan.largest_live_bytes
    assert plan.largest_live_bytes <= plan.planned_bytes <= plan.bytes_without_reuse
    if divides:
        assert all(size <= max(largest, 9) for size in plan.buffer_sizes)
    else:
        assert all(offset == 0 for _, offset in plan.places)


def test_images_lie_next_to_each_other_where_another_one_was() -> None:
    sizes = (8, 4, 4, 4)
    lifetimes = [Lifetime("large", 8, 0, 0), *(Lifetime(str(i), 4, 1, 2) for i in range(2)), Lifetime("last", 4, 2, 3)]
    plan = plan_memory(lifetimes, divides_buffers=True, largest_buffer=100)
    assert plan.buffer_sizes == (12,) and plan.planned_bytes == plan.largest_live_bytes
    whole = plan_memory(lifetimes, divides_buffers=False, largest_buffer=100)
    assert sorted(whole.buffer_sizes) == [4, 4, 8] and plan.bytes_without_reuse == sum(sizes)


def test_an_image_takes_the_smallest_place_that_fits() -> None:
    at_first = Lifetime("large", 8, 0, 0), Lifetime("small", 4, 0, 0)
    plan = plan_memory([*at_first, Lifetime("later", 4, 1, 1)], divides_buffers=False, largest_buffer=100)
    assert plan.places[2] == plan.places[1]
    assert _narrowest_gap([(4, 6), (8, 10)], 2) == 6
    assert _narrowest_gap([(4, 6), (8, 10)], 3) == 0
    assert _narrowest_gap([(4, 6), (8, 10)], 5) == 10


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9), st.integers(0, 4)), min_size=4, max_size=12))
@settings(max_examples=100)
def test_the_best_order_to_place_images_in_is_kept(drawn: list[tuple[int, int, int]]) -> None:
    lifetimes = tuple(Lifetime("", nbytes, first, first + steps) for nbytes, first, steps in drawn)
    conflicts = [[k for k, other in enumerate(lifetimes) if each.overlaps(other)] for each in lifetimes]
    found = []
    for key in _ORDERS:
        order = sorted(range(len(lifetimes)), key=lambda index: key(lifetimes[index]), reverse=True)
        found.append(_placed(order, lifetimes, conflicts, 1 << 20).planned_bytes)
    plan = plan_memory(lifetimes, divides_buffers=True, largest_buffer=1 << 20)
    assert plan.planned_bytes == min(found)


def test_a_buffer_for_an_image_above_the_limit_serves_later_ones_too() -> None:
    lifetimes = Lifetime("large", 9, 0, 0), Lifetime("later", 6, 1, 1)
    assert plan_memory(lifetimes, divides_buffers=True, largest_buffer=4).buffer_sizes == (9,)


def test_a_residual_network_needs_less_than_half_the_memory() -> None:
    """An eighth of the channels of ResNet-18: nothing is computed, and the shares are those of the whole one."""
    graph = mg.Graph(residual_network(width=8, classes=10).training_graph(), results_are_needed=False)
    pictures = mg.ImageDescriptor(width=224, height=224, feature_channels=3, number_of_images=64)
    report = require_sound(graph, pictures)
    assert report.bytes_without_reuse > 2 * report.planned_bytes
    if graph.device.part_alignment is not None:
        assert report.planned_bytes == report.largest_live_bytes
    text = str(report)
    assert f"{report.planned_bytes / 2**20:.1f} MiB" in text
    assert f"{report.bytes_without_reuse / report.planned_bytes:.1f} times" in text


@pytest.mark.parametrize("is_first", [True, False])
def test_an_image_that_filters_pass_on_and_on_is_kept_for_its_last_reader(is_first: bool) -> None:
    """The gradient of a sum of sums, in both orders of the terms."""
    x = mg.ImageNode()
    total = mg.NeuronTanHNode(x).result_image
    for _ in range(3):
        term = mg.NeuronTanHNode(x).result_image
        total = mg.AdditionNode(*((total, term) if is_first else (term, total))).result_image
    graph = mg.Graph(mg.LossNode(total, descriptor=mg.LossDescriptor("mean_squared_error")).training_graph())
    passing = [step for step in graph.plan([mg.ImageDescriptor(width=3, height=3)]).steps if step.passes_on is not None]
    assert len(passing) == 6
    require_sound(graph, mg.ImageDescriptor(width=3, height=3))


def test_memory_is_kept_from_encode_to_encode() -> None:
    node = mg.NeuronTanHNode(mg.NeuronReLUNode(mg.NeuronReLUNode(mg.ImageNode()).result_image).result_image)
    graph = mg.Graph(node)
    small, large = (mg.Image.from_array(np.ones((n, 4, 4, 4), np.float32)) for n in (1, 8))
    kept = []
    for image in (small, small, large, small):
        with mg.CommandBuffer() as commands:
            result = graph.encode(commands, [image])
        np.testing.assert_allclose(np.asarray(result), np.tanh(1), rtol=1e-6)
        kept.append(list(graph._memory._buffers))
    assert kept[0] == kept[1] != kept[2] == kept[3]
    assert graph._memory.nbytes == 2 * 2048


@pytest.mark.parametrize("nbytes", [0, 1000, 3 << 20, 5 << 30])
def test_reports_are_read_by_people(nbytes: int) -> None:
    lifetimes = [Lifetime("first", nbytes, 0, 3), Lifetime("second", nbytes, 4, 5)]
    text = str(plan_memory(lifetimes, divides_buffers=True, largest_buffer=6 << 30))
    unit = {0: "0.0 KiB", 1000: "1.0 KiB", 3 << 20: "3.0 MiB", 5 << 30: "5.0 GiB"}[nbytes]
    assert f"2 images in 1 buffer, {unit}" in text
