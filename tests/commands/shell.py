"""Which kind of command a shown text is, and what of it can be checked without running it."""

import contextlib
import importlib.util
import io
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from exporter.cli import COMMANDS, parse_arguments
from exporter.config.load import parse_document
from exporter.parse.protocol3 import LIST_CLIENTS, LIST_DEVICES, LIST_NAMESPACES, LIST_PARTITIONS, LIST_SERVERS
from tests.commands.collected import ROOT, Shown
from tests.commands.scenes import UNIT

PLACEHOLDERS = {
    "CLIENT", "COMMAND", "DAEMON", "DIRECTORY", "FILE", "GPU", "ID", "IMAGE", "N", "NUMBER", "PID", "POD", "PROMETHEUS",
    "SERVER", "T", "UNIT",
}  # fmt: skip
"""Words that a reader replaces by a value."""

OTHERS_UNITS = {
    "prometheus", "prometheus-alertmanager", "grafana-server", "polkit", "nvidia-persistenced", "train.service",
}  # fmt: skip

VERBS = {
    "cat", "daemon-reload", "edit", "enable", "list-unit-files", "reboot", "reload", "reset-failed", "restart", "show",
    "status", "try-restart", "unmask",
}  # fmt: skip

CONTROL_COMMANDS = {
    "device_query", "get_active_thread_percentage", "get_client_list", "get_default_active_thread_percentage",
    "get_default_device_pinned_mem_limit", "get_device_pinned_mem_limit", "get_server_list", "get_server_status",
    "quit", "set_active_thread_percentage", "set_default_active_thread_percentage", "set_default_client_priority",
    "set_default_device_pinned_mem_limit", "set_device_pinned_mem_limit", "shutdown_server", "terminate_client",
    "COMMAND",
}  # fmt: skip

CONTROL_COMMANDS_3 = {
    *(LIST_SERVERS, LIST_CLIENTS, LIST_NAMESPACES, LIST_DEVICES, LIST_PARTITIONS), "-q",
    r"server set \w+ --(pinned-memory-limit=\d+[GM]|active-thread-percentage=\d+|client-priority=\d+)",
    r"server delete \w+( --force)?", r"client terminate (CLIENT|\d+)",
}  # fmt: skip
"""Patterns of the commands of protocol 3, which are arguments of the program."""

PROGRAMS = {
    "amtool", "apt-get", "cat", "cd", "chmod", "chown", "chronyc", "curl", "cut", "date", "dcgmi", "df", "dmesg",
    "docker",
    "export", "fuser", "grep", "head", "helm", "install", "jq", "kubectl", "ldconfig", "ln", "ls", "lspci", "mkdir",
    "modprobe",
    "mypy", "nvidia-smi", "pgrep", "pip", "podman", "prlimit", "promtool", "ps", "ruff", "scontrol", "sed", "sha256sum",
    "sort", "ss", "ssh", "systemd-analyze", "systemd-sysusers", "systemd-tmpfiles", "tail", "tr", "truncate", "type",
    "watch", "uname", "uniq", "COMMAND", "tests/gpu/run.sh",
}  # fmt: skip
"""Programs of other projects, of which only the syntax, the repository's files and the exporter's URLs are checked."""

QUOTED = {
    "encountered a fatal GPU error", "Hybrid mode is not supported", "setrlimit: Operation not permitted",
    "cpu.weight: no such file or directory", "Not enough privilege to execute quit command", "UI closed", "NOT RUN",
    "Dual BSD/GPL", "GPL-2.0-only OR BSD-2-Clause", "very likely", "Driver/library version mismatch",
    "machine node1.example login USER password PASSWORD", "python -m build",
    "workloads + MPS server + others + unattributed + closed = what the GPU measured",
}  # fmt: skip
"""Quoted messages, names, a line of ~/.netrc, another program and a formula, which are not checked."""


class Kind(StrEnum):
    """What a shown text is."""

    CONTROL = "control daemon"
    EXPORTER = "exporter"
    SIGNAL = "signal"
    SYSTEMD = "systemd"
    OTHER = "other program"
    PYTHON = "module of the repository"
    VARIABLE = "variable"
    PART = "part of a command"
    CONFIGURATION = "configuration"
    QUERY = "PromQL"
    TEXT = "quoted text"


COMMAND_KINDS = (
    Kind.CONTROL, Kind.EXPORTER, Kind.SIGNAL, Kind.SYSTEMD, Kind.OTHER, Kind.PYTHON, Kind.VARIABLE,
)  # fmt: skip


class UnknownCommandError(AssertionError):
    """A text that no class of commands fits, or a command that does not work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simple:
    """A command of a line, its variables, and what its input is."""

    words: tuple[str, ...]
    variables: Mapping[str, str]
    fed: str = ""


def simple_commands(line: str) -> Iterator[Simple]:
    """Yield the commands of a line, without `sudo`, `env`, `timeout`, `nsenter`, `strace` and `command -v`."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words, fed = list[str](), ""
    for word in [*lexer, ";"]:
        if set(word) <= set("|&;"):
            if words:
                yield from _simple(words, fed)
            fed = " ".join(words[1:]) if word == "|" and words[:1] == ["echo"] else ""
            words = []
        else:
            words.append(word)


def _simple(words: Sequence[str], fed: str) -> Iterator[Simple]:
    rest, variables = [*words], dict[str, str]()
    for number, word in enumerate(rest):
        if word in (">", "<", ">>"):
            del rest[number : number + 2]
    while rest:
        word = rest[0]
        if re.match(r"[A-Z_]+=", word):
            name, _, variables[name] = word.partition("=")
            rest = rest[1:]
        elif word == "sudo":
            rest = rest[3:] if rest[1] == "-u" else rest[1:]
        elif word == "env":
            rest = rest[1:]
        elif word == "timeout":
            if not rest[1].isdecimal():
                raise UnknownCommandError(f"{word} without seconds")
            rest = rest[2:]
        elif word in ("nsenter", "strace"):
            rest = rest[rest.index("--") + 1 :] if "--" in rest else rest[4:]
        elif rest[:2] == ["command", "-v"]:
            rest = ["type", *rest[2:]]
        else:
            break
    yield Simple(words=tuple(rest), variables=variables, fed=fed)
    if "--" in rest and rest[0] == "kubectl":
        yield from _simple(rest[rest.index("--") + 1 :], "")


def kind_of(shown: Shown) -> Kind:
    """Return what a text is, after the checks of its kind; UnknownCommandError if it is nothing known, or wrong."""
    text = shown.text
    if shown.inline:
        other = _no_command(text)
        if other is not None:
            return other
    elif text in QUOTED:
        return Kind.TEXT
    elif re.fullmatch(r"\[\[daemons\]\]|\w+ = .*", text):
        pipe = "" if text.startswith("pipe_directory") else "pipe_directory = '/x'"
        parse_document(Path("shown"), f"[[daemons]]\n{pipe}\n{text if '=' in text else ''}\n")
        return Kind.CONFIGURATION
    _check_syntax(shown)
    exported = dict(re.findall(r"export (\w+)=(\S+)", shown.after))
    kinds = [_kind(each, exported) for each in simple_commands(text)]
    if not kinds:
        raise UnknownCommandError(text)
    return min(kinds, key=list(Kind).index)


def _no_command(text: str) -> Kind | None:
    """Return what a text in backquotes is if it is no command."""
    if text in QUOTED or text.startswith("Insufficient privileges for UID"):
        return Kind.TEXT
    if re.match(r"(topk|sum|max|min|increase|rate)\b.*\(|cuda_mps_\w+[{ ]", text):
        return Kind.QUERY
    if re.match(r"[\w.]+ = |\w+: |\[", text):
        return Kind.CONFIGURATION
    if re.match(r"-|\| ", text) or re.fullmatch(r"kill -[A-Z]+|truncate -s 0|systemctl status", text):
        return Kind.PART
    if text.split()[0] in CONTROL_COMMANDS - {"COMMAND"} or _is_of_protocol_3(text):
        return Kind.PART
    if text.split()[0] in COMMANDS:
        _parsed(re.sub(r"[\[\]]", "", text).split())
        return Kind.PART
    return None


def _is_of_protocol_3(command: str) -> bool:
    """Return whether it is a command of protocol 3, or the beginning of one that a text names."""
    named = command in ("client terminate", "server delete", "server list", "server set")
    return named or any(re.fullmatch(each, command) for each in CONTROL_COMMANDS_3)


def _check_syntax(shown: Shown) -> None:
    done = subprocess.run(["bash", "-n"], input=shown.text, capture_output=True, text=True, check=False)
    if done.returncode != 0 or "…" in shown.text or re.search(r"<[A-Za-z ]+>", shown.text):
        raise UnknownCommandError(f"{shown.text!r} cannot be pasted: {done.stderr}")
    for word in re.findall(r"(?<![\w$\"'{=/-])[A-Z]{2,}(?![\w='-])", re.sub(r"'[^']*'|#.*", "", shown.text)):
        if word not in PLACEHOLDERS | {"COMPUTE", "DEFAULT", "NVRM", "OUT"} and not word.startswith("EXCLUSIVE"):
            raise UnknownCommandError(f"{word} in {shown.text!r} is no known placeholder")


def _kind(simple: Simple, exported: Mapping[str, str]) -> Kind:
    if not simple.words:
        return Kind.VARIABLE
    program, *arguments = simple.words
    program = program.removeprefix(".venv/bin/").removeprefix("/opt/cuda-mps-exporter/bin/")
    for each in arguments:
        _check_file(each)
    checks: Mapping[str, Callable[[], Kind]] = {
        "nvidia-cuda-mps-control": lambda: _control(simple, arguments, exported),
        "cuda-mps-exporter": lambda: _exporter(arguments),
        "systemctl": lambda: _systemctl(arguments),
        "journalctl": lambda: _journalctl(arguments),
        "kill": lambda: _kill(arguments),
        "echo": lambda: Kind.OTHER,
        "python": lambda: _python(arguments),
        "python3": lambda: _python(arguments),
    }
    if program in checks:
        return checks[program]()
    if program not in PROGRAMS:
        raise UnknownCommandError(f"{program!r} of {simple.words} is in no class of commands")
    if program == "curl":
        _check_url(arguments)
    return Kind.OTHER


def _control(simple: Simple, arguments: Sequence[str], exported: Mapping[str, str]) -> Kind:
    """Check that a command names the daemon's directories, and is one that a control daemon knows."""
    variables = {**exported, **simple.variables}
    if arguments == ["-v"]:
        return Kind.CONTROL
    if not variables.get("CUDA_MPS_PIPE_DIRECTORY"):
        raise UnknownCommandError(f"{simple} does not name the pipe directory")
    if "-d" in arguments:
        if not variables.get("CUDA_MPS_LOG_DIRECTORY"):
            raise UnknownCommandError(f"{simple} does not name the log directory")
    elif arguments:
        if not _is_of_protocol_3(" ".join(arguments)):
            raise UnknownCommandError(f"{arguments} are no command of protocol 3")
    elif simple.fed.split()[0] not in CONTROL_COMMANDS:
        raise UnknownCommandError(f"{simple.fed!r} is no command of a control daemon")
    return Kind.CONTROL


def _exporter(arguments: Sequence[str]) -> Kind:
    if list(arguments) != ["COMMAND"]:
        _parsed(arguments)
    return Kind.EXPORTER


def _parsed(arguments: Sequence[str]) -> None:
    """Parse the arguments of our program as the program does."""
    problem = io.StringIO()
    try:
        with contextlib.redirect_stderr(problem), contextlib.redirect_stdout(problem):
            if arguments[-1:] not in (["--help"], ["replay"]):
                of_replay = ["x"] if arguments[0] == "replay" and arguments[-1] == "--events" else []
                missing = ["--events"] if arguments[0] == "replay" and "--events" not in arguments else []
                parse_arguments([*arguments, *missing, *of_replay])
    except SystemExit as error:
        raise UnknownCommandError(f"{arguments}: {problem.getvalue()}") from error


def _units() -> Iterator[str]:
    for path in (ROOT / "systemd").glob("*.service"):
        yield from (path.name, path.stem)


def _check_unit(unit: str) -> None:
    templates = [each.partition("@")[0] for each in _units() if "@" in each]
    known = {*_units(), *OTHERS_UNITS, UNIT, "$UNIT", "UNIT", "PID", "nvidia*"}
    if unit not in known and unit.partition("@")[0] not in templates:
        raise UnknownCommandError(f"unit {unit} is not in systemd/")


def _systemctl(arguments: Sequence[str]) -> Kind:
    verb, *rest = arguments
    if verb not in VERBS:
        raise UnknownCommandError(f"systemctl {verb}")
    for each in rest:
        if not each.startswith("-") and verb != "show":
            _check_unit(each)
    return Kind.SYSTEMD


def _journalctl(arguments: Sequence[str]) -> Kind:
    for option, value in zip(arguments, [*arguments[1:], ""], strict=True):
        if option == "-u":
            _check_unit(value)
    return Kind.SYSTEMD


def _kill(arguments: Sequence[str]) -> Kind:
    *options, pid = arguments
    if options not in ([], ["-KILL"], ["-CONT"], ["-TERM"]) or not re.fullmatch(r"PID|[1-9]\d*", pid) or pid == "1":
        raise UnknownCommandError(f"kill {arguments}")
    return Kind.SIGNAL


def _python(arguments: Sequence[str]) -> Kind:
    match list(arguments):
        case ["-m", module, *_]:
            if module not in ("venv", "pytest") and importlib.util.find_spec(module) is None:
                raise UnknownCommandError(f"there is no module {module}")
        case ["-c", *_]:
            pass
        case [path, *_] if (ROOT / path).is_file():
            pass
        case _:
            raise UnknownCommandError(f"python {arguments}")
    return Kind.PYTHON


def _check_file(word: str) -> None:
    """Check that a file of the repository, or of its installation, exists."""
    installed = "/opt/cuda-mps-exporter/share/cuda-mps-exporter/"
    path = word.removeprefix(installed)
    folders = ("systemd/", "alerts/", "dashboards/", "deploy/", "docs/", "tests/", ".ci/")
    if path.startswith(folders) and not list(ROOT.glob(path.rstrip("/"))):
        raise UnknownCommandError(f"{word} does not exist")


def _check_url(arguments: Sequence[str]) -> None:
    documented = (ROOT / "docs" / "security.md").read_text()
    for each in arguments:
        found = re.search(r"localhost:10677(/[\w/.-]*)", each)
        if found and f"`{found[1]}" not in documented:
            raise UnknownCommandError(f"{each}: no such page")
