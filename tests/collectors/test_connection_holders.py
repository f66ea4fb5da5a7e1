"""Which process holds the connection of a client that has exited, with real processes and sockets."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from exporter.clock import SystemClock
from exporter.collectors.daemon_directory import connection_holders
from exporter.collectors.proc import Proc
from exporter.collectors.processes import HOLDERS_SECONDS, Processes
from exporter.model.identity import ConnectionHolders, ProcessIdentity
from exporter.model.observation import ProcessReading
from tests.clocks import HandClock
from tests.conftest import Starter
from tests.eventually import eventually
from tests.standin.forking import ForkingClient
from tests.standin.mps import MpsStandIn

CLOCK = SystemClock()
PROC = Proc(Path("/proc"), CLOCK)


@dataclass(frozen=True)
class ExitedClient:
    """A client whose process has exited, and the daemon and server at the other ends of its connections."""

    pid: int
    process: ProcessReading | None
    ends: tuple[ProcessIdentity, ...]


@pytest.fixture
def client(mps: MpsStandIn) -> Iterator[ForkingClient]:
    mps.start()
    with ForkingClient(mps) as forking:
        yield forking


def identity(pid: int) -> ProcessIdentity:
    return ProcessIdentity(pid=pid, start_ticks=PROC.start_ticks(pid) or 0)


def exited(mps: MpsStandIn, client: ForkingClient) -> ExitedClient:
    """Let a client exit, and return it as the exporter knows it."""
    process, ends = PROC.facts(client.pid), (identity(mps.server_pid or 0), identity(mps.pid))
    client.exit()
    return ExitedClient(pid=client.pid, process=process, ends=ends)


def changed(client: ExitedClient, **facts: Any) -> ExitedClient:
    """Return a client with a process that has these values."""
    assert client.process is not None
    return replace(client, process=replace(client.process, **facts))


def holders(client: ExitedClient) -> tuple[int, ...] | None:
    found = connection_holders(PROC, client.ends, {client.pid: client.process}).get(client.pid)
    return None if found is None else tuple(sorted(each.pid for each in found))


def test_finds_the_child_with_its_parents_connection(mps: MpsStandIn, client: ForkingClient, start: Starter) -> None:
    start()
    gone = exited(mps, client)
    found = connection_holders(PROC, gone.ends, {gone.pid: gone.process})
    assert found == {gone.pid: (identity(client.children[0]),)}


@pytest.mark.parametrize("options", [(), ("exec",)])
def test_finds_several_children_also_if_they_execute_another_program(mps: MpsStandIn, options: tuple[str, ...]) -> None:
    mps.start()
    with ForkingClient(mps, 2, *options) as client:
        assert holders(exited(mps, client)) == tuple(sorted(client.children))


def test_a_client_that_runs_has_no_holder(mps: MpsStandIn, client: ForkingClient) -> None:
    gone = exited(mps, client)
    with ForkingClient(mps) as other:
        running = replace(gone, pid=other.pid, process=PROC.facts(other.pid))
        for process in (running.process, None):
            assert connection_holders(PROC, gone.ends, {other.pid: process}) == {}


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


def test_a_connection_to_another_daemon_does_not_count(mps: MpsStandIn, client: ForkingClient, tmp_path: Path) -> None:
    gone = exited(mps, client)
    with MpsStandIn(tmp_path / "other") as other:
        other.start()
        assert holders(replace(gone, ends=(identity(other.pid),))) is None


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
        found = connection_holders(PROC, gone[0].ends, {each.pid: each.process for each in gone})
        pids = {pid: {each.pid for each in named or ()} for pid, named in found.items()}
        assert pids == {client.pid: set(client.children), other.pid: set(other.children)}


@pytest.mark.parametrize("is_closed", ["connection", "listener"])
def test_a_process_without_one_of_the_sockets_is_no_holder(mps: MpsStandIn, is_closed: str) -> None:
    """A child that has closed the connection ends with no client, and any process may have another connection."""
    mps.start()
    with ForkingClient(mps, 1, f"without-{is_closed}") as client:
        assert holders(exited(mps, client)) is None


def test_reports_holders_again_only_if_they_change(mps: MpsStandIn) -> None:
    mps.start()
    clock = HandClock(CLOCK.now())
    collector = Processes(proc=Path("/proc"), clock=clock, wait=0.0)

    def collect() -> list[ConnectionHolders]:
        clock.time += HOLDERS_SECONDS
        return [each for each in collector.collect().observations if isinstance(each, ConnectionHolders)]

    with ForkingClient(mps, 2) as client:
        gone = exited(mps, client)
        collector.watch(frozenset(), exited={gone.ends: {gone.pid: gone.process}})
        (first,) = collect()
        assert {each.pid for each in first.holders or ()} == set(client.children)
        assert collect() == []
        os.kill(client.children[0], 9)

        def reported() -> ConnectionHolders:
            found = collect()
            assert found
            return found[0]

        assert [each.pid for each in eventually(reported).holders or ()] == client.children[1:]
    collector.close()
