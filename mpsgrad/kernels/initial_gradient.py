"""The gradient that a backward pass begins with."""

from __future__ import annotations

from typing import Any

from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Device
from mpsgrad.image import Image
from mpsgrad.kernel import Kernel, Regions
from mpsgrad.kernels.neuron import Neuron
from mpsgrad.kernels.neuron_descriptor import NeuronDescriptor, NeuronType
from mpsgrad.kernels.neuron_dispatch import add_neuron
from mpsgrad.kernels.pointwise import Operand


class InitialGradient(Kernel):
    """An image of ones of the size of the source: the gradient of a loss image with respect to itself.

    Source: ``MPSNNInitialGradient``.
    """

    remembers_encodes = True

    # objc: -initWithDevice:
    def __init__(self, *, device: Device | None = None, label: str | None = None) -> None:
        super().__init__(device=device, label=label)
        self._neuron = Neuron(NeuronDescriptor(NeuronType.LINEAR, 0.0, 1.0), device=self.device)

    def _dispatch(
        self, command_buffer: CommandBuffer, source: Image, destination: Image, regions: Regions, state: Any
    ) -> None:
        beyond = Operand(regions.sources[0], dx=regions.sources[0][4])
        operands = [(source, beyond)]
        add_neuron(self._neuron, command_buffer, "neuron_linear", destination, regions.destination, operands)
