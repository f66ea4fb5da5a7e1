"""Which users a control daemon obeys: all may query; only its own user and root may change settings."""

import os
import pwd
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from lab.gpu.child import until_end
from lab.gpu.device import Device
from lab.gpu.mps import ControlDaemon, as_user
from tests.eventually import eventually

from . import tables

pytestmark = pytest.mark.gpu

ORDINARY = "nobody"
# No process has this PID (PID_MAX_LIMIT, proc_sys_kernel(5)).
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
# Only tried by users that must be refused.
ENDING = ("shutdown_server {server}", "quit")
TRIES = 4
REFUSALS = ("Insufficient privileges", "Not enough privilege", "Cannot send command", "Cannot find")


@dataclass(frozen=True, kw_only=True)
class Caller:
    """A user that sends commands. `prefix` is the program that sets capabilities."""

    name: str
    uid: int | None = None
    prefix: Sequence[str] = field(default=())
    changes: bool = True
    reads: bool = True


ROOT = Caller(name="root")


@pytest.fixture(scope="class")
def ordinary_users_daemon(root: Path, numbers: Iterator[int]) -> Iterator[ControlDaemon]:
    """Yield a daemon of an ordinary user."""
    daemon = ControlDaemon(root / str(next(numbers)), uid=_uid())
    daemon.start()
    yield from until_end(daemon)


def test_the_daemon_obeys_its_own_user_and_root(daemon: ControlDaemon, gpu: Device) -> None:
    """A process with the capability for the privileged socket cannot even query."""
    others = Caller(name=ORDINARY, uid=_uid(), changes=False)
    capable = Caller(name=f"{ORDINARY} with CAP_DAC_OVERRIDE", prefix=_with("dac_override"), changes=False, reads=False)
    _assert_obeyed(daemon, os.getuid(), (ROOT, others, capable), f"{gpu.name}, driver {gpu.driver}; root's daemon")


def test_an_ordinary_users_daemon_obeys_that_user_and_root(ordinary_users_daemon: ControlDaemon, gpu: Device) -> None:
    """The daemon checks the UID at the other end of the socket."""
    own = Caller(name=ORDINARY, uid=_uid())
    _assert_obeyed(ordinary_users_daemon, _uid(), (ROOT, own), f"{gpu.name}, driver {gpu.driver}; {ORDINARY}'s daemon")


def _assert_obeyed(daemon: ControlDaemon, uid: int, callers: Sequence[Caller], title: str) -> None:
    daemon.command(f"start_server -uid {uid}")
    eventually(lambda: _has_server(daemon))
    commands = [text.format(server=daemon.server(), uid=uid) for text in (*READING, *READING_LIMITS, *CHANGING)]
    replies = {(command, caller.name): _give(daemon, command, caller) for caller in callers for command in commands}
    ending = [text.format(server=daemon.server()) for text in ENDING]
    replies |= {
        (command, who.name): _give(daemon, command, who) for who in callers for command in ending if not who.changes
    }
    tables.write(_table(title, [*commands, *ending], callers, replies))
    changing = {*commands[-len(CHANGING) :], *ending}
    wrong = {
        (command, caller.name): replies[command, caller.name]
        for caller in callers
        for command in (*commands, *ending)
        if (command, caller.name) in replies
        and _is_obeyed(replies[command, caller.name], caller)
        is not (caller.changes if command in changing else caller.reads)
    }
    assert wrong == {}


def _give(daemon: ControlDaemon, command: str, caller: Caller) -> str:
    """Return the reply. A collision has the text of a refusal, so a refusal is tried again."""
    for _ in range(TRIES):
        done = subprocess.run(
            [*caller.prefix, "nvidia-cuda-mps-control"],
            input=f"{command}\n",
            env=daemon.environment,
            cwd="/",
            capture_output=True,
            text=True,
            timeout=20,
            **as_user(caller.uid),
        )
        if done.returncode == 0:
            break
        time.sleep(0.05)
    return " ".join(f"{done.stdout} {done.stderr}".split())


def _is_obeyed(reply: str, caller: Caller) -> bool:
    """Return whether the command was obeyed. A refusal can be an empty reply with exit code 0 (measured)."""
    return not any(refusal in reply for refusal in REFUSALS) and (caller.reads or reply != "")


def _table(title: str, commands: Sequence[str], callers: Sequence[Caller], replies: dict[tuple[str, str], str]) -> str:
    cell = partial(_cell, replies)
    rows = [f"| `{command}` | {' | '.join(cell(command, caller) for caller in callers)} |" for command in commands]
    head = [
        f"{title}:",
        "",
        f"| command | {' | '.join(caller.name for caller in callers)} |",
        f"|{'---|' * (len(callers) + 1)}",
    ]
    return "\n".join([*head, *rows, ""])


def _cell(replies: dict[tuple[str, str], str], command: str, caller: Caller) -> str:
    if (command, caller.name) not in replies:
        return "(not tried)"
    text = replies[command, caller.name].replace("|", "/")
    return f"{'yes' if _is_obeyed(text, caller) else '**no**'}: {text or '(empty)'}"


def _has_server(daemon: ControlDaemon) -> None:
    assert len(daemon.servers()) == 1


def _with(capability: str) -> tuple[str, ...]:
    """Return the prefix for an ordinary user with one capability."""
    uid = _uid()
    capabilities = (f"--inh-caps=+{capability}", f"--ambient-caps=+{capability}")
    return ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *capabilities, "--")


def _uid() -> int:
    return pwd.getpwnam(ORDINARY).pw_uid
