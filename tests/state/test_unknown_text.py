"""Unknown lines of logs, and unknown columns and rows of replies: they are counted, and change nothing else."""

import random
from collections.abc import Iterator
from dataclasses import replace

from exporter.model.daemon import Daemon
from exporter.model.event import Event
from exporter.model.node import Node
from exporter.model.observation import LogLine, Observation
from exporter.parse.protocol3 import LIST_CLIENTS, LIST_NAMESPACES, LIST_SERVERS
from exporter.reducer import reduce
from tests.builders import GPU
from tests.state.test_protocol3 import (
    CLIENT,
    CLIENTS,
    DAEMON,
    NAME,
    NAMESPACES,
    OTHER,
    SERVER,
    SERVERS,
    START,
    nvml,
    reply,
)

ROUNDS = 2_500
WORDS = (
    "quota",
    "tier",
    "N/A",
    "-",
    "0",
    "17",
    "locality",
    "GPU",
    "Ready",
    "FAULT",
    "Client",
    "{PID: 0}",
    "100",
    "née",
)

REPLIES = {
    LIST_SERVERS: f"{SERVERS}training,1000,{SERVER},Ready,{NAME}/training,-,-\n",
    LIST_CLIENTS: f"{CLIENTS}{CLIENT},training,{GPU},training/default (0),python\n"
    f"{OTHER},training,{GPU},training/default (0),python\n",
    LIST_NAMESPACES: f"{NAMESPACES}default,training,Ready,2G,50,0,{NAME}/training\n",
}


def words(chance: random.Random) -> str:
    return " ".join(chance.choice(WORDS) for _ in range(chance.randint(1, 6)))


def with_unknown_parts(text: str, chance: random.Random, *, rows: bool) -> str:
    """Return a table with another column and, with `rows`, a row that has too few cells."""
    place = chance.randrange(1, text.splitlines()[0].count(",") + 1)
    lines = []
    for number, line in enumerate(text.splitlines()):
        cells = line.split(",")
        cells.insert(place, "new-column" if number == 0 else chance.choice(WORDS))
        lines.append(",".join(cells))
    if rows:
        lines.insert(chance.randint(1, len(lines)), words(chance))
    return "\n".join(lines) + "\n"


def unknown_line(at: float, chance: random.Random) -> LogLine:
    """Return a line of the daemon or of a server with a text that no driver is known to write."""
    kind, pid = chance.choice((("Control", DAEMON), ("Server", SERVER), ("Other", SERVER)))
    file = "control.log" if kind == "Control" else f"{SERVER}/server.log"
    time = f"2026-11-25 19:05:15.{chance.randrange(1000):03}"
    return LogLine(at=at, daemon=NAME, file=file, line=f"[{time} {kind} {pid:5}] New: {words(chance)}")


def mutated(chance: random.Random, *, rows: bool) -> Iterator[Observation]:
    """Yield the replies with unknown parts, and an unknown line."""
    for at, (command, text) in enumerate(REPLIES.items(), start=3):
        yield reply(float(at), command, with_unknown_parts(text, chance, rows=rows))
    yield unknown_line(6.0, chance)
    yield nvml(7.0, CLIENT, OTHER)


def plain() -> Iterator[Observation]:
    for at, (command, text) in enumerate(REPLIES.items(), start=3):
        yield reply(float(at), command, text)
    yield nvml(7.0, CLIENT, OTHER)


def reduced(seen: Iterator[Observation]) -> tuple[Node, list[Event]]:
    node = Node(daemons={NAME: Daemon(name=NAME, pipe_directory=NAME, log_directory="/log")})
    found: list[Event] = []
    for each in (*START, *seen):
        node, events = reduce(node, each)
        found += events
    return node, found


def without_counters(node: Node) -> Daemon:
    daemon, empty = node.daemons[NAME], Daemon(name=NAME, pipe_directory=NAME, log_directory="/log")
    return replace(daemon, totals=empty.totals, log=empty.log)


def test_unknown_columns_and_lines_change_nothing_but_counters() -> None:
    """There are 10,000: three replies and a line in each round."""
    chance = random.Random(1)
    expected, events = reduced(plain())
    assert len(expected.daemons[NAME].clients) == 2
    for _ in range(ROUNDS):
        node, found = reduced(mutated(chance, rows=False))
        assert (without_counters(node), found) == (without_counters(expected), events)
        assert sum(node.daemons[NAME].totals.replies_unrecognized.values()) >= 3
        assert sum(node.daemons[NAME].totals.log_lines_unrecognized.values()) == 1


def test_after_unknown_rows_the_known_ones_still_count() -> None:
    """Such a row may be a client, so the list is not taken as complete."""
    chance = random.Random(2)
    expected, events = reduced(plain())
    for _ in range(ROUNDS // 10):
        node, found = reduced(mutated(chance, rows=True))
        assert found == events
        assert node.daemons[NAME].clients == expected.daemons[NAME].clients
        assert node.daemons[NAME].servers == expected.daemons[NAME].servers
