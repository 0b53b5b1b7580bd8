"""``mpsgrad check``: what Apple's compiler would refuse in Metal files, and what a kernel does wrong when it runs."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mpsgrad.commands import checked_run, compiled_check
from mpsgrad.devices.contract import CompileOptions
from mpsgrad.errors import DeviceNotFoundError, FormatError, GeometryError, ShaderError
from mpsgrad.msl import lint
from mpsgrad.msl.diagnostics import diagnostic
from mpsgrad.msl.lint import LANGUAGE_VERSIONS, Finding
from mpsgrad.runtime.findings import MISTAKES, KernelFinding

STANDARD_INPUT = "-"


def add_parser(subparsers: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Declares the subcommand."""
    parser = subparsers.add_parser(
        "check",
        help="find what Apple's compiler would refuse in Metal files, and what kernels do wrong",
        description="Checks Metal compute sources against Apple's rules, without a Mac or a GPU. With --run it then "
        "runs one kernel on the CPU and reports accesses outside buffers, uninitialised memory, data races, "
        "barriers that not every thread reaches and more.",
        epilog="Exit status: 0 without errors (there may be warnings), 1 with errors, 2 for wrong usage or a file that "
        "cannot be read.",
    )
    parser.add_argument("files", metavar="FILE", nargs="*", help="a Metal source; - reads standard input")
    parser.add_argument(
        "--explain", metavar="RULE", help="say what a rule, or a kind of finding of --run, is about, and check nothing"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as a JSON array")
    parser.add_argument(
        "--metalcompute", action="store_true", help="also report what the metalcompute package cannot launch"
    )
    parser.add_argument(
        "--language-version",
        choices=LANGUAGE_VERSIONS,
        default="2.3",
        metavar="VERSION",
        help=f"the version of the language: {', '.join(LANGUAGE_VERSIONS)} (default: 2.3, metalcompute's)",
    )
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        help="compile what the rules find no error in for this machine's OpenCL CPU device, and report that compiler's "
        "errors; by default where there is such a device",
    )
    parser.add_argument(
        "--run", dest="run_kernel", action="store_true", help="takes FILE and KERNEL, and runs the kernel with checks"
    )
    parser.add_argument(
        "-I", dest="folders", metavar="FOLDER", action="append", default=[], help="a folder of included files"
    )
    parser.add_argument(
        "-D",
        dest="macros",
        metavar="NAME[=VALUE]",
        action="append",
        default=[],
        help="a macro, 1 without a value; it may have parameters: 'F(x)=2*x'",
    )
    checked_run.add_options(parser)
    return parser


@dataclass(frozen=True)
class _MetalFile:
    """A source to check, with what its directives refer to."""

    name: str
    source: str
    options: CompileOptions
    definitions: dict[str, str]

    @classmethod
    def read(cls, file: str, arguments: argparse.Namespace, definitions: dict[str, str]) -> _MetalFile:
        """Raises ``OSError`` or ``UnicodeDecodeError`` if ``file`` cannot be read."""
        is_input = file == STANDARD_INPUT
        options = CompileOptions(
            language_version=arguments.language_version,
            include_directory=Path() if is_input else Path(file).parent,
            include_folders=tuple(map(Path, arguments.folders)),
        )
        return cls("<stdin>" if is_input else file, _read(file), options, definitions)

    def complete(self) -> str:
        """The source with its macros."""
        macros = "".join(f"#define {macro} {value}\n" for macro, value in self.definitions.items())
        return f'{macros}#line 1 "{self.name}"\n{self.source}'


def run(arguments: argparse.Namespace) -> int:
    """Prints the findings and gives the exit status."""
    if arguments.explain is not None:
        return _explain(arguments.explain)
    if not arguments.files:
        print("mpsgrad check: no FILE given; - reads standard input", file=sys.stderr)
        return 2
    unreadable = False
    findings: list[tuple[Finding | KernelFinding, str]] = []
    try:
        if arguments.run_kernel:
            checked_run.require_usage(arguments)
        definitions = _definitions(arguments.macros)
        compiler = _compiler(arguments)
        for name in arguments.files[:1] if arguments.run_kernel else arguments.files:
            try:
                file = _MetalFile.read(name, arguments, definitions)
            except (OSError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else f"not UTF-8 text: {error.reason}"
                shown = "<stdin>" if name == STANDARD_INPUT else name
                print(f"mpsgrad check: {shown}: {reason}", file=sys.stderr)
                unreadable = True
                continue
            texts = {file.name: file.source.splitlines()}
            findings += [(finding, _line(texts, finding)) for finding in _findings(arguments, file, compiler)]
    except checked_run.UsageError as error:
        print(f"mpsgrad check: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        print(json.dumps([_as_object(finding) for finding, _ in findings], indent=2))
    else:
        for finding, line in findings:
            print(_as_text(finding, line))
        _summarise([finding for finding, _ in findings])
    if unreadable:
        return 2
    return int(any(finding.severity == "error" for finding, _ in findings))


def _definitions(macros: Sequence[str]) -> dict[str, str]:
    """What ``-D`` gave for each macro; raises ``UsageError`` for a name that is none."""
    definitions = {}
    for macro in macros:
        name, equals, value = macro.partition("=")
        if not re.fullmatch(r"[A-Za-z_]\w*(?:\((?:[\w\s,]|\.\.\.)*\))?", name):
            raise checked_run.UsageError(f"-D {macro}: '{name}' cannot name a macro")
        definitions[name] = value if equals else "1"
    return definitions


def _compiler(arguments: argparse.Namespace) -> compiled_check.FrontEnd | None:
    """The compiler to ask beside the rules, if it is wanted and there; raises ``UsageError`` if it has to be."""
    # A run compiles the kernel anyway.
    if arguments.compile is False or arguments.run_kernel and not arguments.compile:
        return None
    try:
        return compiled_check.FrontEnd()
    except DeviceNotFoundError as error:
        if arguments.compile:
            raise checked_run.UsageError(f"--compile: {error}") from None
        print(f"mpsgrad check: only the rules are checked, nothing is compiled: {error}", file=sys.stderr)
        return None


def _findings(
    arguments: argparse.Namespace, file: _MetalFile, compiler: compiled_check.FrontEnd | None
) -> list[Finding | KernelFinding]:
    """What the lint finds, and without errors what the compiler says and then what a run shows, as far as wanted."""
    found: list[Finding | KernelFinding] = []
    found += lint.lint(
        file.source,
        filename=file.name,
        language_version=arguments.language_version,
        metalcompute=arguments.metalcompute,
        resolve=file.options.resolve,
        definitions=file.definitions,
    )
    if compiler is not None and not any(finding.severity == "error" for finding in found):
        found += compiler.errors(file.complete(), file.name, file.options)
    if arguments.run_kernel and not any(finding.severity == "error" for finding in found):
        found += _run(arguments, file)
    return found


def _read(file: str) -> str:
    data = sys.stdin.buffer.read() if file == STANDARD_INPUT else Path(file).read_bytes()
    return data.decode("utf-8-sig").replace("\r\n", "\n")


def _line(texts: dict[str, list[str]], finding: Finding | KernelFinding) -> str:
    """The text of the finding's line, empty where the file is not there."""
    if finding.file not in texts:
        try:
            texts[finding.file] = _read(finding.file).splitlines()
        except (OSError, ValueError):
            texts[finding.file] = []
    lines = texts[finding.file]
    return lines[finding.line - 1] if 1 <= finding.line <= len(lines) else ""


def _label(finding: Finding | KernelFinding) -> str | None:
    """What ``--explain`` takes to explain a finding."""
    if isinstance(finding, KernelFinding):
        return finding.name
    return str(finding.rule) if finding.rule else None


def _as_text(finding: Finding | KernelFinding, line: str) -> str:
    label = _label(finding)
    text = str(finding)
    if label is not None:
        text += f" [{label}]" if isinstance(finding, KernelFinding) else f" [rule {label}]"
    if line.strip():
        text += f"\n    {line.rstrip()}"
        if finding.column is not None and finding.column <= len(line) + 1:
            lead = "".join(letter if letter == "\t" else " " for letter in line[: finding.column - 1])
            text += f"\n    {lead}^"
    return text


def _as_object(finding: Finding | KernelFinding) -> dict[str, object]:
    shown: dict[str, object] = {
        "file": finding.file,
        "line": finding.line,
        "column": finding.column,
        "severity": finding.severity,
        "rule": None,
        "name": None,
        "message": finding.message,
    }
    if isinstance(finding, KernelFinding):
        return {**shown, "name": finding.name, **checked_run.as_object(finding)}
    rule = lint.RULES.get(finding.rule)
    return {**shown, "rule": finding.rule, "name": rule.name} if rule else shown


def _summarise(findings: Sequence[Finding | KernelFinding]) -> None:
    counts = []
    for severity in ("error", "warning"):
        count = sum(finding.severity == severity for finding in findings)
        if count:
            counts.append(f"{count} {severity}{'s' if count > 1 else ''}")
    if counts:
        labels = [label for finding in findings if (label := _label(finding)) is not None]
        rules = sorted(int(label) for label in labels if label.isdecimal())
        first = rules[0] if rules else labels[0] if labels else None
        hint = f"; 'mpsgrad check --explain {first}' says why" if first else ""
        print(f"{' and '.join(counts)}{hint}", file=sys.stderr)


def _explain(name: str) -> int:
    if name in MISTAKES:
        print(checked_run.explain(name))
        return 0
    rule = lint.RULES.get(int(name)) if name.isdecimal() else None
    if rule is None:
        known = f"1 to {max(lint.RULES)}, and {', '.join(MISTAKES)}"
        print(f"mpsgrad check: --explain {name}: there is no such rule, only {known}", file=sys.stderr)
        return 2
    print(f"rule {rule.number}, {rule.name} ({rule.severity})")
    print(f"  {rule.why}")
    if rule.words:
        print(f'  Apple\'s words: "{rule.words}"')
    if rule.limits:
        print(f"  {rule.limits}")
    return 0


def _run(arguments: argparse.Namespace, file: _MetalFile) -> Sequence[Finding | KernelFinding]:
    """What the kernel does wrong, or why the source does not compile."""
    try:
        return checked_run.run_kernel(arguments, file.complete(), file.options)
    except ShaderError as error:
        return compiled_check.findings([diagnostic(error)])
    except (FormatError, GeometryError) as error:
        raise checked_run.UsageError(str(error)) from None
