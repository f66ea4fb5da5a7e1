"""The watchdog brings a killed daemon back, with its limits, and knows when to stop."""

import statistics
import time
from functools import partial

import pytest

from tests.eventually import eventually

from . import figures
from .clients import Client, Clients
from .limited import TOO_MUCH_MIB, LimitsInForce, Newcomers, all_processors
from .mps import ControlDaemon
from .race import seconds_until, stays
from .watchdog import NAME, Watchdog, Watchdogs

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hung_daemon")]

KILLS = 20
TENANTS = 4
# From the kill on: to a daemon that answers, to limits in force on its server, and, with the start of a CUDA program on
# top of that, to a client who runs within them.
BACK_WITHIN = 2.5
CLIENT_WITHIN = 3.5
# Long enough for a restart that nobody wants.
WATCHED_SECONDS = 6
BUDGET = 2


def test_a_killed_daemon_is_soon_back_with_its_limits(
    daemon: ControlDaemon, clients: Clients, watchdogs: Watchdogs
) -> None:
    """Twenty times, under load: clients that start anew as soon as they have ended, alive or killed."""
    everything = all_processors(clients)
    watchdog = watchdogs.start(backoff=1)
    tenants = [
        clients.start(f"tenant{number}", again=True, mib=64, seconds=1, busy_ms=2, every_ms=5, greed=TOO_MUCH_MIB)
        for number in range(TENANTS)
    ]
    kills = []
    for number in range(1, KILLS + 1):
        kills.append(_kill(daemon, clients, watchdog, everything))
        eventually(partial(_has_restarted, watchdog, number))
        watchdog.resume()
    _note(kills, tenants, everything, watchdog)
    assert max(kill["answers"] for kill in kills) <= BACK_WITHIN
    assert max(kill["limits"] for kill in kills) <= BACK_WITHIN
    assert max(kill["client"] for kill in kills) <= CLIENT_WITHIN
    assert watchdog.done() == ["restart for crashed: succeeded"]


def test_the_breaker_opens_and_stays_open_until_it_is_closed(daemon: ControlDaemon, watchdogs: Watchdogs) -> None:
    """Over the program's own restart, too."""
    watchdog = watchdogs.start(restarts=BUDGET, backoff=1)
    for number in range(1, BUDGET + 1):
        daemon.kill()
        eventually(partial(_has_restarted, watchdog, number))
        eventually(lambda: _answers(daemon))

    daemon.kill()
    eventually(lambda: _is_open(watchdog))
    stays(lambda: _is_gone(daemon), for_seconds=WATCHED_SECONDS)
    watchdog.start_anew()
    eventually(lambda: _is_open(watchdog))
    stays(lambda: _is_gone(daemon), for_seconds=WATCHED_SECONDS)

    watchdog.resume()
    eventually(lambda: _answers(daemon))
    eventually(lambda: _has_restarted(watchdog, BUDGET + 1))
    eventually(watchdog.is_well)


def _kill(daemon: ControlDaemon, clients: Clients, watchdog: Watchdog, everything: int) -> dict[str, float]:
    """One kill, of a daemon with clients at work; how long it took until all was well again."""
    eventually(lambda: _is_under_load(watchdog))
    limits, newcomers = LimitsInForce(daemon), Newcomers(clients, everything)
    former, moment = daemon.process(), time.time()
    assert former is not None
    daemon.kill()
    taken = seconds_until(answers=partial(daemon.is_followed, former), limits=limits, client=newcomers.one_is_limited)
    assert newcomers.unlimited_since(moment + taken["limits"]) == []
    return taken


def _note(kills: list[dict[str, float]], tenants: list[Client], everything: int, watchdog: Watchdog) -> None:
    lives = [life for tenant in tenants for life in tenant.events("ready")]
    under_mps = [life for life in lives if life["processors"] < everything]
    for name in kills[0]:
        taken = [kill[name] for kill in kills]
        figures.note(**{f"kill_to_{name}_seconds_each": " ".join(map(str, taken))})
        figures.note(**{f"kill_to_{name}_seconds_median": round(statistics.median(taken), 3)})
        figures.note(**{f"kill_to_{name}_seconds_worst": max(taken)})
    figures.note(
        kill_tenants_lives=len(lives),
        kill_tenants_lives_beside_mps=len(lives) - len(under_mps),
        kill_tenants_lives_before_memory_limit=sum(life["granted"] for life in under_mps),
        kill_clients_told_as_before_limits=sum(each.get("count", 0) for each in watchdog.said("limits_bypassed")),
    )


def _is_under_load(watchdog: Watchdog) -> None:
    watchdog.is_well()
    assert watchdog.exporter.scrape().value("cuda_mps_daemon_clients", daemon=NAME) >= TENANTS / 2


def _has_restarted(watchdog: Watchdog, count: int) -> None:
    assert watchdog.restarts() == count, watchdog.evidence()


def _is_open(watchdog: Watchdog) -> None:
    assert watchdog.state == "circuit_open", watchdog.evidence()


def _is_gone(daemon: ControlDaemon) -> None:
    assert daemon.process() is None


def _answers(daemon: ControlDaemon) -> None:
    assert daemon.answers()
