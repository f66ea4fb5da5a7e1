"""A daemon for each GPU, with one exporter in mode `act`: `OUT=DIR python3 -m lab.many_gpus.daemons isolation|crowd`.

`isolation`: a fault, a SIGKILL and a hang of one daemon after another, and what changed for the others. DIR gets
samples.json.gz, of which `lab.many_gpus.alerts` shows the alerts, and pages. `crowd`: 48 clients of each daemon, the
cost of the exporter, and the times after a SIGKILL of one of the daemons, five times. DIR gets crowd.json.
"""

import gzip
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from exporter.model.settings import ACTIVE_THREAD_PERCENTAGE
from lab.gpu.clients import LOAD_PROGRAM, Client, Clients, build
from lab.gpu.device import devices
from lab.gpu.limited import PERCENTAGE, PINNED_MEMORY, LimitsInForce
from lab.gpu.mps import ControlDaemon, is_live_mps
from lab.gpu.program import Exporter
from lab.gpu.scrape import MIB, Scrape
from lab.gpu.timing import cpu_ratios
from lab.gpu.watchdog import configuration
from tests.eventually import eventually, until

SAMPLE_SECONDS = 5.0
QUIET_SECONDS, SHORT_SECONDS, HANG_SECONDS = 15.0, 40.0, 115.0
CLIENTS, FULL, SCRAPES, KILLS = 2, 48, 50, 5
FLOORS = 1
"""SIGKILLs after which the experiment itself starts the daemon at once: no exporter can be faster."""
KILL_SECONDS = 30.0
EVENTS = ("daemon_lost", "watchdog_acts", "watchdog_acted", "daemon_up", "limits_in_force")
CPU_AFTER_SECONDS, CPU_SECONDS = 25.0, 30.0
STEADY = (
    "cuda_mps_daemon_up",
    "cuda_mps_daemon_state",
    "cuda_mps_daemon_losses_total",
    "cuda_mps_faults_total",
    "cuda_mps_server_state",
    "cuda_mps_client_info",
    "cuda_mps_clients_connected_total",
    "cuda_mps_clients_disconnected_total",
    "cuda_mps_clients_refused_total",
    "cuda_mps_watchdog_diagnosis",
    "cuda_mps_watchdog_restarts_total",
)
"""Families that must not change while another daemon fails."""


def changes(before: Scrape, after: Scrape, daemon: str) -> list[str]:
    """Return what changed for a daemon between two scrapes, in the families that must not."""
    found = []
    for family in STEADY:
        old, new = (
            {tuple(sorted(each.labels.items())): each.value for each in scrape.select(family, daemon=daemon)}
            for scrape in (before, after)
        )
        found += [
            f"{family} {dict(labels)}: {old.get(labels)} to {new.get(labels)}"
            for labels in sorted(old.keys() | new.keys())
            if old.get(labels) != new.get(labels)
        ]
    return found


def findings_of_others(document: Mapping[str, Any], failed: Collection[str]) -> list[str]:
    """Return the problems in the status that name a daemon that has not failed."""
    daemons = ((each["code"], set(each["daemons"]) - set(failed)) for each in document["findings"])
    return [f"{code} of {', '.join(sorted(others))}" for code, others in daemons if others]


class Node:
    """The daemons by name, their clients, and the exporter."""

    def __init__(self, root: Path, gpus: int) -> None:
        program = build(LOAD_PROGRAM, root / "load")
        self.daemons = {
            f"gpu{gpu}": ControlDaemon(root / f"gpu{gpu}", variables={"CUDA_VISIBLE_DEVICES": str(gpu)})
            for gpu in range(gpus)
        }
        self.clients = {
            name: Clients(program, daemon, daemon.directory / "clients") for name, daemon in self.daemons.items()
        }
        self._file = root / "config.toml"
        self._file.write_text(configuration(self.daemons, {"mode": "act"}))
        self._exporter: Exporter | None = None

    @property
    def exporter(self) -> Exporter:
        """The exporter, after the start."""
        assert self._exporter is not None
        return self._exporter

    def start(self) -> None:
        """Start the daemons and the exporter, and wait until all are well."""
        for daemon in self.daemons.values():
            daemon.start()
        self._exporter = Exporter(
            next(iter(self.daemons.values())),
            f"--config.file={self._file}",
            "--client-min-age=0s",
            discovery=False,
            rules={"backoff": 1},
        )
        self._exporter.wait()
        eventually(self.is_well)

    def is_well(self) -> Scrape:
        """Return a scrape in which all daemons are well."""
        scrape = self.exporter.scrape()
        for name in self.daemons:
            assert scrape.value("cuda_mps_watchdog_diagnosis", daemon=name, diagnosis="well") == 1, name
        return scrape

    def lists(self, clients: Mapping[str, Sequence[Client]]) -> Scrape:
        """Return a scrape in which each daemon has exactly these clients."""
        scrape = self.exporter.scrape()
        for name, own in clients.items():
            listed = {int(each.labels["pid"]) for each in scrape.select("cuda_mps_client_info", daemon=name)}
            assert listed == {client.pid for client in own}, f"{name}: {len(listed)} of {len(own)}"
        return scrape

    def end(self) -> None:
        """End all processes, in any state."""
        for clients in self.clients.values():
            clients.end()
        if self._exporter is not None:
            self._exporter.end()
        for daemon in self.daemons.values():
            daemon.end()


def isolation(node: Node, out: Path) -> None:
    """Let one daemon after another fail, and print what changed for the others."""
    own = {name: _start(clients, CLIENTS, mib=64, busy_ms=2, every_ms=20) for name, clients in node.clients.items()}
    eventually(partial(node.lists, own))
    eventually(node.is_well)
    names, samples, victims = [*own], list[Mapping[str, Any]](), set[str]()
    plan: Sequence[tuple[str, str, Callable[[str], object], float]] = (
        ("quiet", "", lambda _: None, QUIET_SECONDS),
        ("fault", names[0], lambda name: node.clients[name].start("cause", fault="oob"), SHORT_SECONDS),
        ("SIGKILL", names[1 % len(names)], lambda name: node.daemons[name].kill(), SHORT_SECONDS),
        ("SIGSTOP", names[2 % len(names)], lambda name: os.kill(node.daemons[name].pid, signal.SIGSTOP), HANG_SECONDS),
    )
    for phase, victim, act, seconds in plan:
        others = [name for name in names if name != victim]
        victims.add(victim)
        time.sleep(SAMPLE_SECONDS)  # until the identity of new clients is known
        first, due = node.exporter.scrape(), time.monotonic()
        ends, states, wrong = due + seconds, set[str](), set[str]()
        act(victim)
        while (due := due + SAMPLE_SECONDS) <= ends:
            time.sleep(max(0.0, due - time.monotonic()))
            scrape, document = node.exporter.scrape(), json.loads(node.exporter.page("/api/v1/status"))["data"]
            samples.append({"at": scrape.at, "phase": phase, "victim": victim, "text": scrape.text})
            wrong |= {change for name in others for change in changes(first, scrape, name)}
            wrong |= set(findings_of_others(document, victims))
            states |= {scrape.state("cuda_mps_daemon_state", daemon=victim)} if victim else set()
        failed = [f"{name}: {each.name}" for name in others for each in own[name] if not _works(each)]
        print(f"{phase:8} {victim:5} was {', '.join(sorted(states)) or '-'}; others: {len(wrong)} changes or problems,")
        print(f"{'':15}clients of others that failed: {failed or 'none'}", *sorted(wrong), sep="\n    ", flush=True)
        (out / f"page-{phase}.html").write_text(node.exporter.page("/"))
        if victim:
            for client in own[victim]:
                client.leave()
            own[victim] = _start(node.clients[victim], CLIENTS, mib=64, busy_ms=2, every_ms=20)
            eventually(partial(node.lists, own))
            eventually(node.is_well)
        (out / "samples.json.gz").write_bytes(gzip.compress(json.dumps(samples).encode()))


def crowd(node: Node, out: Path) -> None:
    """Fill all servers, and kill daemons."""
    names = [*node.daemons]
    crowds = {name: [_idle(clients) for _ in range(FULL)] for name, clients in node.clients.items()}
    for client in (client for crowd in crowds.values() for client in crowd):
        client.settle(within=120)
    eventually(partial(node.lists, crowds))
    scrapes = [node.exporter.scrape() for _ in range(SCRAPES)]
    at_once = cpu_ratios(node.exporter.pid, CPU_SECONDS / 3)
    time.sleep(CPU_AFTER_SECONDS)  # until what is known of new clients has settled
    cpu = cpu_ratios(node.exporter.pid, CPU_SECONDS)
    figures: dict[str, Any] = {
        "clients": FULL * len(names),
        "cpu_percent": round(100 * sum(cpu), 2),
        "cpu_percent_of_commands": round(100 * cpu[1], 2),
        "cpu_percent_after_connection": round(100 * sum(at_once), 2),
        "rss_mib": round(psutil.Process(node.exporter.pid).memory_info().rss / MIB, 1),
        "scrape_ms_median": round(1000 * statistics.median(each.seconds for each in scrapes), 2),
        "scrape_ms_worst": round(1000 * max(each.seconds for each in scrapes), 2),
        "kills": [],
    }
    print(figures, flush=True)
    for number in range(KILLS + FLOORS):
        name = names[number % len(names)]
        others = {each: crowds[each] for each in names if each != name}
        by_hand = number >= KILLS
        if number == KILLS:
            node.exporter.command("pause")
        taken, started = _kill(node, name, crowds[name], by_hand=by_hand)
        crowds[name] = started
        if not by_hand:
            node.lists(others)
            eventually(partial(node.lists, crowds))
            node.exporter.command("resume", name)
        refused = sum(not client.events("ready") for client in started)
        figures["kills"].append({"by_hand": by_hand, **taken})
        who = "the experiment" if by_hand else "the exporter"
        print(f"SIGKILL of {name}, started by {who}: {taken}, {refused} of {FULL} refused", flush=True)
        (out / "crowd.json").write_text(json.dumps(figures, indent=1) + "\n")
    (out / "exporter.jsonl").write_text(node.exporter.child.text())


def _kill(node: Node, name: str, old: Sequence[Client], *, by_hand: bool) -> tuple[dict[str, float], list[Client]]:
    """Kill a daemon, and return the seconds until each sign, and its new clients, which start when it answers."""
    daemon, clients = node.daemons[name], node.clients[name]
    former, limits, servers = daemon.process(), LimitsInForce(daemon), daemon.servers()
    assert former is not None
    began, seen, started = time.time(), daemon.control_log.stat().st_size, list[Client]()
    daemon.kill()
    signs: dict[str, Callable[[], bool]] = {
        "daemon_ended": lambda: not is_live_mps(former),
        "server_ended": lambda: not any(map(_lives, servers)),
        "clients_ended": lambda: all(client.child.exit_code is not None for client in old),
        "starts": lambda: daemon.process() not in (None, former),
        "answers": lambda: _has_answered(daemon, seen),
        "server_starts": lambda: bool({*daemon.servers()} - {*servers}),
        "limits": limits,
        "client_ready": lambda: any(client.events("ready") for client in started),
    }
    taken: dict[str, float] = {}
    if by_hand:
        until(lambda: not is_live_mps(former))
        daemon.start(**{ACTIVE_THREAD_PERCENTAGE: str(PERCENTAGE)})
        daemon.command(f"set_default_device_pinned_mem_limit 0 {PINNED_MEMORY}")
    while len(taken) < len(signs) and time.time() - began < KILL_SECONDS:
        for sign in [each for each in signs if each not in taken and signs[each]()]:
            taken[sign] = round(time.time() - began, 3)
        if "answers" in taken and len(started) < FULL:
            started.append(_idle(clients))
        time.sleep(0.005)
    for client in started:
        client.settle()
    taken["all_ready"] = round(max(client.ready_at for client in started if client.events("ready")) - began, 3)
    events = (json.loads(line) for line in node.exporter.child.text().splitlines() if line.startswith("{"))
    taken |= {
        f"event {each['event']} {each.get('action', '')}".strip(): round(each["at"] - began, 3)
        for each in events
        if each.get("at", 0) >= began and each.get("daemon") == name and each["event"] in EVENTS
    }
    return taken, started


def _has_answered(daemon: ControlDaemon, seen: int) -> bool:
    """Return whether the new daemon has ended a control session. A query could collide with those of the exporter."""
    text = daemon.control_log.read_bytes()
    return b"UI closed" in (text[seen:] if len(text) >= seen else text)


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _start(clients: Clients, count: int, **options: Any) -> list[Client]:
    started = [clients.start(f"client{number}", seconds=600, **options) for number in range(count)]
    for client in started:
        client.ready()
    return started


def _idle(clients: Clients) -> Client:
    return clients.start("idle", seconds=600, every_ms=200)


def _works(client: Client) -> bool:
    return client.child.exit_code is None and not client.error_codes


def main() -> None:
    """Play a scene."""
    with tempfile.TemporaryDirectory(prefix="mps", dir="/tmp", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        node = Node(Path(name), len(devices()))
        try:
            node.start()
            {"isolation": isolation, "crowd": crowd}[sys.argv[1]](node, Path(os.environ["OUT"]))
        finally:
            node.end()


if __name__ == "__main__":
    main()
