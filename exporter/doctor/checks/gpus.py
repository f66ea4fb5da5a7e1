"""Checks of GPUs."""

from collections.abc import Iterator

from exporter.doctor.facts import Area, Facts
from exporter.doctor.finding import Check, Found, Severity, found
from exporter.doctor.words import daemon_text, gpu_name, shown
from exporter.model.gpu import Gpu
from exporter.model.problem import Problem, ProblemCode
from exporter.model.settings import VISIBLE_DEVICES
from exporter.parse.mps_variables import is_device_visible, visible_device_entries
from exporter.report.problem import FindingCode
from exporter.report.problem_text import problem_text
from exporter.state import gpus
from exporter.state.gpus import NVML, serving_daemon
from exporter.state.servers import BEFORE_VOLTA, VOLTA


def driver_mismatch(facts: Facts) -> Iterator[Found]:
    """The driver's libraries and kernel module are of different versions."""
    problem = _nvml_problem(facts)
    if problem is not None and problem.code is ProblemCode.DRIVER_MISMATCH:
        module = "" if facts.kernel_module is None else f" (the module is {shown(facts.kernel_module)})"
        yield Found(
            severity=Severity.ERROR,
            what=f"the driver's libraries and its kernel module are of different versions{module}: it was upgraded, "
            "and the old module is still loaded; no new CUDA process can start, nor any MPS server",
            mend="Reboot; or end all who use the GPUs (cuda-mps-exporter pause is enough for the exporter), and load "
            "the modules anew",
            commands=("fuser -v /dev/nvidia*", "modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia"),
        )


def driver_unreadable(facts: Facts) -> Iterator[Found]:
    """NVML cannot be used."""
    problem = _nvml_problem(facts)
    if problem is not None and problem.code is not ProblemCode.DRIVER_MISMATCH and not facts.node.gpus:
        loaded = facts.kernel_module is not None
        mend = (
            "The driver's module is loaded, but its library is not found or may not open the GPUs: in a container, "
            "bring them in (--gpus all, or NVIDIA_VISIBLE_DEVICES); else install the package with libnvidia-ml"
            if loaded
            else "Load the driver, or install it; where this machine has no GPU, there is nothing to watch"
        )
        yield Found(
            severity=Severity.ERROR,
            what=f"the GPUs cannot be read: {problem_text(problem, NVML)}",
            mend=mend,
            commands=("nvidia-smi", "ldconfig -p | grep libnvidia-ml") if loaded else ("modprobe nvidia", "nvidia-smi"),
        )


def no_gpu(facts: Facts) -> Iterator[Found]:
    """The driver sees no GPU."""
    source = facts.node.sources.get(NVML)
    if source is not None and source.last.problem is None and not facts.node.gpus:
        yield Found(
            severity=Severity.WARNING,
            what="the driver answers, and sees no GPU",
            mend="In a container, bring them in (NVIDIA_VISIBLE_DEVICES=all); else see what the kernel says",
            commands=("nvidia-smi -L", "dmesg | grep -i NVRM"),
        )


def gpu_unreadable(facts: Facts) -> Iterator[Found]:
    """A GPU cannot be read."""
    for gpu in facts.node.gpus.values():
        if gpu.reading.problem is not None:
            yield found(
                FindingCode.GPU_UNREADABLE,
                detail=f"The error is: {problem_text(gpu.reading.problem, NVML)}.",
                where=(gpu_name(gpu),),
                commands=("nvidia-smi -q", "dmesg | grep -i -e NVRM -e Xid"),
            )


def compute_mode_default(facts: Facts) -> Iterator[Found]:
    """The compute mode of a GPU with MPS is Default: who misses the daemon bypasses MPS, and nobody is told."""
    for gpu in _served(facts):
        if gpu.reading.compute_mode == "default":
            beside = len(gpu.bypassing)
            now = f"; {beside} of them at present" if beside else ""
            yield Found(
                severity=Severity.WARNING if beside else Severity.ADVICE,
                what="the compute mode is Default: a process that misses the daemon, as all do once it has died, "
                f"silently bypasses MPS, without its limits{now}. In EXCLUSIVE_PROCESS it fails loudly",
                where=(gpu_name(gpu),),
                mend="Where nothing but MPS is to use the GPU, set this before the daemon starts; it lasts until the "
                "next boot",
                commands=(f"nvidia-smi -i {gpu.reading.index or 0} -c EXCLUSIVE_PROCESS",),
            )


def compute_mode_prohibited(facts: Facts) -> Iterator[Found]:
    """The compute mode is PROHIBITED: no CUDA at all."""
    for gpu in facts.node.gpus.values():
        if gpu.reading.compute_mode == "prohibited":
            yield Found(
                severity=Severity.ERROR,
                what="the compute mode is PROHIBITED: nobody can use CUDA there, with MPS or without",
                where=(gpu_name(gpu),),
                mend="Allow MPS' server, and through it its clients",
                commands=(f"nvidia-smi -i {gpu.reading.index or 0} -c EXCLUSIVE_PROCESS",),
            )


def mig(facts: Facts) -> Iterator[Found]:
    """A GPU with MPS has MIG on."""
    for gpu in _served(facts):
        if gpu.reading.mig_mode:
            yield Found(
                severity=Severity.WARNING,
                what="MIG is on: a daemon serves one instance there, and NVML tells nothing of an instance's processes "
                "that could be relied on, so memory and bypassing processes are not known",
                where=(gpu_name(gpu),),
                mend="Give each daemon one instance (CUDA_VISIBLE_DEVICES=MIG-…) and directories of its own; or turn "
                "MIG off, where MPS is to share the whole GPU",
                commands=("nvidia-smi -L", f"nvidia-smi -i {gpu.reading.index or 0} -mig 0"),
            )


def pre_volta(facts: Facts) -> Iterator[Found]:
    """A GPU with MPS is from before Volta: no isolation, no limits, 16 clients."""
    for gpu in _served(facts):
        major = (gpu.reading.compute_capability or "").partition(".")[0]
        if major.isdecimal() and int(major) < VOLTA:
            yield Found(
                severity=Severity.WARNING,
                what=f"a GPU from before Volta (compute capability {shown(gpu.reading.compute_capability or '')}): "
                f"{BEFORE_VOLTA} clients at most, no limits, one address space for all, and any fault ends the server",
                where=(gpu_name(gpu),),
                mend="Use MPS there only for processes that trust each other",
            )


def persistence_off(facts: Facts) -> Iterator[Found]:
    """Persistence mode is off: the driver forgets an idle GPU's settings."""
    for gpu in _served(facts):
        if gpu.reading.persistence_mode is False:
            yield Found(
                severity=Severity.ADVICE,
                what="persistence mode is off: while nobody uses the GPU, the driver shuts it down and forgets its "
                "compute mode; the next client waits until it is up again",
                where=(gpu_name(gpu),),
                mend="Have NVIDIA's persistence daemon run",
                commands=("systemctl enable --now nvidia-persistenced",),
            )


def gpu_not_there(facts: Facts) -> Iterator[Found]:
    """A daemon's CUDA_VISIBLE_DEVICES names a GPU that is not there."""
    if not facts.node.gpus:
        return
    for _, each in facts.running():
        visible = (each.process.variables or {}).get(VISIBLE_DEVICES)
        for entry in () if visible is None else visible_device_entries(visible):
            if entry.startswith("MIG") or any(
                is_device_visible(entry, gpu.reading.index, uuid) for uuid, gpu in facts.node.gpus.items()
            ):
                continue
            yield Found(
                severity=Severity.ERROR,
                what=f"a daemon's CUDA_VISIBLE_DEVICES names {shown(entry) or 'nothing'}, which is no GPU of this "
                "node: CUDA ends the list there, and the daemon's ordinals are not those that are meant",
                where=(daemon_text(each),),
                mend="Name GPUs by their UUIDs, which mean the same on every day, and restart the daemon",
                commands=("nvidia-smi -L",),
            )
            break


def gpu_of_two_daemons(facts: Facts) -> Iterator[Found]:
    """Several daemons serve one GPU."""
    for gpu in facts.node.gpus.values():
        running = [
            daemon
            for daemon, each in facts.running()
            if each.process.variables is not None and gpus.served(daemon, gpu.reading)
        ]
        names = tuple(dict.fromkeys(shown(daemon.name) for daemon in running))
        if len(names) > 1:
            yield Found(
                severity=Severity.WARNING,
                what=f"{gpu_name(gpu)} has {len(names)} daemons: their clients are time-sliced against each other, and "
                "in EXCLUSIVE_PROCESS the second server cannot start",
                where=names,
                mend="Give each daemon GPUs of its own (CUDA_VISIBLE_DEVICES, by UUID), or stop all but one",
            )


def _served(facts: Facts) -> Iterator[Gpu]:
    """The GPUs that a known daemon serves, or would if it lived."""
    for gpu in facts.node.gpus.values():
        if gpu.reading.problem is None and serving_daemon(facts.node, gpu.reading) is not None:
            yield gpu


def _nvml_problem(facts: Facts) -> Problem | None:
    source = facts.node.sources.get(NVML)
    return None if source is None else source.last.problem


CHECKS = (
    Check(driver_mismatch, fine="the driver's libraries fit its module", mend="reboot, or load the modules anew"),
    Check(
        driver_unreadable,
        fine="NVML can be used",
        mend="load the driver; in a container, bring in its libraries and devices",
    ),
    Check(
        no_gpu,
        fine="there are GPUs",
        mend="bring them into the container; see what the kernel says",
        needs=(Area.GPUS,),
    ),
    Check(gpu_unreadable, fine="each GPU can be read", code=FindingCode.GPU_UNREADABLE, needs=(Area.GPUS,)),
    Check(
        compute_mode_prohibited,
        fine="no GPU is PROHIBITED",
        mend="`nvidia-smi -c EXCLUSIVE_PROCESS`",
        needs=(Area.GPUS,),
    ),
    Check(
        compute_mode_default,
        fine="in EXCLUSIVE_PROCESS, who misses the daemon fails loudly",
        mend="`nvidia-smi -c EXCLUSIVE_PROCESS`, where nothing but MPS is to use the GPU",
        needs=(Area.GPUS,),
    ),
    Check(mig, fine="no GPU with MPS has MIG on", mend="a daemon for each instance, or MIG off", needs=(Area.GPUS,)),
    Check(
        pre_volta,
        fine="each GPU with MPS is a Volta or later",
        mend="share it only among processes that trust each other",
        needs=(Area.GPUS,),
    ),
    Check(persistence_off, fine="persistence mode is on", mend="enable nvidia-persistenced", needs=(Area.GPUS,)),
    Check(
        gpu_not_there,
        fine="each GPU that a daemon names is there",
        mend="name GPUs by UUID",
        needs=(Area.GPUS, Area.DAEMONS),
    ),
    Check(
        gpu_of_two_daemons,
        fine="each GPU has one daemon",
        mend="give each daemon GPUs of its own",
        needs=(Area.GPUS, Area.DAEMONS),
    ),
)
