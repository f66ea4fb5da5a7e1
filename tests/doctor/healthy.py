"""Facts of a node without mistakes, and functions that change them."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from exporter.config.settings import Config, DaemonConfig
from exporter.doctor.facts import DaemonFacts, DirectoryFacts, ExporterProcess, Facts, ProcessFacts, Programs
from exporter.model.node import BypassingProcess, Gpu, Node
from exporter.model.observation import LogFile
from exporter.model.reason import Reason
from exporter.model.settings import LOG_DIRECTORY, PIPE_DIRECTORY
from exporter.parse.proc import Capability
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
CONTROL_LOG = f"{LOGS}/control.log"
BYPASSING = 700
PIPE, OTHER_PIPE = (1, 1), (1, 2)
SHARED, OTHER_SHARED = (2, 1), (3, 1)
NODES, CONTAINERS = 0xEFFFFFFC, 4026532999
ALL_RIGHTS = sum(1 << each for each in Capability)


def node() -> Node:
    reading = gpu_reading(
        [CLIENT],
        compute_mode="exclusive_process",
        persistence_mode=True,
        mig_mode=False,
        driver_version="580.159.04",
        cuda_version="13.0",
        compute_capability="9.0",
    )
    running = replace(daemon_process(daemon=DAEMON, unit=UNIT), protocol=2)
    log = LogFile(at=AT, daemon=DAEMON, file="control.log", size=1000, unread=0)
    return reduced(*at_work(CLIENT, daemon=DAEMON), running, log, reading, look(), start=unseen_node(DAEMON)).node


def process(pid: int = CLIENT, **changes: Any) -> ProcessFacts:
    facts: dict[str, Any] = {
        "uid": 1001,
        "user": "alice",
        "command": "train.py",
        "environment": {PIPE_DIRECTORY: DAEMON},
        "pipe": PIPE,
        "shared_memory": SHARED,
        "pid_namespaces": (NODES,),
    }
    return ProcessFacts(at=AT, pid=pid, start_ticks=pid, started=AT, **facts | changes)


def daemon(**changes: Any) -> DaemonFacts:
    of_process = {
        name: changes.pop(name) for name in tuple(changes) if name in {each.name for each in fields(ProcessFacts)}
    }
    own = of_process.pop("environment", {})
    variables = None if own is None else {PIPE_DIRECTORY: DAEMON, LOG_DIRECTORY: LOGS} | own
    usual: dict[str, Any] = {"uid": 0, "user": "root", "command": "nvidia-cuda-mps", "environment": variables}
    control = process(**{"pid": CONTROL} | usual | of_process)
    return DaemonFacts(
        **{"name": DAEMON, "process": control, "own_pid": CONTROL, "open_files": 16384, "written": (CONTROL_LOG,)}
        | changes
    )


def directory(**changes: Any) -> DirectoryFacts:
    return DirectoryFacts(**{"path": DAEMON, "pid": CONTROL, "pid_file_mode": 0o644} | changes)


def exporter_process(**changes: Any) -> ExporterProcess:
    usual: dict[str, Any] = {
        "pid": 900,
        "uid": 990,
        "capabilities": ALL_RIGHTS & ~(1 << Capability.DAC_OVERRIDE),
        "is_service": True,
        "pid_namespaces": (NODES,),
    }
    return ExporterProcess(**usual | changes)


def configured(**changes: Any) -> Config:
    of_daemon = {name: changes.pop(name) for name in ("unit", "pinned_memory_limits") if name in changes}
    daemon_config = DaemonConfig(
        **{"pipe_directory": Path(DAEMON), "log_directory": Path(LOGS), "unit": UNIT} | of_daemon
    )
    return Config(daemons=(daemon_config,), **changes)


def healthy(**changes: Any) -> Facts:
    """Return the facts of a node without mistakes, except for these changes."""
    usual: dict[str, Any] = {
        "config": configured(),
        "node": node(),
        "programs": Programs(control="/usr/bin/nvidia-cuda-mps-control", server="/usr/bin/…-server", version="13000"),
        "daemons": (daemon(),),
        "processes": {CLIENT: process()},
        "directories": {DAEMON: directory()},
        "private_tmp": {UNIT: False},
        "exporter": exporter_process(),
    }
    return Facts(**usual | changes)


def with_gpu(facts: Facts, **changes: Any) -> Facts:
    gpu = facts.node.gpus[GPU]
    return _with(facts, replace(gpu, reading=replace(gpu.reading, **changes)))


def with_daemon(facts: Facts, **changes: Any) -> Facts:
    changed = with_fields(facts.node.daemons[DAEMON], **changes)
    return replace(facts, node=replace(facts.node, daemons={DAEMON: changed}))


def with_bypassing(facts: Facts, *processes: ProcessFacts) -> Facts:
    bypassing = {each.pid: BypassingProcess(first_seen=AT, confirmed=True, daemon=DAEMON) for each in processes}
    facts = _with(facts, replace(facts.node.gpus[GPU], bypassing_processes=bypassing, bypassing_known=True))
    return replace(facts, processes={**facts.processes, **{each.pid: each for each in processes}})


def with_problem(facts: Facts, problem: Reason) -> Facts:
    """Return the facts of a node where NVML fails for all GPUs."""
    failed = reduced(look(problem=problem), start=unseen_node(DAEMON)).node
    return replace(facts, node=replace(facts.node, gpus={}, sources=failed.sources))


def _with(facts: Facts, gpu: Gpu) -> Facts:
    return replace(facts, node=replace(facts.node, gpus={GPU: gpu}))
