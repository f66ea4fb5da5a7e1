"""The service level objective of a cluster, and its alerts.

The objective is the share of client-minutes without fault, refusal or bypass. Its error budget is what may be lost in
30 days. A burn rate of 1 uses up the budget in 30 days. Each alert needs two windows: the long one shows that much is
lost, and the short one that it goes on.
"""

from textwrap import indent

from dashboards.parameters import Parameters
from dashboards.query import with_parts

CLIENT_MINUTES = "cluster:cuda_mps_client_minutes:increase10m"
ALERT = "CudaMpsErrorBudgetBurn"
LEAST_LOST = 10
"""Client-minutes. In a cluster with few clients, less is chance."""

BURN_RATES = {
    "critical": (("1h", "15m", "14.4"), ("6h", "1h", "6")),
    "warning": (("3d", "6h", "1"),),
}
"""Of each severity: long window, short window, and burn rate. 15m always has a sample, since these are 10m apart."""


def _lost(window: str) -> str:
    return f'sum by (cluster) (sum_over_time({CLIENT_MINUTES}{{outcome!="served"}}[{window}]))'


def _ratio(window: str) -> str:
    """Return the share of lost client-minutes. Those that a fault ended had connected clients."""
    all_of_them = f'sum by (cluster) (sum_over_time({CLIENT_MINUTES}{{outcome!="faulted"}}[{window}]))'
    return f"{_lost(window)}\n  /\n{all_of_them}"


def expression(severity: str, objective: float) -> str:
    """Return the expression of the alert: the share of lost client-minutes in the long window."""
    windows = (
        f"{_ratio(window)} > {rate} * (1 - {objective:g})"
        for long, short, rate in BURN_RATES[severity]
        for window in (long, short)
    )
    burning = "\n  or\n".join("\n  and\n".join(pair) for pair in zip(windows, windows, strict=True))
    return with_parts(
        """
        (
          {burning}
        )
          and
        {lost} >= {least}
        """,
        burning=burning,
        lost=_lost(BURN_RATES[severity][-1][0]),
        least=str(LEAST_LOST),
    )


def _instance(matchers: str) -> str:
    """Return the template of an exporter that can be reached: the alert is about none."""
    return (
        f'{{{{ with query `up{{{matchers}}} == 1` | sortByLabel "instance" }}}}{{{{ (first .).Labels.instance }}}}'
        "{{ else }}localhost:10677{{ end }}"
    )


def text(of: Parameters) -> str:
    """Return the file of the alerts."""
    rules = (
        with_parts(
            """
            - alert: {alert}
              expr: |
                {expression}
              labels:
                severity: {severity}
                job: {job}
              annotations:
                summary: >-
                  Cluster {{ or $labels.cluster $externalLabels.cluster "of this Prometheus" }} loses client-minutes too
                  fast for its objective of {objective} %
                description: >-
                  Faults, refusals and processes that bypass MPS use up the error budget of 30 days too early. The lost
                  share of client-minutes is {{ $value | humanizePercentage }}. Find the nodes and the cause with the
                  dashboard Reliability, and follow the alerts of these nodes.
                runbook_url: {runbooks}{alert}.md
                dashboard_url: {board}{{ with $labels.cluster }}?var-cluster={{ urlquery . }}{{ end }}
            """,
            expression=expression(severity, of.objective),
            severity=severity,
            job=of.job,
            objective=f"{100 * of.objective:.10g}",
            runbooks=of.runbook_url.replace("{instance}", _instance(of.matchers)),
            alert=ALERT,
            board=f"{of.grafana_url}/d/cuda-mps-reliability",
        )
        for severity in BURN_RATES
    )
    return HEAD + "\n\n".join(indent(rule, 6 * " ") for rule in rules) + "\n"


HEAD = """\
# Alerts of the service level objective of a cluster: the share of client-minutes without fault, refusal or bypass.
# Written by `python -m dashboards` from dashboards/slo.py. Load cuda-mps.recording.yml too.
#
# A burn rate of 14.4 for an hour uses up 2 % of the error budget of 30 days, one of 6 for six hours 5 %, and one of 1
# for three days 10 %. The second, shorter window resolves the alert soon after the cause has ended.
groups:
  - name: cuda-mps-slo
    interval: 1m
    rules:
"""
