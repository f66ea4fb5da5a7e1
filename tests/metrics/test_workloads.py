"""Workload labels of clients, families by workload, and their bounds."""

from dataclasses import replace

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families as parse_text

from exporter.metrics.catalogue import NodeCollector
from exporter.model.identity import Workload, WorkloadCounts, WorkloadKind
from exporter.model.node import Node
from exporter.model.observation import PodFound
from exporter.parse.printable import metric_label
from exporter.state.processes import FORGOTTEN_SECONDS, unlabelled_pods, unnamed_pods, workload_of
from exporter.view import View
from tests.builders import (
    AT,
    CLIENT,
    CONTAINER,
    DAEMON,
    GPU,
    MIB,
    NODE_MAKERS,
    OTHER_GPU,
    POD,
    SLUID,
    accounted,
    at_work,
    exited,
    failure,
    full,
    gpu_reading,
    look,
    looks,
    node,
    owned,
    process,
    reduced,
    three_clients,
)

Series = dict[tuple[str, ...], float]

JOB_CGROUP = "0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0\n"
SERVICE_CGROUP = "0::/system.slice/train.service\n"


def series(view: View, name: str, *labels: str) -> Series:
    """Return the values of a family by some of its labels."""
    for metric in parse_text(generate_latest(NodeCollector(view)).decode()):
        if metric.name == name:
            return {tuple(each.labels.get(label, "") for label in labels): each.value for each in metric.samples}
    return {}


def infos(present: Node, *labels: str) -> dict[str, tuple[str, ...]]:
    """Return labels of each client's info by PID."""
    return {key[0]: key[1:] for key in series(View(present), "cuda_mps_client_info", "pid", *labels)}


def test_client_info_has_unit_container_pod_and_job() -> None:
    labels = ("unit", "client_container", "client_pod_uid", "job_manager", "job_id")
    assert infos(owned(), *labels) == {
        "600": ("", CONTAINER, POD, "", ""),
        "601": ("", "0" * 64, POD, "", ""),
        "602": ("slurmstepd.scope", "", "", "slurm", "42"),
        "603": ("slurmstepd.scope", "", "", "slurm", SLUID),
        "604": (f"docker-{CONTAINER}.scope", CONTAINER, "", "", ""),
        "605": ("vllm@llama\\x2d70b.service", "", "", "", ""),
        "606": ("session-3.scope", "", "", "", ""),
        "607": ("user@1001.service", "", "", "", ""),
    }


def test_client_info_has_the_pod_name_if_known_and_nothing_of_an_unknown_process() -> None:
    pods = infos(owned(), "client_pod", "client_namespace")
    assert pods["600"] == pods["601"] == ("train-0", "team-a")
    assert set(pods.values()) == {("train-0", "team-a"), ("", "")}
    (rest,) = infos(reduced(*at_work(CLIENT)).node, "user", "unit", "client_container", "job_id").values()
    assert set(rest) == {""}


def test_a_later_process_with_the_same_pid_has_its_own_labels() -> None:
    first = reduced(*at_work(CLIENT), process(ticks=1, cgroup=JOB_CGROUP)).node
    again = reduced(process(ticks=2, cgroup=SERVICE_CGROUP, at=AT + 5), *at_work(CLIENT, at=AT + 6), start=first).node
    assert infos(first, "unit", "job_id") == {str(CLIENT): ("slurmstepd.scope", "42")}
    assert infos(again, "unit", "job_id") == {str(CLIENT): ("train.service", "")}
    assert series(View(again), "cuda_mps_workload_clients", "workload") == {("train.service",): 1}


def test_the_workload_is_the_most_specific_identity(subtests: pytest.Subtests) -> None:
    for cgroup, workload in [
        (JOB_CGROUP, (WorkloadKind.JOB, "42")),
        (f"0::/system.slice/slurmstepd.scope/{SLUID}/step_0\n", (WorkloadKind.JOB, SLUID)),
        (f"0::/kubepods/pod{POD}/{CONTAINER}\n", (WorkloadKind.POD, POD)),
        (f"0::/system.slice/docker-{CONTAINER}.scope\n", (WorkloadKind.CONTAINER, CONTAINER)),
        (SERVICE_CGROUP, (WorkloadKind.UNIT, "train.service")),
        ("0::/user.slice/user-1001.slice/session-3.scope\n", (WorkloadKind.USER, "alice")),
        ("0::/user.slice/user-1001.slice/user@1001.service/a.service\n", (WorkloadKind.USER, "alice")),
        ("0::/system.slice/n1_slurmstepd.scope/system\n", (WorkloadKind.USER, "alice")),
        ("0::/init.scope\n", (WorkloadKind.USER, "alice")),
        ("0::/\n", (WorkloadKind.USER, "alice")),
        ("", (WorkloadKind.USER, "alice")),
        (None, (WorkloadKind.USER, "alice")),
    ]:
        with subtests.test(cgroup=cgroup, workload=workload):
            kind, name = workload
            assert workload_of(process(cgroup=cgroup)) == Workload(kind=kind, name=name)


def test_a_user_without_a_name_is_shown_by_number_and_an_unknown_process_has_no_workload() -> None:
    assert workload_of(process(user="", uid=4711)) == Workload(kind=WorkloadKind.USER, name="4711")
    assert workload_of(None) is None


def test_counts_clients_by_workload() -> None:
    """Bypassing processes and servers are no clients."""
    clients = series(View(owned()), "cuda_mps_workload_clients", "daemon", "workload_kind", "workload")
    assert clients == {
        (DAEMON, "pod", POD): 2,
        (DAEMON, "job", "42"): 1,
        (DAEMON, "job", SLUID): 1,
        (DAEMON, "container", CONTAINER): 1,
        (DAEMON, "unit", "vllm@llama\\x2d70b.service"): 1,
        (DAEMON, "user", "alice"): 2,
    }
    assert series(View(three_clients()), "cuda_mps_workload_clients", "workload") == {("alice",): 2, ("bob",): 1}


def test_memory_is_the_sum_over_clients_on_each_gpu_and_absent_without_nvml() -> None:
    memory = series(View(owned()), "cuda_mps_workload_memory_used_bytes", "workload", "gpu")
    assert memory[POD, GPU] == memory["alice", GPU] == 2000 * MIB
    assert memory[POD, OTHER_GPU] == 500 * MIB
    assert sum(memory.values()) == 8500 * MIB
    blind = reduced(look(at=AT + 12, problem=failure("NVML is not there")), start=owned()).node
    assert not series(View(blind), "cuda_mps_workload_memory_used_bytes", "workload")
    assert series(View(blind), "cuda_mps_workload_clients", "workload")


def test_disconnected_clients_count_only_as_connections() -> None:
    left = reduced(*(exited(pid) for pid in (600, 602, 606)), start=owned()).node
    clients = series(View(left), "cuda_mps_workload_clients", "workload")
    assert (clients[POD,], clients["alice",]) == (1, 1)
    assert ("42",) not in clients
    counted = series(View(left), "cuda_mps_workload_clients_connected", "workload_kind", "workload")
    assert (counted["pod", POD], counted["user", "alice"]) == (2, 2)
    assert sum(counted.values()) == 8


def test_truncated_names_that_are_equal_are_one_workload() -> None:
    users = {600: "x" * 200, 601: "x" * 300}
    present = reduced(*at_work(*users), *(process(pid, user=user) for pid, user in users.items())).node
    assert series(View(present), "cuda_mps_workload_clients", "workload") == {("x" * 128,): 2}


def test_the_oldest_connections_have_series_and_the_others_are_counted() -> None:
    present = reduced(*at_work(701, 700), *at_work(701, 700, 600, 601, at=AT + 10)).node
    view = View(present, max_clients=3)
    assert series(view, "cuda_mps_client_info", "pid") == {("700",): 1, ("701",): 1, ("600",): 1}
    assert series(view, "cuda_mps_exporter_clients_omitted") == {(): 1}


def test_all_client_families_have_the_same_clients_and_a_new_one_replaces_none() -> None:
    shown = set(series(View(full(), max_clients=5), "cuda_mps_client_info", "client"))
    assert set(series(View(full(), max_clients=5), "cuda_mps_client_memory_used_bytes", "client")) == shown
    assert len(shown) == 5
    before = reduced(*at_work(700, 701)).node
    after = reduced(*at_work(700, 701, 1, 2, at=AT + 1), start=before).node
    first, second = (series(View(each, max_clients=2), "cuda_mps_client_info", "pid") for each in (before, after))
    assert first == second


def test_the_order_of_connections_counts_across_daemons() -> None:
    present = reduced(
        *at_work(600, at=AT + 10), *at_work(700, at=AT, daemon="/run/other"), start=node(DAEMON, "/run/other")
    ).node
    assert series(View(present, max_clients=1), "cuda_mps_client_info", "pid") == {("700",): 1}


def test_no_client_is_omitted_below_the_limit_or_because_it_is_young() -> None:
    for view in (
        View(full(), max_clients=48),
        View(node()),
        View(full(), client_min_age=3600, max_clients=5),
    ):
        assert series(view, "cuda_mps_exporter_clients_omitted") == {(): 0}


def test_workloads_have_series_even_if_all_clients_are_young() -> None:
    view = View(owned(), client_min_age=1e9, max_clients=3)
    assert not series(view, "cuda_mps_client_info", "pid")
    assert not series(view, "cuda_mps_client_memory_used_bytes", "client")
    assert series(view, "cuda_mps_exporter_clients_omitted") == {(): 0}
    assert sum(series(view, "cuda_mps_workload_clients", "workload").values()) == 8
    assert sum(series(view, "cuda_mps_workload_memory_used_bytes", "workload", "gpu").values()) == 8500 * MIB


def test_a_pod_is_looked_up_until_its_name_is_known() -> None:
    present = reduced(*at_work(CLIENT), process(cgroup=f"0::/kubepods/pod{POD}/{CONTAINER}\n")).node
    assert unnamed_pods(present) == {POD}
    found = reduced(PodFound(at=AT, uid=POD, name="train-0", namespace="team-a"), start=present).node
    assert unnamed_pods(found) == frozenset()


def test_the_name_of_a_pod_is_removed_with_its_last_process_and_dropped_if_it_has_none() -> None:
    one_left = reduced(exited(600), look(), start=owned()).node
    assert set(one_left.pods) == {POD}
    assert not reduced(exited(601), look(at=AT + 1), start=one_left).node.pods
    stray = PodFound(at=AT, uid="1" * 32, name="stray", namespace="default")
    assert not reduced(stray, gpu_reading()).node.pods


# Identities of workloads

INFO = "cuda_mps_workload_info"
IDENTITY = ("client_namespace", "client_pod", "client_container", "user", "unit", "job_id")


def identities(present: Node, *labels: str) -> dict[tuple[str, str], tuple[str, ...]]:
    """Return these labels of each workload, by its kind and name."""
    found = series(View(present), INFO, "workload_kind", "workload", *(labels or IDENTITY))
    assert set(found.values()) <= {1}
    return {(kind, name): tuple(known) for kind, name, *known in found}


def test_workload_info_has_what_all_its_clients_have_in_common() -> None:
    assert identities(owned()) == {
        ("pod", POD): ("team-a", "train-0", "", "alice", "", ""),
        ("job", "42"): ("", "", "", "alice", "slurmstepd.scope", "42"),
        ("job", SLUID): ("", "", "", "alice", "slurmstepd.scope", SLUID),
        ("container", CONTAINER): ("", "", CONTAINER, "alice", f"docker-{CONTAINER}.scope", ""),
        ("unit", "vllm@llama\\x2d70b.service"): ("", "", "", "alice", "vllm@llama\\x2d70b.service", ""),
        ("user", "alice"): ("", "", "", "alice", "", ""),
    }
    assert identities(owned(), "label_team")["pod", POD] == ("vision",)


def test_each_workload_with_series_has_one_info() -> None:
    for make_node in NODE_MAKERS.values():
        metrics = list(parse_text(generate_latest(NodeCollector(View(make_node()))).decode()))
        shown = {
            (each.labels["workload_kind"], each.labels["workload"])
            for metric in metrics
            if metric.name.startswith("cuda_mps_workload_")
            for each in metric.samples
        }
        infos = [each.labels for metric in metrics if metric.name == INFO for each in metric.samples]
        assert sorted((each["workload_kind"], each["workload"]) for each in infos) == sorted(shown)
    assert ("unattributed", "") in identities(accounted())


def test_an_ended_workload_has_its_identity_as_long_as_its_usage() -> None:
    present = reduced(gpu_reading({CLIENT: 1000}, at=AT + 10), start=in_pod(replace(TRAINER, labels=LABELS))).node
    before = identities(present, *IDENTITY, "label_team")
    kept = AT + FORGOTTEN_SECONDS
    gone = (*at_work(at=AT + 21), gpu_reading({}, at=AT + 21), gpu_reading({}, at=kept), *looks(at=kept))
    later = reduced(exited(CLIENT, at=AT + 20), *gone, start=present).node
    assert (later.processes, identities(later, *IDENTITY, "label_team")) == ({}, before)
    assert before["pod", POD][:2] == ("team-a", "train-0")
    last = reduced(gpu_reading({}, at=AT + 7300), *looks(at=AT + 7301), start=later).node
    assert identities(last).keys() == {("mps_server", "")}
    assert not last.usage_totals.identities


def test_the_name_of_a_pod_that_is_found_late_is_in_its_info() -> None:
    used = gpu_reading({CLIENT: 1000}, at=AT + 10), exited(CLIENT, at=AT + 20), gpu_reading({}, at=AT + 21)
    unnamed = reduced(*used, start=in_pod()).node
    assert identities(unnamed)["pod", POD][:2] == ("", "")
    assert identities(reduced(TRAINER, start=unnamed).node)["pod", POD][:2] == ("team-a", "train-0")


def test_a_bypassing_process_has_its_workload_identified_and_a_daemon_in_the_pod_does_not_count() -> None:
    beside = [gpu_reading(beside=[700], at=AT + at) for at in (0, 2, 14)]
    inside = process(700, cgroup=IN_POD, at=AT + 3)
    sandbox = process(701, cgroup=IN_POD.replace(CONTAINER, "0" * 64), at=AT + 4)
    present = reduced(*at_work(), *beside[:2], inside, sandbox, replace(TRAINER, at=AT + 5), beside[2]).node
    assert identities(present)["pod", POD][:3] == ("team-a", "train-0", CONTAINER)


def test_workloads_with_equal_shown_names_have_one_info() -> None:
    users = {600: "x" * 200, 601: "x" * 300}
    processes = (process(pid, user=user, cgroup=SERVICE_CGROUP * (pid == 600)) for pid, user in users.items())
    names = ("user", "a\nb"), ("user", "a\tb")
    present = reduced(*at_work(*users), *processes).node
    accounts = {Workload(kind=WorkloadKind(kind), name=name): WorkloadCounts(used_at=AT) for kind, name in names}
    present = replace(present, accounts={**present.accounts, **accounts})
    assert identities(present, "user") == {
        ("unit", "train.service"): ("x" * 128,),
        ("user", "x" * 128): ("x" * 128,),
        ("user", "a\N{REPLACEMENT CHARACTER}b"): ("",),
    }


# Labels of pods


IN_POD = f"0::/kubepods/pod{POD}/{CONTAINER}\n"
TRAINER = PodFound(at=AT, uid=POD, name="train-0", namespace="team-a")
LABELS = {"team": "vision", "app.kubernetes.io/name": "train", "costCentre": "4711"}


def pod_labels(present: Node) -> list[dict[str, str]]:
    """Return the labels of each series of the family."""
    parsed = parse_text(generate_latest(NodeCollector(View(present))).decode())
    return [each.labels for metric in parsed if metric.name == "cuda_mps_pod_labels" for each in metric.samples]


def in_pod(*pods: PodFound) -> Node:
    return reduced(*at_work(CLIENT), process(cgroup=IN_POD), gpu_reading({CLIENT: 1000}), *pods).node


def test_a_pods_labels_join_clients_and_workloads() -> None:
    identity = {"workload": POD, "client_pod_uid": POD, "client_pod": "train-0", "client_namespace": "team-a"}
    labels = {"label_team": "vision", "label_app_kubernetes_io_name": "train", "label_cost_centre": "4711"}
    assert pod_labels(in_pod(replace(TRAINER, labels=LABELS))) == [identity | labels]


def test_a_pod_without_listed_labels_has_a_series_and_one_that_was_not_asked_for_has_none() -> None:
    (found,) = pod_labels(in_pod(replace(TRAINER, labels={})))
    assert not [label for label in found if label.startswith("label_")]
    assert not pod_labels(in_pod(TRAINER))


def test_a_pod_is_asked_for_until_its_labels_are_known() -> None:
    assert unlabelled_pods(in_pod()) == ()
    assert unlabelled_pods(in_pod(TRAINER)) == (TRAINER,)
    assert unlabelled_pods(in_pod(TRAINER, replace(TRAINER, labels={}))) == ()


def test_only_pods_of_clients_are_asked_for() -> None:
    """A bypassing process is no client."""
    beside = [gpu_reading(beside=[700], at=AT + at) for at in (0, 2)]
    present = reduced(*at_work(CLIENT), *beside, process(700, cgroup=IN_POD, at=AT + 2), replace(TRAINER, at=AT + 2))
    assert present.node.pods
    assert unlabelled_pods(present.node) == ()


def test_labels_are_shown_as_long_as_the_usage_of_the_pod() -> None:
    used = gpu_reading({CLIENT: 1000}, at=AT + 10), gpu_reading({CLIENT: 1000}, at=AT + 20)
    present = reduced(*used, start=in_pod(replace(TRAINER, labels=LABELS))).node
    kept = AT + FORGOTTEN_SECONDS
    gone = (*at_work(at=AT + 21), gpu_reading({}, at=AT + 21), gpu_reading({}, at=kept), *looks(at=kept))
    later = reduced(exited(CLIENT, at=AT + 20), *gone, start=present).node
    assert CLIENT not in later.processes
    assert [each["label_team"] for each in pod_labels(later)] == ["vision"]
    usage = series(View(later), "cuda_mps_workload_memory_byte_seconds", "workload")
    assert (POD,) in usage
    at = AT + 2 * FORGOTTEN_SECONDS
    last = reduced(gpu_reading({}, at=at), gpu_reading({}, at=at + 10), *looks(at=at + 10), start=later).node
    assert Workload(kind=WorkloadKind.POD, name=POD) not in last.usage_totals.last_used_at
    assert not pod_labels(last)


def test_hostile_labels_of_a_pod_forge_no_series_and_no_label() -> None:
    """A recording can have any text."""
    hostile = {'x"} 1\nforged{a="': '"} 1\nforged 1', "workload": "forged", "é" * 5000: "\ud800" * 5000}
    present = in_pod(replace(TRAINER, labels=hostile))
    (found,) = pod_labels(present)
    assert found["workload"] == POD
    assert found["label_workload"] == "forged"
    text = generate_latest(NodeCollector(View(present))).decode()
    assert not [line for line in text.splitlines() if line.startswith("forged")]
    assert all(len(label) <= 128 for label in found.values())


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("team", "label_team"),
        ("cost-centre", "label_cost_centre"),
        ("app.kubernetes.io/name", "label_app_kubernetes_io_name"),
        ("costCentre", "label_cost_centre"),
        ("GPUClass2B", "label_gpuclass2_b"),
        ("0", "label_0"),
    ],
)
def test_labels_have_the_names_of_kube_state_metrics(name: str, label: str) -> None:
    assert metric_label(name) == label
