"""A restart of MPS does not fix a GPU that needs a reset."""

from collections.abc import Iterable

import pytest

from exporter.model.event import EventName
from exporter.model.observation import GpuEvent, KernelRecord, Observation
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import Mode
from exporter.model.watchdog import WatchdogPhase
from tests.builders import DAEMON, GPU, OTHER_GPU, gpu_reading, look, reply
from tests.watchdog.watched_daemon import DEATH, WatchedDaemon, alive, dies, hangs

GPUS = (gpu_reading(pci_bus_id="00000000:00:06.0"), gpu_reading(gpu=OTHER_GPU, index=1, pci_bus_id="00000000:00:07.0"))
QUARANTINE = (EventName.DAEMON_QUARANTINED, EventName.DAEMON_RELEASED)


def xid(number: int, *, at: float = DEATH, gpu: str = GPU) -> GpuEvent:
    """Return an Xid event of NVML."""
    return GpuEvent(at=at, type=8, xid=number, gpu=gpu)


def recovery(action: str, *, at: float = DEATH) -> KernelRecord:
    """Return the recovery action of the first GPU, from the kernel log."""
    text = f"NVRM: Xid (PCI:0000:00:06): 154, GPU recovery action changed from 0x0 (None) to {action}"
    return KernelRecord(at=at, record=f"4,1,1,-;{text}")


def on(*seen: Observation, mode: Mode = Mode.ACT) -> WatchedDaemon:
    """A daemon on the first of two GPUs."""
    mine = reply("device_query --csv", f"0,00:00.0,{GPU},NVIDIA H200\n")
    post = WatchedDaemon(*alive(), *GPUS, mine, mode=mode)
    post.observe(*seen)
    return post


def test_an_xid_that_needs_a_reset_or_reboot_prevents_a_restart(subtests: pytest.Subtests) -> None:
    for number in [46, 62, 64, 79, 95, 110, 119, 120, 136, 140, 143, 156, 158]:
        with subtests.test(number=number):
            post = on(xid(number), *dies(DEATH + 1))
            post.until(DEATH + 600)
            assert (post.actions, post.watch.phase) == ([], WatchdogPhase.QUARANTINED)
            assert [name for name, _ in post.reported(*QUARANTINE)] == ["daemon_quarantined"]


def test_other_xids_do_not_prevent_a_restart(subtests: pytest.Subtests) -> None:
    for number in [8, 13, 31, 43, 45, 48, 63, 74, 92, 94, 109, 154, 155, 157, 999]:
        with subtests.test(number=number):
            post = on(xid(number), *dies(DEATH + 1))
            assert (post.kinds, post.reported(*QUARANTINE)) == ([("restart", "crashed")], [])


def test_the_recovery_action_of_the_driver_decides(subtests: pytest.Subtests) -> None:
    for action, quarantined in [
        ("0x1 (GPU Reset Required)", True),
        ("0x1 (PF FLR)", True),
        ("0x2 (Node Reboot Required)", True),
        ("0x2 (OS Reboot)", True),
        ("0x0 (None)", False),
        ("0x3 (Drain P2P)", False),
        ("0x4 (Drain and Reset)", False),
        ("anything", False),
    ]:
        with subtests.test(action=action, quarantined=quarantined):
            post = on(recovery(action))
            assert bool(post.watch.quarantine) is quarantined


def test_ignores_the_gpu_of_another_daemon() -> None:
    post = on(xid(79, gpu=OTHER_GPU), *dies(DEATH + 1))
    assert post.kinds == [("restart", "crashed")]


def test_reports_the_reason_of_a_quarantine() -> None:
    post = on(xid(79))
    (event,) = (each for each in post.events if each.event is EventName.DAEMON_QUARANTINED)
    assert (event.xid, event.gpu) == (79, GPU)
    assert event.reason == Reason(ReasonCode.GPU_NEEDS_REBOOT, xid=79, gpu=GPU)
    assert post.watch.reason == event.reason


def test_ends_no_hung_daemon_in_quarantine() -> None:
    post = on(xid(79), *hangs())
    post.until(DEATH + 600)
    assert post.actions == []


def released(post: WatchedDaemon, then: Iterable[Observation] = ()) -> WatchedDaemon:
    post.until(DEATH + 60)
    post.resume()
    post.observe(look("log", at=DEATH + 61), *then)
    return post


def test_resume_ends_a_quarantine_until_the_next_xid() -> None:
    post = released(on(xid(79), *dies(DEATH + 1)))
    assert [name for name, _ in post.reported(*QUARANTINE)] == ["daemon_quarantined", "daemon_released"]
    assert (post.kinds, post.watch.quarantine) == ([("restart", "crashed")], None)
    post.observe(xid(79, at=DEATH + 70))
    assert post.watch.quarantine is not None


def test_a_quarantine_outlives_the_exporter() -> None:
    post = on(xid(79))
    post.restarted()
    post.observe(*alive(at=DEATH + 5), *dies(DEATH + 10))
    assert (post.actions, post.watch.phase) == ([], WatchdogPhase.QUARANTINED)


def test_reports_a_quarantine_in_observe_mode() -> None:
    post = on(xid(79), *dies(DEATH + 1), mode=Mode.OBSERVE)
    assert post.watch.phase is WatchdogPhase.QUARANTINED
    assert post.action_counts == {}


def test_a_daemon_without_visible_devices_uses_each_gpu() -> None:
    post = WatchedDaemon(*alive(), *GPUS)
    post.observe(xid(95, gpu=OTHER_GPU))
    assert post.node.watches[DAEMON].quarantine is not None
