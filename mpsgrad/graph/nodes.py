"""The nodes that graphs are made of: images, states, and the filters between them."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from mpsgrad.checked_attribute import CheckedAttribute, EnumAttribute, Label
from mpsgrad.command import CommandBuffer
from mpsgrad.devices import Device
from mpsgrad.errors import FormatError, GeometryError
from mpsgrad.geometry import flag
from mpsgrad.graph.setting import settings_of, take_settings
from mpsgrad.image import FeatureChannelFormat, Image, ImageDescriptor, require_allocator
from mpsgrad.known_attributes import KnownAttributes
from mpsgrad.padding import SAME, Padding, require_padding
from mpsgrad.state import State


class TrainingStyle(enum.IntEnum):
    """Where a graph has the parameters of a node updated. Source: ``MPSNNTrainingStyle``.

    With NONE they are frozen: no gradients for them are computed.
    """

    UPDATE_DEVICE_NONE = 0
    UPDATE_DEVICE_CPU = 1
    UPDATE_DEVICE_GPU = 2


def handle_text(handle: Any) -> str:
    """The ``label`` of a handle, or the handle as text, in one line."""
    label = getattr(handle, "label", None)
    return " ".join((label if isinstance(label, str) else str(handle)).split())


_SYNCHRONIZE = "Kept for ported code: reads on the CPU wait and copy by themselves."


class ImageNode(KnownAttributes):
    """A place for an image in a graph. Source: ``MPSNNImageNode``.

    One that no filter produces is a source of the graph. ``handle`` is any object, mostly a text; it says which image
    is meant where a graph lists its images.
    """

    format = EnumAttribute(
        FeatureChannelFormat.NONE,
        "NONE for the ``format`` of the graph. A filter's result starts with that of its first source.",
    )
    image_allocator = CheckedAttribute(
        None,
        lambda owner, name, value: None if value is None else require_allocator(owner, name, value),
        "Makes the image instead of the graph, which otherwise plans its memory.",
    )
    export_from_graph = CheckedAttribute(
        False, flag, "Whether the image is among the intermediate images of encodes."
    )
    synchronize_resource = CheckedAttribute(False, flag, _SYNCHRONIZE)
    stop_gradient = CheckedAttribute(
        False, flag, "Whether ``training_graph`` ends here: nothing before this image gets a gradient."
    )

    def __init__(self, handle: Any = None) -> None:
        self.handle = handle
        self.producer: FilterNode | None = None
        """The filter whose result this is."""

    # objc: +exportedNodeWithHandle:
    @classmethod
    def exported(cls, handle: Any = None) -> ImageNode:
        """A node with ``export_from_graph`` set."""
        node = cls(handle)
        node.export_from_graph = True
        return node

    def __repr__(self) -> str:
        name = f" {handle_text(self.handle)!r}" if self.handle is not None else ""
        of = f" of {self.producer!r}" if self.producer is not None else ""
        return f"<ImageNode{name}{of}>"


class StateNode(KnownAttributes):
    """A place for a state in a graph: what a filter leaves for its gradient. Source: ``MPSNNStateNode``.

    Filters make them; labels, which are sources of a graph, are ``LabelsNode``.
    """

    export_from_graph = CheckedAttribute(
        False, flag, "Whether the state is among the destination states of encodes."
    )
    synchronize_resource = CheckedAttribute(False, flag, _SYNCHRONIZE)

    def __init__(self, handle: Any = None) -> None:
        self.handle = handle
        self.producer: FilterNode | None = None
        """The filter that makes the state."""

    def __repr__(self) -> str:
        name = f" {handle_text(self.handle)!r}" if self.handle is not None else ""
        of = f" of {self.producer!r}" if self.producer is not None else ""
        return f"<{type(self).__name__}{name}{of}>"


class GradientStateNode(StateNode):
    """The state of a filter with one source image. Source: ``MPSNNGradientStateNode``."""


class BinaryGradientStateNode(StateNode):
    """The state of a filter with two source images. Source: ``MPSNNBinaryGradientStateNode``."""


class MultiaryGradientStateNode(StateNode):
    """The state of a filter with any number of source images. Source: ``MPSNNMultiaryGradientStateNode``."""


class LabelsNode(StateNode):
    """The ``LossLabels`` of a loss: a source state of the graph. Source: ``MPSNNLabelsNode``."""


NodeHandler = Callable[["FilterNode", "FilterNode | None", ImageNode, ImageNode], Any]
"""Called with a new node of the backward pass, the forward node that it belongs to, the image whose gradient it
computes, and the gradient that it starts from. The second is None for additions. Source: ``MPSGradientNodeBlock``."""


class FilterNode(KnownAttributes):
    """A kernel in a graph, with the nodes of its sources and results. Source: ``MPSNNFilterNode``.

    ``label`` names it in messages, summaries and pictures. What kernels are made with are further arguments and
    attributes, by the names that the kernels have. Nothing is computed before a ``Graph`` is made and encoded.
    """

    label = Label()
    kernel_class: ClassVar[Any]
    state_class: ClassVar[type[StateNode] | None] = GradientStateNode
    default_padding: ClassVar[Padding] = SAME

    def __init__(
        self,
        source_images: Sequence[ImageNode],
        *,
        padding_policy: Padding | None = None,
        label: str | None = None,
        **settings: Any,
    ) -> None:
        self._require_filter()
        self.label = label
        self.source_images: tuple[ImageNode, ...] = tuple(source_images)
        """What the filter reads, in the kernel's order. May be set anew to wire the filter otherwise."""
        for index, image in enumerate(self.source_images):
            if not isinstance(image, ImageNode):
                hint = "; pass its result_image" if isinstance(image, FilterNode) else ""
                raise FormatError(
                    f"{type(self).__name__}: source image {index} is {type(image).__name__}; it has to be an ImageNode"
                    f"{hint}"
                )
        self.source_states: tuple[StateNode, ...] = ()
        """The states that the filter reads."""
        take_settings(self, settings)
        self.padding_policy = self.default_padding if padding_policy is None else padding_policy
        self.result_image = ImageNode()
        """The image that the filter computes."""
        if self.source_images:
            self.result_image.format = self.source_images[0].format
        self.result_image.producer = self
        self.result_state: StateNode | None = None
        """The state that the filter makes if a gradient node reads it or it is exported."""
        if self.state_class is not None:
            self.result_state = self.state_class()
            self.result_state.producer = self

    @classmethod
    def _names_of_settings(cls) -> Iterable[str]:
        return settings_of(cls)

    def _require_filter(self) -> None:
        """Raises ``NotImplementedError`` if the class is the base of others and says itself nothing to compute."""
        made = type(self)
        if hasattr(made, "kernel_class") or made.make_kernels is not FilterNode.make_kernels:
            return
        known = ", ".join(each.__name__ for each in made.__subclasses__() if hasattr(each, "kernel_class"))
        raise NotImplementedError(
            f"{made.__name__}: is the base of other nodes and computes nothing itself"
            + (f"; make one of {known}" if known else "")
        )

    @property
    def result_states(self) -> tuple[StateNode, ...]:
        """``result_state`` as a list of one, or none."""
        return () if self.result_state is None else (self.result_state,)

    @property
    def padding_policy(self) -> Padding:
        """What sizes the result. Raises ``FormatError`` when set to something that is no policy."""
        return self._padding_policy

    @padding_policy.setter
    def padding_policy(self, policy: Padding) -> None:
        self._padding_policy = require_padding(type(self).__name__, policy)

    # objc: -gradientFilterWithSource:
    # objc: -gradientFilterWithSources:
    def gradient_filter(self, source: ImageNode | Sequence[ImageNode]) -> GradientFilterNode:
        """The node of the gradient with respect to the source image.

        ``source`` is the gradient with respect to ``result_image``, or a list with it alone. Raises
        ``NotImplementedError`` if the filter has no gradient, or one for each of several images.
        """
        made = self._gradient_nodes(self._one_source(source), is_singular=True)
        if len(made) != 1:
            raise NotImplementedError(
                f"{self!r}: gradient_filter, but it has a gradient for each of its {len(made)} source images; call "
                "gradient_filters"
            )
        return made[0]

    # objc: -gradientFiltersWithSource:
    # objc: -gradientFiltersWithSources:
    def gradient_filters(self, source: ImageNode | Sequence[ImageNode]) -> list[GradientFilterNode]:
        """The nodes of the gradients with respect to the source images, in their order.

        Arguments and errors are those of ``gradient_filter``.
        """
        return self._gradient_nodes(self._one_source(source), is_singular=False)

    def _one_source(self, source: Any) -> ImageNode:
        if isinstance(source, Sequence) and not isinstance(source, str):
            if len(source) != 1:
                raise GeometryError(f"{self!r}: {len(source)} gradients are given but the filter has 1 result")
            (source,) = source
        if not isinstance(source, ImageNode):
            hint = "; pass its result_image" if isinstance(source, FilterNode) else ""
            raise FormatError(f"{self!r}: source is {type(source).__name__}; it has to be an ImageNode{hint}")
        return source

    def _gradient_nodes(self, source: ImageNode, is_singular: bool) -> list[GradientFilterNode]:
        """The gradient nodes; ``is_singular`` if only one is asked for."""
        raise NotImplementedError(f"{self!r}: has no gradient")

    @property
    def has_gradient(self) -> bool:
        """Whether ``gradient_filters`` gives nodes."""
        return type(self)._gradient_nodes is not FilterNode._gradient_nodes

    # objc: -trainingGraphWithSourceGradient:nodeHandler:
    def training_graph(
        self, source_gradient: ImageNode | None = None, node_handler: NodeHandler | None = None
    ) -> list[FilterNode]:
        """Makes the gradient nodes of this filter and of all before it; returns the last ones.

        ``source_gradient`` is the gradient with respect to ``result_image``. Without it ``result_image`` is itself the
        gradient with respect to the source image, as that of a ``LossNode`` is. The gradients of an image that several
        filters read are added up by further nodes. The pass ends at images without a producer, at images with
        ``stop_gradient``, and at filters without a gradient. The list is empty if there was nothing to make.

        ``node_handler`` is called for each node that is made. The default gives each gradient the handle of its image.
        """
        from mpsgrad.graph.training import training_graph

        return training_graph(self, source_gradient, node_handler)

    def make_kernels(self, device: Device, forward: Sequence[Any]) -> list[Any]:
        """New kernels, the one that writes the result first. ``forward`` are those of a gradient's forward node."""
        settings = settings_of(type(self))
        kernel = self.kernel_class(
            **{name: getattr(self, name) for name, setting in settings.items() if not setting.of_kernel},
            device=device,
            label=self.label,
        )
        for name, setting in settings.items():
            if setting.of_kernel:
                setattr(kernel, name, getattr(self, name))
        kernel.padding = self.padding_policy
        return [kernel]

    def result_descriptor(
        self, kernels: Sequence[Any], images: Sequence[Image], shapes: Mapping[ImageNode, ImageDescriptor]
    ) -> ImageDescriptor:
        """The descriptor of the result for ``images``, whose contents are not looked at; raises if they do not fit.

        ``shapes`` has the descriptors of all images before this filter.
        """
        kernels[0]._validate(*images)
        return kernels[0].destination_image_descriptor(images)

    def check_states(self, kernels: Sequence[Any], images: Sequence[Image], states: Sequence[Any]) -> None:
        """Raises if the graph's source states do not fit ``images``, whose contents are not looked at."""

    def encode(
        self,
        command_buffer: CommandBuffer,
        kernels: Sequence[Any],
        images: Sequence[Image],
        states: Sequence[State],
        makes_state: bool,
    ) -> tuple[Image | None, State | None]:
        """Adds the filter's work to ``command_buffer``; returns the result and, with ``makes_state``, the state."""
        made = kernels[0].encode(command_buffer, *images, return_state=makes_state)
        return made if makes_state else (made, None)

    def passed_on(self, shapes: Mapping[ImageNode, ImageDescriptor]) -> ImageNode | None:
        """The source image that has every bit of the result, if there is one: the filter need not run then."""
        return None

    def reads_values(self, index: int) -> bool:
        """Whether the filter reads the elements of source image ``index``, and not only its extents."""
        return True

    @property
    def description(self) -> str:
        """What the filter is, in short: ``ConvolutionNode 3x3``."""
        return type(self).__name__

    def __repr__(self) -> str:
        return f"<{type(self).__name__}{f' {self.label!r}' if self.label else ''}>"


class UnaryNode(FilterNode):
    """A filter with one source image."""

    gradient_class: ClassVar[type[GradientFilterNode] | None] = None

    def __init__(
        self, source: ImageNode, *, padding_policy: Padding | None = None, label: str | None = None, **settings: Any
    ) -> None:
        super().__init__((source,), padding_policy=padding_policy, label=label, **settings)

    @property
    def has_gradient(self) -> bool:
        return self.gradient_class is not None

    def _gradient_nodes(self, source: ImageNode, is_singular: bool) -> list[GradientFilterNode]:
        if self.gradient_class is None or self.result_state is None:
            return super()._gradient_nodes(source, is_singular)
        image = self.result_image if self.gradient_class.takes_the_result else self.source_images[0]
        return [self.gradient_class(source, image, self.result_state)]


class GradientFilterNode(FilterNode):
    """A filter that computes a gradient. Source: ``MPSNNGradientFilterNode``.

    Its sources are the gradient with respect to the forward result, an image of the forward pass, and the forward
    filter's state. Gradients of gradients do not exist: ``gradient_filter`` and ``gradient_filters`` raise
    ``NotImplementedError``.
    """

    state_class = None
    takes_the_result: ClassVar[bool] = False
    """Whether the image of the forward pass is the forward filter's result."""
    arguments: ClassVar[tuple[str, ...]] = ()
    """Arguments of the kernel that are attributes of the forward kernel."""
    properties: ClassVar[tuple[str, ...]] = ()
    """Properties that are set to those of the forward kernel."""
    reads_source_image: ClassVar[bool] = True
    """Whether the elements of the image of the forward pass are read, or only its extents."""

    def __init__(
        self,
        source_gradient: ImageNode,
        source_image: ImageNode,
        gradient_state: StateNode,
        *,
        label: str | None = None,
    ) -> None:
        super().__init__((source_gradient, source_image), label=label)
        if not isinstance(gradient_state, StateNode) or gradient_state.producer is None:
            raise FormatError(
                f"{type(self).__name__}: gradient_state is {gradient_state!r}; it has to be the result_state of a "
                "filter"
            )
        forward, known = gradient_state.producer, self.kernel_class.forward_kernels
        if forward.kernel_class.__name__ not in known:
            raise FormatError(
                f"{type(self).__name__}: gradient_state is that of {forward!r}; it has to be that of a node for "
                f"{' or '.join(known)}"
            )
        self.source_states = (gradient_state,)
        self.inference_node: FilterNode = forward
        """The forward filter."""

    @property
    def inference_source(self) -> ImageNode:
        """The forward filter's source image whose gradient this is."""
        return self.inference_node.source_images[0]

    def _gradient_nodes(self, source: ImageNode, is_singular: bool) -> list[GradientFilterNode]:
        raise NotImplementedError(f"{self!r}: gradients of gradients do not exist")

    @property
    def has_gradient(self) -> bool:
        return False

    def make_kernels(self, device: Device, forward: Sequence[Any]) -> list[Any]:
        kernel = self.kernel_class(
            **{name: getattr(forward[0], name) for name in self.arguments}, device=device, label=self.label
        )
        for name in self.properties:
            setattr(kernel, name, getattr(forward[0], name))
        return [kernel]

    def result_descriptor(
        self, kernels: Sequence[Any], images: Sequence[Image], shapes: Mapping[ImageNode, ImageDescriptor]
    ) -> ImageDescriptor:
        made, gradient = shapes[self.inference_node.result_image], images[0]
        if made.shape != gradient.shape:
            raise GeometryError(
                f"the gradient is {gradient.descriptor.shape_text} but the result of {self.inference_node!r} is "
                f"{made.shape_text}"
            )
        return replace(shapes[self.inference_source], channel_format=gradient.channel_format)

    def encode(
        self,
        command_buffer: CommandBuffer,
        kernels: Sequence[Any],
        images: Sequence[Image],
        states: Sequence[State],
        makes_state: bool,
    ) -> tuple[Image | None, State | None]:
        return kernels[0].encode(command_buffer, *images, *states), None

    def reads_values(self, index: int) -> bool:
        return index == 0 or self.reads_source_image


class GradientOfOneImageNode(GradientFilterNode):
    """The base of gradients of filters of two images, for one of them.

    ``is_secondary_source_filter`` says whether the gradient is that of the secondary image.
    """

    # objc: -initWithSourceGradient:sourceImage:gradientState:isSecondarySourceFilter:
    def __init__(
        self,
        source_gradient: ImageNode,
        source_image: ImageNode,
        gradient_state: StateNode,
        *,
        is_secondary_source_filter: bool,
        label: str | None = None,
    ) -> None:
        super().__init__(source_gradient, source_image, gradient_state, label=label)
        self.is_secondary_source_filter = flag(
            type(self).__name__, "is_secondary_source_filter", is_secondary_source_filter
        )

    @property
    def inference_source(self) -> ImageNode:
        return self.inference_node.source_images[self.is_secondary_source_filter]
