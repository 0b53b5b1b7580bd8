"""The neuron that is fused to a convolution: a kernel of its own behind it, in the same encode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from mpsgrad.command import CommandBuffer
from mpsgrad.image import Image, ImageDescriptor
from mpsgrad.kernel import Regions
from mpsgrad.kernels.convolution_dispatch import ImagePart
from mpsgrad.kernels.neuron import Neuron
from mpsgrad.kernels.neuron_descriptor import NeuronDescriptor


@contextmanager
def result_before(
    neuron: NeuronDescriptor | None, command_buffer: CommandBuffer, destination: Image, regions: Regions
) -> Iterator[ImagePart]:
    """Where the block has to write what ``neuron`` is applied to when it ends, for the result in ``destination``.

    Without a neuron that is ``destination`` itself, else scratch memory: the kernels of neurons compute the last
    elements of a run twice, so that they cannot work in place.
    """
    if neuron is None:
        yield ImagePart(destination.buffer, regions.destination)
        return
    *_, width, height, channels, images = regions.destination
    descriptor = ImageDescriptor(destination.channel_format, width, height, channels, images)
    before = Image(descriptor, destination.device)
    before._buffer = command_buffer.scratch(descriptor.nbytes)
    yield ImagePart(before.buffer, before.layout)
    following = replace(regions, sources=(before.layout,))
    Neuron(neuron, device=destination.device)._dispatch(command_buffer, before, destination, following, None)
