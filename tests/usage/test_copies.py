"""Clients that copy beside clients with kernels: SM time, bandwidth, slowdown and its cause (H200, three seeds).

lab/copies recorded them. In together-*, all clients began at once.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean

import pytest

from exporter.model.contention import Bandwidth, Resource, Slowdown
from exporter.model.usage import Share
from exporter.model.values import replace
from exporter.usage.bandwidth import bandwidths
from exporter.usage.contention import slowdowns
from tests.usage.mix_recordings import HERE, Mix, mixes_of

MIXES = mixes_of(HERE / "copies")
SETTLE_SECONDS, EDGE_SECONDS = 2.0, 1.2
COPIES = ("d2d", "set", "both")
HOST = ("h2d", "d2h")


@dataclass(frozen=True)
class Client:
    """What a client did while all clients of its mix ran, and what was found. `alone` is its pace before, in steps."""

    kind: str
    used: float
    shares: Sequence[Share | None]
    moved: float
    bandwidth: Bandwidth | None
    alone: float | None
    pace: float
    slowdown: Slowdown | None
    neighbours: Sequence[str]

    @property
    def error(self) -> float:
        """The error of the shares in percentage points. An absent one counts as 0."""
        return 100 * abs(fmean(0.0 if share is None else share.sm for share in self.shares) - self.used)

    @property
    def standard_error(self) -> float:
        return 100 * fmean(0.0 if share is None else share.error for share in self.shares)


@cache
def clients() -> tuple[Client, ...]:
    return tuple(client for mix in MIXES for client in _clients(mix))


def _clients(mix: Mix) -> list[Client]:
    document = json.loads((mix.directory / f"{mix.name}.truth.json").read_text())
    node = mix.node_at(mix.truth.ended)
    ((gpu, state),) = node.contention.items()
    starts = {pid: samples[0][0] for pid, samples in mix.truth.samples.items()}
    windows = [
        each
        for each in node.attribution[gpu].windows
        if each.at - each.seconds >= max(starts.values()) + SETTLE_SECONDS
    ]
    began, ended = windows[0].at - windows[0].seconds, windows[-1].at
    state = replace(state, windows=tuple(each for each in state.windows if each.at >= windows[0].at))
    moved, slowed = bandwidths(state), slowdowns(state)
    order = sorted(starts, key=starts.__getitem__)
    found = []
    for pid, samples in mix.truth.samples.items():
        times = [at for at, _ in samples]
        steps, total = (dict(zip(times, document[each][str(pid)], strict=True)) for each in ("steps", "bytes"))
        earlier, later = order[: order.index(pid)], order[order.index(pid) + 1 :]
        alone = not mix.name.startswith("together") and bool(later) and all(mix.kinds[each] in HOST for each in earlier)
        until = starts[later[0]] if later else ended
        slowdown = slowed.get(pid)
        found.append(
            Client(
                kind=mix.kinds[pid],
                used=mix.truth.used(pid, began, ended) / (ended - began) / mix.truth.sms,
                shares=[each.shares.get(pid) for each in windows],
                moved=_pace(total, began, ended) / document["bandwidth"],
                bandwidth=moved.get(pid),
                alone=_pace(steps, starts[pid], until - EDGE_SECONDS) if alone else None,
                pace=_pace(steps, began, ended),
                slowdown=slowdown,
                neighbours=[] if slowdown is None else [mix.kinds[each] for each, _ in slowdown.neighbours],
            )
        )
    return found


def _pace(counts: Mapping[float, float], began: float, ended: float) -> float:
    """Return the increase in a second, between the first and the last count in that time."""
    within = [at for at in counts if began <= at <= ended]
    return (counts[within[-1]] - counts[within[0]]) / (within[-1] - within[0])


def slowed() -> list[Client]:
    """Return the clients with kernels that were alone before others copied."""
    return [client for client in clients() if client.alone is not None and client.kind not in HOST]


def test_every_client_has_a_share_that_is_right() -> None:
    assert len(clients()) == 45
    assert all(None not in client.shares for client in clients())
    errors = [client.error for client in clients()]
    assert fmean(errors) <= 1.5
    assert max(errors) <= 8.0
    assert max(mix.minute_at(mix.truth.ended).unattributed for mix in MIXES) <= 0.02


def test_two_standard_errors_contain_the_share() -> None:
    assert fmean(client.error <= 2 * client.standard_error + 0.3 for client in clients()) >= 0.9
    assert fmean(2 * client.standard_error for client in clients()) <= 7.0


def test_bandwidths_are_right() -> None:
    """Those of kernels that read memory are not known exactly, because the caches serve a part."""
    errors = [
        100 * abs(each.bandwidth.part - each.moved) for each in clients() if each.bandwidth and each.kind != "read"
    ]
    assert len(errors) > 30
    assert fmean(errors) <= 1.0
    assert max(errors) <= 5.0


def test_slowdowns_are_right() -> None:
    assert len(slowed()) == 9
    for client in slowed():
        assert client.alone is not None
        assert client.slowdown is not None
        assert client.slowdown.ratio == pytest.approx(client.alone / client.pace, rel=0.03)


def test_a_client_that_copies_is_named_as_the_cause() -> None:
    found = [client.slowdown for client in slowed() if client.slowdown is not None and client.slowdown.ratio > 1.1]
    assert len(found) == 7
    assert {each.resource for each in found} == {Resource.MEMORY}
    assert not any(each.at_least for each in found)
    assert all(client.neighbours[0] in COPIES for client in slowed() if client.slowdown in found)


def test_without_gpm_copies_have_a_share() -> None:
    """It is the most that they may have used, as far as the time with any kernel allows it."""
    minutes = [each for mix in MIXES for _, every in mix.minutes_without_gpm for each in every]
    assert fmean(each.error for each in minutes) <= 4.0
    assert fmean(each.is_covered for each in minutes) >= 0.85
