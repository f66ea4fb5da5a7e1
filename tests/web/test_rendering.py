"""Each snapshot is rendered once per encoding, and a page once for all who ask in its time."""

import gzip
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client.core import Metric

from exporter.clock import SystemClock
from exporter.metrics.exposition import Exposition
from exporter.web.pages import TtlCache
from tests.eventually import PATIENCE_SECONDS
from tests.web.serving import OPENMETRICS, Counting, Web

# The tests state these values, so that they notice a change of the program's constants.
MAX_RENDER_SHARE = 0.1
MIN_TTL_SECONDS = 1.0

FORMATS = 3


def test_renders_a_snapshot_once_for_each_encoding(web: Web, collector: Counting) -> None:
    for _ in range(5):
        web.get()
        web.get(Accept_Encoding="gzip")
        web.get(Accept=OPENMETRICS)
        web.get(Accept=OPENMETRICS, Accept_Encoding="gzip")

    assert collector.renders <= 4


def test_the_bytes_of_a_snapshot_do_not_change(web: Web, collector: Counting) -> None:
    encodings: list[dict[str, str]] = [{}, {"Accept_Encoding": "gzip"}, {"Accept": OPENMETRICS}]
    before = [web.get(**headers).body for headers in encodings]
    collector.value = 2

    assert [web.get(**headers).body for headers in encodings] == before


def test_publishing_renders_a_new_snapshot_in_the_encodings_in_use_only(web: Web, collector: Counting) -> None:
    web.get(Accept_Encoding="gzip")
    new, unused = Counting(value=2), Counting()
    web.exposition.publish(new)
    published = new.renders

    assert gzip.decompress(web.get(Accept_Encoding="gzip").body).endswith(b"answer 2.0\n")
    assert new.renders == published > 0
    Exposition(SystemClock()).publish(unused)
    assert unused.renders == 0


def test_accept_headers_cannot_cause_repeated_rendering() -> None:
    exposition, collector = Exposition(SystemClock()), Counting()
    exposition.publish(collector)
    for n in range(200):
        exposition.get(f"application/openmetrics-text;version=1.0.{n}", gzipped=bool(n % 2))
        exposition.get("", gzipped=False)

    assert collector.renders <= FORMATS * 2  # gzipped or not


class Paused(Counting):
    """A gauge whose collection waits until a test continues it."""

    def __init__(self) -> None:
        super().__init__()
        self.began, self.continues = threading.Event(), threading.Event()

    def collect(self) -> Iterable[Metric]:
        """Wait, then return the gauge."""
        self.began.set()
        self.continues.wait(PATIENCE_SECONDS)
        return super().collect()


def test_publishing_waits_for_no_scrape() -> None:
    exposition, paused = Exposition(SystemClock()), Paused()
    exposition.publish(paused)
    with ThreadPoolExecutor() as pool:
        scrape = pool.submit(exposition.get, "", gzipped=False)
        assert paused.began.wait(PATIENCE_SECONDS)
        try:
            pool.submit(exposition.publish, Counting(value=2)).result(timeout=PATIENCE_SECONDS)
            new = pool.submit(exposition.get, "", gzipped=False).result(timeout=PATIENCE_SECONDS)
        finally:
            paused.continues.set()
        old = scrape.result()

    assert old is not None
    assert new is not None
    assert (b"answer 1.0" in old.body, b"answer 2.0" in new.body) == (True, True)


def test_two_scrapes_at_a_time_render_once() -> None:
    exposition, paused = Exposition(SystemClock()), Paused()
    exposition.publish(paused)
    with ThreadPoolExecutor() as pool:
        scrapes = [pool.submit(exposition.get, "", gzipped=False) for _ in range(2)]
        assert paused.began.wait(PATIENCE_SECONDS)
        paused.continues.set()

    assert scrapes[0].result() is scrapes[1].result()
    assert paused.renders == 1


class Renderer:
    """Renders numbered pages; each takes `seconds`."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.at, self.made, self.seconds = 100.0, 0, seconds
        self.cache = TtlCache(self.make, lambda: self.at)

    def make(self) -> bytes:
        """Return the next page."""
        self.made += 1
        self.at += self.seconds
        return b"%d" % self.made


def test_renders_once_within_a_second_and_keeps_a_slow_page_longer() -> None:
    for seconds, ttl in ((0.0, MIN_TTL_SECONDS), (2.0, 2.0 / MAX_RENDER_SHARE)):
        renderer = Renderer(seconds)
        began = renderer.at
        assert renderer.cache.page() == b"1"
        renderer.at = began + ttl - 0.1
        assert renderer.cache.page() == b"1"
        renderer.at = began + ttl
        assert renderer.cache.page() == b"2"


def test_other_threads_wait_for_the_rendering_thread() -> None:
    begun, done, made = threading.Event(), threading.Event(), []

    def make() -> bytes:
        made.append(True)
        begun.set()
        done.wait()
        return b"page"

    cache = TtlCache(make, lambda: 100.0)
    with ThreadPoolExecutor(8) as pool:
        pages = [pool.submit(cache.page) for _ in range(8)]
        begun.wait()
        done.set()
    assert [page.result() for page in pages] == [b"page"] * 8
    assert made == [True]


def test_renders_again_after_a_failure() -> None:
    pages = iter((ValueError("not yet"), b"well"))

    def make() -> bytes:
        page = next(pages)
        if isinstance(page, ValueError):
            raise page
        return page

    cache = TtlCache(make, lambda: 100.0)
    with pytest.raises(ValueError, match="not yet"):
        cache.page()
    assert cache.page() == b"well"
