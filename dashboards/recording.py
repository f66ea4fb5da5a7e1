"""The recording rules: usage by owner, faults, client-minutes and the state of the nodes, for many nodes at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill, indent

from dashboards.parameters import Parameters
from dashboards.pod_requests import pod_requests
from dashboards.problems import WORST
from dashboards.query import NODE, WORKLOAD, bypassing, with_parts

OWNER = "cluster, team, client_namespace, user, workload_kind, application"
SUSPECT = "suspect_namespace, suspect_application"

MINUTES = "[9m59s999ms:1m] offset 1m"
"""The ten full minutes of an interval. In Prometheus 2, a range of exactly 10m includes both ends: 11 minutes."""

RANDOM = "[bcdfghjklmnpqrstvwxz2456789]"
"""The characters that Kubernetes appends to names."""
HASH = "[bcdf4-9]{6,10}"
"""The hash of a ReplicaSet: a decimal number, whose digits Kubernetes replaces with these characters."""
APPLICATION = (
    f"pod/(.+?)(-{HASH}-{RANDOM}{{5}}|(-[0-9]+)*-{RANDOM}{{5}}|(-[0-9]+)+)?/.*"
    "|container/.*/(.{12}).*|[^/]*/[^/]*/(.*)"
)
"""What is left of kind/pod/workload: $1 of a pod without what Deployments, Jobs, CronJobs, DaemonSets and StatefulSets
append, $5 of a container, $6 of another workload and of a pod without a known name."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A recording rule."""

    record: str
    unit: str
    """What a sample is, and its unit."""
    serves: str
    """A query that the rule makes cheap."""
    expression: str


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that are evaluated one after another."""

    name: str
    interval: str
    rules: Sequence[Rule]


@dataclass(frozen=True, slots=True)
class _Expressions:
    """Parts of the rules' expressions, for one site."""

    of: Parameters

    def family(self, name: str, matchers: str = "") -> str:
        """Return the selector of a family."""
        return f"{name}{{{', '.join(part for part in (self.of.matchers, matchers) if part)}}}"

    def of_kubernetes(self, name: str, matchers: str) -> str:
        """Return the selector of a family of kube-state-metrics, which has a job of its own."""
        return f"{name}{{{', '.join(part for part in (self.of.selector, matchers) if part)}}}"

    def increase(self, name: str) -> str:
        """Return what a counter gained in ten minutes, exactly, also if its series began or was reset meanwhile.

        The samples before a node was first scraped may be old, so its counters count from then on.
        """
        return self._gained(
            name,
            f"unless on ({NODE})\nlast_over_time({self.family('cuda_mps_exporter_build_info')}[10m] offset 11m)",
        )

    def later_increase(self, name: str) -> str:
        """Return the same of a counter that is 0 before its first event. A series counts from its first sample.

        So a daemon or GPU that returns does not count again what was before.
        """
        return self._gained(name, "")

    def _gained(self, name: str, only: str) -> str:
        """Return it. A series that begins counts from its first sample, `only` where that is so, else from 0."""
        counter = self.family(name)
        first = f"min_over_time({counter}[10m] offset 1m)"
        return with_parts(
            """
            last_over_time({counter}[10m] offset 1m)
              - (
                last_over_time({counter}[10m] offset 11m)
                  or
                {first}
              ) >= 0
              or
            last_over_time({counter}[10m] offset 1m)
            """,
            counter=counter,
            first=f"{first}\n  {only}" if only else first,
        )

    def seconds(self, name: str) -> str:
        """Return the integral of a gauge over ten minutes."""
        return f"60 * sum_over_time({self.family(name)}{MINUTES})"

    def owner(self) -> str:
        """Return a series for each workload, of value 1, with the labels of its owner in most of the interval."""
        return with_parts(
            """
            label_replace(
              label_join(
                label_join(
                  topk by ({workload}) (1, count_over_time({info}[10m] offset 1m)) ^ 0,
                  "team", "", "{team}"
                ),
                "application", "/", "workload_kind", "client_pod", "workload"
              ),
              "application", "$1$5$6", "application",
              "{application}"
            )
            """,
            workload=WORKLOAD,
            info=self.family("cuda_mps_workload_info"),
            team=self.of.team_label,
            application=APPLICATION,
        )

    def by_owner(self, expression: str, further: str = "") -> str:
        """Return the sum of what workloads have, for each owner that has something."""
        return with_parts(
            """
            sum by ({labels}) (
              (
                (
                  {expression}
                ) > 0
              )
                * on ({workload}) group_left (team, client_namespace, user, application)
              {owner}
            )
            """,
            labels=OWNER + further,
            expression=expression,
            workload=WORKLOAD,
            owner=self.owner(),
        )

    def with_suspect(self, counter: str) -> str:
        """Return the increase of a counter with suspects, and the owner of each suspect that is known."""
        return with_parts(
            """
            (
              {counter}
            )
              * on ({node}, suspect_workload) group_left ({suspect})
            label_join(
              label_join(
                label_join(
                  {owner},
                  "suspect_namespace", "", "client_namespace"
                ),
                "suspect_application", "", "application"
              ),
              "suspect_workload", "/", "workload_kind", "workload"
            )
              or on ({workload}, suspect_workload, confidence)
            label_join(
              {counter},
              "suspect_application", "", "suspect_workload"
            )
            """,
            counter=self.increase(counter),
            node=NODE,
            suspect=SUSPECT,
            owner=self.owner(),
            workload=WORKLOAD,
        )

    def by_node(self, expression: str) -> str:
        """Return the sum for each node."""
        return with_parts("sum by ({node}) (\n  {expression}\n)", node=NODE, expression=expression)

    def bypassing(self, function: str, window: str) -> str:
        """Return a function of the number of processes that bypass MPS on each node in a time window."""
        shape, number = "{function}((\n  {number}\n){window})", bypassing(f"{{{self.of.matchers}}}")
        return with_parts(shape, function=function, number=number, window=window)

    def client_minutes(self, labels: str) -> str:
        """Return the client-minutes of each outcome."""
        of_outcome = {
            "served": f"sum_over_time({self.family('cuda_mps_daemon_clients')}{MINUTES})",
            "faulted": self.later_increase("cuda_mps_fault_affected_clients_total"),
            "refused": self.later_increase("cuda_mps_clients_refused_total"),
            "bypassed": self.bypassing("sum_over_time", MINUTES),
        }
        shape = """
            label_replace(
              sum by ({labels}) (
                {expression}
              ) > 0,
              "outcome", "{outcome}", "", ""
            )
            """
        return "\n  or\n".join(
            with_parts(shape, labels=labels, expression=expression, outcome=outcome)
            for outcome, expression in of_outcome.items()
        )


def groups(of: Parameters) -> Sequence[Group]:
    """Return the recording rules of a site."""
    expressions = _Expressions(of)
    return (Group("cuda-mps-usage", "10m", _usage(expressions)), Group("cuda-mps-nodes", "5m", _nodes(expressions)))


def _usage(of: _Expressions) -> Sequence[Rule]:
    def gained(counter: str, further: str = "") -> str:
        return of.by_owner(of.increase(counter), further)

    def held(gauge: str) -> str:
        return of.by_owner(of.seconds(gauge))

    return (
        Rule(
            "application:cuda_mps_sm_seconds:increase10m",
            "SM time, in seconds of a whole GPU",
            "cost by namespace, team, user and application in a month",
            gained("cuda_mps_workload_sm_seconds_total"),
        ),
        Rule(
            "application:cuda_mps_memory_byte_seconds:increase10m",
            "GPU memory multiplied by time, in byte-seconds",
            "memory held by each application in a month",
            gained("cuda_mps_workload_memory_byte_seconds_total"),
        ),
        Rule(
            "application:cuda_mps_energy_joules:increase10m",
            "energy in joules",
            "energy of each team in a month",
            gained("cuda_mps_workload_energy_joules_total"),
        ),
        Rule(
            "application:cuda_mps_client_seconds:increase10m",
            "connected clients multiplied by time, in client-seconds",
            "mean number of clients of each application in a week",
            held("cuda_mps_workload_clients"),
        ),
        Rule(
            "application:cuda_mps_requested_sm_seconds:increase10m",
            "fraction of the threads that clients may use, multiplied by time: comparable with SM time",
            "requested against used SM time in a week",
            held("cuda_mps_workload_active_thread_ratio"),
        ),
        Rule(
            "application:cuda_mps_requested_memory_byte_seconds:increase10m",
            "memory limits of clients multiplied by time, in byte-seconds",
            "requested against held memory in a week",
            held("cuda_mps_workload_pinned_memory_limit_bytes"),
        ),
        Rule(
            "application:cuda_mps_client_sm_ratio:avg10m",
            "mean fraction of a GPU's SM time that one client used; 0 without use",
            "95th percentile in a week, for a thread percentage",
            _per_client("cuda_mps_sm_seconds"),
        ),
        Rule(
            "application:cuda_mps_client_memory_bytes:avg10m",
            "mean GPU memory of one client, in bytes",
            "largest mean in a week, for a memory limit",
            _per_client("cuda_mps_memory_byte_seconds"),
        ),
        Rule(
            "application:cuda_mps_faults_suffered:increase10m",
            "faults that affected clients, counted once for each workload",
            "faults that each team suffered in a month",
            gained("cuda_mps_workload_faults_affected_total"),
        ),
        Rule(
            "application:cuda_mps_faults_caused:increase10m",
            "faults with the workload as main suspect, with a confidence of 0.5 or more",
            "faults that each application probably caused in a month",
            gained("cuda_mps_workload_faults_suspected_total"),
        ),
        Rule(
            "application:cuda_mps_faulted_clients:increase10m",
            "clients that faults ended. A suspect without known owner is named kind/name, and none is empty",
            "matrix of suspected and affected applications in a month",
            of.by_owner(
                of.with_suspect("cuda_mps_workload_faulted_clients_total"),
                f", {SUSPECT}, confidence",
            ),
        ),
        Rule(
            "instance:cuda_mps_sm_seconds:increase10m",
            "SM time of all processes, in seconds of a whole GPU",
            "SM use of each node in a month; the total that the applications' SM time adds up to",
            of.by_node(of.later_increase("cuda_mps_gpu_sm_seconds_total")),
        ),
        Rule(
            "instance:cuda_mps_gpu_seconds:increase10m",
            "GPUs (with MIG: instances) multiplied by time, in GPU-seconds",
            "utilization and price of the GPUs of each cluster in a month",
            of.by_node(
                with_parts(
                    """
                    60 * count_over_time({family}{minutes})
                      unless on ({node}, gpu)
                    label_join({mig}, "gpu", "", "parent")
                    """,
                    family=of.family("cuda_mps_gpu_up"),
                    minutes=MINUTES,
                    node=NODE,
                    mig=f"last_over_time({of.family('cuda_mps_gpu_mig_info')}[10m] offset 1m)",
                )
            ),
        ),
        Rule(
            "instance:cuda_mps_client_minutes:increase10m",
            "client-minutes by outcome. served: minutes of connected clients. faulted, refused: clients that a fault "
            "ended, or that MPS refused, each as one minute. bypassed: minutes of processes without MPS",
            "nodes with most lost client-minutes in a week",
            of.client_minutes(NODE),
        ),
        Rule(
            "cluster:cuda_mps_client_minutes:increase10m",
            "the same of the whole cluster",
            "share of good client-minutes in 30 days (the SLO) and its burn rate",
            of.client_minutes("cluster"),
        ),
        Rule(
            "namespace:cuda_mps_requested_shares:sum",
            "GPUs, or shares of GPUs, that pods request on nodes with MPS, by kube-state-metrics. clients: whether the "
            "pod has some, none, or it is unknown",
            "requested against used shares of each namespace in a month",
            with_parts(
                "sum by (cluster, client_namespace, resource, clients) (\n  {requests}\n)",
                requests=pod_requests(of.family, of.of_kubernetes),
            ),
        ),
        Rule(
            "cluster:cuda_mps_gpu_hour_price:value",
            "price of a GPU hour, in the currency of your choice",
            "cost: a factor that is the same on all boards and in all reports",
            f"{of.of.gpu_hour_price:g} + 0 * count by (cluster) ({of.family('cuda_mps_exporter_build_info')})",
        ),
        Rule(
            "instance:cuda_mps_faults:increase10m",
            "faults of servers",
            "nodes with most faults in a month",
            of.by_node(of.later_increase("cuda_mps_faults_total")) + " > 0",
        ),
        Rule(
            "instance:cuda_mps_daemon_losses:increase10m",
            "ends of control daemons that no operator requested",
            "nodes with most deaths of daemons in a month",
            of.by_node(of.later_increase("cuda_mps_daemon_losses_total")) + " > 0",
        ),
    )


def _per_client(used: str) -> str:
    clients = "application:cuda_mps_client_seconds:increase10m"
    return f"(\n  application:{used}:increase10m\n    or\n  0 * {clients}\n) / {clients}"


def _nodes(of: _Expressions) -> Sequence[Rule]:
    by_node = f"by ({NODE})"
    return (
        Rule(
            "instance:cuda_mps_problem_severity:max",
            "the most severe problem: 0 none, 1 warning, 2 critical",
            "nodes that need an operator, and for how long in a week",
            WORST.replace(" or ", "\n  or\n").replace("{node", f"{{{of.of.matchers}"),
        ),
        Rule(
            "instance:cuda_mps_clients:sum",
            "connected clients",
            "clients of each node over a month",
            f"sum {by_node} ({of.family('cuda_mps_daemon_clients')})",
        ),
        Rule(
            "instance:cuda_mps_bypassing_processes:max5m",
            "most CUDA processes that bypassed MPS at once in five minutes",
            "processes without MPS of each node over a month",
            of.bypassing("max_over_time", "[5m:15s]"),
        ),
        Rule(
            "instance:cuda_mps_gpu_memory_used:ratio",
            "fraction of the memory of the node's GPUs that is used",
            "memory use of each node over a month",
            f"sum {by_node} ({of.family('cuda_mps_gpu_memory_used_bytes')})\n  /\n"
            f"sum {by_node} ({of.family('cuda_mps_gpu_memory_total_bytes')})",
        ),
        Rule(
            "cluster:cuda_mps_gpu_memory_bytes:min",
            "memory of the smallest GPU, in bytes",
            "clients of an application that fit on a GPU, by their memory",
            f"min by (cluster) ({of.family('cuda_mps_gpu_memory_total_bytes')})",
        ),
        Rule(
            "instance:cuda_mps_clients_fit:sum",
            "further clients, similar to the present ones, that fit on the node's GPUs; 0 of a GPU with unknown room",
            "room of each cluster over a month",
            with_parts(
                """
                sum {by_node} (
                  min by ({node}, gpu) ({fit})
                    and on ({node}, gpu)
                  {by_memory}
                )
                """,
                by_node=by_node,
                node=NODE,
                fit=of.family("cuda_mps_gpu_clients_fit"),
                by_memory=of.family("cuda_mps_gpu_clients_fit", 'bound="memory"'),
            ),
        ),
    )


HEAD = """\
Recording rules for many nodes: usage by owner, faults, client-minutes, and the state of the nodes. Written by
`python -m dashboards` from dashboards/recording.py.

An owner is cluster, team, client_namespace, user, workload_kind and application: the pod's name without the parts
that Kubernetes appends, a container's first 12 characters, else the workload's name. Set `cluster` as an external
label of each Prometheus. A global store that evaluates these rules then keeps clusters apart.

The samples of `…:increase10m` are ten minutes apart, and their sums are exact: `sum_over_time(NAME[30d])` is the
total of 30 days, pods that have ended included. A sample covers the ten minutes until one minute before it, so late
samples count. What happens while a node is not scraped for 20 minutes, or Prometheus is stopped, is missing.

The rules `…:avg10m` read results of earlier rules of the same time. Prometheus and Mimir provide these, vmalert does
not."""


def text(of: Parameters) -> str:
    """Return the file of the recording rules."""
    lines = [*_commented(HEAD), "groups:"]
    for group in groups(of):
        lines += [f"  - name: {group.name}", f"    interval: {group.interval}", "    rules:"]
        for rule in group.rules:
            lines += [
                indent(each, 6 * " ")
                for each in (
                    *_commented(fill(f"Unit: {rule.unit}.", 110)),
                    *_commented(fill(f"Makes cheap: {rule.serves}.", 110)),
                    f"- record: {rule.record}",
                    "  expr: |",
                    indent(rule.expression, 4 * " "),
                )
            ]
            lines.append("")
    return "\n".join(lines[:-1]) + "\n"


def _commented(text: str) -> Sequence[str]:
    return [f"# {line}".rstrip() for line in text.splitlines()]
