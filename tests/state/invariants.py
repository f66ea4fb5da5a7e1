"""What is true of a node after any observations in any order."""

from collections import Counter
from collections.abc import Iterable, Iterator

from exporter.model.event import Event, EventName
from exporter.model.node import Node
from tests.usage.balance import assert_balanced

Key = tuple[str, ...]


def assert_consistent(node: Node) -> None:
    """Assert that each client is on one known server, waiting clients are queued, and accounts balance."""
    for name, daemon in node.daemons.items():
        assert daemon.name == name
        for pid, client in daemon.clients.items():
            assert client.pid == pid
            assert client.server in daemon.servers
        assert all(server.pid == pid for pid, server in daemon.servers.items())
        assert daemon.connections.waiting.keys() <= daemon.connections.queued.keys()
        assert daemon.connections.recently_disconnected.keys() <= daemon.connections.disconnected_at.keys()
        assert all(leaving.pid == pid for pid, leaving in daemon.connections.disconnects.items())
        assert not daemon.servers.keys() & daemon.connections.server_exited_at.keys()
        assert all(0 < (server.limits.active_thread_percentage or 1) <= 100 for server in daemon.servers.values())
        assert all(min((1, *server.limits.pinned_memory.values())) > 0 for server in daemon.servers.values())
        totals = daemon.totals
        assert totals.connected - sum(totals.disconnected.values()) == len(daemon.clients)
        assert all(totals.log_lines_unrecognized[file] <= lines for file, lines in totals.log_lines.items())
    for gpu in node.gpus.values():
        assert all(process.first_seen <= node.at for process in gpu.bypassing_processes.values())
    assert_balanced(node.usage_totals)


def counters(node: Node) -> dict[Key, int]:
    return dict(_counters(node))


def assert_only_grown(before: dict[Key, int], after: dict[Key, int]) -> None:
    """Assert that no counter has decreased or disappeared."""
    assert {key: after.get(key) for key, value in before.items() if after.get(key, -1) < value} == {}


def assert_counts_match_events(node: Node, events: Iterable[Event]) -> None:
    """Assert that each count of a node that began empty has its event, and each start its end."""
    events = tuple(events)
    counts = Counter((event.daemon, event.event) for event in events)
    for name, daemon in node.daemons.items():
        totals = daemon.totals
        assert totals.connected == counts[name, EventName.CLIENT_CONNECTED]
        assert sum(totals.disconnected.values()) == counts[name, EventName.CLIENT_DISCONNECTED]
        assert sum(totals.refused.values()) == counts[name, EventName.CLIENT_REFUSED]
        assert totals.crash_loops == counts[name, EventName.SERVER_CRASH_LOOP]
        assert sum(totals.losses.values()) == counts[name, EventName.DAEMON_LOST]
        assert totals.faults_contained == counts[name, EventName.CLIENT_FAULT_CONTAINED]
        assert totals.crash_loops == counts[name, EventName.SERVER_CRASH_LOOP]
        servers = counts[name, EventName.SERVER_STARTED] - counts[name, EventName.SERVER_EXITED]
        assert servers == len(daemon.servers)
    _assert_alternate(events)


def _assert_alternate(events: tuple[Event, ...]) -> None:
    """Assert that starts and ends alternate, and that a state event is a change."""
    alive: set[tuple[str, str, int | None]] = set()
    states: dict[tuple[str, int | None], str | None] = {}
    for event in events:
        match event.event:
            case EventName.CLIENT_CONNECTED | EventName.SERVER_STARTED:
                life = _life(event)
                assert life not in alive
                alive.add(life)
                states.pop((event.daemon, event.server), None) if event.pid is None else None
            case EventName.CLIENT_DISCONNECTED | EventName.SERVER_EXITED:
                alive.remove(_life(event))
            case EventName.SERVER_STATE:
                assert states.get((event.daemon, event.server)) != event.state
                states[event.daemon, event.server] = event.state


def _life(event: Event) -> tuple[str, str, int | None]:
    return event.daemon, "client" if event.pid else "server", event.pid or event.server


def _counters(node: Node) -> Iterator[tuple[Key, int]]:
    for name, daemon in node.daemons.items():
        totals = daemon.totals
        yield (name, "connected"), totals.connected
        for single in ("faults", "fault_affected", "faults_contained", "crash_loops"):
            yield (name, single), getattr(totals, single)
        yield (name, "fault_recoveries"), totals.fault_recoveries.count
        yield (name, "crash_loops"), totals.crash_loops
        for kind in ("disconnected", "refused", "losses", "log_lines", "log_lines_unrecognized"):
            yield from (((name, kind, key), count) for key, count in getattr(totals, kind).items())
    for uuid, gpu in node.gpus.items():
        if gpu.energy is not None:
            yield (uuid, "energy"), gpu.energy.total
    for uuid, book in node.usage_totals.gpus.items():
        yield (uuid, "ledger", "sm"), book.total.sm_us
        yield (uuid, "ledger", "energy"), book.total.energy_mj
        yield (uuid, "ledger", "memory"), sum(book.memory_byte_ms.values())
    for source, seen in node.sources.items():
        yield (source, "failures"), seen.failures
