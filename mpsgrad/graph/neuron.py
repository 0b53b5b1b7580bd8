"""Nodes of neurons, and of their gradient."""

from __future__ import annotations

from typing import Any

from mpsgrad.graph.nodes import GradientFilterNode, ImageNode, UnaryNode
from mpsgrad.graph.setting import Setting, settings_of
from mpsgrad.kernels import neuron
from mpsgrad.kernels.neuron_descriptor import NeuronDescriptor, NeuronType
from mpsgrad.kernels.neuron_gradient import NeuronGradient


class NeuronGradientNode(GradientFilterNode):
    """``NeuronGradient``, of any neuron. Source: ``MPSCNNNeuronGradientNode``."""

    kernel_class = NeuronGradient
    arguments = ("neuron_descriptor",)

    @property
    def neuron_descriptor(self) -> NeuronDescriptor:
        """That of the forward node."""
        return self.inference_node.neuron_descriptor  # type: ignore[attr-defined]


class NeuronNode(UnaryNode):
    """``Neuron``: the function of ``neuron_descriptor`` of each element. Source: ``MPSCNNNeuronNode``."""

    kernel_class = neuron.Neuron
    gradient_class = NeuronGradientNode
    neuron_descriptor = Setting()

    # objc: -initWithSource:descriptor:
    def __init__(self, source: ImageNode, neuron_descriptor: NeuronDescriptor, **others: Any) -> None:
        super().__init__(source, neuron_descriptor=neuron_descriptor, **others)

    @property
    def description(self) -> str:
        return f"{type(self).__name__} {self.neuron_descriptor.neuron_type.name}"


class NamedNeuronNode(UnaryNode):
    """The base of the nodes of one function; ``a``, ``b`` and ``c`` are its parameters in ``NeuronDescriptor``."""

    gradient_class = NeuronGradientNode

    @property
    def neuron_descriptor(self) -> NeuronDescriptor:
        """The function with its parameters. Raises what ``NeuronDescriptor`` raises if they do not fit."""
        parameters = {name: getattr(self, name) for name in settings_of(type(self))}
        return NeuronDescriptor(self.kernel_class._type, **parameters)


class NeuronAbsoluteNode(NamedNeuronNode):
    """``NeuronAbsolute``. Source: ``MPSCNNNeuronAbsoluteNode``."""

    kernel_class = neuron.NeuronAbsolute


class NeuronELUNode(NamedNeuronNode):
    """``NeuronELU``. Source: ``MPSCNNNeuronELUNode``."""

    kernel_class = neuron.NeuronELU
    a = Setting(1.0)


class NeuronExponentialNode(NamedNeuronNode):
    """``NeuronExponential``. Source: ``MPSCNNNeuronExponentialNode``."""

    kernel_class = neuron.NeuronExponential
    a = Setting(1.0)
    b = Setting(0.0)
    c = Setting(-1.0)


class NeuronHardSigmoidNode(NamedNeuronNode):
    """``NeuronHardSigmoid``. Source: ``MPSCNNNeuronHardSigmoidNode``."""

    kernel_class = neuron.NeuronHardSigmoid
    a = Setting(0.2)
    b = Setting(0.5)


class NeuronLinearNode(NamedNeuronNode):
    """``NeuronLinear``. Source: ``MPSCNNNeuronLinearNode``."""

    kernel_class = neuron.NeuronLinear
    a = Setting(1.0)
    b = Setting(0.0)


class NeuronLogarithmNode(NamedNeuronNode):
    """``NeuronLogarithm``. Source: ``MPSCNNNeuronLogarithmNode``."""

    kernel_class = neuron.NeuronLogarithm
    a = Setting(1.0)
    b = Setting(0.0)
    c = Setting(-1.0)


class NeuronPowerNode(NamedNeuronNode):
    """``NeuronPower``. Source: ``MPSCNNNeuronPowerNode``."""

    kernel_class = neuron.NeuronPower
    a = Setting(1.0)
    b = Setting(0.0)
    c = Setting(1.0)


class NeuronReLUNode(NamedNeuronNode):
    """``NeuronReLU``. Source: ``MPSCNNNeuronReLUNode``."""

    kernel_class = neuron.NeuronReLU
    a = Setting(0.0)


class NeuronReLUNNode(NamedNeuronNode):
    """``NeuronReLUN``. Source: ``MPSCNNNeuronReLUNNode``."""

    kernel_class = neuron.NeuronReLUN
    a = Setting(1.0)
    b = Setting(6.0)


class NeuronSigmoidNode(NamedNeuronNode):
    """``NeuronSigmoid``. Source: ``MPSCNNNeuronSigmoidNode``."""

    kernel_class = neuron.NeuronSigmoid


class NeuronSoftPlusNode(NamedNeuronNode):
    """``NeuronSoftPlus``. Source: ``MPSCNNNeuronSoftPlusNode``."""

    kernel_class = neuron.NeuronSoftPlus
    a = Setting(1.0)
    b = Setting(1.0)


class NeuronSoftSignNode(NamedNeuronNode):
    """``NeuronSoftSign``. Source: ``MPSCNNNeuronSoftSignNode``."""

    kernel_class = neuron.NeuronSoftSign


class NeuronTanHNode(NamedNeuronNode):
    """``NeuronTanH``. Source: ``MPSCNNNeuronTanHNode``."""

    kernel_class = neuron.NeuronTanH
    a = Setting(1.0)
    b = Setting(1.0)


class NeuronPReLUNode(NamedNeuronNode):
    """``NeuronPReLU`` with the slopes ``data``, one for each channel. Source: ``MPSCNNNeuronPReLUNode``."""

    kernel_class = neuron.NeuronPReLU
    data = Setting()


class NeuronGeLUNode(NeuronNode):
    """``Neuron`` of type GELU. Source: ``MPSCNNNeuronGeLUNode``."""

    def __init__(self, source: ImageNode, **others: Any) -> None:
        super().__init__(source, NeuronDescriptor(NeuronType.GELU), **others)
