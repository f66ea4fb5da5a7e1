"""TTL cache of rendered pages."""

import threading

import pytest

from exporter.web.pages import MAX_RENDER_SHARE, MIN_TTL_SECONDS, TtlCache


class Renderer:
    """Renders numbered pages; each takes `seconds`."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.at = 100.0
        self.made = 0
        self.seconds = seconds

    def now(self) -> float:
        """Return the time."""
        return self.at

    def make(self) -> bytes:
        """Return the next page."""
        self.made += 1
        self.at += self.seconds
        return b"%d" % self.made


def test_renders_once_within_a_second() -> None:
    renderer = Renderer()
    cache = TtlCache(renderer.make, renderer.now)
    assert {cache.page() for _ in range(20)} == {b"1"}
    renderer.at += MIN_TTL_SECONDS
    assert {cache.page() for _ in range(20)} == {b"2"}


def test_keeps_a_slow_page_longer() -> None:
    renderer = Renderer(seconds=2.0)
    cache = TtlCache(renderer.make, renderer.now)
    began = renderer.at
    cache.page()
    renderer.at = began + 2.0 / MAX_RENDER_SHARE - 0.1
    assert cache.page() == b"1"
    renderer.at = began + 2.0 / MAX_RENDER_SHARE
    assert cache.page() == b"2"


def test_other_threads_wait_for_the_rendering_thread() -> None:
    renderer, begun, done = Renderer(), threading.Event(), threading.Event()

    def make() -> bytes:
        begun.set()
        done.wait()
        return renderer.make()

    cache = TtlCache(make, renderer.now)
    got: list[bytes] = []
    viewers = [threading.Thread(target=lambda: got.append(cache.page())) for _ in range(8)]
    for each in viewers:
        each.start()
    begun.wait()
    done.set()
    for each in viewers:
        each.join()
    assert got == [b"1"] * 8


def test_renders_again_after_a_failure() -> None:
    pages = iter([b"", b"well"])

    def make() -> bytes:
        page = next(pages)
        if not page:
            raise ValueError("not yet")
        return page

    cache = TtlCache(make, lambda: 100.0)
    with pytest.raises(ValueError, match="not yet"):
        cache.page()
    assert cache.page() == b"well"
