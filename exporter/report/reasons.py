"""English text of reasons and of problems of collectors."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from exporter.model.node import CollectorName, CollectorState
from exporter.model.reason import PLACEHOLDER, Reason, ReasonCode, with_known_parts
from exporter.model.watchdog import Condition
from exporter.parse.kernel_log import XIDS
from exporter.parse.printable import LONGEST_PROBLEM, LONGEST_TEXT, printable
from exporter.report.text import counted, external_text, size_text

IN_JOURNAL = "stdout"
"""The name of a daemon's log that is in the journal."""

MOST_PIDS = 16
"""At most so many PIDs are in a text; the others are counted. JSON has all of them."""

_LONGEST = {"text": LONGEST_PROBLEM, "subject": 256, "detail": 256}
"""Characters of these parameters. Those of a collector's problem are short, so that the remedy after them has room."""

ADVICE: Mapping[tuple[str, ReasonCode], str] = {
    (CollectorName.KERNEL, ReasonCode.PERMISSION_DENIED): (
        "If kernel.dmesg_restrict is 1, the exporter needs CAP_SYSLOG: see the unit's drop-in kernel-log.conf"
    ),
    (CollectorName.KERNEL, ReasonCode.NOT_FOUND): (
        "If the unit hides it, see the unit's drop-in kernel-log.conf. A container needs the device"
    ),
    (CollectorName.JOURNAL, ReasonCode.PERMISSION_DENIED): "The exporter's user must be in the group systemd-journal",
    (CollectorName.JOURNAL, ReasonCode.NOT_FOUND): "Check that journald stores the journal (Storage= in journald.conf)",
    (
        CollectorName.LOGS,
        ReasonCode.STILL_RUNNING,
    ): "The log directory may hang, for example on a file server that is gone",
    (CollectorName.NVML, ReasonCode.STILL_RUNNING): "A call into the NVIDIA driver may hang",
    (CollectorName.NVML_EVENTS, ReasonCode.NOT_SUPPORTED): "The exporter reads Xids from the kernel's log only",
    (CollectorName.POD_LABELS, ReasonCode.PERMISSION_DENIED): "`podMetricLabels` of the Helm chart permits it",
    (CollectorName.DISCOVERY, ReasonCode.NOT_SUPPORTED): (
        "Control daemon {pid} cannot be located: this needs Linux 5.6, and no RestrictSUIDSGID= in the exporter's unit"
    ),
    (CollectorName.DISCOVERY, ReasonCode.PROCESS_NOT_READABLE): "The exporter needs CAP_SYS_PTRACE",
}
"""What a problem means for one source, and what to do there."""


def reason_text(reason: Reason, source: str = "") -> str:
    """Return a reason, or all problems of a collection of this source, in English on one line."""
    return printable("; ".join(_text(each, source) for each in reason.each), LONGEST_PROBLEM)


def texts_of(reasons: Iterable[Reason]) -> str:
    """Return several reasons in English, on one line, each of at most `LONGEST_TEXT` characters."""
    return "; ".join(reason_text(each)[:LONGEST_TEXT] for each in reasons)


def source_text(name: str, source: CollectorState) -> str:
    """Return the problems of a source, with the daemon of each if every daemon has its own collector."""
    texts = (
        f"{daemon}: {reason_text(problem, name)}" if daemon else reason_text(problem, name)
        for daemon, problem in source.problems.items()
    )
    return printable("; ".join(texts), LONGEST_PROBLEM)


def log_text(file: str, problem: Reason) -> str:
    """Return the problem of a daemon's log."""
    return reason_text(problem, CollectorName.JOURNAL if file == IN_JOURNAL else CollectorName.LOGS)


def _text(reason: Reason, source: str) -> str:
    advice = ADVICE.get((source, reason.code))
    return _filled(reason.code.text if advice is None else f"{reason.code.text}. {advice}", reason)


def _filled(text: str, reason: Reason) -> str:
    def shown(parameter: re.Match[str]) -> str:
        return _shown(parameter[1], parameter[2] or "", reason.parameters.get(parameter[1]))

    known = {name for name, value in reason.parameters.items() if value not in ("", ())}
    return PLACEHOLDER.sub(shown, with_known_parts(text, known))


def _shown(name: str, form: str, value: Any) -> str:
    """Return a parameter in a text, by its name and its format: one of those below, or one of Python."""
    match name, form:
        case _ if value is None:
            return "unknown"
        case "pids", _:
            more = f" and {len(value) - MOST_PIDS} more" if len(value) > MOST_PIDS else ""
            return f"PID{'s' if len(value) > 1 else ''} {', '.join(map(str, value[:MOST_PIDS]))}{more}"
        case "limits", _:
            return str(value[int(form)]) if int(form) < len(value) else "unknown"
        case "xid", _:
            known = XIDS.get(value)
            return f"Xid {value}" if known is None else f"Xid {value} ({known.meaning})"
        case _, "GiB":
            return f"{value / 2**30:.4g} GiB"
        case _, "size":
            return size_text(value)
        case _, "ms":
            return f"{round(value * 1000)} ms"
        case _, "restart" | "client":
            return counted(value, form)
        case _, "remedy":
            suspended, hangs = ReasonCode.SERVER_MUST_CONTINUE.text, ReasonCode.SERVER_MUST_END.text
            return (suspended if value == Condition.SERVER_SUSPENDED else hangs).removeprefix("server {server} ")
        case _, "gpu" if value.isdecimal():
            return f"GPU {value}"
        case _, "words":
            value, form = value.replace("_", " "), ""
        case _, "gpu":
            form = ""
    if isinstance(value, str):
        return format(external_text(value, _LONGEST.get(name, LONGEST_TEXT)), form)
    return format(value, form or "g") if isinstance(value, float) else format(value, form)
