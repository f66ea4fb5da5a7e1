"""The tables of the page. Each has a caption, headings and rows of cells; a column without values is left out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from exporter.model.sharing import SharingStatus
from exporter.parse.printable import printable
from exporter.report.document import (
    ClientStatus,
    DaemonStatus,
    FailureDomainStatus,
    GpuStatus,
    ServerStatus,
    StatusDocument,
)
from exporter.report.document_parts import ClientIdentity, ProcessStatus, Severity
from exporter.report.incident_text import command_text
from exporter.report.sharing_text import BOUNDS
from exporter.report.status_text import clients_by_pid, gpu_numbers, gpus_text, kernels_text, workload_of
from exporter.report.text import (
    code_text,
    display_name,
    duration_text,
    listed,
    percent,
    short_gpu,
    size_text,
    with_error,
    zoned_time,
)

MOST_BRIDGES = 4
MOST_OPEN = 16
"""If there are more clients, they are folded."""
_LONGEST_KERNEL = 20
NBSP = "\N{NO-BREAK SPACE}"

_SERVER_SEVERITIES = {"active": Severity.WELL, "fault": Severity.CRITICAL, None: Severity.UNKNOWN}
_WITHOUT_MPS = {"bypassing": (Severity.WARNING, "bypasses MPS"), "other": (Severity.UNKNOWN, "without MPS, or unknown")}


Row = Mapping[str, str]
"""The cells of a row by the headings of their columns. All rows of a table have the same headings."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table. The cells are text, which is escaped, or markup."""

    name: str
    caption: str
    headings: Sequence[str]
    rows: Sequence[Markup]


def table(name: str, caption: str, rows: Iterable[Row]) -> Table:
    """Return a table with the columns that are not empty in all rows."""
    found = list(rows)
    headings = [heading for heading in (found[0] if found else ()) if any(row[heading] for row in found)]
    cells = ("<td>".join([escape(row[heading]) for heading in headings]) for row in found)
    return Table(name, caption, headings, [Markup(f"<th>{each}") for each in cells])  # noqa: S704 (each is escaped)


def badge(severity: str, word: str) -> Markup:
    """Return a state in the colour of its severity."""
    return Markup('<b class="state %s">%s</b>') % (severity, word)


def time_shown(at: float, words: str) -> Markup:
    """Return a time, in words of this machine's time zone. The page's script can show it in another one."""
    return Markup('<time datetime="%s">%s</time>') % (zoned_time(at), words)


def with_code(words: str) -> Markup:
    """Return an escaped text in which words between backticks are code."""
    parts = words.split("`")
    marked = (Markup("<code>%s</code>") % part if number % 2 else escape(part) for number, part in enumerate(parts))
    return Markup("").join(marked) if len(parts) % 2 else escape(words)


def daemons(document: StatusDocument) -> Table:
    """Return the daemons: their state, their clients, the limits of the next server, and what went wrong so far."""
    return table("daemons", "Control daemons", (_daemon(each, document) for each in document.daemons))


def _daemon(daemon: DaemonStatus, document: StatusDocument) -> Row:
    least = "" if daemon.clients_known else "at least "
    return {
        "Daemon": printable(daemon.name),
        "State": badge(daemon.severity, daemon.label),
        "For": "" if daemon.state_since is None else _age(document, daemon.state_since),
        "PID": _known(daemon.pid),
        "Started by": display_name(daemon.unit)
        if daemon.expected
        else f"{printable(daemon.owner)} (not expected)".lstrip(),
        "Servers": ", ".join(str(each.pid) for each in daemon.servers),
        "Clients": f"{least}{daemon.client_count}",
        "Limits of a new server": limits(daemon, document),
        "Waiting": ", ".join(_process_text(each) for each in daemon.waiting),
        "Died": _count(daemon.died),
        "Faults": _count(daemon.faults),
        "Affected": _count(daemon.fault_affected),
        "Refused": ", ".join(f"{count} ({code_text(reason)})" for reason, count in daemon.refused.items() if count),
    }


def limits(limited: DaemonStatus | ServerStatus, document: StatusDocument) -> str:
    """Return the limits of clients, with the GPUs that have the same limit together."""
    numbers, by_limit = gpu_numbers(document), dict[int, list[str]]()
    for gpu, amount in limited.pinned_memory_limit_bytes.items():
        by_limit.setdefault(amount, []).append(gpu)
    ratio, server = limited.active_thread_ratio, isinstance(limited, ServerStatus)
    threads = [] if ratio is None or (ratio == 1.0 and not server) else [f"{100 * ratio:g} % of threads"]
    partitions = ["static SM partitions"] if isinstance(limited, DaemonStatus) and limited.static_partitions else []
    priority = ["priority below normal"] if isinstance(limited, ServerStatus) and limited.low_priority else []
    memory = [f"{size_text(amount)} on {gpus_text(numbers, gpus)}" for amount, gpus in by_limit.items()]
    return "; ".join((*threads, *partitions, *memory, *priority))


def servers(document: StatusDocument) -> Table:
    """Return the servers. If the daemon does not answer, the state of its servers is not current."""
    rows = (_server(daemon, each, document) for daemon in document.daemons for each in daemon.servers)
    return table("servers", "Servers", rows)


def _server(daemon: DaemonStatus, server: ServerStatus, document: StatusDocument) -> Row:
    state, count, most = server.state or "unknown", len(server.clients), server.clients_limit
    severity = _SERVER_SEVERITIES.get(server.state, Severity.WARNING)
    if daemon.state != "up":
        severity, state = Severity.UNKNOWN, f"unknown; last {state}"
    clients = "unknown" if not server.clients_known else str(count) if most is None else f"{count} of {most}"
    if most and server.clients_known:
        full = " taken" if count >= most else ""
        clients = _bar([(f"client{full}", 100 * count / most)]) + clients
    return {
        "Server": str(server.pid),
        "Name": printable(server.name or ""),
        "Daemon": printable(daemon.name),
        "State": badge(severity, state),
        "User": display_name(server.user),
        "Clients": clients,
        "Up for": _age(document, server.started_at),
        "Limits of its clients": limits(server, document),
    }


def clients(server: ServerStatus, document: StatusDocument, uses: "Uses") -> Table:
    """Return the clients of a server."""
    rows = (_client(each, document, uses) for each in server.clients)
    return table(f"clients-{server.pid}", f"Clients of server {server.pid}", rows)


@dataclass(frozen=True, slots=True)
class Uses:
    """What is looked up for each client: GPUs by UUID, SM time and slowdown by PID, failure domains by name."""

    numbers: Mapping[str, str]
    sm: Mapping[int, str]
    slowdown: Mapping[int, str]
    domains: Mapping[str, FailureDomainStatus]


def uses_of(document: StatusDocument) -> Uses:
    """Return what the tables of the clients look up."""
    numbers, sm, slowdown = gpu_numbers(document), dict[int, str](), dict[int, str]()
    for gpu in document.gpus:
        for each in gpu.processes:
            if each.sm_ratio is not None:
                used = with_error(each.sm_ratio, each.sm_error_ratio or 0.0)
                sm[each.pid] = f"{sm[each.pid]}; {used}" if each.pid in sm else used
            if each.slowdown is not None and each.slowdown.text:
                slowdown[each.pid] = each.slowdown.text
    shared = {each.name: each for each in document.failure_domains if len(each.clients) > 1}
    return Uses(numbers, sm, slowdown, shared)


def _client(client: ClientStatus, document: StatusDocument, uses: Uses) -> Row:
    held, domain = client.memory_used_bytes, uses.domains.get(client.failure_domain or "")
    if domain is not None:
        with_it = f"{len(domain.clients) - 1} ({domain.name})"
    else:
        with_it = "no other" if client.failure_domain and uses.domains else ""
    return {
        **(names := _names(client)),
        "Process": linked(client, names["Process"]),
        "GPUs": ", ".join(uses.numbers.get(gpu, printable(gpu)) for gpu in held or client.gpus),
        "Memory": size_text(sum(held.values())) if held else "",
        "SMs used": uses.sm.get(client.pid, ""),
        "Slowdown": uses.slowdown.get(client.pid, ""),
        "A fault also ends": with_it,
        "For": _age(document, client.connected_at),
        "Kernels, time in flight": kernels_text(client, 1, _LONGEST_KERNEL),
    }


def without_mps(document: StatusDocument) -> Table:
    """Return the processes that use a GPU without MPS, or perhaps without it."""
    rows = (
        {
            **_names(each),
            "State": badge(*_WITHOUT_MPS[each.role]),
            "GPU": printable(gpu.number),
            "Memory": "" if each.memory_used_bytes is None else size_text(each.memory_used_bytes),
            "SMs used": "" if each.sm_ratio is None else with_error(each.sm_ratio, each.sm_error_ratio or 0.0),
        }
        for gpu in document.gpus
        for each in gpu.processes
        if each.role in _WITHOUT_MPS
    )
    return table("without-mps", "Processes without MPS", rows)


def _names(process: ProcessStatus) -> Row:
    return {
        "Process": command_text(process) or display_name(process.user or "unknown"),
        "PID": str(process.pid) if process.pid > 0 else "?",
        "User": display_name(process.user),
        "Workload": workload_of(process),
    }


def linked(client: ClientIdentity, words: str) -> Markup:
    """Return a text about a client as a link to its page, if its id is known."""
    return Markup('<a href="/clients/%s">%s</a>') % (client.client, words) if client.client else escape(words)


def _process_text(process: ProcessStatus) -> str:
    return "{Process} (PID {PID})".format_map(_names(process))


def gpus(document: StatusDocument) -> Table:
    """Return the GPUs: their memory, SM time, clients, and how many more clients fit."""
    return table("gpus", "GPUs", (_gpu(each) for each in document.gpus))


def _gpu(gpu: GpuStatus) -> Row:
    used, total, sharing = gpu.memory_used_bytes, gpu.memory_total_bytes, gpu.sharing
    clients, memory = sum(each.role == "client" for each in gpu.processes), "unknown"
    if gpu.mig_mode:
        memory = "see its MIG instances"
    elif gpu.problem is None and used is not None and total:
        memory = _memory_bar(gpu, used, total) + _whole(f"{size_text(used)} of {size_text(total)}")
    elif gpu.unified_memory:
        memory = "shared with the system"
    sm = None if sharing is None else sharing.sm_utilization_ratio
    return {
        "GPU": Markup("{}<small>{}</small><small>{}</small>").format(
            gpu.number, _whole(display_name(gpu.name)), short_gpu(gpu.uuid)
        ),
        "State": badge(gpu.severity, gpu.label),
        "Memory used": memory,
        "SMs used": "" if sm is None else _whole(percent(sm)),
        "Time busy": "" if gpu.utilization_ratio is None else _whole(percent(gpu.utilization_ratio)),
        "Clients": _count(clients),
        **_room(sharing),
        "Problem": "" if gpu.problem is None else with_code(gpu.problem.text),
    }


def _room(sharing: SharingStatus | None) -> Row:
    """Return how many more clients fit, by what, and what the limits of the present clients reserve."""
    if sharing is None:
        return {"Room for": "", "Limits reserve": ""}
    room = sharing.headroom
    bound = "" if room.resource is None else f", by {BOUNDS[room.resource]}"
    return {
        "Room for": "unknown" if room.clients is None else f"{room.clients} more{bound}",
        "Limits reserve": ", ".join(map(_whole, sharing.reserved)),
    }


def _memory_bar(gpu: GpuStatus, used: int, total: int) -> Markup:
    """Return a bar with the memory of clients, of bypassing processes, and of all others."""
    held = dict.fromkeys(("client", "bypassing"), 0)
    for each in gpu.processes:
        if each.role in held:
            held[each.role] += each.memory_used_bytes or 0
    rest = max(0, used - sum(held.values()))
    return _bar([(role, 100 * amount / total) for role, amount in (*held.items(), ("rest", rest))])


def _bar(parts: Iterable[tuple[str, float]]) -> Markup:
    begin, rects = 0.0, Markup()
    for kind, width in parts:
        shown = max(0.0, min(100.0 - begin, width))
        if shown:
            rects += Markup('<rect class="%s" x="%.1f%%" width="%.1f%%" height="100%%"/>') % (kind, begin, shown)
        begin += shown
    return Markup('<svg class="bar" aria-hidden="true">{}</svg>').format(rects)


def domains(document: StatusDocument) -> Table:
    """Return the failure domains of several clients, with the clients that join several GPUs."""
    numbers, clients = gpu_numbers(document), clients_by_pid(document)
    rows = []
    for domain in document.failure_domains:
        if len(domain.clients) > 1:
            within = [clients[pid] for pid in domain.clients if pid in clients]
            joining = [_process_text(each) for each in within if len(each.gpus) > 1]
            row = {
                "Domain": domain.name,
                "Daemon": printable(domain.daemon),
                "Clients": f"{len(domain.clients)}{'; some may survive' if domain.upper_bound else ''}",
                "GPUs": gpus_text(numbers, domain.gpus),
                "Joined by": listed(joining, MOST_BRIDGES) if joining else "",
            }
            rows.append(row)
    return table("domains", "Failure domains", rows)


def watchdog(document: StatusDocument) -> Table:
    """Return what the watchdog may do, sees, does and did for each expected daemon."""
    watched = [each for each in document.daemons if each.expected] if document.watchdog else []
    return table("watchdog", "Watchdog", filter(None, map(_watched, watched)))


def _watched(daemon: DaemonStatus) -> Row:
    watch = daemon.watchdog
    if watch is None:
        return {}
    acts = watch.mode == "act"
    counts = (
        f"{code_text(each.action)} ({each.reason}): {each.count} {code_text(each.result)}" for each in watch.counts
    )
    return {
        "Daemon": printable(daemon.name),
        "Mode": "acts" if acts else "only observes",
        "State": badge(watch.severity, watch.label),
        "Restarts left": _known(watch.restarts_left) if acts else "",
        "Action": with_code(watch.text or ""),
        "Last error": "" if watch.problem is None else with_code(watch.problem.text),
        "Actions so far": "; ".join(counts),
    }


def collectors(document: StatusDocument) -> Table:
    """Return the collectors with the age of their data, and the logs that cannot be followed."""
    found = [(each.name, each.problem, each.last_success_at, each.seconds) for each in document.collectors]
    logs = [
        (f"{log.file} of {printable(daemon.name)}", log.problem, None, None)
        for daemon in document.daemons
        for log in daemon.logs
    ]
    rows = (
        {
            "Collector": name,
            "State": badge(Severity.WARNING, "fails") if problem else badge(Severity.WELL, "works"),
            "Last success": f"{_age(document, at)} ago" if at is not None else "" if seconds is None else "never",
            "Took": "" if seconds is None else duration_text(seconds),
            "Problem": with_code(problem or ""),
        }
        for name, problem, at, seconds in (*found, *logs)
    )
    return table("collectors", "Collectors", rows)


def _age(document: StatusDocument, since: float) -> str:
    return _whole(duration_text(document.at - since))


def _whole(text: str) -> str:
    """Return a text that is not broken into lines."""
    return text.replace(" ", NBSP)


def _known(number: int | None) -> str:
    return "" if number is None else str(number)


def _count(number: int) -> str:
    """Return a number; empty for 0, so that a column of zeros is left out."""
    return str(number) if number else ""
