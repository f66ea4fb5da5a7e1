"""Clients on nodes with several GPUs that choose their GPU after their start, and the SM time of each on each GPU."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import mean

import pytest

from exporter.model.launches import WorkReading, sums
from exporter.model.node import Node
from exporter.model.observation import ControlReply, GpuReading, Observation, SourceReading
from exporter.model.settings import VISIBLE_DEVICES, PollIntervals
from exporter.model.sharing import GpuUse
from exporter.model.usage import Method, Split
from exporter.model.values import replace
from exporter.reducer import reduce
from exporter.state.poll_schedule import nvml_due
from exporter.usage.capacity import gpu_sharing
from tests.builders import (
    AT,
    CLIENT,
    DAEMON,
    active,
    at_work,
    clients,
    connecting,
    daemon_process,
    exited,
    failure,
    gpu_reading,
    process,
    reduced,
    reply,
    server_log,
)
from tests.usage.simulation import SLICE_NS, SMS, US, Worker
from tests.works import boot_ns

UUIDS = tuple(f"GPU-{number}f8b2f04-0000-0000-0000-000000000000" for number in range(8))
CHOOSING, ON_FIRST, ON_SECOND = CLIENT, CLIENT + 1, CLIENT + 2
CONTAINER = f"0::/system.slice/docker-{'1f' * 32}.scope\n"
FOREVER = float("inf")
Span = tuple[float, float]


@dataclass(kw_only=True)
class GpuClient:
    """A client, and its work on each GPU by index.

    `numbers` are those by which it knows the GPUs; -1: the probes do not know the device. It has contexts on GPUs in
    the seconds of `contexts`, and sees the GPUs `sees`, from second `start` until `ends`. The log shows `logged`.
    """

    pid: int
    work: Mapping[int, Worker]
    numbers: Mapping[int, int]
    contexts: Mapping[int, Span]
    environment: Mapping[str, str] = field(default_factory=dict)
    sees: Sequence[int] = (0, 1)
    start: int = 4
    ends: float = FOREVER
    logged: Sequence[int] = ()
    cgroup: str | None = None

    @property
    def first_launch(self) -> float:
        """When its first kernel can be launched."""
        return min(max(self.contexts[gpu][0], worker.on[0]) for gpu, worker in self.work.items())


def worker(pid: int, *, length: int = 100, width: int = 80, on: Span = (0.0, FOREVER)) -> Worker:
    """Return work with kernels of so many microseconds."""
    return Worker(pid=pid, length=length * US, width=width, pause=length * US, on=on)


def neighbours() -> tuple[GpuClient, ...]:
    """Return a client of each of the first two GPUs, by its environment."""
    return tuple(
        GpuClient(
            pid=pid,
            work={gpu: worker(pid, length=30 + 20 * gpu, width=40)},
            numbers={gpu: 0},
            contexts={gpu: (gpu, FOREVER)},
            environment={VISIBLE_DEVICES: str(gpu)},
            sees=(gpu,),
            start=gpu,
        )
        for gpu, pid in ((0, ON_FIRST), (1, ON_SECOND))
    )


class SeveralGpus:
    """A node, the readings of its sources when they are due, and the SM time that each client used in each second.

    The exporter's NVML shows the GPUs that are `visible`; None: all. `names` are their models. They are in the order of
    the PCI bus, and NVML lists them by these `indices`.
    """

    def __init__(
        self,
        *every: GpuClient,
        gpus: int = 2,
        gpm: bool = True,
        failing: int | None = None,
        visible: Sequence[int] | None = None,
        names: Sequence[str] = ("NVIDIA H200",) * 8,
        indices: Sequence[int] = range(8),
    ) -> None:
        self.clients, self.uuids, self.gpm, self.failing = every, UUIDS[:gpus], gpm, failing
        self.visible, self.names, self.indices = range(gpus) if visible is None else visible, names, indices
        devices = "".join(f"{number},00:0{number}.0,{uuid},{names[number]}\n" for number, uuid in enumerate(self.uuids))
        known = (reply("device_query --csv", devices),) if len(self.visible) > 1 else ()
        self.node = reduced(*at_work(), daemon_process(), *known).node
        self.seconds: list[tuple[Node, Mapping[tuple[int, int], float]]] = []
        self._read_nvml(AT)

    def live(self, seconds: int) -> "SeveralGpus":
        """Simulate so many seconds."""
        for second in range(len(self.seconds), len(self.seconds) + seconds):
            for client in self.clients:
                self._feed(*self._beginnings(client, second))
            before = {(client.pid, gpu): work.used for client in self.clients for gpu, work in client.work.items()}
            for number in range(1_000_000_000 // SLICE_NS):
                self._work(second + number * SLICE_NS / 1e9)
            at = AT + second + 1
            for client in self.clients:
                if second < client.ends < second + 1:
                    ticks = self.node.processes[client.pid].start_ticks
                    self._feed(exited(client.pid, ticks=ticks, at=AT + client.ends))
            self._feed(SourceReading(at=at - 0.5, name="log", seconds=0.001, daemon=DAEMON))
            if nvml_due(self.node, PollIntervals()):
                self._read_nvml(at - 0.4)
            self._feed(self._launches(at))
            used = {
                (client.pid, gpu): (work.used - before[client.pid, gpu]) / (SMS * 1e9)
                for client in self.clients
                for gpu, work in client.work.items()
            }
            for gpu in self.visible if self.gpm else ():
                busy = sum(part for (_, index), part in used.items() if index == gpu)
                dram = self._dram(gpu, second)
                use = GpuUse(at=at + 0.1, gpu=self.uuids[gpu], seconds=1.0, sm_utilization=busy, dram_bandwidth=dram)
                self._feed(use)
            self.seconds.append((self.node, used))
        return self

    def window(self, second: int, gpu: int) -> Split:
        """Return how the SM time of a GPU in a second was divided."""
        return self.seconds[second][0].attribution[self.uuids[gpu]].windows[-1]

    def shown_after(self, gpu: int, client: GpuClient) -> float:
        """Return how long after its first launch a client first had a share that is not 0."""
        shares = (self.window(second, gpu).shares.get(client.pid) for second in range(client.start, len(self.seconds)))
        first = next((number for number, share in enumerate(shares) if share is not None and share.sm > 0.01), 999)
        return client.start + first + 1 - client.first_launch

    def errors(self, since: int) -> list[float]:
        """Return the error of each client on each GPU, in percentage points of all SMs, a second's without share too.

        A client without a share has none, so all of its use is wrong.
        """
        found = []
        for gpu, client in product(self.visible, self.clients):
            for second in range(since, len(self.seconds)):
                share = self.window(second, gpu).shares.get(client.pid)
                true = self.seconds[second][1].get((client.pid, gpu), 0.0)
                found.append(100 * abs((0.0 if share is None else share.sm) - true))
        return found

    def covered(self) -> float:
        """Return for which part of all shares of a second the truth is within two standard errors."""
        found = [
            abs(share.sm - used.get((pid, gpu), 0.0)) <= 2 * share.error + 0.001
            for second, (_, used) in enumerate(self.seconds)
            for gpu in self.visible
            for pid, share in self.window(second, gpu).shares.items()
        ]
        return mean(found)

    def _feed(self, *seen: Observation) -> None:
        for each in seen:
            self.node, _ = reduce(self.node, each)

    def _beginnings(self, client: GpuClient, second: int) -> Sequence[Observation]:
        at, found = AT + second, list[Observation]()
        if client.start == second:
            found.append(
                process(
                    client.pid,
                    at=at,
                    ticks=boot_ns(at - 0.1) // 10_000_000,
                    environment=client.environment,
                    cgroup=client.cgroup,
                )
            )
            listed: ControlReply = clients(*sorted({*self.node.daemons[DAEMON].clients, client.pid}), at=at + 0.01)
            found.append(listed)
        for number, gpu in enumerate(client.logged):
            if client.contexts[gpu][0] == second:
                device = f"Device NVIDIA H200 (uuid {self.uuids[gpu]}) is associated"
                lines = connecting(client.pid, number + 1), device, active(client.pid, number + 1)
                found += server_log(*lines, at=at + 0.02)
        return found

    def _dram(self, gpu: int, second: int) -> float | None:
        """Return the used part of a memory's bandwidth."""
        return None

    def _work(self, second: float) -> None:
        for gpu in range(len(self.uuids)):
            here = [client.work[gpu] for client in self.clients if gpu in client.work]
            here = [each for each in here if each.works(second)]
            slowness = max(1.0, sum(each.wants(second) for each in here) / SMS)
            for each in here:
                each.work_for(second, slowness, 1.0)

    def _launches(self, at: float) -> WorkReading:
        parts = [
            replace(work.work(), device=client.numbers[gpu], first_ns=boot_ns(AT + max(client.start, work.on[0])))
            for client in self.clients
            for gpu, work in client.work.items()
            if work.counts
        ]
        return WorkReading(
            at=at,
            boot_ns=boot_ns(at),
            seconds=1.0,
            sms=SMS,
            gpus=len(self.uuids),
            processes=tuple(sums(parts).values()),
            on_devices=tuple(part for part in parts if part.device >= 0),
            watched=tuple(client.pid for client in self.clients if client.start < at - AT <= client.ends),
        )

    def _read_nvml(self, at: float) -> None:
        """A client without a context on a GPU that it sees is in the MPS list, with no memory (measured, R580)."""
        for index in self.visible:
            uuid = self.uuids[index]
            if index == self.failing:
                self._feed(GpuReading(at=at, gpu=uuid, index=index, problem=failure("GPU is lost")))
                continue
            here = [client for client in self.clients if index in client.sees and client.start <= at - AT < client.ends]
            held = {client.pid: client.contexts.get(index, (FOREVER, 0.0)) for client in here}
            memory = {pid: 1000 if began <= at - AT < ended else 0 for pid, (began, ended) in held.items()}
            reading = gpu_reading(memory, at=at, gpu=uuid, index=index, name=self.names[index], gpu_percent=80)
            reading = replace(reading, index=self.indices[index])
            with_context = tuple(each for each in reading.compute_processes or () if each.used_bytes)
            self._feed(replace(reading, compute_processes=with_context))
        self._feed(SourceReading(at=at, name="nvml", seconds=0.01))


def choosing(gpu: int, number: int, visible: str | None = None, *, context: int = 4, **known: object) -> GpuClient:
    """Return a client that works on one GPU, as device `number`. `visible` is in its environment since its start."""
    known = {"environment": {} if visible is None else {VISIBLE_DEVICES: visible}} | known
    used = worker(CHOOSING, on=(context, FOREVER))
    return GpuClient(  # The fields are those of the class.
        pid=CHOOSING, work={gpu: used}, numbers={gpu: number}, contexts={gpu: (context, FOREVER)}, **known
    )


def on_both(numbers: Sequence[int], visible: str | None = None, **known: object) -> GpuClient:
    """Return a client that works on both GPUs."""
    known = {"environment": {} if visible is None else {VISIBLE_DEVICES: visible}} | known
    return GpuClient(
        pid=CHOOSING,
        work={0: worker(CHOOSING, on=(4, FOREVER)), 1: worker(CHOOSING, length=60, width=30, on=(4, FOREVER))},
        numbers=dict(enumerate(numbers)),
        contexts=dict.fromkeys((0, 1), (4.0, FOREVER)),
        **known,
    )


@pytest.mark.parametrize("gpu", [0, 1])
@pytest.mark.parametrize("logged", [False, True], ids=["no log", "log"])
def test_a_client_that_chose_its_gpu_after_its_start_has_its_share(
    gpu: int, logged: bool, subtests: pytest.Subtests
) -> None:
    """Ray sets CUDA_VISIBLE_DEVICES in the process: its device is 0, and the environment that was read is stale."""
    cases = {
        "Ray": choosing(gpu, 0, sees=(gpu,)),
        "Ray, and all GPUs in the environment": choosing(gpu, 0, "0,1", sees=(gpu,)),
        "Ray, and the other GPU in the environment": choosing(gpu, 0, str(1 - gpu), sees=(gpu,)),
        "Ray in a container": choosing(gpu, 0, sees=(gpu,), cgroup=CONTAINER),
        "cudaSetDevice": choosing(gpu, gpu),
        "cudaSetDevice of reversed devices": choosing(gpu, 1 - gpu, "1,0"),
        "cudaSetDevice in a container": choosing(gpu, gpu, cgroup=CONTAINER),
        "the probes came late": choosing(gpu, -1),
        "a context long after the connection": choosing(gpu, 0, sees=(gpu,), context=29),
        "a context long after the connection, and cudaSetDevice": choosing(gpu, gpu, context=29),
    }
    for name, client in cases.items():
        with subtests.test(case=name):
            client.logged = (gpu,) if logged else ()
            node = SeveralGpus(client, *neighbours()).live(60)
            assert node.shown_after(gpu, client) <= 5
            assert mean(node.errors(int(client.first_launch) + 5)) <= 0.5
            assert all(node.window(second, 1 - gpu).shares.keys() == {ON_FIRST + 1 - gpu} for second in range(40, 60))


@pytest.mark.parametrize("gpu", [0, 1])
def test_a_client_whose_gpu_is_unknown_is_unknown_on_each(gpu: int) -> None:
    """Its neighbours are not measured alone, and its work is not theirs."""
    node = SeveralGpus(choosing(gpu, 0, context=20), *neighbours()).live(30)
    at_first = [node.window(20, each) for each in (0, 1)]
    assert all(CHOOSING in window.unknown for window in at_first)
    assert all(share.method is not Method.MEASURED for window in at_first for share in window.shares.values())
    assert {node.window(19, each).shares[ON_FIRST + each].method for each in (0, 1)} == {Method.MEASURED}
    assert all(not node.window(29, each).unknown for each in (0, 1))


@pytest.mark.parametrize("gpu", [0, 1])
def test_a_client_that_sees_one_gpu_is_unknown_only_there(gpu: int) -> None:
    node = SeveralGpus(choosing(gpu, 0, str(gpu), sees=(gpu,), context=20), *neighbours()).live(22)
    assert node.window(20, gpu).unknown == {CHOOSING}
    assert node.window(20, 1 - gpu).shares[ON_FIRST + 1 - gpu].method is Method.MEASURED


@pytest.mark.parametrize("gpu", [0, 1])
def test_a_client_with_contexts_on_both_gpus_uses_the_one_on_which_it_launches(
    gpu: int, subtests: pytest.Subtests
) -> None:
    """If its numbers are unknown, GPM shows which one that is."""
    both = {0: (4.0, FOREVER), 1: (4.0, FOREVER)}
    for number, cgroup, most in [(gpu, None, 0.3), (gpu, CONTAINER, 1.5), (-1, None, 1.5)]:
        for logged in ((), (0, 1)):
            with subtests.test(number=number, cgroup=cgroup, logged=logged):
                client = dataclasses.replace(choosing(gpu, number, cgroup=cgroup), contexts=both, logged=logged)
                node = SeveralGpus(client, *neighbours()).live(40)
                assert node.shown_after(gpu, client) <= 5
                assert mean(node.errors(10)) <= most


def test_a_client_of_both_gpus_is_divided_by_what_it_did_on_each(subtests: pytest.Subtests) -> None:
    """With a stale environment, or if a part of its launches has no device, GPM divides it."""
    cases = [
        ((0, 1), None, 0.3),
        ((1, 0), "1,0", 0.3),
        ((0, 1), "1", 1.5),
        ((1, 0), "0", 1.5),
        ((-1, -1), None, 1.5),
        ((0, -1), None, 1.5),
    ]
    for (numbers, visible, most), logged in product(cases, ((), (0, 1))):
        with subtests.test(numbers=numbers, visible=visible, logged=logged):
            node = SeveralGpus(on_both(numbers, visible, logged=logged), *neighbours()).live(40)
            assert mean(node.errors(10)) <= most


@pytest.mark.parametrize("logged", [(), (0, 1)], ids=["no log", "log"])
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("moves_its_context", [False, True])
def test_a_client_that_changes_its_gpu_has_its_share_there(
    first: int, moves_its_context: bool, logged: Sequence[int]
) -> None:
    second, changed = 1 - first, 24
    client = GpuClient(
        pid=CHOOSING,
        work={first: worker(CHOOSING, on=(4, changed)), second: worker(CHOOSING, on=(changed, FOREVER))},
        numbers={0: 0, 1: 1},
        contexts={first: (4, changed if moves_its_context else FOREVER), second: (changed, FOREVER)},
        logged=logged,
    )
    node = SeveralGpus(client, *neighbours()).live(50)
    assert mean(node.errors(10)) <= 1.5
    assert mean(node.errors(changed + 5)) <= 0.5


def test_numbers_that_count_other_gpus_than_at_the_start_make_no_client_idle() -> None:
    """It sees the last two of four GPUs, and its devices 0 and 1 are not the first two."""
    base = on_both((0, 1), sees=(2, 3))
    client = dataclasses.replace(
        base,
        work={2: base.work[0], 3: base.work[1]},
        numbers={2: 0, 3: 1},
        contexts=dict.fromkeys((2, 3), (4.0, FOREVER)),
        logged=(2, 3),
    )
    node = SeveralGpus(client, *neighbours(), gpus=4).live(30)
    assert mean(node.errors(10)) <= 0.5
    assert all(node.window(29, gpu).shares[CHOOSING].sm > 0.05 for gpu in (2, 3))


@pytest.mark.parametrize("numbers", [(0, 1), (1, 0)])
def test_the_last_second_of_a_client_of_both_gpus_counts(numbers: Sequence[int]) -> None:
    """NVML, which was read again in that second, no longer lists it."""
    client = on_both(numbers, ",".join(map(str, numbers)), ends=20.5)
    for used in client.work.values():
        used.on = (4, 20.4)
    node = SeveralGpus(client, *neighbours()).live(21)
    assert all(CHOOSING not in gpu.mps_since for gpu in node.node.gpus.values())
    assert mean(node.errors(10)) <= 0.3
    assert all(node.window(20, gpu).shares[CHOOSING].sm > 0.02 for gpu in (0, 1))


@pytest.mark.parametrize("gpu", [0, 1])
def test_memory_outweighs_the_log(gpu: int) -> None:
    """Any user can write the log, also each second."""
    node = SeveralGpus(choosing(gpu, 0, sees=(gpu,), logged=(gpu,)), *neighbours()).live(10)
    forged = f"Device NVIDIA H200 (uuid {UUIDS[1 - gpu]}) is associated"
    for second in range(10, 30):
        for line in server_log(connecting(CHOOSING, 7), forged, active(CHOOSING, 7), at=AT + second):
            node.node, _ = reduce(node.node, line)
        node.live(1)
    assert node.node.daemons[DAEMON].clients[CHOOSING].gpus == {*UUIDS[:2]}
    assert mean(node.errors(13)) <= 0.5


@pytest.mark.parametrize("gpu", [0, 1])
def test_a_gpu_that_cannot_be_read_hides_no_client_of_the_other(gpu: int) -> None:
    node = SeveralGpus(choosing(gpu, 0, sees=(gpu,)), *neighbours(), failing=1 - gpu).live(30)
    assert node.window(29, gpu).shares.keys() == {CHOOSING, ON_FIRST + gpu}


@pytest.mark.parametrize("gpu", [0, 1])
@pytest.mark.parametrize("numbers", [(0, 1), (-1, -1), (0, -1)])
def test_what_clients_use_of_a_gpu_that_cannot_be_read_is_unknown(gpu: int, numbers: Sequence[int]) -> None:
    """One of them also works on the other GPU, and NVML shows it there only. GPM shows what it uses there."""
    node = SeveralGpus(on_both(numbers), *neighbours(), failing=gpu).live(30)
    assert not node.window(29, gpu).shares
    shares = node.window(29, 1 - gpu).shares
    assert shares.keys() == {CHOOSING, ON_FIRST + 1 - gpu}
    for pid, share in shares.items():
        assert share.sm == pytest.approx(node.seconds[29][1][pid, 1 - gpu], abs=0.02)


def apart(*others: GpuClient, hidden: int, numbers: Sequence[int], logged: bool) -> tuple[GpuClient, ...]:
    """Return two clients of GPU 0, and one of a hidden GPU. The devices of their launches have these numbers."""
    second = GpuClient(
        pid=ON_SECOND,
        work={0: worker(ON_SECOND, length=70, width=30, on=(2, FOREVER))},
        numbers={0: numbers[0]},
        contexts={0: (2, FOREVER)},
        sees=(0,),
        start=2,
    )
    first = dataclasses.replace(neighbours()[0], numbers={0: numbers[0]})
    away = choosing(hidden, numbers[1], sees=(hidden,), logged=(hidden,) if logged else ())
    return first, second, away, *others


@pytest.mark.parametrize("logged", [False, True], ids=["no log", "log"])
@pytest.mark.parametrize(("gpus", "visible"), [(2, (0,)), (4, (0,)), (4, (0, 1)), (8, (0, 1, 2, 3))])
def test_a_client_of_a_hidden_gpu_has_no_part_and_takes_none(
    gpus: int, visible: Sequence[int], logged: bool, subtests: pytest.Subtests
) -> None:
    """A container has some of the node's GPUs. Until NVML is read, the client could be on any, so others are unsure."""
    for numbers in ((0, 0), (0, gpus - 1)):
        with subtests.test(numbers=numbers):
            clients = apart(hidden=gpus - 1, numbers=numbers, logged=logged)
            node = SeveralGpus(*clients, gpus=gpus, visible=visible).live(30)
            assert node.covered() == 1
            assert mean(node.errors(8)) <= 0.2
            for gpu in visible:
                assert not any(CHOOSING in node.window(second, gpu).shares for second in range(30))
                assert not any(node.window(second, gpu).unknown for second in range(8, 30))


def test_a_client_alone_on_its_gpu_is_measured_beside_one_of_a_hidden_gpu() -> None:
    node = SeveralGpus(neighbours()[0], choosing(1, 0, sees=(1,)), visible=(0,)).live(20)
    assert all(node.window(second, 0).shares[ON_FIRST].method is Method.MEASURED for second in range(9, 20))


def test_a_client_of_a_visible_and_a_hidden_gpu_has_what_gpm_measures_there(subtests: pytest.Subtests) -> None:
    for gpus, visible in ((2, (0,)), (4, (0, 2))):
        for numbers in ((0, 1), (1, 0)):
            with subtests.test(gpus=gpus, numbers=numbers):
                node = SeveralGpus(on_both(numbers), neighbours()[0], gpus=gpus, visible=visible).live(40)
                assert node.covered() == 1
                assert mean(node.errors(10)) <= 1.5


def test_a_client_of_a_hidden_gpu_shows_that_others_may_work_there_too() -> None:
    """The probes came late, so they do not know the device of any launch."""
    away = dataclasses.replace(choosing(1, -1, sees=(1,)), pid=ON_SECOND)
    away.work[1].pid = ON_SECOND
    first = dataclasses.replace(neighbours()[0], numbers={0: -1})
    node = SeveralGpus(on_both((-1, -1)), away, first, visible=(0,)).live(40)
    assert mean(node.errors(10)) <= 1.5


@pytest.mark.parametrize("first", [0, 1])
def test_a_client_that_changes_between_a_visible_and_a_hidden_gpu_has_its_share(first: int) -> None:
    second, changed = 1 - first, 24
    client = GpuClient(
        pid=CHOOSING,
        work={first: worker(CHOOSING, on=(4, changed)), second: worker(CHOOSING, on=(changed, FOREVER))},
        numbers={0: 0, 1: 1},
        contexts={first: (4, changed), second: (changed, FOREVER)},
    )
    node = SeveralGpus(client, neighbours()[0], visible=(0,)).live(50)
    assert mean(node.errors(10)) <= 1.5
    assert mean(node.errors(changed + 5)) <= 0.5


@pytest.mark.parametrize("lost", [1, 3])
def test_clients_of_a_lost_gpu_are_unknown_only_there(lost: int) -> None:
    away = choosing(lost, lost, sees=range(4))
    node = SeveralGpus(away, *neighbours(), gpus=4, failing=lost).live(20)
    for second in range(9, 20):
        assert CHOOSING in node.window(second, lost).unknown
        assert node.window(second, 0).shares[ON_FIRST].method is Method.MEASURED


@pytest.mark.parametrize("gpu", [0, 1])
def test_a_client_of_an_unknown_gpu_is_not_alone_on_any(gpu: int) -> None:
    node = SeveralGpus(on_both((-1, -1)), *neighbours(), failing=gpu).live(30)
    assert not node.window(29, gpu).shares


@pytest.mark.parametrize("gpu", [0, 1])
@pytest.mark.parametrize("number", [0, 1, -1])
def test_without_gpm_a_client_has_its_share_on_its_gpu_only(gpu: int, number: int) -> None:
    node = SeveralGpus(choosing(gpu, number), *neighbours(), gpm=False).live(60)
    shares = node.window(59, gpu).shares
    true = node.seconds[59][1][CHOOSING, gpu]
    assert abs(shares[CHOOSING].sm - true) <= 2 * shares[CHOOSING].error
    assert CHOOSING not in node.window(59, 1 - gpu).shares


DIFFERENT = ("NVIDIA L4", "NVIDIA H200")
"""By default, CUDA counts the fastest GPU first (NVIDIA's CUDA programming guide): number 0 is that with index 1."""


@pytest.mark.parametrize("order", [{}, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}])
@pytest.mark.parametrize("gpu", [0, 1])
def test_a_number_in_the_environment_shows_no_gpu_of_different_ones(gpu: int, order: Mapping[str, str]) -> None:
    """Until NVML shows the client's memory, its GPU is unknown. Then the client has its share there."""
    number = gpu if order.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" else 1 - gpu
    environment = {VISIBLE_DEVICES: str(number), **order}
    client = choosing(gpu, 0, sees=(gpu,), context=20, environment=environment)
    node = SeveralGpus(client, *neighbours(), names=DIFFERENT).live(60)
    assert all(CHOOSING in node.window(20, each).unknown for each in (0, 1))
    assert node.shown_after(gpu, client) <= 5
    assert mean(node.errors(25)) <= 0.5
    assert all(CHOOSING not in node.window(second, 1 - gpu).shares for second in range(20, 60))


@pytest.mark.parametrize("numbers", [(0, 1), (1, 0)])
@pytest.mark.parametrize("visible", [None, "0,1", "1,0", ",".join(UUIDS[:2])])
def test_numbers_of_launches_show_no_gpu_of_different_ones(numbers: Sequence[int], visible: str | None) -> None:
    """The errors of a client of both GPUs are the same, whichever of them CUDA counts first."""
    node = SeveralGpus(on_both(numbers, visible), *neighbours(), names=DIFFERENT).live(40)
    other = SeveralGpus(on_both(numbers[::-1], visible), *neighbours(), names=DIFFERENT).live(40)
    assert node.errors(10) == other.errors(10)
    assert node.covered() >= 0.9


@pytest.mark.parametrize("visible", [None, "0,1"])
def test_launches_show_the_gpu_also_if_nvml_lists_the_gpus_in_another_order(visible: str | None) -> None:
    node = SeveralGpus(on_both((0, 1), visible), *neighbours(), indices=(1, 0)).live(40)
    assert mean(node.errors(10)) <= 0.5
    assert node.covered() >= 0.9


@pytest.mark.parametrize("gpu", [0, 1])
def test_launches_show_the_device_that_a_memory_limit_counts(gpu: int) -> None:
    """The limit of device 0 applies, whatever GPU that is."""
    node = SeveralGpus(choosing(gpu, 0, sees=(gpu,)), *neighbours()).live(8).node
    log = [
        f"Device pinned memory limit for device {device} set to {size << 30:#x} bytes"
        for device, size in ((0, 3), (1, 6))
    ]
    node = reduced(*server_log("Active Threads Percentage set to 100.0", *log, at=AT + 9), start=node).node
    [usage] = (each for each in gpu_sharing(node)[UUIDS[gpu]].clients if each.client.pid == CHOOSING)
    assert (usage.memory_limit_bytes, usage.memory_limit_known) == (3 << 30, True)
