"""How findings show processes, paths and GPUs, and the commands that they share."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace

from exporter.config.reload import policy_of
from exporter.doctor.facts import DaemonFacts, Facts, ProcessFacts
from exporter.model.daemon import Daemon
from exporter.model.gpu import Gpu
from exporter.model.reason import Reason
from exporter.parse.printable import LONGEST_PROBLEM, is_service_name, printable
from exporter.report.remedy import address_of, commands_to_start, commands_to_stop, control_command, start_command
from exporter.report.text import display_name, process_text, short_gpu
from exporter.state.gpus import NVML

REPORT_DIFFERENCES = "Report what differs, with a recording: `cuda-mps-exporter record node.jsonl`."
AS_ROOT = ("sudo cuda-mps-exporter doctor",)
ATTRIBUTION_AS_ROOT = ("sudo cuda-mps-exporter doctor --attribution=bpf",)
"""The service has the option from its unit, but a command in a shell does not."""
RESTART_EXPORTER = "systemctl daemon-reload && systemctl restart cuda-mps-exporter"

UNITS = "/opt/cuda-mps-exporter/share/cuda-mps-exporter/systemd"
"""Where the guide's installation has units and drop-ins; the operator may have no clone of the repository."""

DROP_INS = f"install -Dm 644 -t /etc/systemd/system/cuda-mps-exporter.service.d {UNITS}/cuda-mps-exporter.service.d"


def as_user(uid: int | None, command: str) -> str:
    """Return a command that changes a user's own file. As root it would follow a link that the user puts there."""
    return command if uid in (0, None) else f"sudo -u '#{uid}' {command}"


def process_label(process: ProcessFacts) -> str:
    """Return a process as `PID 5120 (python3 of carol)`."""
    user = process.user or ("" if process.uid is None else f"UID {process.uid}")
    return process_text(process.pid, process.command, user)


def daemon_label(daemon: DaemonFacts) -> str:
    """Return a running daemon as `/run/nvidia-mps: PID 441 (nvidia-cuda-mps-control of root)`."""
    return f"{shown(daemon.name)}: {process_label(daemon.process)}"


def gpu_label(gpu: Gpu) -> str:
    """Return a GPU as `GPU 0 (GPU-1efa3f60, NVIDIA H200)`."""
    names = ", ".join(each for each in (short_gpu(gpu.reading.gpu), display_name(gpu.reading.name)) if each)
    return f"GPU ({names})" if gpu.reading.index is None else f"GPU {gpu.reading.index} ({names})"


def nvml_problem(facts: Facts) -> Reason | None:
    """Return why NVML does not work, if so."""
    source = facts.node.sources.get(NVML)
    return None if source is None else source.last.problem


def shown(text: str) -> str:
    """Return the printable form of a text from the node, such as a path or an error."""
    return printable(text, LONGEST_PROBLEM)


def error_text(problem: str) -> str:
    """Return a sentence with the text of an error."""
    return f"The error is: {shown(problem).rstrip('.')}."


def quoted(text: str) -> str:
    """Return such a text as one word of a shell command."""
    return shlex.quote(shown(text))


def config_line(key: str, text: str) -> str:
    """Return a line of the configuration file."""
    return f"{key} = {json.dumps(shown(text), ensure_ascii=False)}"


def start_commands(facts: Facts, daemon: Daemon) -> tuple[str, ...]:
    """Return the commands that start a daemon: through its unit, or with NVIDIA's program."""
    return commands_to_start(facts.node, daemon, policy_of(facts.config))


def control_commands(facts: Facts, daemon: Daemon, command: str) -> tuple[str, ...]:
    """Return the shell command that sends a control command to a daemon; empty if it cannot be written."""
    line = control_command(command, address_of(facts.node, daemon.name, policy_of(facts.config)))
    return () if line is None else (line,)


def restart_commands(
    facts: Facts, daemon: Daemon, *, option: str = "", variables: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Return the commands that restart a running daemon with one more option or variable."""
    policy = policy_of(facts.config)
    daemon_policy = policy.daemon_policy_of(daemon)
    unit = daemon_policy.unit
    if unit is not None and is_service_name(unit):
        changes = [f"ExecStart= with {option}"] if option else []
        changes += [f"Environment={name}={value}" for name, value in (variables or {}).items()]
        return f"systemctl edit {quoted(unit)}  # [Service] {', '.join(changes)}", f"systemctl restart {quoted(unit)}"
    command = (*start_command(facts.node, daemon, policy), *([option] if option else []))
    if variables:
        command = ("env", *(f"{name}={value}" for name, value in variables.items()), *command)
    changed_policy = replace(policy, daemon_policies={daemon.name: replace(daemon_policy, command=command)})
    stop = commands_to_stop(facts.node, daemon, policy)
    return (*stop, *commands_to_start(facts.node, daemon, changed_policy))


def without_private_tmp(unit: str) -> str:
    """Return the command that gives a unit the /tmp of the host."""
    return f"systemctl edit {quoted(unit)}  # [Service] PrivateTmp=no"
