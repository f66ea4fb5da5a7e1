"""Families about the exporter's configuration."""

from exporter.metrics.family import Samples, gauge
from exporter.view import View


def _successful(view: View) -> Samples:
    if view.configuration is not None:
        yield (), view.configuration.successful


def _last_success(view: View) -> Samples:
    if view.configuration is not None:
        yield (), view.configuration.last_success + view.clock_step


FAMILIES = (
    gauge(
        "cuda_mps_exporter_config_last_reload_successful",
        (),
        "Whether the configuration could be used when it was last read; where not, the one before it is in effect.",
        _successful,
    ),
    gauge(
        "cuda_mps_exporter_config_last_reload_success_timestamp_seconds",
        (),
        "When the configuration was last read and could be used, in seconds since the epoch.",
        _last_success,
    ),
)
