"""Breaks each shader in turn and reports how many of the mutations the tests catch.

    python tests/mutate_shaders.py [--per-shader 6] [--seed 0] [--shader soft_max]

A mutation changes one operator, constant or condition of a template in a copy of the checkout. It is caught if a test
of that shader fails; templates in ``lib`` have the tests of all shaders that include them. Mutations that the compiler
refuses do not count. Takes minutes, so it is no part of the suite.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
SHADERS = ROOT / "shaders"

CHANGES = (
    (r" < ", " <= "),
    (r" <= ", " < "),
    (r" > ", " >= "),
    (r" >= ", " > "),
    (r" == ", " != "),
    (r" && ", " || "),
    (r" \+ ", " - "),
    (r" - ", " + "),
    (r" \* ", " + "),
    (r"\+= ", "-= "),
    (r"\bmax\(", "min("),
    (r"\bmin\(", "max("),
    (r"\b0\.0f\b", "1.0f"),
    (r"\b1\.0f\b", "2.0f"),
    (r"stride_x", "stride_y"),
    (r"origin_y", "origin_x"),
    (r"\.row_stride", ".pixel_stride"),
    (r"dilation_x", "dilation_y"),
    (r"precise::exp", "precise::log"),
    (r"simd_sum\((\w+)\)", r"(\1)"),
)

TESTS = {
    "addition_and_neuron": ("tests/core/test_neighbouring_dispatches.py",),
    "arithmetic": ("tests/kernels/test_arithmetic.py",),
    "arithmetic_gradient": ("tests/kernels/test_arithmetic.py",),
    "batch_normalization": ("tests/kernels/test_batch_normalization.py", "tests/kernels/test_group_normalization.py"),
    "batch_normalization_at_once": ("tests/kernels/test_batch_normalization.py",),
    "batch_normalization_by_channels": ("tests/kernels/test_batch_normalization_by_channels.py",),
    "batch_normalization_in_one": ("tests/kernels/test_batch_normalization.py",),
    "channel_padding": ("tests/kernels/test_convolution_tiles.py",),
    "convolution": ("tests/kernels/test_convolution_variants.py", "tests/kernels/test_convolution.py"),
    "convolution_depthwise": ("tests/kernels/test_convolution_depthwise.py",),
    "convolution_depthwise_of_eights": (
        "tests/kernels/test_convolution_variants.py",
        "tests/kernels/test_convolution_past_caches.py",
    ),
    "convolution_depthwise_rows": (
        "tests/kernels/test_convolution_depthwise_rows.py",
        "tests/kernels/test_convolution_past_caches.py",
    ),
    "convolution_depthwise_runs": ("tests/kernels/test_convolution_depthwise_runs.py",),
    "convolution_depthwise_weights": ("tests/kernels/test_convolution_depthwise.py",),
    "convolution_group_rows": ("tests/kernels/test_convolution_group_rows.py",),
    "convolution_matrices": ("tests/kernels/test_convolution_tiles.py",),
    "convolution_matrices_in_place": ("tests/kernels/test_convolution_tiles.py",),
    "convolution_of_eights": (
        "tests/kernels/test_convolution_variants.py",
        "tests/kernels/test_convolution_past_caches.py",
    ),
    "convolution_parameters": (
        "tests/kernels/test_convolution_tiles.py",
        "tests/kernels/test_convolution.py",
        "tests/kernels/test_convolution_parameters.py",
        "tests/kernels/test_convolution_variants.py",
    ),
    "convolution_patches": (
        "tests/kernels/test_convolution_patches.py",
        "tests/kernels/test_convolution_variants.py",
        "tests/kernels/test_convolution_past_caches.py",
    ),
    "convolution_planes": ("tests/kernels/test_convolution_planes.py", "tests/kernels/test_convolution_variants.py"),
    "convolution_small_groups": (
        "tests/kernels/test_convolution_small_groups.py",
        "tests/kernels/test_convolution_variants.py",
    ),
    "convolution_tile_sums": ("tests/kernels/test_convolution_tiles.py",),
    "convolution_tiles": ("tests/kernels/test_convolution_tiles.py",),
    "convolution_direct": ("tests/kernels/test_convolution_direct.py",),
    "convolution_to_few": ("tests/kernels/test_convolution_to_few.py",),
    "convolution_transpose": ("tests/kernels/test_convolution_transpose.py",),
    "convolution_turning": ("tests/kernels/test_convolution_transpose.py",),
    "convolution_weights": ("tests/kernels/test_convolution_variants.py", "tests/kernels/test_convolution.py"),
    "convolution_weights_matrices": ("tests/kernels/test_convolution_tiles.py",),
    "convolution_weights_matrices_in_place": ("tests/kernels/test_convolution_tiles.py",),
    "convolution_weights_tiles": ("tests/kernels/test_convolution_tiles.py",),
    "convolution_winograd": ("tests/kernels/test_convolution_winograd.py",),
    "convolution_winograd_product": ("tests/kernels/test_convolution_winograd.py",),
    "copies": ("tests/kernels/test_copies.py",),
    "copies_of_pixels": ("tests/kernels/test_copies.py",),
    "copies_of_sources": ("tests/kernels/test_copies.py",),
    "crop_and_resize": ("tests/kernels/test_crop_and_resize.py",),
    "dropout": ("tests/kernels/test_dropout.py",),
    "fill": ("tests/core/test_fill.py",),
    "format_conversion": ("tests/kernels/test_format_conversion.py",),
    "gram_matrix": ("tests/kernels/test_gram_matrix.py",),
    "gram_matrix_gradient_blocks": ("tests/kernels/test_gram_matrix.py",),
    "gram_matrix_gradient_matrices": ("tests/kernels/test_gram_matrix.py",),
    "gram_matrix_in_place": ("tests/kernels/test_gram_matrix.py",),
    "gram_matrix_of_few_channels": ("tests/kernels/test_gram_matrix.py",),
    "gram_matrix_tiles": ("tests/kernels/test_gram_matrix.py",),
    "loss": ("tests/kernels/test_loss.py",),
    "loss_elements": ("tests/kernels/test_loss_elements.py", "tests/kernels/test_forward_loss.py"),
    "loss_scale": ("tests/kernels/test_loss_scale.py",),
    "loss_soft_max_gradient": ("tests/kernels/test_loss.py", "tests/kernels/test_forward_loss.py"),
    "loss_soft_max_of_teams": ("tests/kernels/test_loss.py",),
    "neuron": ("tests/kernels/test_neuron.py",),
    "optimizer": ("tests/kernels/test_optimizer.py", "tests/kernels/test_optimizer_adaptive.py"),
    "pad": ("tests/kernels/test_pad.py",),
    "pooling_average": ("tests/kernels/test_pooling.py",),
    "pooling_columns": ("tests/kernels/test_pooling.py",),
    "pooling_l2_norm": ("tests/kernels/test_pooling.py",),
    "pooling_max": ("tests/kernels/test_pooling.py",),
    "pooling_max_at_once": ("tests/kernels/test_pooling.py",),
    "pooling_max_disjoint": ("tests/kernels/test_pooling.py",),
    "pooling_max_few_channels": ("tests/kernels/test_pooling.py",),
    "pooling_max_rows": ("tests/kernels/test_pooling.py",),
    "pooling_max_search": ("tests/kernels/test_pooling.py",),
    "pooling_max_windows": ("tests/kernels/test_pooling.py",),
    "reduction": ("tests/kernels/test_reduction.py",),
    "reduction_of_runs": ("tests/kernels/test_reduction.py",),
    "reduction_of_few_channels": ("tests/kernels/test_reduction.py", "tests/kernels/test_weighted_reduction.py"),
    "response_normalization": ("tests/kernels/test_response_normalization.py",),
    "soft_max": ("tests/kernels/test_soft_max.py",),
    "soft_max_of_few_channels": ("tests/kernels/test_soft_max.py",),
    "soft_max_of_runs": ("tests/kernels/test_soft_max.py",),
    "soft_max_of_vectors": ("tests/kernels/test_soft_max.py",),
    "upsampling": ("tests/kernels/test_upsampling.py",),
    "weighted_reduction": ("tests/kernels/test_weighted_reduction.py",),
    "window_strips": ("tests/kernels/test_response_normalization.py", "tests/kernels/test_pooling.py"),
    "yolo_loss": ("tests/kernels/test_yolo_loss.py",),
}


def included(name: str) -> set[str]:
    """The templates in ``lib`` that a template reads, itself or by another."""
    text = (SHADERS / f"{name}.metal.j2").read_text(encoding="utf-8")
    found = {f"lib/{each}" for each in re.findall(r"{%-? *(?:include|from|import) \"(\w+)\.metal\.j2\"", text)}
    return found.union(*(included(each) for each in found))


def tests_of(name: str) -> list[str]:
    """The files of tests that can catch a mutation of a template, each once."""
    shaders = [name] if name in TESTS else [shader for shader in sorted(TESTS) if name in included(shader)]
    return list(dict.fromkeys(test for shader in shaders for test in TESTS[shader]))


def templates() -> list[str]:
    """The names of all templates, those in ``lib`` behind the others."""
    return sorted(
        (path.relative_to(SHADERS).as_posix().removesuffix(".metal.j2") for path in SHADERS.rglob("*.metal.j2")),
        key=lambda name: ("/" in name, name),
    )


@dataclass(frozen=True)
class Mutation:
    """One changed line of a template."""

    shader: str
    line: int
    before: str
    after: str


def candidates(shader: str) -> list[Mutation]:
    """Every change that fits a line of code of the template."""
    found = []
    text = (SHADERS / f"{shader}.metal.j2").read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines()):
        if line.lstrip().startswith(("//", "{%", "{#", "#", "[[", "kernel", "device const ", "constant ")):
            continue
        for pattern, replacement in CHANGES:
            for match in re.finditer(pattern, line):
                after = line[: match.start()] + match.expand(replacement) + line[match.end() :]
                found.append(Mutation(shader, number, line, after))
    return found


def run(mutation: Mutation) -> str:
    """ "caught", "survived" or "refused" (by the compiler)."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "checkout"
        for part in ("mpsgrad", "shaders", "tests", "pyproject.toml", "README.md"):
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(source, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, copy / part)
        path = copy / "shaders" / f"{mutation.shader}.metal.j2"
        lines = path.read_text().splitlines()
        assert lines[mutation.line] == mutation.before
        lines[mutation.line] = mutation.after
        path.write_text("\n".join(lines) + "\n")
        environment = {**os.environ, "PYTHONPATH": str(copy)}
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        for test in tests_of(mutation.shader):
            try:
                result = subprocess.run(
                    [*command, test],
                    cwd=copy,
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=600,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return "caught"
            if result.returncode != 0:
                return "refused" if "ShaderError" in result.stdout else "caught"
        return "survived"


def main() -> int:
    parser = argparse.ArgumentParser(description="Breaks each shader in turn.")
    parser.add_argument("--per-shader", type=int, default=6, help="mutations of each shader (default 6)")
    parser.add_argument("--seed", type=int, default=0, help="which mutations are drawn (default 0)")
    parser.add_argument("--shader", choices=templates(), help="only this one")
    options = parser.parse_args()
    generator = random.Random(options.seed)
    totals = {"caught": 0, "survived": 0, "refused": 0}
    for shader in [options.shader] if options.shader else templates():
        pool = candidates(shader)
        generator.shuffle(pool)
        counted = 0
        for mutation in pool:
            if counted == options.per_shader:
                break
            outcome = run(mutation)
            totals[outcome] += 1
            counted += outcome != "refused"
            print(f"{outcome:8} {shader}.metal.j2:{mutation.line + 1}: {mutation.after.strip()}", flush=True)
    counted = totals["caught"] + totals["survived"]
    print(f"{totals['caught']} of {counted} mutations caught; the compiler refused {totals['refused']} more")
    return 0


if __name__ == "__main__":
    sys.exit(main())
