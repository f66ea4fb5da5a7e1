"""The parameters of rules, alerts and dashboards: what differs between sites."""

from dataclasses import dataclass


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

    @property
    def matchers(self) -> str:
        """What a selector has between its braces."""
        return ", ".join(part for part in (f'job="{self.job}"', self.selector) if part)
