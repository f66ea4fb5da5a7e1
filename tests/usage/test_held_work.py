"""Work that no launch of its window shows: from before, copies, and of clients whose first launches were missed."""

import pytest

from exporter.model.launches import ProcessWork
from exporter.model.node import Node
from tests.builders import AT, CLIENT, GPU
from tests.usage.seconds import BEGAN, NEXT, after, done, present, second

SECOND_NS = 1_000_000_000
WIDTH, SMS = 33, 132
FIRST_NS = BEGAN + 1


def kernel(seconds: float, *, ended: float = 0.0, graph: bool = False, **known: int) -> ProcessWork:
    """Return the work of a client that launched once, and waits. Before a pause, it was `ended` as it seemed then."""
    flight, closed = round(seconds * SECOND_NS), round(ended * SECOND_NS)
    launched = {"graphs": 1, "graph_kernels": 3} if graph else {"kernels": 1}
    counts = {"syncs": 1, "widths": WIDTH, "initialized_ns": FIRST_NS, **launched}
    counts |= {"flight_ns": closed, "area": closed * WIDTH, "bound": closed * (SMS if graph else WIDTH)}
    opened = {"open_ns": flight, "open_area": flight * WIDTH, "open_bound": flight * (SMS if graph else WIDTH)}
    return ProcessWork(pid=CLIENT, first_ns=FIRST_NS, **{**counts, **opened, "open_busy_ns": flight, **known})


def known(milliseconds: float) -> ProcessWork:
    """Return the work of a client that waits for each of its kernels."""
    return done(NEXT, milliseconds, initialized_ns=FIRST_NS)


def shares(node: Node) -> dict[int, tuple[float, float]]:
    """Return the shares and errors of the last window, in percent of all SMs."""
    window = node.attribution[GPU].windows[-1]
    return {pid: (100 * share.sm, 100 * share.error) for pid, share in window.estimates.items()}


def used(*works: ProcessWork | None, sm: float) -> Node:
    """Return the node after seconds in which the other client used 5 % of the SMs."""
    node = present(CLIENT, NEXT)
    for number, work in enumerate(works, start=1):
        seen = (known(200 * number),) if work is None else (work, known(200 * number))
        node = after(node, *second(AT + number, *seen, sm=sm))
    return node


@pytest.mark.parametrize("graph", [False, True], ids=["kernel", "graph"])
def test_one_kernel_uses_its_width_for_as_long_as_a_thread_waits(graph: bool) -> None:
    """Of a graph, only the mean width is known. GPM shows the rest."""
    (sm, error), _ = shares(used(*(kernel(each, graph=graph) for each in range(1, 90)), sm=0.30)).values()
    assert sm == pytest.approx(25, abs=1)
    assert error < 2.5


def test_it_still_runs_after_a_pause_of_the_probes() -> None:
    """Recordings of earlier versions count its span as ended by a pause."""
    before = [kernel(each) for each in range(1, 6)]
    later = [kernel(0, ended=5, open_busy_ns=0)] * 20
    assert shares(used(*before, *later, sm=0.30))[CLIENT][0] == pytest.approx(25, abs=1)


def test_a_call_after_the_pause_shows_that_it_has_ended() -> None:
    before = [kernel(each) for each in range(1, 6)]
    later = [kernel(0, ended=5, open_busy_ns=0, records=1)] * 20
    assert shares(used(*before, *later, sm=0.05))[CLIENT][0] < 1


@pytest.mark.parametrize("rest", [0.0, 40.0])
def test_a_client_that_copies_uses_what_is_left(rest: float) -> None:
    """Copies within the GPU run on SMs, and others do not. Both are waited for without a launch."""
    copies = [ProcessWork(pid=CLIENT, first_ns=FIRST_NS, syncs=500 * n, initialized_ns=FIRST_NS) for n in range(1, 20)]
    found = shares(used(*copies, sm=0.043 + rest / 100))
    assert found[CLIENT][0] == pytest.approx(rest, abs=2)
    assert found[NEXT][0] == pytest.approx(4.3, abs=1)


@pytest.mark.parametrize("rest", [0.0, 20.0])
def test_the_rest_is_of_the_client_whose_first_launches_were_missed(rest: float) -> None:
    """Its graph was launched before the probes were attached: they have never seen a call of it."""
    found = shares(used(*[None] * 20, sm=0.043 + rest / 100))
    assert found[CLIENT][0] == pytest.approx(rest, abs=2)
    assert found[CLIENT][1] > 0
    assert found[NEXT][0] == pytest.approx(4.3, abs=1)


def test_a_client_that_has_launched_nothing_since_its_start_uses_nothing() -> None:
    idle = [ProcessWork(pid=CLIENT, first_ns=FIRST_NS, initialized_ns=FIRST_NS)] * 20
    assert shares(used(*idle, sm=0.05))[CLIENT] == (0, 0)


def test_clients_of_an_idle_gpu_used_nothing() -> None:
    idle = [ProcessWork(pid=pid, first_ns=FIRST_NS, initialized_ns=FIRST_NS) for pid in (CLIENT, NEXT)]
    node = present(CLIENT, NEXT)
    for number in range(1, 10):
        node = after(node, *second(AT + number, *idle, sm=0.0))
    assert shares(node) == {CLIENT: (0, 0), NEXT: (0, 0)}


def test_what_no_launch_explains_is_in_the_error_of_a_client_that_launched_once() -> None:
    """Most of its work began before the probes were attached."""
    once = [ProcessWork(pid=CLIENT, first_ns=FIRST_NS, kernels=1, widths=1)] * 20
    sm, error = shares(used(*once, sm=0.30))[CLIENT]
    assert sm < 25 <= sm + 2 * error + 2
