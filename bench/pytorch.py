"""PyTorch beside the kernels: where its tensors lie, its memory formats, and the settings that are its best."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import mpsgrad as mg
from bench.case import Index, TorchCall
from bench.inputs import RandomArray

DISAGREES = 100.0
"""A result that is further from the exact one than so many times the bound is another function, not rounding."""


def is_installed() -> bool:
    return importlib.util.find_spec("torch") is not None


def counterpart(device: mg.Device) -> Any:
    """The PyTorch device of the same hardware as ``device``; None if there is none."""
    if not is_installed():
        return None
    import torch

    driver, _, index = device.identifier.partition(":")
    if driver == "cuda":
        return torch.device("cuda", int(index)) if torch.cuda.device_count() > int(index) else None
    return torch.device("cpu") if device.family == "cpu" else None


def use_best_settings() -> None:
    """All cores, and the fastest algorithm of cuDNN by trial; float32 is float32."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch.set_num_threads(cores)
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Lets cuDNN round the operands of float32 convolutions to 10 bits inside the block."""
    import torch

    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def layouts(where: Any, *arrays: RandomArray) -> dict[str, list[Any]]:
    """The N x H x W x C ``arrays`` as N x C x H x W tensors in both memory formats."""
    strided = [array.tensor(where).permute(0, 3, 1, 2) for array in arrays]
    return {"NCHW": [each.contiguous() for each in strided], "NHWC": strided}


def matrices(where: Any, *arrays: RandomArray) -> list[Any]:
    """The N x H x W x C ``arrays`` as matrices with a row for each pixel."""
    return [array.tensor(where).reshape(-1, array.shape[3]) for array in arrays]


def as_image(tensor: Any) -> Any:
    """An N x C x H x W tensor in our order of axes."""
    return tensor.permute(0, 2, 3, 1)


def image_result(returned: Any) -> Mapping[str, Any]:
    """``TorchCall.results`` of a call that returns an N x C x H x W tensor, or has it first in a tuple."""
    return {"result": as_image(returned[0] if isinstance(returned, (tuple, list)) else returned)}


def matrix_result(shape: tuple[int, ...], returned: Any) -> Mapping[str, Any]:
    """The same for a matrix with a row for each pixel of an N x H x W x C image of ``shape``."""
    return {"result": returned.reshape(shape)}


def on_images(where: Any, function: Callable[..., Any], *arrays: RandomArray) -> dict[str, TorchCall]:
    """``function`` of the ``arrays`` in each memory format."""
    return {
        layout: TorchCall(function, tuple(tensors), image_result) for layout, tensors in layouts(where, *arrays).items()
    }


def on_matrices(where: Any, function: Callable[..., Any], *arrays: RandomArray) -> dict[str, TorchCall]:
    """``function`` of the ``arrays`` as matrices: NHWC memory with the channels as PyTorch's last axis."""
    results = partial(matrix_result, arrays[0].shape)
    return {"matrix": TorchCall(function, tuple(matrices(where, *arrays)), results)}


def epsilon(tensor: Any) -> float:
    """The distance from 1 to the next number of a tensor's dtype."""
    import torch

    return float(torch.finfo(tensor.dtype).eps)


def read(tensor: Any, index: Index) -> Any:
    """A slice of a tensor as a float64 array."""
    return tensor[index].detach().double().cpu().numpy()
