"""Which process holds the connection of a client that has exited, with real processes and sockets."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from exporter.clock import SystemClock
from exporter.collectors import daemon_directory
from exporter.collectors.daemon_directory import DaemonDirectory, connection_holders, connections
from exporter.collectors.daemon_processes import Identities
from exporter.collectors.pipe_dir import on_host
from exporter.collectors.proc import Proc
from exporter.model.identity import ConnectionHolders, ProcessIdentity
from exporter.model.observation import ProcessReading, Wanted
from tests.clocks import HandClock
from tests.conftest import Starter
from tests.eventually import eventually
from tests.standin.forking import ForkingClient
from tests.standin.mps import MpsStandIn

# The tests state these values, so that they notice a change of the program's constants.
EXITED_SECONDS = 10.0
SEARCH_SECONDS = 2.0

CLOCK = SystemClock()
PROC = Proc(Path("/proc"), CLOCK)
NAME = "node"


@dataclass(frozen=True)
class ExitedClient:
    """A client whose process has exited, and its daemon."""

    pid: int
    process: ProcessReading | None
    daemon: ProcessIdentity


@pytest.fixture
def client(mps: MpsStandIn) -> Iterator[ForkingClient]:
    mps.start()
    with ForkingClient(mps) as forking:
        yield forking


def identity(pid: int) -> ProcessIdentity:
    return ProcessIdentity(pid=pid, start_ticks=PROC.start_ticks(pid) or 0)


def exited(mps: MpsStandIn, client: ForkingClient) -> ExitedClient:
    """Let a client exit, and return it as the exporter knows it."""
    process = PROC.facts(client.pid)
    client.exit()
    return ExitedClient(pid=client.pid, process=process, daemon=identity(mps.pid))


def changed(client: ExitedClient, **facts: Any) -> ExitedClient:
    """Return a client with a process that has these values."""
    assert client.process is not None
    return replace(client, process=replace(client.process, **facts))


def holders(client: ExitedClient) -> tuple[int, ...] | None:
    (found,) = connection_holders(PROC, CLOCK, NAME, client.daemon, {client.pid: client.process})
    return None if found.holders is None else tuple(sorted(each.pid for each in found.holders))


def test_finds_the_child_with_its_parents_connection(mps: MpsStandIn, client: ForkingClient, start: Starter) -> None:
    start()
    gone = exited(mps, client)
    (found,) = connection_holders(PROC, CLOCK, NAME, gone.daemon, {gone.pid: gone.process})
    assert found == ConnectionHolders(at=found.at, daemon=NAME, pid=gone.pid, holders=(identity(client.children[0]),))


@pytest.mark.parametrize("options", [(), ("exec",)])
def test_finds_several_children_also_if_they_execute_another_program(mps: MpsStandIn, options: tuple[str, ...]) -> None:
    mps.start()
    with ForkingClient(mps, 2, *options) as client:
        assert holders(exited(mps, client)) == tuple(sorted(client.children))


def test_names_a_limited_number_of_holders(mps: MpsStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_directory, "MOST_HOLDERS", 1)
    mps.start()
    with ForkingClient(mps, 2) as client:
        gone, (first, second) = exited(mps, client), sorted(client.children)
        assert holders(gone) == (first,)
        os.kill(first, signal.SIGKILL)
        eventually(lambda: named(gone, second))


def named(client: ExitedClient, holder: int) -> None:
    assert holders(client) == (holder,)


def test_a_client_that_runs_has_no_holder(mps: MpsStandIn, client: ForkingClient) -> None:
    gone = exited(mps, client)
    with ForkingClient(mps) as other:
        running = replace(gone, pid=other.pid, process=PROC.facts(other.pid))
        for process in (running.process, None):
            assert list(connection_holders(PROC, CLOCK, NAME, gone.daemon, {other.pid: process})) == []


def test_a_child_of_a_running_client_holds_no_connection_of_another_one(mps: MpsStandIn, client: ForkingClient) -> None:
    with ForkingClient(mps):
        assert holders(exited(mps, client)) == tuple(client.children)


def test_a_process_that_cannot_be_a_child_is_not_named(
    mps: MpsStandIn, client: ForkingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any process can receive a connection from another one (SCM_RIGHTS), and needs not know it."""
    gone, (child,) = exited(mps, client), client.children
    assert holders(changed(gone, cgroup="0::/another.scope\n")) is None
    younger = changed(gone, start_ticks=(PROC.start_ticks(child) or 0) + 1)
    assert holders(younger) is None
    status = PROC.status(child) or ""
    others = status.replace(f"Uid:\t{os.getuid()}\t", f"Uid:\t{os.getuid() + 1}\t")
    monkeypatch.setattr(Proc, "status", lambda self, pid: others if pid == child else self.text(pid, "status"))
    assert holders(gone) is None


def test_sockets_that_cannot_be_read_name_no_holder(
    mps: MpsStandIn, client: ForkingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = exited(mps, client)

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Proc, "sockets", refuse)
    assert holders(gone) is None


def test_finds_the_child_also_if_a_server_made_the_connection(
    mps: MpsStandIn, client: ForkingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon is the parent of its servers."""
    gone, parent_pid = exited(mps, client), Proc.parent_pid
    parents = {mps.pid: os.getpid()}
    monkeypatch.setattr(Proc, "parent_pid", lambda self, pid: parents.get(pid) or parent_pid(self, pid))
    assert holders(replace(gone, daemon=identity(os.getpid()))) == tuple(client.children)


def test_a_connection_to_another_daemon_does_not_count(mps: MpsStandIn, client: ForkingClient, tmp_path: Path) -> None:
    gone = exited(mps, client)
    with MpsStandIn(tmp_path / "other") as other:
        other.start()
        assert holders(replace(gone, daemon=identity(other.pid))) is None


def test_finds_the_child_of_a_client_that_was_never_read(mps: MpsStandIn, client: ForkingClient) -> None:
    """The child still has its parent's libcuda, and the socket at which that began to listen."""
    gone = replace(exited(mps, client), process=None)
    with ForkingClient(mps) as other:
        exited(mps, other)
        assert holders(gone) == tuple(client.children)


def test_of_a_client_that_was_never_read_another_program_is_no_holder(mps: MpsStandIn) -> None:
    mps.start()
    with ForkingClient(mps, 1, "exec") as client:
        assert holders(replace(exited(mps, client), process=None)) is None


def test_of_several_exited_clients_each_has_its_own_holders(mps: MpsStandIn, client: ForkingClient) -> None:
    with ForkingClient(mps, 2) as other:
        gone = exited(mps, client), exited(mps, other)
        found = connection_holders(PROC, CLOCK, NAME, gone[0].daemon, {each.pid: each.process for each in gone})
        pids = {named.pid: {each.pid for each in named.holders or ()} for named in found}
        assert pids == {client.pid: set(client.children), other.pid: set(other.children)}


@pytest.mark.parametrize("option", ["without-connection", "without-listener", "other-listener", "as-client"])
def test_a_process_that_may_have_no_connection_of_the_client_is_no_holder(mps: MpsStandIn, option: str) -> None:
    """A child that has closed the connection ends with no client. Another client has a connection of its own."""
    mps.start()
    with ForkingClient(mps, 1, option) as client:
        assert holders(exited(mps, client)) is None


def test_a_socket_that_is_none_any_more_leaves_no_descriptor_open(
    client: ForkingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process can open a file in its place. Others have no name (AF_ALG)."""
    monkeypatch.setattr(Proc, "sockets", lambda *_: [0])
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        assert list(connections(PROC, identity(client.children[0]))) == []
    assert len(os.listdir("/proc/self/fd")) < before + 50


def test_reads_descriptors_only_of_processes_that_may_be_children(
    mps: MpsStandIn, client: ForkingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, read, sockets = exited(mps, client), set(), Proc.sockets
    monkeypatch.setattr(Proc, "sockets", lambda self, pid, most: read.add(pid) or sockets(self, pid, most))
    assert holders(changed(gone, cgroup="0::/another.scope\n")) is None
    assert read == set()
    assert holders(gone) == tuple(client.children)
    assert not read & {mps.pid, mps.server_pid, os.getpid()}


def directory(mps: MpsStandIn, client: ExitedClient, clock: HandClock) -> DaemonDirectory:
    found = DaemonDirectory(on_host(NAME, mps.pipe_directory, mps.log_directory), PROC, clock, Identities())
    found.wanted = Wanted(exited={NAME: {client.pid: client.process}, "other": {os.getpid(): None}})
    return found


def collected(directory: DaemonDirectory) -> list[ConnectionHolders]:
    return [each for each in directory.collect().observations if isinstance(each, ConnectionHolders)]


def test_reports_holders_again_only_if_they_change(mps: MpsStandIn) -> None:
    mps.start()
    with ForkingClient(mps, 2) as client:
        clock = HandClock(CLOCK.now())
        reader = directory(mps, exited(mps, client), clock)
        (first,) = collected(reader)
        assert {each.pid for each in first.holders or ()} == set(client.children)
        clock.time += EXITED_SECONDS
        assert collected(reader) == []
        os.kill(client.children[0], 9)

        def reported() -> ConnectionHolders:
            clock.time += EXITED_SECONDS
            found = collected(reader)
            assert found
            return found[0]

        assert [each.pid for each in eventually(reported).holders or ()] == client.children[1:]


def test_a_search_that_takes_too_long_reports_nothing(mps: MpsStandIn, client: ForkingClient) -> None:
    """A user can have thousands of processes, each with thousands of sockets."""

    class SlowClock(HandClock):
        def monotonic(self) -> float:
            self.time += SEARCH_SECONDS
            return self.time

    reader = directory(mps, exited(mps, client), SlowClock(CLOCK.now()))
    assert [collected(reader) for _ in range(8)] == [[]] * 8
