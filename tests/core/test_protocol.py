"""A daemon that speaks a protocol which is not spoken here is known, said to be unsupported, and breaks nothing."""

from exporter.metrics.catalogue import NodeCollector
from exporter.model.daemon import Daemon, DaemonState, Declaration
from exporter.model.event import EventName
from exporter.model.node import Node
from exporter.model.observation import DaemonProcess, LogLine, Observation, ProcessExit
from exporter.model.settings import PollIntervals
from exporter.report.status_text import status_table
from exporter.state.poll_schedule import commands
from exporter.state.reducer import reduce
from exporter.view import View

NAME = "/run/nvidia-mps"
STARTED = "Starting control daemon using socket /run/nvidia-mps/control"
TOLD = "To connect CUDA applications to this daemon, set CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps"
OF_PROTOCOL_2 = "To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps"


def after(*seen: Observation) -> tuple[Node, list[EventName]]:
    node = Node(
        daemons={
            NAME: Daemon(name=NAME, pipe_directory=NAME, log_directory="/log", declared=Declaration(expected=True))
        }
    )
    told: list[EventName] = []
    for each in seen:
        node, events = reduce(node, each)
        told.extend(event.event for event in events)
    return node, told


def process(at: float = 1.0, protocol: int | None = 3, pid: int = 77) -> DaemonProcess:
    return DaemonProcess(at=at, daemon=NAME, pid=pid, start_ticks=5, protocol=protocol)


def log(text: str, at: float = 2.0) -> LogLine:
    line = f"[2026-11-20 15:08:45.147 Control    77] {text}"
    return LogLine(at=at, daemon=NAME, file="control.log", line=line)


def samples(node: Node, name: str) -> list[float]:
    found = (metric for metric in NodeCollector(View(node)).collect())
    return [sample.value for metric in found for sample in metric.samples if sample.name == name]


def test_it_is_not_asked_and_has_no_state() -> None:
    for told in (
        (process(),),
        (process(protocol=None), log(TOLD)),
        (log(STARTED), log(TOLD), process(at=3, protocol=2)),
    ):
        node, _ = after(*told)

        assert commands(node, NAME, PollIntervals()) == ()
        assert node.daemons[NAME].state is None
        assert samples(node, "cuda_mps_daemon_up") == []
        assert samples(node, "cuda_mps_daemon_supported") == [0]


def test_status_says_why() -> None:
    node, _ = after(process())

    assert "unsupported" in status_table(node)
    assert "MPS protocol 3 is not supported yet" in status_table(node)


def test_its_end_is_a_loss_all_the_same() -> None:
    node, told = after(process(), ProcessExit(at=5.0, pid=77, start_ticks=5), log("", at=20.0))

    assert node.daemons[NAME].state is DaemonState.ABSENT
    assert told == [EventName.DAEMON_LOST]


def test_one_that_is_back_with_a_protocol_that_is_known_is_asked() -> None:
    node, _ = after(process(), ProcessExit(at=5.0, pid=77, start_ticks=5), process(at=20.0, protocol=2, pid=78))

    assert node.daemons[NAME].supported
    assert commands(node, NAME, PollIntervals())


def test_the_log_of_the_known_protocol_changes_nothing() -> None:
    node, _ = after(process(protocol=None), log(OF_PROTOCOL_2))

    assert samples(node, "cuda_mps_daemon_supported") == [1]
    assert commands(node, NAME, PollIntervals())
