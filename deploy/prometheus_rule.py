"""Writes the alerts as an object of the Prometheus operator's.

python -m deploy.prometheus_rule > deploy/kubernetes/monitoring/prometheus-rule.yaml
"""

import sys
import textwrap
from pathlib import Path

RULES = Path(__file__).parents[1] / "alerts" / "cuda-mps.rules.yml"

HEAD = """\
# Written by `python -m deploy.prometheus_rule > deploy/kubernetes/monitoring/prometheus-rule.yaml`, from
# alerts/cuda-mps.rules.yml. Edit that instead.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: cuda-mps-exporter
spec:
"""


def prometheus_rule(rules: str) -> str:
    """The object whose specification is a file of rules."""
    return HEAD + textwrap.indent(rules, "  ")


if __name__ == "__main__":
    sys.stdout.write(prometheus_rule(RULES.read_text()))
