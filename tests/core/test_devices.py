"""Which GPUs a daemon serves, and on which nobody is beside it."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from exporter.model.event import EventName
from exporter.model.node import Node
from exporter.model.observation import DaemonFound, Observation
from tests.builders import (
    AT,
    CLIENT,
    CONTROL,
    DAEMON,
    GPU,
    OTHER_GPU,
    at_work,
    daemon_process,
    exited,
    gpu_reading,
    reduced,
    reply,
)

STRANGER = 801
ASKED = "device_query --csv"


def on_both(*seconds: float) -> list[Observation]:
    """NVML reads two GPUs; a process runs beside MPS on each."""
    return [
        reading
        for second in seconds
        for reading in (
            gpu_reading([CLIENT], beside=[STRANGER], at=AT + second),
            gpu_reading(server=None, beside=[STRANGER + 1], gpu=OTHER_GPU, index=1, at=AT + second),
        )
    ]


def has(*gpus: str, at: float = AT) -> Observation:
    """The daemon tells which GPUs it has."""
    rows = "".join(f"{ordinal},0000:00.06.00,{gpu},NVIDIA H200,N/A\n" for ordinal, gpu in enumerate(gpus))
    return reply(ASKED, f"Default\nDevice Ordinal,PCI IDs,UUID,Name,Attributes\n{rows}", at=at)


def bypassing(present: Node) -> Mapping[str, tuple[int, ...]]:
    return {uuid: gpu.bypassing for uuid, gpu in present.gpus.items() if gpu.bypassing_known}


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ((GPU,), {GPU: (STRANGER,)}),
        ((OTHER_GPU,), {OTHER_GPU: (STRANGER + 1,)}),
        ((GPU, OTHER_GPU), {GPU: (STRANGER,), OTHER_GPU: (STRANGER + 1,)}),
    ],
)
def test_nobody_is_beside_a_daemon_on_a_gpu_that_it_does_not_have(
    gpus: tuple[str, ...], expected: Mapping[str, tuple[int, ...]]
) -> None:
    """A container's device nodes confine it, and its environment says nothing of that."""
    assert bypassing(reduced(*at_work(CLIENT), has(*gpus), *on_both(5, 7)).node) == expected


def test_an_ordinal_in_its_environment_may_be_another_gpu_here() -> None:
    confined = reduced(daemon_process(), *at_work(CLIENT)).node
    visible = DaemonFound(at=AT, daemon=DAEMON, pipe_directory=DAEMON, log_directory="", visible_devices="0")
    story = reduced(visible, has(OTHER_GPU), *on_both(5, 7), start=confined)
    assert bypassing(story.node) == {OTHER_GPU: (STRANGER + 1,)}


@pytest.mark.parametrize("answer", [(), (reply(ASKED, f'Unknown command "{ASKED}"\n'),)], ids=("not asked", "in vain"))
def test_one_that_does_not_tell_is_judged_by_what_it_may_see(answer: tuple[Observation, ...]) -> None:
    story = reduced(*at_work(CLIENT), *answer, *on_both(5, 7))
    assert bypassing(story.node) == {GPU: (STRANGER,), OTHER_GPU: (STRANGER + 1,)}


def test_who_was_called_bypassing_before_it_told_is_so_no_more() -> None:
    story = reduced(*at_work(CLIENT), *on_both(5, 7), has(GPU, at=AT + 8), *on_both(9))
    assert {uuid: gpu.bypassing for uuid, gpu in story.node.gpus.items()} == {GPU: (STRANGER,), OTHER_GPU: ()}


def test_after_its_end_those_are_its_gpus_that_it_had() -> None:
    gone = exited(CONTROL, at=AT + 4)
    story = reduced(daemon_process(), *at_work(CLIENT), has(GPU), gone, *on_both(5, 7, 9))
    assert [event.pid for event in story.of(EventName.PROCESS_BYPASSING)] == [STRANGER]


def test_the_next_daemon_has_its_own() -> None:
    gone, back = exited(CONTROL, at=AT + 4), daemon_process(CONTROL + 1, at=AT + 5)
    assert reduced(daemon_process(), *at_work(CLIENT), has(GPU), gone, back).daemon.runtime.devices == {}


def test_one_that_was_never_there_has_those_that_its_unit_leaves_it() -> None:
    """What a living one has in its environment outweighs that."""
    living = replace(daemon_process(), environment={"CUDA_VISIBLE_DEVICES": GPU})
    unit = DaemonFound(
        at=AT, daemon=DAEMON, pipe_directory=DAEMON, log_directory="", expected=True, visible_devices=OTHER_GPU
    )
    down = reduced(unit, reply("get_server_list", exit_code=1, stderr="Cannot find MPS control daemon process\n")).node
    assert bypassing(reduced(*on_both(5, 7), start=down).node) == {OTHER_GPU: (STRANGER + 1,)}
    assert reduced(living, unit).daemon.runtime.visible_devices == GPU
