"""`status` in a terminal: the lines of a status document."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import hypot

from exporter.parse.printable import printable
from exporter.report.document import (
    ClientStatus,
    DaemonStatus,
    FindingStatus,
    GpuProcess,
    GpuStatus,
    ManualStep,
    StatusDocument,
)
from exporter.report.document_parts import IncidentStatus, ProcessStatus, Severity
from exporter.report.incident_text import affected_count, brief, client_text, command_text, details, first_of
from exporter.report.text import (
    NOT_SHOWN,
    SEVERITY_STYLES,
    SIMULATED,
    Column,
    Line,
    Piece,
    Row,
    Style,
    align_table,
    cell,
    counted,
    dim,
    display_name,
    drop_columns,
    duration_text,
    kernel_name,
    line_of,
    listed,
    mebibytes,
    percent,
    shell_command,
    truncate,
    warning,
    with_error,
    workload_text,
)

PACKAGE = __file__.rpartition("/report/")[0]
"""The directory of this package, which has the runbooks."""

PAST_SECONDS = 3600.0
"""For how long an incident that is over is shown."""

MOST_FINDINGS = 8
MOST_FACTS = 8
MOST_BRIDGES = 4

MOST_ROWS = 8
"""At most so many clients of a GPU have a row, those with the most use."""

_LONGEST_WORKLOAD, _LONGEST_KERNEL = 22, 32

_COLUMNS = (
    Column(name="DAEMON", min_width=12, truncate_start=True),
    Column(name="SERVER", align_right=True),
    Column(name="STATE"),
    Column(name="PID", align_right=True),
    Column(name="USER", min_width=6),
    Column(name="COMMAND", min_width=8),
    Column(name="WORKLOAD", min_width=10),
    Column(name="GPU", min_width=6),
    Column(name="MEMORY", align_right=True),
    Column(name="DOMAIN"),
)
_DROPPABLE = ("SERVER", "DOMAIN", "USER", "WORKLOAD", "DAEMON", "GPU")
"""Columns that a narrow terminal does not show, the least important first."""

_SHARING_COLUMNS = (
    Column(name="PID", align_right=True),
    Column(name="USER", min_width=6),
    Column(name="COMMAND", min_width=8),
    Column(name="WORKLOAD", min_width=10),
    Column(name="MAY USE", align_right=True),
    Column(name="USED", align_right=True),
    Column(name="METHOD"),
    Column(name="SLOWDOWN", align_right=True),
    Column(name="MEMORY", align_right=True),
    Column(name="SINCE", align_right=True),
    Column(name="KERNELS", min_width=12),
)
_IF_KNOWN = {"WORKLOAD": 3, "SLOWDOWN": 7, "KERNELS": 10}
_SHARING_DROPPABLE = ("SINCE", "WORKLOAD", "KERNELS", "USER", "MAY USE", "METHOD", "MEMORY", "SLOWDOWN")

_STATE_STYLES = {
    "up": Style.OK,
    "starting": Style.WARNING,
    "active": Style.OK,
    "initializing": Style.WARNING,
    "unknown": Style.WARNING,
    "waiting": Style.WARNING,
    "bypassing": Style.WARNING,
}
"""All other states are errors."""


def status_lines(document: StatusDocument, width: int | None = None) -> Sequence[Line]:
    """Return the status as lines: the summary, the problems, and the rest. Tables are at most `width` columns wide."""
    return [*_summary(document), line_of(), *body(document, width)]


def headline(document: StatusDocument) -> Sequence[Line]:
    """Return one line on the node, and one for each problem."""
    found = document.findings
    problems = [line_of("  ", Piece(each.text, SEVERITY_STYLES[each.severity])) for each in found[:MOST_FINDINGS]]
    return [*_summary(document), *problems, *_more(document)]


def _summary(document: StatusDocument) -> Sequence[Line]:
    simulated = [line_of(warning(SIMULATED))] if document.simulated else []
    return [*simulated, line_of(_word(document.severity), f": {document.summary}", indent=2)]


def _more(document: StatusDocument) -> Sequence[Line]:
    more = len(document.findings) - MOST_FINDINGS
    return [line_of(dim(f"  and {more} more"))] if more > 0 else []


def _word(severity: Severity) -> Piece:
    """Return a severity. Upper case also shows without colours."""
    words = severity.words.upper() if severity is Severity.CRITICAL else severity.words
    return Piece(words, SEVERITY_STYLES[severity])


def first_facts(texts: Sequence[str]) -> Sequence[str]:
    """Return the first facts or names, and how many more there are."""
    return first_of(texts, MOST_FACTS)


def affected_shown(finding: FindingStatus) -> Sequence[str]:
    """Return the affected processes, those of the same name and workload on one line."""
    return first_facts(_together(finding.affected_names))


def ended_text(incident: IncidentStatus) -> str:
    """Return who an incident affected, on one line."""
    return "; ".join(first_facts(_together(map(client_text, incident.affected)))) or affected_count(incident)


def _together(processes: Iterable[str]) -> Sequence[str]:
    alike: dict[str, list[str]] = {}
    for name in processes:
        pid, _, names = name.removeprefix("PID ").partition(" ")
        # A process whose PID is not known is not listed with others.
        alike.setdefault(names if pid.isdecimal() else name, []).append(pid if pid.isdecimal() else "")
    return [
        f"PID{'s' * (len(pids) > 1)} {listed(pids, MOST_FACTS)} {names}".strip() if any(pids) else names
        for names, pids in alike.items()
    ]


def ends_text(step: ManualStep) -> str:
    """Return what the commands of a step end, as a sentence after its text."""
    if step.ends is None or not step.commands:
        return ""
    return f" This ends {counted(step.ends, 'client') if step.ends else 'no client'}."


def finding_lines(finding: FindingStatus) -> Iterable[Line]:
    """Yield a problem: what is wrong, what that means, whom it affects, what happens by itself, and what to do."""
    yield line_of(_word(finding.severity), f": {finding.text}", indent=2)
    if finding.follows is not None:
        yield line_of(f"  This may follow from another problem: {finding.follows}.", indent=2)
    yield line_of(f"  {finding.meaning}", indent=2)
    if finding.affected:
        yield line_of(f"  Affected: {finding.affected}", indent=2)
    yield from (line_of(f"  - {name}") for name in affected_shown(finding))
    if finding.facts and finding.affected:
        yield line_of("  Details:")
    yield from (line_of(f"  - {fact}", indent=4) for fact in first_facts(finding.facts))
    if finding.outlook:
        yield line_of(f"  {finding.outlook}", indent=2)
    if finding.avoid:
        yield line_of(f"  Caution: {finding.avoid}", indent=2)
    several = len(finding.steps) > 1
    if several:
        yield line_of("  What to do:")
    for number, step in enumerate(finding.steps, start=1):
        before = dim(f"  {number}. ") if several else "  What to do: "
        yield line_of(before, f"{step.text}{ends_text(step)}", indent=5)
        yield from (line_of(" " * 5, shell_command(command), indent=5) for command in step.commands)
    if finding.runbook is not None:
        installed = finding.runbook.startswith("/")
        yield line_of(dim(f"  See {PACKAGE if installed else 'the project: '}{finding.runbook}"))


def body(document: StatusDocument, width: int | None = None) -> Sequence[Line]:
    """Return the details: the problems with what helps, and open faults; then tables, and past faults."""
    problems = [line for each in document.findings[:MOST_FINDINGS] for line in (*finding_lines(each), line_of())]
    problems += [*_more(document), *watchdog_lines(document)]
    for incident in document.incidents:
        if incident.open:
            problems += [*details(incident, commands=False), line_of()]
    past = [line_of(dim(brief(each))) for each in past_incidents(document)]
    return [
        *problems,
        *table_lines(document, width),
        *_joined_domains(document),
        *sharing_lines(document, width),
        *((line_of(), line_of("Faults and deaths of the last hour:"), *past) if past else ()),
    ]


def with_summary(document: StatusDocument) -> StatusDocument:
    """Return the document with a summary of what it has."""
    recent = [*past_incidents(document), *(each for each in document.incidents if each.open)]
    faults, deaths = sum(each.is_fault for each in recent), sum(not each.is_fault for each in recent)
    counts = [counted(number, name) for number, name in ((faults, "fault"), (deaths, "death")) if number]
    failed = [f"{listed(counts)} in the last hour"] if counts else []
    acting = [None if each.watchdog is None else each.watchdog.mode for each in document.daemons if each.expected]
    watchdog = [] if document.watchdog is None else [modes(document.watchdog, acting)]
    parts = (counts_text(document), sharing_warnings(document), *failed, *watchdog)
    return replace(document, summary="; ".join(filter(None, parts)))


def sharing_warnings(document: StatusDocument) -> str:
    """Return how many sentences about the sharing of GPUs are warnings; empty if none is."""
    number = sum(each.severity is Severity.WARNING for gpu in document.gpus for each in gpu.sharing_sentences)
    return f"{counted(number, 'warning')} about how clients share GPUs" if number else ""


def only_daemon(document: StatusDocument, name: str) -> StatusDocument:
    """Return the document with one daemon and the GPUs of its clients. Bypassing processes belong to no daemon."""
    findings = [
        each
        for each in document.findings
        if (not each.daemons or name in each.daemons) and not each.code.startswith("process_bypassing")
    ]
    gpus = [
        replace(gpu, processes=tuple(each for each in gpu.processes if each.daemon == name))
        for gpu in document.gpus
        if any(each.daemon == name for each in gpu.processes)
    ]
    return with_summary(
        replace(
            document,
            severity=max((each.severity for each in findings), key=lambda each: each.rank, default=Severity.WELL),
            findings=tuple(findings),
            daemons=tuple(each for each in document.daemons if each.name == name),
            gpus=tuple(gpus),
            failure_domains=tuple(each for each in document.failure_domains if each.daemon == name),
            incidents=tuple(each for each in document.incidents if each.daemon == name),
        )
    )


def counts_text(document: StatusDocument) -> str:
    """Return the numbers of daemons, clients, GPUs and MIG instances."""
    instances = sum(gpu.is_mig_instance for gpu in document.gpus)
    numbers = ((len(document.gpus) - instances, "GPU"), (instances, "MIG instance"))
    daemons = [(each.state in ("up", "held"), each.client_count, each.clients_known) for each in document.daemons]
    return ", ".join((counts_of(daemons), *(counted(number, name) for number, name in numbers if number)))


def counts_of(daemons: Sequence[tuple[bool, int, bool]]) -> str:
    """Return the numbers of daemons and clients: of each daemon, if it responds, its clients, and if they are all."""
    up, clients = sum(each for each, _, _ in daemons), sum(each for _, each, _ in daemons)
    least = "" if all(known for _, _, known in daemons) else "at least "
    return f"{up} of {len(daemons)} daemons up, {least}{counted(clients, 'client')}"


def modes(mode: str, expected: Sequence[str | None]) -> str:
    """Return whether the watchdog acts; if it acts for some of the `expected` daemons, for how many."""
    acting = sum(each == "act" for each in expected)
    if 0 < acting < len(expected):
        return f"watchdog acts for {acting} of {len(expected)}"
    return "watchdog acts" if (acting if expected else mode == "act") else "watchdog observes"


def kernels_text(client: ClientStatus, most: int, longest: int) -> str:
    """Return the first kernels of a client, with the part of its time in flight: `gemm 62 %, softmax 21 %`."""
    if client.kernels_hidden:
        return "not shown"
    uses = client.kernels or ()
    return ", ".join(f"{truncate(kernel_name(each), longest)} {percent(each.flight_ratio)}" for each in uses[:most])


def kernel_notes(clients: Iterable[ClientStatus]) -> Iterable[str]:
    """Return why kernels of these clients are not shown, and why some are unknown."""
    found: dict[str, list[str]] = {}
    for each in clients:
        problem = NOT_SHOWN if each.kernels_hidden else each.kernels_problem
        if problem is not None:
            found.setdefault(problem, []).append(str(each.pid))
    return (f"kernels of PID {listed(pids, MOST_BRIDGES)}: {problem}" for problem, pids in found.items())


def clients_by_pid(document: StatusDocument) -> Mapping[int, ClientStatus]:
    """Return the connected clients."""
    return {each.pid: each for daemon in document.daemons for server in daemon.servers for each in server.clients}


def gpu_numbers(document: StatusDocument) -> Mapping[str, str]:
    """Return how texts name each GPU, by UUID."""
    return {gpu.uuid: printable(gpu.number) for gpu in document.gpus}


def gpus_text(numbers: Mapping[str, str], uuids: Sequence[str]) -> str:
    """Return the names of GPUs: `GPU 0`, `GPUs 0 and 1`."""
    return f"GPU{'s' if len(uuids) > 1 else ''} {listed([numbers.get(uuid, printable(uuid)) for uuid in uuids])}"


def workload_of(process: ProcessStatus) -> str:
    """Return the workload of a process; empty if it is unknown or a user."""
    return workload_text(process.workload, process.pod)


def past_incidents(document: StatusDocument) -> list[IncidentStatus]:
    """Return the incidents of the last hour that are over."""
    past = [each for each in document.incidents if not each.open]
    return [each for each in past if each.ended_at is None or document.at - each.ended_at <= PAST_SECONDS]


def table_lines(document: StatusDocument, width: int | None) -> Sequence[Line]:
    """Return the table of daemons, servers, clients and bypassing processes."""
    numbers = gpu_numbers(document)
    rows = [row for daemon in document.daemons for row in _daemon_rows(document, daemon, numbers)]
    for gpu in document.gpus:
        for each in gpu.processes:
            if each.role == "bypassing":
                memory = "-" if each.memory_used_bytes is None else mebibytes(each.memory_used_bytes)
                place = (numbers[gpu.uuid], memory, "-")
                rows.append(("none", "-", "bypassing", str(each.pid), *_names(each), *place))
    if not rows:
        return [line_of("No MPS control daemon is known, and none is expected.")]
    optional = [index for index, column in enumerate(_COLUMNS) if column.name in ("WORKLOAD", "DOMAIN")]
    empty = [_COLUMNS[index].name for index in optional if all(row[index] == "-" for row in rows)]
    return align_table(*drop_columns(_COLUMNS, list(_styled(rows)), empty), width, _DROPPABLE)


def _daemon_rows(document: StatusDocument, daemon: DaemonStatus, numbers: Mapping[str, str]) -> Iterable[Sequence[str]]:
    name, state = printable(daemon.name), daemon.state
    domains = any(len(each.clients) > 1 for each in document.failure_domains)  # Else their names are not shown.
    if not daemon.servers:
        yield (name, "-", state, "-", "-", "-", "-", "-", "-", "-")
    for each in daemon.servers:
        # If the daemon does not answer, the server's state is not current.
        server = (name, str(each.pid), (each.state or "unknown") if state == "up" else state)
        if not each.clients:
            yield (*server, "-", each.user or "-", "-", "-", "-", "-", "-")
        for client in each.clients:
            domain = (client.failure_domain or "-") if domains else "-"
            cells = (*server, str(client.pid), *_names(client))
            if not client.memory_used_bytes:
                yield (*cells, "-", "-", domain)
            for gpu, used in client.memory_used_bytes.items():
                yield (*cells, numbers.get(gpu, printable(gpu)), mebibytes(used), domain)
    for waiting in daemon.waiting:
        yield (name, "-", "waiting", str(waiting.pid) if waiting.pid > 0 else "?", *_names(waiting), "-", "-", "-")


def _names(process: ProcessStatus) -> tuple[str, str, str]:
    user, command = display_name(process.user) or "-", command_text(process) or "-"
    return user, command, truncate(workload_of(process), _LONGEST_WORKLOAD) or "-"


def _styled(rows: Sequence[Sequence[str]]) -> Iterable[Row]:
    """Style each state, and dim a daemon and server that the row above has too."""
    above: Sequence[str] = ()
    for row in rows:
        daemon, server, state, *others = row
        style = Style.DIM if [daemon, server] == list(above[:2]) else Style.PLAIN
        state_cell = cell(state, _STATE_STYLES.get(state, Style.ERROR))
        yield [cell(daemon, style), cell(server, style), state_cell, *map(cell, others)]
        above = row


def _joined_domains(document: StatusDocument) -> Iterable[Line]:
    """Yield the failure domains of several clients on several GPUs, with the clients that join the GPUs."""
    numbers, clients = gpu_numbers(document), clients_by_pid(document).values()
    for domain in document.failure_domains:
        if len(domain.gpus) > 1 and len(domain.clients) > 1:
            yield line_of(
                f"domain {domain.name}: {len(domain.clients)} clients on {gpus_text(numbers, domain.gpus)} fail"
                f" together: a fatal fault of one ends {'all, or only some' if domain.upper_bound else 'all'}"
            )
            joining = [each for each in clients if each.failure_domain == domain.name and len(each.gpus) > 1]
            names = {each.pid: display_name(each.command) for each in joining}
            bridges = [
                f"{each.pid}{f' ({names[each.pid]})' if names[each.pid] else ''} on {gpus_text(numbers, each.gpus)}"
                for each in sorted(joining, key=lambda each: each.pid)
            ]
            joined = listed(bridges, MOST_BRIDGES)
            yield line_of(f"  joined by {joined}; a daemon for each GPU separates them; a client then has one GPU")


def sharing_lines(document: StatusDocument, width: int | None) -> Iterable[Line]:
    """Yield how the MPS clients of each GPU share it."""
    for gpu in document.gpus:
        for number, each in enumerate(gpu.sharing_sentences):
            before = "  " if number else f"sharing of GPU {gpu.number}: "
            text = warning(each.text) if each.severity is Severity.WARNING else each.text
            yield line_of(before, text)
        if gpu.sharing is not None:
            yield from _clients_table(document, gpu, width)
    if document.attribution_problem is not None:
        yield line_of(dim(document.attribution_problem))
    yield from (line_of(dim(note)) for note in kernel_notes(clients_by_pid(document).values()))


def _clients_table(document: StatusDocument, gpu: GpuStatus, width: int | None) -> Iterable[Line]:
    clients = [each for each in gpu.processes if each.client is not None]
    methods = {each.method for each in clients if each.method is not None}
    if not methods:
        return
    order = sorted(clients, key=lambda each: (-(each.sm_ratio or 0.0), -(each.memory_used_bytes or 0), each.pid))
    known = clients_by_pid(document)
    rows = [_sharing_row(document.at, each, known.get(each.pid)) for each in order[:MOST_ROWS]]
    dropped = ["METHOD"] if len(methods) == 1 else []
    dropped.extend(name for name, place in _IF_KNOWN.items() if all(row[place].text == "-" for row in rows))
    yield from align_table(*drop_columns(_SHARING_COLUMNS, rows, dropped), width, _SHARING_DROPPABLE)
    rest = order[MOST_ROWS:]
    if rest:
        held = mebibytes(sum(each.memory_used_bytes or 0 for each in rest))
        parts = [(each.sm_ratio, each.sm_error_ratio or 0.0) for each in rest if each.sm_ratio is not None]
        share = percent(sum(part for part, _ in parts), hypot(*(error for _, error in parts)))
        share = share if len(parts) == len(rest) else "an unknown part of the SMs"
        yield line_of(dim(f"and {len(rest)} more, which together hold {held} and used {share}"))


def _sharing_row(at: float, client: GpuProcess, known: ClientStatus | None) -> Row:
    threads, sms, connected = client.active_thread_ratio, client.usable_sms, client.connected_at
    may_use = "" if threads is None else percent(threads) if sms is None else f"{sms} SMs"
    texts = (
        str(client.pid) if client.pid > 0 else "?",
        *_names(client),
        may_use if client.active_thread_certain else may_use and f"≤ {may_use}",
        "" if client.sm_ratio is None else with_error(client.sm_ratio, client.sm_error_ratio or 0.0),
        client.method,
        "" if client.slowdown is None else client.slowdown.text,
        "" if client.memory_used_bytes is None else mebibytes(client.memory_used_bytes),
        # One unit is enough.
        "" if connected is None else " ".join(duration_text(max(0.0, at - connected)).split()[:2]),
        "" if known is None else kernels_text(known, 2, _LONGEST_KERNEL),
    )
    return [cell(text or "-") for text in texts]


def watchdog_lines(document: StatusDocument) -> Iterable[Line]:
    """Yield what the watchdog does for daemons without a problem."""
    reported = {name for finding in document.findings for name in finding.daemons}
    for daemon in document.daemons:
        text = None if daemon.watchdog is None else daemon.watchdog.text
        if text is not None and daemon.name not in reported:
            yield line_of(f"MPS daemon {printable(daemon.name)}; ", dim("watchdog: "), text)
