"""Counters of Xids: each Xid counts once, on its GPU, no matter how many sources report it."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.metrics.catalogue import NodeCollector
from exporter.model.event import Event, EventName
from exporter.model.incident import Incident, IncidentXid
from exporter.model.node import Node
from exporter.model.observation import GpuEvent, GpuReading, KernelRecord, Observation
from exporter.reducer import reduce_all
from exporter.state.xids import OTHER, WELL_KNOWN, is_claimed, is_same
from exporter.view import View
from tests.builders import AT, DAEMON, GPU, OTHER_GPU, SERVER, Reduced, failure, look, node, reduced
from tests.state.xid_reports import ADDRESS, OTHER_ADDRESS, TWO_GPUS, at_address, event, kernel

# The tests state these values, so that they notice a change of the program's constants.
BURST_SECONDS = 10.0
CLAIM_SECONDS = 2.0
MAX_GPUS = 64
MAX_NUMBERS = 64
MAX_RECENT = 256
MAX_REPORTED = 20
MAX_UNMATCHED = 256
PAIR_SECONDS = 2.0
RECENT_SECONDS = 4.0

LATER = look(at=AT + 60)
"""By then, all sources have reported."""


def counts(*seen: Observation, start: tuple[Observation, ...] = TWO_GPUS) -> Mapping[tuple[str, str], int]:
    return {key: count.total for key, count in reduced(*start, *seen, LATER).node.xids.counts.items()}


# -- each Xid counts once ------------------------------------------------------------------------------------------


def test_counts_xids_of_the_kernel_log_alone() -> None:
    """A misaligned store wrote two lines, and NVML reported no event."""
    assert counts(kernel(13), kernel(13)) == {(GPU, "13"): 2}


def test_three_xids_of_both_sources_count_three_times() -> None:
    times = [AT, AT + 0.1, AT + 0.2]

    assert counts(*(kernel(45, at=at) for at in times), *(event(45, at=at + 0.3) for at in times)) == {(GPU, "45"): 3}


def test_each_report_pairs_once() -> None:
    assert counts(kernel(), event(), event()) == {(GPU, "31"): 2}
    assert counts(event(), kernel(), kernel(), event()) == {(GPU, "31"): 2}


def test_other_numbers_and_other_gpus_count_separately() -> None:
    assert counts(kernel(31), event(43)) == {(GPU, "31"): 1, (GPU, "43"): 1}
    assert counts(kernel(31), event(31, gpu=OTHER_GPU)) == {(GPU, "31"): 1, (OTHER_GPU, "31"): 1}


LOST = KernelRecord(at=AT + 0.1, record=f"4,361,2785,c;NVRM: GPU {ADDRESS}.0: GPU has fallen off the bus.")


def test_a_gpu_that_fell_off_the_bus_without_an_xid_counts_as_79() -> None:
    assert counts(LOST) == {(GPU, "79"): 1}
    assert [each.xid for each in reduced(*TWO_GPUS, LOST, LATER).events if each.event == "gpu_xid"] == [79]


def test_a_gpu_that_fell_off_the_bus_counts_once_beside_its_xid() -> None:
    assert counts(kernel(79), LOST) == {(GPU, "79"): 1}
    assert counts(kernel(79), event(79), LOST) == {(GPU, "79"): 1}
    assert counts(event(79), LOST) == {(GPU, "79"): 1}
    assert counts(kernel(79, address=OTHER_ADDRESS), LOST) == {(OTHER_GPU, "79"): 1, (GPU, "79"): 1}


def test_a_much_later_report_is_another_xid() -> None:
    assert counts(kernel(), event(at=AT + PAIR_SECONDS + 0.1)) == {(GPU, "31"): 2}
    assert counts(event(at=AT + PAIR_SECONDS + 0.1), kernel()) == {(GPU, "31"): 2}, "the kernel log is read late"


def test_time_of_the_last_xid() -> None:
    after = reduced(*TWO_GPUS, kernel(at=AT + 1), kernel(at=AT + 9), event(at=AT + 9.02)).node

    assert after.xids.counts[GPU, "31"].last_at == AT + 9


def test_other_nvml_events_are_not_xids(subtests: pytest.Subtests) -> None:
    for kind in [1, 2, 4, 16, 256]:
        with subtests.test(kind=kind):
            assert counts(event(kind=kind)) == {}


def test_kernel_log_lines_from_user_space_are_not_counted() -> None:
    assert counts(kernel(79, prefix=12)) == {}


# -- GPU of an Xid -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["0000:00:06.0", "00000000:00:06.0", "00000000:00:06.1"])
def test_nvml_gives_the_bus_address_of_a_gpu(form: str) -> None:
    assert counts(kernel(), start=(at_address(address=form),)) == {(GPU, "31"): 1}


def test_the_driver_logs_the_bus_address_before_the_first_xid() -> None:
    address_line = KernelRecord(at=AT, record=f"4,358,1,c;NVRM: GPU at PCI:{ADDRESS}: {GPU}")

    assert counts(address_line, kernel(), start=()) == {(GPU, "31"): 1}


def test_a_lost_gpu_retains_its_bus_address() -> None:
    """The Xid follows after the GPU fell off the bus."""
    lost = GpuReading(at=AT + 1, gpu=GPU, index=0, problem=failure("GPU is lost"))

    assert counts(lost, look(at=AT + 20), kernel(79, at=AT + 21)) == {(GPU, "79"): 1}


def test_xid_of_an_unknown_gpu_counts_for_its_bus_address() -> None:
    assert counts(kernel(79, address="0000:c1:00")) == {("PCI:0000:c1:00", "79"): 1}


def test_xid_stays_counted_for_its_bus_address_when_the_gpu_becomes_known() -> None:
    soon = look(at=AT + PAIR_SECONDS + 1)
    assert counts(kernel(79), soon, *TWO_GPUS, kernel(79, at=AT + 9), start=()) == {
        (f"PCI:{ADDRESS}", "79"): 1,
        (GPU, "79"): 1,
    }


def test_xid_at_the_start_waits_for_the_first_nvml_reading() -> None:
    assert counts(kernel(79), *TWO_GPUS, start=()) == {(GPU, "79"): 1}


def test_event_without_a_gpu_counts_for_the_only_gpu() -> None:
    assert counts(event(gpu=None), start=(at_address(),)) == {(GPU, "31"): 1}


@pytest.mark.parametrize(
    "seen",
    [
        (kernel(address=OTHER_ADDRESS), event(gpu=None)),
        (event(gpu=None), kernel(address=OTHER_ADDRESS)),
    ],
)
def test_event_without_a_gpu_counts_for_the_gpu_in_the_kernel_log(seen: tuple[Observation, ...]) -> None:
    assert counts(*seen) == {(OTHER_GPU, "31"): 1}


def test_line_with_an_unknown_bus_address_counts_for_the_gpu_of_the_event() -> None:
    for seen in ((kernel(), event()), (event(), kernel())):
        start = (at_address(address=None), at_address(OTHER_GPU, address=None, index=1))
        assert counts(*seen, start=start) == {(GPU, "31"): 1}


def test_line_does_not_pair_with_a_gpu_at_another_bus_address() -> None:
    """A container may have only some GPUs, but the kernel log has Xids of all."""
    for seen in ((kernel(address="0000:c1:00"), event()), (event(), kernel(address="0000:c1:00"))):
        assert counts(*seen) == {(GPU, "31"): 1, ("PCI:0000:c1:00", "31"): 1}


def test_event_without_a_gpu_counts_for_the_bus_address_in_the_kernel_log() -> None:
    assert counts(event(gpu=None), kernel(address="0000:c1:00")) == {("PCI:0000:c1:00", "31"): 1}


def test_event_without_a_gpu_or_kernel_line_counts_without_a_gpu() -> None:
    assert counts(event(gpu=None)) == {("", "31"): 1}


def test_line_pairs_with_the_event_of_its_gpu_first() -> None:
    assert counts(event(gpu=None), event(), kernel(at=AT + 1)) == {("", "31"): 1, (GPU, "31"): 1}


# -- bounds --------------------------------------------------------------------------------------------------------


def test_too_many_numbers_count_as_other() -> None:
    after = counts(*(kernel(number) for number in range(1000, 1200)), kernel(79))

    assert after[GPU, "79"] == 1
    assert len(after) <= MAX_NUMBERS + 1
    assert after[GPU, OTHER] == 201 - (len(after) - 1)


def test_too_many_gpus_count_as_other() -> None:
    after = counts(*(kernel(address=f"{domain:04x}:00:06") for domain in range(1, 200)))

    assert len(after) == MAX_GPUS + 1
    assert sum(after.values()) == 199


def test_number_of_unmatched_reports_is_limited() -> None:
    after = reduced(*TWO_GPUS, *(kernel() for _ in range(MAX_UNMATCHED * 2))).node

    assert len(after.xids.unmatched) == MAX_UNMATCHED
    assert after.xids.counts[GPU, "31"].total == MAX_UNMATCHED * 2
    assert reduced(LATER, start=after).node.xids.unmatched == ()


def test_no_unmatched_report_is_lost() -> None:
    assert counts(*(event(gpu=None) for _ in range(MAX_UNMATCHED * 2))) == {("", "31"): MAX_UNMATCHED * 2}


reports = st.builds(
    lambda make, number, at: make(number, at=AT + at),
    st.sampled_from((kernel, event, partial(event, gpu=None), partial(kernel, address="0000:c1:00"))),
    st.sampled_from((13, 31, 45)),
    st.floats(-10, 10),
)


@given(st.lists(reports | st.sampled_from(TWO_GPUS), max_size=30))
@settings(max_examples=100)
def test_in_any_order_counters_never_decrease_and_no_xid_is_lost(seen: list[Observation]) -> None:
    present = reduced(*TWO_GPUS).node
    for each in (*seen, LATER):
        before = present.xids.counts
        present = reduced(each, start=present).node
        assert all(present.xids.counts[key].total >= count.total for key, count in before.items())
        assert all(present.xids.counts[key].last_at >= count.last_at for key, count in before.items())
    total = sum(count.total for count in present.xids.counts.values())
    by_kernel = sum(isinstance(each, KernelRecord) for each in seen)
    by_nvml = sum(isinstance(each, GpuEvent) for each in seen)
    assert max(by_kernel, by_nvml) <= total <= by_kernel + by_nvml


# -- metrics -------------------------------------------------------------------------------------------------------


def samples(node: Node, name: str, *, clock_step: float = 0.0) -> dict[tuple[str, str], float]:
    """Return the samples of a family by GPU and number."""
    return {
        (sample.labels["gpu"], sample.labels["xid"]): sample.value
        for metric in NodeCollector(View(node, clock_step=clock_step)).collect()
        for sample in metric.samples
        if sample.name == name
    }


def errors(*seen: Observation) -> dict[tuple[str, str], float]:
    return samples(reduced(*seen).node, "cuda_mps_xid_errors_total")


@pytest.mark.parametrize("source", ["kernel", "nvml_events"])
def test_well_known_numbers_have_a_zero_while_a_source_works(source: str) -> None:
    assert errors(*TWO_GPUS, look(source)) == {
        (gpu, str(number)): 0 for gpu in (GPU, OTHER_GPU) for number in WELL_KNOWN
    }


def test_there_is_no_zero_without_a_working_source() -> None:
    """A failure must not look like idle."""
    assert errors(*TWO_GPUS, look("nvml")) == {}
    failed = (look("kernel", problem=failure("may not")), look("nvml_events", problem=failure("no NVML")))
    assert errors(*TWO_GPUS, *failed) == {}
    assert errors(*TWO_GPUS, failed[0], look("nvml_events")) != {}


def test_counters_remain_when_the_sources_and_the_gpu_fail() -> None:
    lost = GpuReading(at=AT + 5, gpu=GPU, problem=failure("GPU is lost"))

    assert errors(*TWO_GPUS, look("kernel"), kernel(79), lost, look("kernel", problem=failure("x"), at=AT + 9)) == {
        (GPU, "79"): 1
    }


def test_recording_without_source_readings_has_zeros_after_its_first_xid() -> None:
    after = errors(*TWO_GPUS, kernel(109))

    assert after[GPU, "109"] == 1
    assert after[OTHER_GPU, "79"] == 0
    assert (OTHER_GPU, "109") not in after


def test_time_of_the_last_xid_is_wall_clock_time() -> None:
    node = reduced(*TWO_GPUS, kernel(31, at=AT + 3)).node

    assert samples(node, "cuda_mps_xid_last_timestamp_seconds", clock_step=100.0) == {(GPU, "31"): AT + 103}


# Xid reports: two sources make one Xid, an Xid without an incident has its own event, and a flood is limited.


SOON, AFTER_CLAIM = look(at=AT + CLAIM_SECONDS), look(at=AT + CLAIM_SECONDS + 0.5)
"""The last time at which an incident can include an Xid of AT, and a later time."""

SEEN = IncidentXid(at=AT, number=31, gpu=GPU, bus_id=ADDRESS, pid=600, name="train", kernel_seconds=27.859548)


def recent(*seen: Observation, start: tuple[Observation, ...] = TWO_GPUS) -> tuple[IncidentXid, ...]:
    """Return the recent Xids after these observations."""
    return reduced(*start, *seen).node.xids.recent


def xid_events(*seen: Observation, start: Node | None = None) -> list[Event]:
    """Return the events of Xids that belong to no incident."""
    return reduced(*seen, start=reduced(*TWO_GPUS).node if start is None else start).of(EventName.GPU_XID)


def xid_events_of_recording(*seen: Observation) -> list[Event]:
    """Return the events of Xids of a recording that ends with these observations."""
    events = [each for _, new_events in reduce_all(node(), (*TWO_GPUS, *seen)) for each in new_events]
    return [each for each in events if each.event is EventName.GPU_XID]


def with_fault(present: Node, *xids: IncidentXid) -> Node:
    """Return a node with an incident that has these Xids."""
    gpus = tuple({xid.gpu for xid in xids if xid.gpu is not None})
    fault = Incident(id="1", daemon=DAEMON, server=SERVER, started_at=AT, detected_at=AT, xids=xids, gpus=gpus)
    return replace(present, incidents={fault.id: fault})


# -- one report each -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seen", [(kernel(), event(at=AT + 0.02)), (event(), kernel(at=AT + 0.02))])
def test_combines_reports_of_both_sources(seen: tuple[Observation, ...]) -> None:
    assert recent(*seen) == (SEEN,)


def test_each_of_several_simultaneous_xids_has_its_own_process() -> None:
    lines = [kernel(45, at=AT + 0.1, who=f"pid={pid}, name=w, ") for pid in (600, 601, 602)]

    assert [each.pid for each in recent(*(event(45) for _ in lines), *lines)] == [600, 601, 602]


def test_xids_are_removed_after_some_seconds() -> None:
    assert len(recent(kernel(), look(at=AT + RECENT_SECONDS))) == 1
    assert recent(kernel(), look(at=AT + RECENT_SECONDS + 0.1)) == ()


# -- Xids without an incident --------------------------------------------------------------------------------------


def test_xid_without_an_incident_is_reported_when_its_time_is_over() -> None:
    """A bypassing process has faults of its own."""
    assert xid_events(kernel(), SOON) == []
    assert xid_events(kernel(), event(), SOON, AFTER_CLAIM, look(at=AT + 3), look(at=AT + 9)) == [
        Event(at=AT, event=EventName.GPU_XID, gpu=GPU, xid=31, pid=600, name="train")
    ]


def test_xid_without_an_incident_is_reported_when_the_recording_ends() -> None:
    assert [each.xid for each in xid_events_of_recording(kernel(13), SOON)] == [13]
    assert [each.xid for each in xid_events_of_recording(kernel(13), AFTER_CLAIM)] == [13]


def test_xid_of_an_incident_has_no_event() -> None:
    """The second source may have added details since then."""
    seen = reduced(*TWO_GPUS, event()).node
    (reported,) = seen.xids.recent

    assert xid_events(kernel(at=AT + 0.02), AFTER_CLAIM, start=with_fault(seen, reported)) == []


def test_xid_of_another_gpu_has_an_event() -> None:
    seen = reduced(*TWO_GPUS, event(), event(gpu=OTHER_GPU)).node

    assert [each.gpu for each in xid_events(AFTER_CLAIM, start=with_fault(seen, seen.xids.recent[0]))] == [OTHER_GPU]


def test_time_number_and_gpu_identify_an_xid(subtests: pytest.Subtests) -> None:
    for other, expected in [
        (SEEN, True),
        (replace(SEEN, settled=True), True),
        (IncidentXid(at=AT, number=31, gpu=GPU), True),
        (IncidentXid(at=AT, number=31, bus_id=ADDRESS), True),
        (IncidentXid(at=AT, number=31), True),
        (replace(SEEN, gpu=OTHER_GPU), False),
        (IncidentXid(at=AT, number=31, bus_id=OTHER_ADDRESS), False),
        (replace(SEEN, number=43), False),
        (replace(SEEN, at=AT + 0.1), False),
    ]:
        with subtests.test(other=other, expected=expected):
            assert is_same(SEEN, other) is is_same(other, SEEN) is expected
            assert is_claimed(with_fault(node(), other), SEEN) is expected


def test_event_of_an_unknown_gpu_has_its_bus_address() -> None:
    assert [each.gpu for each in xid_events(kernel(address="0000:c1:00"), AFTER_CLAIM)] == ["PCI:0000:c1:00"]
    assert [each.gpu for each in xid_events(event(gpu=None), AFTER_CLAIM)] == [None]


def test_process_name_is_printable_and_short() -> None:
    (reported,) = xid_events(kernel(who=f"pid=600, name=\x1b[31m\n{'x' * 300}, "), AFTER_CLAIM)

    assert reported.name is not None
    assert reported.name.isprintable()
    assert len(reported.name) <= 128
    assert reported.pid == 600


# -- floods --------------------------------------------------------------------------------------------------------


def flood(seconds: float, number: int = 31) -> list[Observation]:
    """A thousand Xids a second."""
    return [kernel(number, at=AT + tick / 1000) for tick in range(int(seconds * 1000))]


def test_a_flood_has_few_events_and_a_complete_count() -> None:
    seconds = 1.2 * BURST_SECONDS
    result = reduced(*TWO_GPUS, *flood(seconds), look(at=AT + seconds + 5))

    assert MAX_REPORTED <= len(result.of(EventName.GPU_XID)) <= MAX_REPORTED * 2
    assert result.node.xids.counts[GPU, "31"].total == seconds * 1000
    assert result.node.xids.recent == ()


def test_a_rare_xid_in_a_flood_stays_available_and_is_reported() -> None:
    rare = kernel(79, at=AT + 0.0005, who="")
    seen = sorted([*flood(1.0), rare], key=lambda each: each.at)
    result = reduced(*TWO_GPUS, *seen)

    assert MAX_RECENT / 2 < len(result.node.xids.recent) <= MAX_RECENT
    assert [each.settled for each in result.node.xids.recent if each.number == 79] == [False]
    assert [each.xid for each in reduced(AFTER_CLAIM, start=result.node).of(EventName.GPU_XID)].count(79) == 1


def test_many_different_numbers_have_few_events() -> None:
    seen = [kernel(number, at=AT + number / 1000) for number in range(2000)]

    assert len(xid_events_of_recording(*seen)) < 100


reports_in_order = st.builds(
    lambda make, number, at: make(number, at=AT + at),
    st.sampled_from((kernel, event)),
    st.sampled_from((13, 31, 45)),
    st.floats(-10, 10),
)


@given(st.lists(reports_in_order | st.sampled_from(TWO_GPUS), max_size=30))
@settings(max_examples=100)
def test_in_any_order_there_are_as_many_events_as_counted_xids(seen: list[Observation]) -> None:
    present, events = node(), list[Event]()
    for after, new_events in reduce_all(present, (*TWO_GPUS, *seen)):
        present = after
        events.extend(new_events)
    result = Reduced(present, tuple(events))
    reported = sorted((event.gpu, str(event.xid)) for event in result.of(EventName.GPU_XID))

    assert reported == sorted(key for key, count in present.xids.counts.items() for _ in range(count.total))
