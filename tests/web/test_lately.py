"""A page that many look at costs no more than one that a single person looks at."""

import threading

import pytest

from exporter.web.lately import FRESH_SECONDS, SHARE, Lately


class Making:
    """Makes pages that are numbered, each of which takes so long."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.at = 100.0
        self.made = 0
        self.seconds = seconds

    def now(self) -> float:
        """What time it is."""
        return self.at

    def make(self) -> bytes:
        """The next page."""
        self.made += 1
        self.at += self.seconds
        return b"%d" % self.made


def test_all_who_ask_within_a_second_get_the_same() -> None:
    making = Making()
    lately = Lately(making.make, making.now)
    assert {lately.page() for _ in range(20)} == {b"1"}
    making.at += FRESH_SECONDS
    assert {lately.page() for _ in range(20)} == {b"2"}


def test_one_that_takes_long_is_made_the_more_seldom() -> None:
    making = Making(seconds=2.0)
    lately = Lately(making.make, making.now)
    began = making.at
    lately.page()
    making.at = began + 2.0 / SHARE - 0.1
    assert lately.page() == b"1"
    making.at = began + 2.0 / SHARE
    assert lately.page() == b"2"


def test_while_it_is_made_for_one_the_others_wait_for_that() -> None:
    making, begun, done = Making(), threading.Event(), threading.Event()

    def make() -> bytes:
        begun.set()
        done.wait()
        return making.make()

    lately = Lately(make, making.now)
    got: list[bytes] = []
    viewers = [threading.Thread(target=lambda: got.append(lately.page())) for _ in range(8)]
    for each in viewers:
        each.start()
    begun.wait()
    done.set()
    for each in viewers:
        each.join()
    assert got == [b"1"] * 8


def test_one_that_cannot_be_made_is_tried_again() -> None:
    pages = iter([b"", b"well"])

    def make() -> bytes:
        page = next(pages)
        if not page:
            raise ValueError("not yet")
        return page

    lately = Lately(make, lambda: 100.0)
    with pytest.raises(ValueError, match="not yet"):
        lately.page()
    assert lately.page() == b"well"
