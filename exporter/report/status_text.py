"""`status` in a terminal."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from exporter.model.daemon import Daemon, DaemonState
from exporter.model.node import Node
from exporter.model.observation import DaemonName, GpuUuid
from exporter.model.problem import LOG_BLOCKED
from exporter.model.server import Server, ServerState
from exporter.parse.printable import printable
from exporter.report import watchdog_text
from exporter.report.finding import Finding, state_word
from exporter.report.identity import Who, who
from exporter.report.incident_text import brief, details
from exporter.report.objects import node_object
from exporter.report.problem import Severity
from exporter.report.problem_text import log_text, problem_text, source_text
from exporter.report.remedy import address_of
from exporter.report.sharing_text import percent, sentences, used_text
from exporter.report.status_view import ClientView, DaemonView, StatusView, by_index, gpus_text, joined, view_of
from exporter.report.text import (
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
    mebibytes,
    shell_command,
    text_of,
    truncate_name,
    warning,
)
from exporter.report.watchdog_text import modes
from exporter.serialization import plain
from exporter.usage.capacity import ClientUsage, GpuSharing
from exporter.usage.launch_history import LIBCUDA_PROBES
from exporter.view import View, gpu_name
from exporter.watchdog.context import Policy

_COLUMNS = (
    Column(name="DAEMON", least=12, keep_end=True),
    Column(name="SERVER", right=True),
    Column(name="STATE"),
    Column(name="PID", right=True),
    Column(name="USER", least=6),
    Column(name="COMMAND", least=8),
    Column(name="WORKLOAD", least=10),
    Column(name="GPU", least=6),
    Column(name="MEMORY", right=True),
    Column(name="DOMAIN"),
)
_MAY_BE_LEFT_OUT = ("WORKLOAD", "DOMAIN")
_DISPENSABLE = ("SERVER", "DOMAIN", "USER", "WORKLOAD", "DAEMON", "GPU")
"""On a terminal that is too narrow, the one of least worth first."""
_LONGEST_WORKLOAD = 22

_TONES = {
    DaemonState.UP: Style.OK,
    DaemonState.STARTING: Style.WARNING,
    ServerState.ACTIVE: Style.OK,
    ServerState.INITIALIZING: Style.WARNING,
    "unknown": Style.WARNING,
    "waiting": Style.WARNING,
    "bypassing": Style.WARNING,
}
"""Whatever else a state is, it is bad."""


def lines(view: StatusView, width: int | None = None) -> Sequence[Line]:
    """Return the table, its columns aligned; a sentence if there is nothing to show."""
    rows = [row for daemon in view.daemons for row in _daemon_rows(view.node, daemon)]
    rows.extend(_bypassing_rows(view))
    if not rows:
        return [line_of("No MPS control daemon, and none expected.")]
    columns, told = drop_columns(_COLUMNS, list(_toned(rows)), _nothing_to_tell(rows))
    return align_table(columns, told, width, _DISPENSABLE)


def _daemon_rows(node: Node, shown: DaemonView) -> Iterable[Sequence[str]]:
    name, state = printable(shown.daemon.name), state_word(shown.daemon)
    if not shown.servers:
        yield (name, "-", state, "-", "-", "-", "-", "-", "-", "-")
    for server in shown.servers:
        here = (name, str(server.server.pid), (server.server.state or "unknown") if server.answering else state)
        if not server.clients:
            yield (*here, "-", server.user or "-", "-", "-", "-", "-", "-")
        for client in server.clients:
            yield from ((*here, *row, client.letter or "-") for row in _client_rows(node, client))
    for pid, waiting in shown.waiting.items():
        yield (name, "-", "waiting", str(pid), *_words(waiting), "-", "-", "-")


def _client_rows(node: Node, shown: ClientView) -> Iterable[Sequence[str]]:
    cells = (str(shown.client.pid), *_words(shown.who))
    if not shown.memory:
        yield (*cells, "-", "-")
    for gpu, amount in shown.memory.items():
        yield (*cells, gpu_name(node, gpu), mebibytes(amount))


def _bypassing_rows(view: StatusView) -> Iterable[Sequence[str]]:
    for gpu in view.gpus:
        for pid, amount in gpu.bypassing.items():
            memory = "-" if amount is None else mebibytes(amount)
            words = _words(who(view.node, pid))
            yield ("none", "-", "bypassing", str(pid), *words, gpu_name(view.node, gpu.uuid), memory, "-")


def _words(known: Who) -> tuple[str, str, str]:
    return known.user or "-", known.command or "-", truncate_name(known.owner, _LONGEST_WORKLOAD) or "-"


def _nothing_to_tell(rows: Sequence[Sequence[str]]) -> Sequence[str]:
    """The columns in which that is so of every row: nobody but users own anything, or everybody falls alone."""
    cells = {column.name: {row[place] for row in rows} for place, column in enumerate(_COLUMNS)}
    return [name for name in _MAY_BE_LEFT_OUT if cells[name] == {"-"}]


def _toned(rows: Sequence[Sequence[str]]) -> Iterable[Row]:
    """Each state in its tone; what is as in the row above is faint."""
    above: Sequence[str] = ()
    for row in rows:
        daemon, server, state, *others = row
        again = Style.DIM if [daemon, server] == list(above[:2]) else Style.PLAIN
        standing = _TONES.get(state, Style.ERROR)
        yield [cell(daemon, again), cell(server, again), cell(state, standing), *map(cell, others)]
        above = row


MOST_ROWS = 8
"""So many clients of a GPU have a row each, those that used most."""

_SHARING_COLUMNS = (
    Column(name="PID", right=True),
    Column(name="USER", least=6),
    Column(name="COMMAND", least=8),
    Column(name="WORKLOAD", least=10),
    Column(name="MAY USE", right=True),
    Column(name="USED", right=True),
    Column(name="METHOD"),
    Column(name="MEMORY", right=True),
    Column(name="SINCE", right=True),
)
_SHARING_DISPENSABLE = ("SINCE", "WORKLOAD", "USER", "MAY USE", "METHOD", "MEMORY")
_WORKLOAD = [column.name for column in _SHARING_COLUMNS].index("WORKLOAD")


def sharing(view: StatusView, width: int | None = None) -> Iterable[Line]:
    """Describe the sharing of each GPU that has MPS clients."""
    node = view.node
    found = {each.uuid: each.fitness for each in view.gpus if each.fitness is not None}
    for uuid in by_index(node, found):
        yield from _of_gpu(node, uuid, found[uuid], width)
    measured = [each for each in found.values() if each.gpm is not False]
    if measured and not any(each.shares for each in measured):
        yield line_of(dim(_why_unknown(node)))


def _of_gpu(node: Node, uuid: GpuUuid, found: GpuSharing, width: int | None) -> Iterable[Line]:
    first, *others = sentences(node, found)
    yield line_of(f"sharing of {gpus_text(node, [uuid])}: ", *first.pieces)
    yield from (line_of("  ", *each.pieces) for each in others)
    if found.shares:
        yield from _table(node, found, width)


def _why_unknown(node: Node) -> str:
    """How to have it known is told only where nobody tries: else why that fails, or that it takes its time."""
    doors = node.sources.get(LIBCUDA_PROBES)
    if doors is not None and doors.last.problem is not None:
        return f"SM time by client is not known: {source_text(LIBCUDA_PROBES, doors)}"
    if doors is not None or node.work is not None:
        return "SM time by client is not known yet"
    return "SM time by client is not known: start the exporter with --attribution=bpf"


def _table(node: Node, found: GpuSharing, width: int | None) -> Iterable[Line]:
    order = sorted(found.clients, key=_most_first)
    rows = [list(_row(node, each)) for each in order[:MOST_ROWS]]
    columns, cells = drop_columns(_SHARING_COLUMNS, rows, _status_sharing_nothing_to_tell(found, rows))
    yield from align_table(columns, cells, width, _SHARING_DISPENSABLE)
    if order[MOST_ROWS:]:
        yield line_of(dim(_rest(order[MOST_ROWS:])))


def _status_sharing_nothing_to_tell(found: GpuSharing, rows: Sequence[Row]) -> Sequence[str]:
    """The columns in which that is so of every row: one method has been told already."""
    methods = ["METHOD"] if len(found.methods) == 1 else []
    return methods if any(row[_WORKLOAD].text != "-" for row in rows) else [*methods, "WORKLOAD"]


def _row(node: Node, holding: ClientUsage) -> Row:
    known, used = who(node, holding.client.pid), holding.share
    texts = (
        known.pid,
        known.user,
        known.command,
        truncate_name(known.owner, _LONGEST_WORKLOAD),
        "" if holding.threads is None else percent(holding.threads),
        "" if used is None else used_text(used),
        "" if used is None else used.method,
        "" if holding.memory is None else mebibytes(holding.memory),
        _about(node.at - holding.client.connected_at),
    )
    return [cell(text or "-") for text in texts]


def _about(seconds: float) -> str:
    """How long something took, to one unit."""
    return " ".join(duration_text(max(0.0, seconds)).split()[:2])


def _rest(others: Sequence[ClientUsage]) -> str:
    held = mebibytes(sum(each.memory or 0 for each in others))
    used = percent(sum(each.share.sm for each in others if each.share is not None))
    return f"and {len(others)} more, who hold {held} and used {used} together"


def _most_first(holding: ClientUsage) -> tuple[float, int, int]:
    used = 0.0 if holding.share is None else holding.share.sm
    return -used, -(holding.memory or 0), holding.client.pid


MOST_FINDINGS = 8

_SEVERITY_TONES = {
    Severity.WELL: Style.OK,
    Severity.UNKNOWN: Style.WARNING,
    Severity.WARNING: Style.WARNING,
    Severity.CRITICAL: Style.ERROR,
}


def headline(view: StatusView) -> Sequence[Line]:
    """Return one line on the node, and one for each problem below it."""
    node, found = view.node, view.findings
    watchdog = [] if view.policy is None else [modes(node, view.policy)]
    present = "; ".join((presence(node), *_past(node), *watchdog))
    first = line_of(Piece(_word(view.severity), _SEVERITY_TONES[view.severity]), f": {present}", indent=2)
    more = len(found) - MOST_FINDINGS
    return [first, *map(_line, found[:MOST_FINDINGS]), *([line_of(dim(f"  and {more} more"))] if more > 0 else [])]


def presence(node: Node) -> str:
    """Who is there, in numbers."""
    gpus = [counted(len(node.gpus), "GPU")] if node.gpus else []
    return ", ".join((daemons_and_clients(node), *gpus))


def daemons_and_clients(node: Node) -> str:
    """How many there are: `1 of 2 daemons up, 3 clients`."""
    daemons = list(View(node).daemons())
    up = sum(daemon.state is DaemonState.UP for daemon in daemons)
    return f"{up} of {len(daemons)} daemons up, {counted(sum(len(each.clients) for each in daemons), 'client')}"


def _word(worst: Severity) -> str:
    """Loud where it must be, also for who sees no colours."""
    return worst.words.upper() if worst is Severity.CRITICAL else worst.words


def _past(node: Node) -> Sequence[str]:
    over = sum(not incident.open for incident in node.incidents.values())
    return [f"{counted(over, 'fault')} in the last hour"] if over else []


def _line(finding: Finding) -> Line:
    return line_of("  ", Piece(finding.text, _SEVERITY_TONES[finding.severity]))


MOST_BLOCKERS = 8
"""So many are named in one line."""


def render_status(node: Node, policy: Policy | None = None, width: int | None = None) -> StatusText:
    """Return all that a person is shown; the table is no wider than `width`, None: as wide as it becomes.

    `policy` are the watchdog's, None if there is no watchdog.
    """
    return _render(view_of(node, policy), width)


def _render(view: StatusView, width: int | None) -> StatusText:
    # What the watchdog reports stands below what could not be collected, since it depends on that.
    known = (*_problems(view), *watchdog_text.lines(view.node), *_open(view))
    return StatusText(
        at=view.at,
        head=tuple(headline(view)),
        table=(*lines(view, width), *joined(view.node, view.domains)),
        troubles=(*known, *_remedies(view, known)),
        past=tuple(_over(view)),
        sharing=tuple(sharing(view, width)),
    )


def status_table(node: Node, policy: Policy | None = None) -> str:
    """Return the sheet without its head: daemons, servers and clients, sharing, problems, faults."""
    shown = render_status(node, policy)
    return text_of((*shown.table, *shown.sharing, *shown.troubles, *shown.past))


def summary_line(node: Node, policy: Policy | None = None) -> str:
    """Return one line for the service manager; `policy` are the watchdog's, None if there is no watchdog."""
    faults = (_fault(node, *each) for each in View(node).servers() if each[1].state is ServerState.FAULT)
    failed = [name for name, source in node.sources.items() if source.last.problem is not None]
    missing = [f"cannot collect: {', '.join(failed)}"] if failed else []
    watchdog = [] if policy is None else [watchdog_text.modes(node, policy)]
    return "; ".join([*watchdog, daemons_and_clients(node), *faults, *watchdog_text.briefly(node), *missing])


def status_answer(
    node: Node,
    policy: Policy | None = None,
    *,
    as_json: bool = False,
    daemon: DaemonName | None = None,
    width: int | None = None,
) -> Mapping[str, Any]:
    """Return an object or a sheet, of one `daemon` or of all, and the exit code."""
    if daemon is not None:
        there = [each.name for each in View(node).daemons()]
        if daemon not in there:
            others = ", ".join(map(printable, there)) or "none"
            return {"problem": f"no daemon {printable(daemon)} is here; there are: {others}"}
        node = _only(node, daemon)
    view = view_of(node, policy)
    shown = {"node": node_object(view)} if as_json else {"text": plain(_render(view, width))}
    return {**shown, "exit_code": int(view.fails)}


def exit_code(node: Node, policy: Policy | None = None) -> int:
    """Return 0 if daemons and servers are well, limits in force and all collectors work; otherwise 1."""
    return int(view_of(node, policy).fails)


def _fault(node: Node, daemon: Daemon, server: Server) -> str:
    """Where one is, and who holds up recovery."""
    here = (each for each in node.incidents.values() if (each.daemon, each.server) == (daemon.name, server.pid))
    blockers = [str(pid) for incident in here for pid in incident.blockers]
    named = ", ".join(blockers[:MOST_BLOCKERS])
    more = f" and {len(blockers) - MOST_BLOCKERS} more" if len(blockers) > MOST_BLOCKERS else ""
    return f"FAULT of server {server.pid}" + (f", held up by {named}{more}" if blockers else "")


def _only(node: Node, name: DaemonName) -> Node:
    """The node as if it had one daemon; of who is beside MPS, nobody is that daemon's."""
    return replace(
        node,
        daemons={name: node.daemons[name]},
        gpus={uuid: replace(gpu, bypassing_processes={}) for uuid, gpu in node.gpus.items()},
        incidents={key: each for key, each in node.incidents.items() if each.daemon == name},
    )


def _remedies(view: StatusView, above: Sequence[Line]) -> Iterable[Line]:
    """Return what helps a daemon or a GPU, with its commands, unless these stand `above` already."""
    shown = text_of(above)
    for finding in view.findings:
        new = [command for command in finding.commands if command not in shown] if finding.daemon is not None else []
        if new or finding.steps:
            yield from (line_of(), line_of(f"What to do: {finding.text}"), line_of(f"  {finding.definition.meaning}"))
            yield line_of(f"  {finding.remedy}")
        yield from (line_of("  ", shell_command(command)) for command in new)
        for number, step in enumerate(finding.steps, start=1):
            yield line_of(dim(f"  {number}. "), step.text, indent=5)
            yield from (line_of(" " * 5, shell_command(command), indent=5) for command in step.commands)


def _open(view: StatusView) -> Iterable[Line]:
    """Return the faults that are not over, each after an empty line."""
    for incident in view.incidents:
        if incident.open:
            yield from (line_of(), *details(incident, view.at, address_of(view.node, incident.daemon, view.policy)))


def _over(view: StatusView) -> Iterable[Line]:
    """Return the last faults that are over, the latest first."""
    over = [incident for incident in view.incidents if not incident.open][::-1]
    if over:
        yield from (
            line_of(),
            line_of("Faults of the last hour:"),
            *(line_of(dim(brief(each, view.at))) for each in over),
        )


def _problems(view: StatusView) -> Iterable[Line]:
    return (line_of(warning(words)) for words in _problems_in_words(view))


def _problems_in_words(view: StatusView) -> Iterable[str]:
    for collector in view.collectors:
        if collector.problem is not None:
            yield f"{collector.name}: {collector.text}"
    for shown in view.daemons:
        daemon, name = shown.daemon, printable(shown.daemon.name)
        if not daemon.supported:
            yield f"{name}: MPS protocol {daemon.runtime.protocol} is not supported yet: only its process is seen"
        if daemon.pid_file_spoilt and daemon.runtime.process is not None:
            yield f"{name}: its PID file is wrong, so no command reaches it: write {daemon.runtime.process.pid} into it"
        if daemon.state is DaemonState.UP:
            files = daemon.log.problems.items()
            yield from (f"log: {log_text(file, problem)}" for file, problem in files if problem is not None)
        if daemon.log.own_commands.blocked_since is not None:
            yield f"log of {name}: {problem_text(LOG_BLOCKED)}"
