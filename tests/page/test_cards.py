"""The headline, faults, failure domains, the watchdog and the collectors of the page."""

from dataclasses import replace

import pytest

from exporter.model.settings import Mode
from exporter.page.cards import MOST_PAST, collectors, failure_domains, faults, headline, watchdog
from exporter.page.page import Page
from exporter.report.problem import Severity
from exporter.report.status_view import status_view
from exporter.watchdog.context import Policy
from tests.builders import AT, failure, idle, incident, look, reduced
from tests.page.inputs import (
    INPUTS,
    busy,
    circuit_opened,
    dead,
    fault,
    full,
    no_daemon,
    nothing_collected,
    status_input,
)

EXPECTED = {
    "idle": ("Well", "1 of 1 daemons up, 0 clients, 1 GPU.", "", ()),
    "no_daemon": ("Well", "No MPS control daemon runs here, and none is expected.", "", ()),
    "nothing_collected": ("Not known yet", "The exporter has not collected anything yet.", "Wait a few seconds.", ()),
    "busy": (
        "Warning",
        "CUDA processes bypass MPS on GPU 1: 1 process.",
        "Restart the processes with CUDA_MPS_PIPE_DIRECTORY set to the daemon's directory.",
        (),
    ),
    "fault": (
        "Critical",
        (
            "MPS server 513 of /tmp/nvidia-mps has been in FAULT for 45 s; 1 client blocks recovery;"
            " suspect: very likely PID 700 (python3 of alice, job 42)."
        ),
        (
            "End the clients that the fault hit and that still run. Do not restart the daemon, and do not use "
            "terminate_client (protocol 3: client terminate)."
        ),
        ("kill -KILL 601",),
    ),
    "dead": (
        "Critical",
        "MPS daemon /tmp/nvidia-mps has been down for 11 s.",
        (
            "The watchdog only observes: would restart: crashed. Start the daemon. Then restart the "
            "processes that bypass MPS."
        ),
        ("systemctl restart nvidia-cuda-mps.service",),
    ),
    "circuit_opened": (
        "Critical",
        "MPS daemon /tmp/nvidia-mps has been down for 11 s, restarted 4 times, circuit open.",
        (
            "The watchdog: restarts suspended for 9.0 s (circuit open), until an operator resumes it."
            " Find out why the daemon failed and correct the cause. Then resume restarts."
        ),
        ("cuda-mps-exporter resume /tmp/nvidia-mps", "systemctl restart nvidia-cuda-mps.service"),
    ),
    "paused": (
        "Warning",
        "CUDA MPS exporter is paused.",
        "When the work on the driver is done, run `cuda-mps-exporter resume` on the node.",
        ("cuda-mps-exporter resume",),
    ),
    "stalled": (
        "Critical",
        "The exporter has been stalled for 1 min 35 s; the data below is not current.",
        "Restart the exporter. No client is affected.",
        ("systemctl restart cuda-mps-exporter",),
    ),
}


def test_shows_the_severity_and_the_remedy(subtests: pytest.Subtests) -> None:
    for name in EXPECTED:
        with subtests.test(name=name):
            found = headline(status_view(INPUTS[name]()))

            remedy = ("", ()) if found.finding is None else (found.finding.remedy, found.finding.commands)
            assert (found.word, found.sentence, *remedy) == EXPECTED[name]


def test_lists_other_findings_by_severity() -> None:
    assert [each.text.partition(":")[0] for each in headline(status_view(fault())).also] == [
        "CUDA processes bypass MPS on GPU 1",
        "Exporter cannot read a log of MPS daemon /tmp/nvidia-mps",
    ]


def test_full_servers_are_one_finding() -> None:
    assert headline(status_view(full(gpus=2))).sentence == (
        "MPS server 500 of /run/mps/0 has no free client slot (48 of 48), 1 more server is full."
    )


def test_commands_within_a_text_are_code() -> None:
    text = Page({}).node(INPUTS["circuit_opened"]()).decode()
    assert "<code>cuda-mps-exporter resume /tmp/nvidia-mps</code>" in text
    assert "`" not in text


def test_an_open_fault_has_suspects_and_commands() -> None:
    (found,) = faults(status_view(fault())).open
    assert found.what == "fault by a client killed while its kernel ran on server 513 of /tmp/nvidia-mps"
    assert [(each.confidence, each.client) for each in found.suspects] == [
        ("0.96", "PID 700 (python3 of alice, job 42)"),
        ("0.02", "PID 601 (vllm of bob)"),
    ]
    assert "a kernel runs" in found.suspects[0].indications
    assert [(each.client, each.duration, each.command) for each in found.blockers] == [
        ("PID 601 (vllm of bob)", "44 s", "kill -KILL 601")
    ]
    assert (found.affected, found.refused) == ("3 clients", "1 new client refused in the meantime")


def test_a_past_fault_has_no_command() -> None:
    (found,) = faults(status_view(fault())).past
    assert (found.state, found.blockers, found.stuck) == ("recovered in 1.0 s", (), None)
    assert found.verdict == "unknown: no indication of a cause"


def test_shows_the_last_faults_and_counts_the_others() -> None:
    (over,) = (each for each in fault().incidents if not each.open)
    many = tuple(replace(over, id=f"513-{number}") for number in range(MOST_PAST + 3))
    found = faults(status_view(replace(fault(), incidents=many)))
    assert (len(found.past), found.older) == (MOST_PAST, 3)


def test_a_client_without_a_pid_has_no_command() -> None:
    (lasting,) = (each for each in fault().incidents if each.open)
    stay = next(iter(lasting.blocking.values()))
    found = faults(status_view(replace(fault(), incidents=(replace(lasting, blocking={-3: stay}),))))
    assert [(each.client, each.command) for each in found.open[0].blockers] == [("an unknown PID", None)]


def test_shows_an_incident_of_an_unknown_daemon() -> None:
    stray = incident("9-1", daemon="/gone", stuck=True)
    (found,) = faults(status_view(replace(no_daemon(), incidents=(stray,)))).open
    assert found.stuck is None


def test_clients_are_in_the_column_of_their_gpu_and_bridges_join_gpus() -> None:
    (box,) = failure_domains(status_view(busy())).boxes
    assert (box.letter, box.clients, box.gpus) == ("A", "3 clients", "GPUs 0 and 1")
    assert [(each.name, [who.pid for who in each.chips]) for each in box.columns] == [
        ("GPU 0", ["601"]),
        ("GPU 1", ["602"]),
    ]
    assert [(each.process.pid, each.before, each.span, each.after) for each in box.bridges] == [("600", 0, 2, 0)]


def test_names_the_first_of_many() -> None:
    found = failure_domains(status_view(full(gpus=2)))
    assert [(len(box.columns[0].chips), box.columns[0].more) for box in found.boxes] == [(6, 42), (6, 42)]
    assert (found.alone, found.unknown) == (0, 0)


def test_a_single_client_has_no_box() -> None:
    assert failure_domains(status_view(full(gpus=2, clients=1))).alone == 2
    assert failure_domains(status_view(full(gpus=2, clients=1))).boxes == ()


def test_a_client_on_unknown_gpus_is_in_no_box() -> None:
    unseen = replace(busy().node, gpus={})
    found = failure_domains(status_view(status_input(unseen)))
    assert (found.boxes, found.alone, found.unknown) == ((), 0, 3)


def test_shows_what_it_would_do_if_it_observes() -> None:
    (row,) = watchdog(status_view(dead())).rows
    assert (row.mode, row.state, row.next, row.restarts) == (
        "observes",
        "idle",
        "would restart: crashed",
        "5 restarts left",
    )
    assert row.counts == ("restart (crashed): 1 observed",)


def test_shows_that_it_acts() -> None:
    (row,) = watchdog(status_view(replace(circuit_opened(), policy=Policy(mode=Mode.ACT)))).rows
    assert (row.mode, row.state, row.severity, row.restarts) == (
        "acts",
        "circuit open",
        Severity.CRITICAL,
        "0 restarts left",
    )


def test_reports_no_watchdog_or_no_expected_daemon() -> None:
    assert not watchdog(status_view(replace(busy(), policy=None))).exists
    assert watchdog(status_view(no_daemon())).rows == ()


NO_DRIVER = "NVML: no driver. Check the driver with nvidia-smi"


def test_each_collector_has_an_age() -> None:
    assert [(row.name, row.state, row.age) for row in collectors(status_view(status_input(idle(), after=7.0)))] == [
        (name, "works", "7.0 s ago") for name in ("control", "log", "nvml", "process")
    ]


def test_a_failing_collector_has_its_error_and_a_growing_age() -> None:
    blind = status_input(reduced(look(problem=failure("no driver"), at=AT + 60), start=idle()).node)
    row = next(row for row in collectors(status_view(blind)) if row.name == "nvml")
    assert (row.severity, row.state, row.age) == (
        Severity.WARNING,
        NO_DRIVER,
        "1 min 1 s ago",
    )


def test_a_log_that_cannot_be_followed_is_listed() -> None:
    assert collectors(status_view(busy()))[-1].state == "server.log cannot be read: Permission denied"


def test_no_collectors_before_the_first_collection() -> None:
    assert collectors(status_view(nothing_collected())) == ()
