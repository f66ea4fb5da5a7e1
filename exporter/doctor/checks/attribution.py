"""Attribution: what keeps launches from being counted, where the configuration wants that."""

from collections.abc import Iterator

from exporter.doctor.capability import Capability, names
from exporter.doctor.checks.rights import DROP_INS
from exporter.doctor.facts import Area, Facts, Watcher
from exporter.doctor.finding import Check, Found, Severity
from exporter.doctor.words import ATTRIBUTION_AS_ROOT, TAKES_UP_ITS_UNIT, shown

_ELSE = "each client's SM time is not told then"


def launches_not_counted(facts: Facts) -> Iterator[Found]:
    """With `attribution=bpf`: the rights to count launches are missing."""
    missing = _missing(facts.watcher)
    if facts.config.attribution.counts_launches and missing:
        yield Found(
            severity=Severity.WARNING,
            what=f"attribution is bpf, and {facts.watcher.called} (UID {facts.watcher.uid}) lacks {names(missing)}: "
            f"launches cannot be counted, and {_ELSE}",
            mend="Install the drop-in that gives these rights; for one look, sudo",
            commands=(f"{DROP_INS}/bpf.conf", TAKES_UP_ITS_UNIT) if facts.watcher.is_service else ATTRIBUTION_AS_ROOT,
        )


def kernel_refuses_bpf(facts: Facts) -> Iterator[Found]:
    """With `attribution=bpf`: the kernel does not take the programs that count launches."""
    if facts.doors is not None and facts.doors.refused is not None and not _missing(facts.watcher):
        yield Found(
            severity=Severity.WARNING,
            what=f"attribution is bpf, and the kernel refuses: {shown(facts.doors.refused)}; {_ELSE}",
            mend="It takes Linux with BPF and uprobes, not locked down for confidentiality, on x86-64 or arm64; in a "
            "container, its seccomp profile too. Or turn attribution off",
            commands=("cat /sys/kernel/security/lockdown", "uname -rm"),
        )


def no_libcuda(facts: Facts) -> Iterator[Found]:
    """With `attribution=bpf`: there is no libcuda whose entry points could be watched."""
    if facts.doors is not None and not facts.doors.libraries and not facts.doors.problems:
        yield Found(
            severity=Severity.WARNING,
            what="attribution is bpf, and no libcuda.so.1 was found where distributions have it, or in a process that "
            "uses CUDA: who uses another one is counted only some time after it was first seen",
            mend="Install the driver's libraries where the exporter runs; in a container, have NVIDIA's runtime bring "
            "them in (NVIDIA_DRIVER_CAPABILITIES=compute,utility)",
        )


def libcuda_not_watched(facts: Facts) -> Iterator[Found]:
    """With `attribution=bpf`: a libcuda that a process uses cannot be watched."""
    for problem in facts.doors.problems if facts.doors is not None else ():
        yield Found(
            severity=Severity.WARNING,
            what=f"attribution is bpf, and of some processes the launches cannot be counted: {_ELSE}",
            where=(shown(problem),),
            mend="Restart those whose library was replaced under them; else, see what the file is",
        )


def _missing(watcher: Watcher) -> tuple[Capability, ...]:
    """What it takes; who may do all that an administrator may has these, too."""
    if not watcher.lacks(Capability.SYS_ADMIN):
        return ()
    return watcher.lacks(Capability.BPF, Capability.PERFMON)


CHECKS = (
    Check(
        launches_not_counted,
        fine="whoever is to count launches may, or nobody is",
        mend="the drop-in `bpf.conf`",
        needs=(Area.RIGHTS,),
        doc="docs/rights.md",
    ),
    Check(
        kernel_refuses_bpf,
        fine="the kernel takes the programs that count launches, or nobody wants them",
        mend="another kernel, or `--attribution=off`",
        needs=(Area.DOORS,),
        doc="docs/rights.md",
    ),
    Check(
        no_libcuda,
        fine="there is a libcuda to watch, or nobody wants that",
        mend="the driver's libraries where the exporter is",
        needs=(Area.DOORS,),
        doc="docs/rights.md",
    ),
    Check(
        libcuda_not_watched,
        fine="each libcuda in use can be watched, or nobody wants that",
        mend="restart who runs on a library that was replaced",
        needs=(Area.DOORS,),
        doc="docs/rights.md",
    ),
)
