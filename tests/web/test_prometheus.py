"""A real Prometheus scrapes over HTTP and over TLS with a password."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import bcrypt
import pytest

from exporter.clock import SystemClock
from exporter.demo.scenario import initial_node
from exporter.demo.simulation import Simulation
from exporter.metrics.catalogue import NodeCollector
from exporter.metrics.exposition import Exposition
from exporter.model.node import Node
from exporter.report.status_view import StatusInput
from exporter.state.reducer import reduce
from exporter.view import View
from exporter.web.pages import Site
from exporter.web.server import WebServer
from exporter.web.web_config import WebSecurity
from tests.builders import AT, blocked_recovery
from tests.clocks import HandClock
from tests.eventually import eventually
from tests.incidents.values import blocked
from tests.ports import LOCALHOST
from tests.prometheus import Prometheus
from tests.web.certificates import Authority

pytestmark = pytest.mark.systems

PASSWORD = "wonderland"
CLIENTS = "cuda_mps_client_info"
MOST_MINUTES = 600


def collector(node: Node) -> NodeCollector:
    return NodeCollector(View(node, client_min_age=0.0))


def clients(node: Node) -> set[str]:
    """The clients that have series."""
    families = [family for family in collector(node).collect() if family.name == CLIENTS]
    return {sample.labels["client"] for family in families for sample in family.samples}


@pytest.fixture(scope="module")
def before_and_after() -> tuple[Node, Node]:
    """A simulated node, and the same node after one of several clients has disconnected."""
    clock = HandClock(AT)
    simulation = Simulation(1, clock)
    node = initial_node()
    for _ in range(MOST_MINUTES):
        before = node
        for seen in simulation.collect().observations:
            node, _ = reduce(node, seen)
        if clients(before) - clients(node) and clients(before) & clients(node):
            return before, node
        clock.time += 60.0
    raise AssertionError("no client disconnects")


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Callable[..., Prometheus]]:
    """Starts Prometheus with the settings of one scrape."""
    with contextlib.ExitStack() as ending:

        def start(**scrape: Any) -> Prometheus:
            job = {"job_name": "cuda-mps-exporter", "scrape_interval": "1s", "scrape_timeout": "1s"}
            return ending.enter_context(Prometheus(tmp_path, {"scrape_configs": [job | scrape]}))

        yield start


@pytest.fixture
def exposition() -> Exposition:
    """The published metrics."""
    return Exposition(SystemClock())


@pytest.fixture
def serve(exposition: Exposition) -> Iterator[Callable[..., dict[str, Any]]]:
    """Start a server and return the targets of a scrape."""
    with contextlib.ExitStack() as closing:

        def start(security: WebSecurity | None = None) -> dict[str, Any]:
            site = Site(
                exposition,
                healthy=lambda: True,
                status=str,
                page_data=lambda: StatusInput(node=Node(), at=AT),
                monotonic=lambda: 0.0,
            )
            server = WebServer(site, [(LOCALHOST, 0)], security)
            server.open()
            closing.callback(server.close)
            return {"static_configs": [{"targets": [f"{LOCALHOST}:{server.port}"]}]}

        yield start


def test_prometheus_stores_the_metrics_and_drops_a_disconnected_client_at_the_next_scrape(
    prometheus: Callable[..., Prometheus],
    serve: Callable[..., dict[str, Any]],
    exposition: Exposition,
    before_and_after: tuple[Node, Node],
) -> None:
    before, after = before_and_after
    exposition.publish(collector(before))
    scraping = prometheus(**serve())
    scraping.shows("up", {1.0})
    assert set(scraping.query(CLIENTS)) == clients(before)
    samples = sum(len(family.samples) for family in collector(before).collect())
    scraping.shows("scrape_samples_scraped", {float(samples)})

    exposition.publish(collector(after))

    def gone() -> None:
        assert set(scraping.query(CLIENTS)) == clients(after)

    eventually(gone)  # Prometheus itself would need five minutes
    for name in ("duplicate_timestamp", "out_of_order", "out_of_bounds"):
        assert scraping.own(f"prometheus_target_scrapes_sample_{name}_total") == 0


def test_prometheus_scrapes_over_tls_with_a_password(
    prometheus: Callable[..., Prometheus],
    serve: Callable[..., dict[str, Any]],
    exposition: Exposition,
    before_and_after: tuple[Node, Node],
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    server, client = authority.issue("server", f"IP:{LOCALHOST}"), authority.issue("client", "DNS:prometheus.example")
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    configuration = tmp_path / "web.yml"
    configuration.write_text(
        f"tls_server_config:\n  cert_file: {server.cert.name}\n  key_file: {server.key.name}\n"
        f"  client_ca_file: {authority.cert.name}\n  client_auth_type: RequireAndVerifyClientCert\n"
        f"  client_allowed_sans: [prometheus.example]\nbasic_auth_users: {{prometheus: '{hashed}'}}\n"
    )
    exposition.publish(collector(before_and_after[0]))
    tls = {"ca_file": str(authority.cert), "cert_file": str(client.cert), "key_file": str(client.key)}
    asking = {"scheme": "https", "tls_config": tls, "basic_auth": {"username": "prometheus", "password": PASSWORD}}

    scraping = prometheus(**serve(WebSecurity(configuration)), **asking)

    scraping.shows("up", {1.0})
    assert set(scraping.query(CLIENTS)) == clients(before_and_after[0])


def test_prometheus_is_refused_with_a_wrong_password(
    prometheus: Callable[..., Prometheus], serve: Callable[..., dict[str, Any]], exposition: Exposition, tmp_path: Path
) -> None:
    configuration = tmp_path / "web.yml"
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    configuration.write_text(f"basic_auth_users: {{prometheus: '{hashed}'}}\n")
    exposition.publish(collector(Node()))

    scraping = prometheus(
        **serve(WebSecurity(configuration)), basic_auth={"username": "prometheus", "password": "guess"}
    )

    scraping.shows("up", {0.0})
    assert scraping.query(CLIENTS) == {}


def test_prometheus_stores_the_incident_of_a_fault_as_an_exemplar(
    serve: Callable[..., dict[str, Any]], exposition: Exposition, tmp_path: Path
) -> None:
    now = SystemClock().now()
    incident = replace(blocked(), detected_at=now)
    node = replace(blocked_recovery(), incidents={incident.id: incident})
    exposition.publish(collector(node))
    job = {"job_name": "cuda-mps-exporter", "scrape_interval": "1s", "scrape_timeout": "1s", **serve()}
    with Prometheus(tmp_path, {"scrape_configs": [job]}, "--enable-feature=exemplar-storage") as scraping:

        def stored() -> None:
            found = scraping.get("query_exemplars", query="cuda_mps_faults_total", start=now - 60, end=now + 60)
            exemplars = [each for series in found for each in series["exemplars"]]
            assert [each["labels"] for each in exemplars] == [{"incident": incident.id}]
            assert exemplars[0]["timestamp"] == pytest.approx(now, abs=0.001)

        eventually(stored)
