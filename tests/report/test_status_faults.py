"""`status` with failure domains, open faults and past faults."""

from dataclasses import replace
from typing import Any

import pytest

from exporter.model.incident import ClientDetails, Incident, IncidentEnd, IncidentKind, RecoveryDelay, Refusal, Suspect
from exporter.model.node import Node
from exporter.model.reason import Reason, ReasonCode
from exporter.model.server import ServerState
from exporter.report.node_status import document_of
from exporter.report.remedy import Address
from exporter.report.status_text import table_lines
from exporter.report.text import text_of
from exporter.state.devices import failure_domains
from tests.builders import (
    AT,
    CLIENT,
    DAEMON,
    GPU,
    OTHER_GPU,
    SERVER,
    at_work,
    daemon_process,
    full,
    gpu_reading,
    idle,
    no_nvml,
    node,
    reduced,
    three_clients,
    with_living,
)
from tests.status import brief_of, details_of, incident_json, status_json, status_table

ADDRESS = Address(pipe_directory=DAEMON)

KILL = "kill -KILL 600"


def domain_column(present: Node) -> dict[str, str] | None:
    """The letter of each PID in the table; None where there is no such column."""
    header, *rows = (line.split() for line in text_of(table_lines(document_of(present), None)).splitlines())
    if "DOMAIN" not in header:
        return None
    return {row[3]: row[-1] for row in rows if row[0] in {*present.daemons, "none"}}


class TestDomains:
    """A letter for those who fall together."""

    def test_a_client_on_two_gpus_joins_their_domains(self) -> None:
        assert domain_column(three_clients()) == {"600": "A", "601": "A", "602": "A", "801": "-"}

    def test_separate_clients_have_different_letters(self) -> None:
        seen = (
            *at_work(600, 601, 602),
            *at_work(700, server=514, daemon="/run/other"),
            gpu_reading([600, 601, 700]),
            gpu_reading([602], gpu=OTHER_GPU, index=1),
        )
        present = reduced(*seen, start=node(DAEMON, "/run/other")).node
        assert domain_column(present) == {"600": "A", "601": "A", "602": "B", "700": "C"}

    def test_no_column_if_each_client_fails_alone(self) -> None:
        """The same without clients, and if the domains are unknown."""
        alone = reduced(*at_work(600, 601), gpu_reading([600]), gpu_reading([601], gpu=OTHER_GPU, index=1)).node
        assert [domain_column(each) for each in (alone, idle(), no_nvml())] == [None, None, None]

    def test_a_client_on_no_gpu_has_no_letter(self) -> None:
        readings = gpu_reading([600, 601]), gpu_reading(gpu=OTHER_GPU, index=1)
        assert domain_column(reduced(*at_work(600, 601, 602), *readings).node) == {"600": "A", "601": "A", "602": "-"}

    def test_two_letters_follow_z(self) -> None:
        gpus = [gpu_reading([1000 + index], gpu=f"GPU-{index}", index=index) for index in range(30)]
        beside = gpu_reading([1000, 1030], gpu="GPU-0")
        domain_names = domain_column(reduced(*at_work(*range(1000, 1031)), *gpus, beside).node)
        assert domain_names is not None
        assert [domain_names[str(1000 + index)] for index in (0, 25, 26, 27, 30)] == ["A", "Z", "AA", "AB", "A"]

    def test_names_the_clients_that_join_gpus(self) -> None:
        lines = status_table(three_clients()).splitlines()
        assert "domain A: 3 clients on GPUs 0 and 1 fail together: a fatal fault of one ends all" in lines
        assert any(
            line.startswith("  joined by 600 (train.py) on GPUs 0 and 1; a daemon for each GPU") for line in lines
        )
        assert "joined" not in status_table(full())

    def test_names_some_of_many_joining_clients(self) -> None:
        pids = range(1000, 1048)
        readings = [gpu_reading(pids, gpu=f"GPU-{index}", index=index) for index in range(8)]
        lines = status_table(reduced(*at_work(*pids), *readings).node).splitlines()
        (joined,) = (line for line in lines if "join" in line)
        assert joined.startswith("  joined by 1000 on GPUs 0, 1, 2, 3, 4, 5, 6 and 7, 1001 on ")
        assert " and 44 more; " in joined

    def test_does_not_warn_of_one_client_on_two_gpus(self) -> None:
        present = reduced(*at_work(600), gpu_reading([600]), gpu_reading([600], gpu=OTHER_GPU, index=1)).node
        assert "domain" not in status_table(present).lower()

    def test_domains_as_objects(self) -> None:
        """Each client has the name of its domain; null if it is unknown."""

        def of(present: Node) -> list[Any]:
            (server,) = status_json(present)["daemons"][0]["servers"]
            return [client["failure_domain"] for client in server["clients"]]

        assert of(three_clients()) == ["A", "A", "A"]
        assert status_json(three_clients())["failure_domains"] == [
            {
                "name": "A",
                "daemon": DAEMON,
                "clients": [600, 601, 602],
                "gpus": [GPU, OTHER_GPU],
                "upper_bound": False,
            }
        ]
        assert of(no_nvml()) == [None, None, None]


def faulted_client(pid: int = CLIENT, **known: Any) -> ClientDetails:
    return ClientDetails(pid=pid, client=f"{pid}-1", **{"user": "alice", "command": "train.py", **known})


def incident(**changes: Any) -> Incident:
    """A fault that struck a minute ago, and is held up by one client."""
    made = Incident(
        id="one",
        daemon=DAEMON,
        server=SERVER,
        started_at=AT - 60,
        detected_at=AT - 60,
        kind=IncidentKind.MEMORY,
        gpus=(GPU,),
        affected=(600, 601),
        affected_confirmed=True,
        client_details={600: faulted_client(), 601: faulted_client(601, user="bob", command="vllm")},
        suspects=(
            Suspect(client=faulted_client(601), confidence=0.35, indications=(Reason(ReasonCode.NAMED_BY_LOG),)),
        ),
        refused=(Refusal(at=AT - 30, pid=777),),
        refused_count=1,
        blocking={600: RecoveryDelay(since=AT - 60), 601: RecoveryDelay(since=AT - 60, until=AT - 50)},
    )
    return replace(made, **changes)


OVER = incident(id="two", ended_at=AT - 59, ending=IncidentEnd.RECOVERED, blocking={}, settled=True, end_reported=True)


def with_faults(*incidents: Incident, start: Node | None = None, state: ServerState = ServerState.FAULT) -> Node:
    present = reduced(*at_work(600, 601), gpu_reading([600, 601])).node if start is None else start
    daemon = present.daemons[DAEMON]
    servers = {SERVER: replace(daemon.servers[SERVER], state=state)}
    return replace(
        present,
        daemons={DAEMON: replace(daemon, servers=servers)},
        processes=with_living(present, faulted_client(600), faulted_client(601)).processes,
        incidents={each.id: each for each in incidents},
    )


class TestOpenFaults:
    """Open faults: affected clients, suspects, and the commands that end blocking clients."""

    def test_each_open_fault_has_a_paragraph(self) -> None:
        """After an empty line, as the telling of faults has it."""
        others = replace(incident(), id="three", server=SERVER + 1)
        text = status_table(with_faults(incident(), others))
        for each in (incident(), others):
            assert "\n\n" + text_of(details_of(each, AT)) in text
        assert text.count(KILL) == 2

    def test_shows_affected_suspected_and_refused_clients(self) -> None:
        """By PID; the suspect with its confidence as a number."""
        text = text_of(details_of(incident(), AT, ADDRESS))
        for words in ("600", "601", "train.py", "vllm", "bob", "0.35", "the log names it", "777"):
            assert words in text

    def test_shows_the_command_that_ends_a_blocking_client(self) -> None:
        """An exited client has no command. The command does not use MPS, which would hang (measured, R580)."""
        text = status_table(with_faults(incident()))
        assert KILL in text
        assert not any(line.endswith("terminate_client") for line in text.splitlines())
        assert "kill -KILL 601" not in text

    def test_quotes_the_directory(self) -> None:
        """The user who starts a daemon chooses the directory, and root may paste the command."""
        stuck = replace(incident(), stuck=True)
        text = text_of(
            details_of(
                stuck,
                AT,
                Address(pipe_directory="/tmp/$(reboot); x 'y", server_ends={SERVER: f"shutdown_server {SERVER} -f"}),
            )
        )
        assert "CUDA_MPS_PIPE_DIRECTORY='/tmp/$(reboot); x '\"'\"'y' nvidia" in text

    def test_writes_no_pids_for_a_daemon_in_another_pid_namespace(self) -> None:
        """These PIDs may belong to other processes there."""
        present = with_faults(replace(incident(), stuck=True))
        elsewhere = replace(
            present.daemons[DAEMON],
            runtime=replace(present.daemons[DAEMON].runtime, in_foreign_namespace=True, process=daemon_process()),
        )
        text = status_table(replace(present, daemons={DAEMON: elsewhere}))
        assert "shutdown_server" not in text
        assert KILL in status_table(replace(with_faults(incident()), daemons={DAEMON: elsewhere}))


class TestFaultsThatAreOver:
    """A line each."""

    def test_lists_the_latest_fault_first(self) -> None:
        older = replace(OVER, id="older", started_at=AT - 900, detected_at=AT - 900, ended_at=AT - 890)
        lines = status_table(with_faults(older, OVER, state=ServerState.ACTIVE)).splitlines()
        assert lines[-4:] == ["", "Faults and deaths of the last hour:", brief_of(OVER, AT), brief_of(older, AT)]

    def test_shows_nothing_without_past_faults(self) -> None:
        assert "last hour" not in status_table(three_clients())
        assert "last hour" not in status_table(with_faults(incident()))


class TestElsewhere:
    """The same for programs."""

    def test_faults_as_objects(self) -> None:
        """In the order in which they were found, with the commands that end who holds one up."""
        assert status_json(with_faults(OVER, incident()))["incidents"] == [
            incident_json(OVER, AT),
            incident_json(incident(), AT, replace(ADDRESS, ending={"600-1": (600,)})),
        ]


def test_computes_domains_a_constant_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    present, asked = full(), []

    def counted(present: Node, daemon: Any) -> Any:
        asked.append(daemon.name)
        return failure_domains(present, daemon)

    monkeypatch.setattr("exporter.report.node_status.failure_domains", counted)
    document_of(present)
    assert 0 < len(asked) <= 3
