"""Xids: each is counted once, whoever tells of it and however often, on the GPU that had it, and is never forgotten."""

import json
from collections.abc import Mapping
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.metrics.catalogue import NodeCollector
from exporter.model.node import Node
from exporter.model.observation import GpuEvent, GpuReading, KernelRecord, Observation
from exporter.parse.kernel_log import parse_xid
from exporter.state.xids import MAX_GPUS, MAX_NUMBERS, MAX_UNMATCHED, OTHER, PAIR_SECONDS, WELL_KNOWN
from exporter.view import View
from tests.builders import AT, GPU, OTHER_GPU, RECORDINGS, Recorded, failure, gpu_reading, look, reduced
from tests.state.xid_reports import ADDRESS, OTHER_ADDRESS, TWO_GPUS, at_address, event, kernel

LATER = look(at=AT + 60)
"""By then, every witness has spoken."""


def counts(*seen: Observation, start: tuple[Observation, ...] = TWO_GPUS) -> Mapping[tuple[str, str], int]:
    return {key: count.total for key, count in reduced(*start, *seen, LATER).node.xids.counts.items()}


# -- one fault is one count ----------------------------------------------------------------------------------------


def test_the_kernel_alone_tells_of_one() -> None:
    """A misaligned store wrote two, and NVML told of neither."""
    assert counts(kernel(13), kernel(13)) == {(GPU, "13"): 2}


def test_nvml_alone_tells_of_one() -> None:
    assert counts(event(31)) == {(GPU, "31"): 1}


@pytest.mark.parametrize("seen", [(kernel(), event(at=AT + 0.02)), (event(), kernel(at=AT + 0.02))])
def test_one_that_both_tell_of_is_one_whoever_is_first(seen: tuple[Observation, ...]) -> None:
    assert counts(*seen) == {(GPU, "31"): 1}


def test_three_that_both_tell_of_are_three() -> None:
    times = [AT, AT + 0.1, AT + 0.2]

    assert counts(*(kernel(45, at=at) for at in times), *(event(45, at=at + 0.3) for at in times)) == {(GPU, "45"): 3}


def test_a_telling_pairs_once() -> None:
    assert counts(kernel(), event(), event()) == {(GPU, "31"): 2}
    assert counts(event(), kernel(), kernel(), event()) == {(GPU, "31"): 2}


def test_other_numbers_and_other_gpus_are_other_xids() -> None:
    assert counts(kernel(31), event(43)) == {(GPU, "31"): 1, (GPU, "43"): 1}
    assert counts(kernel(31), event(31, gpu=OTHER_GPU)) == {(GPU, "31"): 1, (OTHER_GPU, "31"): 1}


def test_what_is_told_much_later_is_another() -> None:
    assert counts(kernel(), event(at=AT + PAIR_SECONDS + 0.1)) == {(GPU, "31"): 2}


def test_the_last_one_has_its_time() -> None:
    after = reduced(*TWO_GPUS, kernel(at=AT + 1), kernel(at=AT + 9), event(at=AT + 9.02)).node

    assert after.xids.counts[GPU, "31"].last_at == AT + 9


@pytest.mark.parametrize("kind", [1, 2, 4, 16, 256])
def test_other_events_of_nvml_are_no_xids(kind: int) -> None:
    assert counts(event(kind=kind)) == {}


def test_what_a_program_wrote_into_the_kernels_log_is_not_counted() -> None:
    assert counts(kernel(79, prefix=12)) == {}


# -- whose it is ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["0000:00:06.0", "00000000:00:06.0", "00000000:00:06.1"])
def test_nvml_says_where_a_gpu_is(form: str) -> None:
    assert counts(kernel(), start=(at_address(address=form),)) == {(GPU, "31"): 1}


def test_so_does_the_driver_before_a_gpus_first_xid() -> None:
    where = KernelRecord(at=AT, record=f"4,358,1,c;NVRM: GPU at PCI:{ADDRESS}: {GPU}")

    assert counts(where, kernel(), start=()) == {(GPU, "31"): 1}


def test_a_gpu_that_nvml_can_no_longer_read_is_still_where_it_was() -> None:
    """It fell off the bus, and then comes the Xid that says so."""
    lost = GpuReading(at=AT + 1, gpu=GPU, index=0, problem=failure("GPU is lost"))

    assert counts(lost, look(at=AT + 20), kernel(79, at=AT + 21)) == {(GPU, "79"): 1}


def test_one_of_an_unknown_gpu_is_counted_where_it_was() -> None:
    assert counts(kernel(79, address="0000:c1:00")) == {("PCI:0000:c1:00", "79"): 1}


def test_and_stays_counted_there_once_it_is_known_whose_it_was() -> None:
    soon = look(at=AT + PAIR_SECONDS + 1)
    assert counts(kernel(79), soon, *TWO_GPUS, kernel(79, at=AT + 9), start=()) == {
        (f"PCI:{ADDRESS}", "79"): 1,
        (GPU, "79"): 1,
    }


def test_one_at_the_very_start_waits_for_nvml_to_say_whose_it_was() -> None:
    assert counts(kernel(79), *TWO_GPUS, start=()) == {(GPU, "79"): 1}


def test_an_event_without_its_gpu_is_the_only_gpus() -> None:
    assert counts(event(gpu=None), start=(at_address(),)) == {(GPU, "31"): 1}


@pytest.mark.parametrize(
    "seen",
    [
        (kernel(address=OTHER_ADDRESS), event(gpu=None)),
        (event(gpu=None), kernel(address=OTHER_ADDRESS)),
    ],
)
def test_or_that_of_the_other_witness_whoever_is_first(seen: tuple[Observation, ...]) -> None:
    assert counts(*seen) == {(OTHER_GPU, "31"): 1}


def test_a_line_of_an_unknown_place_is_of_the_gpu_that_nvml_names() -> None:
    for seen in ((kernel(), event()), (event(), kernel())):
        assert counts(*seen, start=(gpu_reading(), gpu_reading(gpu=OTHER_GPU))) == {(GPU, "31"): 1}


def test_but_not_where_that_gpu_is_elsewhere() -> None:
    """In a container that has some of the GPUs, the kernel tells of all."""
    for seen in ((kernel(address="0000:c1:00"), event()), (event(), kernel(address="0000:c1:00"))):
        assert counts(*seen) == {(GPU, "31"): 1, ("PCI:0000:c1:00", "31"): 1}


def test_an_event_without_its_gpu_is_where_the_kernel_says_it_was() -> None:
    assert counts(event(gpu=None), kernel(address="0000:c1:00")) == {("PCI:0000:c1:00", "31"): 1}


def test_or_nobodys() -> None:
    assert counts(event(gpu=None)) == {("", "31"): 1}


def test_a_line_pairs_with_its_own_gpus_event_before_one_that_could_be_anybodys() -> None:
    assert counts(event(gpu=None), event(), kernel(at=AT + 1)) == {("", "31"): 1, (GPU, "31"): 1}


# -- bounds --------------------------------------------------------------------------------------------------------


def test_numbers_without_end_are_counted_as_others() -> None:
    """But those that everybody waits for are always counted as themselves."""
    after = counts(*(kernel(number) for number in range(1000, 1200)), kernel(79))

    assert after[GPU, "79"] == 1
    assert len(after) <= MAX_NUMBERS + 1
    assert after[GPU, OTHER] == 201 - (len(after) - 1)


def test_gpus_without_end_are_counted_as_others() -> None:
    after = counts(*(kernel(address=f"{domain:04x}:00:06") for domain in range(1, 200)))

    assert len(after) == MAX_GPUS + 1
    assert sum(after.values()) == 199


def test_what_waits_for_the_other_witness_is_bounded() -> None:
    after = reduced(*TWO_GPUS, *(kernel() for _ in range(MAX_UNMATCHED * 2))).node

    assert len(after.xids.unmatched) == MAX_UNMATCHED
    assert after.xids.counts[GPU, "31"].total == MAX_UNMATCHED * 2
    assert reduced(LATER, start=after).node.xids.unmatched == ()


def test_but_none_of_what_waits_is_lost() -> None:
    assert counts(*(event(gpu=None) for _ in range(MAX_UNMATCHED * 2))) == {("", "31"): MAX_UNMATCHED * 2}


tellings = st.builds(
    lambda make, number, at: make(number, at=AT + at),
    st.sampled_from((kernel, event, partial(event, gpu=None), partial(kernel, address="0000:c1:00"))),
    st.sampled_from((13, 31, 45)),
    st.floats(-10, 10),
)


@given(st.lists(tellings | st.sampled_from(TWO_GPUS), max_size=30))
@settings(max_examples=100)
def test_in_any_order_counts_only_grow_and_no_xid_is_lost(seen: list[Observation]) -> None:
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


# -- recordings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recorded", RECORDINGS, ids=repr)
def test_a_recording_has_as_many_as_its_kernel_wrote_each_on_its_gpu(recorded: Recorded) -> None:
    """NVML's events tell of the same ones."""
    written = [seen["record"].partition(";")[2] for seen in recorded.raw if seen["source"] == "kernel"]
    expected: dict[tuple[str, str], int] = {}
    for error in (parse_xid(message) for message in written):
        if error is not None:
            key = (gpu_of(recorded, error.bus_id), str(error.number))
            expected[key] = expected.get(key, 0) + 1

    assert {key: count.total for key, count in recorded.story.node.xids.counts.items()} == expected


def gpu_of(recorded: Recorded, address: str) -> str:
    """By the recording's header."""
    gpus = json.loads(recorded.text.partition("\n")[0])["gpus"]
    (found,) = (gpu["uuid"] for gpu in gpus if gpu["pci_bus_id"].rpartition(".")[0].endswith(address))
    return str(found)


# -- metrics -------------------------------------------------------------------------------------------------------


def samples(node: Node, name: str, *, clock_step: float = 0.0) -> dict[tuple[str, str], float]:
    """By GPU and number."""
    return {
        (sample.labels["gpu"], sample.labels["xid"]): sample.value
        for metric in NodeCollector(View(node, clock_step=clock_step)).collect()
        for sample in metric.samples
        if sample.name == name
    }


def errors(*seen: Observation) -> dict[tuple[str, str], float]:
    return samples(reduced(*seen).node, "cuda_mps_xid_errors_total")


@pytest.mark.parametrize("source", ["kernel", "nvml_events"])
def test_a_gpu_has_a_zero_for_each_well_known_number_while_somebody_would_tell(source: str) -> None:
    assert errors(*TWO_GPUS, look(source)) == {
        (gpu, str(number)): 0 for gpu in (GPU, OTHER_GPU) for number in WELL_KNOWN
    }


def test_there_is_no_zero_where_nobody_would_tell() -> None:
    """Failure is not idleness."""
    assert errors(*TWO_GPUS, look("nvml")) == {}
    blind = (look("kernel", problem=failure("may not")), look("nvml_events", problem=failure("no NVML")))
    assert errors(*TWO_GPUS, *blind) == {}
    assert errors(*TWO_GPUS, blind[0], look("nvml_events")) != {}


def test_what_was_counted_stays_when_its_witnesses_have_gone_blind_and_its_gpu_has_gone() -> None:
    gone = GpuReading(at=AT + 5, gpu=GPU, problem=failure("GPU is lost"))

    assert errors(*TWO_GPUS, look("kernel"), kernel(79), gone, look("kernel", problem=failure("x"), at=AT + 9)) == {
        (GPU, "79"): 1
    }


def test_a_recording_without_its_sources_has_zeros_once_it_has_an_xid() -> None:
    after = errors(*TWO_GPUS, kernel(109))

    assert after[GPU, "109"] == 1
    assert after[OTHER_GPU, "79"] == 0
    assert (OTHER_GPU, "109") not in after


def test_when_it_was_last_is_told_in_the_walls_time() -> None:
    node = reduced(*TWO_GPUS, kernel(31, at=AT + 3)).node

    assert samples(node, "cuda_mps_xid_last_timestamp_seconds", clock_step=100.0) == {(GPU, "31"): AT + 103}
