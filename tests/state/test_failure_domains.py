"""Failure domains: the clients that a fault affects together, known before the fault or unknown."""

from collections.abc import Mapping, Set
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.model.daemon import Daemon
from exporter.model.node import Node
from exporter.model.observation import GpuProcess, GpuReading
from exporter.model.server import Client, Disconnect, Server
from exporter.reducer import reduce
from exporter.state.devices import (
    ELSEWHERE,
    FailureDomain,
    failure_domains,
    gpus_of_clients,
    has_unlisted_gpu,
    usable_gpus,
)
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
    mig,
    reduced,
    reply,
    three_clients,
)
from tests.works import reading, work

A, B, C, D = range(CLIENT, CLIENT + 4)
BOTH = frozenset({GPU, OTHER_GPU})


def seen(*clients: int, first: Set[int] = frozenset(), second: Set[int] = frozenset()) -> Node:
    """Return a node with clients of one server that NVML lists on two GPUs."""
    return reduced(*at_work(*clients), gpu_reading(first), gpu_reading(second, gpu=OTHER_GPU, index=1)).node


def of(present: Node) -> Daemon:
    return present.daemons[DAEMON]


def domain_of(present: Node, daemon: Daemon, pid: int) -> FailureDomain | None:
    every = (each for here in failure_domains(present, daemon).values() for each in here)
    return next((each for each in every if pid in each.clients), None)


def gpus_of(present: Node, daemon: Daemon, pid: int) -> Set[str] | None:
    return gpus_of_clients(present, daemon, (pid,)).get(pid)


def logged(present: Node, found: Mapping[int, Set[str]]) -> Node:
    """Return the node with GPUs of some clients from the log."""
    clients = of(present).clients
    placed = {pid: replace(clients[pid], gpus=frozenset(gpus)) for pid, gpus in found.items()}
    return replace(present, daemons={DAEMON: replace(of(present), clients={**clients, **placed})})


def together(present: Node, server: int = SERVER) -> set[frozenset[int]]:
    """Return the clients of each failure domain of a server."""
    return {domain.clients for domain in failure_domains(present, of(present))[server]}


class TestDomains:
    """A domain has all clients that share GPUs, directly or through other clients."""

    def test_one_client_on_both_gpus_joins_the_domains(self) -> None:
        """A fault on GPU 0 then ends those of GPU 1 too (measured)."""
        present = seen(A, B, C, first={A, B}, second={B, C})
        assert failure_domains(present, of(present)) == {
            SERVER: (FailureDomain(clients=frozenset({A, B, C}), gpus=BOTH),)
        }

    def test_clients_of_two_servers_on_one_gpu_are_two_domains(self) -> None:
        """Each server has its own FAULT state."""
        present = reduced(*at_work(A, B), *at_work(C, D, server=SERVER + 1), gpu_reading([A, B, C, D])).node
        assert together(present, SERVER) == {frozenset({A, B})}
        assert together(present, SERVER + 1) == {frozenset({C, D})}

    def test_server_without_clients_has_no_domain(self) -> None:
        present = reduced(*at_work()).node
        assert failure_domains(present, of(present)) == {SERVER: ()}


class TestGpusOfClients:
    """The GPUs of a client come from its server's log and from NVML."""

    def test_combines_log_and_nvml(self) -> None:
        """NVML is read every ten seconds, and the start of the log may be missing."""
        present = logged(seen(A, B, first={A}, second={B}), {A: {OTHER_GPU}})
        assert gpus_of(present, of(present), A) == BOTH
        assert together(present) == {frozenset({A, B})}

    def test_nvml_outweighs_the_log_for_gpus_in_use_once_it_was_read_later(self) -> None:
        """Any user can write the log. Until NVML is read, the log may have a newer context."""
        present = logged(seen(A, first={A}), {A: {OTHER_GPU}})
        client = of(present).clients[A]
        for gpu_added_at, gpus in [(AT, {GPU}), (AT + 1, BOTH)]:
            daemon = replace(of(present), clients={A: replace(client, gpu_added_at=gpu_added_at)})
            assert gpus_of_clients(present, daemon, (A,), in_use=True) == {A: gpus}

    @pytest.mark.parametrize("listed", [{B: 1000}, {A: 0, B: 1000}], ids=["sees other GPUs", "sees this GPU too"])
    def test_a_client_that_launches_without_a_context_on_the_only_visible_gpu_is_elsewhere(
        self, listed: Mapping[int, int]
    ) -> None:
        """A container can have some of the node's GPUs. Before NVML is read again, the client may be on this one."""
        begun = replace(reading(AT + 1, work(A, launched=AT + 1), work(B, launched=AT + 1)), gpus=2)
        without_context = replace(gpu_reading(listed, at=AT + 2), compute_processes=())
        present = reduced(gpu_reading(), *at_work(A, B), reading(AT), begun).node
        assert gpus_of(present, of(present), A) == {GPU}
        present = reduced(without_context, start=present).node
        assert gpus_of(present, of(present), A) is None
        assert gpus_of(present, of(present), B) == {GPU}
        in_use = gpus_of_clients(present, of(present), (A, B), in_use=True)
        assert in_use == {A: {ELSEWHERE}, B: {GPU}}
        assert together(present) == {frozenset({B})}

    @pytest.mark.parametrize("gpus", [0, 1], ids=["unknown", "one"])
    @pytest.mark.parametrize("listed", [{}, {A: 0}, {A: 0, B: 1000}])
    def test_clients_are_on_the_only_gpu_of_the_node_whatever_nvml_shows(
        self, listed: Mapping[int, int], gpus: int
    ) -> None:
        """A client may have reset the device, and a platform may show no memory. An old recording has no number."""
        begun = replace(reading(AT + 1, work(A, launched=AT + 1), work(B, launched=AT + 1)), gpus=gpus)
        without_context = replace(gpu_reading(listed, at=AT + 2), compute_processes=())
        present = reduced(gpu_reading(), *at_work(A, B), reading(AT), begun, without_context).node
        assert gpus_of_clients(present, of(present), (A, B), in_use=True) == {A: {GPU}, B: {GPU}}
        assert together(present) == {frozenset({A, B})}

    @pytest.mark.parametrize("gpus", [2, 3])
    def test_a_client_is_elsewhere_only_if_the_node_has_gpus_that_nvml_does_not_list(self, gpus: int) -> None:
        begun = replace(reading(AT + 1, work(A, launched=AT + 1)), gpus=gpus)
        seen = (replace(gpu_reading({A: 0}, at=AT + 2, gpu=gpu), compute_processes=()) for gpu in (GPU, OTHER_GPU))
        present = reduced(*at_work(A), reading(AT), begun, *seen).node
        in_use = gpus_of_clients(present, of(present), (A,), in_use=True)
        assert in_use == ({} if gpus == 2 else {A: {ELSEWHERE}})

    def test_no_client_of_mig_instances_is_elsewhere_if_the_node_has_no_other_gpu(self) -> None:
        """NVML shows no memory, and the daemon may have any of the instances."""
        instances = [each.reading for each in mig().gpus.values() if each.reading.mig is not None]
        bare = (
            replace(each, compute_processes=(), mps_processes=(GpuProcess(pid=A, used_bytes=0),), at=AT + 2)
            for each in instances
        )
        whole = gpu_reading(mig_mode=True, instances=tuple(each.gpu for each in instances))
        begun = replace(reading(AT + 1, work(A, launched=AT + 1)), gpus=1)
        present = reduced(*at_work(A), whole, *bare, reading(AT), begun).node
        assert len(usable_gpus(present)) == 2
        assert gpus_of_clients(present, of(present), (A,), in_use=True) == {}

    @pytest.mark.parametrize("number", [1, 2])
    def test_a_gpu_whose_list_is_missing_is_no_other_gpu(self, number: int) -> None:
        """Without a list, the clients of an only GPU still launch nowhere else."""
        seen = (replace(gpu_reading({A}, gpu=gpu), mps_processes=None) for gpu in (GPU, OTHER_GPU)[:number])
        present = reduced(*at_work(A), *seen).node
        assert has_unlisted_gpu(present, of(present), GPU) is (number == 2)

    def test_starting_client_is_not_on_every_gpu(self) -> None:
        """Before its first context, NVML lists a client on all GPUs without memory (measured)."""
        starting = gpu_reading({A: 1000, B: 0}), gpu_reading({B: 14, C: 0}, gpu=OTHER_GPU, index=1)
        bare = [replace(each, compute_processes=()) for each in starting]
        present = reduced(*at_work(A, B, C), *bare).node
        assert gpus_of(present, of(present), B) == {OTHER_GPU}
        assert gpus_of(present, of(present), C) is None

    def test_client_in_the_compute_list_needs_no_memory_value(self) -> None:
        silent = GpuReading(at=AT, gpu=GPU, index=0, compute_processes=(GpuProcess(pid=A),), mps_processes=())
        other = gpu_reading({B: 100}, gpu=OTHER_GPU, index=1)
        present = reduced(*at_work(A, B), silent, other).node
        assert gpus_of(present, of(present), A) == {GPU}

    def test_clients_of_a_daemon_with_one_gpu_are_on_that_gpu(self) -> None:
        """A later NVML reading is not necessary."""
        present = reduced(gpu_reading(), *at_work(A, B)).node
        assert gpus_of(present, of(present), A) == {GPU}
        assert together(present) == {frozenset({A, B})}

    def test_clients_are_on_the_only_gpu_that_the_daemon_reports(self) -> None:
        """The node has two GPUs."""
        has = reply("device_query --csv", f"Default\n0,0000:00.07.00,{OTHER_GPU},NVIDIA H200,N/A\n")
        present = reduced(has, start=seen(A)).node
        assert gpus_of(present, of(present), A) == {OTHER_GPU}

    def test_gpus_are_unknown_without_evidence(self) -> None:
        """A client without known GPUs has no domain."""
        for present in (seen(A, B, first={B}), reduced(*at_work(A, B)).node):
            assert gpus_of(present, of(present), A) is None
            assert domain_of(present, of(present), A) is None

    def test_gpu_that_could_not_be_read_makes_clients_unknown(self) -> None:
        """The last reading may be outdated, and clients of another GPU may use this one, too."""
        present = logged(gpu_lost(), {C: {OTHER_GPU}})
        assert gpus_of(three_clients(), of(three_clients()), A) == BOTH
        assert gpus_of(present, of(present), A) == {GPU}
        assert domain_of(present, of(present), A) is None
        assert together(present) == {frozenset({C})}

    def test_clients_share_the_only_gpu_even_if_it_could_not_be_read(self) -> None:
        failed = GpuReading(at=AT + 9, gpu=GPU, problem=failure("GPU is lost"))
        present = reduced(gpu_reading([A]), *at_work(A, B), failed).node
        assert together(present) == {frozenset({A, B})}

    def test_ignores_process_lists_with_mig(self) -> None:
        divided = [gpu_reading([A], mig_mode=True), gpu_reading([A], gpu=OTHER_GPU, index=1, mig_mode=True)]
        present = logged(reduced(*at_work(A, B), *divided, look()).node, {B: {GPU}})
        assert gpus_of(present, of(present), A) is None
        assert gpus_of(present, of(present), B) == {GPU}

    def test_disconnected_client_has_the_gpus_of_its_disconnect(self) -> None:
        """A fault that an exiting client causes can then be attributed to its GPU."""
        left = Disconnect(pid=D, server=SERVER, at=AT, stamp="", gpus=frozenset({GPU}))
        present = seen(A)
        daemon = replace(known := of(present), connections=replace(known.connections, disconnects={D: left}))
        assert gpus_of(present, daemon, D) == {GPU}
        assert domain_of(present, daemon, D) is None


def caused_at(recorded: Recorded) -> float | None:
    """Return when the only fault with victims was caused: as its client recorded, or when it was killed."""
    truth = recorded.truth
    if not truth.get("culprit") or not truth["victims"] or truth.get("also_culprits"):
        return None
    killed = (each["at"] for each in truth["happened"] if each.get("pid") == truth["culprit"])
    at: float | None = truth["clients"][str(truth["culprit"])].get("faulted") or next(killed, None)
    return at


def just_before(recorded: Recorded, at: float) -> Node:
    present = Node()
    for each in recorded.observations:
        if each.at >= at:
            break
        present, _ = reduce(present, each)
    return present


FAULTS = [recorded for recorded in RECORDINGS if caused_at(recorded) is not None]


def test_domain_before_a_fault_has_its_victims(subtests: pytest.Subtests) -> None:
    """The domain has the cause and its victims, except for clients that exited in time."""
    for recorded in FAULTS:
        with subtests.test(recorded=recorded):
            fault_at = caused_at(recorded)
            assert fault_at is not None
            present = just_before(recorded, fault_at)
            (daemon,) = present.daemons.values()
            domain = domain_of(present, daemon, recorded.truth["culprit"])
            assert domain is not None
            culprit = recorded.truth["culprit"]
            gone = {int(pid) for pid, client in recorded.truth["clients"].items() if client["exit_code"] in (0, -9)} - {
                culprit
            }
            assert domain.clients - gone == {culprit, *recorded.truth["victims"]}


def test_the_recordings_have_faults_on_one_gpu_and_on_two() -> None:
    assert {"two_gpus_fault_on_0", "two_gpus_fault_on_both", "culprit_kill_0_busy"} <= {each.name for each in FAULTS}
    assert len(FAULTS) >= 15


GPUS = tuple(f"GPU-{number}" for number in range(5))
some_gpus = st.frozensets(st.sampled_from(GPUS), max_size=3)
random_clients = st.dictionaries(
    st.integers(CLIENT, CLIENT + 40),
    st.tuples(st.sampled_from((SERVER, SERVER + 1)), some_gpus, some_gpus),
    max_size=30,
)
"""By client: its server, its GPUs from the log, and its GPUs from NVML."""


def placed(clients: Mapping[int, tuple[int, Set[str], Set[str]]]) -> Node:
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


@given(random_clients)
def test_domains_partition_the_clients_by_shared_gpus(
    clients: dict[int, tuple[int, Set[str], Set[str]]],
) -> None:
    found = failure_domains(placed(clients), of(placed(clients)))
    for server, here in found.items():
        on = {pid: by_log | by_nvml for pid, (of_server, by_log, by_nvml) in clients.items() if of_server == server}
        assert sorted(pid for domain in here for pid in domain.clients) == sorted(pid for pid in on if on[pid])
        assert sum(len(domain.gpus) for domain in here) == len(frozenset().union(*(domain.gpus for domain in here)))
        for domain in here:
            assert domain.gpus == frozenset().union(*(on[pid] for pid in domain.clients))
            assert reached(min(domain.clients), on) == domain.clients


def reached(first: int, on: Mapping[int, Set[str]]) -> Set[int]:
    """Return the clients that are connected to a client by shared GPUs."""
    found = {first}
    while more := {pid for pid in on if any(on[pid] & on[each] for each in found)} - found:
        found |= more
    return found


def test_reads_each_process_list_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node may have eight GPUs and 400 clients, and each snapshot computes the domains."""
    gpus = [f"GPU-{number}" for number in range(8)]
    pids = range(1000, 1400)
    readings = [gpu_reading(pids[index::8], gpu=gpu, index=index) for index, gpu in enumerate(gpus)]
    present = reduced(*at_work(*pids), *readings).node
    read: list[str] = []
    monkeypatch.setattr(
        "exporter.state.devices._processes_with_context", lambda reading: read.append(reading.gpu) or set()
    )
    failure_domains(present, of(present))
    assert sorted(read) == gpus
