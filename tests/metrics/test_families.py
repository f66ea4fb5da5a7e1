"""Families in the exposition: values, valid format, hostile names."""

import subprocess
from collections.abc import Iterable
from dataclasses import replace
from itertools import product

import pytest
from prometheus_client import Metric, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.samples import Sample

from exporter.history import HistoryStatus
from exporter.metrics.catalogue import CATALOGUE, Made, NodeCollector
from exporter.model.node import Node
from exporter.model.observation import LogFile, LogGap, LogUnrecognized, SourceReading
from exporter.model.settings import Mode
from exporter.parse.printable import LONGEST_TEXT
from exporter.view import View
from exporter.watchdog.context import Policy
from tests.builders import (
    AT,
    CLIENT,
    CONTROL,
    DAEMON,
    GPU,
    GPU_BYTES,
    HANGS,
    MIB,
    NODE_MAKERS,
    OTHER_GPU,
    SERVER,
    active,
    at_work,
    control_log,
    daemon_down,
    exited,
    failure,
    fault,
    full,
    gpu_lost,
    gpu_reading,
    idle,
    limited,
    look,
    no_daemon,
    no_nvml,
    node,
    process,
    reduced,
    server_log,
    servers,
    three_clients,
)
from tests.tools import needed

KEPT = HistoryStatus(writable=True, events_dropped=0)

POLICY = Policy(mode=Mode.ACT)

SERVER_LIMIT = "cuda_mps_server_pinned_memory_limit_bytes"

STATE_SETS = {
    "cuda_mps_daemon_state": 6,
    "cuda_mps_server_state": 3,
    "cuda_mps_watchdog_mode": 2,
    "cuda_mps_watchdog_state": 7,
    "cuda_mps_watchdog_diagnosis": 15,
}

HOSTILE = (
    'he said "hello"',
    "two\nlines",
    'cuda_mps_daemon_up{daemon="x"} 0\n# HELP cuda_mps_daemon_up no\r\n',
    "back\\slash\\n",
    "}{,=\x00\x1b[31m\t",
    "x" * 4000,
    "ü" * 4000,
    "\ud800\udcff",
    "\u2028line\u2029separators\x85",
    "\u202eright to left",
    "[2026-11-20 15:08:45.147 Server   513] Server is handling a fatal GPU error.",
    "",
)


OPEN = {family.name for family in CATALOGUE if family.more_labels}
"""Families with more labels than the catalogue has."""


def view_of(present: Node, min_age: float = 0.0) -> View:
    """Return the view that the service would have."""
    accepted = {"web": 0, "service_socket": 0}
    return View(
        present,
        min_age,
        config_valid=True,
        history=KEPT,
        policy=POLICY,
        accept_failures=accepted,
        log_records_dropped=0,
    )


def openmetrics_of(present: Node) -> list[Metric]:
    """Parse with the strict parser of the format."""
    text = generate_openmetrics(NodeCollector(view_of(present)))  # type: ignore[no-untyped-call]
    return list(parse_openmetrics(text.decode()))  # type: ignore[no-untyped-call]


def promtool_check(text: str) -> tuple[int, str, str]:
    """Return promtool's exit code and output."""
    command = [needed("promtool"), "check", "metrics"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def text_of(present: Node, min_age: float = 0.0) -> str:
    return generate_latest(NodeCollector(view_of(present, min_age))).decode()


def families(present: Node, min_age: float = 0.0) -> dict[str, Metric]:
    """Return the families by name."""
    parsed = parse_text(text_of(present, min_age))
    return {metric.name + ("_total" if metric.type == "counter" else ""): metric for metric in parsed}


def samples(present: Node, name: str, **labels: str) -> list[Sample]:
    family = families(present).get(name)
    return [each for each in family.samples if labels.items() <= each.labels.items()] if family else []


def value(present: Node, name: str, **labels: str) -> float:
    """Return the value of the only sample with these labels."""
    (sample,) = samples(present, name, **labels)
    return sample.value


def by(present: Node, name: str, label: str, **labels: str) -> dict[str, float]:
    """Return values by one label."""
    return {each.labels[label]: each.value for each in samples(present, name, **labels)}


# Catalogue


def test_the_catalogue_has_unique_names_and_labels_with_prefix_and_help() -> None:
    names = [family.name for family in CATALOGUE]
    assert len(names) == len(set(names))
    for family in CATALOGUE:
        assert family.name.startswith("cuda_mps_")
        assert family.name.endswith("_total") == (family.metric(()).type == "counter")
        assert family.help.endswith(".")
        assert len(set(family.labels)) == len(family.labels)


def test_reuses_the_metric_of_an_unchanged_family() -> None:
    made: Made = {}
    present = three_clients()
    before = {each.name: each for each in NodeCollector(View(present), made=made).collect()}
    older = replace(present, at=present.at + 1, sources={})

    after = {each.name: each for each in NodeCollector(View(older), made=made).collect()}

    assert after["cuda_mps_client_info"] is before["cuda_mps_client_info"]
    assert list(after.values()) == list(NodeCollector(View(older)).collect())


def test_the_samples_of_a_family_are_counted_and_indexed_as_they_are_written() -> None:
    for family in NodeCollector(View(three_clients())).collect():
        written = list(family.samples)
        assert (len(family.samples), family.samples[-1]) == (len(written), written[-1])


def test_each_family_has_samples_in_some_node() -> None:
    shown = {name for make_node in NODE_MAKERS.values() for name in families(make_node())}
    assert {family.name for family in CATALOGUE} == shown


def test_the_exposition_of_every_scene_is_valid(subtests: pytest.Subtests) -> None:
    """Families and labels are those of the catalogue, series are unique, and OpenMetrics has the same values."""
    labels = {family.name: set(family.labels) for family in CATALOGUE}
    for name, make_node in NODE_MAKERS.items():
        with subtests.test(node=name):
            present = make_node()
            found = families(present)
            for family, metric in found.items():
                assert all(fixed(family, sample) == labels[family] for sample in metric.samples)
            values = series_of(found.values())
            assert len(values) == sum(len(metric.samples) for metric in found.values())
            assert promtool_check(text_of(present)) == (0, "", "")
            assert series_of(openmetrics_of(present)) == values


def fixed(family: str, sample: Sample) -> set[str]:
    """Return the labels without those of pods, which only one family has."""
    return {label for label in sample.labels.keys() - {"le"} if family not in OPEN or not label.startswith("label_")}


def series_of(metrics: Iterable[Metric]) -> dict[tuple[str, str], float]:
    return {(each.name, str(sorted(each.labels.items()))): each.value for one in metrics for each in one.samples}


def test_exactly_one_state_is_1(subtests: pytest.Subtests) -> None:
    for make_node, name in product(NODE_MAKERS.values(), STATE_SETS):
        with subtests.test(node=make_node.__name__, name=name):
            values_of: dict[tuple[str | None, str | None], list[float]] = {}
            for sample in samples(make_node(), name):
                key = (sample.labels.get("daemon"), sample.labels.get("server"))
                values_of.setdefault(key, []).append(sample.value)
            for values in values_of.values():
                assert sorted(values) == [0.0] * (STATE_SETS[name] - 1) + [1.0]


# Daemons and servers


def test_a_daemon_without_clients_has_zeros(subtests: pytest.Subtests) -> None:
    assert value(idle(), "cuda_mps_server_clients", server=str(SERVER)) == 0
    assert value(idle(), "cuda_mps_server_clients_limit", server=str(SERVER)) == 48
    assert value(idle(), "cuda_mps_bypassing_processes", gpu=GPU) == 0
    for name, present in {"a server": idle(), "no server": reduced(*at_work()[:1], servers()).node}.items():
        with subtests.test(name):
            assert value(present, "cuda_mps_clients_connected_total", daemon=DAEMON) == 0
            assert value(present, "cuda_mps_clients_waiting", daemon=DAEMON) == 0
            disconnected = by(present, "cuda_mps_clients_disconnected_total", "reason")
            ordinary = {"exit": 0, "terminated": 0, "evicted": 0, "out_of_memory": 0, "shut_down": 0}
            assert disconnected == {**ordinary, "server_gone": 0, "daemon_gone": 0}
            assert by(present, "cuda_mps_clients_refused_total", "reason") == {"limit": 0, "fault": 0, "other": 0}
            assert by(present, "cuda_mps_daemon_losses_total", "reason") == {"died": 0, "replaced": 0}


def test_daemon_info_has_the_identity() -> None:
    assert value(idle(), "cuda_mps_daemon_up", daemon=DAEMON) == 1
    assert value(idle(), "cuda_mps_daemon_state", state="up") == 1
    (info,) = samples(idle(), "cuda_mps_daemon_info")
    known = {"daemon": DAEMON, "pipe_directory": DAEMON, "uid": "0", "version": "13000", "expected": "true"}
    unknown = ("unit", "user", "job_manager", "job_id", "daemon_pod", "daemon_namespace", "protocol")
    assert info.labels == known | dict.fromkeys(unknown, "")


def test_a_daemon_that_was_not_queried_has_no_state() -> None:
    assert not samples(node(), "cuda_mps_daemon_up")
    assert value(node(), "cuda_mps_clients_connected_total", daemon=DAEMON) == 0


def test_a_default_directory_without_a_daemon_has_no_series() -> None:
    present = reduced(no_daemon(), start=node(DAEMON, expected=False)).node
    assert not samples(present, "cuda_mps_daemon_up")
    assert not samples(present, "cuda_mps_clients_connected_total")


def test_a_dead_daemon_has_a_state_a_counter_and_a_time_and_its_clients_are_disconnected() -> None:
    present = daemon_down()
    assert value(present, "cuda_mps_daemon_up") == 0
    assert value(present, "cuda_mps_daemon_state", state="down") == 1
    assert by(present, "cuda_mps_daemon_losses_total", "reason") == {"died": 1, "replaced": 0}
    assert value(present, "cuda_mps_daemon_last_loss_timestamp_seconds") == AT + 5
    assert value(present, "cuda_mps_clients_disconnected_total", reason="daemon_gone") == 3
    for name in ("server_state", "server_clients", "client_info", "client_memory_used_bytes"):
        assert not samples(present, f"cuda_mps_{name}")
    assert not samples(present, "cuda_mps_daemon_start_time_seconds")


def test_a_loss_remains_visible_after_a_restart() -> None:
    back = reduced(*at_work(at=AT + 20), start=daemon_down()).node
    assert value(back, "cuda_mps_daemon_up") == 1
    assert value(back, "cuda_mps_daemon_losses_total", reason="died") == 1
    assert value(back, "cuda_mps_daemon_last_loss_timestamp_seconds") == AT + 5


def test_a_discovered_daemon_has_series_for_five_minutes_after_its_end() -> None:
    start = reduced(*at_work(CLIENT), start=node(DAEMON, expected=False)).node
    dead = reduced(no_daemon(at=AT + 5), no_daemon(at=AT + 15), start=start).node
    assert value(dead, "cuda_mps_daemon_losses_total", reason="died") == 1
    assert not samples(reduced(look(at=AT + 400), start=dead).node, "cuda_mps_daemon_losses_total")


def test_shows_a_server_in_fault() -> None:
    states = by(reduced(*at_work(CLIENT), *fault()).node, "cuda_mps_server_state", "state")
    assert states == {"initializing": 0, "active": 0, "fault": 1}


def test_a_full_server_has_as_many_clients_as_its_limit_and_counts_refused_clients() -> None:
    present = full()
    assert value(present, "cuda_mps_server_clients", server=str(SERVER)) == 48
    assert value(present, "cuda_mps_server_clients_limit", server=str(SERVER)) == 48
    assert len(samples(present, "cuda_mps_client_info")) == 48
    assert len(samples(present, "cuda_mps_client_memory_used_bytes")) == 48
    assert {each.value for each in samples(present, "cuda_mps_client_failure_domain_clients")} == {47}
    assert value(present, "cuda_mps_clients_refused_total", reason="limit") == 16
    assert value(present, "cuda_mps_clients_connected_total") == 48


# Clients


def test_client_info_has_the_identity() -> None:
    infos = samples(three_clients(), "cuda_mps_client_info")
    assert sorted((each.labels["pid"], each.labels["user"], each.labels["command"]) for each in infos) == [
        ("600", "alice", "train.py"),
        ("601", "bob", "vllm"),
        ("602", "alice", "eval.py"),
    ]
    assert {(each.labels["server"], each.value) for each in infos} == {(str(SERVER), 1)}


def test_the_client_id_joins_memory_on_each_gpu_with_info() -> None:
    present = three_clients()
    pids = {each.labels["client"]: each.labels["pid"] for each in samples(present, "cuda_mps_client_info")}
    memory = {
        (pids[each.labels["client"]], each.labels["gpu"]): each.value / MIB
        for each in samples(present, "cuda_mps_client_memory_used_bytes")
    }
    assert memory == {("600", GPU): 1540, ("601", GPU): 2564, ("600", OTHER_GPU): 700, ("602", OTHER_GPU): 4612}


def test_shows_the_other_clients_of_the_failure_domain() -> None:
    """A client on both GPUs joins the others. A client without its own series counts, too."""
    late = reduced(*server_log(active(700), at=AT + 100), gpu_reading([600, 601, 700]), start=three_clients()).node
    for present, others in ((three_clients(), 2), (late, 3)):
        falling = families(present, min_age=15)["cuda_mps_client_failure_domain_clients"].samples
        assert [each.value for each in falling] == [others] * 3


def test_a_client_alone_on_its_gpu_has_a_domain_of_its_own() -> None:
    """A bypassing process does not count: faults of MPS clients do not affect it."""
    apart = gpu_reading({602: 4612}, beside={801: 1024}, gpu=OTHER_GPU, index=1)
    others = samples(reduced(apart, start=three_clients()).node, "cuda_mps_client_failure_domain_clients")
    assert {each.labels["client"].partition("-")[0]: each.value for each in others} == {"600": 1, "601": 1, "602": 0}


def test_a_young_client_counts_but_has_no_series() -> None:
    present = reduced(process(), *server_log(active(700), at=AT + 100), start=three_clients()).node
    infos = families(present, min_age=15)["cuda_mps_client_info"].samples
    assert {each.labels["pid"] for each in infos} == {"600", "601", "602"}
    assert value(present, "cuda_mps_server_clients", server=str(SERVER)) == 4


def test_a_client_with_a_reused_pid_has_another_id() -> None:
    nodes = [reduced(*at_work(CLIENT), process(ticks=ticks)).node for ticks in (1, 2)]
    assert len({each.labels["client"] for one in nodes for each in samples(one, "cuda_mps_client_info")}) == 2


# GPUs and collectors


def test_shows_memory_and_bypassing_processes_of_each_gpu() -> None:
    present = three_clients()
    assert by(present, "cuda_mps_gpu_up", "gpu") == {GPU: 1, OTHER_GPU: 1}
    assert value(present, "cuda_mps_gpu_memory_total_bytes", gpu=GPU) == GPU_BYTES
    assert value(present, "cuda_mps_gpu_memory_used_bytes", gpu=GPU) == (1540 + 2564 + 66) * MIB
    assert by(present, "cuda_mps_bypassing_processes", "gpu") == {GPU: 0, OTHER_GPU: 1}


def test_a_gpu_that_was_not_read_has_only_up_which_is_0() -> None:
    """Its clients keep their info, and have no failure domain: a number that is too small would suggest isolation."""
    for present, up in ((no_nvml(), {GPU: 0, OTHER_GPU: 0}), (gpu_lost(), {GPU: 1, OTHER_GPU: 0})):
        assert by(present, "cuda_mps_gpu_up", "gpu") == up
        read = {gpu for gpu, seen in up.items() if seen}
        for name in (
            "gpu_memory_used_bytes",
            "gpu_memory_total_bytes",
            "bypassing_processes",
            "client_memory_used_bytes",
        ):
            assert {each.labels["gpu"] for each in samples(present, f"cuda_mps_{name}")} == read
        assert not samples(present, "cuda_mps_client_failure_domain_clients")
        assert len(samples(present, "cuda_mps_client_info")) == 3
    back = reduced(gpu_reading({600: 1540}, at=AT + 20), look(at=AT + 20), start=no_nvml()).node
    assert value(back, "cuda_mps_gpu_up", gpu=GPU) == 1
    assert value(back, "cuda_mps_client_memory_used_bytes", gpu=GPU) == 1540 * MIB


def test_a_failed_collector_is_0_and_its_last_success_does_not_advance() -> None:
    success = "cuda_mps_exporter_source_last_success_timestamp_seconds"
    assert value(no_nvml(), "cuda_mps_exporter_source_up", source="nvml") == 0
    assert value(no_nvml(), "cuda_mps_exporter_source_up", source="log") == 1
    assert value(no_nvml(), success, source="nvml") == AT + 2
    assert value(no_nvml(), "cuda_mps_exporter_source_failures_total", source="nvml") == 1
    assert not samples(reduced(look(problem=failure("NVML is not there"))).node, success)


# Limits


def test_shows_the_limits_of_a_server_and_the_defaults_of_the_daemon() -> None:
    """Ratios, and bytes by GPU. The daemon's ordinals differ from NVML's here. Defaults do not apply to a server."""
    assert by(limited(), "cuda_mps_server_active_thread_ratio", "server", daemon=DAEMON) == {str(SERVER): 0.5}
    assert by(limited(), SERVER_LIMIT, "gpu", daemon=DAEMON, server=str(SERVER)) == {OTHER_GPU: 2 << 30}
    assert by(limited(), "cuda_mps_daemon_default_active_thread_ratio", "daemon") == {DAEMON: 0.25}
    assert by(limited(), "cuda_mps_daemon_default_pinned_memory_limit_bytes", "gpu") == {GPU: 3 << 30}


def test_an_unknown_limit_and_one_of_an_ended_daemon_have_no_sample() -> None:
    after = reduced(no_daemon(at=AT + 20), exited(CONTROL, at=AT + 5), start=limited()).node
    for present in (three_clients(), after):
        assert not any("thread_ratio" in name or "pinned" in name for name in families(present))


def test_an_ordinal_identifies_no_gpu_among_several() -> None:
    """The daemon's order can differ from NVML's."""
    message = server_log(
        "Active Threads Percentage set to 50.0", "Device pinned memory limit for device 0 set to 0x80000000 bytes"
    )
    assert not by(reduced(*message, start=three_clients()).node, SERVER_LIMIT, "gpu")
    assert by(reduced(*message, start=idle()).node, SERVER_LIMIT, "gpu") == {GPU: 2 << 30}


# Logs


def test_shows_which_logs_are_followed_and_their_size_if_known() -> None:
    sizes = "cuda_mps_daemon_log_size_bytes"
    assert by(three_clients(), "cuda_mps_exporter_log_followed", "file") == {"control.log": 1, "server.log": 0}
    assert by(three_clients(), sizes, "file", daemon=DAEMON) == {"control.log": 3 * MIB}
    grown = reduced(LogFile(at=AT, daemon=DAEMON, file="control.log", size=7 * MIB), start=three_clients()).node
    assert by(grown, sizes, "file", daemon=DAEMON) == {"control.log": 7 * MIB}
    gone = LogFile(at=AT, daemon=DAEMON, file="control.log", problem=failure("does not exist"))
    assert not samples(reduced(gone, start=grown).node, sizes)


def test_shows_unread_bytes_of_a_log_unless_it_hangs() -> None:
    unread = "cuda_mps_daemon_log_unread_bytes"
    flooded = reduced(LogFile(at=AT, daemon=DAEMON, file="control.log", unread=7 * MIB), start=three_clients()).node
    assert by(flooded, unread, "file", daemon=DAEMON) == {"control.log": 7 * MIB}

    hangs = SourceReading(at=AT, name="log", seconds=5.0, daemon=DAEMON, problem=HANGS)
    stuck = reduced(hangs, start=flooded).node
    assert not samples(stuck, unread)
    assert by(stuck, "cuda_mps_exporter_log_followed", "file") == {"control.log": 0, "server.log": 0}


def test_counts_lines_unrecognized_lines_and_lost_lines() -> None:
    def counts(present: Node) -> tuple[float, ...]:
        names = ("log_lines_total", "log_lines_unrecognized_total", "log_lines_lost_total")
        return tuple(value(present, f"cuda_mps_exporter_{name}", file="control.log") for name in names)

    lines, unrecognized, lost = counts(three_clients())
    assert lost == 0
    start = reduced(*control_log("UI closed", "what is this?"), start=three_clients()).node
    assert counts(start) == (lines + 2, unrecognized + 1, 0)
    skipped = LogUnrecognized(at=AT, daemon=DAEMON, file="control.log", lines=1000)
    assert counts(reduced(skipped, start=start).node) == (lines + 1002, unrecognized + 1001, 0)
    gap = LogGap(at=AT, daemon=DAEMON, file="control.log", lines=71)
    assert counts(reduced(gap, start=start).node) == (lines + 2, unrecognized + 1, 71)


def test_shows_the_time_of_the_snapshot() -> None:
    name = "cuda_mps_exporter_snapshot_timestamp_seconds"
    assert value(reduced(look(at=AT + 7), start=three_clients()).node, name) == AT + 7
    assert not samples(Node(), name)


# Hostile names


def named(name: str) -> Node:
    """Return a node on which every name is `name`."""
    return reduced(
        *at_work(CLIENT), process(user=name, command=name), gpu_reading([CLIENT], name=name), *server_log(name)
    ).node


def test_a_hostile_name_is_one_short_label_value_and_changes_no_other_sample(subtests: pytest.Subtests) -> None:
    """Both formats are valid with it, also for the strict parser and promtool."""
    for name in HOSTILE:
        with subtests.test(name=name):
            assert other_samples(named(name)) == other_samples(named("plain"))
            (info,) = samples(named(name), "cuda_mps_client_info")
            assert len(info.labels["command"]) <= LONGEST_TEXT == 128
            assert info.labels["command"].isprintable()
            assert len(text_of(named(name)).splitlines()) == len(text_of(named("plain")).splitlines())
            assert openmetrics_of(named(name))
            assert promtool_check(text_of(named(name))) == (0, "", "")


def other_samples(present: Node) -> set[tuple[object, ...]]:
    """Return all samples without the labels that contain a name."""
    hidden = {"user", "command", "name", "workload"}
    return {
        (each.name, each.value, *sorted((label, text) for label, text in each.labels.items() if label not in hidden))
        for family in families(present).values()
        for each in family.samples
        if not each.name.startswith("cuda_mps_exporter_log_lines")
    }
