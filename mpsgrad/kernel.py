"""The base classes of every kernel: geometry, validation, allocation of results, and the four encode forms.

A concrete kernel says how many channels it produces, checks what only it knows, and adds its dispatches in
``_dispatch``; everything else happens here, before anything is dispatched.
"""

from mpsgrad.base_kernel import BaseKernel, KernelOptions
from mpsgrad.batch_arguments import require_batch, require_state_batch
from mpsgrad.binary_kernel import BinaryKernel
from mpsgrad.fill import fill_buffer_with_zeros, fill_with_zeros
from mpsgrad.gradient_kernel import GradientKernel
from mpsgrad.kernel_property import (
    CoordinateProperty,
    EdgeModeProperty,
    EnumProperty,
    IntegerProperty,
    OffsetProperty,
    PositionProperty,
    RealProperty,
    RegionProperty,
    SizeProperty,
)
from mpsgrad.regions import WINDOW, Regions, clip_layout, require_first_window, share_memory, source_layout
from mpsgrad.shader import IMAGE_LAYOUT
from mpsgrad.unary_kernel import Kernel

__all__ = [
    "IMAGE_LAYOUT",
    "WINDOW",
    "BaseKernel",
    "BinaryKernel",
    "CoordinateProperty",
    "EdgeModeProperty",
    "EnumProperty",
    "GradientKernel",
    "IntegerProperty",
    "Kernel",
    "KernelOptions",
    "OffsetProperty",
    "PositionProperty",
    "RealProperty",
    "RegionProperty",
    "Regions",
    "SizeProperty",
    "clip_layout",
    "fill_buffer_with_zeros",
    "fill_with_zeros",
    "require_batch",
    "require_first_window",
    "require_state_batch",
    "share_memory",
    "source_layout",
]
