"""A real Prometheus scrapes over HTTP and over TLS with a password."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import bcrypt
import pytest

from exporter.clock import SystemClock
from exporter.metrics.catalogue import NodeCollector
from exporter.metrics.exposition import Exposition
from exporter.model.node import Node
from exporter.view import View
from tests.builders import AT, blocked_recovery, exited, reduced, three_clients
from tests.eventually import eventually, until
from tests.incidents.values import blocked
from tests.ports import LOCALHOST
from tests.prometheus import Prometheus
from tests.web.certificates import Authority
from tests.web.serving import serving

pytestmark = pytest.mark.systems

PASSWORD = "wonderland"
USERS = f"basic_auth_users: {{prometheus: '{bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()}'}}\n"
CLIENTS = "cuda_mps_client_info"


def collector(node: Node) -> NodeCollector:
    return NodeCollector(View(node))


def clients(node: Node) -> set[str]:
    """The clients that have series."""
    families = [family for family in collector(node).collect() if family.name == CLIENTS]
    return {sample.labels["client"] for family in families for sample in family.samples}


@contextlib.contextmanager
def scraped(
    node: Node, directory: Path, *options: str, web_config: str = "", **scrape: Any
) -> Iterator[tuple[Prometheus, Exposition]]:
    """Start a server with the metrics of a node, and a Prometheus that scrapes it each second."""
    configuration = directory / "web.yml"
    configuration.write_text(web_config)
    with serving(config=configuration) as web:
        web.exposition.publish(collector(node))
        targets = {"static_configs": [{"targets": [f"{LOCALHOST}:{web.server.port}"]}]}
        job = {"job_name": "cuda-mps-exporter", "scrape_interval": "1s", "scrape_timeout": "1s", **targets, **scrape}
        with Prometheus(directory, {"scrape_configs": [job]}, *options) as scraping:
            yield scraping, web.exposition


def test_prometheus_stores_the_metrics_and_drops_a_disconnected_client_at_the_next_scrape(tmp_path: Path) -> None:
    before = three_clients()
    after = reduced(exited(600, at=AT + 5), start=before).node
    with scraped(before, tmp_path) as (scraping, exposition):
        scraping.shows("up", {1.0})
        assert set(scraping.query(CLIENTS)) == clients(before)
        samples = sum(len(family.samples) for family in collector(before).collect())
        scraping.shows("scrape_samples_scraped", {float(samples)})

        exposition.publish(collector(after))

        # Prometheus itself would need five minutes.
        until(lambda: set(scraping.query(CLIENTS)) == clients(after) < clients(before))
        for name in ("duplicate_timestamp", "out_of_order", "out_of_bounds"):
            assert scraping.own(f"prometheus_target_scrapes_sample_{name}_total") == 0


def test_prometheus_scrapes_over_tls_with_a_password(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, client = authority.issue("server", f"IP:{LOCALHOST}"), authority.issue("client", "DNS:prometheus.example")
    web_config = (
        f"tls_server_config:\n  cert_file: {server.cert.name}\n  key_file: {server.key.name}\n"
        f"  client_ca_file: {authority.cert.name}\n  client_auth_type: RequireAndVerifyClientCert\n"
        f"  client_allowed_sans: [prometheus.example]\n{USERS}"
    )
    tls = {"ca_file": str(authority.cert), "cert_file": str(client.cert), "key_file": str(client.key)}
    asking = {"scheme": "https", "tls_config": tls, "basic_auth": {"username": "prometheus", "password": PASSWORD}}
    with scraped(three_clients(), tmp_path, web_config=web_config, **asking) as (scraping, _):
        scraping.shows("up", {1.0})
        assert set(scraping.query(CLIENTS)) == clients(three_clients())


def test_prometheus_is_refused_with_a_wrong_password(tmp_path: Path) -> None:
    guess = {"username": "prometheus", "password": "guess"}
    with scraped(three_clients(), tmp_path, web_config=USERS, basic_auth=guess) as (scraping, _):
        scraping.shows("up", {0.0})
        assert scraping.query(CLIENTS) == {}


def test_prometheus_stores_the_incident_of_a_fault_as_an_exemplar(tmp_path: Path) -> None:
    now = SystemClock().now()
    incident = replace(blocked(), detected_at=now)
    node = replace(blocked_recovery(), incidents={incident.id: incident})
    with scraped(node, tmp_path, "--enable-feature=exemplar-storage") as (scraping, _):

        def stored() -> None:
            found = scraping.get("query_exemplars", query="cuda_mps_faults_total", start=now - 60, end=now + 60)
            exemplars = [each for series in found for each in series["exemplars"]]
            assert [each["labels"] for each in exemplars] == [{"incident": incident.id}]
            assert exemplars[0]["timestamp"] == pytest.approx(now, abs=0.001)

        eventually(stored)
