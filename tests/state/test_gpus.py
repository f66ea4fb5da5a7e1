"""GPU readings of NVML: monotonic counters, supported values, and MIG."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from exporter.model.event import Event, EventName
from exporter.model.node import Gpu, Node, SharingMode
from exporter.model.observation import DaemonFound, GpuProcess, GpuReading, Observation
from exporter.model.reason import Reason, ReasonCode
from exporter.model.sharing import GpuUse
from exporter.reducer import prune, reduce
from exporter.state.devices import devices_of, is_lost
from exporter.state.gpus import ENERGY, LIMITS, may_bypass, sharing_mode
from exporter.store.database import StoredState
from tests.builders import (
    AT,
    CLIENT,
    CONTROL,
    DAEMON,
    GPU,
    OTHER_GPU,
    SENSORS,
    SERVER,
    Reduced,
    at_work,
    daemon_process,
    exited,
    failure,
    gpu_reading,
    look,
    mig,
    node,
    process,
    reduced,
    reply,
    server_log,
    servers,
    three_clients,
    with_fields,
)
from tests.metrics.test_families import by
from tests.status import document_of

BYPASSING = 801
ALL = gpu_reading([CLIENT], **SENSORS)
FAILED = GpuReading(at=AT, gpu=GPU, problem=failure("GPU is lost"))


def gpu(result: Reduced) -> Gpu:
    return result.node.gpus[GPU]


def total(result: Reduced) -> int:
    """Return the GPU's energy."""
    energy = gpu(result).energy
    assert energy is not None
    return energy.total


class TestCounters:
    """A counter never decreases."""

    def test_counters_survive_a_failed_reading(self) -> None:
        """The driver may have reset its values."""
        result = reduced(gpu_reading(energy_millijoules=1000), FAILED, gpu_reading(energy_millijoules=50))
        assert total(result) == 1050


class TestGpm:
    """A missing value of GPM is not zero. Without GPM, launches are the only measure."""

    def test_failed_reading_does_not_change_whether_there_is_gpm(self) -> None:
        assert gpu(reduced(ALL, FAILED)).has_gpm is True
        assert gpu(reduced(FAILED)).has_gpm is None

    def test_gpu_without_values_has_no_gpm(self) -> None:
        bare = GpuReading(at=AT, gpu=GPU)
        assert gpu(reduced(bare, bare)).has_gpm is False
        assert gpu(reduced(replace(ALL, mig_mode=True, sm_utilization=None, dram_bandwidth=None))).has_gpm is False

    def test_gpm_that_nvml_reports_needs_no_values(self) -> None:
        """The first reading has none."""
        first = replace(ALL, sm_utilization=None, dram_bandwidth=None, gpm_supported=True)
        assert gpu(reduced(first, first)).has_gpm is True
        assert gpu(reduced(ALL, replace(first, gpm_supported=False))).has_gpm is False

    def test_gpm_is_unknown_after_the_first_reading(self) -> None:
        """GPM values cover the time between two readings."""
        first = replace(ALL, sm_utilization=None, dram_bandwidth=None)
        assert gpu(reduced(first)).has_gpm is None
        assert gpu(reduced(first, ALL)).has_gpm is True
        assert gpu(reduced(first, first)).has_gpm is False

    def test_gpm_stays_supported_after_a_driver_reset(self) -> None:
        """The first reading after the reset has no GPM values."""
        first = replace(ALL, sm_utilization=None, dram_bandwidth=None)
        assert gpu(reduced(ALL, FAILED, first)).has_gpm is True


@pytest.mark.parametrize(("ended_at", "seconds", "is_known"), [(4, 4.0, True), (4, 1.0, False), (30, 30.0, False)])
def test_values_are_unknown_after_a_collection_that_did_not_read_them_or_hung(
    ended_at: int, seconds: float, is_known: bool
) -> None:
    ended = replace(look(at=AT + ended_at), seconds=seconds)
    assert (gpu(reduced(ALL, ended)).reading.problem is None) is is_known


class TestMig:
    """With MIG, the process lists of the GPU include all its instances, and may be incomplete."""

    @pytest.mark.parametrize("mig", [False, True])
    def test_no_process_is_bypassing_with_mig(self, mig: bool) -> None:
        seen = [gpu_reading([CLIENT], beside=[BYPASSING], at=AT + passed, mig_mode=mig) for passed in (0, 2, 4)]
        result = reduced(*at_work(CLIENT), *seen)
        assert (len(result.of(EventName.PROCESS_BYPASSING)) == 0) is mig
        assert gpu(result).bypassing_known is not mig

    def test_bypassing_processes_are_removed_when_mig_is_enabled(self) -> None:
        """Only an unused GPU can be partitioned."""
        seen = [gpu_reading([CLIENT], beside=[BYPASSING], at=AT + passed) for passed in (0, 2)]
        result = reduced(*at_work(CLIENT), *seen, gpu_reading(at=AT + 4, mig_mode=True), look(at=AT + 4))
        assert (gpu(result).bypassing, gpu(result).mps_since) == ((), {})

    def test_client_missing_from_a_mig_list_stays_connected(self) -> None:
        """The list may be empty because the exporter lacks permission."""
        result = reduced(*at_work(CLIENT), gpu_reading([CLIENT]), gpu_reading(at=AT + 2, server=None, mig_mode=True))
        assert CLIENT in result.daemon.clients
        assert gpu(result).mps_left == {}


def test_a_value_that_fails_for_a_while_reports_nothing() -> None:
    """A list of processes that could not be read shows no process that came, left or bypasses MPS."""
    for missing in (
        {"compute_processes"},
        {"mps_processes"},
        {"memory_used_bytes"},
        {"compute_processes", "mps_processes"},
    ):
        failed = {name: Reason(ReasonCode.DRIVER_ERROR, subject=name, detail="Unknown Error") for name in missing}
        good = [gpu_reading([CLIENT], beside=[BYPASSING], at=AT + passed) for passed in (0, 2)]
        before = reduced(*at_work(CLIENT), *good)
        assert before.of(EventName.PROCESS_BYPASSING)
        bad = [
            replace(reading, at=AT + at, failed=failed, **dict.fromkeys(missing))
            for at, reading in ((4, good[0]), (14, good[0]), (24, good[0]))
        ]
        after = reduced(*bad, gpu_reading([CLIENT], beside=[BYPASSING], at=AT + 34), start=before.node)

        assert (after.events, CLIENT in after.daemon.clients) == ((), True), missing
        assert gpu(after).bypassing == (BYPASSING,)
        assert gpu(after).has_gpm == gpu(before).has_gpm


LOST = Reason(ReasonCode.GPU_LOST, detail="GPU is lost")
OTHER = replace(gpu_reading(gpu=OTHER_GPU, index=1), at=AT)


def lost_events(result: Reduced) -> list[tuple[str | None, object]]:
    return [(each.gpu, each.reason) for each in result.events if each.event is EventName.GPU_LOST]


class TestLostGpu:
    """A known GPU is lost if NVML reports that, or works and does not list it. Other failures say nothing of a GPU."""

    def test_reports_once_that_the_driver_has_lost_a_gpu(self) -> None:
        seen = [GpuReading(at=AT + at, gpu=GPU, problem=LOST) for at in (10, 20)]
        result = reduced(ALL, look(), *seen)
        assert lost_events(result) == [(GPU, "gpu_lost")]

    def test_reports_once_that_nvml_no_longer_lists_a_gpu(self) -> None:
        seen = [each for at in (10, 20) for each in (replace(OTHER, at=AT + at), look(at=AT + at))]
        result = reduced(ALL, OTHER, look(), *seen)
        assert lost_events(result) == [(GPU, "gpu_not_reported")]

    def test_reports_that_nvml_no_longer_lists_the_only_gpu(self) -> None:
        assert lost_events(reduced(ALL, look(), look(at=AT + 10))) == [(GPU, "gpu_not_reported")]

    def test_reports_it_while_a_value_of_another_gpu_fails(self) -> None:
        problem = Reason(ReasonCode.DRIVER_ERROR, subject=f"{OTHER_GPU} energy", detail="Unknown Error")
        seen = (replace(OTHER, at=AT + 10), look(at=AT + 10, problem=problem))
        assert lost_events(reduced(ALL, OTHER, look(), *seen)) == [(GPU, "gpu_not_reported")]

    def test_remembers_a_lost_gpu_when_the_exporter_starts_again(self) -> None:
        """It is lost until NVML lists it again, as if the exporter had run on."""
        before = reduced(ALL, OTHER, look(), replace(ALL, at=AT + 10), look(at=AT + 10))
        newest_first = tuple(reversed(before.events))
        again = (replace(ALL, at=AT + 20), look(at=AT + 20))
        result = reduced(*again, start=StoredState(events=newest_first).restore(node(), AT - 3600))
        assert (is_lost(result.node.gpus[OTHER_GPU].reading), is_lost(gpu(result).reading)) == (True, False)
        assert lost_events(result) == []
        result = reduced(*again, replace(OTHER, at=AT + 30), look(at=AT + 30), start=result.node)
        assert not is_lost(result.node.gpus[OTHER_GPU].reading)

    def test_forgets_a_lost_gpu_after_a_reboot_and_after_a_restart_of_a_paused_exporter(self) -> None:
        lost = Event(at=AT, event=EventName.GPU_LOST, gpu=OTHER_GPU, reason="gpu_not_reported")
        paused, resumed = (
            Event(at=AT + 10, event=name) for name in (EventName.EXPORTER_PAUSED, EventName.EXPORTER_RESUMED)
        )
        assert StoredState(events=(lost,)).restore(node(), AT - 3600).gpus.keys() == {OTHER_GPU}
        assert StoredState(events=(lost,)).restore(node(), AT + 60).gpus == {}
        assert StoredState(events=(paused, lost)).restore(node(), AT - 3600).gpus == {}
        lost_again = replace(lost, at=AT + 20)
        assert StoredState(events=(lost_again, resumed, paused, lost)).restore(node(), AT - 3600).gpus.keys() == {
            OTHER_GPU
        }

    def test_reports_a_gpu_again_that_is_still_lost_after_a_pause(self) -> None:
        """So a restart of the exporter after a reset that did not help does not forget it."""
        pause = failure("paused")
        seen = (look(problem=pause, at=AT + 20), replace(ALL, at=AT + 30), look(at=AT + 30))
        result = reduced(ALL, OTHER, look(), replace(ALL, at=AT + 10), look(at=AT + 10), *seen)
        assert lost_events(result) == [(OTHER_GPU, "gpu_not_reported")] * 2

    def test_a_failure_of_nvml_is_no_lost_gpu(self, subtests: pytest.Subtests) -> None:
        for problem in [
            Reason(ReasonCode.PAUSED),
            Reason(ReasonCode.STILL_RUNNING, seconds=12.0),
            Reason(ReasonCode.DRIVER_NOT_LOADED, detail="Driver Not Loaded"),
            Reason(ReasonCode.DRIVER_ERROR, subject="number of GPUs", detail="Unknown Error"),
            Reason(ReasonCode.DRIVER_ERROR, subject="0", detail="Unknown Error"),
        ]:
            with subtests.test(problem=problem):
                result = reduced(ALL, look(), look(at=AT + 10, problem=problem))
                assert lost_events(result) == []
                assert gpu(result).reading.problem == problem

    def test_a_gpu_that_was_read_long_before_a_slow_collection_ended_is_not_lost(self) -> None:
        result = reduced(ALL, OTHER, look(), replace(ALL, at=AT + 11), replace(look(at=AT + 20), seconds=10.0))
        assert lost_events(result) == [(OTHER_GPU, "gpu_not_reported")]

    def test_a_gpu_that_returns_and_is_lost_again_is_reported_again(self) -> None:
        seen = [GpuReading(at=AT + 10, gpu=GPU, problem=LOST), gpu_reading(), GpuReading(at=AT, gpu=GPU, problem=LOST)]
        assert len(lost_events(reduced(ALL, look(), *seen))) == 2


# Values of NVML that cannot be true become neither metrics nor usage, and harm no later value.


WATTS = 700
TOTAL = 1 << 37


def joules_of(*energies: int | None) -> list[int]:
    """Return the counted millijoules after each of these readings, ten seconds apart."""
    node, counted = Node(), []
    for number, energy in enumerate(energies):
        node, _ = reduce(node, GpuReading(at=AT + 10 * number, gpu=GPU, energy_millijoules=energy))
        counter = node.gpus[GPU].energy
        counted.append(0 if counter is None else counter.total)
    return counted


def used(readings: int, start: int = 5 * 10**12) -> list[int]:
    """Return an energy counter at so many readings of a GPU that takes 700 W."""
    return [start + number * 10 * WATTS * 1000 for number in range(readings)]


def added(counted: list[int]) -> list[int]:
    return [after - before for before, after in pairwise(counted)]


STEP = 10 * WATTS * 1000


def test_one_impossible_energy_adds_nothing() -> None:
    wrong: list[str] = []
    for bad in (2**64 - 1, 2**63, 5 * 10**12 + 10**10, -1, 0, 1, 10**9):
        energies: list[int] = [*used(3), bad, *used(10)[4:]]
        counted = added(joules_of(*energies))
        if max(counted) > 2 * STEP + 10**9 or min(counted) < 0 or counted[-1] != STEP:
            wrong.append(f"{bad}: {counted}")
    assert wrong == []


def test_a_wrong_first_energy_does_not_disable_the_counter() -> None:
    for first in (0, 10**15, 2**64 - 1):
        assert added(joules_of(first, *used(5)))[-2:] == [STEP, STEP], first


def test_a_reloaded_driver_counts_from_zero() -> None:
    assert added(joules_of(*used(3), 1_000_000, 1_000_000 + STEP)) == [STEP, STEP, 1_000_000, STEP]


def test_counts_and_omits_each_impossible_value() -> None:
    bad: dict[str, Iterable[Any]] = {
        **{name: (most * 1.01 + 1, -1) for name, most in LIMITS.items() if name != ENERGY},
        "sm_utilization": (2.2e8, float("nan"), float("inf"), -0.1),
        "power_milliwatts": (4_300_000_000, -1),
        "memory_used_bytes": (TOTAL + 1, -1),
    }
    for name, values in bad.items():
        for value in values:
            fields = {"memory_total_bytes": TOTAL, "gpu_percent": 50, name: value}
            gpu = after(GpuReading(at=AT, gpu=GPU, **fields))
            assert getattr(gpu.reading, name) is None, (name, value)
            assert gpu.discarded == 1, (name, value)
            assert gpu.reading.problem is None
            others = {"memory_total_bytes", "gpu_percent"} - {name}
            assert all(getattr(gpu.reading, each) is not None for each in others), (name, value)


def test_keeps_the_largest_possible_values() -> None:
    fields: dict[str, Any] = {name: type(most)(most) for name, most in LIMITS.items()}
    gpu = after(GpuReading(at=AT, gpu=GPU, memory_used_bytes=int(LIMITS["memory_total_bytes"]), **fields))
    assert gpu.discarded == 0
    assert all(getattr(gpu.reading, name) == value for name, value in fields.items())


def test_a_process_with_more_memory_than_the_gpu_has_an_unknown_amount() -> None:
    processes = (GpuProcess(pid=1, used_bytes=TOTAL), GpuProcess(pid=2, used_bytes=2**64 - 1))
    gpu = after(GpuReading(at=AT, gpu=GPU, memory_total_bytes=TOTAL, mps_processes=processes))
    assert gpu.reading.mps_processes == (processes[0], GpuProcess(pid=2, used_bytes=None))


def test_an_impossible_use_is_no_window_of_attribution() -> None:
    node, _ = reduce(Node(), GpuReading(at=AT, gpu=GPU))
    for value in (2.2e8, float("nan"), -1.0):
        assert reduce(node, GpuUse(at=AT + 1, gpu=GPU, seconds=1.0, sm_utilization=value)) == (node, ())


def after(reading: GpuReading) -> Gpu:
    node, _ = reduce(Node(), reading)
    return node.gpus[GPU]


# The sharing mode of a GPU: it is known only if the process lists and the daemon are conclusive.


ANOTHER = 802
NO_DAEMON = Node()


def mode(result: Reduced) -> SharingMode | None:
    return sharing_mode(result.node, result.node.gpus[GPU])


def twice(reading: GpuReading) -> tuple[GpuReading, ...]:
    """Return the reading, and the same 2 s later, which confirms it."""
    return reading, replace(reading, at=reading.at + 2)


DAEMON_AT_WORK = at_work(CLIENT)


def test_mode_with_a_daemon_whose_servers_are_known(subtests: pytest.Subtests) -> None:
    for reading, expected in [
        (gpu_reading(server=None), SharingMode.IDLE),
        (gpu_reading(), SharingMode.MPS),
        (gpu_reading([CLIENT]), SharingMode.MPS),
        (gpu_reading([CLIENT], beside=[BYPASSING]), SharingMode.MIXED),
        (gpu_reading(beside=[BYPASSING]), SharingMode.MIXED),
        (gpu_reading(beside=[BYPASSING], server=None), SharingMode.EXCLUSIVE),
        (gpu_reading(beside=[BYPASSING, ANOTHER], server=None), SharingMode.TIME_SLICING),
    ]:
        with subtests.test(reading=reading, expected=expected):
            assert mode(reduced(*DAEMON_AT_WORK, *twice(reading))) is expected


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        (gpu_reading(server=None), SharingMode.IDLE),
        (gpu_reading([CLIENT], server=None), SharingMode.MPS),
        (gpu_reading(beside=[BYPASSING], server=None), SharingMode.EXCLUSIVE),
        (gpu_reading(beside=[BYPASSING, ANOTHER], server=None), SharingMode.TIME_SLICING),
    ],
)
def test_mode_without_a_daemon(reading: GpuReading, expected: SharingMode) -> None:
    assert mode(reduced(*twice(reading), start=NO_DAEMON)) is expected


INCONCLUSIVE: dict[str, tuple[Node, tuple[Observation, ...]]] = {
    "bypassing process in one reading": (node(), (*DAEMON_AT_WORK, gpu_reading([CLIENT], beside=[BYPASSING]))),
    "daemon with unknown servers": (node(), twice(gpu_reading([CLIENT]))),
    "clients of an unknown daemon": (NO_DAEMON, twice(gpu_reading([CLIENT]))),
    "failed reading": (node(), (*DAEMON_AT_WORK, GpuReading(at=AT, gpu=GPU, problem=failure("GPU is lost")))),
    "failed collection": (
        node(),
        (*DAEMON_AT_WORK, *twice(gpu_reading()), look(at=AT + 60, problem=failure("NVML is gone"))),
    ),
    "no list of processes": (node(), (*DAEMON_AT_WORK, GpuReading(at=AT, gpu=GPU, mps_processes=()))),
    "no list of MPS clients": (node(), (*DAEMON_AT_WORK, GpuReading(at=AT, gpu=GPU, compute_processes=()))),
}


def test_mode_is_unknown_if_the_evidence_is_inconclusive(subtests: pytest.Subtests) -> None:
    for start, seen in INCONCLUSIVE.values():
        with subtests.test(start=start, seen=seen):
            assert mode(reduced(*seen, start=start)) is None


def test_mode_is_unknown_until_a_possible_new_server_is_listed() -> None:
    new_server = 900
    readings = twice(gpu_reading([CLIENT], beside=[new_server]))
    assert mode(reduced(*DAEMON_AT_WORK, *readings[:1])) is None
    assert mode(reduced(*DAEMON_AT_WORK, *readings[:1], servers(SERVER, new_server), *readings[1:])) is SharingMode.MPS


@pytest.mark.parametrize(
    "reading",
    [
        gpu_reading(server=None, mig_mode=True),
        gpu_reading(beside=[BYPASSING, ANOTHER], mig_mode=True),
        GpuReading(at=AT, gpu=GPU, mig_mode=True),
    ],
)
def test_mode_is_mig_whatever_the_process_lists_contain(reading: GpuReading) -> None:
    assert mode(reduced(*DAEMON_AT_WORK, *twice(reading))) is SharingMode.MIG


# Which GPUs a daemon serves, and on which of them a process bypasses MPS.


ASKED = "device_query --csv"


def on_both(*seconds: float) -> list[Observation]:
    """NVML reads two GPUs; on each, a process bypasses MPS."""
    return [
        reading
        for second in seconds
        for reading in (
            gpu_reading([CLIENT], beside=[BYPASSING], at=AT + second),
            gpu_reading(server=None, beside=[BYPASSING + 1], gpu=OTHER_GPU, index=1, at=AT + second),
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
        ((GPU,), {GPU: (BYPASSING,)}),
        ((OTHER_GPU,), {OTHER_GPU: (BYPASSING + 1,)}),
        ((GPU, OTHER_GPU), {GPU: (BYPASSING,), OTHER_GPU: (BYPASSING + 1,)}),
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
    result = reduced(visible, has(OTHER_GPU), *on_both(5, 7), start=confined)
    assert bypassing(result.node) == {OTHER_GPU: (BYPASSING + 1,)}


@pytest.mark.parametrize("answer", [(), (reply(ASKED, f'Unknown command "{ASKED}"\n'),)], ids=("not asked", "in vain"))
@pytest.mark.parametrize("visible", [{}, {"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "0,1"}])
def test_without_a_list_of_devices_nvml_decides(answer: tuple[Observation, ...], visible: Mapping[str, str]) -> None:
    """Numbers in its environment count the GPUs that it sees, as in a job with device nodes of its own."""
    confined = replace(daemon_process(), environment=visible)
    result = reduced(confined, *at_work(CLIENT), *answer, *on_both(5, 7))
    assert bypassing(result.node) == {GPU: (BYPASSING,)}
    assert not any(each.bypassing_processes for uuid, each in result.node.gpus.items() if uuid != GPU)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (OTHER_GPU, {GPU: (BYPASSING,), OTHER_GPU: (BYPASSING + 1,)}),
        (OTHER_GPU[:12], {GPU: (BYPASSING,), OTHER_GPU: (BYPASSING + 1,)}),
        ("GPU-", {GPU: (BYPASSING,)}),
        ("10000", {GPU: (BYPASSING,)}),
        ("None", {GPU: (BYPASSING,)}),
    ],
)
def test_a_unique_part_of_a_uuid_in_the_environment_names_a_gpu(
    visible: str, expected: Mapping[str, tuple[int, ...]]
) -> None:
    named = replace(daemon_process(), environment={"CUDA_VISIBLE_DEVICES": visible})
    assert bypassing(reduced(named, *at_work(CLIENT), *on_both(5, 7)).node) == expected


def test_an_ended_daemon_retains_the_gpus_that_nvml_showed_and_a_new_one_does_not() -> None:
    gone, back = exited(CONTROL, at=AT + 4), daemon_process(CONTROL + 1, at=AT + 5)
    before = reduced(daemon_process(), *at_work(CLIENT), *on_both(1), gone)
    assert before.daemon.runtime.seen_on == {GPU}
    assert [each.pid for each in reduced(*on_both(5, 7), start=before.node).of(EventName.PROCESS_BYPASSING)] == [
        BYPASSING
    ]
    assert reduced(back, start=before.node).daemon.runtime.seen_on == frozenset()


def test_a_claimed_server_names_no_gpu() -> None:
    """Any user can write the line, and the process on the other GPU may be anything."""
    claims = server_log("Initializing server process", server=BYPASSING + 1, at=AT + 2)
    result = reduced(daemon_process(), *at_work(CLIENT), *claims, *on_both(5, 7))
    assert OTHER_GPU not in result.daemon.runtime.seen_on


# Whom a daemon serves.


@pytest.mark.parametrize(
    ("runs_as", "entered_by", "served"),
    [(0, None, True), (0, 1001, True), (0, 0, False), (0, 1002, False), (1001, None, True), (1002, None, False)],
)
def test_a_process_bypasses_only_a_daemon_that_serves_its_user(
    runs_as: int, entered_by: int | None, served: bool
) -> None:
    """An ordinary user's daemon serves that user, and root's daemon all who can enter its directory."""
    owned = replace(daemon_process(), uid=runs_as, entered_by=entered_by)
    result = reduced(owned, *at_work(CLIENT), has(GPU), process(BYPASSING, uid=1001), *on_both(5, 7))
    assert bypassing(result.node) == {GPU: (BYPASSING,) if served else ()}
    assert result.node.gpus[GPU].outside == (BYPASSING,)
    assert sharing_mode(result.node, result.node.gpus[GPU]) is SharingMode.MIXED
    assert [event.pid for event in result.of(EventName.PROCESS_BYPASSING)] == [BYPASSING] * served
    codes = [finding.code for finding in document_of(result.node).findings]
    assert codes.count("process_bypassing") == served


def test_each_daemon_of_a_gpu_has_a_count_of_bypassing_processes() -> None:
    """A series that ends with its last process would let an alert go on while the exporter cannot be scraped."""
    daemons = [replace(daemon_process(daemon=f"/run/{uid}"), uid=uid) for uid in (1001, 1002)]
    have = [replace(has(GPU), daemon=each.daemon) for each in daemons]
    first, later = (
        [reply("get_server_list", "77\n", daemon=each.daemon, at=at) for each in daemons] for at in (AT, AT + 8)
    )
    shared = reduced(*daemons, *have, *first, process(BYPASSING, uid=1002), *on_both(5, 7), *later, *on_both(9))
    assert by(shared.node, "cuda_mps_bypassing_processes", "daemon", gpu=GPU) == {"/run/1001": 0, "/run/1002": 1}


def test_pids_of_another_namespace_show_no_gpu() -> None:
    """Until its namespace is known, the daemon's PIDs are those of other processes here."""
    confused = reduced(daemon_process(), *at_work(CLIENT), *on_both(1))
    assert confused.daemon.runtime.seen_on == {GPU}
    known = reduced(replace(reply("get_server_list", "77\n", at=AT + 2), pids={}), start=confused.node)
    assert known.daemon.runtime.seen_on == frozenset()


def test_a_process_of_an_unknown_user_does_not_bypass_a_private_daemon() -> None:
    owned = replace(daemon_process(), uid=1001)
    unknown = reduced(owned, *at_work(CLIENT), has(GPU), *on_both(5, 7))
    assert bypassing(unknown.node) == {GPU: ()}
    known = reduced(process(BYPASSING, uid=1001), *on_both(9), start=unknown.node)
    assert [event.pid for event in known.of(EventName.PROCESS_BYPASSING)] == [BYPASSING]


def test_each_process_is_told_the_directory_of_the_daemon_that_serves_it() -> None:
    """Root's daemon and one of alice have the same GPU; a process of each user bypasses them."""
    of_root = replace(daemon_process(CONTROL + 9, daemon="/run/root"), uid=0)
    has_it = replace(has(GPU), daemon="/run/root")
    listed = [reply("get_server_list", "77\n", daemon="/run/root", at=AT + second) for second in (0, 6)]
    users = process(BYPASSING, uid=1001), process(BYPASSING + 5, uid=1002, user="bob")
    first, second = (gpu_reading([CLIENT], beside=[BYPASSING, BYPASSING + 5], at=AT + at) for at in (5, 7))
    alices = (replace(daemon_process(), uid=1001), *at_work(CLIENT), has(GPU))
    present = reduced(*alices, of_root, listed[0], has_it, *users, first, listed[1], second).node
    (found,) = (each for each in document_of(present).findings if each.code == "process_bypassing")
    by_directory = {
        each.commands[0].rpartition("=")[2]: each.text for each in found.steps if "PIPE" in str(each.commands)
    }
    assert [path for path, text in by_directory.items() if f"PID {BYPASSING} " in text] == [DAEMON]
    assert [path for path, text in by_directory.items() if f"PID {BYPASSING + 5} " in text] == ["/run/root"]
    assert by(present, "cuda_mps_bypassing_processes", "daemon") == {DAEMON: 1, "/run/root": 1}


def pod(number: int) -> str:
    """The cgroup of a container of a pod."""
    uid = f"{number:08d}_2222_3333_4444_555555555555"
    return f"0::/kubepods.slice/kubepods-pod{uid}.slice/cri-containerd-{number:064x}.scope"


@pytest.mark.parametrize(
    ("place", "served"), [(pod(1), True), (pod(2), True), (pod(3), False), ("0::/x.service", False)]
)
def test_a_daemon_with_a_directory_in_a_pod_serves_that_pod_and_those_of_its_clients(place: str, served: bool) -> None:
    """No other process can open the directory, although root runs the daemon. The path may be another one there."""
    name = f"{DAEMON}@0123456789ab"
    found = DaemonFound(at=AT, daemon=name, pipe_directory=DAEMON, log_directory="", by="discovered")
    running = replace(daemon_process(daemon=name), uid=0, cgroup=pod(1))
    of_client, beside = (replace(process(pid), cgroup=of) for pid, of in ((CLIENT, pod(2)), (BYPASSING, place)))
    listed = at_work(CLIENT, daemon=name), replace(has(GPU), daemon=name)
    result = reduced(found, running, *listed[0], listed[1], of_client, beside, *on_both(5, 7), start=Node())
    assert bypassing(result.node) == {GPU: (BYPASSING,) if served else ()}
    assert result.node.gpus[GPU].outside == (BYPASSING,)


def test_a_list_of_devices_corrects_bypassing_processes() -> None:
    result = reduced(*at_work(CLIENT), *on_both(5, 7), has(GPU, at=AT + 8), *on_both(9))
    assert {uuid: gpu.bypassing for uuid, gpu in result.node.gpus.items()} == {GPU: (BYPASSING,), OTHER_GPU: ()}


def test_a_lost_gpu_has_no_index_that_another_gpu_has_now() -> None:
    """When the driver is opened again, NVML counts the GPUs that are left."""
    listed = gpu_reading(), gpu_reading(gpu=OTHER_GPU, index=1), look(at=AT + 1)
    counted_anew = gpu_reading(gpu=OTHER_GPU, index=0, at=AT + 11), look(at=AT + 11)
    present = reduced(*listed, *counted_anew).node
    assert {uuid: gpu.reading.index for uuid, gpu in present.gpus.items()} == {GPU: None, OTHER_GPU: 0}
    (lost,) = (each for each in document_of(present).findings if each.code == "gpu_lost")
    assert "GPU 0 " not in lost.text


@pytest.mark.parametrize(("number", "known"), [(0, False), (1, True)])
def test_the_numbers_of_a_client_that_launches_where_it_has_no_context_are_unknown(number: int, known: bool) -> None:
    """It has changed its CUDA_VISIBLE_DEVICES before its first CUDA call."""
    present, gpus = three_clients(), (GPU, OTHER_GPU)
    daemon = with_fields(present.daemons[DAEMON], runtime__devices=dict(enumerate(gpus)))
    present = replace(present, launch_history=replace(present.launch_history, begun={CLIENT: {number: AT}}))
    assert devices_of(present, daemon, CLIENT, frozenset({OTHER_GPU})) == (gpus if known else None)


def test_an_ended_daemon_retains_its_gpus() -> None:
    gone = exited(CONTROL, at=AT + 4)
    result = reduced(daemon_process(), *at_work(CLIENT), has(GPU), gone, *on_both(5, 7, 9))
    assert [event.pid for event in result.of(EventName.PROCESS_BYPASSING)] == [BYPASSING]


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
    assert bypassing(reduced(*on_both(5, 7), start=down).node) == {OTHER_GPU: (BYPASSING + 1,)}
    assert reduced(living, unit).daemon.runtime.visible_devices == GPU


@pytest.mark.parametrize(
    ("changed", "may"),
    [
        ({GPU: {BYPASSING}}, True),
        ({GPU: {CLIENT, SERVER}}, False),  # They use MPS, or used it.
        ({GPU: {CLIENT, BYPASSING}}, True),
        ({OTHER_GPU: {BYPASSING}}, False),  # No daemon serves this GPU.
        ({GPU: set(), OTHER_GPU: set()}, False),
    ],
)
def test_only_a_process_that_is_not_known_to_mps_may_bypass_a_daemon(changed: dict[str, set[int]], may: bool) -> None:
    present = reduced(*at_work(CLIENT), has(GPU), *on_both(5)).node
    assert may_bypass(present, {gpu: frozenset(pids) for gpu, pids in changed.items()}) is may


def test_a_disconnected_client_that_nvml_still_shows_does_not_bypass_mps() -> None:
    present = reduced(*at_work(CLIENT), has(GPU), *server_log(f"Client process {CLIENT} disconnected", at=AT + 1)).node
    for seconds in (2, 5, 400, 403, 405):
        shown = reduced(gpu_reading(beside=[CLIENT], at=AT + seconds), start=present)
        assert not shown.of(EventName.PROCESS_BYPASSING)
        present = prune(shown.node)


def test_a_process_of_a_gpu_in_mig_mode_may_bypass_the_daemon_of_an_instance() -> None:
    assert may_bypass(mig(), {GPU: frozenset({BYPASSING})})
