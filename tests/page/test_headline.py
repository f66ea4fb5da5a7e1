"""The headline: whether the node is well, in one sentence, and if not, what to do next."""

import pytest

from exporter.page.headline import headline
from tests.page.scenes import SCENES, fault, full

TOLD = {
    "idle": ("Well", "1 of 1 daemons up, 0 clients, 1 GPU.", "", ()),
    "nobody": ("Well", "No MPS control daemon runs here, and none is expected.", "", ()),
    "nothing": ("Not known yet", "Nothing has been seen yet.", "wait some seconds", ()),
    "busy": (
        "Needs a look",
        "1 process bypasses MPS on GPU 1: no limit holds there, and all others wait their turn.",
        "have it started again with CUDA_MPS_PIPE_DIRECTORY set to the daemon's directory",
        (),
    ),
    "fault": (
        "Not well",
        (
            "Server 513 of /tmp/nvidia-mps has been in FAULT for 45 s, held up by 1 client;"
            " suspected: very likely PID 700 (python3 of alice, job 42)."
        ),
        "nobody else can use it until these have exited; end them",
        ("kill -KILL 601",),
    ),
    "dead": (
        "Not well",
        "Daemon /tmp/nvidia-mps: crashed for 10 s.",
        "the watchdog only observes; it would restart: crashed; to do this by hand, run",
        ("systemctl restart nvidia-cuda-mps.service",),
    ),
    "given_up": (
        "Not well",
        "Daemon /tmp/nvidia-mps: crashed for 10 s, restarted 4 times, circuit open.",
        (
            "the watchdog says: its circuit is open for 9.0 s: it is not restarted until"
            " `cuda-mps-exporter resume /tmp/nvidia-mps`"
        ),
        ("cuda-mps-exporter resume /tmp/nvidia-mps",),
    ),
    "paused": (
        "Needs a look",
        "Paused: the driver is closed, so that nothing is known of the GPUs.",
        "when the work on them is done, resume",
        ("cuda-mps-exporter resume",),
    ),
    "standing_still": (
        "Not well",
        "The exporter has stood still for 1 min 35 s, so that nothing below is current.",
        "restart it",
        ("systemctl restart cuda-mps-exporter",),
    ),
}


@pytest.mark.parametrize("scene", TOLD)
def test_it_says_whether_the_node_is_well_and_what_to_do_next(scene: str) -> None:
    found = headline(SCENES[scene]())

    assert (found.word, found.sentence, found.next, found.commands) == TOLD[scene]


def test_all_else_that_is_the_matter_stands_below_the_gravest_first() -> None:
    assert [each.what.partition(":")[0] for each in headline(fault()).also] == [
        "1 process bypasses MPS on GPU 1",
        "not all can be seen",
    ]


def test_servers_that_are_full_are_one_trouble() -> None:
    assert headline(full(gpus=2)).sentence == (
        "Server 500 of /run/mps/0 has 48 of 48 clients, and 1 more server is full: whoever comes next is turned away."
    )
