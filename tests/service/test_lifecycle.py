"""Messages to systemd, daemons after a reload, a stalled service, signals, and the end of the service."""

import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.actions.runner import ActionRunner, Tools
from exporter.cli import parse_arguments
from exporter.collectors.nvml.driver import Driver
from exporter.collectors.pipe_dir import on_host
from exporter.collectors.pool import CollectorPool
from exporter.collectors.proc import Proc
from exporter.collectors.thread import Inbox
from exporter.config.load import build_config
from exporter.config.settings import Config, DaemonConfig
from exporter.model.action import Action, ActionKind, ActionReason
from exporter.model.daemon import NamedBy
from exporter.model.node import Node
from exporter.model.reason import Reason, ReasonCode
from exporter.model.watchdog import OngoingAction, WatchdogState
from exporter.report.document import StatusDocument
from exporter.service import Notifier, Service, Signals, configured_daemons, handle_signals
from exporter.status_client import query_service
from tests.clocks import HandClock
from tests.eventually import PATIENCE_SECONDS

# The tests state these values, so that they notice a change of the program's constants.
HEALTHY_SECONDS = 30.0


def config(*daemons: tuple[str, str]) -> Config:
    named = (
        DaemonConfig(label=name, pipe_directory=Path(directory), log_directory=Path("/log"))
        for name, directory in daemons
    )
    return replace(build_config(parse_arguments(["serve"]), {}, None), daemons=tuple(named))


def found(before: Config, after: Config) -> list[tuple[str, bool | None, str | None]]:
    return [(each.daemon, each.expected, each.by) for each in configured_daemons(before, after, 1.0)]


def test_a_removed_daemon_becomes_a_discovered_one() -> None:
    assert found(config(("a", "/a"), ("b", "/b")), config(("b", "/b"))) == [
        ("a", False, NamedBy.DISCOVERED),
        ("b", True, NamedBy.CONFIGURATION),
    ]


def test_a_renamed_daemon_is_not_removed() -> None:
    assert found(config(("old", "/a")), config(("new", "/a"))) == [("new", True, NamedBy.CONFIGURATION)]


def test_a_stalled_service_reports_only_that() -> None:
    clock = HandClock()
    service = Service(config(), Node(), CollectorPool(()), Inbox(), clock)
    assert isinstance(service.status_document(0), StatusDocument)

    clock.time += HEALTHY_SECONDS

    assert "has not run for 30 s" in str(service.status_document(0))


def test_interrupts_actions_when_a_signal_stops_the_service() -> None:
    clock, inbox, signals = HandClock(), Inbox(), Signals()
    tools = Tools(clock=clock, proc=Proc(Path("/proc"), clock), client=lambda *_: pytest.fail("asked"), path="")
    runner = ActionRunner(tools, inbox=inbox, location=lambda name, _: on_host(name, Path("/a"), Path("/b")))
    service = Service(config(), Node(), CollectorPool(()), inbox, clock, runner=runner)
    assert service.proceed(signals)

    signals.stop = True

    assert not service.proceed(signals)
    runner.do(Action(daemon="a", kind=ActionKind.RESTART, reason=ActionReason.DOWN, steps=()), Node())
    (done,) = inbox.get(timeout=PATIENCE_SECONDS)
    assert done.problem == Reason(ReasonCode.EXPORTER_STOPPING)


def test_ends_for_a_replaced_driver_after_the_actions_under_way() -> None:
    clock, signals, driver = HandClock(), Signals(), Driver()
    acting = OngoingAction(kind=ActionKind.RESTART, reason=ActionReason.DOWN, began_at=1.0)
    node = Node(watches={"a": WatchdogState(), "b": WatchdogState(acting=acting)})
    service = Service(config(), node, CollectorPool(()), Inbox(), clock, driver=driver)
    assert service.proceed(signals)

    driver.replaced = True

    assert service.proceed(signals), "the action of daemon b is under way"
    service.loop.node = replace(node, watches={})
    assert not service.proceed(signals)
    assert not signals.stop, "the exit code differs from that after a signal"


def test_a_paused_exporter_does_not_end_for_a_replaced_driver(tmp_path: Path) -> None:
    """Another process would not be paused, and open the driver that is about to be unloaded."""
    driver, with_socket = Driver(), replace(config(), runtime_directory=tmp_path)
    service = Service(with_socket, Node(), CollectorPool(()), Inbox(), HandClock(), driver=driver)
    driver.replaced = True
    with service.service_socket():
        query_service(tmp_path, "pause", PATIENCE_SECONDS)
        assert service.proceed(Signals())
        query_service(tmp_path, "resume", PATIENCE_SECONDS)
        assert not service.proceed(Signals())


def test_systemd_starts_the_exporter_again_with_the_new_libraries() -> None:
    unit = (Path(__file__).parents[2] / "systemd" / "cuda-mps-exporter.service").read_text()
    settings = dict(line.split("=", 1) for line in unit.splitlines() if line.startswith("Restart"))
    assert settings["Restart"] == "always"
    assert str(os.EX_TEMPFAIL) not in settings["RestartPreventExitStatus"].split()


def test_a_signal_sets_its_event_before_it_wakes_the_main_thread() -> None:
    stopped: list[bool] = []
    with handle_signals(lambda: stopped.append(signals.stop)) as signals:
        os.kill(os.getpid(), signal.SIGTERM)
    assert stopped == [True]

    with handle_signals(lambda: None, reloads=True) as signals:
        os.kill(os.getpid(), signal.SIGHUP)
    assert (signals.reload, signals.stop) == (True, False)


@pytest.fixture
def manager() -> Iterator[socket.socket]:
    """The service manager's end of a notify socket; the test binds it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.settimeout(PATIENCE_SECONDS)
        yield channel


def test_sends_each_message_as_a_datagram(manager: socket.socket, tmp_path: Path) -> None:
    manager.bind(str(tmp_path / "notify"))
    notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify")})

    notifier.ready()
    notifier.alive(lambda: "1 of 1 daemons up, 3 clients")
    notifier.alive()
    notifier.reloading(12.5)
    notifier.stopping()

    assert [manager.recv(4096) for _ in range(5)] == [
        b"READY=1",
        b"WATCHDOG=1\nSTATUS=1 of 1 daemons up, 3 clients",
        b"WATCHDOG=1",
        b"RELOADING=1\nMONOTONIC_USEC=12500000",
        b"STOPPING=1",
    ]


def test_sends_to_an_abstract_socket(manager: socket.socket, tmp_path: Path) -> None:
    manager.bind(f"\0{tmp_path}/notify")
    Notifier({"NOTIFY_SOCKET": f"@{tmp_path}/notify"}).ready()

    assert manager.recv(4096) == b"READY=1"


def test_removes_the_socket_from_the_environment() -> None:
    environment = {"NOTIFY_SOCKET": "/nowhere/at/all", "PATH": "/bin"}
    Notifier(environment)

    assert environment == {"PATH": "/bin"}


@pytest.mark.parametrize("environment", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "/nowhere/at/all"}])
def test_does_nothing_without_systemd(environment: dict[str, str]) -> None:
    notifier = Notifier(environment)

    notifier.ready()
    notifier.alive(lambda: "well")
    notifier.stopping()


def test_does_not_wait_for_a_manager_that_does_not_read(manager: socket.socket, tmp_path: Path) -> None:
    manager.bind(str(tmp_path / "notify"))
    notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify")})

    for _ in range(2000):
        notifier.alive(lambda: "well")
