"""Nodes whose problems have commands, with the directories of any daemon."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from exporter.model.daemon import NamedBy
from exporter.model.node import Node
from exporter.model.observation import Observation, PodFound
from exporter.model.settings import Limits, Mode
from exporter.model.watchdog import Quarantine, WatchdogPhase, WatchdogState
from exporter.watchdog.context import DaemonPolicy, Policy
from exporter.watchdog.evaluation import evaluate
from tests.builders import (
    AT,
    DAEMON,
    GPU,
    PAUSED,
    POD,
    SERVER,
    blocked_recovery,
    circuit_open,
    daemon_down,
    daemon_process,
    drifted,
    faulted,
    full,
    gpu_lost,
    holder,
    idle,
    look,
    no_daemon,
    no_nvml,
    node,
    owned,
    probe,
    quarantined,
    reduced,
    refusal,
    servers,
    silence,
    standing,
    three_clients,
    unit_state,
    watched,
    with_fields,
)

HOLDER = 4000
UNIT = "nvidia-cuda-mps@0.service"

OBSERVES, ACTS = Policy(mode=Mode.OBSERVE), Policy(mode=Mode.ACT)
WITH_UNIT = replace(OBSERVES, daemon_policies={DAEMON: DaemonPolicy(unit=UNIT)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A node with a problem.

    `runs` is whether its daemon runs, `evaluated` whether the watchdog has seen it, `protocol` that of the daemon.
    """

    make: Callable[[], Node]
    policy: Policy = OBSERVES
    runs: bool = True
    evaluated: bool = False
    protocol: int = 2

    def node(self, pipe: str = DAEMON, log: str = f"{DAEMON}/log") -> Node:
        """Return the node with these directories of its daemon."""
        present = self.make()
        if self.evaluated:
            present, _, _ = evaluate(present, self.policy, at=present.at + 1, chance=0.0)
        daemons, watches = {}, {}
        for name, each in present.daemons.items():
            if each.pipe_directory == DAEMON:
                new = name.replace(DAEMON, pipe) if "@" in name else name
                watches |= {new: present.watches[name]} if name in present.watches else {}
                daemons[new] = replace(with_fields(each, pipe_directory=pipe, log_directory=log), name=new)
            else:
                daemons[name] = each
        return replace(present, daemons=daemons, watches={**present.watches, **watches})


def after(start: Callable[[], Node], *seen: Observation) -> Callable[[], Node]:
    return lambda: reduced(*seen, start=start()).node


def in_phase(start: Callable[[], Node], phase: WatchdogPhase, **known: object) -> Callable[[], Node]:
    return lambda: watched(start(), phase=phase, **known)


def needs(start: Callable[[], Node], action: str) -> Callable[[], Node]:
    quarantine = Quarantine(at=AT, xid=95, gpu=GPU, action=action)
    return in_phase(start, WatchdogPhase.QUARANTINED, quarantine=quarantine)


def of_user(start: Callable[[], Node], uid: int) -> Node:
    """Return the node with a daemon that another user started."""
    present = start()
    known = replace(daemon_process(), uid=uid)
    daemon = present.daemons[DAEMON]
    process = None if daemon.runtime.process is None else known
    watch = replace(present.watches.get(DAEMON, WatchdogState()), process=known)
    return replace(present, daemons={DAEMON: with_fields(daemon, runtime__process=process)}, watches={DAEMON: watch})


def of_protocol_3(start: Callable[[], Node]) -> Node:
    """Return the node with a daemon of protocol 3, whose server belongs to root and has no memory limit."""
    present = start()
    daemon = present.daemons[DAEMON]
    servers = {
        pid: replace(each, name="uid_0", namespaces={"default": Limits()}, limits=Limits())
        for pid, each in daemon.servers.items()
    }
    process = replace(daemon_process(), protocol=3)
    daemon = replace(with_fields(daemon, runtime__process=process, runtime__protocol=3), servers=servers)
    return replace(present, daemons={DAEMON: daemon})


def log_blocked() -> Node:
    seen = (servers(SERVER, at=AT + 10), look("log", at=AT + 16), servers(SERVER, at=AT + 20), look("log", at=AT + 26))
    return reduced(*seen, start=three_clients()).node


def never_started() -> Node:
    seen = (no_daemon(), daemon_process(None, left=False), look("log"), no_daemon(at=AT + 20))
    return reduced(*seen, start=node()).node


def in_container(start: Callable[[], Node]) -> Node:
    """Return the node with a discovered daemon of a container."""
    present, name = start(), f"{DAEMON}@0123456789ab"
    daemon = with_fields(present.daemons[DAEMON], declared__by=NamedBy.DISCOVERED, declared__expected=False)
    known = present.watches.get(DAEMON, WatchdogState())
    return replace(present, daemons={name: replace(daemon, name=name)}, watches={name: known})


def in_pod() -> Node:
    """Return a dead daemon that a pod ran."""
    present = daemon_down()
    known = replace(daemon_process(), cgroup=f"0::/kubepods/burstable/pod{POD}/{'a' * 64}\n")
    found = PodFound(at=AT, uid=POD, name="mps-0", namespace="team-a")
    daemon = with_fields(present.daemons[DAEMON], runtime__last_process=known)
    return replace(watched(replace(present, daemons={DAEMON: daemon}), process=known), pods={POD: found})


def several() -> Node:
    """Return a dead daemon and one that runs."""
    present, other = daemon_down(), idle().daemons[DAEMON]
    name = "/run/nvidia/mps/other"
    known = replace(with_fields(other, pipe_directory=name), name=name)
    return replace(present, daemons={**present.daemons, name: known})


HUNG = tuple(
    each
    for at in (10, 20, 50)
    for each in (silence(at=AT + at), probe(False, at=AT + at + 0.1))
)  # fmt: skip
PROGRAM_HUNG = (silence(at=AT + 10), probe(True, at=AT + 10.1), silence(at=AT + 20), probe(True, at=AT + 20.1))
LIMIT_HIT = unit_state("failed", unit=UNIT, result="start-limit-hit", sub="failed")

CASES: Mapping[str, Case] = {
    "idle": Case(make=idle),
    "dead": Case(make=daemon_down, runs=False),
    "dead, the watchdog acts": Case(make=daemon_down, policy=ACTS, runs=False, evaluated=True),
    "dead, of another user": Case(make=partial(of_user, daemon_down, 1000), runs=False),
    "dead, of a unit": Case(make=daemon_down, policy=WITH_UNIT, runs=False),
    "dead, of a unit at its start limit": Case(make=after(daemon_down, LIMIT_HIT), policy=WITH_UNIT, runs=False),
    "dead, of a pod": Case(make=in_pod, runs=False),
    "dead, beside another": Case(make=several, runs=False),
    "never started": Case(make=never_started, runs=False, evaluated=True),
    "held": Case(
        make=after(three_clients, refusal(at=AT + 10), refusal(at=AT + 13), holder(HOLDER, at=AT + 13.5)),
        evaluated=True,
    ),
    "hung": Case(make=after(three_clients, *HUNG), evaluated=True),
    "hung, of a unit": Case(make=after(three_clients, *HUNG), policy=WITH_UNIT, evaluated=True),
    "hung, the watchdog acts": Case(make=after(three_clients, *HUNG), policy=ACTS, evaluated=True),
    "program hung": Case(make=after(three_clients, *PROGRAM_HUNG), evaluated=True),
    "daemon suspended": Case(
        make=after(three_clients, standing("T", at=AT + 8), *HUNG, standing("T", at=AT + 51)), evaluated=True
    ),
    "server suspended": Case(make=after(three_clients, standing("T", SERVER, at=AT + 8), *HUNG), evaluated=True),
    "fault": Case(make=faulted),
    "fault held": Case(make=blocked_recovery),
    "limits drifted": Case(make=drifted),
    "limits drifted in a container": Case(make=partial(in_container, drifted)),
    "limits drifted, protocol 3": Case(make=partial(of_protocol_3, drifted), protocol=3),
    "program hung, protocol 3": Case(
        make=partial(of_protocol_3, after(three_clients, *PROGRAM_HUNG)), evaluated=True, protocol=3
    ),
    "log blocked, protocol 3": Case(make=partial(of_protocol_3, log_blocked), protocol=3),
    "log blocked": Case(make=log_blocked),
    "log blocked, of a unit": Case(make=log_blocked, policy=WITH_UNIT),
    "log blocked in a container": Case(make=partial(in_container, log_blocked)),
    "circuit open": Case(make=circuit_open, runs=False),
    "circuit open, the watchdog acts": Case(make=circuit_open, policy=ACTS, runs=False),
    "circuit open, daemon up": Case(
        make=in_phase(three_clients, WatchdogPhase.CIRCUIT_OPEN, circuit_opened_at=AT)
    ),
    "state lost": Case(make=in_phase(three_clients, WatchdogPhase.STATE_LOST, state_lost_at=AT)),
    "deferred to systemd": Case(
        make=in_phase(daemon_down, WatchdogPhase.DEFERRED_TO_SYSTEMD), policy=WITH_UNIT, runs=False
    ),
    "quarantined": Case(make=needs(three_clients, "RESET_GPU")),
    "quarantined, dead": Case(make=needs(daemon_down, "RESET_GPU"), runs=False),
    "quarantined, reboot": Case(make=quarantined),
    "paused": Case(make=after(idle, look(problem=PAUSED, at=AT + 1))),
    "no NVML": Case(make=no_nvml),
    "GPU lost": Case(make=gpu_lost),
    "full": Case(make=full),
    "all workloads": Case(make=owned),
}  # fmt: skip
