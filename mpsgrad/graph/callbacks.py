"""Callbacks that supply a factor of a node's kernel each time it is encoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from mpsgrad.errors import FormatError
from mpsgrad.geometry import real
from mpsgrad.graph.nodes import FilterNode
from mpsgrad.image import Image
from mpsgrad.state import State


class GramMatrixCallback:
    """Supplies ``alpha`` of a Gram matrix: subclass it, or offer the same method. Source: ``MPSNNGramMatrixCallback``.
    """

    # objc: -alphaForSourceImage:destinationImage:
    def alpha_for_source_image(self, source_image: Image, destination_image: Image) -> float:
        """The factor of this encode. Neither image has its contents yet; their extents are known."""
        raise NotImplementedError(f"{type(self).__name__} has to define alpha_for_source_image")


class LossCallback:
    """Supplies the weight of a loss: subclass it, or offer the same method. Source: ``MPSNNLossCallback``."""

    # objc: -scalarWeightForSourceImage:destinationImage:
    def scalar_weight_for_source_image(self, source_image: Image, destination_image: Image) -> float:
        """The weight of this encode. Neither image has its contents yet; their extents are known."""
        raise NotImplementedError(f"{type(self).__name__} has to define scalar_weight_for_source_image")


class NodeWithCallback(FilterNode):
    """A node whose ``property_call_back`` is asked for a factor each time it is encoded.

    ``callback_property`` is the property of the kernel that the factor is.
    """

    callback_class: ClassVar[type]
    callback_method: ClassVar[str]
    callback_property: ClassVar[str]
    _property_call_back: Any = None

    @property
    def property_call_back(self) -> Any:
        """Supplies the factor in place of the node's own; None, as at first, for nobody.

        It is asked when a graph is encoded: replays of a recorded encode keep the factor. Raises ``FormatError`` when
        set to something without the callback's method.
        """
        return self._property_call_back

    @property_call_back.setter
    def property_call_back(self, callback: Any) -> None:
        if callback is not None and not callable(getattr(callback, self.callback_method, None)):
            raise FormatError(
                f"{type(self).__name__}: property_call_back is {callback!r}, which has no {self.callback_method}; it "
                f"has to be a {self.callback_class.__name__} or None"
            )
        self._property_call_back = callback

    @property
    def _own_factor(self) -> float:
        """The factor that counts where nobody supplies one."""
        raise NotImplementedError

    def encode(
        self,
        command_buffer: Any,
        kernels: Sequence[Any],
        images: Sequence[Image],
        states: Sequence[State],
        makes_state: bool,
    ) -> tuple[Image | None, State | None]:
        asked = self._asked(kernels[0], images[0])
        factor = self._own_factor if asked is None else asked
        if getattr(kernels[0], self.callback_property) != factor:
            setattr(kernels[0], self.callback_property, factor)
        return super().encode(command_buffer, kernels, images, states, makes_state)

    def _asked(self, kernel: Any, source_image: Image) -> float | None:
        """What the callback gives for the encode of ``kernel`` that follows, or None without one.

        Raises ``FormatError`` or ``GeometryError`` if that is no finite number.
        """
        if self._property_call_back is None:
            return None
        ask = getattr(self._property_call_back, self.callback_method)
        factor = ask(source_image, kernel.destination_image_allocator.handed)
        return real(repr(self), f"{type(self._property_call_back).__name__}.{self.callback_method}", factor)
