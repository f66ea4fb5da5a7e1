"""What befalls a node wakes somebody once, rightly, and with what there is to know; and is told to be over.

All of it is real but for the GPUs: nodes served by TLS with a password, scraped by Prometheus, told of by Alertmanager.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from tests.eventually import eventually
from tests.paging.night import JOB, Night, SimulatedNode
from tests.paging.pager import Alert, Message

pytestmark = [pytest.mark.systems, pytest.mark.timeout(300)]

PATIENCE_SECONDS = 120.0

AT = "12s"
"""By then each node has been scraped more than once: what grows is seen to grow."""

PAGER, TICKETS = "pager", "tickets"


@dataclass(frozen=True, slots=True)
class Case:
    """A node that something befalls, and the one alert that it is told by; `says` are words of its description."""

    plan: str | None
    receiver: str
    alert: str
    severity: str
    daemon: str | None = None
    says: tuple[str, ...] = ()
    ends: bool = True


TRAINING, INFERENCE = "/run/nvidia/mps/training/pipe", "/run/nvidia/mps/inference/pipe"

CASES = {
    "a daemon dies, and is back before the next scrape": Case(
        f"{AT}:daemon-restarts", PAGER, "CudaMpsDaemonDied", "critical", TRAINING, ("clients died with it",)
    ),
    "a daemon dies, and stays dead": Case(
        f"{AT}:daemon-dies:15s", PAGER, "CudaMpsDaemonDead", "critical", TRAINING, ("No control daemon runs",)
    ),
    "a daemon hangs": Case(
        f"{AT}:daemon-hangs:20s", PAGER, "CudaMpsDaemonUnresponsive", "critical", TRAINING, ("unresponsive",)
    ),
    "a fault that heals by itself": Case(
        f"{AT}:fault",
        TICKETS,
        "CudaMpsFault",
        "warning",
        TRAINING,
        (
            " clients of ",
            "Among those hit: ",
            "client_killed",
            "is suspected, with a confidence of 0.9",
            "cuda-mps-exporter incidents ",
        ),
    ),
    "a fault that a victim holds up": Case(
        f"{AT}:fault-held:15s",
        PAGER,
        "CudaMpsServerFault",
        "critical",
        TRAINING,
        ("Still alive of these: 1.", "is suspected, with a confidence of 0.9"),
    ),
    "a GPU that needs a reset": Case(
        f"{AT}:hardware-xid:15s", PAGER, "CudaMpsQuarantined", "critical", INFERENCE, ("reset",)
    ),
    "a server that is full": Case(
        f"{AT}:server-full:2s", TICKETS, "CudaMpsClientsRefused", "warning", INFERENCE, ("were turned away",)
    ),
    "an exporter that is down": Case(None, PAGER, "CudaMpsExporterDown", "critical", None, ("nobody watches MPS",)),
}
DOWN = "an exporter that is down"
ENDING = tuple(name for name, case in CASES.items() if case.ends)

Nodes = dict[str, SimulatedNode]


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Night, Nodes]]:
    """All nodes at once, one for each case; one of them has crashed by the time when the first test begins."""
    with Night(tmp_path_factory.mktemp("night")) as night:
        nodes = {name: night.node(*filter(None, (case.plan,))) for name, case in CASES.items()}
        night.scrape(tuple(nodes.values()))
        nodes[DOWN].kill()
        yield night, nodes


def told(night: tuple[Night, Nodes], name: str) -> list[Message]:
    """The messages about a case's node that tell of something that fires."""
    there, nodes = night
    return [message for message in there.pager.about(nodes[name].instance) if message.firing]


def page(night: tuple[Night, Nodes], name: str) -> Alert:
    """The alert of the first message about a case's node, which is waited for."""

    def came() -> Message:
        messages = told(night, name)
        assert messages, f"nobody was told of {name}"
        return messages[0]

    (alert,) = eventually(came, within=PATIENCE_SECONDS, every=0.2).firing
    return alert


@pytest.mark.parametrize("name", CASES)
class TestAPage:
    """The one that each case is told by."""

    def test_tells_of_the_right_thing_to_the_right_people(self, night: tuple[Night, Nodes], name: str) -> None:
        """By its alert, severity and receiver, and with the node and the daemon."""
        _, nodes = night
        case, alert = CASES[name], page(night, name)
        assert (alert.name, alert.labels["severity"]) == (case.alert, case.severity)
        assert alert.labels["instance"] == nodes[name].instance
        assert alert.labels.get("daemon") == case.daemon
        assert told(night, name)[0].receiver == case.receiver

    def test_can_be_read_by_a_person(self, night: tuple[Night, Nodes], name: str) -> None:
        """Nothing of its template is left, nor did it come to nothing."""
        annotations = page(night, name).annotations
        description = annotations["description"]
        assert annotations["summary"]
        assert night[1][name].instance in description
        for words in CASES[name].says:
            assert words in description
        for text in annotations.values():
            assert not any(left in text for left in ("<no value>", "{{", "}}", "error expanding", "%!"))

    def test_leads_to_its_runbook(self, night: tuple[Night, Nodes], name: str) -> None:
        """Which the exporter itself serves; that of one that is down is served by another."""
        _, nodes = night
        alert = page(night, name)
        reader = nodes[next(each for each in CASES if each != DOWN)]
        assert reader.get(alert.annotations["runbook_url"]).startswith(f"# {alert.name}")


class TestAnExporterThatIsDown:
    """It says nothing any more, so whatever was last known of its node is no news."""

    def test_keeps_all_else_of_its_node_from_being_told(self, night: tuple[Night, Nodes]) -> None:
        """Here an alert that Alertmanager is given by hand, and that is over when the exporter is back."""
        there, nodes = night
        page(night, DOWN)
        fault = {"alertname": "CudaMpsFault", "job": JOB, "instance": nodes[DOWN].instance, "severity": "warning"}
        there.alertmanager.tell(fault)

        def kept_back() -> None:
            assert there.alertmanager.inhibited(fault)

        eventually(kept_back)
        there.alertmanager.tell(fault, ended=datetime.now(UTC))
        nodes[DOWN].start()


@pytest.mark.parametrize("name", ENDING)
def test_it_is_told_to_be_over(night: tuple[Night, Nodes], name: str) -> None:
    """To those who were told that it had begun."""
    there, nodes = night
    page(night, name)

    def over() -> None:
        ends = [each for each in there.pager.about(nodes[name].instance) if not each.firing]
        assert [(each.receiver, each.alerts[0].name) for each in ends] == [(CASES[name].receiver, CASES[name].alert)]

    eventually(over, within=PATIENCE_SECONDS, every=0.2)


@pytest.mark.parametrize("name", CASES)
def test_nobody_was_told_of_anything_else(night: tuple[Night, Nodes], name: str) -> None:
    """One message for each failure: what follows from it is not told beside it, nor again when it is over."""
    assert [(each.receiver, [alert.name for alert in each.firing]) for each in told(night, name)] == [
        (CASES[name].receiver, [CASES[name].alert])
    ]
