"""Static SM partitions of both protocols: what does not apply to them is not claimed."""

from dataclasses import replace

import pytest

from exporter.metrics.catalogue import NodeCollector
from exporter.model.node import Node
from exporter.model.observation import Observation
from exporter.model.settings import Limits
from exporter.page.page import Page
from exporter.parse.protocol3 import LIST_PARTITIONS
from exporter.state.failure_domains import failure_domains
from exporter.usage.capacity import Bound, gpu_sharing, thread_ratio
from exporter.view import View
from exporter.watchdog.limit_enforcement import check_limits
from tests.builders import (
    AT,
    DAEMON,
    GPU,
    MIB,
    SERVER,
    at_work,
    daemon_process,
    gpu_reading,
    no_daemon,
    process,
    reduced,
    reply,
)
from tests.page.inputs import status_input
from tests.parse.test_protocol3 import SAMPLES

FIRST, SECOND = 600, 601
CREATED = reply(LIST_PARTITIONS, SAMPLES[LIST_PARTITIONS], at=AT + 4)
"""A list of a daemon with protocol 3: one partition is created."""


def after(*seen: Observation, options: tuple[str, ...] = ()) -> Node:
    """A server with two clients and a limit of threads, and then these observations."""
    return reduced(
        replace(daemon_process(), options=options),
        *at_work(FIRST, SECOND),
        reply(f"get_active_thread_percentage {SERVER}", "50.0\n"),
        replace(gpu_reading({FIRST: 1024, SECOND: 1024}), memory_total_bytes=80 << 30, memory_used_bytes=2048 * MIB),
        process(FIRST),
        *seen,
    ).node


def families(node: Node) -> set[str]:
    return {sample.name for metric in NodeCollector(View(node)).collect() for sample in metric.samples}


def test_what_static_partitions_change(subtests: pytest.Subtests) -> None:
    for node, partitioned in [
        (after(), False),
        (after(options=("-S",)), True),
        (after(CREATED), True),
        (after(replace(CREATED, stdout=CREATED.stdout.replace("created", "configured"))), False),
        (after(CREATED, replace(CREATED, stdout=CREATED.stdout.splitlines()[0])), False),
    ]:
        with subtests.test(node=node, partitioned=partitioned):
            daemon = node.daemons[DAEMON]
            assert daemon.has_static_partitions is partitioned
            assert thread_ratio(node, daemon, daemon.clients[FIRST]) == (None if partitioned else 0.5)
            assert ("cuda_mps_server_active_thread_ratio" in families(node)) is not partitioned
            assert bool(check_limits(daemon, Limits(active_thread_percentage=10.0), 9.0)) is not partitioned
            [domain] = failure_domains(node, daemon)[SERVER]
            assert (domain.clients, domain.upper_bound) == ({FIRST, SECOND}, partitioned)
            bounds = gpu_sharing(node)[GPU].headroom.by_bound.keys()
            assert not partitioned or not bounds & {Bound.SM, Bound.SLOTS}, bounds
            page = Page({}).node(status_input(node)).decode()
            assert ("static SM partitions" in page) is partitioned
            assert ("of threads" in page) is not partitioned


def test_a_new_daemon_has_no_partitions_yet() -> None:
    node = after(CREATED, no_daemon(at=AT + 5), daemon_process(None, at=AT + 6))

    new = reduced(daemon_process(900, at=AT + 7), start=node).node

    assert not new.daemons[DAEMON].has_static_partitions
