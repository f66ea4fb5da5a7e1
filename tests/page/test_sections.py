"""The headline, faults, failure domains, the watchdog and the collectors of the page."""

import re
from dataclasses import replace
from functools import cache

import pytest

from exporter.model.incident import Clues, IncidentXid
from exporter.model.settings import Mode
from exporter.page.page import Page, sentence
from exporter.page.tables import domains
from exporter.report.node_status import MOST_PAST, status_document
from exporter.report.status_text import counts_text
from exporter.view import StatusInput
from exporter.watchdog.context import Policy
from tests.builders import AT, failure, idle, incident, look, mig, reduced, suspect, with_incidents
from tests.incidents.values import fault_kernels, launched
from tests.page.html_reader import Read, section
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

MOST_CARDS = 5

EXPECTED = {
    "idle": ("Well", "No problem is known.", "", ()),
    "no_daemon": ("Well", "No MPS control daemon is known, and none is expected.", "", ()),
    "nothing_collected": ("Not known yet", "The exporter has not collected anything yet.", "Wait a few seconds.", ()),
    "busy": (
        "Warning",
        "CUDA processes bypass MPS on GPU 1: PID 801 (jupyter-lab of carol).",
        "Restart the processes with CUDA_MPS_PIPE_DIRECTORY set to the daemon's directory.",
        (),
    ),
    "fault": (
        "Critical",
        (
            "MPS server 513 of /tmp/nvidia-mps has been in FAULT for 45 s; PID 601 blocks recovery;"
            " suspect: very likely PID 700 (python3 of alice, job 42)."
        ),
        "Do not use terminate_client: the daemon hangs then. What to do End the affected clients that are connected.",
        ("kill -KILL 601",),
    ),
    "dead": (
        "Critical",
        "MPS daemon /tmp/nvidia-mps has been down for 11 s, 3 clients ended with it.",
        "without MPS and without limits. What to do Start the daemon. This ends no client.",
        ("systemctl restart nvidia-cuda-mps.service",),
    ),
    "circuit_opened": (
        "Critical",
        "MPS daemon /tmp/nvidia-mps has been down for 11 s, 3 clients ended with it, restarted 4 times, circuit open.",
        "What to do Find out why the daemon failed and correct the cause.",
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


@cache
def page() -> Page:
    return Page({})


def shown(data: StatusInput, name: str) -> str:
    return section(page().node(data), name).replace("\N{NO-BREAK SPACE}", " ")


def test_shows_the_severity_and_the_remedy(subtests: pytest.Subtests) -> None:
    for name, (word, what, remedy, commands) in EXPECTED.items():
        with subtests.test(name=name):
            document = status_document(INPUTS[name]())

            assert shown(INPUTS[name](), "headline").startswith(f"{word} {what}")
            text = shown(INPUTS[name](), "problems")
            assert sentence(document) == what
            assert "".join(remedy.split("`")) in text
            assert all(command in text for command in commands)
            assert ("What to do" in text) == bool(remedy)
            assert text.startswith("The problem" if word != "Well" else "Nothing to do")


def test_lists_other_findings_by_severity() -> None:
    text = shown(fault(), "problems")
    others = ("2 more problems", "CUDA processes bypass MPS", "Exporter cannot read a log of MPS daemon")
    places = [text.index(each) for each in others]
    assert places == sorted(places)


def test_a_stalled_exporter_has_no_other_finding() -> None:
    assert "more problem" not in shown(replace(busy(), stalled_seconds=95.0), "problems")


def test_full_servers_are_one_finding() -> None:
    assert sentence(status_document(full(gpus=2))) == (
        "MPS server 500 of /run/mps/0 has no free client slot (48 of 48); the same applies to 1 more daemon."
    )


def test_commands_within_a_text_are_code() -> None:
    text = page().node(INPUTS["circuit_opened"]()).decode()
    assert "<code>cuda-mps-exporter resume /tmp/nvidia-mps</code>" in text
    assert "`" not in text


def test_counts_mig_instances_apart_from_gpus() -> None:
    assert counts_text(status_document(status_input(mig()))) == ("1 of 1 daemons up, 2 clients, 1 GPU, 2 MIG instances")


def test_an_open_fault_has_suspects_and_commands() -> None:
    text = shown(fault(), "faults")
    for words in (
        "fault by a client killed while its kernel ran on server 513 of /tmp/nvidia-mps",
        "0.96 PID 700 (python3 of alice, job 42)",
        "0.02 PID 601 (vllm of bob)",
        "a kernel runs",
        "PID 601 (vllm of bob) , for 44 s. This ends it: kill -KILL 601",
        "Affected 3 clients; 1 new client refused in the meantime",
    ):
        assert words in text


def test_a_past_fault_has_no_command() -> None:
    _, _, text = shown(fault(), "faults").partition("9 min 8 s ago")
    assert "recovered in 1.0 s" in text
    assert "unknown: no indication of a cause" in text
    assert "This ends it" not in text


def test_shows_the_last_faults_and_counts_the_others() -> None:
    (over,) = (each for each in fault().incidents if not each.open)
    many = tuple(replace(over, id=f"513-{number}") for number in range(10, MOST_PAST + 13))
    text = shown(replace(fault(), incidents=many), "faults")
    assert text.count("JSON of 513-") == MOST_CARDS + 1
    assert text.count("recovered in 1.0 s. Affected: PIDs 598 and 599") == MOST_PAST - MOST_CARDS
    assert "And 4 older" in text


def test_a_client_without_a_pid_has_no_command() -> None:
    (lasting,) = (each for each in fault().incidents if each.open)
    stay = next(iter(lasting.blocking.values()))
    text = shown(replace(fault(), incidents=(replace(lasting, blocking={-3: stay}),)), "faults")
    assert "an unknown PID , for 44 s" in text
    assert "This ends it" not in text


def test_shows_an_incident_of_an_unknown_daemon() -> None:
    stray = incident("9-1", daemon="/gone", stuck=True)
    text = shown(replace(no_daemon(), incidents=(stray,)), "faults")
    assert "on server 513 of /gone" in text
    assert "ends" not in text


def test_a_domain_names_the_clients_that_join_gpus() -> None:
    assert "A /tmp/nvidia-mps 3 GPUs 0 and 1 train.py (PID 600)" in shown(busy(), "clients")
    assert "2 (A)" in shown(busy(), "clients")


def test_a_single_client_has_no_domain_in_the_table() -> None:
    assert not domains(status_document(full(gpus=2, clients=1))).rows
    assert "Here each client has a domain of its own." in shown(full(gpus=2, clients=1), "clients")


def test_a_client_on_unknown_gpus_is_in_no_domain() -> None:
    unseen = status_input(replace(busy().node, gpus={}))
    assert not domains(status_document(unseen)).rows
    text = shown(unseen, "clients")
    assert ("The domain of 3 clients is unknown." in text, "domain of its own" in text) == (True, False)


def test_shows_what_it_would_do_if_it_observes() -> None:
    text = shown(dead(), "watchdog")
    assert "The watchdog only observes: it restarts nothing" in text
    assert "Restarts left" not in text
    assert "/tmp/nvidia-mps only observes idle" in text
    assert "in act mode, it would restart the daemon (down) restart (down): 1 observed" in text


def test_shows_that_it_acts() -> None:
    acting = replace(circuit_opened(), policy=Policy(mode=Mode.ACT))
    assert "Mode State Restarts left" in shown(acting, "watchdog")
    assert "/tmp/nvidia-mps acts circuit open 0" in shown(acting, "watchdog")
    assert '<b class="state critical">circuit open</b>' in page().node(acting).decode()


def test_an_idle_watchdog_of_a_failed_daemon_is_not_well() -> None:
    watchdogs = [status_document(each).daemons[0].watchdog for each in (status_input(idle()), dead())]
    assert [each.severity for each in watchdogs if each is not None] == ["well", "unknown"]


def test_reports_no_watchdog_or_no_expected_daemon() -> None:
    assert "No watchdog runs here." in shown(replace(busy(), policy=None), "watchdog")
    assert "No daemon is expected" in shown(no_daemon(), "watchdog")


def test_each_collector_has_an_age() -> None:
    text = shown(status_input(idle(), after=7.0), "collectors")
    assert [f"{name} works 7.0 s ago" in text for name in ("control", "log", "nvml", "process")] == [True] * 4


def test_a_fault_with_core_dumps_says_that_its_cause_may_have_got_success() -> None:
    dumped = incident("513-3", xids=(IncidentXid(at=AT, number=13, core_dump=True),))
    text = shown(status_input(with_incidents(dumped)), "faults")
    assert "with GPU core dumps on server" in text
    assert "Core dumps GPU core dumps were on: calls of the cause may have succeeded" in text


def test_a_fault_shows_the_kernels_in_flight_with_their_whole_names_and_the_last_launches() -> None:
    kernels = fault_kernels(600, launched("scale"), launched("<b>"))
    data = status_input(with_incidents(incident("513-3", suspect(600), clues=Clues(kernels=(kernels,)))))
    shown_kernels = "In flight PID 600: scale (no completed launch is known); <b> (no completed launch is known)"
    assert f"{shown_kernels} Launched PID 600: scale 12 ms before; <b> 12 ms before" in shown(data, "faults")
    assert "_Z5scalev\n_Z3<b>v" in Read(page().node(data)).all_of("title")


def test_a_failing_collector_has_its_error_and_a_growing_age() -> None:
    blind = status_input(reduced(look(problem=failure("no driver"), at=AT + 60), start=idle()).node)
    expected = r"nvml fails 1 min 1 s ago .* NVML: no driver. Check the driver with nvidia-smi"
    assert re.search(expected, shown(blind, "collectors"))


def test_a_log_that_cannot_be_followed_is_listed() -> None:
    assert shown(busy(), "collectors").endswith("fails server.log cannot be read: Permission denied")


def test_no_collectors_before_the_first_collection() -> None:
    assert shown(nothing_collected(), "collectors") == "Collectors Nothing was collected yet."
