"""The watchdog's part of the table of options. What holds for one daemon alone is in `daemon_keys.py`."""

from exporter.config.kinds import boolean, duration, integer, member
from exporter.config.option import Option
from exporter.model.settings import FaultRemedy, Mode

_JUDGING = ("serve", "replay")
"""The commands that judge; a replay is told on its command line whether it may act."""

_MOST_RESTARTS = 100
_HOUR, _DAY = 3600, 86_400

WATCHDOG_OPTIONS = (
    Option(
        key="watchdog.mode",
        attribute="watchdog",
        kind=member(Mode),
        help="observe tells and counts what the watchdog would do, act does it, for daemons that are expected",
        commands=("serve", "doctor"),
    ),
    Option(
        key="watchdog.hung_after_seconds",
        attribute="rules.hung_after",
        kind=duration(5, _HOUR),
        help="how long a daemon must have hung before it is restarted; less than 90 s can kill one that is only slow",
        commands=_JUDGING,
    ),
    Option(
        key="watchdog.restarts",
        attribute="rules.restarts",
        kind=integer(1, _MOST_RESTARTS),
        help="how many restarts of a daemon there may be within the window; then the circuit breaker opens",
        commands=_JUDGING,
    ),
    Option(
        key="watchdog.window_seconds",
        attribute="rules.window",
        kind=duration(5, _DAY),
        help="that window; a daemon that has been well for as long has its restarts and failures forgotten",
        commands=_JUDGING,
    ),
    Option(
        key="watchdog.backoff_seconds",
        attribute="rules.backoff",
        kind=duration(0.1, _HOUR),
        help="how long to wait after a restart that did not help, and twice as long after each further one",
        commands=_JUDGING,
    ),
    Option(
        key="watchdog.longest_backoff_seconds",
        attribute="rules.longest_backoff",
        kind=duration(0.1, _DAY),
        help="how long to wait at most, but for up to a quarter more by chance",
        commands=_JUDGING,
    ),
    Option(
        key="watchdog.verify_seconds",
        attribute="rules.verify",
        kind=duration(1, _HOUR),
        help="how soon a daemon that was restarted must answer, as a new process; else the restart has failed",
        commands=_JUDGING,
    ),
    Option(
        key="watchdog.systemd_seconds",
        attribute="rules.systemd",
        kind=duration(1, _HOUR),
        help="how long systemd has to restart a daemon's unit by the unit's own Restart=",
        commands=_JUDGING,
    ),
    Option(
        key="watchdog.fault_seconds",
        attribute="rules.fault",
        kind=duration(5, _DAY),
        help="how long a server may be in FAULT before anything is done about it",
        commands=_JUDGING,
    ),
    Option(
        key="watchdog.fault_remedy",
        attribute="rules.fault_remedy",
        kind=member(FaultRemedy),
        help="how far to go then, each with all before it: only clients that the fault hit are ever ended",
        commands=_JUDGING,
    ),
    Option(
        key="watchdog.step_seconds",
        attribute="rules.step",
        kind=duration(1, _HOUR),
        help="how long to wait for the effect of each of these remedies",
        commands=_JUDGING,
    ),
    Option(
        key="watchdog.end_hung_servers",
        attribute="rules.end_hung_servers",
        kind=boolean(),
        help="end a server that hangs, and with it its clients; else it is only named",
        commands=_JUDGING,
    ),
)
