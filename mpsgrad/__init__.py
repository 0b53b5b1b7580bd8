"""The gradient kernels of Metal Performance Shaders, hand-written in Metal, on Apple GPUs, NVIDIA GPUs and any CPU.

``__init__.pyi`` says what there is. A name's module is imported when the name is first used: an import of the package
with kernels that are compiled already takes a fraction of the time that all modules would.
"""

from typing import Any

import lazy_loader

from mpsgrad.known_attributes import no_such_name
from mpsgrad.precompile import compile_at_import

__version__ = "0.1.0"

_imported, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
_NAMES = frozenset(__all__)


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise no_such_name(__name__, name, _NAMES)
    return _imported(name)


compile_at_import()
