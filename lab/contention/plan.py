"""The clients of the trial, and the phases in which they work."""

import random
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from .rank import environment

SEED = 36
MIXES = 30
ALONE_SECONDS, MIX_SECONDS, NEWCOMER_SECONDS = 2.6, 3.0, 3.5
BASE = "base"
STEPS, SERVICE, RANK = "lab.contention.client", "lab.contention.service", "lab.contention.rank"


@dataclass(frozen=True, slots=True)
class Load:
    """What a client does: a kind of `lab.attribution.frameworks`, of which `group` steps count as one.

    `forms` are other kinds that it can change to. With a period in seconds, each step is a request. Another `module`
    has kinds of its own: of a service, which has `group` HTTP clients, the steps are tokens. Without `gpus`, it sees
    those of the daemon; otherwise these, and does steps on each.
    """

    kind: str
    group: int = 1
    period: float = 0.0
    forms: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    module: str = STEPS
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Phase:
    """Clients that work at the same time. Those in `forms` have another form than the base.

    `mix` is the number of the mix; none for clients alone and for newcomers. Each client of `crowded` shares one CPU
    with a process that never waits.
    """

    clients: tuple[str, ...]
    seconds: float
    mix: int | None = None
    forms: Mapping[str, str] = field(default_factory=dict)
    crowded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Scene:
    """Other clients than those of the mixes, and their phases. `settle` is when a phase's first seconds are over."""

    loads: Mapping[str, Load]
    phases: tuple[Phase, ...]
    settle: float = 0.5
    has_gpm: bool = True


LIGHT = {
    "decode": Load("torch_decode"),
    "prefill": Load("torch_prefill"),
    "training": Load("torch_conv", group=10),
    "compiled": Load("torch_compiled"),
    "jax": Load("jax_training", group=4),
    "graph": Load("torch_graph"),
    "copies": Load("torch_copies"),
    "sort": Load("cupy_sort"),
    "fft": Load("cupy_fft"),
    "streams": Load("torch_streams_small"),
    "requests": Load("torch_prefill", group=4, period=0.1),
    "ahead": Load("torch_ahead"),
    "host-work": Load("torch_host_work"),
    "quarter": Load("torch_prefill_medium", environment={"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"}),
    "half": Load("torch_sort", environment={"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}),
    "length": Load("torch_prefill", forms={"batch4": "torch_prefill_batch_16", "length2": "torch_prefill_length_512"}),
    "batch": Load("torch_conv", group=10, forms={"batch4": "torch_conv_batch_128"}),
}
HEAVY = {"stream": Load("torch_stream"), "gemm": Load("torch_gemm_large")}
NEWCOMERS = {name: LIGHT[name.partition("#")[0]] for name in ("decode#2", "prefill#2", "decode#3", "prefill#3")}
LOADS = {**HEAVY, **LIGHT, **NEWCOMERS}

BESIDE_NEWCOMERS = (
    Phase(("gemm", "decode#2"), NEWCOMER_SECONDS),
    Phase(("stream", "prefill#2"), NEWCOMER_SECONDS),
    Phase(("stream", "gemm", "decode#3", "prefill#3"), NEWCOMER_SECONDS),
)

# By the number of the mix. Even numbers are for tuning, odd ones for reporting.
CHANGES = {4: ("length", "batch4"), 9: ("length", "length2"), 16: ("batch", "batch4"), 21: ("length", "batch4")}
CROWDED = (8, 13)
LIGHT_ONLY = (3, 6)
"""These of each eight mixes have no heavy client."""

# Without GPM, the exporter divides the time between two readings by NVML: 10 s. It needs several with a client alone.
_LIGHT = ("decode", "graph")
_OFFLINE = {"HF_HUB_OFFLINE": "1"}
SCENES = {
    "without-gpm": Scene(
        loads={**HEAVY, **{name: LIGHT[name] for name in _LIGHT}},
        phases=(
            *(Phase((name,), 42.0) for name in _LIGHT),
            *(Phase((*_LIGHT, *heavy), 32.0) for heavy in ((), ("stream",), ("gemm",), ("stream", "gemm"))),
        ),
        has_gpm=False,
    ),
    "services": Scene(
        loads={
            "stream": HEAVY["stream"],
            "training": Load("torch_conv_large", group=10),
            "generate": Load("generate", group=16, module=SERVICE, environment=_OFFLINE),
            "continuous": Load("continuous", group=16, module=SERVICE, environment=_OFFLINE),
        },
        phases=(
            *(Phase((name,), 5.0) for name in ("training", "stream", "generate", "continuous")),
            Phase(("generate", "training"), 7.0),
            Phase(("continuous", "training"), 7.0),
            Phase(("generate", "continuous"), 6.0),
            Phase(("generate", "continuous", "training"), 7.0),
            Phase(("generate", "stream"), 6.0),
            Phase(("continuous", "stream"), 6.0),
            *(Phase((name,), 4.0) for name in ("generate", "continuous")),
        ),
        settle=1.5,
    ),
}


SORTS = Load("torch_sort", group=10, period=0.03)
"""Without a period, it hits the probes 70,000 times a second (H200), and they pause for most of the time."""


def several_gpus(gpus: int) -> Scene:
    """Return the scene of clients on all, on two and on one of the GPUs, beside one that streams memory of the first.

    The client on two GPUs has them in the other order. No client hits the probes so often, on all its GPUs together,
    that they pause for most of a phase.
    """
    everywhere = tuple(range(gpus))
    loads = {
        "stream": Load("torch_stream", gpus=(0,)),
        "all": Load("torch_decoder_large", gpus=everywhere),
        "two": replace(SORTS, gpus=everywhere[1::-1]),
        "last": Load("torch_prefill_batch_16", group=4, period=0.05, gpus=everywhere[-1:]),
    }
    single = tuple((name,) for name in loads)
    pairs = (("all", "stream"), ("two", "stream"), ("all", "two"), ("all", "last"))
    beside = (*pairs, ("all", "two", "stream"), tuple(loads))
    return Scene(loads, tuple(Phase(clients, 5.0) for clients in (*single, *beside, *beside, *single[1:3])), settle=1.0)


def all_reduce(gpus: int, store: str) -> Scene:
    """Return the scene of an NCCL job with a rank on each GPU, beside a client of each GPU.

    The ranks see all GPUs, as those that torchrun starts. `store` is a file that does not exist.
    """
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(gpus)))}
    ranks = {
        f"rank{rank}": Load(
            "allreduce", module=RANK, gpus=(rank,), environment={**environment(rank, gpus, store), **visible}
        )
        for rank in range(gpus)
    }
    kinds = (Load("torch_graph"), SORTS)
    others = {f"client{gpu}": replace(kinds[gpu % 2], gpus=(gpu,)) for gpu in range(gpus)}
    parts = ((tuple(others), 5.0), (tuple(ranks), 5.0), ((*ranks, *others), 8.0))
    one_beside = ((*ranks, "client0"), 6.0)
    return Scene(
        {**ranks, **others}, tuple(Phase(*part) for part in (*parts, one_beside, *parts, parts[-1])), settle=1.0
    )


def alone(names: Sequence[str]) -> Iterator[Phase]:
    """Yield a phase of each client, and of each of its forms."""
    for name in names:
        for form in (BASE, *LOADS[name].forms):
            yield Phase((name,), ALONE_SECONDS, forms={} if form == BASE else {name: form})


def mixes(ready: Set[str]) -> Iterator[tuple[Phase, ...]]:
    """Yield the phases of each mix of clients that are ready. The same clients get the same mixes."""
    source = random.Random(SEED)
    names = _shuffled(source, [name for name in LIGHT if name in ready])
    for number in range(MIXES):
        heavy = [(), ("stream",), ("gemm",), ("stream", "gemm")][0 if number % 8 in LIGHT_ONLY else 1 + number % 3]
        heavy = tuple(name for name in heavy if name in ready)
        changing, form = CHANGES.get(number, ("", ""))
        light = [changing] if changing in ready else []
        wanted = min(source.randint(2, 8) - len(heavy), len(ready & LIGHT.keys()))
        while len(light) < max(1, wanted):
            name = next(names)
            light += [] if name in light else [name]
        yield tuple(_phases(number, tuple(light), heavy, {changing: form} if changing in ready else {}))


def _phases(number: int, light: tuple[str, ...], heavy: tuple[str, ...], changed: Mapping[str, str]) -> Iterator[Phase]:
    if changed:
        parts = [(light, {}), (light, changed), (light + heavy, changed), (light + heavy, {})]
        yield from (Phase(clients, MIX_SECONDS, number, forms) for clients, forms in parts)
    elif number in CROWDED:
        yield Phase(light, MIX_SECONDS, number)
        yield Phase(light, MIX_SECONDS, number, crowded=light[:2])
        yield Phase(light + heavy, MIX_SECONDS, number, crowded=light[:2])
    elif heavy:
        # Two heavy clients come one after the other; the second alone is then the phase without the first.
        yield from (Phase(light + beside, MIX_SECONDS, number) for beside in ((), heavy, heavy[1:]))
    else:
        middle = (len(light) + 1) // 2
        yield from (Phase(part, MIX_SECONDS, number) for part in (light[:middle], light, light[middle:]) if part)


def _shuffled(source: random.Random, names: Sequence[str]) -> Iterator[str]:
    while names:
        yield from source.sample(names, len(names))
