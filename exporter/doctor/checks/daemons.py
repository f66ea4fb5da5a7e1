"""Control daemons: whether they are there, answer, and can be watched."""

from collections.abc import Iterator

from exporter.doctor.facts import Area, Facts
from exporter.doctor.finding import Check, Found, Severity, found
from exporter.doctor.words import daemon_text, keyed, quoted, restart_commands, shown, start_commands
from exporter.model.daemon import SUPPORTED_PROTOCOL, DaemonState
from exporter.report.problem import FindingCode

ENOUGH_OPEN_FILES = 16384
"""What NVIDIA recommends for servers with many clients (MPS guide, known issues)."""


def no_daemon(facts: Facts) -> Iterator[Found]:
    """No control daemon runs, nor is any expected."""
    expected = any(daemon.declared.expected for daemon in facts.node.daemons.values())
    if not expected and not facts.daemons and not any(daemon.lifecycle.seen for daemon in facts.node.daemons.values()):
        yield Found(
            severity=Severity.WARNING,
            what="no control daemon runs, and none is expected: there is no MPS here to watch",
            mend="Start one; and enable its unit, or name it in the configuration, so that its absence pages somebody",
            commands=("systemctl enable --now nvidia-cuda-mps", "nvidia-cuda-mps-control -d"),
        )


def daemon_absent(facts: Facts) -> Iterator[Found]:
    """A daemon that is expected does not run."""
    for daemon in facts.node.daemons.values():
        lives = facts.daemons_of(daemon.name) or daemon.answers or daemon.state is DaemonState.UNRESPONSIVE
        if daemon.declared.expected and not lives and not facts.hidden(daemon.name):
            unit = daemon.declared.unit
            asks = () if unit is None else (f"systemctl status {quoted(unit)}",)
            yield found(
                FindingCode.DAEMON_DEAD,
                where=(shown(daemon.name),),
                fix="If it is no longer needed, remove it from the configuration, or disable its unit.",
                commands=(*asks, *start_commands(facts, daemon)),
            )


def daemon_silent(facts: Facts) -> Iterator[Found]:
    """A daemon runs, and does not answer."""
    for daemon in facts.node.daemons.values():
        # One that is stuck in the kernel cannot be looked into either.
        running = facts.daemons_of(daemon.name)
        if daemon.state is DaemonState.UNRESPONSIVE or (running and daemon.commands.unanswered):
            name = shown(daemon.name)
            yield found(
                FindingCode.DAEMON_HUNG,
                where=tuple(daemon_text(each) for each in running[:1]) or (name,),
                commands=(
                    "cuda-mps-exporter status --look",
                    *(f"kill -CONT {each.process.pid}" for each in running[:1]),
                ),
            )


def daemon_held(facts: Facts) -> Iterator[Found]:
    """Somebody keeps a session with a daemon open, and so all others out."""
    for daemon, _ in facts.running():
        if daemon.state is DaemonState.HELD or daemon.commands.refused_since is not None:
            holder = daemon.commands.session_holder
            known = holder is not None and holder.pid is not None
            yield found(
                FindingCode.DAEMON_HELD,
                where=(f"{shown(daemon.name)}: held by PID {holder.pid}" if holder and known else shown(daemon.name),),
                fix="Send commands one at a time, as in echo ps | ….",
                commands=("pgrep -a -f nvidia-cuda-mps-control",),
            )


def daemon_not_expected(facts: Facts) -> Iterator[Found]:
    """A daemon runs that no configuration, enabled unit or device plugin declares: no alert fires for its absence.

    Those of containers are their makers' affair.
    """
    for daemon, each in facts.running():
        elsewhere = daemon.name != daemon.pipe_directory
        if daemon.discovered and not daemon.declared.expected and not elsewhere:
            yield Found(
                severity=Severity.ADVICE,
                what="a daemon runs that no configuration, enabled unit or device plugin declares: if it dies, that is "
                "logged, and no alert fires",
                where=(daemon_text(each),),
                mend="Where it should always be there, enable its unit, or name it in "
                "/etc/cuda-mps-exporter/config.toml; a job's own daemon needs nothing",
                commands=("[[daemons]]", keyed("pipe_directory", daemon.pipe_directory)),
            )


def protocol_not_supported(facts: Facts) -> Iterator[Found]:
    """A daemon speaks MPS' protocol 3, which the exporter does not."""
    for daemon, each in facts.running():
        if not daemon.supported:
            yield found(
                FindingCode.DAEMON_UNSUPPORTED,
                detail=f"The daemon uses protocol {daemon.runtime.protocol}, the exporter protocol {SUPPORTED_PROTOCOL}.",
                where=(daemon_text(each),),
                commands=restart_commands(facts, daemon, variables={"CUDA_MPS_PROTOCOL_VERSION": "2"}),
            )


def few_open_files(facts: Facts) -> Iterator[Found]:
    """A daemon and its servers may have few files open: with many clients, a server fails."""
    for _, each in facts.running():
        if each.open_files is not None and each.open_files < ENOUGH_OPEN_FILES:
            yield Found(
                severity=Severity.ADVICE,
                what=f"a daemon and its servers may have {each.open_files} files open: with many clients a server "
                f"runs out of them; NVIDIA recommends {ENOUGH_OPEN_FILES}",
                where=(daemon_text(each),),
                mend="Raise it where the daemon is started (LimitNOFILE=16384 in its unit), and restart it",
                commands=("ulimit -n 16384",),
            )


CHECKS = (
    Check(no_daemon, fine="there is a daemon to watch", mend="start one, and enable its unit"),
    Check(daemon_absent, fine="each daemon that is expected runs", code=FindingCode.DAEMON_DEAD),
    Check(
        daemon_silent,
        fine="each daemon answers",
        code=FindingCode.DAEMON_HUNG,
        needs=(Area.PROGRAMS,),
        doc="docs/watchdog.md",
    ),
    Check(daemon_held, fine="no open session blocks a daemon", code=FindingCode.DAEMON_HELD, needs=(Area.PROGRAMS,)),
    Check(
        daemon_not_expected,
        fine="each daemon is expected",
        mend="enable its unit, or name it in the configuration",
        needs=(Area.UNITS,),
        doc="docs/configuration.md",
    ),
    Check(
        protocol_not_supported,
        fine="each daemon speaks a protocol that is understood",
        needs=(Area.DAEMONS,),
        code=FindingCode.DAEMON_UNSUPPORTED,
    ),
    Check(few_open_files, fine="daemons may have enough files open", mend="`LimitNOFILE=16384`"),
)
