"""Runs a user's own Metal kernels: ``compile`` gives a library, its functions take NumPy arrays."""

from mpsgrad.runtime.library import KernelFunction, KernelLibrary, KernelRun, compile

__all__ = ["KernelFunction", "KernelLibrary", "KernelRun", "compile"]
