"""A GPU that must be reset is not mended by a restart of MPS."""

from collections.abc import Iterable

import pytest

from exporter.model.event import EventName
from exporter.model.observation import GpuEvent, KernelRecord, Observation
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import Mode
from exporter.model.watchdog import WatchdogPhase
from tests.builders import DAEMON, GPU, OTHER_GPU, gpu_reading, look, reply
from tests.watchdog.watched_daemon import DEATH, Post, alive, dies, hangs

GPUS = (gpu_reading(pci_bus_id="00000000:00:06.0"), gpu_reading(gpu=OTHER_GPU, index=1, pci_bus_id="00000000:00:07.0"))
QUARANTINE = (EventName.DAEMON_QUARANTINED, EventName.DAEMON_RELEASED)


def xid(number: int, *, at: float = DEATH, gpu: str = GPU) -> GpuEvent:
    """NVML tells of an Xid."""
    return GpuEvent(at=at, type=8, xid=number, gpu=gpu)


def recovery(action: str, *, at: float = DEATH) -> KernelRecord:
    """The kernel's log tells what the first GPU needs."""
    text = f"NVRM: Xid (PCI:0000:00:06): 154, GPU recovery action changed from 0x0 (None) to {action}"
    return KernelRecord(at=at, record=f"4,1,1,-;{text}")


def on(*seen: Observation, mode: Mode = Mode.ACT) -> Post:
    """A daemon on the first of two GPUs."""
    mine = reply("device_query --csv", f"0,00:00.0,{GPU},NVIDIA H200\n")
    post = Post(*alive(), *GPUS, mine, mode=mode)
    post.see(*seen)
    return post


@pytest.mark.parametrize("number", [46, 62, 64, 79, 95, 110, 119, 120, 136, 140, 143, 156, 158])
def test_what_needs_a_reset_or_a_reboot_keeps_it_from_being_restarted(number: int) -> None:
    post = on(xid(number), *dies(DEATH + 1))
    post.until(DEATH + 600)
    assert (post.actions, post.watch.phase) == ([], WatchdogPhase.QUARANTINED)
    assert [name for name, _ in post.told(*QUARANTINE)] == ["daemon_quarantined"]


@pytest.mark.parametrize("number", [8, 13, 31, 43, 45, 48, 63, 74, 92, 94, 109, 154, 155, 157, 999])
def test_what_a_program_may_have_caused_or_what_heals_does_not(number: int) -> None:
    post = on(xid(number), *dies(DEATH + 1))
    assert (post.kinds, post.told(*QUARANTINE)) == ([("restart", "crashed")], [])


@pytest.mark.parametrize(
    ("action", "quarantined"),
    [
        ("0x1 (GPU Reset Required)", True),
        ("0x1 (PF FLR)", True),
        ("0x2 (Node Reboot Required)", True),
        ("0x2 (OS Reboot)", True),
        ("0x0 (None)", False),
        ("0x3 (Drain P2P)", False),
        ("0x4 (Drain and Reset)", False),
        ("anything", False),
    ],
)
def test_the_driver_may_say_itself_what_the_gpu_needs(action: str, quarantined: bool) -> None:
    post = on(recovery(action))
    assert bool(post.watch.quarantine) is quarantined


def test_another_ones_gpu_is_none_of_its() -> None:
    post = on(xid(79, gpu=OTHER_GPU), *dies(DEATH + 1))
    assert post.kinds == [("restart", "crashed")]


def test_it_is_told_why() -> None:
    post = on(xid(79))
    (event,) = (each for each in post.events if each.event is EventName.DAEMON_QUARANTINED)
    assert (event.xid, event.gpu) == (79, GPU)
    assert event.reason == Reason(ReasonCode.GPU_NEEDS_REBOOT, xid=79, gpu=GPU)
    assert post.watch.reason == event.reason


def test_whoever_hangs_there_is_not_ended_either() -> None:
    post = on(xid(79), *hangs())
    post.until(DEATH + 600)
    assert post.actions == []


def released(post: Post, then: Iterable[Observation] = ()) -> Post:
    post.until(DEATH + 60)
    post.resume()
    post.see(look("log", at=DEATH + 61), *then)
    return post


def test_resume_releases_it_until_there_is_another() -> None:
    post = released(on(xid(79), *dies(DEATH + 1)))
    assert [name for name, _ in post.told(*QUARANTINE)] == ["daemon_quarantined", "daemon_released"]
    assert (post.kinds, post.watch.quarantine) == ([("restart", "crashed")], None)
    post.see(xid(79, at=DEATH + 70))
    assert post.watch.quarantine is not None


def test_it_outlives_the_exporter() -> None:
    post = on(xid(79))
    post.restarted()
    post.see(*alive(at=DEATH + 5), *dies(DEATH + 10))
    assert (post.actions, post.watch.phase) == ([], WatchdogPhase.QUARANTINED)


def test_who_only_observes_says_so_too() -> None:
    post = on(xid(79), *dies(DEATH + 1), mode=Mode.OBSERVE)
    assert post.watch.phase is WatchdogPhase.QUARANTINED
    assert post.action_counts == {}


def test_a_daemon_that_sees_all_gpus_serves_each() -> None:
    post = Post(*alive(), *GPUS)
    post.see(xid(95, gpu=OTHER_GPU))
    assert post.node.watches[DAEMON].quarantine is not None
