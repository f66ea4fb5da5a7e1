"""Checks of the driver, the GPUs, and the limits and devices of daemons and clients."""

from collections.abc import Iterable, Iterator, Mapping

from exporter.doctor.facts import Area, Facts, ProcessFacts, check, daemon_label, nvml_problem, process_label, shown
from exporter.model.node import CollectorName, Gpu
from exporter.model.reason import ReasonCode
from exporter.model.settings import ACTIVE_THREAD_PERCENTAGE, PINNED_MEMORY_LIMIT, VISIBLE_DEVICES
from exporter.parse.mps_variables import (
    hides_gpus,
    names_device,
    parse_memory_limits,
    parse_percentage,
    visible_device_entries,
)
from exporter.report.document_parts import Severity
from exporter.report.finding import Finding
from exporter.report.problems import NodeProblem
from exporter.report.reasons import reason_text
from exporter.report.remedy import gpu_text
from exporter.report.text import counted, listed
from exporter.state.devices import (
    client_devices,
    gpus_by_ordinal,
    gpus_of_clients,
    is_from_volta,
    serves_gpu,
    serves_process,
    serving_daemons,
)
from exporter.state.limits import BEFORE_VOLTA

DEVICE_USERS = (
    "find /proc/[0-9]*/task/*/fd -lname '/dev/nvidia*' 2>/dev/null"
    " | cut -d/ -f3 | sort -u | xargs -r ps -o pid,user,args"
)
"""Lists the processes that have a GPU open. fuser does not name those of which the main thread has ended."""

_DRIVER_COMMANDS = "modprobe nvidia", "nvidia-smi", "ldconfig -p | grep libnvidia-ml"
_NVML_COMMANDS = {
    ReasonCode.DRIVER_MISMATCH: (
        "cuda-mps-exporter pause",
        DEVICE_USERS,
        "modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia",
    ),
    ReasonCode.PACKAGE_CONFLICT: ("pip uninstall pynvml", "pip install --force-reinstall nvidia-ml-py"),
    ReasonCode.CONTAINER_WITHOUT_GPUS: (),
}


@check(NodeProblem.NVML_UNUSABLE, Area.GPUS)
def nvml_unusable(facts: Facts) -> Iterator[Finding]:
    """NVML does not work. If only one GPU is lost, the driver works, and `status` reports the GPU."""
    problem = nvml_problem(facts)
    if problem is not None and problem.code is not ReasonCode.GPU_LOST and not facts.node.gpus:
        values = {"problem": reason_text(problem, CollectorName.NVML)}
        commands = _NVML_COMMANDS.get(problem.code, _DRIVER_COMMANDS)
        yield Finding(NodeProblem.NVML_UNUSABLE, values=values, commands=commands)


@check(Severity.WARNING, Area.GPUS)
def no_gpu(facts: Facts) -> Iterator[Finding]:
    """The driver works, but finds no GPU. No CUDA process can run.

    Look for the reason in the kernel log. In a container, provide the devices (--gpus all, or NVIDIA_VISIBLE_DEVICES).
    """
    if CollectorName.NVML in facts.node.sources and nvml_problem(facts) is None and not facts.node.gpus:
        yield no_gpu.finding(commands=("nvidia-smi -L", "dmesg | grep -i NVRM"))


@check(Severity.INFO, Area.GPUS)
def compute_mode(facts: Facts) -> Iterator[Finding]:
    """The compute mode of a GPU does not suit MPS. EXCLUSIVE_PROCESS admits the MPS server, and through it clients.

    Set EXCLUSIVE_PROCESS before the daemon starts. A reboot resets it.
    """
    for gpu in facts.node.gpus.values():
        commands = (f"nvidia-smi -i {gpu.reading.gpu} -c EXCLUSIVE_PROCESS",)
        if gpu.reading.compute_mode == "prohibited":
            yield compute_mode.finding(
                gpu_text(facts.node, gpu.reading.gpu),
                details="It is PROHIBITED: no process can use CUDA, with MPS or without.",
                commands=commands,
                rated=Severity.CRITICAL,
            )
        elif gpu.reading.compute_mode == "default" and any(
            serves_process(facts.node, each, None) for each in serving_daemons(facts.node, gpu.reading)
        ):
            # The mode would lock out all users but that of a private daemon.
            count = len(gpu.bypassing)
            yield compute_mode.finding(
                gpu_text(facts.node, gpu.reading.gpu),
                details="It is Default: a process that does not find the daemon silently bypasses MPS."
                + (f" Bypassing processes now: {count}." if count else ""),
                advice="Then such a process gets an error. Ignore this if processes must use the GPU without MPS.",
                commands=commands,
                rated=Severity.WARNING if count else None,
            )


@check(Severity.WARNING, Area.GPUS)
def mig(facts: Facts) -> Iterator[Finding]:
    """A GPU with MPS has MIG enabled, but its daemon names no instance.

    CUDA uses one, and it is unknown which. The memory of its clients is unknown, too.

    Give each daemon its own instance (CUDA_VISIBLE_DEVICES=MIG-…) and directories. Or disable MIG, to share the
    whole GPU.
    """
    for gpu in _served(facts):
        if gpu.reading.mig_mode:
            yield mig.finding(
                gpu_text(facts.node, gpu.reading.gpu),
                commands=("nvidia-smi -L", f"nvidia-smi -i {gpu.reading.gpu} -mig 0"),
            )


@check(Severity.WARNING, Area.GPUS)
def pre_volta(facts: Facts) -> Iterator[Finding]:
    """A GPU with MPS is older than Volta. It has no limits or memory isolation, and any fault ends the server.

    Share it only among trusted processes. If its servers do not start, as in containers of Kubernetes, share it
    without MPS (time slices).
    """
    for gpu in _served(facts):
        if is_from_volta(gpu.reading) is False:
            capability = shown(gpu.reading.compute_capability or "")
            yield pre_volta.finding(
                gpu_text(facts.node, gpu.reading.gpu),
                details=f"Its compute capability is {capability}. It admits {BEFORE_VOLTA} clients.",
            )


@check(Severity.INFO, Area.GPUS)
def persistence_off(facts: Facts) -> Iterator[Finding]:
    """Persistence mode is off. An idle GPU loses its compute mode, and the next client waits until it is up.

    Enable nvidia-persistenced.
    """
    for gpu in _served(facts):
        if gpu.reading.persistence_mode is False:
            yield persistence_off.finding(
                gpu_text(facts.node, gpu.reading.gpu), commands=("systemctl enable --now nvidia-persistenced",)
            )


@check(Severity.WARNING, Area.GPUS, Area.DAEMONS)
def gpu_of_two_daemons(facts: Facts) -> Iterator[Finding]:
    """Several daemons serve one GPU. Their clients share it by time slices.

    Give each daemon its own GPUs, or stop all but one.
    """
    for gpu in facts.node.gpus.values():
        running = [
            shown(daemon.name)
            for daemon, each in facts.running()
            if each.process.environment is not None and serves_gpu(facts.node, daemon, gpu.reading)
        ]
        names = tuple(dict.fromkeys(running))
        if len(names) > 1:
            named = f"{gpu_text(facts.node, gpu.reading.gpu)}: {listed(names)}"
            yield gpu_of_two_daemons.finding(named, details="In EXCLUSIVE_PROCESS, the second server cannot start.")


@check(Severity.WARNING, Area.GPUS, Area.DAEMONS, Area.PROCESSES)
def visible_devices_wrong(facts: Facts) -> Iterator[Finding]:
    """CUDA_VISIBLE_DEVICES names a GPU that a daemon or client lacks, or one twice. CUDA ignores the rest of the list.

    Name each GPU once, by its UUID, or remove the variable, and restart the process.
    """
    with_context = {each.pid for gpu in facts.node.gpus.values() for each in gpu.reading.compute_processes or ()}
    listed = {} if nvml_problem(facts) else {uuid: gpu.reading.index for uuid, gpu in facts.node.gpus.items()}
    for daemon, each in facts.running():
        unknown = _unknown_device(each.process, listed, needed=daemon.declared.expected)
        if unknown is not None:
            yield visible_devices_wrong.finding(
                daemon_label(each),
                details=f"The daemon's entry is {unknown}.",
                advice="If the GPU was there before, see the kernel log.",
                commands=("nvidia-smi -L",),
                rated=Severity.CRITICAL,
            )
        ordinals = {uuid: ordinal for ordinal, uuid in gpus_by_ordinal(facts.node, daemon).items()}
        for process in facts.clients_of(daemon):
            unknown = _unknown_device(process, ordinals)
            # A process can change its own variables before it uses CUDA.
            if unknown is not None and process.pid not in with_context:
                yield visible_devices_wrong.finding(
                    f"{process_label(process)}, of {shown(daemon.name)}",
                    details=f"It was started with the entry {unknown}. The daemon has {len(ordinals)} GPUs, from 0 on.",
                    commands=("nvidia-smi -L",),
                )


def _unknown_device(process: ProcessFacts, ordinals: Mapping[str, int | None], *, needed: bool = False) -> str | None:
    """Return the first entry that names not exactly one further GPU, and why.

    A MIG instance, or what hides unneeded GPUs, ends the list. Numbers and UUIDs are not compared: of different GPUs,
    CUDA counts the fastest first.
    """
    visible, earlier = process.variable(VISIBLE_DEVICES), set[str]()
    for number, entry in enumerate(() if visible is None or not ordinals else visible_device_entries(visible)):
        if entry.startswith("MIG") or (hides_gpus(entry) and (number > 0 or not needed)):
            return None
        found = [entry if entry.isdecimal() else uuid for uuid, at in ordinals.items() if names_device(entry, at, uuid)]
        if len(found) != 1 or found[0] in earlier:
            why = "there is no such GPU" if not found else "it names several GPUs" if found[1:] else "it repeats a GPU"
            return f"{shown(entry) or 'empty'}: {why}"
        earlier.add(found[0])
    return None


@check(Severity.CRITICAL, Area.DAEMONS, Area.PROCESSES, page="docs/watchdog.md")
def thread_percentage_wrong(facts: Facts) -> Iterator[Finding]:
    """A thread percentage is not a number above 0 and up to 100. MPS ignores it.

    Write a number without a percent sign, and restart the process.
    """
    users = [(daemon_label(each), each.process) for _, each in facts.running()]
    users += [(process_label(process), process) for process in facts.processes.values()]
    for user, process in users:
        text = process.variable(ACTIVE_THREAD_PERCENTAGE)
        if text is not None and parse_percentage(text) is None:
            yield thread_percentage_wrong.finding(
                user, details=f"At its start, {ACTIVE_THREAD_PERCENTAGE} is {shown(text) or 'empty'}."
            )


@check(Severity.WARNING, Area.GPUS, Area.DAEMONS, Area.PROCESSES, page="docs/watchdog.md")
def memory_limit_without_effect(facts: Facts) -> Iterator[Finding]:
    """A memory limit does not limit a client. MPS reports no error.

    Give each device of a client its share, in G or M. Name devices by the client's own numbers. They start at 0,
    whatever its CUDA_VISIBLE_DEVICES is.
    """
    # A limit in a daemon's environment has no effect. If an entry of a client's names a device that is not visible, the
    # client has no limit, not even its daemon's (both measured, R580).
    for each in facts.daemons:
        if each.process.variable(PINNED_MEMORY_LIMIT) is not None:
            yield memory_limit_without_effect.finding(
                daemon_label(each),
                details=f"{PINNED_MEMORY_LIMIT} has no effect in the environment of a daemon.",
                advice="Set the limit by command after each start, or let the watchdog do so (`pinned_memory_limits`).",
            )
    for configured in facts.config.daemons:
        daemon = facts.node.daemons.get(configured.name)
        number = 0 if daemon is None else len(gpus_by_ordinal(facts.node, daemon))
        # The daemon accepts a limit of a device that it does not have (measured, R580).
        absent = [str(device) for device, _ in configured.pinned_memory_limits or () if device >= number > 0]
        if absent:
            yield memory_limit_without_effect.finding(
                shown(configured.name),
                details=f"The configuration limits device {listed(absent)}. The daemon has {counted(number, 'GPU')}.",
            )
    for daemon in facts.node.daemons.values():
        on = gpus_of_clients(facts.node, daemon, daemon.clients)
        for process in facts.clients_of(daemon):
            read, gpus = facts.node.processes.get(process.pid), on.get(process.pid, frozenset())
            devices = client_devices(facts.node, daemon, read, process.environment, gpus)
            limits = parse_memory_limits(process.variable(PINNED_MEMORY_LIMIT) or "")
            wrong = list(_wrong_limits(limits, devices))
            if wrong:
                yield memory_limit_without_effect.finding(
                    process_label(process),
                    details=f"It was started with {PINNED_MEMORY_LIMIT}, in which {' '.join(wrong)}",
                    commands=(f"{PINNED_MEMORY_LIMIT}=0=2G,1=512M",),
                )


def _wrong_limits(limits: Iterable[tuple[str, int | None]], devices: tuple[str, ...] | None) -> Iterator[str]:
    """Yield what is wrong with limits in bytes, None if it is not a size, by number or UUID of the client's devices."""
    for name, size in limits:
        is_number = name.isascii() and name.isdecimal() and len(name) < 4
        if not is_number and not (name.startswith(("GPU-", "MIG-")) if devices is None else name in devices):
            yield f"{shown(name) or 'an empty name'} names no device."
        elif not size:
            yield f"the limit of device {shown(name)} is not a size."
        elif is_number and devices is not None and int(name) >= len(devices):
            yield f"device {int(name)} is not visible (visible devices: {len(devices)}). So it has no limit at all."


def _served(facts: Facts) -> Iterator[Gpu]:
    """Yield the GPUs that a known daemon serves, or would serve if it ran."""
    for gpu in facts.node.gpus.values():
        if gpu.reading.problem is None and any(serving_daemons(facts.node, gpu.reading)):
            yield gpu
