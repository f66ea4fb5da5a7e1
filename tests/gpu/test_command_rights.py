"""Whose commands a control daemon obeys: everybody may ask; to change anything is for its own user and for root."""

import os
import pwd
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from tests.eventually import eventually

from . import tables
from .device import Device
from .mps import ControlDaemon, as_user

pytestmark = pytest.mark.gpu

ORDINARY = "nobody"
# More than the kernel gives out (PID_MAX_LIMIT, proc_sys_kernel(5)).
NOBODYS_PID = 4194304
READING = ("get_server_list", "get_server_status {server}", "get_client_list {server}", "ps")
READING_LIMITS = (
    "get_default_active_thread_percentage",
    "get_default_device_pinned_mem_limit 0",
    "get_default_client_priority",
    "get_active_thread_percentage {server}",
    "get_device_pinned_mem_limit {server} 0",
)
CHANGING = (
    "set_default_active_thread_percentage 90",
    "set_default_device_pinned_mem_limit 0 8G",
    "set_default_client_priority 0",
    "set_active_thread_percentage {server} 90",
    "set_device_pinned_mem_limit {server} 0 8G",
    "start_server -uid {uid}",
    f"terminate_client {{server}} {NOBODYS_PID}",
)
# Only tried by those who must be refused.
ENDING = ("shutdown_server {server}", "quit")
TRIES = 4
REFUSALS = ("Insufficient privileges", "Not enough privilege", "Cannot send command", "Cannot find")


@dataclass(frozen=True, kw_only=True)
class Asker:
    """Who gives commands. `prefix` is the program that gives them capabilities."""

    name: str
    uid: int | None = None
    prefix: Sequence[str] = field(default=())
    changes: bool = True
    reads: bool = True


ROOT = Asker(name="root")


@pytest.fixture(scope="class")
def ordinarys_daemon(root: Path, numbers: Iterator[int]) -> Iterator[ControlDaemon]:
    """A daemon of an ordinary user's."""
    daemon = ControlDaemon(root / str(next(numbers)), uid=_uid())
    daemon.start()
    yield daemon
    daemon.end()


def test_commands_are_obeyed_by_whose_they_are(daemon: ControlDaemon, gpu: Device) -> None:
    """A capability that opens the privileged socket takes even the right to ask."""
    others = Asker(name=ORDINARY, uid=_uid(), changes=False)
    capable = Asker(name=f"{ORDINARY} with CAP_DAC_OVERRIDE", prefix=_with("dac_override"), changes=False, reads=False)
    _assert_obeyed(daemon, os.getuid(), (ROOT, others, capable), f"{gpu.name}, driver {gpu.driver}; root's daemon")


def test_an_ordinary_users_daemon_obeys_that_user_and_root(ordinarys_daemon: ControlDaemon, gpu: Device) -> None:
    """Who is told by the uid at the other end of the socket."""
    own = Asker(name=ORDINARY, uid=_uid())
    _assert_obeyed(ordinarys_daemon, _uid(), (ROOT, own), f"{gpu.name}, driver {gpu.driver}; {ORDINARY}'s daemon")


def _assert_obeyed(daemon: ControlDaemon, uid: int, askers: Sequence[Asker], title: str) -> None:
    daemon.command(f"start_server -uid {uid}")
    eventually(lambda: _has_server(daemon))
    commands = [text.format(server=daemon.server(), uid=uid) for text in (*READING, *READING_LIMITS, *CHANGING)]
    said = {(command, asker.name): _give(daemon, command, asker) for asker in askers for command in commands}
    ending = [text.format(server=daemon.server()) for text in ENDING]
    said |= {
        (command, who.name): _give(daemon, command, who) for who in askers for command in ending if not who.changes
    }
    tables.keep(_table(title, [*commands, *ending], askers, said))
    changing = {*commands[-len(CHANGING) :], *ending}
    wrong = {
        (command, asker.name): said[command, asker.name]
        for asker in askers
        for command in (*commands, *ending)
        if (command, asker.name) in said
        and _is_obeyed(said[command, asker.name], asker) is not (asker.changes if command in changing else asker.reads)
    }
    assert wrong == {}


def _give(daemon: ControlDaemon, command: str, asker: Asker) -> str:
    """What comes of it. Too soon after another's session is refused in the same words as for good, so not believed."""
    for _ in range(TRIES):
        done = subprocess.run(
            [*asker.prefix, "nvidia-cuda-mps-control"],
            input=f"{command}\n",
            env=daemon.environment,
            cwd="/",
            capture_output=True,
            text=True,
            timeout=20,
            **as_user(asker.uid),
        )
        if done.returncode == 0:
            break
        time.sleep(0.05)
    return " ".join(f"{done.stdout} {done.stderr}".split())


def _is_obeyed(said: str, asker: Asker) -> bool:
    """A refusal may come back as nothing at all, with exit code 0 (measured); whoever may ask gets no such one."""
    return not any(refusal in said for refusal in REFUSALS) and (asker.reads or said != "")


def _table(title: str, commands: Sequence[str], askers: Sequence[Asker], said: dict[tuple[str, str], str]) -> str:
    cell = partial(_cell, said)
    rows = [f"| `{command}` | {' | '.join(cell(command, asker) for asker in askers)} |" for command in commands]
    head = [
        f"{title}:",
        "",
        f"| command | {' | '.join(asker.name for asker in askers)} |",
        f"|{'---|' * (len(askers) + 1)}",
    ]
    return "\n".join([*head, *rows, ""])


def _cell(said: dict[tuple[str, str], str], command: str, asker: Asker) -> str:
    if (command, asker.name) not in said:
        return "(not tried)"
    text = said[command, asker.name].replace("|", "/")
    return f"{'yes' if _is_obeyed(text, asker) else '**no**'}: {text or '(empty)'}"


def _has_server(daemon: ControlDaemon) -> None:
    assert len(daemon.servers()) == 1


def _with(capability: str) -> tuple[str, ...]:
    """An ordinary user who has one capability."""
    uid = _uid()
    capabilities = (f"--inh-caps=+{capability}", f"--ambient-caps=+{capability}")
    return ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *capabilities, "--")


def _uid() -> int:
    return pwd.getpwnam(ORDINARY).pw_uid
