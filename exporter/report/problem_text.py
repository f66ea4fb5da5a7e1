"""English text of each problem of a collector."""

from collections.abc import Mapping
from typing import Any

from exporter.model.node import CollectorName, CollectorState
from exporter.model.problem import Problem, ProblemCode
from exporter.model.values import plain
from exporter.parse.printable import LONGEST_PROBLEM, printable
from exporter.report.text import external_text

IN_JOURNAL = "stdout"
"""The name of a daemon's log that is in the journal."""

LONGEST_DETAIL = 256
"""Characters of text from outside, so that the remedy after it has room."""

Code = ProblemCode

TEXTS: Mapping[ProblemCode, str] = {
    Code.PAUSED: "paused: the NVIDIA driver is closed. To read the GPUs again, run `cuda-mps-exporter resume`",
    Code.DRIVER_WITHDRAWN: "closed until the new driver runs: the GPU operator removed {subject} to unload the driver",
    Code.STILL_RUNNING: "no result for {seconds:.0f} s",
    Code.NOT_TRIED: "not read, because other readings took {seconds:.0f} s",
    Code.TIMEOUT: "{subject}: no answer within {seconds:g} s",
    Code.PERMISSION_DENIED: "{subject} cannot be read: {detail}",
    Code.NOT_FOUND: "{subject} does not exist",
    Code.NOT_READABLE: "{subject} cannot be read: {detail}",
    Code.WRONG_FILE_TYPE: "{subject} cannot be read: it is not the expected type of file",
    Code.COMMAND_NOT_STARTED: "{subject} cannot be started: {detail}",
    Code.COMMAND_FAILED: "{subject} failed with exit code {exit_code}: {detail}",
    Code.PROGRAM_MISSING: (
        "{subject} was not found. Install the driver's programs. A container gets it from the NVIDIA runtime, with the"
        " driver capability compute; in Kubernetes, set gpuAccess of the Helm chart"
    ),
    Code.SERVER_STOPPED: "{subject} was not sent: server {pid} is stopped, and the daemon would wait for it",
    Code.LOG_BLOCKED: "blocked: commands that the daemon answered do not appear in it",
    Code.LOG_TO_STDOUT: (
        "the daemon runs in the foreground (-f), and its standard output is neither stdout.log nor a journal"
    ),
    Code.RECORDS_LOST: "the kernel overwrote records of {subject} before they were read: Xids may be missing",
    Code.PROCESS_NOT_READABLE: "control daemon {pid} cannot be located: its environment is not readable",
    Code.PROCESSES_NOT_READABLE: (
        "it is unknown whether process {pid} runs. Check that /proc is mounted, shows processes of other users"
        " (hidepid=), and that the exporter has free file descriptors (LimitNOFILE=)"
    ),
    Code.TOO_MANY_DAEMONS: (
        "more control daemons run than are followed, and some of {detail} are ignored (at most {limits[0]} of one user"
        " or container, and {limits[1]} of all). End those that are not needed"
    ),
    Code.DIRECTORY_HANGS: (
        "a directory does not answer, for example on a file server that is gone; daemons there are not found"
    ),
    Code.DIRECTORY_SHARED: (
        "daemon {subject} is not followed: its pipe directory is that of daemon {detail}. Remove one of the two from"
        " the configuration"
    ),
    Code.NOT_SUPPORTED: "this node does not support {subject}",
    Code.DRIVER_NOT_LOADED: "NVML: {detail}. The NVIDIA driver is not loaded; check it with nvidia-smi",
    Code.DRIVER_MISMATCH: "NVML: {detail}. Reload the driver's kernel modules, or reboot the node",
    Code.LIBRARY_MISSING: "NVML: {detail}. Install libnvidia-ml.so.1; a container needs it from the NVIDIA runtime",
    Code.CONTAINER_WITHOUT_GPUS: (
        "NVML: {detail}. The node has GPUs, but the exporter's container has none. In Kubernetes, set gpuAccess of the"
        " Helm chart; elsewhere, start the container with --gpus all"
    ),
    Code.DRIVER_NOT_OPEN: f"the NVIDIA driver is not open: see the problem of {CollectorName.NVML}",
    Code.DRIVER_HANGS: "a call into the NVIDIA driver has not returned, so the driver cannot be opened again",
    Code.DRIVER_ERROR: "NVML: {detail}. Check the driver with nvidia-smi",
    Code.IMPLAUSIBLE: "NVML returned {detail} for {subject}, which cannot be true, and which is ignored",
    Code.GPU_LOST: "NVML: {detail}. The GPU does not respond, or needs a reset",
    Code.GPU_NOT_REPORTED: "NVML works, and no longer lists the GPU",
    Code.DUPLICATE_UUID: "GPUs {detail} have the same UUID {subject}, so only the first is read",
    Code.PROBES_REFUSED: "launches cannot be counted: {detail}",
    Code.LIBRARY_NOT_WATCHED: "some launches cannot be counted: {detail}",
    Code.PACKAGE_MISSING: (
        "the Python package {subject} is missing. Install the exporter with its extra:"
        " pip install 'cuda-mps-exporter[kubernetes]'"
    ),
    Code.PACKAGE_CONFLICT: (
        "the Python package {subject} hides the module of nvidia-ml-py. Uninstall {subject}, then install nvidia-ml-py"
        " again: pip uninstall {subject}; pip install --force-reinstall nvidia-ml-py"
    ),
    Code.CALL_FAILED: "{subject} failed: {detail}",
    Code.ANSWER_TOO_LARGE: "{subject}: the answer is too large",
    Code.UNEXPECTED_ERROR: "the exporter has a defect: {detail}. Report it with the exporter's log",
    Code.UNSPECIFIED: "{detail}",
}
"""The text of each code. The fields are those of `Problem`."""

ADVICE: Mapping[tuple[str, ProblemCode], str] = {
    (CollectorName.KERNEL, Code.PERMISSION_DENIED): (
        "If kernel.dmesg_restrict is 1, the exporter needs CAP_SYSLOG: see the unit's drop-in kernel-log.conf"
    ),
    (CollectorName.KERNEL, Code.NOT_FOUND): (
        "If the unit hides it, see the unit's drop-in kernel-log.conf. A container needs the device"
    ),
    (CollectorName.JOURNAL, Code.PERMISSION_DENIED): "The exporter's user must be in the group systemd-journal",
    (CollectorName.JOURNAL, Code.NOT_FOUND): "Check that journald stores the journal (Storage= in journald.conf)",
    (CollectorName.LOGS, Code.STILL_RUNNING): "The log directory may hang, for example on a file server that is gone",
    (CollectorName.NVML, Code.STILL_RUNNING): "A call into the NVIDIA driver may hang",
    (CollectorName.NVML_EVENTS, Code.NOT_SUPPORTED): "The exporter reads Xids from the kernel's log only",
    (CollectorName.POD_RESOURCES, Code.TIMEOUT): "Check that the kubelet runs",
    (CollectorName.DISCOVERY, Code.NOT_SUPPORTED): (
        "Control daemon {pid} cannot be located: this needs Linux 5.6, and no RestrictSUIDSGID= in the exporter's unit"
    ),
    (CollectorName.DISCOVERY, Code.PROCESS_NOT_READABLE): "The exporter needs CAP_SYS_PTRACE",
}
"""What a problem means for one source, and what to do there."""


def problem_text(problem: Problem, source: str = "") -> str:
    """Return a problem of this source in a few sentences, without markup or control characters."""
    return printable("; ".join(_text(each, source) for each in problem.each), LONGEST_PROBLEM)


def source_text(name: str, source: CollectorState) -> str:
    """Return the problems of a source, with the daemon of each if every daemon has its own collector."""
    texts = (
        f"{daemon}: {problem_text(problem, name)}" if daemon else problem_text(problem, name)
        for daemon, problem in source.problems.items()
    )
    return printable("; ".join(texts), LONGEST_PROBLEM)


def log_text(file: str, problem: Problem) -> str:
    """Return the problem of a daemon's log."""
    return problem_text(problem, CollectorName.JOURNAL if file == IN_JOURNAL else CollectorName.LOGS)


def problem_object(problem: Problem | None, text: str) -> dict[str, Any] | None:
    """Return a problem for a program, with its `text` for a person."""
    return None if problem is None else {**plain(problem), "text": text}


def _text(problem: Problem, source: str) -> str:
    fields = {
        "subject": external_text(problem.subject, LONGEST_DETAIL),
        "detail": external_text(problem.detail, LONGEST_DETAIL),
        "pid": problem.pid,
        "seconds": problem.seconds or 0.0,
        "exit_code": problem.exit_code,
        "limits": (*problem.limits, 0, 0),
    }
    what = TEXTS[problem.code].format_map(fields).removesuffix(": ")
    advice = ADVICE.get((source, problem.code), "").format_map(fields)
    return _gpu(problem) + (f"{what}. {advice}" if advice else what)


def _gpu(problem: Problem) -> str:
    """Return the GPU of an NVML error, by its index or its UUID."""
    if problem.code not in (Code.DRIVER_ERROR, Code.GPU_LOST) or not problem.subject:
        return ""
    return f"{'GPU ' if problem.subject.isdecimal() else ''}{printable(problem.subject)}: "
