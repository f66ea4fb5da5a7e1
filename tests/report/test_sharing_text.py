"""How well GPUs are shared, in words, rows and keys."""

from dataclasses import replace
from typing import Any

import pytest

from exporter.model.contention import Bandwidth
from exporter.model.launches import WorkReading
from exporter.model.node import Node
from exporter.model.observation import SourceReading
from exporter.model.reason import ReasonCode
from exporter.model.usage import Method, Share
from exporter.report.node_status import document_of
from exporter.report.slowdowns import MOST_NEIGHBOURS
from exporter.report.status_text import MOST_ROWS, sharing_lines
from exporter.report.text import Line, Style, with_error
from exporter.terminal import wrap_line
from exporter.usage.capacity import gpu_sharing
from tests.builders import (
    AT,
    GPU,
    OTHER_GPU,
    contended,
    failure,
    flight,
    full,
    gpu_reading,
    idle,
    limited,
    owned,
    reduced,
    split,
    three_clients,
)
from tests.status import status_json, status_table

TRAIN, VLLM, EVAL, GONE, STRANGER = 600, 601, 602, 700, 801
BUSY = {TRAIN: flight(0.48, 0.012), VLLM: flight(0.004, 0.002)}


def a_minute_later(present: Node) -> Node:
    """Return the node when its clients have been connected for a minute."""
    return replace(present, at=AT + 60)


def lines_of(present: Node, width: int | None = None) -> list[Line]:
    return list(sharing_lines(document_of(present), width))


def sharing_of(present: Node, uuid: str = GPU) -> Any:
    return next(gpu["sharing"] for gpu in status_json(present)["gpus"] if gpu["uuid"] == uuid)


def clients_of(present: Node) -> Any:
    processes = status_json(present)["gpus"][0]["processes"]
    return sorted((each for each in processes if "client" in each), key=lambda each: each["pid"])


def texts(present: Node, width: int | None = None) -> list[str]:
    return [line.text for line in lines_of(present, width)]


WHOLE = """\
sharing of GPU 0: 2 clients hold 3 % of its memory and used 48 % of its SMs in the last 60 s (estimated by \
time in flight; another 2 % is unattributed)
  room for 1 more client like these, the smallest of: 1 by SM time, 46 by client slots, 54 by memory
  limits: its clients together may use at most 100 % of its threads
  idle: 1 client holds 2564 MiB, and used under 1 % of its SMs in the last 60 s
  memory bandwidth: 91 % is used, so clients may slow each other down; it is unknown which client uses most of it
PID  USER   COMMAND   MAY USE          USED    MEMORY  SINCE
600  alice  train.py   ≤ 50 %  48.0 ± 1.2 %  1540 MiB  1 min
601  bob    vllm       ≤ 50 %     under 1 %  2564 MiB  1 min
sharing of GPU 1: 2 clients hold 4 % of its memory; its SM time is unknown
  room for 29 more clients like these, the smallest of: 29 by memory, 46 by client slots, unknown by SM time
  limits: its clients together may use at most 100 % of its threads and at most 3 % of its memory
  over the memory limit: PID 602 (eval.py) holds 4612 MiB of the 2048 MiB allowed
"""


def test_renders_a_gpu_with_attributed_sm_time() -> None:
    present = split(a_minute_later(limited()), BUSY, unattributed=0.02, dram=0.91)
    assert "".join(f"{text}\n" for text in texts(present)) == WHOLE


def test_names_the_option_if_sm_time_is_not_attributed() -> None:
    assert texts(three_clients())[-1] == "SM time by client is not known: start the exporter with --attribution=bpf"
    looking = replace(three_clients(), work=WorkReading(at=1.0, boot_ns=1, seconds=1.0))
    assert texts(looking)[-1] == "SM time by client is not known yet"


def test_does_not_show_the_time_with_a_kernel_running_as_sm_time() -> None:
    """Without GPM, NVML has only that time."""
    readings = [
        gpu_reading({TRAIN: 1540, VLLM: 2564}, gpu=gpu, index=index, at=AT + 4, gpm_supported=False, gpu_percent=90)
        for index, gpu in enumerate((GPU, OTHER_GPU))
    ]
    present = reduced(*readings, start=three_clients()).node
    lines = texts(present)
    assert lines[0] == ("sharing of GPU 0: 2 clients hold 3 % of its memory; its SM time is unknown")
    assert "unknown by SM time" in lines[1]
    assert not [line for line in lines if "90 %" in line]
    found = sharing_of(present)
    assert (found["sm_utilization_ratio"], found["clients_sm_ratio"], found["unattributed_ratio"]) == (None, None, None)


def test_shows_the_error_if_attribution_fails() -> None:
    failing = reduced(
        SourceReading(
            at=2.0, name="libcuda_probes", seconds=0.1, problem=failure("bpf: \x1b[1mno", ReasonCode.PROBES_REFUSED)
        ),
        start=three_clients(),
    )
    assert texts(failing.node)[-1] == "SM time by client is not known: launches cannot be counted: bpf: �[1mno"
    assert "SM time by client is not known yet" in texts(reduced(well(), start=failing.node).node)


def well() -> SourceReading:
    return SourceReading(at=3.0, name="libcuda_probes", seconds=0.1)


def test_shows_the_utilization_of_a_gpu_without_attribution() -> None:
    present = three_clients()
    gpu = present.gpus[GPU]
    read = replace(gpu.reading, sm_utilization=0.5, gpm_seconds=10.0)
    (first, second, *_) = texts(replace(present, gpus={**present.gpus, GPU: replace(gpu, reading=read)}))
    assert "its SMs were 50 % busy in the last 10 s" in first
    assert (
        second
        == "  room for an unknown number of clients like these: 2 by SM time, 46 by client slots, unknown by memory"
    )


def test_says_why_the_room_in_shared_memory_is_unknown() -> None:
    present = three_clients()
    gpu = present.gpus[GPU]
    read = replace(gpu.reading, unified_memory=True, memory_used_bytes=None, memory_total_bytes=None)
    lines = texts(replace(present, gpus={**present.gpus, GPU: replace(gpu, reading=read)}))
    unknown = "unknown by memory, which the GPU and the system share, unknown by SM time"
    assert f"  room for an unknown number of clients like these: 46 by client slots, {unknown}" in lines


def test_shows_bypassing_processes_separately() -> None:
    present = split(three_clients(), {EVAL: flight(0.2), STRANGER: flight(0.5)}, gpu=OTHER_GPU)
    assert "  without MPS: PID 801 (jupyter-lab) used 50.0 ± 1.0 % of its SMs" in texts(present)


def test_shows_the_use_of_exited_processes_separately() -> None:
    """Otherwise the GPU would look full although its clients used little."""
    present = split(three_clients(), {TRAIN: flight(0.2), GONE: flight(0.7)})
    assert "  exited processes used another 70 % of its SMs in the last 60 s" in texts(present)


def test_names_clients_that_cannot_be_measured() -> None:
    present = split(three_clients(), {TRAIN: flight(0.2)})
    looking = replace(present, work=WorkReading(at=present.at, boot_ns=1, seconds=1.0, watched=(TRAIN, EVAL)))
    shown_of = [text for text in texts(looking) if "not measured" in text]
    assert shown_of == ["  not measured: launches of PID 601 (vllm) cannot be counted"]
    watched = {each["pid"]: each["watched"] for each in clients_of(looking)}
    assert watched == {TRAIN: True, VLLM: False}
    assert not any("not measured" in text for text in texts(replace(looking, at=looking.at + 11)))


def test_warns_of_bandwidth_contention_without_a_likely_cause() -> None:
    present = split(three_clients(), {}, unattributed=0.5, dram=0.9)
    (hint,) = [line for line in lines_of(present) if "bandwidth" in line.text]
    assert hint.text.endswith("it is unknown which client uses most of it")
    assert hint.has(Style.WARNING)


FACTOR = "  slowed down: PID 600 (train.py) takes 4.9 times as long as on a quiet GPU"


def slowdown_lines(present: Node) -> list[str]:
    return [text for text in texts(present) if "slowed down" in text]


def test_names_slowed_clients_the_resource_and_its_largest_user() -> None:
    present = contended(three_clients(), TRAIN, VLLM)
    (slowed, bandwidth) = [line for line in lines_of(present) if line.has(Style.WARNING)]
    assert slowed.text == f"{FACTOR}; it waits for memory bandwidth, of which PID 601 (vllm) uses 89 %"
    assert bandwidth.text == (
        "  memory bandwidth: 90 % is used, so clients may slow each other down; "
        "PID 601 (vllm) uses 89.0 ± 2.0 % and PID 600 (train.py) uses 1.0 ± 0.2 %"
    )


@pytest.mark.parametrize(
    ("traffic", "named"),
    [
        (Bandwidth(0.6, 0.1), ", of which PID 601 (vllm) uses 60 %"),
        (Bandwidth(0.6, 0.2), ", of which PID 601 (vllm) uses 20 to 100 %"),
        (Bandwidth(0.6, 0.4), ""),
    ],
)
def test_names_no_neighbour_that_may_have_used_nothing(traffic: Bandwidth, named: str) -> None:
    present = contended(three_clients(), TRAIN, VLLM)
    state = present.contention[GPU]
    used, parts = {TRAIN: Bandwidth(0.01, 0.001), VLLM: traffic}, {TRAIN: 0.01, VLLM: traffic.part}
    windows = tuple(replace(each, traffic=used, parts=parts) for each in state.windows)
    (line,) = slowdown_lines(replace(present, contention={GPU: replace(state, windows=windows)}))
    assert line == f"{FACTOR}; it waits for memory bandwidth{named}"


def test_the_resource_is_unknown_without_gpm() -> None:
    """With it, neither resource is used up here. The split says that half of the SMs are used."""
    own = "so this can also be a change of its own work"
    (known,) = slowdown_lines(contended(three_clients(), TRAIN, VLLM, dram=0.3))
    assert known.strip() == f"perhaps {FACTOR.strip()}; others use up neither the SMs nor the memory bandwidth, {own}"
    (unknown,) = slowdown_lines(contended(three_clients(), TRAIN, VLLM, dram=None))
    assert unknown == f"{FACTOR}; it is unknown for which resource it waits, {own}"


def test_a_lower_bound_is_marked_in_the_sentence_and_in_the_table() -> None:
    known, bound = (contended(three_clients(), TRAIN, VLLM, is_bound=is_bound) for is_bound in (False, True))
    assert "takes at least 4.9 times as long as on a quiet GPU" in slowdown_lines(bound)[0]
    rows = [next(line for line in texts(each) if line.startswith("600")) for each in (known, bound)]
    assert [(" 4.9x " in row, "≥ 4.9x" in row) for row in rows] == [(True, False), (True, True)]


def test_has_a_line_for_the_most_slowed_clients_that_are_clearly_slower() -> None:
    """The slowdown of the last client is too uncertain. The table has it."""
    present = contended(full(), 1000, 1047)
    state, pids = present.contention[GPU], range(1000, 1009)
    slower = {pid: replace(state.baselines[1000], windows=50 + pid) for pid in pids}
    slower[1008] = replace(slower[1008], windows=1, variance=4.0)
    paces = {pid: state.windows[0].paces[1000]._replace(busy_ns=(pid - 998) * 1e8) for pid in pids}
    traffic, parts = dict.fromkeys(pids, Bandwidth(0.1, 0.01)), dict.fromkeys(pids, 0.1)
    window = replace(state.windows[0], paces=paces, traffic=traffic, parts=parts)
    present = replace(present, contention={GPU: replace(state, windows=(window,), baselines=slower)})
    lines = slowdown_lines(present)
    assert [line.split()[3] for line in lines[:-1]] == ["1007", "1006", "1005", "1004", "1003"]
    assert lines[-1] == "  slowed down: 3 more clients"
    first, *_ = clients_of(present)
    assert len(first["slowdown"]["neighbours"]) == MOST_NEIGHBOURS < len(pids) - 1


def test_a_full_server_has_no_room() -> None:
    assert texts(full())[1].startswith("  room for 0 more clients like these, the smallest of: 0 by client slots, ")


def test_shows_nothing_without_clients() -> None:
    assert texts(idle()) == []


def test_lists_the_largest_users_and_sums_the_others() -> None:
    shares = {pid: flight(0.01 + (pid - 1000) / 5000, 0.001) for pid in range(1000, 1048)}
    shown = texts(split(full(), shares))
    start = next(place for place, line in enumerate(shown) if line.lstrip().startswith("PID"))
    rows = shown[start + 1 :]
    assert [row.split()[0] for row in rows[:-1]] == [str(pid) for pid in range(1047, 1047 - MOST_ROWS, -1)]
    assert rows[-1] == "and 40 more, which together hold 61600 MiB and used 56 %"
    unknown = texts(split(full(), {pid: share for pid, share in shares.items() if pid > 1000}))
    assert unknown[-1] == "and 40 more, which together hold 61600 MiB and used an unknown part of the SMs"


@pytest.mark.parametrize(
    ("part", "error", "shown"),
    [
        (0.08, 0.02, "8.0 ± 2.0 %"),
        (0.08, 0.0201, "3 to 13 %"),
        (0.08, 0.03, "2 to 14 %"),
        (0.012, 0.009, "under 3 %"),
        (0.0, 0.04, "under 8 %"),
        (0.7, 0.3, "10 to 100 %"),
        (0.5, 0.4, "0 to 100 %"),
        (1.0, 0.3, "40 to 100 %"),
        (0.087, 0.0055, "8.7 ± 0.6 %"),
        (0.0, 0.0, "0.0 %"),
    ],
)
def test_shows_a_range_if_the_error_is_large(part: float, error: float, shown: str) -> None:
    assert with_error(part, error) == shown


def test_shows_ranges_in_the_sentences_and_the_table() -> None:
    shares = {TRAIN: flight(0.1, 0.04), VLLM: flight(0.01, 0.01), GONE: flight(0.2, 0.1)}
    whole, *others = texts(split(three_clients(), shares, unattributed=0.3))
    assert "used 2 to 20 % of its SMs in the last 60 s" in whole
    assert "  exited processes used another under 40 % of its SMs in the last 60 s" in others
    (train, vllm) = [line for line in others if line.startswith("60")]
    assert ("  2 to 18 %  " in train, "  under 3 %  " in vllm) == (True, True)


def test_the_sum_is_as_sure_as_what_gpm_measured() -> None:
    """Which of two clients used the SMs is uncertain, but not how much both used."""
    shares = {TRAIN: flight(0.2, 0.2), VLLM: flight(0.2, 0.2)}
    found = sharing_of(split(three_clients(), shares))
    assert (found["clients_sm_ratio"], found["clients_sm_error_ratio"]) == (pytest.approx(0.4), 0)
    estimated = {pid: replace(share, method=Method.LAUNCHES) for pid, share in shares.items()}
    assert sharing_of(split(three_clients(), estimated))["clients_sm_error_ratio"] == pytest.approx(0.2 * 2**0.5)


def test_the_clients_together_used_what_the_minute_shows() -> None:
    """A client that began lately has its own use since then. For the sum over the minute, that would count too much."""
    present = split(three_clients(), {TRAIN: flight(0.1, 0.001), VLLM: flight(0.6, 0.001)})
    found = replace(present.splits[GPU], lasted={TRAIN: 10.0})
    present = replace(present, splits={GPU: found})
    assert "used 70 % of its SMs" in texts(present)[0]
    used = {each["pid"]: each["sm_ratio"] for each in clients_of(present)}
    assert used[TRAIN] == pytest.approx(0.6)
    assert used[VLLM] == pytest.approx(0.6)


def test_a_client_is_idle_only_if_that_is_known_for_a_minute() -> None:
    """Commands to end clients follow from it."""
    young = split(three_clients(), BUSY)
    later = a_minute_later(three_clients())
    uncertain = split(later, {**BUSY, VLLM: flight(0.004, 0.02)})
    recent = replace(split(later, BUSY).splits[GPU], seconds=5.0)
    began = replace(split(later, {**BUSY, VLLM: flight(0.001, 0.0)}).splits[GPU], lasted={VLLM: 30.0})
    for present in (young, uncertain, *(replace(later, splits={GPU: each}) for each in (recent, began))):
        assert sharing_of(present)["idle"] == []
        assert not any("idle: " in text for text in texts(present))
    assert sharing_of(split(later, BUSY))["idle"] == [VLLM]


def test_all_clients_of_an_idle_gpu_are_idle_without_the_probes() -> None:
    """GPM measures the GPU, and in the whole minute it was used for less than 1 %."""
    later = replace(three_clients(), at=AT + 60)
    assert sharing_of(split(later, {}, unattributed=0.009))["idle"] == [TRAIN, VLLM]
    assert sharing_of(split(later, {}, unattributed=0.011))["idle"] == []
    assert sharing_of(split(replace(later, at=AT + 20), {}))["idle"] == []
    unmeasured = replace(split(later, {}).splits[GPU], measured=False)
    assert sharing_of(replace(later, splits={GPU: unmeasured}))["idle"] == []


def test_a_client_that_had_to_wait_is_not_idle() -> None:
    """It used as little because of the other one."""
    present, used = a_minute_later(three_clients()), {TRAIN: flight(0.004, 0.001), VLLM: flight(0.9)}
    assert sharing_of(split(present, used))["idle"] == [TRAIN]
    assert sharing_of(split(contended(present, TRAIN, VLLM), used))["idle"] == []


def test_says_why_no_share_is_known() -> None:
    """Two clients work, and the launches of neither can be counted."""
    present = replace(split(three_clients(), {}, unattributed=0.6), work=WorkReading(at=1.0, boot_ns=1, seconds=1.0))
    assert texts(present)[-1] == "SM time by client is not known: each client may have used nothing, or all of it"


def test_names_no_user_of_the_bandwidth_that_may_have_used_none() -> None:
    present = contended(three_clients(), TRAIN, VLLM)
    state = present.contention[GPU]
    last = replace(state.windows[-1], traffic={TRAIN: Bandwidth(0.5, 0.4), VLLM: Bandwidth(0.2, 0.01)})
    state = replace(state, windows=(last,))
    (hint,) = [text for text in texts(replace(present, contention={GPU: state})) if "memory bandwidth: " in text]
    assert hint.endswith("; PID 601 (vllm) uses 20.0 ± 1.0 %")


def test_shows_a_column_for_several_methods() -> None:
    shares = {TRAIN: flight(0.2), VLLM: Share(method=Method.MEASURED, sm=0.1)}
    shown = texts(split(three_clients(), shares))
    assert "(measured and estimated by time in flight)" in shown[0]
    column = shown[2].index("METHOD")
    assert [line[column : column + 8].rstrip() for line in shown[2:5]] == ["METHOD", "flight", "measured"]


def test_shows_a_column_for_workloads() -> None:
    assert any("job 42" in line for line in texts(split(owned(), {602: flight(0.2)})))
    assert not any("WORKLOAD" in line for line in texts(split(three_clients(), BUSY)))


@pytest.mark.parametrize("width", [40, 60, 80])
def test_fits_a_narrow_terminal(width: int) -> None:
    shown = (split(owned(), {602: flight(0.2)}), split(limited(), BUSY, dram=0.91), contended(limited(), TRAIN, VLLM))
    for present in shown:
        for line in lines_of(present, width):
            assert all(len(row.text) <= width for row in wrap_line(line, width))


def test_object_with_all_keys() -> None:
    present = split(a_minute_later(limited()), BUSY, unattributed=0.02, dram=0.91)
    found = sharing_of(present)
    assert found == {
        "seconds": 60.0,
        "sm_utilization_ratio": pytest.approx(0.504),
        "dram_bandwidth_ratio": 0.91,
        "clients_sm_ratio": pytest.approx(0.484),
        "clients_sm_error_ratio": pytest.approx(0.0121655, abs=1e-6),
        "unattributed_ratio": 0.02,
        "departed_sm_ratio": 0,
        "methods": ["flight"],
        "clients_memory_bytes": 4104 << 20,
        "memory_total_bytes": 141 << 30,
        "sms": None,
        "threads_committed_ratio": None,
        "memory_committed_ratio": None,
        "reserved": ["at most 100 % of its threads"],
        "headroom": {"clients": 1, "resource": "sm", "by_resource": {"memory": 54, "sm": 1, "slots": 46}},
        "idle": [VLLM],
        "over_limit": [],
        "sharing_gain_ratio": None,
    }
    first, second, _ = status_json(present)["gpus"][0]["processes"]
    assert (first["pid"], second["pid"]) == (VLLM, TRAIN)
    assert second == {
        "pid": TRAIN,
        "user": "alice",
        "command": "train.py",
        "workload": {"kind": "user", "name": "alice"},
        "pod": None,
        "role": "client",
        "memory_used_bytes": 1540 << 20,
        "sm_ratio": 0.48,
        "sm_error_ratio": 0.012,
        "method": "flight",
        "client": "600-1aao",
        "daemon": "/tmp/nvidia-mps",
        "server": 513,
        "connected_at": 1_000_000.0,
        "active_thread_ratio": 0.5,
        "active_thread_certain": False,
    }


def test_the_object_has_slowdown_bandwidth_and_sharing_gain() -> None:
    present = contended(three_clients(), TRAIN, VLLM)
    sharing = gpu_sharing(present)[GPU]
    error = sharing.clients[0].slowdown.error_ratio if sharing.clients[0].slowdown else None
    found = sharing_of(present)
    slow, heavy = clients_of(present)
    assert slow["slowdown"] == {
        "ratio": pytest.approx(4.9),
        "error_ratio": error,
        "at_least": False,
        "resource": "memory_bandwidth",
        "neighbours": [{"pid": VLLM, "used_ratio": pytest.approx(0.89)}],
        "text": "4.9x",
    }
    assert (heavy["dram_bandwidth_ratio"], heavy["dram_bandwidth_error_ratio"]) == (0.89, 0.02)
    assert 1 < found["sharing_gain_ratio"] < 2


def test_unknown_values_are_null() -> None:
    present = three_clients()
    found = sharing_of(present)
    unknown = {key for key, value in found.items() if value is None}
    assert unknown == {
        "seconds",
        "sm_utilization_ratio",
        "dram_bandwidth_ratio",
        "clients_sm_ratio",
        "clients_sm_error_ratio",
        "unattributed_ratio",
        "departed_sm_ratio",
        "sms",
        "threads_committed_ratio",
        "memory_committed_ratio",
        "sharing_gain_ratio",
    }
    assert status_json(idle())["gpus"][0]["sharing"] is None


def test_sharing_is_after_the_problems_and_the_table() -> None:
    lines = status_table(three_clients()).splitlines()
    places = [
        next(place for place, line in enumerate(lines) if begins in line)
        for begins in ("warning:", "DAEMON", "domain A", "sharing")
    ]
    assert places == sorted(places)
