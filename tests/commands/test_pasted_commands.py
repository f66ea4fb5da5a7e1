"""Commands about a daemon, pasted into a shell, have the intended effect on that daemon and on no other.

The daemon is the stand-in. `cuda-mps-exporter` is the real program, with the socket of a stand-in service. `sudo` and
`nsenter` run the command without a change of user or namespace. Other programs only write down their words.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from shlex import quote
from typing import Any

import pytest

from exporter.model.settings import PROTOCOL_VERSION
from exporter.parse.protocol3 import LIST_NAMESPACES, LIST_SERVERS
from exporter.report.node_findings import findings
from exporter.report.remedy import address_of
from exporter.report.text import Style
from exporter.web.server import ServiceSocket
from tests.builders import CONTROL, SERVER
from tests.commands.cases import CASES, Case
from tests.commands.shell import Simple, simple_commands
from tests.standin.mps import MpsStandIn, is_alive, is_stopped, wait_until
from tests.status import commands_of, details_of

DIRECTORIES = ("plain", "a b", "it's", "$HOME", "`id`", "$(id)", 'a"b', "a;b", "a&b|c>d")

WRAPPERS = {
    "sudo": 'case "$1" in -u) [ "${2#\\#}" -ge 0 ] || exit 9; shift 2;; esac; exec "$@"',
    "nsenter": '[ "$1 $3 $4" = "-t -m --" ] && kill -0 "$2" || exit 9; shift 4; exec "$@"',
    "systemctl": 'printf "%s\\n" "systemctl $*" >> "$WORDS"',
    "kubectl": 'printf "%s\\n" "kubectl $*" >> "$WORDS"',
    "nvidia-smi": 'printf "%s\\n" "nvidia-smi $*" >> "$WORDS"',
}
HELP = ("doctor", "status", "incidents", "tail", "export")
"""Commands that change nothing."""


class PastedCommands:
    """A daemon in a directory of any name, another daemon, a service, and processes in the place of clients."""

    def __init__(self, root: Path, name: str, *, protocol: int = 2) -> None:
        self.daemon = MpsStandIn(root / name, variables={PROTOCOL_VERSION: str(protocol)})
        self.protocol, self.client = protocol, 0
        self.other = MpsStandIn(root / "other")
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.words = root / "words"
        self._root = root
        self._children: list[subprocess.Popen[bytes]] = []
        self.pids: dict[int, int] = {}
        for each in (self.daemon, self.other):
            each.pipe_directory.mkdir(parents=True)
            each.log_directory.mkdir(parents=True)
        self.words.touch()
        (root / "bin").mkdir()
        python = f"PYTHONPATH={quote(str(Path(__file__).parents[2]))} exec {quote(sys.executable)} -m exporter"
        for program, text in {**WRAPPERS, "cuda-mps-exporter": f'{python} "$@"'}.items():
            (root / "bin" / program).write_text(f"#!/bin/sh\n{text}\n")
            (root / "bin" / program).chmod(0o755)
        answer = {"message": "done", "exit_code": 0}
        recorded = {
            each: lambda name=each, **arguments: (self.requests.append((name, arguments)), answer)[1]
            for each in ("pause", "resume")
        }
        self._service = ServiceSocket(root, lambda _: recorded)

    def __enter__(self) -> "PastedCommands":
        self._service.open()
        self.other.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._service.close()
        for child in self._children:
            child.kill()
            child.wait()
        self.daemon.close()
        self.other.close()

    def start(self) -> None:
        """Start the daemon with a server and a client, in whose places the case has fixed PIDs."""
        self.daemon.start()
        self.client = self.process()
        self.daemon.connect_and_wait(self.client)
        server = self.daemon.server_pid
        assert server is not None
        self.pids |= {CONTROL: self.daemon.pid, SERVER: server}

    def process(self) -> int:
        """Return the PID of a process that does nothing."""
        self._children.append(subprocess.Popen(["sleep", "600"]))
        return self._children[-1].pid

    def pid_of(self, pid: int) -> int:
        """Return the process in the place of one of the case."""
        if pid not in self.pids:
            self.pids[pid] = self.process()
        return self.pids[pid]

    def paste(self, command: str) -> str:
        """Run a line in a shell, and return its output. PIDs of the case are replaced by those of real processes."""
        known = {str(pid): str(real) for pid, real in self.pids.items()}
        line = re.sub(r"(?<![\w/.-])\d+(?![\w/.-])", lambda found: known.get(found[0], found[0]), command)
        environment = os.environ | self.daemon.environment() | {"WORDS": str(self.words), "HOME": "/nowhere"}
        environment["PATH"] = f"{self._root / 'bin'}:{environment['PATH']}"
        environment["RUNTIME_DIRECTORY"] = str(self._root)
        for name in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"):
            environment[name] = "/nowhere"
        del environment[PROTOCOL_VERSION]
        done = subprocess.run(
            ["bash", "-c", line], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        return done.stdout


@pytest.fixture
def root() -> Iterator[Path]:
    """A short path, since that of a unix socket is at most 107 bytes long."""
    with tempfile.TemporaryDirectory(prefix="p") as path:
        yield Path(path)


def commands(case: Case, shell: PastedCommands) -> list[str]:
    """Return the commands that are shown for a case, in their order."""
    present = case.node(str(shell.daemon.pipe_directory), str(shell.daemon.log_directory))
    lines = []
    for each in findings(present, present.at, case.policy):
        lines += commands_of(each)
    for incident in present.incidents.values():
        for line in details_of(incident, present.at, address_of(present, incident.daemon, case.policy)):
            lines += [piece.text for piece in line.pieces if piece.style is Style.COMMAND]
    return [*dict.fromkeys(each.strip() for each in lines)]


def check(shell: PastedCommands, command: str) -> str:
    """Paste a command, check its effect, and return what kind it is."""
    *_, last = simple_commands(command)
    if last.words[0] == "kill":
        return _check_signal(shell, command, last)
    if last.words[0] == "nvidia-cuda-mps-control":
        return _check_control(shell, command, last)
    if last.words[0] == "cuda-mps-exporter":
        _, name, *arguments = last.words
        if name not in HELP:
            shell.requests.clear()
            shell.paste(command)
            wanted = {"daemon": arguments[0]} if arguments else {}
            assert shell.requests == [(name, wanted)]
        return name
    if last.words[0] == "export":
        variable, _, value = last.words[1].partition("=")
        assert shell.paste(f'{command}; echo "${variable}"').strip() == value
        return "export"
    if last.words[0] == "tail":
        logs = list(map(Path, last.words[3:]))
        assert logs
        for path in logs:
            assert path.parent == shell.daemon.log_directory
            path.write_text(f"the last line of {path.name}\n")
        assert all(f"the last line of {path.name}\n" in shell.paste(command) for path in logs)
        return "tail"
    shell.paste(command)
    assert shell.words.read_text().splitlines()[-1] == " ".join(last.words)
    return last.words[0]


def _check_control(shell: PastedCommands, command: str, simple: Simple) -> str:
    daemon, servers = shell.daemon, str(shell.pids.get(SERVER))
    name, *values = simple.fed.split() or simple.words[1:]
    server = daemon.server_pid if daemon.is_running() else None
    if (name, *values[:1]) == ("server", "set"):
        daemon.disconnect(shell.client)
    output = shell.paste(command)
    if name == "-d":
        assert daemon.is_running()
        assert daemon.control_log
        assert daemon.ask(LIST_SERVERS).stdout.startswith("NAME") is (shell.protocol == 3)
    elif name in ("quit", "-q"):
        wait_until(lambda: not daemon.is_running(), "the end of the daemon")
    elif (name, *values[:1]) == ("server", "list"):
        assert f",{servers},Ready," in output
    elif (name, *values[:1]) == ("server", "set"):
        assert ",2G," in daemon.ask(LIST_NAMESPACES).stdout
    elif name == "get_server_list":
        assert output.split() == [servers]
    elif name == "shutdown_server":
        wait_until(lambda: server is None or not is_alive(server), "the end of the server")
    else:
        assert name.startswith("set_"), name
        queried = daemon.ask(" ".join([name.replace("set_", "get_", 1), *values[:-1]])).stdout
        assert float(queried.rstrip("GM\n")) == float(values[-1].rstrip("GM")), (command, queried)
    return name


def _check_signal(shell: PastedCommands, command: str, simple: Simple) -> str:
    _, option, pid = simple.words
    real = shell.pid_of(int(pid))
    if option == "-CONT":
        os.kill(real, signal.SIGSTOP)
        wait_until(lambda: is_stopped(real), "the stop")
        shell.paste(command)
        wait_until(lambda: not is_stopped(real), "the continuation")
        assert is_alive(real)
    else:
        shell.paste(command)
        wait_until(lambda: not is_alive(real), "the end of the process")
    return option


KINDS: Mapping[str, list[str]] = {
    "dead": ["-d"],
    "dead, the watchdog acts": ["-d"],
    "dead, of another user": ["-d"],
    "dead, of a unit": ["systemctl"],
    "dead, of a unit at its start limit": ["systemctl", "systemctl"],
    "dead, of a pod": ["kubectl"],
    "dead, beside another": ["-d"],
    "never started": ["-d"],
    "held": ["-TERM"],
    "hung": ["-CONT", "-KILL", "-d"],
    "hung, of a unit": ["-CONT", "systemctl"],
    "hung, the watchdog acts": ["-CONT", "-KILL", "-d"],
    "program hung": ["get_server_list"],
    "daemon suspended": ["-CONT"],
    "server suspended": ["-CONT"],
    "fault held": ["-KILL"],
    "limits drifted": ["set_default_active_thread_percentage"],
    "limits drifted in a container": ["set_default_active_thread_percentage"],
    "limits drifted, protocol 3": ["server"],
    "program hung, protocol 3": ["server"],
    "log blocked, protocol 3": ["-q", "-d"],
    "log blocked": ["quit", "-d"],
    "log blocked, of a unit": ["systemctl"],
    "circuit open": ["resume", "-d"],
    "circuit open, the watchdog acts": ["resume"],
    "circuit open, daemon up": ["resume"],
    "state lost": ["resume"],
    "quarantined": ["quit", "pause", "nvidia-smi", "resume", "-d", "resume"],
    "quarantined, dead": ["pause", "nvidia-smi", "resume", "-d", "resume"],
    "paused": ["resume"],
    "GPU lost": ["systemctl"],
}
"""What the commands of each case are, in order, without those that change nothing."""


@pytest.mark.parametrize("name", KINDS)
def test_pasted_commands_have_their_effect_on_the_daemon_and_no_other(name: str, root: Path) -> None:
    case, number = CASES[name], list(KINDS).index(name)
    with PastedCommands(root, DIRECTORIES[number % len(DIRECTORIES)], protocol=case.protocol) as shell:
        if case.runs:
            shell.start()
        other = shell.other.pid
        kinds = [check(shell, each) for each in commands(case, shell)]

        assert [each for each in kinds if each not in HELP] == KINDS[name]
        assert shell.other.is_running()
        assert shell.other.pid == other


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_stop_and_start_reach_a_daemon_in_any_directory(directory: str, root: Path) -> None:
    with PastedCommands(root, directory) as shell:
        shell.daemon.start()
        before = shell.daemon.pid

        assert [check(shell, each) for each in commands(CASES["log blocked"], shell)][:2] == ["quit", "-d"]

        assert shell.daemon.pid != before
        assert shell.other.is_running()


def test_all_cases_with_commands_are_pasted() -> None:
    changing = re.compile(r"(?!tail |export |cuda-mps-exporter doctor)")
    shown = {
        name
        for name, case in CASES.items()
        for finding in found(case)
        if any(map(changing.match, commands_of(finding)))
    }

    assert shown <= KINDS.keys() | {"quarantined, reboot"}


def found(case: Case) -> Any:
    present = case.node()
    return findings(present, present.at, case.policy)
