"""The watchdog restarts a killed daemon with its limits, and the circuit breaker stops restarts."""

import statistics
import time
from functools import partial

import pytest

from tests.eventually import eventually

from . import figures
from .clients import Client, Clients
from .limited import TOO_MUCH_MIB, LimitsInForce, NewClients, all_processors
from .mps import ControlDaemon
from .timing import seconds_until, stays
from .watchdog import NAME, Watchdog, Watchdogs

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hung_daemon")]

KILLS = 20
LOOPING_CLIENTS = 4
# Seconds after SIGKILL: the daemon answers, limits are in force, and, after the start of a CUDA program,
# a client has run within them.
BACK_WITHIN = 2.5
CLIENT_WITHIN = 3.5
# Long enough for an unwanted restart.
WATCHED_SECONDS = 6
BUDGET = 2


def test_restarts_a_killed_daemon_with_its_limits(
    daemon: ControlDaemon, clients: Clients, watchdogs: Watchdogs
) -> None:
    """Twenty times, under load: clients start again whenever they end."""
    everything = all_processors(clients)
    watchdog = watchdogs.start(backoff=1)
    looping = [
        clients.start(f"client{number}", again=True, mib=64, seconds=1, busy_ms=2, every_ms=5, greed=TOO_MUCH_MIB)
        for number in range(LOOPING_CLIENTS)
    ]
    kills = []
    for number in range(1, KILLS + 1):
        kills.append(_kill(daemon, clients, watchdog, everything))
        eventually(partial(_has_restarted, watchdog, number))
        watchdog.resume()
    _note(kills, looping, everything, watchdog)
    assert max(kill["answers"] for kill in kills) <= BACK_WITHIN
    assert max(kill["limits"] for kill in kills) <= BACK_WITHIN
    assert max(kill["client"] for kill in kills) <= CLIENT_WITHIN
    assert watchdog.done() == ["restart for down: succeeded"]


def test_the_circuit_breaker_opens_and_stays_open_until_resume(daemon: ControlDaemon, watchdogs: Watchdogs) -> None:
    """Also after a restart of the exporter."""
    watchdog = watchdogs.start(restarts=BUDGET, backoff=1)
    for number in range(1, BUDGET + 1):
        daemon.kill()
        eventually(partial(_has_restarted, watchdog, number))
        eventually(lambda: _answers(daemon))

    daemon.kill()
    eventually(lambda: _is_open(watchdog))
    stays(lambda: _is_gone(daemon), for_seconds=WATCHED_SECONDS)
    watchdog.restart()
    eventually(lambda: _is_open(watchdog))
    stays(lambda: _is_gone(daemon), for_seconds=WATCHED_SECONDS)

    watchdog.resume()
    eventually(lambda: _answers(daemon))
    eventually(lambda: _has_restarted(watchdog, BUDGET + 1))
    eventually(watchdog.is_well)


def _kill(daemon: ControlDaemon, clients: Clients, watchdog: Watchdog, everything: int) -> dict[str, float]:
    """Kill a daemon with busy clients, and return the times until it has recovered."""
    eventually(lambda: _is_under_load(watchdog))
    limits, new_clients = LimitsInForce(daemon), NewClients(clients, everything)
    former, moment = daemon.process(), time.time()
    assert former is not None
    daemon.kill()
    taken = seconds_until(answers=partial(daemon.is_replaced, former), limits=limits, client=new_clients.one_is_limited)
    assert new_clients.unlimited_since(moment + taken["limits"]) == []
    return taken


def _note(kills: list[dict[str, float]], looping: list[Client], everything: int, watchdog: Watchdog) -> None:
    starts = [start for client in looping for start in client.events("ready")]
    under_mps = [start for start in starts if start["processors"] < everything]
    for name in kills[0]:
        taken = [kill[name] for kill in kills]
        figures.note(**{f"kill_to_{name}_seconds_each": " ".join(map(str, taken))})
        figures.note(**{f"kill_to_{name}_seconds_median": round(statistics.median(taken), 3)})
        figures.note(**{f"kill_to_{name}_seconds_worst": max(taken)})
    figures.note(
        kill_client_starts=len(starts),
        kill_client_starts_beside_mps=len(starts) - len(under_mps),
        kill_client_starts_before_memory_limit=sum(start["granted"] for start in under_mps),
        kill_clients_before_limits=sum(each.get("count", 0) for each in watchdog.logged("limits_bypassed")),
    )


def _is_under_load(watchdog: Watchdog) -> None:
    watchdog.is_well()
    assert watchdog.exporter.scrape().value("cuda_mps_daemon_clients", daemon=NAME) >= LOOPING_CLIENTS / 2


def _has_restarted(watchdog: Watchdog, count: int) -> None:
    assert watchdog.restarts() == count, watchdog.evidence()


def _is_open(watchdog: Watchdog) -> None:
    assert watchdog.state == "circuit_open", watchdog.evidence()


def _is_gone(daemon: ControlDaemon) -> None:
    assert daemon.process() is None


def _answers(daemon: ControlDaemon) -> None:
    assert daemon.answers()
