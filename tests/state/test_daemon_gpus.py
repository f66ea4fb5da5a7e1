"""Which GPUs a daemon serves, and on which of them a process bypasses MPS."""

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
    """NVML reads two GPUs; on each, a process bypasses MPS."""
    return [
        reading
        for second in seconds
        for reading in (
            gpu_reading([CLIENT], beside=[STRANGER], at=AT + second),
            gpu_reading(server=None, beside=[STRANGER + 1], gpu=OTHER_GPU, index=1, at=AT + second),
        )
    ]


def has(*gpus: str, at: float = AT) -> Observation:
    """The daemon lists its GPUs."""
    rows = "".join(f"{ordinal},0000:0{ordinal}.06.00,{gpu},NVIDIA H200,N/A\n" for ordinal, gpu in enumerate(gpus))
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
def test_no_process_bypasses_a_daemon_on_a_gpu_that_it_does_not_serve(
    gpus: tuple[str, ...], expected: Mapping[str, tuple[int, ...]]
) -> None:
    """Device nodes may confine a container, although its environment does not."""
    assert bypassing(reduced(*at_work(CLIENT), has(*gpus), *on_both(5, 7)).node) == expected


def test_an_ordinal_in_the_environment_may_be_another_gpu_here() -> None:
    confined = reduced(daemon_process(), *at_work(CLIENT)).node
    visible = DaemonFound(at=AT, daemon=DAEMON, pipe_directory=DAEMON, log_directory="", visible_devices="0")
    story = reduced(visible, has(OTHER_GPU), *on_both(5, 7), start=confined)
    assert bypassing(story.node) == {OTHER_GPU: (STRANGER + 1,)}


@pytest.mark.parametrize("answer", [(), (reply(ASKED, f'Unknown command "{ASKED}"\n'),)], ids=("not asked", "in vain"))
def test_without_a_list_of_devices_the_environment_decides(answer: tuple[Observation, ...]) -> None:
    story = reduced(*at_work(CLIENT), *answer, *on_both(5, 7))
    assert bypassing(story.node) == {GPU: (STRANGER,), OTHER_GPU: (STRANGER + 1,)}


def test_a_list_of_devices_corrects_bypassing_processes() -> None:
    story = reduced(*at_work(CLIENT), *on_both(5, 7), has(GPU, at=AT + 8), *on_both(9))
    assert {uuid: gpu.bypassing for uuid, gpu in story.node.gpus.items()} == {GPU: (STRANGER,), OTHER_GPU: ()}


def test_an_ended_daemon_retains_its_gpus() -> None:
    gone = exited(CONTROL, at=AT + 4)
    story = reduced(daemon_process(), *at_work(CLIENT), has(GPU), gone, *on_both(5, 7, 9))
    assert [event.pid for event in story.of(EventName.PROCESS_BYPASSING)] == [STRANGER]


def test_a_new_daemon_has_its_own_gpus() -> None:
    gone, back = exited(CONTROL, at=AT + 4), daemon_process(CONTROL + 1, at=AT + 5)
    assert reduced(daemon_process(), *at_work(CLIENT), has(GPU), gone, back).daemon.runtime.devices == {}


def test_a_daemon_that_never_ran_has_the_gpus_of_its_unit() -> None:
    """The environment of a running daemon has precedence."""
    living = replace(daemon_process(), environment={"CUDA_VISIBLE_DEVICES": GPU})
    unit = DaemonFound(
        at=AT, daemon=DAEMON, pipe_directory=DAEMON, log_directory="", expected=True, visible_devices=OTHER_GPU
    )
    down = reduced(unit, reply("get_server_list", exit_code=1, stderr="Cannot find MPS control daemon process\n")).node
    assert bypassing(reduced(*on_both(5, 7), start=down).node) == {OTHER_GPU: (STRANGER + 1,)}
    assert reduced(living, unit).daemon.runtime.visible_devices == GPU
