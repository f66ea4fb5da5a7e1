"""TTL cache of rendered pages."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from exporter.web.pages import MAX_RENDER_SHARE, MIN_TTL_SECONDS, TtlCache


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
