"""Incident: one fault, chosen by its id; affected clients, suspect, blocking clients, before and after."""

from dashboards import looks
from dashboards.board import Board, Row, Variable
from dashboards.faults import NEWEST, began, marks
from dashboards.links import to_chosen_incident, to_node
from dashboards.node.daemons import SERVER_STATES
from dashboards.panel import Column, bars, lines, stat, table, timeline
from dashboards.query import CLIENT, DAEMON, NODE, SERVER, WORKLOAD, Query, increase, max_by, which

_THIS = 'incident="$incident"'

VARIABLES = (
    Variable(
        name="incident",
        label="Incident",
        query=f"query_result(sort_desc(topk({NEWEST}, max by (incident, instance) ({began()}))))",
        regex=r'/(?<text>incident="(?<value>[^"]+)",instance="[^"]*")/',
        sorted=False,
    ),
    Variable(
        name="node",
        label="Its node",
        query=f"label_values(cuda_mps_fault_info{{node, {_THIS}}}, instance)",
        derived=True,
    ),
    Variable(
        name="daemon",
        label="Its daemon",
        query=f"label_values(cuda_mps_fault_info{{node, {_THIS}}}, daemon)",
        derived=True,
    ),
    Variable(
        name="began",
        label="When it began",
        query=f"query_result(max({began(f', {_THIS}')}) or vector(0))",
        regex=r"/\} (\d+)/",
        derived=True,
    ),
)

BEFORE = "@ $began offset 30s"
AFTER = "@ $began offset -90s"
"""Long enough for the quick to have gone, and for the next scrape; who lives on is still there."""

_INFO = f"topk by ({CLIENT}) (1, last_over_time(cuda_mps_client_info{{incident}}[5m] {BEFORE}))"
_WHO = "pid, user, command, unit, client_pod, job_manager, job_id"
_KNOWN_AS = f"* on ({CLIENT}) group_left ({_WHO}) {_INFO}"


def _last_reported(which: str) -> str:
    return f"max_over_time(timestamp(cuda_mps_fault_info{{node, {which}}})[$__range:15s])"


def _suspect() -> str:
    """Return 1 for the workload of the fault's present suspect: the counter of suspects rises when the fault ends."""
    found = (
        f"""{_last_reported(f'{_THIS}, suspect_workload!=""')} == on ({DAEMON}) group_left () """
        f"max by ({DAEMON}) ({_last_reported(_THIS)})"
    )
    for label, pattern in (("workload_kind", "([^/]+)/.*"), ("workload", "[^/]+/(.*)")):
        found = f'label_replace({found}, "{label}", "$1", "suspect_workload", "{pattern}")'
    return f"count by ({WORKLOAD}) ({found})"


WHAT = Row(
    "What happened",
    (
        stat(
            "Affected clients",
            "Clients that had the error: all that shared a GPU with its cause, directly or through other clients.",
            f"cuda_mps_fault_last_affected_clients{{incident}} {AFTER}",
            thresholds=looks.NONE_IS_WELL_SOME_ARE_ODD,
            width=4,
            height=5,
        ),
        stat(
            "Blocking recovery",
            "Affected clients that still run. Until they exit, the server refuses new clients. "
            "`cuda-mps-exporter incidents` on the node shows the commands that end them.",
            Query(
                f"sum by ({DAEMON}) (cuda_mps_fault_blocking_clients{{incident}}) or 0 * cuda_mps_daemon_up{{incident}}"
            ),
            thresholds=looks.NONE_IS_WELL,
            width=4,
            height=5,
        ),
        table(
            "Kind and suspect",
            "Results in the order of the evidence, the newest first. Confidence: how often such evidence was right. "
            "Empty: there is no suspect. Shown during the fault and for an hour, or until the daemon's next fault.",
            (
                f"1000 * min_over_time(timestamp(cuda_mps_fault_info{{node, {_THIS}}})[$__range:30s])",
                f"1000 * max_over_time(timestamp(cuda_mps_fault_info{{node, {_THIS}}})[$__range:30s])",
            ),
            {
                "instance": Column("Node", links=to_node()),
                "daemon": "Daemon",
                "kind": Column("Kind", links=to_chosen_incident()),
                "suspect_workload": "Suspect",
                "confidence": "Confidence",
                "Value #A": Column("From", looks.MOMENT),
                "Value #B": Column("Until", looks.MOMENT),
            },
            sort=("Until", True),
            width=16,
            height=5,
        ),
        table(
            "Affected workloads",
            "Workloads with affected clients, and how many of each.",
            f"sum by ({DAEMON}, workload_kind, workload) "
            f"(cuda_mps_fault_last_affected_workload_clients{{incident}} {AFTER})",
            {"workload_kind": "Kind", "workload": "Workload", "Value": Column("Clients", looks.COUNT)},
            sort=("Clients", True),
            width=8,
        ),
        table(
            "Suspected workloads",
            "The workload of this fault's suspect, also while the fault is open. Faults: how often a client of the "
            "workload was the main suspect on this node, in the selected time range. A fault counts when it ends. "
            "Another client can cause a suspicion on purpose, so the number of faults proves nothing.",
            (
                (
                    f"round(sum by ({WORKLOAD}) (increase("
                    'cuda_mps_workload_faults_suspected_total{node, instance="$node"}[$__range]))) > 0'
                ),
                _suspect(),
            ),
            {
                "workload_kind": "Kind",
                "workload": "Workload",
                "Value #B": Column("This fault", looks.NUMBER, mappings=looks.YES_OR_NO),
                "Value #A": Column("Faults", looks.COUNT),
            },
            sort=("Faults", True),
            width=8,
        ),
        table(
            "Xids at that time",
            "Xids that the driver reported within a minute of the fault, on this node. The process that an Xid "
            "names is an indication, not a proof.",
            f'1000 * (cuda_mps_xid_last_timestamp_seconds{{node, instance="$node"}} {AFTER} > $began - 60)',
            {"xid": "Xid", "gpu": "GPU", "Value": Column("Reported", looks.MOMENT)},
            sort=("Reported", False),
            width=8,
        ),
    ),
)

BEFORE_AND_AFTER = Row(
    "Before and after",
    (
        table(
            "Clients before the fault",
            "Clients of the daemon half a minute before the fault with their memory, and their memory a minute and "
            "a half after it. No value after: the client has exited and its work is lost. A client that still runs "
            "blocks recovery, or was not affected.",
            (
                (f"sum by ({CLIENT}, {_WHO}) (cuda_mps_client_memory_used_bytes{{incident}} {BEFORE} {_KNOWN_AS})"),
                (f"sum by ({CLIENT}, {_WHO}) (cuda_mps_client_memory_used_bytes{{incident}} {AFTER} {_KNOWN_AS})"),
                (
                    f"max by ({CLIENT}, {_WHO}) "
                    f"(cuda_mps_client_failure_domain_clients{{incident}} {BEFORE} {_KNOWN_AS})"
                ),
            ),
            {
                "pid": "PID",
                "user": "User",
                "command": "Command",
                "job_id": "Job",
                "job_manager": "Batch system",
                "client_pod": "Pod",
                "unit": "Unit",
                "Value #A": Column("Memory before", looks.BYTES),
                "Value #B": Column("Memory after", looks.BYTES),
                "Value #C": Column("Others in its failure domain", looks.COUNT),
            },
            sort=("Memory before", True),
            height=9,
        ),
        timeline(
            "Servers over time",
            "How long the server was in FAULT. It is short if all affected clients exited at once.",
            Query(which("cuda_mps_server_state", "state", SERVER_STATES, SERVER, of="incident"), "{{server}}"),
            looks.states(SERVER_STATES),
        ),
        lines(
            "Blocking clients",
            "Affected clients that continued to run, by server.",
            Query(max_by("cuda_mps_fault_blocking_clients", SERVER, of="incident"), "server {{server}}"),
            height=6,
        ),
        lines(
            "GPU memory by client",
            "Memory that each client of the daemon used, stacked.",
            Query(
                f"sum by ({CLIENT}, pid, user, command) (cuda_mps_client_memory_used_bytes{{incident}} "
                f"* on ({CLIENT}) group_left (pid, user, command) topk by ({CLIENT}) (1, "
                f"cuda_mps_client_info{{incident}}))",
                "{{command}} {{pid}} of {{user}}",
            ),
            unit=looks.BYTES,
            stacked=True,
        ),
        lines(
            "Clients",
            "Clients connected to the daemon.",
            Query(f"sum by ({DAEMON}) (cuda_mps_daemon_clients{{incident}})", "connected"),
            Query(f"sum by ({DAEMON}) (cuda_mps_clients_waiting{{incident}})", "waiting"),
        ),
        bars(
            "Refused clients",
            "New clients that were refused, by reason. While the server was in FAULT, that was the reason.",
            Query(increase("cuda_mps_clients_refused_total", f"{DAEMON}, reason", of="incident"), "{{reason}}"),
        ),
        bars(
            "Xids",
            "Errors that the driver reported on this node, by number and GPU. Empty: there was none.",
            Query(
                f"sum by ({NODE}, gpu, xid) "
                '(increase(cuda_mps_xid_errors_total{node, instance="$node"}[$__rate_interval])) > 0',
                "Xid {{xid}} {{gpu}}",
            ),
        ),
    ),
)

INCIDENT = Board(
    uid="cuda-mps-incident",
    title="CUDA MPS / Incident",
    description="One fault: affected clients, suspect, clients that block recovery, and the state before and after.",
    variables=VARIABLES,
    annotations=marks("incident"),
    rows=(WHAT, BEFORE_AND_AFTER),
    since="now-6h",
)
