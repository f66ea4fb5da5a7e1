"""Failure domains: who falls with whom is known before any fault; where it is not, it is not said."""

from collections.abc import Mapping, Set
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.model.daemon import Daemon
from exporter.model.node import Node
from exporter.model.observation import GpuProcess, GpuReading
from exporter.model.server import Client, Disconnect, Server
from exporter.state.failure_domains import FailureDomain, failure_domains, gpus_of_clients
from exporter.state.reducer import reduce
from tests.builders import (
    AT,
    CLIENT,
    DAEMON,
    GPU,
    OTHER_GPU,
    RECORDINGS,
    SERVER,
    Recorded,
    at_work,
    failure,
    gpu_lost,
    gpu_reading,
    look,
    reduced,
    reply,
    three_clients,
)

A, B, C, D = range(CLIENT, CLIENT + 4)
BOTH = frozenset({GPU, OTHER_GPU})


def seen(*clients: int, first: Set[int] = frozenset(), second: Set[int] = frozenset()) -> Node:
    """Clients of one server, and on which of two GPUs NVML sees them."""
    return reduced(*at_work(*clients), gpu_reading(first), gpu_reading(second, gpu=OTHER_GPU, index=1)).node


def of(present: Node) -> Daemon:
    return present.daemons[DAEMON]


def domain_of(present: Node, daemon: Daemon, pid: int) -> FailureDomain | None:
    every = (each for here in failure_domains(present, daemon).values() for each in here)
    return next((each for each in every if pid in each.clients), None)


def gpus_of(present: Node, daemon: Daemon, pid: int) -> Set[str] | None:
    return gpus_of_clients(present, daemon, (pid,)).get(pid)


def logged(present: Node, found: Mapping[int, Set[str]]) -> Node:
    """The same node, had the log told where some clients' contexts are."""
    clients = of(present).clients
    placed = {pid: replace(clients[pid], gpus=frozenset(gpus)) for pid, gpus in found.items()}
    return replace(present, daemons={DAEMON: replace(of(present), clients={**clients, **placed})})


def together(present: Node, server: int = SERVER) -> set[frozenset[int]]:
    """Who falls with whom."""
    return {domain.clients for domain in failure_domains(present, of(present))[server]}


class TestWhoFallsWithWhom:
    """All who share a GPU, and all who share one with those."""

    def test_clients_on_one_gpu_fall_together(self) -> None:
        """All of them."""
        assert together(seen(A, B, C, first={A, B, C})) == {frozenset({A, B, C})}

    def test_clients_on_two_gpus_stand_apart(self) -> None:
        """Though their server is the same."""
        assert together(seen(A, B, C, first={A, B}, second={C})) == {frozenset({A, B}), frozenset({C})}

    def test_one_client_on_both_joins_them(self) -> None:
        """A fault on GPU 0 then ends those of GPU 1 too (measured)."""
        present = seen(A, B, C, first={A, B}, second={B, C})
        assert failure_domains(present, of(present)) == {
            SERVER: (FailureDomain(clients=frozenset({A, B, C}), gpus=BOTH),)
        }

    def test_clients_of_two_servers_stand_apart_on_the_same_gpu(self) -> None:
        """Each server is in FAULT for itself."""
        present = reduced(*at_work(A, B), *at_work(C, D, server=SERVER + 1), gpu_reading([A, B, C, D])).node
        assert together(present, SERVER) == {frozenset({A, B})}
        assert together(present, SERVER + 1) == {frozenset({C, D})}

    def test_of_one_client(self) -> None:
        """Or of somebody who is none."""
        present = seen(A, B, C, first={A, B}, second={C})
        assert domain_of(present, of(present), C) == FailureDomain(clients=frozenset({C}), gpus=frozenset({OTHER_GPU}))
        assert domain_of(present, of(present), D) is None

    def test_a_server_without_clients_has_none(self) -> None:
        """It is there all the same."""
        present = reduced(*at_work()).node
        assert failure_domains(present, of(present)) == {SERVER: ()}


class TestWhereAClientIs:
    """As its server's log told, and as NVML sees it."""

    def test_the_log_and_nvml_add_to_each_other(self) -> None:
        """NVML looks every ten seconds, and a log may have been read from its middle."""
        present = logged(seen(A, B, first={A}, second={B}), {A: {OTHER_GPU}})
        assert gpus_of(present, of(present), A) == BOTH
        assert together(present) == {frozenset({A, B})}

    def test_a_starting_client_is_not_yet_on_every_gpu(self) -> None:
        """Until it has a context, NVML has it in the MPS list of all GPUs, with no memory (measured)."""
        starting = gpu_reading({A: 1000, B: 0}), gpu_reading({B: 14, C: 0}, gpu=OTHER_GPU, index=1)
        bare = [replace(each, compute_processes=()) for each in starting]
        present = reduced(*at_work(A, B, C), *bare).node
        assert gpus_of(present, of(present), B) == {OTHER_GPU}
        assert gpus_of(present, of(present), C) is None

    def test_memory_that_is_not_told_does_not_matter_in_the_compute_list(self) -> None:
        """Whoever is there has a context."""
        silent = GpuReading(at=AT, gpu=GPU, index=0, compute_processes=(GpuProcess(pid=A),), mps_processes=())
        other = gpu_reading({B: 100}, gpu=OTHER_GPU, index=1)
        present = reduced(*at_work(A, B), silent, other).node
        assert gpus_of(present, of(present), A) == {GPU}

    def test_where_the_daemon_has_one_gpu_there_is_no_question(self) -> None:
        """Whether NVML has looked since, or not."""
        present = reduced(gpu_reading(), *at_work(A, B)).node
        assert gpus_of(present, of(present), A) == {GPU}
        assert together(present) == {frozenset({A, B})}

    def test_one_of_the_nodes_gpus_is_the_daemons_only_one(self) -> None:
        """As it said itself."""
        has = reply("device_query --csv", f"Default\n0,0000:00.07.00,{OTHER_GPU},NVIDIA H200,N/A\n")
        present = reduced(has, start=seen(A)).node
        assert gpus_of(present, of(present), A) == {OTHER_GPU}

    def test_where_it_has_several_or_none_is_known_nothing_is_said(self) -> None:
        """Not a guess: whoever is nowhere falls with nobody known."""
        for present in (seen(A, B, first={B}), reduced(*at_work(A, B)).node):
            assert gpus_of(present, of(present), A) is None
            assert domain_of(present, of(present), A) is None

    def test_a_gpu_that_could_not_be_read_says_nothing(self) -> None:
        """What NVML saw before is not what is; and who is seen on another GPU may be on this one too."""
        present = logged(gpu_lost(), {C: {OTHER_GPU}})
        assert gpus_of(three_clients(), of(three_clients()), A) == BOTH
        assert gpus_of(present, of(present), A) == {GPU}
        assert domain_of(present, of(present), A) is None
        assert together(present) == {frozenset({C})}

    def test_on_the_only_gpu_everybody_is_together_though_it_could_not_be_read(self) -> None:
        """There is no other."""
        failed = GpuReading(at=AT + 9, gpu=GPU, problem=failure("GPU is lost"))
        present = reduced(gpu_reading([A]), *at_work(A, B), failed).node
        assert together(present) == {frozenset({A, B})}

    def test_under_mig_nvmls_lists_say_nothing(self) -> None:
        """They are of all instances together."""
        mig = [gpu_reading([A], mig_mode=True), gpu_reading([A], gpu=OTHER_GPU, index=1, mig_mode=True)]
        present = logged(reduced(*at_work(A, B), *mig, look()).node, {B: {GPU}})
        assert gpus_of(present, of(present), A) is None
        assert gpus_of(present, of(present), B) == {GPU}

    def test_who_has_just_left_was_there(self) -> None:
        """So that a fault which a dying client leaves behind is told of its GPU."""
        left = Disconnect(pid=D, server=SERVER, at=AT, stamp="", gpus=frozenset({GPU}))
        present = seen(A)
        daemon = replace(known := of(present), connections=replace(known.connections, disconnects={D: left}))
        assert gpus_of(present, daemon, D) == {GPU}
        assert domain_of(present, daemon, D) is None


def struck_at(recorded: Recorded) -> float | None:
    """When the one fault that hit others was made: as the client that made it wrote down, or when it was killed."""
    truth = recorded.truth
    if not truth.get("culprit") or not truth["victims"] or truth.get("also_culprits"):
        return None
    killed = (each["at"] for each in truth["happened"] if each.get("pid") == truth["culprit"])
    at: float | None = truth["clients"][str(truth["culprit"])].get("faulted") or next(killed, None)
    return at


def just_before(recorded: Recorded, at: float) -> Node:
    """What was known then."""
    present = Node()
    for each in recorded.observations:
        if each.at >= at:
            break
        present, _ = reduce(present, each)
    return present


FAULTS = [recorded for recorded in RECORDINGS if struck_at(recorded) is not None]


@pytest.mark.parametrize("recorded", FAULTS, ids=repr)
def test_whom_a_fault_hit_was_known_before_it(recorded: Recorded) -> None:
    """The culprit's domain is the culprit and its victims; but for who still had time to leave."""
    struck = struck_at(recorded)
    assert struck is not None
    present = just_before(recorded, struck)
    (daemon,) = present.daemons.values()
    domain = domain_of(present, daemon, recorded.truth["culprit"])
    assert domain is not None
    culprit = recorded.truth["culprit"]
    gone = {int(pid) for pid, client in recorded.truth["clients"].items() if client["exit_code"] in (0, -9)} - {culprit}
    assert domain.clients - gone == {culprit, *recorded.truth["victims"]}


def test_the_recordings_have_faults_on_one_gpu_and_on_two() -> None:
    assert {"two_gpus_fault_on_0", "two_gpus_fault_on_both", "culprit_kill_0_busy"} <= {each.name for each in FAULTS}
    assert len(FAULTS) >= 15


GPUS = tuple(f"GPU-{number}" for number in range(5))
some_gpus = st.frozensets(st.sampled_from(GPUS), max_size=3)
lives = st.dictionaries(
    st.integers(CLIENT, CLIENT + 40),
    st.tuples(st.sampled_from((SERVER, SERVER + 1)), some_gpus, some_gpus),
    max_size=30,
)
"""By client: its server, its GPUs by the log's word, and its GPUs by NVML's."""


def placed(clients: Mapping[int, tuple[int, Set[str], Set[str]]]) -> Node:
    """A node whose clients are there."""
    daemon = Daemon(
        name=DAEMON,
        pipe_directory=DAEMON,
        log_directory="",
        servers={server: Server(pid=server, started_at=AT) for server, *_ in clients.values()},
        clients={
            pid: Client(pid=pid, server=server, connected_at=AT, gpus=frozenset(by_log))
            for pid, (server, by_log, _) in clients.items()
        },
    )
    readings = (
        gpu_reading([pid for pid, (*_, by_nvml) in clients.items() if gpu in by_nvml], gpu=gpu, index=index)
        for index, gpu in enumerate(GPUS)
    )
    return reduced(*readings, start=Node(daemons={DAEMON: daemon})).node


@given(lives)
def test_domains_are_a_partition_joined_by_shared_gpus_alone(
    clients: dict[int, tuple[int, Set[str], Set[str]]],
) -> None:
    """Everybody whose place is known has one; within one all hang together, and no two have a GPU in common."""
    found = failure_domains(placed(clients), of(placed(clients)))
    for server, here in found.items():
        on = {pid: by_log | by_nvml for pid, (of_server, by_log, by_nvml) in clients.items() if of_server == server}
        assert sorted(pid for domain in here for pid in domain.clients) == sorted(pid for pid in on if on[pid])
        assert sum(len(domain.gpus) for domain in here) == len(frozenset().union(*(domain.gpus for domain in here)))
        for domain in here:
            assert domain.gpus == frozenset().union(*(on[pid] for pid in domain.clients))
            assert reached(min(domain.clients), on) == domain.clients


def reached(first: int, on: Mapping[int, Set[str]]) -> Set[int]:
    """Who hangs together with a client: whoever shares a GPU with one that does, as long as there are more."""
    found = {first}
    while more := {pid for pid in on if any(on[pid] & on[each] for each in found)} - found:
        found |= more
    return found


def test_each_list_is_read_once_however_many_clients_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """On eight GPUs with 400 clients it is asked for with each snapshot."""
    gpus = [f"GPU-{number}" for number in range(8)]
    pids = range(1000, 1400)
    readings = [gpu_reading(pids[index::8], gpu=gpu, index=index) for index, gpu in enumerate(gpus)]
    present = reduced(*at_work(*pids), *readings).node
    looked: list[str] = []
    monkeypatch.setattr(
        "exporter.state.failure_domains._processes_with_context", lambda reading: looked.append(reading.gpu) or set()
    )
    failure_domains(present, of(present))
    assert sorted(looked) == gpus
