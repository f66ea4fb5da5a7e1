"""The headline: whether the node is well, in one sentence, and if not, what to do next."""

from dataclasses import replace

import pytest

from exporter.core.watchdog.orders import Mandate, Orders
from exporter.model.daemon import DaemonState
from exporter.model.limits import Limits
from exporter.model.observation import GpuReading
from exporter.model.watch import Watch, WatchState
from exporter.model.xids import XidDemand, Xids
from exporter.page.headline import headline
from exporter.page.level import Level
from exporter.page.troubles import troubles
from tests.builders import AT, DAEMON, GPU, drifted, idle, look, refusal, told
from tests.page.scenes import SCENES, fault, full, sight

TOLD = {
    "idle": ("Well", "1 daemon up, 0 clients on 1 GPU.", "", ()),
    "nobody": ("Well", "No MPS control daemon runs here, and none is expected.", "", ()),
    "nothing": ("Not known yet", "Nothing has been seen yet.", "wait some seconds", ()),
    "busy": (
        "Needs a look",
        "1 process runs beside MPS on GPU 1: without limits, and taking turns with all others.",
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
        "the watchdog only observes; it would restart: crashed; by hand, this does",
        ("systemctl restart nvidia-cuda-mps.service",),
    ),
    "given_up": (
        "Not well",
        "Daemon /tmp/nvidia-mps: crashed for 10 s.",
        (
            "the watchdog says: its circuit is open for 9.0 s: it is not restarted until"
            " `cuda-mps-exporter resume /tmp/nvidia-mps`"
        ),
        ("cuda-mps-exporter resume /tmp/nvidia-mps",),
    ),
    "paused": (
        "Needs a look",
        "The driver was let go of, so that nothing is known of the GPUs.",
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
    assert [each.level for each in troubles(fault())] == [Level.GRAVE, Level.CARE, Level.CARE]
    assert [each.what.partition(":")[0] for each in headline(fault()).also] == [
        "1 process runs beside MPS on GPU 1",
        "not all can be seen",
    ]


def test_of_two_faults_the_one_that_somebody_can_end_comes_first() -> None:
    shown = fault()
    waits = replace(shown.incidents[0], id="513-0", blocking={})
    both = replace(shown, node=replace(shown.node, incidents={waits.id: waits, **shown.node.incidents}))

    assert [bool(each.commands) for each in troubles(both)[:2]] == [True, False]


def test_a_server_that_stays_in_fault_with_nobody_on_it_is_itself_ended() -> None:
    shown = fault()
    stuck = replace(shown.incidents[0], blocking={}, stuck=True)
    found = headline(replace(shown, node=replace(shown.node, incidents={stuck.id: stuck})))

    assert found.commands == (
        'echo "shutdown_server 513 -f" | CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps nvidia-cuda-mps-control',
    )


def test_servers_that_are_full_are_one_trouble() -> None:
    assert headline(full(gpus=2)).sentence == (
        "Server 500 of /run/mps/0 has 48 of 48 clients, and 1 more server is full: whoever comes next is turned away."
    )


def test_a_limit_that_has_drifted_comes_with_the_command_that_sets_it() -> None:
    watched = drifted()
    found = next(each for each in troubles(sight(watched)) if "limit" in each.what.split())
    assert found.commands
    assert all(command.endswith("nvidia-cuda-mps-control") for command in found.commands)
    within = replace(watched, watches={DAEMON: Watch(wanted=Limits())})
    assert not any("limit" in each.what.split() for each in troubles(sight(within)))


def test_a_gpu_that_needs_a_reset_is_grave_and_no_matter_of_mps() -> None:
    demanding = replace(idle(), xids=Xids(demands={GPU: XidDemand(at=AT, action="RESET_GPU")}))

    assert headline(sight(demanding)).sentence == "GPU 0 needs RESET_GPU, as its last Xid says."


def test_what_cannot_be_seen_is_never_told_as_well() -> None:
    blind = told(look(problem="NVML: no driver", at=AT + 1), start=idle()).node
    unread = told(GpuReading(at=AT + 1, gpu=GPU, problem="GPU is lost"), start=idle()).node

    assert headline(sight(blind)).sentence == "Not all can be seen: nvml: NVML: no driver."
    assert "GPU is lost" in headline(sight(unread)).sentence


def test_a_daemon_that_nobody_expects_pages_nobody_when_it_goes() -> None:
    gone = replace(idle().daemons[DAEMON], expected=False, state=DaemonState.ABSENT)
    found = headline(sight(replace(idle(), daemons={DAEMON: gone})))

    assert (found.level, found.next) == (Level.CARE, "nobody expects it: nothing, unless you miss it")


def test_a_session_that_somebody_holds_open_is_his_to_close() -> None:
    held = told(refusal(at=AT + 1), refusal(at=AT + 10), start=idle()).node
    assert held.daemons[DAEMON].state is DaemonState.HELD

    assert headline(sight(held)).next == "whoever has nvidia-cuda-mps-control open there must close it"


def test_a_daemon_that_answers_but_would_not_be_restarted_any_more_is_told() -> None:
    watched = replace(idle(), watches={DAEMON: Watch(state=WatchState.CIRCUIT_OPEN, opened_at=AT)})

    assert headline(sight(watched)).commands == ("cuda-mps-exporter resume /tmp/nvidia-mps",)


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (("start-mps", "--now"), ("start-mps --now",)),
        (("start", "a b"), ("start 'a b'",)),
        (("x" * 600,), ()),
        (("a\nb",), ()),
        ((), ()),
    ],
    ids=["plain", "quoted", "too long to be whole", "more than a line", "none"],
)
def test_the_command_that_starts_a_daemon_is_shown_whole_or_not_at_all(
    command: tuple[str, ...], shown: tuple[str, ...]
) -> None:
    orders = Orders(mandates={DAEMON: Mandate(command=command)})

    assert headline(replace(SCENES["dead"](), orders=orders)).commands == shown
