"""Which shown texts are commands, and what of a command can be checked without running it."""

import contextlib
import importlib.util
import io
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dashboards.report import parser as report_parser
from exporter.cli import COMMANDS, parse_arguments
from exporter.config.load import parse_document
from exporter.parse.protocol3 import LIST_CLIENTS, LIST_DEVICES, LIST_NAMESPACES, LIST_PARTITIONS, LIST_SERVERS
from tests.commands.cases import UNIT
from tests.commands.collected import ROOT, Shown


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


PLACEHOLDERS = _words(
    """CLIENT COMMAND DAEMON DIRECTORY FILE GPU ID IMAGE N NUMBER PID POD PROMETHEUS SERVER T UNIT
    COMPUTE DEFAULT NVRM OUT"""
)
"""Words that a reader replaces by a value, and words of other programs in capitals."""

OTHERS_UNITS = {
    *("prometheus", "prometheus-alertmanager", "grafana-server", "polkit", "nvidia-persistenced", "train.service"),
    *(UNIT, "$UNIT", "UNIT", "PID", "nvidia*"),
}

VERBS = _words(
    """cat daemon-reload edit enable list-unit-files reboot reload reset-failed restart show status try-restart
    unmask"""
)

CONTROL_COMMANDS = _words(
    """device_query get_active_thread_percentage get_client_list get_default_active_thread_percentage
    get_default_device_pinned_mem_limit get_device_pinned_mem_limit get_server_list get_server_status quit
    set_active_thread_percentage set_default_active_thread_percentage set_default_client_priority
    set_default_device_pinned_mem_limit set_device_pinned_mem_limit shutdown_server terminate_client"""
)

CONTROL_COMMANDS_3 = (
    *(LIST_SERVERS, LIST_CLIENTS, LIST_NAMESPACES, LIST_DEVICES, LIST_PARTITIONS, "-q"),
    r"server set \w+ --(pinned-memory-limit=\d+[GM]|active-thread-percentage=\d+|client-priority=\d+)",
    r"server delete \w+( --force)?",
    r"client terminate (CLIENT|\d+)",
)
"""Patterns of the commands of protocol 3, which are arguments of the program."""

PROGRAMS = _words(
    """amtool apt-get cat cd chmod chown chronyc curl cut date dcgmi df dmesg dnf docker echo export find findmnt fuser
    grep head helm dkms install jq kubectl ldconfig ln ls lspci mkdir modinfo modprobe mypy nvidia-smi pgrep pip
    podman prlimit promtool ps restorecon rm rmmod ruff sacct scontrol sed sha256sum sort ss ssh stat systemd-analyze
    systemd-sysusers systemd-tmpfiles tail tee tr truncate type watch uname uniq xargs COMMAND deploy/packages/build
    lab/attribution/run.sh lab/gpu/run.sh"""
)
"""Programs of other projects, of which only the syntax, the repository's files and the exporter's URLs are checked."""

QUOTED = {
    *("encountered a fatal GPU error", "Hybrid mode is not supported", "setrlimit: Operation not permitted"),
    *("cpu.weight: no such file or directory", "Not enough privilege to execute quit command", "UI closed", "NOT RUN"),
    *("Dual BSD/GPL", "GPL-2.0-only OR BSD-2-Clause", "very likely", "Driver/library version mismatch"),
    *("machine node1.example login USER password PASSWORD", "python -m build"),
    "workloads + mps_server + others + unattributed + closed = total",
}
"""Quoted messages, names, a line of ~/.netrc, another program and a formula, which are not checked."""


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


def is_command(shown: Shown) -> bool:
    """Check a text, and return whether it is a command, not a part of one, a quotation, a query or a configuration.

    Raises:
        UnknownCommandError: the text is nothing known, or a command that does not work.
    """
    text = shown.text
    if shown.inline and _is_no_command(text):
        return False
    if not shown.inline and text in QUOTED:
        return False
    if not shown.inline and re.fullmatch(r"\[\[daemons\]\]|\w+ = .*", text):
        pipe = "" if text.startswith("pipe_directory") else "pipe_directory = '/x'"
        parse_document(Path("shown"), f"[[daemons]]\n{pipe}\n{text if '=' in text else ''}\n")
        return False
    _check_syntax(shown)
    exported = dict(re.findall(r"export (\w+)=(\S+)", shown.after))
    commands = list(simple_commands(text))
    if not commands:
        raise UnknownCommandError(text)
    for command in commands:
        _check(command, exported)
    return True


def _is_no_command(text: str) -> bool:
    """Return whether a text in backquotes is no command."""
    first = text.split()[0]
    if first in COMMANDS:
        _parse(re.sub(r"[\[\]]", "", text).split())
    return (
        text in QUOTED
        or text.startswith("Insufficient privileges for UID")
        # PromQL and configurations.
        or re.match(r"(topk|sum|max|min|increase|rate)\b.*\(|cuda_mps_\w+[{ ]|[\w.]+ = |\w+: |\[", text) is not None
        # Parts of commands.
        or re.match(r"-|\| |kill -[A-Z]+$|truncate -s 0$|systemctl status$", text) is not None
        or first in CONTROL_COMMANDS
        or first in COMMANDS
        or _is_of_protocol_3(text)
    )


def _is_of_protocol_3(command: str) -> bool:
    """Return whether it is a command of protocol 3, or the beginning of one that a text names."""
    named = command in ("client terminate", "server delete", "server list", "server set")
    return named or any(re.fullmatch(pattern, command) for pattern in CONTROL_COMMANDS_3)


def _check_syntax(shown: Shown) -> None:
    done = subprocess.run(["bash", "-n"], input=shown.text, capture_output=True, text=True, check=False)
    if done.returncode != 0 or "…" in shown.text or re.search(r"<[A-Za-z ]+>", shown.text):
        raise UnknownCommandError(f"{shown.text!r} cannot be pasted: {done.stderr}")
    for word in re.findall(r"(?<![\w$\"'{=/-])[A-Z]{2,}(?![\w='-])", re.sub(r"'[^']*'|#.*", "", shown.text)):
        if word not in PLACEHOLDERS and not word.startswith("EXCLUSIVE"):
            raise UnknownCommandError(f"{word} in {shown.text!r} is no known placeholder")


def _check(command: Simple, exported: Mapping[str, str]) -> None:
    if not command.words:
        return
    program, *arguments = command.words
    for argument in arguments:
        _check_file(argument)
    match program.removeprefix(".venv/bin/").removeprefix("/opt/cuda-mps-exporter/bin/"):
        case "nvidia-cuda-mps-control":
            _check_control(command, arguments, exported)
        case "cuda-mps-exporter":
            if arguments != ["COMMAND"]:
                _parse(arguments)
        case "systemctl":
            if arguments[0] not in VERBS:
                raise UnknownCommandError(f"systemctl {arguments[0]}")
            for argument in arguments[1:]:
                if not argument.startswith("-") and arguments[0] != "show":
                    _check_unit(argument)
        case "journalctl":
            for option, value in zip(arguments, [*arguments[1:], ""], strict=True):
                if option == "-u":
                    _check_unit(value)
        case "kill":
            *options, pid = arguments
            known = options in ([], ["-KILL"], ["-CONT"], ["-TERM"])
            if not known or not re.fullmatch(r"PID|[1-9]\d*", pid) or pid == "1":
                raise UnknownCommandError(f"kill {arguments}")
        case "python" | "python3" | "python3.12":
            _check_python(arguments)
        case "curl":
            _check_url(arguments)
        case other if other not in PROGRAMS:
            raise UnknownCommandError(f"{other!r} of {command.words} is in no class of commands")


def _check_control(command: Simple, arguments: Sequence[str], exported: Mapping[str, str]) -> None:
    """Check that a command names the daemon's directories, and is one that a control daemon knows."""
    variables = {**exported, **command.variables}
    if arguments == ["-v"]:
        return
    if not variables.get("CUDA_MPS_PIPE_DIRECTORY"):
        raise UnknownCommandError(f"{command} does not name the pipe directory")
    if "-d" in arguments:
        if not variables.get("CUDA_MPS_LOG_DIRECTORY"):
            raise UnknownCommandError(f"{command} does not name the log directory")
    elif arguments:
        if not _is_of_protocol_3(" ".join(arguments)):
            raise UnknownCommandError(f"{arguments} are no command of protocol 3")
    elif command.fed.split()[0] not in CONTROL_COMMANDS | {"COMMAND"}:
        raise UnknownCommandError(f"{command.fed!r} is no command of a control daemon")


def _parse(arguments: Sequence[str], parse: Callable[[Sequence[str]], object] = parse_arguments) -> None:
    """Parse the arguments of a program of ours as it does."""
    problem = io.StringIO()
    try:
        with contextlib.redirect_stderr(problem), contextlib.redirect_stdout(problem):
            if arguments[-1:] not in (["--help"], ["replay"]):
                of_replay = ["x"] if arguments[0] == "replay" and arguments[-1] == "--events" else []
                missing = ["--events"] if arguments[0] == "replay" and "--events" not in arguments else []
                parse([*arguments, *missing, *of_replay])
    except SystemExit as error:
        raise UnknownCommandError(f"{arguments}: {problem.getvalue()}") from error


def _check_unit(unit: str) -> None:
    units = {name for path in (ROOT / "systemd").glob("*.service") for name in (path.name, path.stem)}
    templates = {name.partition("@")[0] for name in units if "@" in name}
    if unit not in units | OTHERS_UNITS and unit.partition("@")[0] not in templates:
        raise UnknownCommandError(f"unit {unit} is not in systemd/")


def _check_python(arguments: Sequence[str]) -> None:
    match list(arguments):
        case ["-m", module, *_]:
            if module not in ("venv", "pytest") and importlib.util.find_spec(module) is None:
                raise UnknownCommandError(f"there is no module {module}")
        case ["-c", *_]:
            pass
        case ["dashboards/report.py", *options]:
            _parse(options, report_parser().parse_args)
        case [path, *_] if (ROOT / path).is_file():
            pass
        case _:
            raise UnknownCommandError(f"python {arguments}")


def _check_file(word: str) -> None:
    """Check that a file of the repository, or of its installation, exists."""
    installed = "/opt/cuda-mps-exporter/share/cuda-mps-exporter/"
    path = word.removeprefix(installed)
    folders = ("systemd/", "alerts/", "dashboards/", "deploy/", "docs/", "tests/", "lab/", ".ci/")
    if path.startswith(folders) and not list(ROOT.glob(path.rstrip("/"))):
        raise UnknownCommandError(f"{word} does not exist")


def _check_url(arguments: Sequence[str]) -> None:
    documented = (ROOT / "docs" / "security.md").read_text()
    for each in arguments:
        found = re.search(r":10677(/[\w/.-]*)", each)
        if found and f"`{found[1]}" not in documented:
            raise UnknownCommandError(f"{each}: no such page")
