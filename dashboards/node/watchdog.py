"""What the watchdog makes of each daemon, and what it did, or would have done."""

from collections.abc import Mapping

from dashboards import looks
from dashboards.board import Row
from dashboards.links import to_page
from dashboards.looks import Colour
from dashboards.panel import Column, bars, lines, table, timeline
from dashboards.query import DAEMON, Query, increase, max_by, moment_if_any, which
from exporter.model.settings import Mode
from exporter.model.watchdog import Condition, WatchdogPhase

WATCH_STATES: Mapping[str, Colour] = {
    WatchdogPhase.IDLE: Colour.WELL,
    WatchdogPhase.ACTING: Colour.NEWS,
    WatchdogPhase.DEFERRED_TO_SYSTEMD: Colour.NEWS,
    WatchdogPhase.BACKOFF: Colour.WARNING,
    WatchdogPhase.QUARANTINED: Colour.BAD,
    WatchdogPhase.CIRCUIT_OPEN: Colour.BAD,
}
MODES: Mapping[str, Colour] = {Mode.OBSERVE: Colour.QUIET, Mode.ACT: Colour.NEWS}

HARMLESS: Mapping[str, Colour] = {
    Condition.WELL: Colour.WELL,
    Condition.STARTING: Colour.NEWS,
    Condition.UNKNOWN: Colour.QUIET,
    Condition.STOPPED: Colour.ODD,
    Condition.PROGRAM_UNRESPONSIVE: Colour.WARNING,
    Condition.HELD: Colour.WARNING,
}
CONDITIONS: Mapping[str, Colour] = {condition: HARMLESS.get(condition, Colour.BAD) for condition in Condition}

WATCHDOG = Row(
    "Watchdog",
    (
        timeline(
            "Watchdog state",
            "Circuit open: it does not restart the daemon until an operator runs `cuda-mps-exporter resume DAEMON`. "
            "Deferred: systemd restarts the unit.",
            Query(which("cuda_mps_watchdog_state", "state", WATCH_STATES, DAEMON), "{{daemon}} {{instance}}"),
            looks.states(WATCH_STATES),
        ),
        timeline(
            "Diagnosis",
            "Diagnosis of each daemon, from several indications.",
            Query(which("cuda_mps_watchdog_diagnosis", "diagnosis", CONDITIONS, DAEMON), "{{daemon}} {{instance}}"),
            looks.states(CONDITIONS),
        ),
        bars(
            "Restarts",
            "Restarts by reason and result, including those by systemd and those that the watchdog only observed. "
            "Empty: there was none.",
            Query(
                increase("cuda_mps_watchdog_restarts_total", f"{DAEMON}, reason, result") + " > 0",
                "{{reason}}: {{result}} {{daemon}} {{instance}}",
            ),
            width=8,
        ),
        bars(
            "Other actions",
            "Other actions for a daemon, including those that the watchdog only observed, by reason and result. "
            "Empty: there was none.",
            Query(
                increase("cuda_mps_watchdog_actions_total", f"{DAEMON}, action, reason, result"),
                "{{action}}, {{reason}}: {{result}} {{daemon}} {{instance}}",
            ),
            width=8,
        ),
        lines(
            "Restarts left",
            "Restarts that remain in the budget. At 0 the circuit opens, and an operator is needed.",
            Query(max_by("cuda_mps_watchdog_restarts_left", DAEMON), "{{daemon}} {{instance}}"),
            width=8,
        ),
        table(
            "Watchdog of each daemon",
            "Whether the watchdog may act, the remaining restarts, and the times of its actions. Next restart: set "
            "while it waits for that time.",
            (
                which("cuda_mps_watchdog_mode", "mode", MODES, DAEMON),
                max_by("cuda_mps_watchdog_restarts_left", DAEMON),
                moment_if_any("cuda_mps_watchdog_last_restart_timestamp_seconds"),
                moment_if_any("cuda_mps_watchdog_next_restart_timestamp_seconds"),
                moment_if_any("cuda_mps_watchdog_circuit_opened_timestamp_seconds"),
            ),
            {
                "instance": Column("Node", links=to_page()),
                "daemon": "Daemon",
                "Value #A": Column("Mode", looks.NUMBER, mappings=looks.states(MODES)),
                "Value #B": Column("Restarts left", looks.COUNT),
                "Value #C": Column("Last restart", looks.MOMENT, mappings=looks.NEVER, painted=False),
                "Value #D": Column("Next restart", looks.MOMENT, mappings=looks.NEVER, painted=False),
                "Value #E": Column("Circuit opened", looks.MOMENT, mappings=looks.NEVER, painted=False),
            },
            sort=("Daemon", False),
            width=14,
            height=6,
        ),
        table(
            "Processes at fault",
            "Processes that had the session open, were stopped, hung, or could not be woken, in the selected time "
            "range. Empty: there was none.",
            "last_over_time(cuda_mps_watchdog_process_info{daemons}[$__range])",
            {"instance": Column("Node", links=to_page()), "daemon": "Daemon", "diagnosis": "Diagnosis", "pid": "PID"},
            sort=("Daemon", False),
            width=10,
            height=6,
        ),
        table(
            "Quarantined daemons",
            "Daemons that the watchdog does not restart, because a GPU needs a reset or the machine a reboot. "
            "Empty: there is none.",
            "1000 * max by (cluster, job, instance, daemon, gpu, xid, action) "
            "(cuda_mps_watchdog_quarantined_timestamp_seconds{daemons})",
            {
                "instance": Column("Node", links=to_page()),
                "daemon": "Daemon",
                "gpu": "GPU",
                "xid": "Xid",
                "action": "NVIDIA advises",
                "Value": Column("Since", looks.MOMENT, painted=False),
            },
            sort=("Daemon", False),
            width=24,
            height=6,
        ),
    ),
)
