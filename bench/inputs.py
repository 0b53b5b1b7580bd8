"""Arrays, images and PyTorch tensors that hold the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpsgrad import Device, Image


def random_array(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    """Normally distributed values."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(dtype)


def image(array: np.ndarray, device: Device) -> Image:
    return Image.from_array(array, device)


def torch_tensors(*arrays: np.ndarray) -> list[Any] | None:
    """Copies of ``arrays`` as tensors; None without PyTorch."""
    try:
        import torch
    except ImportError:
        return None
    return [torch.from_numpy(np.array(a)) for a in arrays]


def torch_layouts(*arrays: np.ndarray) -> dict[str, list[Any]]:
    """The N x H x W x C ``arrays`` as N x C x H x W tensors in both memory formats; empty without PyTorch."""
    tensors = torch_tensors(*arrays)
    if tensors is None:
        return {}
    import torch

    strided = [t.permute(0, 3, 1, 2) for t in tensors]
    return {
        "NCHW": [t.contiguous() for t in strided],
        "NHWC": [t.contiguous(memory_format=torch.channels_last) for t in strided],
    }


def torch_matrices(*arrays: np.ndarray) -> dict[str, list[Any]]:
    """The N x H x W x C ``arrays`` as matrices with a row for each pixel; empty without PyTorch."""
    tensors = torch_tensors(*arrays)
    return {"matrix": [t.reshape(-1, t.shape[3]) for t in tensors]} if tensors is not None else {}
