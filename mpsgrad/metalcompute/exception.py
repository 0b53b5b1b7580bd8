"""The one class of exceptions that metalcompute has."""

from __future__ import annotations


class error(Exception):
    """``metalcompute.error``: the text says what is wrong, in metalcompute's own words where it has them."""

    __module__ = "mpsgrad.metalcompute"
