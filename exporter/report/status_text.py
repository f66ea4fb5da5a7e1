"""`status` in a terminal, and the status line for the service manager."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from exporter.model.daemon import Daemon, DaemonState
from exporter.model.node import CollectorName, Node
from exporter.model.observation import DaemonName
from exporter.model.reason import LOG_BLOCKED
from exporter.model.server import Server, ServerState
from exporter.model.values import plain
from exporter.parse.printable import printable
from exporter.report.finding import state_text
from exporter.report.incident_text import brief, details
from exporter.report.objects import node_object
from exporter.report.problem import Severity
from exporter.report.reasons import log_text, reason_text, source_text
from exporter.report.remedy import address_of
from exporter.report.sharing_text import factor_text, sentences, used_text
from exporter.report.status_view import (
    DaemonView,
    NamedDomain,
    ProcessLabel,
    StatusView,
    by_index,
    gpus_text,
    process_label,
    view_of,
)
from exporter.report.text import (
    SIMULATED,
    Column,
    Line,
    Piece,
    Row,
    StatusText,
    Style,
    align_table,
    cell,
    counted,
    dim,
    drop_columns,
    duration_text,
    line_of,
    listed,
    mebibytes,
    percent,
    shell_command,
    text_of,
    truncate,
    warning,
)
from exporter.report.watchdog_text import brief_problems, modes, summary_lines
from exporter.state.failure_domains import gpus_of_clients
from exporter.usage.capacity import ClientUsage, GpuSharing
from exporter.view import View, gpu_name
from exporter.watchdog.context import Policy

MOST_FINDINGS = 8
MOST_BLOCKERS = 8
MOST_BRIDGES = 4

MOST_ROWS = 8
"""At most so many clients of a GPU have a row, those with the most use."""

_LONGEST_WORKLOAD = 22

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
    Column(name="SLOWER", align_right=True),
    Column(name="MEMORY", align_right=True),
    Column(name="SINCE", align_right=True),
)
_IF_KNOWN = {"WORKLOAD": 3, "SLOWER": 7}
_SHARING_DROPPABLE = ("SINCE", "WORKLOAD", "USER", "MAY USE", "METHOD", "MEMORY", "SLOWER")

_STATE_STYLES = {
    DaemonState.UP: Style.OK,
    DaemonState.STARTING: Style.WARNING,
    ServerState.ACTIVE: Style.OK,
    ServerState.INITIALIZING: Style.WARNING,
    "unknown": Style.WARNING,
    "waiting": Style.WARNING,
    "bypassing": Style.WARNING,
}
"""All other states are errors."""

_SEVERITY_STYLES = {
    Severity.WELL: Style.OK,
    Severity.UNKNOWN: Style.WARNING,
    Severity.WARNING: Style.WARNING,
    Severity.CRITICAL: Style.ERROR,
}


def render_status(node: Node, policy: Policy | None = None, width: int | None = None) -> StatusText:
    """Return the status as text. Tables are at most `width` columns wide; `policy` is None if there is no watchdog."""
    return _render(view_of(node, policy), width)


def _render(view: StatusView, width: int | None) -> StatusText:
    # The watchdog's diagnoses depend on the collectors, so collection errors come first.
    problems = [*(line_of(warning(text)) for text in _collection_errors(view)), *summary_lines(view.node)]
    past: list[Line] = []
    for incident in view.incidents:
        if incident.open:
            problems += [line_of(), *details(incident, view.at, address_of(view.node, incident.daemon, view.policy))]
        else:
            past.insert(0, line_of(dim(brief(incident, view.at))))
    return StatusText(
        at=view.at,
        headline=tuple(headline(view)),
        table=(*_simulated(view.node), *_table(view, width), *_joined_domains(view.node, view.domains)),
        problems=(*problems, *_remedies(view, problems)),
        past_faults=(line_of(), line_of("Faults of the last hour:"), *past) if past else (),
        sharing=tuple(_sharing(view, width)),
    )


def status_table(node: Node, policy: Policy | None = None) -> str:
    """Return the status without the headline, as text."""
    return text_of(render_status(node, policy).body)


def summary_line(node: Node, policy: Policy | None = None) -> str:
    """Return one line for the service manager."""
    faults = (_fault(node, *each) for each in View(node).servers() if each[1].state is ServerState.FAULT)
    failed = [name for name, source in node.sources.items() if source.last.problem is not None]
    errors = [f"cannot collect: {', '.join(failed)}"] if failed else []
    watchdog = [] if policy is None else [modes(node, policy)]
    simulated = [SIMULATED] if node.simulated else []
    return "; ".join([*simulated, *watchdog, _daemons_and_clients(node), *faults, *brief_problems(node), *errors])


def status_answer(
    node: Node,
    policy: Policy | None = None,
    *,
    as_json: bool = False,
    daemon: DaemonName | None = None,
    width: int | None = None,
) -> Mapping[str, Any]:
    """Return the status of one `daemon` or of all, as an object or as text, with the exit code of `status`."""
    if daemon is not None:
        present = [each.name for each in View(node).daemons()]
        if daemon not in present:
            names = ", ".join(map(printable, present)) or "none"
            return {"problem": f"no daemon {printable(daemon)} is here; there are: {names}"}
        node = _with_one_daemon(node, daemon)
    view = view_of(node, policy)
    shown = {"node": node_object(view)} if as_json else {"text": plain(_render(view, width))}
    return {**shown, "exit_code": int(view.fails)}


def headline(view: StatusView) -> Sequence[Line]:
    """Return one line on the node, and one for each problem."""
    node, found, severity = view.node, view.findings, view.severity
    # Upper case also shows without colours.
    word = severity.words.upper() if severity is Severity.CRITICAL else severity.words
    past = sum(not incident.open for incident in node.incidents.values())
    faults = [f"{counted(past, 'fault')} in the last hour"] if past else []
    watchdog = [] if view.policy is None else [modes(node, view.policy)]
    text = "; ".join((counts_text(node), *faults, *watchdog))
    problems = [line_of("  ", Piece(each.text, _SEVERITY_STYLES[each.severity])) for each in found[:MOST_FINDINGS]]
    if len(found) > MOST_FINDINGS:
        problems.append(line_of(dim(f"  and {len(found) - MOST_FINDINGS} more")))
    first = line_of(Piece(word, _SEVERITY_STYLES[severity]), f": {text}", indent=2)
    return [*_simulated(node), first, *problems]


def _simulated(node: Node) -> Sequence[Line]:
    return [line_of(warning(SIMULATED))] if node.simulated else []


def counts_text(node: Node) -> str:
    """Return the numbers of daemons, clients, GPUs and MIG instances."""
    instances = sum(gpu.reading.mig is not None for gpu in node.gpus.values())
    numbers = ((len(node.gpus) - instances, "GPU"), (instances, "MIG instance"))
    return ", ".join((_daemons_and_clients(node), *(counted(number, name) for number, name in numbers if number)))


def _daemons_and_clients(node: Node) -> str:
    daemons = list(View(node).daemons())
    up = sum(daemon.state is DaemonState.UP for daemon in daemons)
    least = "" if all(daemon.clients_known for daemon in daemons) else "at least "
    return f"{up} of {len(daemons)} daemons up, {least}{counted(sum(len(each.clients) for each in daemons), 'client')}"


def _table(view: StatusView, width: int | None) -> Sequence[Line]:
    """Return the table of daemons, servers, clients and bypassing processes."""
    rows = [row for daemon in view.daemons for row in _daemon_rows(view.node, daemon)]
    for gpu in view.gpus:
        for pid, used in gpu.bypassing.items():
            memory = "-" if used is None else mebibytes(used)
            names = _names(process_label(view.node, pid))
            rows.append(("none", "-", "bypassing", str(pid), *names, gpu_name(view.node, gpu.uuid), memory, "-"))
    if not rows:
        return [line_of("No MPS control daemon, and none expected.")]
    optional = [index for index, column in enumerate(_COLUMNS) if column.name in ("WORKLOAD", "DOMAIN")]
    empty = [_COLUMNS[index].name for index in optional if all(row[index] == "-" for row in rows)]
    return align_table(*drop_columns(_COLUMNS, list(_styled(rows)), empty), width, _DROPPABLE)


def _daemon_rows(node: Node, shown: DaemonView) -> Iterable[Sequence[str]]:
    name, state = printable(shown.daemon.name), state_text(shown.daemon)
    if not shown.servers:
        yield (name, "-", state, "-", "-", "-", "-", "-", "-", "-")
    for each in shown.servers:
        server = (name, str(each.server.pid), (each.server.state or "unknown") if each.answering else state)
        if not each.clients:
            yield (*server, "-", each.user or "-", "-", "-", "-", "-", "-")
        for client in each.clients:
            cells, domain = (*server, str(client.client.pid), *_names(client.label)), client.letter or "-"
            if not client.memory:
                yield (*cells, "-", "-", domain)
            for gpu, used in client.memory.items():
                yield (*cells, gpu_name(node, gpu), mebibytes(used), domain)
    for waiting in shown.waiting.values():
        yield (name, "-", "waiting", waiting.pid, *_names(waiting), "-", "-", "-")


def _names(label: ProcessLabel) -> tuple[str, str, str]:
    return label.user or "-", label.command or "-", truncate(label.workload, _LONGEST_WORKLOAD) or "-"


def _styled(rows: Sequence[Sequence[str]]) -> Iterable[Row]:
    """Style each state, and dim a daemon and server that the row above has too."""
    above: Sequence[str] = ()
    for row in rows:
        daemon, server, state, *others = row
        style = Style.DIM if [daemon, server] == list(above[:2]) else Style.PLAIN
        state_cell = cell(state, _STATE_STYLES.get(state, Style.ERROR))
        yield [cell(daemon, style), cell(server, style), state_cell, *map(cell, others)]
        above = row


def _joined_domains(node: Node, domains: Sequence[NamedDomain]) -> Iterable[Line]:
    """Yield the failure domains of several clients on several GPUs, with the clients that join the GPUs."""
    for each in domains:
        clients, gpus = each.domain.clients, each.domain.gpus
        if len(gpus) > 1 and len(clients) > 1:
            yield line_of(
                f"domain {each.letter}: {len(clients)} clients on {gpus_text(node, gpus)} fail together: a fatal fault"
                f" of one ends {'all, or only some' if each.domain.upper_bound else 'all'}"
            )
            found = gpus_of_clients(node, each.daemon, sorted(clients))
            labels = {pid: process_label(node, pid).command for pid, on in found.items() if len(on) > 1}
            names = {pid: f"{pid} ({command})" if command else str(pid) for pid, command in labels.items()}
            bridges = [f"{name} on {gpus_text(node, found[pid])}" for pid, name in names.items()]
            joined = listed(bridges, MOST_BRIDGES)
            yield line_of(f"  joined by {joined}; a daemon for each GPU separates them; a client then has one GPU")


def _sharing(view: StatusView, width: int | None) -> Iterable[Line]:
    """Yield how the MPS clients of each GPU share it, and how many shares Kubernetes has allocated."""
    node, gpus = view.node, {each.uuid: each for each in view.gpus if each.sharing is not None or each.shares}
    found = {uuid: each.sharing for uuid, each in gpus.items() if each.sharing is not None}
    for uuid in by_index(node, gpus):
        first, *others = sentences(node, found.get(uuid), gpus[uuid].shares)
        yield line_of(f"sharing of {gpus_text(node, [uuid])}: ", *first.pieces)
        yield from (line_of("  ", *each.pieces) for each in others)
        if uuid in found:
            yield from _clients_table(node, found[uuid], width)
    if found and not any(each.shares for each in found.values()):
        probes, why = node.sources.get(CollectorName.LIBCUDA_PROBES), ": start the exporter with --attribution=bpf"
        if probes is not None and probes.last.problem is not None:
            why = f": {source_text(CollectorName.LIBCUDA_PROBES, probes)}"
        elif probes is not None or node.work is not None:
            why = " yet"
        yield line_of(dim(f"SM time by client is not known{why}"))


def _clients_table(node: Node, found: GpuSharing, width: int | None) -> Iterable[Line]:
    if not found.shares:
        return
    used = {each.client.pid: 0.0 if each.share is None else each.share.sm for each in found.clients}
    order = sorted(found.clients, key=lambda each: (-used[each.client.pid], -(each.memory or 0), each.client.pid))
    rows = [_sharing_row(node, each) for each in order[:MOST_ROWS]]
    dropped = ["METHOD"] if len(found.methods) == 1 else []
    unused = (name for name, place in _IF_KNOWN.items() if all(row[place].text == "-" for row in rows))
    dropped.extend(unused)
    yield from align_table(*drop_columns(_SHARING_COLUMNS, rows, dropped), width, _SHARING_DROPPABLE)
    rest = order[MOST_ROWS:]
    if rest:
        held = mebibytes(sum(each.memory or 0 for each in rest))
        share = percent(sum(used[each.client.pid] for each in rest))
        yield line_of(dim(f"and {len(rest)} more, which together hold {held} and used {share}"))


def _sharing_row(node: Node, usage: ClientUsage) -> Row:
    label, used = process_label(node, usage.client.pid), usage.share
    texts = (
        label.pid,
        label.user,
        label.command,
        truncate(label.workload, _LONGEST_WORKLOAD),
        "" if usage.threads is None else percent(usage.threads),
        "" if used is None else used_text(used),
        "" if used is None else used.method,
        factor_text(usage),
        "" if usage.memory is None else mebibytes(usage.memory),
        # One unit is enough.
        " ".join(duration_text(max(0.0, node.at - usage.client.connected_at)).split()[:2]),
    )
    return [cell(text or "-") for text in texts]


def _fault(node: Node, daemon: Daemon, server: Server) -> str:
    """Return the server in FAULT, and the clients that block its recovery."""
    incidents = (each for each in node.incidents.values() if (each.daemon, each.server) == (daemon.name, server.pid))
    blockers = [str(pid) for incident in incidents for pid in incident.blockers]
    more = f" and {len(blockers) - MOST_BLOCKERS} more" if len(blockers) > MOST_BLOCKERS else ""
    names = ", ".join(blockers[:MOST_BLOCKERS])
    return f"FAULT of server {server.pid}" + (f", blocked by {names}{more}" if blockers else "")


def _with_one_daemon(node: Node, name: DaemonName) -> Node:
    """Return the node with one daemon. Bypassing processes belong to no daemon, so they are left out."""
    return replace(
        node,
        daemons={name: node.daemons[name]},
        gpus={uuid: replace(gpu, bypassing_processes={}) for uuid, gpu in node.gpus.items()},
        incidents={key: each for key, each in node.incidents.items() if each.daemon == name},
    )


def _remedies(view: StatusView, above: Sequence[Line]) -> Iterable[Line]:
    """Return what helps a daemon or a GPU, with its commands, if any, unless these stand `above` already."""
    shown = {piece.text.strip() for line in above for piece in line.pieces if piece.style is Style.COMMAND}
    for finding in view.findings:
        new = [command for command in finding.commands if command not in shown] if finding.daemon is not None else []
        alone = finding.daemon is not None and not finding.commands and finding.severity is not Severity.UNKNOWN
        if new or finding.steps or alone:
            yield from (line_of(), line_of(f"What to do: {finding.text}"))
            yield from (line_of(f"  {finding.definition.meaning}"), line_of(f"  {finding.remedy}"))
        yield from (line_of("  ", shell_command(command)) for command in new)
        for number, step in enumerate(finding.steps, start=1):
            yield line_of(dim(f"  {number}. "), step.text, indent=5)
            yield from (line_of(" " * 5, shell_command(command), indent=5) for command in step.commands)


def _collection_errors(view: StatusView) -> Iterable[str]:
    for name, source in sorted(view.node.sources.items()):
        if source.last.problem is not None:
            yield f"{name}: {source_text(name, source)}"
    for shown in view.daemons:
        daemon, name = shown.daemon, printable(shown.daemon.name)
        if not daemon.supported:
            yield f"{name}: MPS protocol {daemon.runtime.protocol} is unknown: its clients are known only from NVML"
        if daemon.pid_file_spoilt and daemon.runtime.process is not None:
            yield f"{name}: its PID file is wrong, so no command reaches it: write {daemon.runtime.process.pid} into it"
        if daemon.state is DaemonState.UP:
            files = daemon.log.problems.items()
            yield from (f"log: {log_text(file, problem)}" for file, problem in files if problem is not None)
        if daemon.log.own_commands.blocked_since is not None:
            yield f"log of {name}: {reason_text(LOG_BLOCKED)}"
