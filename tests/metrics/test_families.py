"""Families in the exposition: values, valid format, hostile names."""

import subprocess
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
from prometheus_client import Metric, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.samples import Sample

from exporter.metrics.catalogue import CATALOGUE, Made, NodeCollector
from exporter.model.node import Node
from exporter.model.observation import LogFile, LogGap, LogUnrecognized, SourceReading
from exporter.model.settings import Mode
from exporter.parse.printable import LONGEST_TEXT
from exporter.view import HistoryStatus, View
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
    OTHER_GPU,
    SCENES,
    SERVER,
    active,
    at_work,
    control_log,
    daemon_dead,
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


class TestCatalogue:
    """The catalogue of families."""

    def test_names_are_unique_and_have_the_prefix(self) -> None:
        """Two families with one name make a scrape invalid."""
        names = [family.name for family in CATALOGUE]
        assert len(names) == len(set(names))
        assert all(name.startswith("cuda_mps_") for name in names)

    def test_only_counters_end_in_total(self) -> None:
        """Prometheus' convention."""
        for family in CATALOGUE:
            assert family.name.endswith("_total") == (family.metric(()).type == "counter")

    def test_reuses_the_metric_of_an_unchanged_family(self) -> None:
        """The metric is that of the previous snapshot."""
        made: Made = {}
        present = three_clients()
        before = {each.name: each for each in NodeCollector(View(present), made=made).collect()}
        older = replace(present, at=present.at + 1, sources={})

        after = {each.name: each for each in NodeCollector(View(older), made=made).collect()}

        assert after["cuda_mps_client_info"] is before["cuda_mps_client_info"]
        fresh = NodeCollector(View(older)).collect()
        assert list(after.values()) == list(fresh)

    def test_each_family_has_a_help_text(self) -> None:
        """It is a sentence, and labels are unique."""
        for family in CATALOGUE:
            assert family.help.endswith(".")
            assert len(set(family.labels)) == len(family.labels)

    def test_each_family_has_samples_in_some_scene(self) -> None:
        """A family without samples would have no test."""
        shown = {name for scene in SCENES.values() for name in families(scene())}
        assert {family.name for family in CATALOGUE} == shown


class TestEveryScene:
    """Properties of the exposition of every scene."""

    def test_families_and_labels_are_those_of_the_catalogue(self, subtests: pytest.Subtests) -> None:
        """There are no others."""
        for scene in SCENES.values():
            with subtests.test(scene=scene):
                labels = {family.name: set(family.labels) for family in CATALOGUE}
                for name, family in families(scene()).items():
                    assert all(sample.labels.keys() - {"le"} == labels[name] for sample in family.samples)

    def test_series_are_unique(self, subtests: pytest.Subtests) -> None:
        """Prometheus would reject the scrape."""
        for scene in SCENES.values():
            with subtests.test(scene=scene):
                series = [
                    (sample.name, frozenset(sample.labels.items()))
                    for family in families(scene()).values()
                    for sample in family.samples
                ]
                assert len(series) == len(set(series))

    def test_exactly_one_state_is_1(self, subtests: pytest.Subtests) -> None:
        """All others are 0."""
        for scene, name in product(SCENES.values(), STATE_SETS):
            with subtests.test(scene=scene, name=name):
                values_of: dict[tuple[str | None, str | None], list[float]] = {}
                for sample in samples(scene(), name):
                    key = (sample.labels.get("daemon"), sample.labels.get("server"))
                    values_of.setdefault(key, []).append(sample.value)
                for values in values_of.values():
                    assert sorted(values) == [0.0] * (STATE_SETS[name] - 1) + [1.0]

    def test_promtool_reports_nothing(self, subtests: pytest.Subtests) -> None:
        """No error and no advice."""
        for scene in SCENES.values():
            with subtests.test(scene=scene):
                assert promtool_check(text_of(scene())) == (0, "", "")

    def test_openmetrics_has_the_same_values(self, subtests: pytest.Subtests) -> None:
        """Parsed by the strict parser of the format."""
        for scene in SCENES.values():
            with subtests.test(scene=scene):
                present = scene()
                strict = openmetrics_of(present)
                parsed = {
                    (each.name, str(sorted(each.labels.items()))): each.value for one in strict for each in one.samples
                }
                assert parsed == {
                    (each.name, str(sorted(each.labels.items()))): each.value
                    for one in families(present).values()
                    for each in one.samples
                }


class TestIdle:
    """A known daemon without clients has explicit zeros."""

    def test_the_daemon_is_up(self) -> None:
        """Its info has its identity."""
        assert value(idle(), "cuda_mps_daemon_up", daemon=DAEMON) == 1
        assert value(idle(), "cuda_mps_daemon_state", state="up") == 1
        (info,) = samples(idle(), "cuda_mps_daemon_info")
        assert info.labels == {
            "daemon": DAEMON,
            "pipe_directory": DAEMON,
            "unit": "",
            "uid": "0",
            "user": "",
            "slurm_job_id": "",
            "slurm_job_sluid": "",
            "daemon_pod": "",
            "daemon_namespace": "",
            "version": "13000",
            "protocol": "",
            "expected": "true",
        }

    @pytest.mark.parametrize(
        "present", [idle(), reduced(*at_work()[:1], servers()).node], ids=("a server", "no server")
    )
    def test_counters_start_at_0(self, present: Node) -> None:
        """So the first event is an increase."""
        assert value(present, "cuda_mps_clients_connected_total", daemon=DAEMON) == 0
        assert value(present, "cuda_mps_clients_waiting", daemon=DAEMON) == 0
        disconnected = by(present, "cuda_mps_clients_disconnected_total", "reason")
        assert disconnected == {"exit": 0, "server_gone": 0, "daemon_gone": 0}
        assert by(present, "cuda_mps_clients_refused_total", "reason") == {"limit": 0, "fault": 0, "other": 0}
        assert by(present, "cuda_mps_daemon_losses_total", "reason") == {"died": 0, "replaced": 0}

    def test_a_server_without_clients_has_0_clients_and_a_limit(self) -> None:
        """The 0 is explicit."""
        assert value(idle(), "cuda_mps_server_clients", server=str(SERVER)) == 0
        assert value(idle(), "cuda_mps_server_clients_limit", server=str(SERVER)) == 48
        assert value(idle(), "cuda_mps_bypassing_processes", gpu=GPU) == 0

    def test_an_expected_daemon_has_no_state_before_the_first_collection(self) -> None:
        """A daemon that was not queried is not down."""
        assert not samples(node(), "cuda_mps_daemon_up")
        assert value(node(), "cuda_mps_clients_connected_total", daemon=DAEMON) == 0

    def test_a_default_directory_without_a_daemon_has_no_series(self) -> None:
        """On a node without MPS, no daemon is down."""
        present = reduced(no_daemon(), start=node(DAEMON, expected=False)).node
        assert not samples(present, "cuda_mps_daemon_up")
        assert not samples(present, "cuda_mps_clients_connected_total")


class TestThreeClients:
    """Clients and their memory."""

    def test_client_info_has_the_identity(self) -> None:
        """No other family has it."""
        infos = samples(three_clients(), "cuda_mps_client_info")
        assert sorted((each.labels["pid"], each.labels["user"], each.labels["command"]) for each in infos) == [
            ("600", "alice", "train.py"),
            ("601", "bob", "vllm"),
            ("602", "alice", "eval.py"),
        ]
        assert {(each.labels["server"], each.value) for each in infos} == {(str(SERVER), 1)}

    def test_the_client_id_joins_memory_with_info(self) -> None:
        """On each GPU that the client uses."""
        present = three_clients()
        pids = {each.labels["client"]: each.labels["pid"] for each in samples(present, "cuda_mps_client_info")}
        memory = {
            (pids[each.labels["client"]], each.labels["gpu"]): each.value / MIB
            for each in samples(present, "cuda_mps_client_memory_used_bytes")
        }
        assert memory == {("600", GPU): 1540, ("601", GPU): 2564, ("600", OTHER_GPU): 700, ("602", OTHER_GPU): 4612}

    def test_shows_the_other_clients_of_the_failure_domain(self) -> None:
        """A client on both GPUs joins the others. A client without its own series counts, too."""
        late = reduced(*server_log(active(700), at=AT + 100), gpu_reading([600, 601, 700]), start=three_clients()).node
        for present, others in ((three_clients(), 2), (late, 3)):
            falling = families(present, min_age=15)["cuda_mps_client_failure_domain_clients"].samples
            assert [each.value for each in falling] == [others] * 3

    def test_a_client_alone_on_its_gpu_has_a_domain_of_its_own(self) -> None:
        """A bypassing process does not count: faults of MPS clients do not affect it."""
        apart = gpu_reading({602: 4612}, beside={801: 1024}, gpu=OTHER_GPU, index=1)
        others = samples(reduced(apart, start=three_clients()).node, "cuda_mps_client_failure_domain_clients")
        assert {each.labels["client"].partition("-")[0]: each.value for each in others} == {
            "600": 1,
            "601": 1,
            "602": 0,
        }

    def test_the_gpus(self) -> None:
        """Memory and bypassing processes of each GPU."""
        present = three_clients()
        assert by(present, "cuda_mps_gpu_up", "gpu") == {GPU: 1, OTHER_GPU: 1}
        assert value(present, "cuda_mps_gpu_memory_total_bytes", gpu=GPU) == GPU_BYTES
        assert value(present, "cuda_mps_gpu_memory_used_bytes", gpu=GPU) == (1540 + 2564 + 66) * MIB
        assert by(present, "cuda_mps_bypassing_processes", "gpu") == {GPU: 0, OTHER_GPU: 1}

    def test_a_young_client_counts_but_has_no_series(self) -> None:
        """Short-lived clients would create too many series."""
        present = reduced(process(), *server_log(active(700), at=AT + 100), start=three_clients()).node
        infos = families(present, min_age=15)["cuda_mps_client_info"].samples
        assert {each.labels["pid"] for each in infos} == {"600", "601", "602"}
        assert value(present, "cuda_mps_server_clients", server=str(SERVER)) == 4

    def test_a_client_with_another_start_time_has_another_id(self) -> None:
        """PIDs are reused."""
        ids = {
            each.labels["client"]
            for ticks in (1, 2)
            for each in samples(reduced(*at_work(CLIENT), process(ticks=ticks)).node, "cuda_mps_client_info")
        }
        assert len(ids) == 2


class TestFull:
    """A server with all client slots used."""

    def test_the_number_of_clients_is_the_limit(self) -> None:
        """Each client has its series."""
        assert value(full(), "cuda_mps_server_clients", server=str(SERVER)) == 48
        assert value(full(), "cuda_mps_server_clients_limit", server=str(SERVER)) == 48
        assert len(samples(full(), "cuda_mps_client_info")) == 48
        assert len(samples(full(), "cuda_mps_client_memory_used_bytes")) == 48
        assert {each.value for each in samples(full(), "cuda_mps_client_failure_domain_clients")} == {47}

    def test_counts_refused_clients(self) -> None:
        """A refused client was never connected."""
        assert value(full(), "cuda_mps_clients_refused_total", reason="limit") == 16
        assert value(full(), "cuda_mps_clients_connected_total") == 48

    def test_the_limit_is_the_documented_one_by_default(self) -> None:
        """For an H200 and CUDA 13.0."""
        assert value(reduced(*at_work(), gpu_reading()).node, "cuda_mps_server_clients_limit") == 48

    def test_the_limit_in_the_server_log_takes_precedence(self) -> None:
        """Over the documented one."""
        message = "Failed to accept new client. Maximum number of clients (16) reached."
        present = reduced(*at_work(*range(1000, 1016)), gpu_reading(), *server_log(message)).node
        assert value(present, "cuda_mps_server_clients_limit") == 16

    def test_an_unknown_limit_has_no_series(self) -> None:
        """It is not guessed."""
        assert not samples(reduced(*at_work()).node, "cuda_mps_server_clients_limit")


class TestDaemonDead:
    """A dead daemon has a state, a counter and a time."""

    def test_is_down_and_counted(self) -> None:
        """With reason and time."""
        assert value(daemon_dead(), "cuda_mps_daemon_up") == 0
        assert value(daemon_dead(), "cuda_mps_daemon_state", state="absent") == 1
        assert by(daemon_dead(), "cuda_mps_daemon_losses_total", "reason") == {"died": 1, "replaced": 0}
        assert value(daemon_dead(), "cuda_mps_daemon_last_loss_timestamp_seconds") == AT + 5

    def test_counts_its_disconnected_clients(self) -> None:
        """The reason is the daemon's end."""
        present = daemon_dead()
        gone = (
            "cuda_mps_server_state",
            "cuda_mps_server_clients",
            "cuda_mps_client_info",
            "cuda_mps_client_memory_used_bytes",
        )
        assert not [each for name in gone for each in samples(present, name)]
        assert not samples(present, "cuda_mps_daemon_start_time_seconds")
        assert value(present, "cuda_mps_clients_disconnected_total", reason="daemon_gone") == 3

    def test_the_loss_remains_visible_after_a_restart(self) -> None:
        """Even if the daemon is back before the next scrape."""
        back = reduced(*at_work(at=AT + 20), start=daemon_dead()).node
        assert value(back, "cuda_mps_daemon_up") == 1
        assert value(back, "cuda_mps_daemon_losses_total", reason="died") == 1
        assert value(back, "cuda_mps_daemon_last_loss_timestamp_seconds") == AT + 5

    def test_a_discovered_daemon_has_series_for_five_minutes(self) -> None:
        """The daemon of a job ends with the job."""
        start = reduced(*at_work(CLIENT), start=node(DAEMON, expected=False)).node
        dead = reduced(no_daemon(at=AT + 5), no_daemon(at=AT + 15), start=start).node
        assert value(dead, "cuda_mps_daemon_losses_total", reason="died") == 1
        assert not samples(reduced(look(at=AT + 400), start=dead).node, "cuda_mps_daemon_losses_total")


class TestBlind:
    """After a failed collection, gauges are absent."""

    @pytest.mark.parametrize(("scene", "up"), [(no_nvml, {GPU: 0, OTHER_GPU: 0}), (gpu_lost, {GPU: 1, OTHER_GPU: 0})])
    def test_a_gpu_that_was_not_read_has_only_up(self, scene: Callable[[], Node], up: dict[str, float]) -> None:
        """Which is 0."""
        present = scene()
        assert by(present, "cuda_mps_gpu_up", "gpu") == up
        read = {gpu for gpu, seen in up.items() if seen}
        for name in (
            "cuda_mps_gpu_memory_used_bytes",
            "cuda_mps_gpu_memory_total_bytes",
            "cuda_mps_bypassing_processes",
            "cuda_mps_client_memory_used_bytes",
        ):
            assert {each.labels["gpu"] for each in samples(present, name)} == read

    @pytest.mark.parametrize("scene", [no_nvml, gpu_lost])
    def test_the_failure_domain_is_absent_if_the_gpus_of_a_client_are_unknown(self, scene: Callable[[], Node]) -> None:
        """A number that is too small would suggest isolation."""
        assert not samples(scene(), "cuda_mps_client_failure_domain_clients")

    def test_its_clients_keep_their_info(self) -> None:
        """Other sources report them."""
        assert len(samples(no_nvml(), "cuda_mps_client_info")) == 3

    def test_the_collector_is_0_and_its_last_success_does_not_advance(self) -> None:
        """The gauges of the collector."""
        present = no_nvml()
        assert value(present, "cuda_mps_exporter_source_up", source="nvml") == 0
        assert value(present, "cuda_mps_exporter_source_up", source="log") == 1
        assert value(present, "cuda_mps_exporter_source_last_success_timestamp_seconds", source="nvml") == AT + 2
        assert value(present, "cuda_mps_exporter_source_failures_total", source="nvml") == 1

    def test_a_collector_without_success_has_no_last_success(self) -> None:
        """Zero would be 1970."""
        present = reduced(look(problem=failure("NVML is not there"))).node
        assert not samples(present, "cuda_mps_exporter_source_last_success_timestamp_seconds")

    def test_the_values_return_with_the_next_reading(self) -> None:
        """Without a restart."""
        back = reduced(gpu_reading({600: 1540}, at=AT + 20), look(at=AT + 20), start=no_nvml()).node
        assert value(back, "cuda_mps_gpu_up", gpu=GPU) == 1
        assert value(back, "cuda_mps_client_memory_used_bytes", gpu=GPU) == 1540 * MIB


class TestLimits:
    """Limits of a server and the daemon's defaults."""

    def test_shows_the_limits_of_a_server(self) -> None:
        """A ratio, and bytes by GPU. The daemon's ordinals differ from NVML's here."""
        ratio, memory = "cuda_mps_server_active_thread_ratio", "cuda_mps_server_pinned_memory_limit_bytes"
        assert by(limited(), ratio, "server", daemon=DAEMON) == {str(SERVER): 0.5}
        assert by(limited(), memory, "gpu", daemon=DAEMON, server=str(SERVER)) == {OTHER_GPU: 2 << 30}

    def test_shows_the_defaults_of_the_daemon(self) -> None:
        """They do not apply to a running server."""
        ratio, memory = (
            "cuda_mps_daemon_default_active_thread_ratio",
            "cuda_mps_daemon_default_pinned_memory_limit_bytes",
        )
        assert by(limited(), ratio, "daemon") == {DAEMON: 0.25}
        assert by(limited(), memory, "gpu", daemon=DAEMON) == {GPU: 3 << 30}

    def test_an_unknown_limit_has_no_sample(self) -> None:
        """Neither 0 nor 1."""
        assert not any("thread_ratio" in name or "pinned" in name for name in families(three_clients()))

    def test_an_ordinal_identifies_no_gpu_among_several(self) -> None:
        """The daemon's order can differ from NVML's."""
        message = server_log(
            "Active Threads Percentage set to 50.0",
            "Device pinned memory limit for device 0 set to 0x80000000 bytes",
        )
        several, single = reduced(*message, start=three_clients()).node, reduced(*message, start=idle()).node
        assert not by(several, "cuda_mps_server_pinned_memory_limit_bytes", "gpu")
        assert by(single, "cuda_mps_server_pinned_memory_limit_bytes", "gpu") == {GPU: 2 << 30}

    def test_limits_end_with_their_daemon(self) -> None:
        """A restarted daemon has default limits."""
        after = reduced(no_daemon(at=AT + 20), exited(CONTROL, at=AT + 5), start=limited()).node
        assert not any("thread_ratio" in name or "pinned" in name for name in families(after))


def test_the_configured_limit_of_clients_takes_precedence() -> None:
    present = full()
    daemon = replace(present.daemons[DAEMON], declared=replace(present.daemons[DAEMON].declared, clients_limit=16))
    present = replace(present, daemons={DAEMON: daemon})
    assert value(present, "cuda_mps_server_clients_limit") == 16


def test_shows_a_server_in_fault() -> None:
    present = reduced(*at_work(CLIENT), *fault()).node
    states = by(present, "cuda_mps_server_state", "state")
    assert states == {"initializing": 0, "active": 0, "fault": 1}


def test_shows_that_a_log_is_not_followed() -> None:
    followed = by(three_clients(), "cuda_mps_exporter_log_followed", "file")
    assert followed == {"control.log": 1, "server.log": 0}


def test_shows_the_size_of_a_log_if_known() -> None:
    sizes = "cuda_mps_daemon_log_size_bytes"
    assert by(three_clients(), sizes, "file", daemon=DAEMON) == {"control.log": 3 * MIB}
    grown = reduced(LogFile(at=AT, daemon=DAEMON, file="control.log", size=7 * MIB), start=three_clients()).node
    assert by(grown, sizes, "file", daemon=DAEMON) == {"control.log": 7 * MIB}
    gone = reduced(
        LogFile(at=AT, daemon=DAEMON, file="control.log", problem=failure("does not exist")), start=grown
    ).node
    assert not samples(gone, sizes)


def test_shows_unread_bytes_of_a_log_unless_it_hangs() -> None:
    unread = "cuda_mps_daemon_log_unread_bytes"
    flooded = reduced(LogFile(at=AT, daemon=DAEMON, file="control.log", unread=7 * MIB), start=three_clients()).node
    assert by(flooded, unread, "file", daemon=DAEMON) == {"control.log": 7 * MIB}

    hangs = SourceReading(at=AT, name="log", seconds=5.0, daemon=DAEMON, problem=HANGS)
    stuck = reduced(hangs, start=flooded).node
    assert not samples(stuck, unread)
    assert by(stuck, "cuda_mps_exporter_log_followed", "file") == {"control.log": 0, "server.log": 0}


def test_skipped_lines_count_as_unrecognized() -> None:
    start = reduced(*control_log("what is this?"), start=three_clients()).node
    seen = LogUnrecognized(at=AT, daemon=DAEMON, file="control.log", lines=1000)
    before = value(start, "cuda_mps_exporter_log_lines_total", file="control.log")
    counted = reduced(seen, start=start).node
    assert value(counted, "cuda_mps_exporter_log_lines_unrecognized_total", file="control.log") == 1001
    assert value(counted, "cuda_mps_exporter_log_lines_total", file="control.log") == before + 1000


def test_shows_the_time_of_the_snapshot() -> None:
    name = "cuda_mps_exporter_snapshot_timestamp_seconds"
    assert value(reduced(look(at=AT + 7), start=three_clients()).node, name) == AT + 7
    assert not samples(Node(), name)


def test_counts_unrecognized_lines_and_all_lines() -> None:
    present = reduced(*control_log("UI closed", "what is this?")).node
    assert value(present, "cuda_mps_exporter_log_lines_total", file="control.log") == 2
    assert value(present, "cuda_mps_exporter_log_lines_unrecognized_total", file="control.log") == 1


def test_counts_lost_lines_from_0() -> None:
    start = three_clients()
    assert value(start, "cuda_mps_exporter_log_lines_lost_total", file="control.log") == 0
    present = reduced(LogGap(at=AT, daemon=DAEMON, file="control.log", lines=71), start=start).node
    assert value(present, "cuda_mps_exporter_log_lines_lost_total", file="control.log") == 71


class TestHostileNames:
    """A hostile name is one short label value."""

    def scene(self, name: str) -> Node:
        """Return a node on which every name is `name`."""
        return reduced(
            *at_work(CLIENT),
            process(user=name, command=name),
            gpu_reading([CLIENT], name=name),
            *server_log(name),
        ).node

    def test_a_hostile_name_changes_no_other_sample(self, subtests: pytest.Subtests) -> None:
        """And adds none: the series are those of a plain name."""
        for name in HOSTILE:
            with subtests.test(name=name):
                plain, hostile = (
                    {
                        (sample.name, sample.value, *sorted(set(sample.labels.items()) - spoiled(sample)))
                        for family in families(self.scene(each)).values()
                        for sample in family.samples
                        if not sample.name.startswith("cuda_mps_exporter_log_lines")
                    }
                    for each in ("plain", name)
                )
                assert hostile == plain

    def test_a_hostile_name_is_short_and_on_one_line(self, subtests: pytest.Subtests) -> None:
        """At most 128 characters, all of them printable."""
        for name in HOSTILE:
            with subtests.test(name=name):
                (info,) = samples(self.scene(name), "cuda_mps_client_info")
                assert len(info.labels["command"]) <= LONGEST_TEXT == 128
                assert info.labels["command"].isprintable()
                text = text_of(self.scene(name))
                assert len(text.splitlines()) == len(text_of(self.scene("plain")).splitlines())

    def test_both_formats_are_valid_with_a_hostile_name(self, subtests: pytest.Subtests) -> None:
        """For the strict parser and promtool, too."""
        for name in HOSTILE:
            with subtests.test(name=name):
                present = self.scene(name)
                assert openmetrics_of(present)
                assert promtool_check(text_of(present)) == (0, "", "")


def spoiled(sample: Sample) -> set[tuple[str, str]]:
    """Return the labels of a sample that contain a name."""
    return {
        (label, sample.labels[label]) for label in ("user", "command", "name", "workload") if label in sample.labels
    }
