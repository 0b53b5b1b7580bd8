"""Processes that run modules of this package."""

from __future__ import annotations

import os
import sys


def environment_of_modules(**more: str) -> dict[str, str]:
    """The variables with which a process finds the modules that this one does, and ``more``."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **more}
