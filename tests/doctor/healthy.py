"""The facts of a node on which all is well, and how to spoil them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from exporter.config.settings import Config, DaemonConfig
from exporter.doctor.facts import (
    Capability,
    DaemonFacts,
    DirectoryFacts,
    ExporterRights,
    Facts,
    LogFacts,
    ProcessFacts,
    Programs,
    Rotation,
    UnitFacts,
)
from exporter.model.gpu import BypassingProcess, Gpu
from exporter.model.node import Node
from exporter.model.problem import Problem
from exporter.model.settings import LOG_DIRECTORY, PIPE_DIRECTORY
from tests.builders import (
    AT,
    CLIENT,
    CONTROL,
    GPU,
    UNIT,
    at_work,
    daemon_process,
    gpu_reading,
    look,
    reduced,
    with_fields,
)
from tests.builders import node as unseen_node

DAEMON = "/run/nvidia-mps"
LOGS = f"{DAEMON}/log"
BESIDE = 700
PIPE, OTHER_PIPE = (1, 1), (1, 2)
SHARED, OTHER_SHARED = (2, 1), (3, 1)
NODES, CONTAINERS = 0xEFFFFFFC, 4026532999
ALL_RIGHTS = sum(1 << each for each in Capability)


def node() -> Node:
    """A daemon that answers, with one client on the only GPU."""
    reading = gpu_reading(
        [CLIENT],
        compute_mode="exclusive_process",
        persistence_mode=True,
        mig_mode=False,
        driver_version="580.159.04",
        cuda_version="13.0",
        compute_capability="9.0",
    )
    runs = replace(daemon_process(daemon=DAEMON, unit=UNIT), protocol=2)
    return reduced(*at_work(CLIENT, daemon=DAEMON), runs, reading, look(), start=unseen_node(DAEMON)).node


def process(pid: int = CLIENT, **known: Any) -> ProcessFacts:
    """A client; `known` is what is otherwise with it."""
    facts: dict[str, Any] = {
        "uid": 1001,
        "user": "alice",
        "command": "train.py",
        "variables": {PIPE_DIRECTORY: DAEMON},
        "pipe": PIPE,
        "shared_memory": SHARED,
        "pid_namespaces": (NODES,),
    }
    return ProcessFacts(pid=pid, **facts | known)


def daemon(**known: Any) -> DaemonFacts:
    """The control daemon; `known` is what is otherwise with it, or with its process."""
    of_process = {name: known.pop(name) for name in tuple(known) if name in ProcessFacts.__slots__}
    variables = {PIPE_DIRECTORY: DAEMON, LOG_DIRECTORY: LOGS} | of_process.pop("variables", {})
    usual: dict[str, Any] = {"uid": 0, "user": "root", "command": "nvidia-cuda-mps", "variables": variables}
    running = process(CONTROL, **usual | of_process)
    return DaemonFacts(**{"name": DAEMON, "process": running, "own_pid": CONTROL, "open_files": 16384} | known)


def directory(**known: Any) -> DirectoryFacts:
    """Its pipe directory."""
    return DirectoryFacts(**{"path": DAEMON, "pid": CONTROL, "pid_file_mode": 0o644} | known)


def log(**known: Any) -> LogFacts:
    """Its log."""
    return LogFacts(**{"path": f"{LOGS}/control.log", "size": 1000} | known)


def watcher(**known: Any) -> ExporterRights:
    """The service, with all rights that it can use."""
    usual: dict[str, Any] = {
        "pid": 900,
        "uid": 990,
        "groups": frozenset({101, 990}),
        "capabilities": ALL_RIGHTS & ~(1 << Capability.DAC_OVERRIDE),
        "is_service": True,
        "journal_group": 101,
        "pid_namespaces": (NODES,),
    }
    return ExporterRights(**usual | known)


def configured(**known: Any) -> Config:
    """The configuration, which names the daemon."""
    of_daemon = {name: known.pop(name) for name in ("unit", "pinned_memory_limits") if name in known}
    named = DaemonConfig(**{"pipe_directory": Path(DAEMON), "log_directory": Path(LOGS), "unit": UNIT} | of_daemon)
    return Config(daemons=(named,), **known)


def healthy(**known: Any) -> Facts:
    """All is well, but for what is `known`."""
    usual: dict[str, Any] = {
        "config": configured(),
        "node": node(),
        "programs": Programs(control="/usr/bin/nvidia-cuda-mps-control", server="/usr/bin/…-server", version="13000"),
        "kernel_module": "580.159.04",
        "daemons": (daemon(),),
        "processes": {CLIENT: process()},
        "directories": {DAEMON: directory()},
        "logs": {DAEMON: (log(),)},
        "rotations": (Rotation(path=f"{LOGS}/control.log", file="/etc/logrotate.d/mps", truncates=True),),
        "units": {UNIT: UnitFacts(name=UNIT, private_tmp=False)},
        "watcher": watcher(),
    }
    return Facts(**usual | known)


def with_gpu(facts: Facts, **reduced: Any) -> Facts:
    """The GPU reads otherwise."""
    gpu = facts.node.gpus[GPU]
    return _with(facts, replace(gpu, reading=replace(gpu.reading, **reduced)))


def with_daemon(facts: Facts, **known: Any) -> Facts:
    """The node knows the daemon otherwise."""
    other = with_fields(facts.node.daemons[DAEMON], **known)
    return replace(facts, node=replace(facts.node, daemons={DAEMON: other}))


def with_beside(facts: Facts, *beside: ProcessFacts) -> Facts:
    """Processes run beside MPS."""
    bypassing_processes = {each.pid: BypassingProcess(first_seen=AT, confirmed=True) for each in beside}
    facts = _with(facts, replace(facts.node.gpus[GPU], bypassing_processes=bypassing_processes, bypassing_known=True))
    return replace(facts, processes={**facts.processes, **{each.pid: each for each in beside}})


def with_problem(facts: Facts, problem: Problem) -> Facts:
    """NVML has not answered."""
    blind = reduced(look(problem=problem), start=unseen_node(DAEMON)).node
    return replace(facts, node=replace(facts.node, gpus={}, sources=blind.sources))


def _with(facts: Facts, gpu: Gpu) -> Facts:
    return replace(facts, node=replace(facts.node, gpus={GPU: gpu}))
