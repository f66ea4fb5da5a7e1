"""Each snapshot is rendered once per encoding."""

import gzip

from exporter.clock import SystemClock
from exporter.metrics.exposition import Exposition
from tests.web.serving import OPENMETRICS, Counting, Web

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


def test_publishing_renders_a_new_snapshot_in_the_encodings_in_use(web: Web, collector: Counting) -> None:
    web.get(Accept_Encoding="gzip")
    new = Counting(value=2)
    web.exposition.publish(new)
    published = new.renders

    assert gzip.decompress(web.get(Accept_Encoding="gzip").body).endswith(b"answer 2.0\n")
    assert new.renders == published > 0


def test_renders_nothing_before_the_first_scrape() -> None:
    collector = Counting()
    Exposition(SystemClock()).publish(collector)

    assert collector.renders == 0


def test_accept_headers_cannot_cause_repeated_rendering() -> None:
    exposition, collector = Exposition(SystemClock()), Counting()
    exposition.publish(collector)
    for n in range(200):
        exposition.get(f"application/openmetrics-text;version=1.0.{n}", gzipped=bool(n % 2))
        exposition.get("", gzipped=False)

    assert collector.renders <= FORMATS * 2  # gzipped or not
