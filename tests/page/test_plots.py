"""The plots of the last hour: their shapes, gaps, texts and table."""

import re
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from exporter.model.identity import Workload, WorkloadKind
from exporter.model.usage import MAX_SAMPLES, SAMPLE_SECONDS, Division, Sample, WorkloadPart
from exporter.page.plots import FULL_HEIGHT, HEIGHT, MOST_BANDS, Hour, plots
from exporter.report.node_status import StatusInput
from tests.page.inputs import busy, fault, hour, idle

GIB = 1 << 30
END = idle().at - idle().at % SAMPLE_SECONDS


def plotted(samples: Iterable[Sample], given: StatusInput | None = None) -> SimpleNamespace:
    """Return the plots of these samples, without the values of the node."""
    given = replace(given or idle(), samples=tuple(samples))
    view = replace(given, node=replace(given.node, sources={}))
    return plots(view, Hour(view))


def clients(*counts: int | None) -> list[Sample]:
    """Return samples with these numbers of clients, the last one now."""
    begin = END - SAMPLE_SECONDS * (len(counts) - 1)
    return [Sample(at=begin + SAMPLE_SECONDS * number, clients=count) for number, count in enumerate(counts)]


def memory(**amounts: float) -> Division:
    parts = (
        WorkloadPart(workload=Workload(kind=WorkloadKind.USER, name=name), amount=amount * GIB)
        for name, amount in amounts.items()
    )
    return Division(capacity=100 * GIB, parts=tuple(parts), rest=10 * GIB)


def areas(plot: SimpleNamespace) -> list[list[tuple[int, int]]]:
    """Return the rectangles of each path, as begin and end of the slots; each path is closed and in the plot."""
    found = []
    for band in plot.bands:
        assert re.fullmatch(r"(M\d+ 100(V\d+h\d+)+V100)+", band.path)
        assert all(HEIGHT - FULL_HEIGHT <= int(y) <= HEIGHT for y in re.findall(r"V(\d+)", band.path))
        runs = re.findall(r"M(\d+) 100((?:V\d+h\d+)+)V100", band.path)
        found.append([(int(begin), int(begin) + sum(map(int, re.findall(r"h(\d+)", run)))) for begin, run in runs])
    return found


def test_a_gap_is_drawn_as_a_gap_and_not_interpolated() -> None:
    (shown, *_) = plotted([*clients(4, 5, 5, None, None, 9, 9)]).plots
    begin = MAX_SAMPLES - 7
    assert areas(shown) == [[(begin, begin + 3), (begin + 5, MAX_SAMPLES)]]
    assert shown.bands[0].path == "M113 100V62h1V53h2V100M118 100V15h2V100"
    assert shown.gaps == ((0.0, 94.17), (96.67, 1.67))
    assert shown.summary == "9 now; 4 to 9 in the last hour; unknown for 57 min 30 s"


def test_time_in_which_the_exporter_did_not_run_is_a_gap() -> None:
    samples = [*clients(*(3,) * 10)]
    (shown, *_) = plotted([*samples[:2], *samples[6:]]).plots
    assert shown.gaps == ((0.0, 91.67), (93.33, 3.33))


def test_what_was_never_known_is_called_unknown() -> None:
    (counts, held, used) = plotted(()).plots
    for shown in (counts, held, used):
        assert (shown.summary, shown.bands, shown.gaps) == (
            "unknown now; unknown for the last hour",
            (),
            ((0.0, 100.0),),
        )


def test_the_present_values_are_those_of_the_node() -> None:
    view = replace(busy(), samples=hour(busy().at))
    (counts, held, _) = plots(view, Hour(view)).plots
    assert (counts.summary.split(";")[0], held.summary.split(";")[0]) == ("3 now", "10.3 GiB now")
    late = replace(busy(), at=busy().at + 300)
    assert all(each.summary.startswith("unknown now") for each in plots(late, Hour(late)).plots)


def test_zero_is_no_gap() -> None:
    (shown, *_) = plotted(clients(*(0,) * MAX_SAMPLES)).plots
    assert (shown.gaps, shown.summary) == ((), "0 now; 0 to 0 in the last hour")


def test_workloads_are_stacked_and_the_unattributed_rest_is_on_top() -> None:
    samples = [Sample(at=each.at, memory=memory(alice=40, bob=20)) for each in clients(*(0,) * MAX_SAMPLES)]
    found = plotted(samples)
    held = found.plots[1]
    assert [(each.kind, each.path, each.label) for each in held.bands] == [
        ("rest", "M0 100V40h120V100", ""),
        ("h1", "M0 100V49h120V100", ""),
        ("h0", "M0 100V66h120V100", "1"),
    ]
    assert [(each.label, each.name, each.memory, each.sm) for each in found.rows] == [
        ("1", "user alice", "40.0 GiB", "unknown"),
        ("2", "user bob", "20.0 GiB", "unknown"),
        ("", "unattributed", "10.0 GiB", "unknown"),
    ]
    assert (held.top, held.summary) == ("100 GiB", "70.0 GiB now; 70.0 GiB to 70.0 GiB in the last hour")


@pytest.mark.parametrize(("rest", "shown"), [(50.0, "unknown"), (0.5, "0 %")])
def test_a_workload_without_sm_time_may_have_used_what_is_unattributed(rest: float, shown: str) -> None:
    used = Workload(kind=WorkloadKind.USER, name="used")
    sm = Division(capacity=100, parts=(WorkloadPart(workload=used, amount=10.0),), rest=rest)
    rows = plotted([Sample(at=END, clients=2, memory=memory(used=20, held=10), sm=sm)]).rows
    assert [(each.name, each.sm) for each in rows][:2] == [("user used", "10 %"), ("user held", shown)]


def test_the_largest_workloads_have_bands_and_the_others_share_one() -> None:
    found = plotted(hour(END, 40))
    kinds = [each.kind for each in found.plots[1].bands]
    assert kinds == ["rest", "others", *(f"h{number}" for number in reversed(range(MOST_BANDS)))]
    assert [each.name for each in found.rows][-2:] == ["other workloads", "unattributed"]
    for each in found.plots:
        areas(each)


def test_small_workloads_are_drawn_as_others() -> None:
    amounts = {f"n{number}": 2.0 + number for number in range(MOST_BANDS)}
    rows = plotted([Sample(at=END, clients=9, memory=memory(small=1.0, smallest=0.5, **amounts))]).rows
    assert [(each.name, each.memory) for each in rows[-2:]] == [
        ("other workloads", "1.5 GiB"),
        ("unattributed", "10.0 GiB"),
    ]


def test_faults_of_the_hour_are_marked_on_each_plot() -> None:
    found = plotted(hour(fault().at), fault())
    assert len(found.faults) == 2
    assert all(0 <= each <= 100 for each in found.faults)
    assert all("2 faults marked" in each.description for each in found.plots)
    later = replace(fault(), at=fault().at + 3600)
    assert plotted((), later).faults == ()
