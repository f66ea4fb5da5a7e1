"""Samples of the node: what they contain, when they are taken, and that the unknown is not shown as idle."""

from dataclasses import replace

import pytest

from exporter.model.daemon import DaemonState
from exporter.model.identity import Workload, WorkloadKind
from exporter.model.node import Node
from exporter.model.usage import MAX_SAMPLES, SAMPLE_SECONDS, Sample
from exporter.usage.sampling import MAX_PARTS, sample_of, slots_until, with_sample
from tests.builders import (
    AT,
    DAEMON,
    MIB,
    OTHER_GPU,
    PAUSED,
    SENSORS,
    at_work,
    daemon_dead,
    flight,
    gpu_lost,
    gpu_reading,
    idle,
    look,
    looks,
    process,
    reduced,
    split,
    three_clients,
)

ALICE, BOB = (Workload(kind=WorkloadKind.USER, name=name) for name in ("alice", "bob"))


def at(seconds: float, start: Node | None = None) -> Node:
    return replace(start or idle(), at=seconds)


def test_has_the_clients_and_the_memory_of_each_workload_and_the_rest() -> None:
    present = three_clients()
    found = sample_of(present)
    assert found.clients == 3
    assert found.memory is not None
    assert {each.workload: each.amount / MIB for each in found.memory.parts} == {ALICE: 6852, BOB: 2564}
    used = sum(gpu.reading.memory_used_bytes or 0 for gpu in present.gpus.values())
    assert (6852 + 2564) * MIB + found.memory.rest == used
    assert found.memory.rest == (1024 + 2 * 66) * MIB, "a process that bypasses MPS, and servers"


def test_sm_time_without_a_workload_is_the_rest() -> None:
    present = split(three_clients(), {600: flight(0.25), 601: flight(0.125)}, unattributed=0.125)
    found = sample_of(split(present, {602: flight(0.25), 801: flight(0.5)}, gpu=OTHER_GPU)).sm
    assert found is not None
    assert (found.capacity, found.rest, found.others) == (2, 0.625, 0)
    assert [(each.workload, each.amount) for each in found.parts] == [(ALICE, 0.5), (BOB, 0.125)]


def test_sm_time_is_unattributed_without_attribution() -> None:
    found = sample_of(idle()).sm
    assert found is not None
    assert (found.parts, found.rest) == ((), SENSORS["sm_utilization"])


@pytest.mark.parametrize(
    "present",
    [
        three_clients(),
        split(three_clients(), {600: flight(0.2)}),
        split(idle(), {600: flight(0.2)}, gpu="GPU-that-was-removed"),
    ],
    ids=["no GPU", "one GPU of two", "another GPU"],
)
def test_sm_time_is_unknown_if_it_is_unknown_of_one_gpu(present: Node) -> None:
    gpus = {uuid: replace(gpu, reading=replace(gpu.reading, sm_utilization=None)) for uuid, gpu in present.gpus.items()}
    assert sample_of(replace(present, gpus=gpus)).sm is None


def test_an_old_split_is_not_used() -> None:
    present = split(idle(), {600: flight(0.2)})
    assert sample_of(replace(present, at=present.at + 61)).sm == sample_of(idle()).sm


@pytest.mark.parametrize("observed", [gpu_lost(), reduced(look(problem=PAUSED, at=AT + 1), start=idle()).node])
def test_memory_is_unknown_if_a_gpu_could_not_be_read(observed: Node) -> None:
    found = sample_of(observed)
    assert (found.memory, found.sm) == (None, None)
    assert found.clients is not None


def test_a_dead_daemon_has_no_clients() -> None:
    assert sample_of(daemon_dead()).clients == 0


@pytest.mark.parametrize("state", [None, DaemonState.UNRESPONSIVE])
def test_clients_are_unknown_while_a_daemon_does_not_answer(state: DaemonState | None) -> None:
    present = three_clients()
    daemons = {DAEMON: replace(present.daemons[DAEMON], state=state)}
    assert sample_of(replace(present, daemons=daemons)).clients is None


def test_a_sample_is_bounded_and_has_the_largest_workloads() -> None:
    pids = range(600, 600 + 3 * MAX_PARTS)
    present = reduced(
        *at_work(*pids),
        *(process(pid, user=f"user{pid}") for pid in pids),
        gpu_reading({pid: pid for pid in pids}),
        *looks(),
    ).node
    found = sample_of(present).memory
    assert found is not None
    assert [each.workload.name for each in found.parts] == [f"user{pid}" for pid in pids[: -MAX_PARTS - 1 : -1]]
    assert found.others == sum(pids[:-MAX_PARTS]) * MIB


def test_one_sample_is_taken_in_each_interval_while_something_is_observed() -> None:
    samples: tuple[Sample, ...] = ()
    for second in range(95):
        samples = with_sample(samples, at(AT + second))
    assert [each.at for each in samples] == [AT, AT + 20, AT + 50, AT + 80]
    assert with_sample(samples, at(AT + 94)) is samples


def test_the_first_sample_waits_for_the_first_collections() -> None:
    starting = replace(idle(), gpus={})
    assert with_sample((), at(AT + 14, starting)) == ()
    (late,) = with_sample((), at(AT + 15, starting))
    assert (late.clients, late.memory) == (0, None)


def test_nothing_is_sampled_before_the_first_collection() -> None:
    assert with_sample((), Node(at=AT)) == ()


def test_samples_of_more_than_an_hour_ago_are_dropped() -> None:
    samples: tuple[Sample, ...] = ()
    for number in range(3 * MAX_SAMPLES):
        samples = with_sample(samples, at(AT + SAMPLE_SECONDS * number))
    assert len(samples) == MAX_SAMPLES


def test_a_clock_that_was_set_back_drops_later_samples() -> None:
    samples = with_sample(with_sample((), at(AT)), at(AT + 3000))
    assert [each.at for each in with_sample(samples, at(AT + 600))] == [AT, AT + 600]


def test_an_interval_without_a_sample_is_a_gap() -> None:
    samples = (Sample(at=AT), Sample(at=AT + 90))
    slots = slots_until(samples, AT + 100)
    assert len(slots) == MAX_SAMPLES
    assert [None if each is None else each.at for each in slots.values()][-4:] == [AT, None, None, AT + 90]


def test_the_present_interval_is_no_gap_until_its_sample_is_due() -> None:
    samples = (Sample(at=AT), Sample(at=AT + 30))
    assert tuple(slots_until(samples, AT + 55).values())[-2:] == samples
    assert tuple(slots_until(samples, AT + 95).values())[-1] is None
