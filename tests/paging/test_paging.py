"""A failure of a node causes one correct notification with all details, and a resolution.

Only the GPUs are simulated: Prometheus scrapes nodes with TLS and a password, and Alertmanager notifies.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pytest

from exporter.demo.simulation import FAILURES
from tests.eventually import eventually, until
from tests.paging import fast_rules
from tests.paging.receiver import Alert, Message
from tests.paging.simulation import JOB, Environment, SimulatedNode

pytestmark = [pytest.mark.systems, pytest.mark.timeout(540)]

PATIENCE_SECONDS = 120.0

AT = "12s"
"""By then each node has been scraped more than once: what grows is seen to grow."""

PAGER, TICKETS = "pager", "tickets"


@dataclass(frozen=True, slots=True)
class Case:
    """A failure of a node and its alert; `description_words` are words of its description."""

    plan: str | None
    receiver: str
    alert: str
    severity: str
    daemon: str | None = None
    description_words: tuple[str, ...] = ()
    ends: bool = True


TRAINING, INFERENCE = "/run/nvidia/mps/training/pipe", "/run/nvidia/mps/inference/pipe"

CASES = {
    "a daemon dies, and is back before the next scrape": Case(
        f"{AT}:daemon-restarts", TICKETS, "CudaMpsDaemonDied", "warning", TRAINING, ("clients ended with it",)
    ),
    "a daemon dies, and stays dead": Case(
        f"{AT}:daemon-dies:15s",
        PAGER,
        "CudaMpsDaemonDown",
        "critical",
        TRAINING,
        ("does not run, and no operator stopped it",),
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
            " clients.",
            "Workloads: ",
            "client_killed",
            "the suspect is ",
            ", with a confidence of 0.9",
            "cuda-mps-exporter incidents ",
        ),
    ),
    "a fault that a victim holds up": Case(
        f"{AT}:fault-held:15s",
        PAGER,
        "CudaMpsServerFault",
        "critical",
        TRAINING,
        ("Clients that block recovery: 1.", "The suspect is ", ", with a confidence of 0.9"),
    ),
    "a GPU that needs a reset": Case(
        f"{AT}:hardware-xid:15s", PAGER, "CudaMpsQuarantined", "critical", INFERENCE, ("reset",)
    ),
    "a server that is full": Case(
        f"{AT}:server-full:2s", TICKETS, "CudaMpsClientsRefused", "warning", INFERENCE, ("were refused",)
    ),
    "an exporter that is down": Case(None, PAGER, "CudaMpsExporterDown", "critical", None, ("MPS is not monitored",)),
}
DOWN = "an exporter that is down"
TWO_DAEMONS = (f"{AT}:daemon-restarts", "14s:server-full:2s")
"""Failures of two daemons of one node, the second two seconds (which stand for 40 s) after the first."""

Failures = tuple[str, ...]
TOGETHER: Sequence[Failures] = (
    ("session-held", "servers-crash", "bypass"),
    ("user-waits", "limits-drift", "memory-full"),
    ("nvml-fails", "contained-fault", "unknown-line"),
)
"""The other failures of the demo. Those of one node begin at one time, and affect different daemons, or a GPU."""
UNSCALED = {"daemon-keeps-dying", "noisy-neighbour"}
"""The watchdog's backoff and averages of a minute are not shortened, so promtool tests these (alerts/tests)."""
ENDING = tuple(name for name, case in CASES.items() if case.ends)


@dataclass(frozen=True, slots=True)
class Paged:
    """All messages of the night, once every case has been paged for and is over."""

    night: Environment
    nodes: dict[str, SimulatedNode]
    with_two_failures: SimulatedNode
    together: Mapping[Failures, SimulatedNode]
    inhibited_while_down: bool = False

    def firing(self, name: str) -> list[Message]:
        """Return the messages about a case's node that say that an alert fires."""
        return [message for message in self._messages(name) if message.firing]

    def resolved(self, name: str) -> list[Message]:
        """Return the messages about a case's node that say that an alert is over."""
        return [message for message in self._messages(name) if not message.firing]

    def alert(self, name: str) -> Alert:
        """Return the only alert of the first message about a case's node."""
        (alert,) = self.firing(name)[0].firing
        return alert

    def _messages(self, name: str) -> Sequence[Message]:
        return self.night.pager.about(self.nodes[name].instance)


@pytest.fixture(scope="module")
def paged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Paged]:
    """Run all cases at once, one node for each, until all have been paged for and are over.

    Prometheus is at work before the nodes with a plan start, so that it scrapes each before something happens.
    """
    with Environment(tmp_path_factory.mktemp("night")) as night:
        nodes = {DOWN: night.node()}
        night.scrape(nodes[DOWN])
        nodes |= {name: night.node(case.plan) for name, case in CASES.items() if case.plan is not None}
        with_two_failures = night.node(*TWO_DAEMONS)
        together = {failures: night.node(*map(_planned, failures)) for failures in TOGETHER}
        night.scrape(*nodes.values(), with_two_failures, *together.values())
        nodes[DOWN].kill()
        paged = Paged(night, nodes, with_two_failures, together)
        _wait_for_each(CASES, paged.firing)
        eventually(lambda: _sent_both(paged), within=PATIENCE_SECONDS, every=0.2)
        inhibited = _inhibits_a_fault(night, nodes[DOWN])
        nodes[DOWN].start()
        _wait_for_each(ENDING, paged.resolved)
        eventually(lambda: _all_over(paged), within=PATIENCE_SECONDS, every=0.2)
        yield replace(paged, inhibited_while_down=inhibited)


def _planned(failure: str) -> str:
    """Return the value of `--at` with the failure's default duration."""
    lasts = FAILURES[failure].lasts / fast_rules.FACTOR
    return f"{AT}:{failure}:{lasts:g}s" if lasts else f"{AT}:{failure}"


def _expected(failures: Failures) -> list[str]:
    return sorted(alert for each in failures if (alert := FAILURES[each].alert) is not None)


def _all_over(paged: Paged) -> None:
    for failures, node in paged.together.items():
        ended = sorted(
            alert.name
            for each in paged.night.pager.about(node.instance)
            for alert in each.alerts
            if alert.status == "resolved"
        )
        assert ended == _expected(failures)


def _sent_both(paged: Paged) -> None:
    sent = paged.night.pager.about(paged.with_two_failures.instance)
    assert {alert.labels["daemon"] for message in sent for alert in message.firing} >= {TRAINING, INFERENCE}


def _wait_for_each(names: Iterable[str], messages: Callable[[str], Sequence[Message]]) -> None:
    def all_came() -> None:
        assert [name for name in names if not messages(name)] == [], "no message about these"

    eventually(all_came, within=PATIENCE_SECONDS, every=0.2)


def _inhibits_a_fault(night: Environment, node: SimulatedNode) -> bool:
    """Send Alertmanager an alert of that node, and then its end; return whether it was held back."""
    fault = {"alertname": "CudaMpsFault", "job": JOB, "instance": node.instance, "severity": "warning"}
    night.alertmanager.send(fault)

    try:
        until(lambda: night.alertmanager.inhibited(fault))
    except AssertionError:
        return False
    finally:
        night.alertmanager.send(fault, ended=datetime.now(UTC))
    return True


@pytest.mark.parametrize("name", CASES)
class TestAPage:
    """The one message about each case."""

    def test_names_the_alert_the_receiver_the_node_and_the_daemon(self, paged: Paged, name: str) -> None:
        """So that the right people know where to look."""
        case, alert = CASES[name], paged.alert(name)
        assert (alert.name, alert.labels["severity"]) == (case.alert, case.severity)
        assert alert.labels["instance"] == paged.nodes[name].instance
        assert alert.labels.get("daemon") == case.daemon
        assert paged.firing(name)[0].receiver == case.receiver

    def test_is_readable(self, paged: Paged, name: str) -> None:
        """Every template was expanded, and to something."""
        annotations = paged.alert(name).annotations
        description = annotations["description"]
        assert paged.nodes[name].instance in annotations["summary"]
        for words in CASES[name].description_words:
            assert words in description
        for text in annotations.values():
            assert not any(left in text for left in ("<no value>", "{{", "}}", "error expanding", "%!"))

    def test_links_to_its_runbook(self, paged: Paged, name: str) -> None:
        """The exporter itself serves it; another exporter serves that of one that is down."""
        alert = paged.alert(name)
        reader = next(node for each, node in paged.nodes.items() if each != DOWN)
        assert reader.get(alert.annotations["runbook_url"]).startswith(f"# {alert.name}")

    def test_is_the_only_one(self, paged: Paged, name: str) -> None:
        """One message for each failure: what follows from it is not sent with it, nor again after its end."""
        case = CASES[name]
        sent = [(each.receiver, [alert.name for alert in each.firing]) for each in paged.firing(name)]
        assert sent == [(case.receiver, [case.alert])]


def test_failures_of_two_daemons_of_a_node_are_two_messages(paged: Paged) -> None:
    messages = paged.night.pager.about(paged.with_two_failures.instance)
    sent = sorted((alert.labels["daemon"], alert.name) for each in messages for alert in each.firing)
    assert sent == [(INFERENCE, "CudaMpsClientsRefused"), (TRAINING, "CudaMpsDaemonDied")]
    assert all(len(each.alerts) == 1 for each in messages)


@pytest.mark.parametrize("failures", TOGETHER, ids="+".join)
def test_each_of_several_failures_of_a_node_is_one_message(paged: Paged, failures: Failures) -> None:
    messages = [each.firing for each in paged.night.pager.about(paged.together[failures].instance) if each.firing]
    assert sorted(alert.name for firing in messages for alert in firing) == _expected(failures)
    assert all(len(firing) == 1 for firing in messages)


def test_covers_each_failure_of_the_demo() -> None:
    alone = {failure for failure in FAILURES for case in CASES.values() if failure in (case.plan or "").split(":")}
    assert alone.union(*TOGETHER) | UNSCALED == set(FAILURES)


def test_two_deaths_two_minutes_apart_are_two_messages(paged: Paged) -> None:
    """The first daemon is still dead. Its alert is neither repeated nor does it delay that of the second."""
    dead = {"alertname": "CudaMpsDaemonDown", "job": JOB, "instance": "two-deaths:10677", "severity": "critical"}
    sent: list[list[str]] = []
    for count, daemon in enumerate((TRAINING, INFERENCE), start=1):
        paged.night.alertmanager.send(dead | {"daemon": daemon})

        def is_sent(count: int = count) -> None:
            messages = paged.night.pager.about(dead["instance"])
            sent[:] = [[alert.labels["daemon"] for alert in each.firing] for each in messages]
            assert len(sent) >= count

        eventually(is_sent)
        time.sleep(120 / fast_rules.FACTOR)
    assert sent == [[TRAINING], [INFERENCE]]


@pytest.mark.parametrize("name", ENDING)
def test_resolution_is_sent_once_to_the_same_receiver(paged: Paged, name: str) -> None:
    ends = [(each.receiver, each.alerts[0].name) for each in paged.resolved(name)]
    assert ends == [(CASES[name].receiver, CASES[name].alert)]


def test_a_down_exporter_inhibits_other_alerts_of_its_node(paged: Paged) -> None:
    assert paged.inhibited_while_down
