"""The headline: whether the node is well, in one sentence, and if not, what to do next."""

import pytest

from exporter.page.cards import headline
from exporter.page.page import Page
from exporter.report.status_view import status_view
from tests.page.scenes import SCENES, fault, full

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
    for scene in EXPECTED:
        with subtests.test(scene=scene):
            found = headline(status_view(SCENES[scene]()))

            remedy = ("", ()) if found.finding is None else (found.finding.remedy, found.finding.commands)
            assert (found.word, found.sentence, *remedy) == EXPECTED[scene]


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
    text = Page({}).node(SCENES["circuit_opened"]()).decode()
    assert "<code>cuda-mps-exporter resume /tmp/nvidia-mps</code>" in text
    assert "`" not in text
