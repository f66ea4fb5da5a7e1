"""Checks of the driver and the GPUs."""

from collections.abc import Iterator

from exporter.doctor.facts import Area, Facts
from exporter.doctor.finding import Occurrence, Severity, check
from exporter.doctor.formatting import REPORT_DIFFERENCES, daemon_label, error_text, gpu_label, nvml_problem, shown
from exporter.model.gpu import Gpu
from exporter.model.reason import ReasonCode
from exporter.model.settings import VISIBLE_DEVICES
from exporter.parse.mps_variables import is_device_visible, visible_device_entries
from exporter.parse.protocol3 import PROTOCOL
from exporter.report.findings import lost_gpus
from exporter.report.problem import FindingCode
from exporter.report.reasons import reason_text
from exporter.state import gpus
from exporter.state.gpus import NVML, serving_daemon
from exporter.state.servers import BEFORE_VOLTA
from exporter.view import gpu_name

_OTHER_CHECKS = (ReasonCode.DRIVER_MISMATCH, ReasonCode.GPU_LOST, ReasonCode.PACKAGE_CONFLICT)
"""Problems of NVML that have a check of their own. They leave GPUs unread, but the driver is there."""


@check(FindingCode.GPU_LOST, Area.GPUS)
def gpu_lost(facts: Facts) -> Iterator[Occurrence]:
    """A GPU does not respond, or NVML no longer lists it."""
    for gpu, problem in lost_gpus(facts.node):
        yield Occurrence(
            (f"GPU {shown(gpu_name(facts.node, gpu))}",),
            detail=error_text(reason_text(problem, NVML)),
            commands=("nvidia-smi -q", "dmesg | grep -i -e NVRM -e Xid"),
        )


@check(
    Severity.ERROR,
    fix="Reboot. Or end all processes that use the GPUs, and reload the modules. The exporter releases them on "
    "`cuda-mps-exporter pause`.",
)
def driver_mismatch(facts: Facts) -> Iterator[Occurrence]:
    """The driver's libraries and kernel module have different versions. No CUDA process or MPS server can start."""
    problem = nvml_problem(facts)
    if problem is not None and problem.code is ReasonCode.DRIVER_MISMATCH:
        version = "" if facts.kernel_module is None else f" ({shown(facts.kernel_module)})"
        yield Occurrence(
            detail=f"The driver was upgraded, but the old module{version} is still loaded.",
            commands=("fuser -v /dev/nvidia*", "modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia"),
        )


@check(
    Severity.ERROR,
    fix="Load or install the driver. In a container, provide its libraries and devices (--gpus all, or "
    "NVIDIA_VISIBLE_DEVICES).",
)
def driver_unreadable(facts: Facts) -> Iterator[Occurrence]:
    """NVML does not work. The exporter cannot read the GPUs."""
    problem = nvml_problem(facts)
    if problem is not None and problem.code is ReasonCode.CONTAINER_WITHOUT_GPUS:
        yield Occurrence(detail=error_text(reason_text(problem, NVML)))
    elif problem is not None and problem.code not in _OTHER_CHECKS and not facts.node.gpus:
        loaded = facts.kernel_module is not None
        fix = "The module is loaded, so the package with libnvidia-ml is probably missing." if loaded else ""
        yield Occurrence(
            detail=error_text(reason_text(problem, NVML)),
            fix=fix,
            commands=("nvidia-smi", "ldconfig -p | grep libnvidia-ml") if loaded else ("modprobe nvidia", "nvidia-smi"),
        )


@check(Severity.ERROR, fix="Uninstall pynvml, and install nvidia-ml-py again. Then restart the exporter.")
def nvml_package_hidden(facts: Facts) -> Iterator[Occurrence]:
    """The Python package pynvml hides the module of nvidia-ml-py. The exporter does not read the GPUs through it."""
    problem = nvml_problem(facts)
    if problem is not None and problem.code is ReasonCode.PACKAGE_CONFLICT:
        yield Occurrence(commands=("pip uninstall pynvml", "pip install --force-reinstall nvidia-ml-py"))


@check(
    Severity.WARNING, Area.GPUS, fix="In a container, set NVIDIA_VISIBLE_DEVICES=all. Otherwise read the kernel log."
)
def no_gpu(facts: Facts) -> Iterator[Occurrence]:
    """The driver works, but finds no GPU."""
    source = facts.node.sources.get(NVML)
    if source is not None and source.last.problem is None and not facts.node.gpus:
        yield Occurrence(commands=("nvidia-smi -L", "dmesg | grep -i NVRM"))


@check(FindingCode.GPU_UNREADABLE, Area.GPUS)
def gpu_unreadable(facts: Facts) -> Iterator[Occurrence]:
    """NVML returns an error for a GPU."""
    for gpu in facts.node.gpus.values():
        if gpu.reading.problem is not None and gpu.reading.problem.code not in gpus.LOST:
            yield Occurrence(
                (gpu_label(gpu),),
                detail=error_text(reason_text(gpu.reading.problem, NVML)),
                commands=("nvidia-smi -q", "dmesg | grep -i -e NVRM -e Xid"),
            )


@check(Severity.ERROR, Area.GPUS, fix="Set EXCLUSIVE_PROCESS. It admits the MPS server, and through it the clients.")
def compute_mode_prohibited(facts: Facts) -> Iterator[Occurrence]:
    """The compute mode is PROHIBITED. No process can use CUDA, with MPS or without."""
    for gpu in facts.node.gpus.values():
        if gpu.reading.compute_mode == "prohibited":
            yield Occurrence((gpu_label(gpu),), commands=(_exclusive(gpu),))


@check(
    Severity.ADVICE,
    Area.GPUS,
    fix="If only MPS should use the GPU, set EXCLUSIVE_PROCESS. Then a process that bypasses MPS gets an error. Set it "
    "before the daemon starts. A reboot resets it.",
)
def compute_mode_default(facts: Facts) -> Iterator[Occurrence]:
    """The compute mode of a GPU with MPS is Default. A process that does not find the daemon silently bypasses MPS."""
    for gpu in _served(facts):
        if gpu.reading.compute_mode == "default":
            count = len(gpu.bypassing)
            yield Occurrence(
                (gpu_label(gpu),),
                detail=f"Bypassing processes now: {count}." if count else "",
                commands=(_exclusive(gpu),),
                severity=Severity.WARNING if count else None,
            )


@check(
    Severity.WARNING,
    Area.GPUS,
    fix="Give each daemon its own instance (CUDA_VISIBLE_DEVICES=MIG-…) and directories. Or disable MIG, if MPS should "
    "share the whole GPU.",
)
def mig(facts: Facts) -> Iterator[Occurrence]:
    """A GPU with MPS has MIG enabled, but its daemon names no instance. CUDA uses one, and it is unknown which."""
    for gpu in _served(facts):
        if gpu.reading.mig_mode:
            yield Occurrence(
                (gpu_label(gpu),),
                detail="A daemon serves one instance. Its clients' memory is unknown.",
                commands=("nvidia-smi -L", f"nvidia-smi -i {gpu.reading.index or 0} -mig 0"),
            )


@check(Severity.ADVICE, Area.GPUS, Area.DAEMONS, fix=REPORT_DIFFERENCES, doc="docs/support.md")
def untried_on_hardware(facts: Facts) -> Iterator[Occurrence]:
    """The exporter supports a part of this node by NVIDIA's documentation, not tried on hardware."""
    for gpu in _served(facts):
        if gpu.reading.mig is not None:
            yield Occurrence((gpu_label(gpu),), detail="A daemon serves a MIG instance.")
    for daemon, each in facts.running():
        if daemon.runtime.protocol == PROTOCOL:
            yield Occurrence((daemon_label(each),), detail="A daemon uses protocol 3.")


@check(
    Severity.WARNING,
    Area.GPUS,
    fix="Share it only among trusted processes. If its servers do not start, as in containers of Kubernetes, share it "
    "without MPS (time slices).",
)
def pre_volta(facts: Facts) -> Iterator[Occurrence]:
    """A GPU with MPS is older than Volta. It has no limits or memory isolation, and any fault ends the server."""
    for gpu in _served(facts):
        if gpus.is_from_volta(gpu.reading) is False:
            capability = shown(gpu.reading.compute_capability or "")
            yield Occurrence(
                (gpu_label(gpu),), detail=f"Its compute capability is {capability}. It admits {BEFORE_VOLTA} clients."
            )


@check(Severity.ADVICE, Area.GPUS, fix="Enable nvidia-persistenced.")
def persistence_off(facts: Facts) -> Iterator[Occurrence]:
    """Persistence mode is off. An idle GPU loses its compute mode, and the next client waits until it is up."""
    for gpu in _served(facts):
        if gpu.reading.persistence_mode is False:
            yield Occurrence((gpu_label(gpu),), commands=("systemctl enable --now nvidia-persistenced",))


@check(
    Severity.ERROR,
    Area.GPUS,
    Area.DAEMONS,
    fix="If the GPU was there before, see the kernel log. Otherwise name GPUs by UUID, and restart the daemon.",
)
def gpu_not_there(facts: Facts) -> Iterator[Occurrence]:
    """A daemon's CUDA_VISIBLE_DEVICES names a GPU that NVML does not list. CUDA ignores the rest of the list."""
    if not facts.node.gpus or nvml_problem(facts) is not None:
        return
    for _, each in facts.running():
        visible = each.process.variable(VISIBLE_DEVICES)
        for entry in () if visible is None else visible_device_entries(visible):
            if entry.startswith("MIG") or any(
                is_device_visible(entry, gpu.reading.index, uuid) for uuid, gpu in facts.node.gpus.items()
            ):
                continue
            yield Occurrence(
                (daemon_label(each),), detail=f"The entry is {shown(entry) or 'empty'}.", commands=("nvidia-smi -L",)
            )
            break


@check(Severity.WARNING, Area.GPUS, Area.DAEMONS, fix="Give each daemon its own GPUs, or stop all but one.")
def gpu_of_two_daemons(facts: Facts) -> Iterator[Occurrence]:
    """Several daemons serve one GPU. Their clients share it by time slices."""
    for gpu in facts.node.gpus.values():
        running = [
            shown(daemon.name)
            for daemon, each in facts.running()
            if each.process.variables is not None and gpus.serves_gpu(facts.node, daemon, gpu.reading)
        ]
        names = tuple(dict.fromkeys(running))
        if len(names) > 1:
            yield Occurrence(
                names, detail=f"The GPU is {gpu_label(gpu)}. In EXCLUSIVE_PROCESS, the second server cannot start."
            )


def _served(facts: Facts) -> Iterator[Gpu]:
    """Yield the GPUs that a known daemon serves, or would serve if it ran."""
    for gpu in facts.node.gpus.values():
        if gpu.reading.problem is None and serving_daemon(facts.node, gpu.reading) is not None:
            yield gpu


def _exclusive(gpu: Gpu) -> str:
    return f"nvidia-smi -i {gpu.reading.index or 0} -c EXCLUSIVE_PROCESS"
