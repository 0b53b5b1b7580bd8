"""``mpsgrad train digits``: a convolutional network learns handwritten digits."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_parser(subparsers: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Declares the subcommand."""
    parser = subparsers.add_parser(
        "train",
        help="train a small convolutional network",
        description="Trains a small convolutional network on scikit-learn's handwritten digits, every step in Metal "
        "kernels, and checks the gradient kernels on its activations.",
    )
    parser.add_argument("data", choices=("digits",), help="the data to learn")
    parser.add_argument("--epochs", type=_positive, default=15, help="passes over the training data (default 15)")
    parser.add_argument("--batch-size", type=_positive, default=32, help="pictures in a step (default 32)")
    parser.add_argument("--seed", type=int, default=0, help="for initial weights and the order of pictures (default 0)")
    parser.add_argument("--device", help="a device such as opencl:0 (default: the default device)")
    parser.add_argument(
        "--output", type=Path, default=Path("runs/digits"), help="the folder to write (default runs/digits)"
    )
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Trains; 1 if a gradient kernel is out of bounds."""
    from rich.console import Console

    from mpsgrad.devices import default_device, find_device, set_default_device
    from mpsgrad.precompile import compile_once
    from mpsgrad.training.loop import train_digits

    device = find_device(arguments.device) if arguments.device else default_device()
    set_default_device(device)
    compile_once(device)
    verifications = train_digits(
        epochs=arguments.epochs,
        batch_size=arguments.batch_size,
        seed=arguments.seed,
        device=device,
        output=arguments.output,
        console=Console(),
    )
    return 0 if all(row.holds for row in verifications) else 1


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is below 1")
    return value
