"""What is new is published at once, and publishing never takes more than its share of all time."""

import pytest

from exporter.pace import QUIET_SECONDS, SAVED_SECONDS, SHARE, SOON_SECONDS, Pace

LONG = 10_000.0


def publish_all(cost: float, seconds: float) -> list[float]:
    """When publications are made, each of which takes so long, where there is always something new."""
    pace, now, made = Pace(0.0), 0.0, list[float]()
    while (now := now + pace.wait(now, news=True)) < seconds:
        made.append(now)
        pace.published(now, now + cost)
        now += cost
    return made


def test_the_first_news_are_published_at_once() -> None:
    assert Pace(5.0).wait(5.0, news=True) == 0


def test_without_news_it_publishes_now_and_then() -> None:
    assert Pace(5.0).wait(6.0, news=False) == QUIET_SECONDS - 1


@pytest.mark.parametrize("cost", [0.0001, 0.005, 0.04])
def test_publishing_takes_no_more_than_its_share(cost: float) -> None:
    taken = cost * len(publish_all(cost, LONG))

    assert taken <= SHARE * LONG + SAVED_SECONDS + cost


@pytest.mark.parametrize("cost", [0.005, 0.04])
def test_nor_much_less_where_there_are_always_news(cost: float) -> None:
    assert cost * len(publish_all(cost, LONG)) > 0.9 * SHARE * LONG


@pytest.mark.parametrize("cost", [0.0001, 0.005, 0.04])
def test_a_burst_of_news_is_shown_as_it_comes(cost: float) -> None:
    first = publish_all(cost, LONG)[:5]

    assert first == pytest.approx([number * (cost + SOON_SECONDS) for number in range(5)])


def test_what_was_spent_is_saved_again() -> None:
    pace = Pace(0.0)
    for _ in range(100):
        pace.published(0.0, 0.04)
    assert pace.wait(0.04, news=True) > SOON_SECONDS

    pace.published(1000.0, 1000.04)

    assert pace.wait(1000.04, news=True) == pytest.approx(SOON_SECONDS)


def test_a_machine_that_was_asleep_in_mid_publication_does_not_keep_news_back_for_long() -> None:
    pace = Pace(0.0)
    pace.published(0.0, 3600.0)

    assert pace.wait(3600.0, news=True) <= QUIET_SECONDS
