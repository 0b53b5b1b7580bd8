"""The kernels, one module for each family."""

import importlib
import pkgutil
from functools import cache


@cache
def import_all() -> None:
    """Imports every module, which makes all kernel classes, shader families and archivable classes known."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
