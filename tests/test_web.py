"""The web answers scrapes from bytes, whoever else connects and whatever they send."""

import contextlib
import gzip
import http.client
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import pytest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import exporter.web
from exporter.cli import main
from exporter.clock import SystemClock
from exporter.errors import ListenError
from exporter.metrics.exposition import Exposition
from exporter.web import MOST_REQUESTS, Site, WebServer

from .eventually import eventually

LOCALHOST = "127.0.0.1"
OPENMETRICS = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"

FORMATS = 3


@dataclass(slots=True)
class Counting(Collector):
    """One gauge, and how often it was asked for."""

    value: int = 1
    renders: int = 0

    def collect(self) -> Iterable[Metric]:
        """The gauge."""
        self.renders += 1
        return [GaugeMetricFamily("answer", "The answer.", value=self.value)]


class Stage(Site):
    """Whatever site is on at present."""

    def __init__(self) -> None:
        self.site: Site | None = None

    def answer(self, path: str, accept: str, accept_encoding: str) -> exporter.web.Answer:
        """What that site answers."""
        assert self.site is not None
        return self.site.answer(path, accept, accept_encoding)


@pytest.fixture(scope="module")
def stage() -> Iterator[tuple[Stage, WebServer]]:
    """One server for all tests, since to stop one takes half a second."""
    stage = Stage()
    server = WebServer(stage, (LOCALHOST, 0))
    server.open()
    yield stage, server
    server.close()


@dataclass(slots=True)
class Web:
    """A server, and what stands behind it."""

    server: WebServer
    exposition: Exposition = field(default_factory=lambda: Exposition(SystemClock()))
    healthy: bool = True

    def get(self, path: str = "/metrics", method: str = "GET", **headers: str) -> "Answer":
        """One request; a header's underscores are hyphens."""
        with contextlib.closing(http.client.HTTPConnection(LOCALHOST, self.server.port, timeout=30)) as connection:
            connection.request(method, path, headers={name.replace("_", "-"): text for name, text in headers.items()})
            response = connection.getresponse()
            return Answer(response.status, dict(response.getheaders()), response.read())

    def connect(self) -> socket.socket:
        """A connection that has said nothing yet."""
        return socket.create_connection((LOCALHOST, self.server.port), timeout=30)

    def raw(self, request: bytes) -> bytes:
        """The answer to any bytes at all, until the server hangs up."""
        with self.connect() as connection:
            with contextlib.suppress(OSError):
                connection.sendall(request)
                connection.shutdown(socket.SHUT_WR)
            return read_all(connection)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes


def read_all(connection: socket.socket) -> bytes:
    chunks: list[bytes] = []
    with contextlib.suppress(ConnectionError):
        while chunk := connection.recv(1 << 16):
            chunks.append(chunk)
    return b"".join(chunks)


@pytest.fixture
def web(stage: tuple[Stage, WebServer]) -> Web:
    """The server before the first cycle."""
    on, server = stage
    web = Web(server)
    on.site = Site(web.exposition, lambda: web.healthy)
    return web


@pytest.fixture
def collector(web: Web) -> Counting:
    """A snapshot that has been published."""
    collector = Counting()
    web.exposition.publish(collector)
    return collector


# -- pages ---------------------------------------------------------------------------------------------------------


def test_before_the_first_cycle_there_are_no_metrics(web: Web) -> None:
    assert (web.get().status, web.get("/-/ready").status, web.get("/-/healthy").status) == (503, 503, 200)


@pytest.mark.usefixtures("collector")
def test_after_it_there_are(web: Web) -> None:
    answer = web.get()

    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert answer.body.splitlines()[-1] == b"answer 1.0"
    assert int(answer.headers["Content-Length"]) == len(answer.body)
    assert [web.get(path).status for path in ("/-/ready", "/readyz", "/-/healthy", "/healthz")] == [200] * 4


def test_when_the_cycle_has_stopped_it_is_not_healthy(web: Web) -> None:
    web.healthy = False

    assert web.get("/-/healthy").status == 503


def test_the_landing_page_leads_to_the_metrics(web: Web) -> None:
    answer = web.get("/")

    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert b'href="/metrics"' in answer.body


@pytest.mark.parametrize("path", ["/nowhere", "/metrics/", "/-/reload", "/-/quit", "/../etc/passwd", "*"])
def test_nothing_else_is_there(web: Web, path: str) -> None:
    answer = web.get(path)

    assert answer.status == 404
    assert path.encode() not in answer.body


@pytest.mark.usefixtures("collector")
def test_a_query_is_disregarded(web: Web) -> None:
    assert web.get("/metrics?name[]=answer").status == 200


@pytest.mark.usefixtures("collector")
def test_openmetrics_for_those_who_accept_it(web: Web) -> None:
    answer = web.get(Accept=OPENMETRICS)

    assert answer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0; charset=utf-8")
    assert answer.body.endswith(b"# EOF\n")


@pytest.mark.parametrize(
    ("header", "gzipped"),
    [
        ("gzip", True),
        ("gzip, deflate", True),
        ("br;q=1.0, gzip;q=0.8", True),
        ("*", True),
        ("GZIP", True),
        ("", False),
        ("identity", False),
        ("gzip;q=0", False),
        ("gzip; q=0.0", False),
        ("xgzip", False),
    ],
)
@pytest.mark.usefixtures("collector")
def test_gzip_for_those_who_accept_it(web: Web, header: str, gzipped: bool) -> None:
    plain = web.get().body
    answer = web.get(Accept_Encoding=header)

    assert (answer.headers.get("Content-Encoding") == "gzip") is gzipped
    assert (gzip.decompress(answer.body) if gzipped else answer.body) == plain
    assert int(answer.headers["Content-Length"]) == len(answer.body)


@pytest.mark.usefixtures("collector")
def test_head_is_get_without_the_body(web: Web) -> None:
    get, head = web.get(), web.get(method="HEAD")

    assert (head.status, head.body, head.headers["Content-Length"]) == (200, b"", get.headers["Content-Length"])
    assert head.headers["Content-Type"] == get.headers["Content-Type"]


# -- hostile requests ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "TRACE", "QUIT", "get"])
@pytest.mark.usefixtures("collector")
def test_no_other_method_does_anything(web: Web, method: str) -> None:
    assert web.raw(f"{method} /metrics HTTP/1.1\r\n\r\n".encode()).split()[1] in (b"405", b"501")
    assert web.get().status == 200


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nAccept: " + b"x" * 100_000 + b"\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 1000 + b"\r\n",
        b"GET /metrics HTTP/9.9\r\n\r\n",
        b"GET\r\n\r\n",
        b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /\xff\xfe\0 HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nAccept: \xff\xfe\0\r\n\r\n",
        b"",
    ],
    ids=[
        "long_line",
        "long_header",
        "many_headers",
        "version",
        "short_line",
        "empty_lines",
        "tls",
        "bytes_in_path",
        "bytes_in_header",
        "nothing",
    ],
)
@pytest.mark.usefixtures("collector")
def test_no_request_harms_the_next(web: Web, request_bytes: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    web.raw(request_bytes)

    assert web.get().status == 200
    assert "".join(capfd.readouterr()) == ""


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text;version=x",
        "application/openmetrics-text;version=2." + "9" * 5000,
        "application/openmetrics-text;version=0.0.0",
        "application/openmetrics-text;version=2.0.0;escaping=everything",
        "text/plain;version=x;escaping=\u00e4",
        "text/plain;version=",
        ",;=,;=,",
        "\0",
    ],
)
@pytest.mark.usefixtures("collector")
def test_whatever_is_accepted_there_is_an_answer_in_a_known_format(web: Web, accept: str) -> None:
    head, _, body = web.raw(f"GET /metrics HTTP/1.1\r\nAccept: {accept}\r\n\r\n".encode()).partition(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.0 200")
    assert b"answer 1.0" in body
    assert len(head) < 500


@pytest.mark.usefixtures("collector")
def test_a_header_in_two_lines_puts_nothing_into_the_answer(web: Web) -> None:
    accept = b"Accept: application/openmetrics-text;version=2.\r\n Set-Cookie: a=b"

    head, _, _ = web.raw(b"GET /metrics HTTP/1.1\r\n" + accept + b"\r\n\r\n").partition(b"\r\n\r\n")

    assert b"Set-Cookie" not in head


# -- clients that say nothing, or little ---------------------------------------------------------------------------


@contextlib.contextmanager
def crowd(web: Web, size: int, say: bytes) -> Iterator[list[socket.socket]]:
    """Connections that never finish a request."""
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(web.connect()) for _ in range(size)]
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.sendall(say)
        yield connections


@pytest.mark.parametrize("say", [b"", b"G", b"GET /metrics HTTP/1.1\r\nX: "], ids=["nothing", "a_letter", "a_header"])
@pytest.mark.parametrize("size", [MOST_REQUESTS // 2, MOST_REQUESTS, 3 * MOST_REQUESTS])
@pytest.mark.usefixtures("collector")
def test_the_silent_do_not_keep_a_scrape_out(web: Web, size: int, say: bytes) -> None:
    with crowd(web, size, say):
        assert [web.get().status for _ in range(3)] == [200] * 3


@pytest.mark.usefixtures("collector")
def test_the_slow_do_not_keep_a_scrape_out(web: Web) -> None:
    """A byte now and then is no silence, and never the end of a request either."""
    enough = threading.Event()

    def drip(connections: list[socket.socket]) -> None:
        while not enough.wait(0.1):
            for connection in connections:
                with contextlib.suppress(OSError):
                    connection.send(b"x")

    with crowd(web, MOST_REQUESTS, b"GET /metrics HTTP/1.1\r\nX: ") as connections:
        dripping = threading.Thread(target=drip, args=(connections,))
        dripping.start()
        try:
            eventually(lambda: _answered(web), within=15)
        finally:
            enough.set()
            dripping.join()


def _answered(web: Web) -> None:
    try:
        assert web.get().status == 200
    except ConnectionError as error:
        raise AssertionError("turned away") from error


@pytest.mark.usefixtures("collector")
def test_the_silent_are_hung_up_on(web: Web) -> None:
    with web.connect() as connection:
        assert read_all(connection) == b""


def test_who_does_not_read_the_answer_holds_nobody_up(web: Web) -> None:
    class Large(Collector):
        def collect(self) -> Iterable[Metric]:
            family = GaugeMetricFamily("answer", "The answer.", labels=["n"])
            for n in range(100_000):
                family.add_metric([f"{n:050}"], n)
            return [family]

    web.exposition.publish(Large())
    with crowd(web, 10, b"GET /metrics HTTP/1.1\r\n\r\n"):
        assert web.get("/-/healthy").status == 200
        assert web.get().status == 200


@pytest.mark.usefixtures("collector")
def test_many_scrapes_at_once_are_all_answered(web: Web) -> None:
    statuses: list[int] = []
    scrapers = [threading.Thread(target=lambda: statuses.append(web.get().status)) for _ in range(30)]
    for scraper in scrapers:
        scraper.start()
    for scraper in scrapers:
        scraper.join()

    assert statuses == [200] * 30


# -- one rendering for each snapshot and encoding ------------------------------------------------------------------


def test_a_snapshot_is_rendered_once_for_each_encoding(web: Web, collector: Counting) -> None:
    for _ in range(5):
        web.get()
        web.get(Accept_Encoding="gzip")
        web.get(Accept=OPENMETRICS)
        web.get(Accept=OPENMETRICS, Accept_Encoding="gzip")

    assert collector.renders <= 4


def test_the_bytes_of_one_snapshot_never_change(web: Web, collector: Counting) -> None:
    encodings: list[dict[str, str]] = [{}, {"Accept_Encoding": "gzip"}, {"Accept": OPENMETRICS}]
    before = [web.get(**headers).body for headers in encodings]
    collector.value = 2

    assert [web.get(**headers).body for headers in encodings] == before


def test_a_new_snapshot_is_rendered_by_who_publishes_it(web: Web, collector: Counting) -> None:
    web.get(Accept_Encoding="gzip")
    new = Counting(value=2)
    web.exposition.publish(new)
    published = new.renders

    assert gzip.decompress(web.get(Accept_Encoding="gzip").body).endswith(b"answer 2.0\n")
    assert new.renders == published > 0


def test_nobody_asks_and_nothing_is_rendered() -> None:
    collector = Counting()
    Exposition(SystemClock()).publish(collector)

    assert collector.renders == 0


def test_no_headers_make_it_render_again_and_again() -> None:
    exposition, collector = Exposition(SystemClock()), Counting()
    exposition.publish(collector)
    for n in range(200):
        exposition.get(f"application/openmetrics-text;version=1.0.{n}", gzipped=bool(n % 2))
        exposition.get("", gzipped=False)

    assert collector.renders <= FORMATS * 2  # gzipped or not


# -- the address ---------------------------------------------------------------------------------------------------


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody else listens on."""
    with socket.create_server((LOCALHOST, 0)) as other:
        yield other.getsockname()[1]


def test_a_taken_port_is_told_by_the_flag_that_names_it(taken: int) -> None:
    with pytest.raises(ListenError, match=rf"--web\.listen-address: cannot listen on {LOCALHOST}:{taken}: "):
        WebServer(Site(Exposition(SystemClock()), lambda: True), (LOCALHOST, taken))


@pytest.mark.parametrize("command", ["serve", "demo"])
@pytest.mark.parametrize(
    "address", [lambda taken: f"{LOCALHOST}:{taken}", lambda taken: f":{taken}", lambda _: "no.such.host.invalid:1"]
)
def test_an_address_that_cannot_be_had_now_ends_it_with_exit_code_1(
    command: str, address: Callable[[int], str], taken: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--web.listen-address", address(taken)]) == 1  # so that systemd tries again
    assert "--web.listen-address: cannot listen on " in capsys.readouterr().err


def test_all_addresses_are_those_of_both_protocols() -> None:
    exposition = Exposition(SystemClock())
    server = WebServer(Site(exposition, lambda: True), ("", 0))
    server.open()
    try:
        for host in (LOCALHOST, "::1") if socket.has_dualstack_ipv6() else (LOCALHOST,):
            with contextlib.closing(http.client.HTTPConnection(host, server.port, timeout=30)) as connection:
                connection.request("GET", "/-/healthy")
                assert connection.getresponse().status == 200
    finally:
        server.close()
