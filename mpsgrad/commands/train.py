"""``mpsgrad train``: a convolutional network learns pictures."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from mpsgrad.devices import Device
    from mpsgrad.training.graph_network import GraphNetwork

DESCRIPTION = """\
mpsgrad train digits
  trains a small convolutional network on scikit-learn's handwritten digits, every step in Metal kernels, and checks the
  gradient kernels on its activations.

mpsgrad train --model MODEL --data DATA
  trains a model of graph nodes, with checkpoints: a run that was stopped goes on with --resume, to the same bits.

MODEL is digits (that of "train digits"), lenet, resnet18 (for small pictures, as those of CIFAR), or a Python file with
a function

    build(pictures, shape, classes, generator)

that makes the nodes of a network from the ImageNode pictures and returns the last one, whose result has a score for
each class. shape is height, width and channels of a picture, generator a numpy.random.Generator for initial weights.

DATA is
  digits      scikit-learn's handwritten digits
  idx:DIR     MNIST's four files, such as train-images-idx3-ubyte, also with .gz
  cifar:DIR   the binary files of CIFAR-10 or CIFAR-100, also with .gz
  npz:FILE    a NumPy archive of x_train, y_train, x_test and y_test
"""

LARGEST_FLOAT = (2.0 - 2.0**-23) * 2.0**127

_OF_MODELS = ("optimizer", "learning_rate", "schedule", "precision", "resume", "checkpoint_steps", "tensorboard")
"""The options that ``mpsgrad train digits`` does not take."""


def add_parser(subparsers: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Declares the subcommand."""
    parser = subparsers.add_parser(
        "train",
        help="train a convolutional network",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("short_form", nargs="?", choices=("digits",), metavar="digits", help="see above")
    parser.add_argument("--model", help="see above")
    parser.add_argument("--data", help="see above")
    parser.add_argument("--optimizer", choices=("sgd", "adam", "rmsprop"), help="(default sgd, with momentum 0.9)")
    parser.add_argument(
        "--learning-rate", type=_rate, help="of the first step (default 0.05 for sgd, 0.001 for the others)"
    )
    parser.add_argument(
        "--schedule",
        choices=("cosine", "constant", "step"),
        help="how the learning rate falls: to 0 along half a cosine, not at all, or to a tenth at one half and again "
        "at three quarters of the run (default cosine)",
    )
    parser.add_argument("--epochs", type=_positive, default=15, help="passes over the training data (default 15)")
    parser.add_argument("--batch-size", type=_positive, default=32, help="pictures in a step (default 32)")
    parser.add_argument(
        "--seed", type=_seed, default=0, help="for initial weights and the order of pictures (default 0)"
    )
    parser.add_argument(
        "--precision",
        choices=("float32", "mixed"),
        help="mixed keeps images in float16 and parameters in float32, and scales the loss (default float32)",
    )
    parser.add_argument("--device", help="a device such as opencl:0 (default: the default device)")
    parser.add_argument(
        "--output", type=Path, help="the folder to write (default runs/digits, or runs/MODEL-DATA)"
    )
    parser.add_argument(
        "--resume", action="store_true", default=None, help="go on from the last checkpoint in --output"
    )
    parser.add_argument(
        "--checkpoint-steps", type=_positive, metavar="N", help="a checkpoint each N steps, not only after each epoch"
    )
    parser.add_argument(
        "--tensorboard", action="store_true", default=None, help="log to --output/tensorboard (needs tensorboardX)"
    )
    parser.set_defaults(usage_error=parser.error)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Trains; 1 if a gradient kernel is out of bounds."""
    has_model = arguments.model is not None and arguments.data is not None
    given = [name for name in ("model", "data", *_OF_MODELS) if getattr(arguments, name) is not None]
    if arguments.short_form and given:
        arguments.usage_error(f"--{given[0].replace('_', '-')} is for --model and --data, not for 'train digits'")
    if not arguments.short_form and not has_model:
        arguments.usage_error("either 'train digits', or both --model and --data")

    from mpsgrad.devices import default_device, find_device, set_default_device

    device = find_device(arguments.device) if arguments.device else default_device()
    set_default_device(device)
    return _train(arguments, device)


def _train(arguments: argparse.Namespace, device: Device) -> int:
    from rich.console import Console

    from mpsgrad.training.optimizers import OPTIMIZERS
    from mpsgrad.training.run import Settings, train

    optimizer = arguments.optimizer or "sgd"
    settings = Settings(
        model=arguments.model or arguments.short_form,
        data=arguments.data or arguments.short_form,
        optimizer=optimizer,
        learning_rate=arguments.learning_rate or OPTIMIZERS[optimizer].learning_rate,
        schedule=arguments.schedule or "cosine",
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
        seed=arguments.seed,
        precision=arguments.precision or "float32",
    )
    name = arguments.short_form or f"{Path(settings.model).stem}-{settings.data.partition(':')[0]}"
    console = Console()
    try:
        network = train(
            settings,
            device=device,
            output=arguments.output or Path("runs") / name,
            console=console,
            resumes=bool(arguments.resume),
            checkpoint_steps=arguments.checkpoint_steps,
            tensorboard=bool(arguments.tensorboard),
            keeps_checkpoints=not arguments.short_form,
        )
    except KeyboardInterrupt:
        if arguments.short_form:
            raise
        raise KeyboardInterrupt("--resume goes on from the last checkpoint") from None
    return _verify(network, settings.batch_size, console) if arguments.short_form else 0


def _verify(network: GraphNetwork, batch_size: int, console: Console) -> int:
    from mpsgrad.training import digits
    from mpsgrad.training.report import verification_table
    from mpsgrad.training.verification import verify

    data = digits.load()
    verifications = verify(network, data.train_images[:batch_size], digits.one_hot(data.train_classes[:batch_size]))
    console.print(verification_table(verifications))
    return 0 if all(row.holds for row in verifications) else 1


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer") from None


def _positive(text: str) -> int:
    value = _integer(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is below 1")
    return value


def _seed(text: str) -> int:
    value = _integer(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is below 0")
    return value


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0.0 < value <= LARGEST_FLOAT:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and finite as float32")
    return value
