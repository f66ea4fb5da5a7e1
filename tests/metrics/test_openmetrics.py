"""OpenMetrics has units and exemplars. The other formats have neither."""

from dataclasses import replace

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from exporter.clock import SystemClock
from exporter.metrics.catalogue import CATALOGUE, NodeCollector
from exporter.metrics.exposition import OPENMETRICS, TEXT, TEXT_1, Exposition
from exporter.view import View
from tests.builders import blocked_recovery
from tests.incidents.values import blocked


def exposed(accept: str) -> str:
    """Return the metrics of a node with an open fault."""
    incident = blocked()
    exposition = Exposition(SystemClock())
    node = replace(blocked_recovery(), incidents={incident.id: incident})
    exposition.publish(NodeCollector(View(node, clock_step=5.0)))
    encoded = exposition.get(accept, gzipped=False)
    assert encoded is not None
    return encoded.body.decode()


def test_openmetrics_has_the_unit_of_each_family_that_ends_in_one() -> None:
    families = {each.name: each.unit for each in text_string_to_metric_families(exposed(OPENMETRICS))}

    assert families["cuda_mps_gpu_memory_total_bytes"] == "bytes"
    assert families["cuda_mps_daemon_start_time_seconds"] == "seconds"
    assert families["cuda_mps_faults"] == ""
    assert all(name.endswith(unit) for name, unit in families.items())


def test_no_family_has_its_unit_elsewhere_in_its_name() -> None:
    units = {each.unit for each in CATALOGUE}
    for each in CATALOGUE:
        others = set(each.name.removesuffix("_total").split("_")[:-1])
        assert each.unit or not others & {"bytes", "celsius", "joules", "watts"} & units


def test_openmetrics_has_the_last_incident_as_an_exemplar_of_fault_counters() -> None:
    exemplars = {
        each.name: each.samples[0].exemplar
        for each in text_string_to_metric_families(exposed(OPENMETRICS))
        if each.samples
    }

    for name in ("cuda_mps_faults", "cuda_mps_fault_affected_clients"):
        exemplar = exemplars[name]
        assert exemplar is not None
        assert exemplar.labels == {"incident": blocked().id}
        assert float(exemplar.timestamp or 0) == blocked().detected_at + 5.0


@pytest.mark.parametrize("accept", [TEXT, TEXT_1])
def test_text_has_neither(accept: str) -> None:
    text = exposed(accept)
    assert "cuda_mps_faults_total{" in text
    assert "# UNIT" not in text
    assert " # {" not in text
