"""Each alert fires, for long enough to notify, and is resolved within two minutes of recovery.

Prometheus scrapes every 15 or 60 s, at several times after the failure, and evaluates the rules every 15 s. All nodes
are in one test of promtool: a node for each failure, scrape interval and delay.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.alerts.files import ALERTMANAGER, RULES, RUNBOOKS, read, rules, seconds
from tests.tools import promtool

pytestmark = pytest.mark.systems

STEP, EVALUATION = 5, 15
SCRAPES = tuple((60, delay) for delay in (0, 5, 25, 40, 55)) + tuple((15, delay) for delay in (0, 5, 10))
"""Scrape intervals, and when the first scrape after a whole minute is."""
ENDS = (3600, 3605, 3610)
"""When a failure ends: at an evaluation, or 10 or 5 s before one."""
RESOLVED_SECONDS = 120
OUTAGE_SECONDS = 180

PERSISTENT = {"CudaMpsWorkloadOftenSuspected", "CudaMpsLogContradicted"}
"""The consequence of these events lasts longer than two minutes; their runbooks state how long they alert."""
Value = Callable[[float, float], float | None]
"""The value of a series at a time, in seconds after the beginning and after the end of a failure. None: absent."""


def always(value: float) -> Value:
    return lambda begun, ended: value


def state(well: float | None, bad: float) -> Value:
    return lambda begun, ended: bad if begun >= 0 > ended else well


def counter(increase: float = 1) -> Value:
    return lambda begun, ended: increase if begun >= 0 else 0


def since_end(time: float) -> Value:
    return lambda begun, ended: time if ended >= 0 else 1


def since(begin: float) -> Value:
    return lambda begun, ended: begin if begun >= 0 else None


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure of a node that lasts for `lasts` seconds. The times of its series are those of a failure at `begin`."""

    alert: str
    lasts: float
    series: Callable[[float, float], Mapping[str, Value]]


def _lasting(alert: str, lasts: float, series: str, well: float | None, bad: float, **others: float) -> Failure:
    """Return a failure with one bad series. `others` are constant."""
    same = {_named(name): always(value) for name, value in others.items()}
    return Failure(alert, lasts, lambda begin, end: {_named(series): state(well, bad), **same})


def _named(series: str) -> str:
    """Write `state daemon=absent` as a series of a metric family."""
    name, *labels = series.split()
    pairs = (each.split("=") for each in labels)
    return f"cuda_mps_{name}{{" + ", ".join(f'{label}="{value}"' for label, value in pairs) + "}"


def _death(alert: str, lasts: float, clients: float) -> Failure:
    """Return the death of an expected daemon that is back after `lasts` seconds."""

    def series(begin: float, end: float) -> Mapping[str, Value]:
        return {
            _named("daemon_state daemon=a state=down"): state(0, 1),
            _named("watchdog_diagnosis daemon=a diagnosis=stopped"): always(0),
            _named("daemon_last_loss_timestamp_seconds daemon=a"): since(begin),
            _named("daemon_start_time_seconds daemon=a"): lambda begun, ended: (
                1 if begun < 0 else end if ended >= 0 else None
            ),
            _named("clients_disconnected_total daemon=a reason=daemon_gone"): counter(clients),
        }

    return Failure(alert, lasts, series)


def _fault(lasts: float) -> Failure:
    def series(begin: float, end: float) -> Mapping[str, Value]:
        return {
            _named("server_state daemon=a server=1 state=fault"): state(0, 1),
            _named("fault_last_timestamp_seconds daemon=a"): since(begin),
            _named("fault_recovery_seconds_sum daemon=a"): lambda begun, ended: lasts if ended >= 0 else 0,
        }

    return Failure("CudaMps(Server)?Fault", lasts, series)


def _refusal(lasts: float) -> Failure:
    def series(begin: float, end: float) -> Mapping[str, Value]:
        return {
            _named("clients_refused_total daemon=a reason=limit"): counter(),
            _named("server_clients daemon=a server=1"): state(10, 48),
            _named("server_clients_limit daemon=a server=1"): always(48),
        }

    return Failure("CudaMpsClientsRefused", lasts, series)


def _bypassing(lasts: float, *, loss: bool) -> Failure:
    def series(begin: float, end: float) -> Mapping[str, Value]:
        lost = {_named("daemon_last_loss_timestamp_seconds daemon=a"): since(begin)} if loss else {}
        return {_named("bypassing_processes daemon=a gpu=0"): state(0, 2), **lost}

    return Failure("CudaMpsProcessBypassing", lasts, series)


def _crash_loop(lasts: float) -> Failure:
    def series(begin: float, end: float) -> Mapping[str, Value]:
        return {
            _named("server_crash_loop daemon=a"): state(0, 1),
            _named("server_crash_loops_total daemon=a"): counter(),
        }

    return Failure("CudaMpsServerCrashLoop", lasts, series)


DEATH = "CudaMpsDaemon(Down|Died)"
FAILURES: Sequence[Failure] = (
    *(_death(DEATH, lasts, clients) for lasts in (1, 20, 55, 110, 300) for clients in (0, 7)),
    *(_fault(lasts) for lasts in (0, 5, 20, 55, 110, 300)),
    *(_crash_loop(lasts) for lasts in (0, 110, 300)),
    *(_refusal(lasts) for lasts in (0, 300, 800)),
    _bypassing(600, loss=True),
    _bypassing(1200, loss=False),
    Failure(
        "CudaMpsDaemonRestarted",
        0,
        lambda begin, end: {_named("watchdog_restarts_total daemon=a reason=hung result=succeeded"): counter()},
    ),
    _lasting("CudaMpsDaemonUnresponsive", 400, "daemon_state daemon=a state=unresponsive", 0, 1),
    _lasting("CudaMpsDaemonHeld", 1200, "daemon_state daemon=a state=held", 0, 1),
    _lasting("CudaMpsCircuitOpen", 400, "watchdog_state daemon=a state=circuit_open", 0, 1),
    _lasting(
        "CudaMpsQuarantined",
        400,
        "watchdog_quarantined_timestamp_seconds daemon=a gpu=0 xid=79 action=REBOOT",
        None,
        9,
    ),
    _lasting(
        "CudaMpsGpuResetNeeded", 400, "gpu_hardware_xid_timestamp_seconds gpu=0 xid=79 action=RESTART_BM", None, 9
    ),
    _lasting("CudaMpsHardwareXid", 600, "gpu_hardware_xid_timestamp_seconds gpu=0 xid=63 action=", None, 9),
    _lasting("CudaMpsLimitsDrifted", 1200, "server_limits_drifted daemon=a server=1", 0, 1),
    _lasting("CudaMpsGpuLost", 400, "gpu_up gpu=0", 1, 0, **{"exporter_source_up source=nvml": 1}),
    _lasting(
        "CudaMpsClientSlotsNearlyFull",
        1200,
        "server_clients daemon=a server=1",
        10,
        47,
        **{"server_clients_limit daemon=a server=1": 48},
    ),
    _lasting("CudaMpsLogGrowing", 4000, "daemon_log_size_bytes daemon=a file=control.log", 5, 2e9),
    _lasting("CudaMpsLogBlocked", 400, "daemon_log_blocked daemon=a", 0, 1),
    _lasting("CudaMpsClientsWaiting", 1200, "clients_waiting daemon=a", 0, 2),
    _lasting(
        "CudaMpsWorkloadFillsMemory",
        1200,
        "gpu_memory_used_bytes gpu=0",
        10,
        99,
        **{
            "workload_memory_used_bytes gpu=0 workload_kind=user workload=eve": 90,
            "workload_memory_used_bytes gpu=0 workload_kind=user workload=bob": 9,
            "gpu_memory_total_bytes gpu=0": 100,
        },
    ),
    _lasting(
        "CudaMpsClientStarved",
        1200,
        "client_slowdown_ratio daemon=a client=1 gpu=0",
        1,
        5,
        **{"client_slowdown_error_ratio daemon=a client=1 gpu=0": 0},
    ),
    _lasting("CudaMpsExporterCannotCollect", 1200, "exporter_source_up source=nvml", 1, 0),
    _lasting(
        "CudaMpsNvmlUnusable",
        400,
        "exporter_source_problem_info source=nvml problem=driver_not_loaded",
        None,
        1,
        **{"watchdog_diagnosis daemon=a diagnosis=down": 0},
    ),
    _lasting("CudaMpsExporterPaused", 8000, "exporter_paused", 0, 1),
    _lasting("CudaMpsWatchdogBlocked", 600, "watchdog_blocked daemon=a reason=no_lock", 0, 1),
    _lasting("CudaMpsConfigReloadFailed", 600, "exporter_config_last_reload_successful", 1, 0),
    Failure("CudaMpsExporterDown", 600, lambda begin, end: {}),
    Failure(
        "CudaMpsExporterStalled",
        600,
        lambda begin, end: {
            _named("exporter_snapshot_timestamp_seconds"): lambda begun, ended: end + ended if ended >= 0 else begin
        },
    ),
)
KEPT = tuple(
    failure
    for failure in FAILURES
    if failure.lasts in (300, 400) and failure.alert not in ("CudaMpsClientsRefused", "CudaMpsLogBlocked")
)
"""Failures whose critical alert fires when the exporter cannot be scraped any more."""


class Nodes:
    """The nodes of one test of promtool, and the checks of their alerts."""

    def __init__(self, end: int, outage: bool = False) -> None:
        self._end, self._outage = end, outage
        self.series: list[Mapping[str, str]] = []
        self.checks: list[Mapping[str, object]] = []
        self.until = end + RESOLVED_SECONDS + (OUTAGE_SECONDS if outage else 0)

    def add(self, failure: Failure) -> None:
        """Add the nodes of a failure: one for each scrape interval and delay."""
        begin = self._end - failure.lasts
        name = f"{re.sub('[^A-Za-z]', '', failure.alert)}-{failure.lasts:.0f}-{len(self.series)}"
        restart = since_end(self._end + OUTAGE_SECONDS - STEP)
        process = {"process_start_time_seconds{}": restart} if self._outage else {}
        for interval, delay in SCRAPES:
            instance = f"{name}-{interval}-{delay}"
            of_failure = failure.series(begin, self._end)
            down = state(1, 0) if failure.alert == "CudaMpsExporterDown" else always(1)
            for series, value in {**of_failure, **process, "up{}": down}.items():
                values = (
                    self._value(series, value, begin, at, interval, delay) for at in range(0, self.until + 1, STEP)
                )
                labels = f'{{job="cuda-mps-exporter", instance="{instance}"'
                self.series.append(
                    {"series": series.replace("{", labels + ", ").replace(", }", "}"), "values": " ".join(values)}
                )
        chosen = f'alertname=~"{failure.alert}", alertstate="firing", instance=~"{name}-.+"'
        nodes = f'count by (instance) (count_over_time(up{{instance=~"{name}-.+"}}[1d]))'
        fired = f"sum by (instance) (count_over_time(ALERTS{{{chosen}}}[1d])) >= 2"
        self._expect_nothing(f"{nodes} unless {fired}")
        self._expect_nothing(f"ALERTS{{{chosen}}}")
        self._expect_nothing(f"count by (instance) (count_over_time(ALERTS{{{chosen}}}[1d])) > 1")
        if self._outage:
            through = f"sum by (instance) (count_over_time(ALERTS{{{chosen}}}[{OUTAGE_SECONDS}s]))"
            self._expect_nothing(
                f"{nodes} unless {through} >= {OUTAGE_SECONDS // EVALUATION}", self._end + OUTAGE_SECONDS
            )

    def _expect_nothing(self, expression: str, at: float | None = None) -> None:
        self.checks.append(
            {"expr": expression, "eval_time": f"{self.until if at is None else at:.0f}s", "exp_samples": []}
        )

    def _value(self, series: str, value: Value, begin: float, at: float, interval: int, delay: int) -> str:
        """Return what a scrape at this time stores. A series that a scrape no longer has is stale."""
        if (at - delay) % interval:
            return "_"
        after = at - self._end - OUTAGE_SECONDS
        if self._outage and (-OUTAGE_SECONDS <= after < 0 or (interval == 15 and 60 <= after < 75)):
            return "0" if series.startswith("up") else "stale"
        found = value(at - begin, at - self._end)
        return "stale" if found is None else f"{found:.0f}"


def check(nodes: Nodes, directory: Path) -> None:
    test = {"interval": f"{STEP}s", "input_series": nodes.series, "promql_expr_test": nodes.checks}
    file = directory / "resolution.test.yml"
    tests = {"rule_files": [str(RULES)], "evaluation_interval": f"{EVALUATION}s", "tests": [test]}
    file.write_text(json.dumps(tests))  # YAML holds all of JSON
    promtool("test", "rules", file)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("long", [False, True], ids=["short", "long"])
def test_fires_and_is_resolved_within_two_minutes(tmp_path: Path, end: int, *, long: bool) -> None:
    """Long enough for group_wait, and under one name, also if two scrapes or none show the failure."""
    nodes = Nodes(end + (6000 if long else 0))
    for failure in FAILURES:
        if (failure.lasts > 2000) is long:
            nodes.add(failure)
    check(nodes, tmp_path)


@pytest.mark.parametrize("end", ENDS)
def test_a_critical_alert_goes_on_without_data_and_is_resolved_with_them(tmp_path: Path, end: int) -> None:
    """The exporter restarts in three minutes, in which the failure ends. Later, a single scrape fails."""
    nodes = Nodes(end, outage=True)
    for failure in KEPT:
        nodes.add(failure)
    check(nodes, tmp_path)


def test_covers_each_alert() -> None:
    """Except those of events with a consequence that persists."""
    covered = {rule.alert for rule in rules() for each in FAILURES if re.fullmatch(each.alert, rule.alert)}
    assert covered == {rule.alert for rule in rules()} - PERSISTENT


def test_alertmanager_sends_the_alert_of_an_event_before_it_ends() -> None:
    route = read(ALERTMANAGER)["route"]
    assert max(seconds(route[name]) for name in ("group_wait", "group_interval")) < 2 * EVALUATION


def test_the_rules_are_evaluated_as_often_as_here() -> None:
    """Those of workloads are evaluated each minute: with a scrape each minute, that is within two minutes too."""
    intervals = {group["name"]: group["interval"] for group in read(RULES)["groups"]}
    assert intervals.pop("cuda-mps-workloads") == f"{RESOLVED_SECONDS // 2 // 60}m"
    assert set(intervals.values()) == {f"{EVALUATION}s"}


def test_the_runbook_of_an_event_with_a_lasting_consequence_states_its_duration() -> None:
    for alert in PERSISTENT:
        assert re.search(r"The alert (lasts|fires) (for )?\S+ \w+ after", (RUNBOOKS / f"{alert}.md").read_text()), alert
