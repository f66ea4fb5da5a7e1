"""The parameters of rules, alerts and dashboards: what differs between sites."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Parameters:
    """The choices of one site. The committed files have the defaults."""

    job: str = "cuda-mps-exporter"
    """Name of the scrape job."""
    selector: str = ""
    """Further matchers of all selectors, such as `cluster="eu"`; empty: none."""
    team_label: str = "label_team"
    """The label of `cuda_mps_workload_info` that names the team."""
    gpu_hour_price: float = 1.0
    """Price of a GPU hour, in a currency of your choice."""
    objective: float = 0.999
    """Fraction of client-minutes without fault, refusal or bypass that is promised; below 1."""
    runbook_url: str = "http://{instance}/runbooks/"
    """Start of the runbook links of alerts; `{instance}` is the address of the alert's exporter."""
    page_url: str = "http://{instance}/"
    """Start of the links of alerts and dashboards to the pages of an exporter."""
    grafana_url: str = "http://localhost:3000"
    """Start of the dashboard links of alerts."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """Numbers that differ from those of the committed rules, by their names in `site.THRESHOLDS`."""

    def page_of(self, instance: str) -> str:
        """Return the start of the URLs of an exporter's pages."""
        return self.page_url.replace("{instance}", instance)

    @property
    def matchers(self) -> str:
        """What a selector has between its braces."""
        return ", ".join(part for part in (f'job="{self.job}"', self.selector) if part)


DEFAULTS = Parameters()
