"""Incident: one fault, chosen by its id; whom it hit, who is suspected, who holds up recovery, before and after."""

from dashboards import looks
from dashboards.board import Annotation, Board, Row, Variable
from dashboards.faults import began
from dashboards.looks import Colour
from dashboards.node.daemons import SERVER_STATES
from dashboards.panel import Column, bars, lines, stat, table, timeline
from dashboards.query import CLIENT, DAEMON, SERVER, Query, which

_THIS = 'incident="$incident"'

VARIABLES = (
    Variable(
        name="incident",
        label="Incident",
        query=f"query_result(sort_desc(max by (incident, instance) ({began()})))",
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
_WHO = "pid, user, command, unit, client_pod, slurm_job_id"
_KNOWN_AS = f"* on ({CLIENT}) group_left ({_WHO}) {_INFO}"


def _rise(counter: str, by: str) -> str:
    """By how much a counter rose over the fault: from 30 s before to 90 s after."""
    return f"sum by ({by}) ({counter} {AFTER} - ({counter} {BEFORE} or 0 * {counter} {AFTER}))"


WHAT = Row(
    "What happened",
    (
        stat(
            "Clients hit",
            "Clients that had the error: all that shared a GPU with whoever did it, and all that shared one with "
            "those.",
            Query(f"cuda_mps_fault_last_affected_clients{{incident}} {AFTER}", instant=True),
            thresholds=looks.NONE_IS_WELL_SOME_ARE_ODD,
            width=4,
            height=5,
        ),
        stat(
            "Still hold it up",
            "Clients that it hit and that live on now: until they end, the server turns all new ones away. "
            "`cuda-mps-exporter incidents` on the node has the commands that end them.",
            Query(
                f"sum by ({DAEMON}) (cuda_mps_fault_blocking_clients{{incident}}) or 0 * cuda_mps_daemon_up{{incident}}"
            ),
            thresholds=looks.NONE_IS_WELL,
            width=4,
            height=5,
        ),
        table(
            "Kind, and who is suspected",
            "As the evidence stood, the newest judgement first. Confidence is how often such evidence was right; "
            "empty: nobody is suspected. It is told while the fault lasts and for an hour, or until the daemon's next.",
            (
                Query(
                    f"1000 * min_over_time(timestamp(cuda_mps_fault_info{{node, {_THIS}}})[$__range:30s])", instant=True
                ),
                Query(
                    f"1000 * max_over_time(timestamp(cuda_mps_fault_info{{node, {_THIS}}})[$__range:30s])", instant=True
                ),
            ),
            {
                "instance": Column("Node"),
                "daemon": Column("Daemon"),
                "kind": Column("Kind"),
                "suspect_workload": Column("Suspect"),
                "confidence": Column("Confidence"),
                "Value #A": Column("From", looks.MOMENT),
                "Value #B": Column("Until", looks.MOMENT),
            },
            sort=("Until", True),
            width=16,
            height=5,
        ),
        table(
            "Owners hit",
            "Whose clients it hit, and how many of each, whoever did it.",
            (
                Query(
                    "sum by (job, instance, daemon, workload_kind, workload) "
                    f"(cuda_mps_fault_last_affected_workload_clients{{incident}} {AFTER})",
                    instant=True,
                ),
            ),
            {
                "workload_kind": Column("Kind"),
                "workload": Column("Owner"),
                "Value": Column("Clients", looks.COUNT),
            },
            sort=("Clients", True),
            width=8,
        ),
        table(
            "Owners suspected",
            "How often, in the time shown, a client of an owner was the likeliest cause of a fault on this node: "
            "once is bad luck, often is a pattern.",
            (
                Query(
                    "round(sum by (job, instance, workload_kind, workload) (increase("
                    'cuda_mps_workload_faults_suspected_total{node, instance="$node"}[$__range]))) > 0',
                    instant=True,
                ),
            ),
            {
                "workload_kind": Column("Kind"),
                "workload": Column("Owner"),
                "Value": Column("Faults", looks.COUNT),
            },
            sort=("Faults", True),
            width=8,
        ),
        table(
            "Xids of that moment",
            "Xids that the driver told of within a minute of it, on this node; whom they name is a hint, and no proof.",
            (
                Query(
                    f'1000 * (cuda_mps_xid_last_timestamp_seconds{{node, instance="$node"}} {AFTER} > $began - 60)',
                    instant=True,
                ),
            ),
            {
                "xid": Column("Xid"),
                "gpu": Column("GPU"),
                "Value": Column("Told", looks.MOMENT),
            },
            sort=("Told", False),
            width=8,
        ),
    ),
)

BEFORE_AND_AFTER = Row(
    "Before and after",
    (
        table(
            "Clients before it",
            "Who was on the daemon half a minute before it, with what memory then, and a minute and a half after it. "
            "Nothing after: gone, and its work lost. Who is still there holds up recovery, or was not hit.",
            (
                Query(
                    f"sum by (job, instance, daemon, client, {_WHO}) "
                    f"(cuda_mps_client_memory_used_bytes{{incident}} {BEFORE} {_KNOWN_AS})",
                    instant=True,
                ),
                Query(
                    f"sum by (job, instance, daemon, client, {_WHO}) "
                    f"(cuda_mps_client_memory_used_bytes{{incident}} {AFTER} {_KNOWN_AS})",
                    instant=True,
                ),
                Query(
                    f"max by (job, instance, daemon, client, {_WHO}) "
                    f"(cuda_mps_client_failure_domain_clients{{incident}} {BEFORE} {_KNOWN_AS})",
                    instant=True,
                ),
            ),
            {
                "pid": Column("PID"),
                "user": Column("User"),
                "command": Column("Command"),
                "slurm_job_id": Column("Slurm job"),
                "client_pod": Column("Pod"),
                "unit": Column("Unit"),
                "Value #A": Column("Memory before", looks.BYTES),
                "Value #B": Column("Memory after", looks.BYTES),
                "Value #C": Column("Others in its domain", looks.COUNT),
            },
            sort=("Memory before", True),
            height=9,
        ),
        timeline(
            "Servers over time",
            "How long the server was in FAULT: short where all whom it hit ended at once.",
            Query(which("cuda_mps_server_state", "state", SERVER_STATES, SERVER, of="incident"), "{{server}}"),
            looks.states(SERVER_STATES),
        ),
        lines(
            "Who held it up",
            "Clients that it hit and that lived on, by server.",
            Query(f"max by ({SERVER}) (cuda_mps_fault_blocking_clients{{incident}})", "server {{server}}"),
            height=6,
        ),
        lines(
            "GPU memory by client",
            "What each client of the daemon used, upon one another.",
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
            "Turned away",
            "New clients that were refused, by reason: while the server was in FAULT, it was for that.",
            Query(
                f"sum by ({DAEMON}, reason) (increase(cuda_mps_clients_refused_total{{incident}}[$__rate_interval]))",
                "{{reason}}",
            ),
        ),
        bars(
            "Xids",
            "The driver's own errors on this node, by number and GPU. Empty: there was none.",
            Query(
                "sum by (job, instance, gpu, xid) "
                '(increase(cuda_mps_xid_errors_total{node, instance="$node"}[$__rate_interval])) > 0',
                "Xid {{xid}} {{gpu}}",
            ),
        ),
    ),
)

INCIDENT = Board(
    uid="cuda-mps-incident",
    title="CUDA MPS / Incident",
    description="One fault: whom it hit, who is suspected, who holds up recovery, and how it was before and after.",
    variables=VARIABLES,
    annotations=(
        Annotation(
            name="Faults",
            colour=Colour.BAD,
            moments="cuda_mps_fault_last_timestamp_seconds{incident}",
            title="Fault",
            text="A fatal GPU error hit clients of {{daemon}} on {{instance}}.",
        ),
        Annotation(
            name="Daemon deaths",
            colour=Colour.WARNING,
            moments="cuda_mps_daemon_last_loss_timestamp_seconds{incident}",
            title="Daemon died",
            text="The control daemon {{daemon}} on {{instance}} died, and its clients with it.",
        ),
    ),
    rows=(WHAT, BEFORE_AND_AFTER),
    since="now-6h",
)
