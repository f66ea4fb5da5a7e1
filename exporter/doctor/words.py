"""How findings name processes, paths and GPUs."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace

from exporter.config.reload import policy_of
from exporter.doctor.facts import DaemonFacts, Facts, ProcessFacts
from exporter.model.daemon import Daemon
from exporter.model.gpu import Gpu
from exporter.parse.printable import LONGEST_PROBLEM, printable
from exporter.parse.unit_name import is_service_name
from exporter.report.remedy import address_of, commands_to_start, commands_to_stop, control_command, start_commands_of
from exporter.report.text import display_name, process_text, short_gpu

AS_ROOT = ("sudo cuda-mps-exporter doctor",)
ATTRIBUTION_AS_ROOT = ("sudo cuda-mps-exporter doctor --attribution=bpf",)
"""What the service was told by its unit, a command in a shell has to be told, too."""
TAKES_UP_ITS_UNIT = "systemctl daemon-reload && systemctl restart cuda-mps-exporter"

UNITS = "/opt/cuda-mps-exporter/share/cuda-mps-exporter/systemd"
"""Where the guide's installation has units and drop-ins: whoever mends need have no clone at hand."""


def as_user(uid: int | None, command: str) -> str:
    """Return a command that changes a user's own file. As root it would follow a link that the user puts there."""
    return command if uid in (0, None) else f"sudo -u '#{uid}' {command}"


def who(process: ProcessFacts) -> str:
    """A process in a few words: `PID 5120 (python3 of carol)`."""
    user = process.user or ("" if process.uid is None else f"UID {process.uid}")
    return process_text(process.pid, process.command, user)


def daemon_text(daemon: DaemonFacts) -> str:
    """A daemon that runs, and as which process: `/run/nvidia-mps: PID 441 (nvidia-cuda-mps-control of root)`."""
    return f"{shown(daemon.name)}: {who(daemon.process)}"


def shown(text: str) -> str:
    """Text that somebody else chose, such as a path or a problem."""
    return printable(text, LONGEST_PROBLEM)


def quoted(text: str) -> str:
    """The same as a word of a command, which a shell takes for one word whatever it is."""
    return shlex.quote(shown(text))


def keyed(key: str, text: str) -> str:
    """A key of the configuration file, with such a text."""
    return f"{key} = {json.dumps(shown(text), ensure_ascii=False)}"


def gpu_name(gpu: Gpu) -> str:
    """A GPU: `GPU 0 (GPU-1efa3f60, NVIDIA H200)`."""
    told = ", ".join(each for each in (short_gpu(gpu.reading.gpu), display_name(gpu.reading.name)) if each)
    return f"GPU ({told})" if gpu.reading.index is None else f"GPU {gpu.reading.index} ({told})"


def start_commands(facts: Facts, daemon: Daemon) -> tuple[str, ...]:
    """Return what starts a daemon: its unit, or NVIDIA's program."""
    return start_commands_of(facts.node, daemon, policy_of(facts.config))


def command_to(facts: Facts, daemon: Daemon, command: str) -> tuple[str, ...]:
    """Return what gives a daemon a command."""
    told = control_command(command, address_of(facts.node, daemon.name, policy_of(facts.config)))
    return () if told is None else (told,)


def restart_commands(
    facts: Facts, daemon: Daemon, *, option: str = "", variables: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Return what starts a daemon that runs again, with a further option or variable."""
    policy = policy_of(facts.config)
    daemon_policy = policy.daemon_policy_of(daemon)
    unit = daemon_policy.unit
    if unit is not None and is_service_name(unit):
        changed = [f"ExecStart= with {option}"] if option else []
        changed += [f"Environment={name}={value}" for name, value in (variables or {}).items()]
        return f"systemctl edit {quoted(unit)}  # [Service] {', '.join(changed)}", f"systemctl restart {quoted(unit)}"
    command = (*(daemon_policy.command or (policy.program, "-d")), *([option] if option else []))
    if variables:
        command = ("env", *(f"{name}={value}" for name, value in variables.items()), *command)
    stop = commands_to_stop(daemon, address=address_of(facts.node, daemon.name, policy))
    return (*stop, *commands_to_start(daemon, daemon_policy=replace(daemon_policy, command=command)))


def with_everybodys_tmp(unit: str) -> str:
    """What gives a unit the /tmp that all others have."""
    return f"systemctl edit {quoted(unit)}  # [Service] PrivateTmp=no"
