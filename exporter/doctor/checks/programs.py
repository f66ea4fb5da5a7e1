"""NVIDIA's programs: whether they are there, and fit the driver."""

import re
from collections.abc import Iterator

from exporter.doctor.facts import Area, Facts
from exporter.doctor.finding import Check, Found, Severity
from exporter.doctor.words import daemon_text, shown

_VERSION = re.compile(r"([0-9]{1,3})([0-9]{2})[0-9]")


def control_program_missing(facts: Facts) -> Iterator[Found]:
    """`nvidia-cuda-mps-control` is not where the exporter looks for it."""
    if facts.programs.control is None:
        yield Found(
            severity=Severity.ERROR,
            what=f"{shown(facts.config.constants.control_executable)} is not there: no daemon can be asked anything",
            mend="Install the driver's programs, or say where they are: in a container, "
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility has them brought in; else add their directory to PATH",
            commands=("PATH=$PATH:/opt/nvidia/bin cuda-mps-exporter doctor",),
        )


def control_program_fails(facts: Facts) -> Iterator[Found]:
    """`nvidia-cuda-mps-control` is there, and cannot be run."""
    programs = facts.programs
    if programs.control is not None and programs.problem is not None:
        yield Found(
            severity=Severity.ERROR,
            what=f"the control program cannot be run: {shown(programs.problem)}",
            where=(shown(programs.control),),
            mend="See what it says itself, and install that of the driver",
            commands=("nvidia-cuda-mps-control -v",),
        )


def server_program_missing(facts: Facts) -> Iterator[Found]:
    """`nvidia-cuda-mps-server` is not beside the control program."""
    programs = facts.programs
    if programs.control is not None and programs.server is None:
        yield Found(
            severity=Severity.WARNING,
            what="nvidia-cuda-mps-server is neither beside the control program nor in PATH: a daemon started from here "
            "could start no server, and its clients would get error 805",
            where=(shown(programs.control),),
            mend="Install the driver's package that has both programs; where daemons run in a container of their own, "
            "this does not matter",
        )


def version_mismatch(facts: Facts) -> Iterator[Found]:
    """The control program is of another CUDA version than the driver."""
    found = _VERSION.fullmatch(facts.programs.version or "")
    if found is None:
        return
    program = f"{int(found[1])}.{int(found[2])}"
    drivers = {gpu.reading.cuda_version for gpu in facts.node.gpus.values() if gpu.reading.cuda_version is not None}
    for driver in sorted(drivers - {program}):
        yield Found(
            severity=Severity.WARNING,
            what=f"the control program is that of CUDA {program}, the driver that of CUDA {shown(driver)}: an older "
            "installation is in the way, or the driver was upgraded without it",
            where=(shown(facts.programs.control or ""),),
            mend="Remove the programs that are not the driver's, or put the right directory first in PATH",
            commands=("type -a nvidia-cuda-mps-control", "nvidia-smi"),
        )


def daemon_outdated(facts: Facts) -> Iterator[Found]:
    """A daemon runs a program whose file was replaced since."""
    for _, each in facts.running():
        if each.replaced:
            yield Found(
                severity=Severity.WARNING,
                what="a control daemon runs a program whose file was replaced since: the driver was upgraded under it, "
                "and its next server may not start",
                where=(daemon_text(each),),
                mend="Restart the daemon when its clients can be spared: it takes them with it",
            )


CHECKS = (
    Check(
        control_program_missing,
        fine="nvidia-cuda-mps-control is there",
        mend="install the driver's programs, or name the path",
    ),
    Check(
        control_program_fails,
        fine="nvidia-cuda-mps-control can be run",
        mend="install that of the driver",
        needs=(Area.PROGRAMS,),
    ),
    Check(
        server_program_missing,
        fine="nvidia-cuda-mps-server is there",
        mend="install the package that has both",
        needs=(Area.PROGRAMS,),
    ),
    Check(
        version_mismatch,
        fine="the programs are the driver's",
        mend="remove those of an older installation",
        needs=(Area.PROGRAMS, Area.GPUS),
    ),
    Check(
        daemon_outdated,
        fine="daemons run the programs that are installed",
        mend="restart the daemon when its clients can be spared",
        needs=(Area.DAEMONS,),
    ),
)
