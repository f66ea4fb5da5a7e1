"""What `status` shows: one table for a person, the same as JSON for a program, and an exit code."""

import json
from collections.abc import Callable

import pytest

from exporter.model.node import Node
from exporter.report import status_text
from exporter.report.objects import node_object, sharing_object
from exporter.report.status_view import view_of
from exporter.usage.capacity import gpu_sharing
from tests.builders import (
    AT,
    CLIENT,
    CONTAINER,
    CONTEXT_BYTES,
    CONTROL,
    DAEMON,
    GPU,
    GPU_BYTES,
    MIB,
    OTHER_GPU,
    POD,
    SERVER,
    SLUID,
    at_work,
    control_log,
    daemon_dead,
    daemon_process,
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
    owned,
    process,
    reduced,
    silence,
    three_clients,
)

THREE_CLIENTS = """\
DAEMON           SERVER  STATE      PID  USER   COMMAND      GPU    MEMORY  DOMAIN
/tmp/nvidia-mps     513  active     600  alice  train.py     0    1540 MiB  A
/tmp/nvidia-mps     513  active     600  alice  train.py     1     700 MiB  A
/tmp/nvidia-mps     513  active     601  bob    vllm         0    2564 MiB  A
/tmp/nvidia-mps     513  active     602  alice  eval.py      1    4612 MiB  A
none                  -  bypassing  801  carol  jupyter-lab  1    1024 MiB  -
domain A: 3 clients on GPUs 0 and 1 fail together: a fatal fault of one ends all
  joined by 600 (train.py) on GPUs 0 and 1; a daemon for each GPU separates them; a client then has one GPU
sharing of GPU 0: 2 clients hold 3 % of its memory; its SM time is unknown
  room for an unknown number of clients like these: 45 by client slots, unknown by memory, unknown by SM time
sharing of GPU 1: 2 clients hold 4 % of its memory; its SM time is unknown
  room for an unknown number of clients like these: 45 by client slots, unknown by memory, unknown by SM time
SM time by client is not known: start the exporter with --attribution=bpf
log: server.log cannot be read: Permission denied
"""

IDLE = """\
DAEMON           SERVER  STATE   PID  USER  COMMAND  GPU  MEMORY
/tmp/nvidia-mps     513  active    -  root  -        -         -
"""

WAITING = """\
DAEMON           SERVER  STATE    PID  USER      COMMAND  GPU  MEMORY
/tmp/nvidia-mps     513  active   600  -         -        -         -
/tmp/nvidia-mps       -  waiting  601  UID 1000  -        -         -

What to do: Clients of MPS daemon /tmp/nvidia-mps wait for another user's clients to exit: 1 client
  A server serves one user at a time. The waiting clients hang, without an error, until the last client of the current \
user has exited.
  Wait, or end the current user's clients. To keep users apart, give each user a node or a daemon. If users may share \
faults and memory, start the daemon with -multiuser-server.
"""

DEAD = """\
DAEMON           SERVER  STATE      PID  USER   COMMAND      GPU    MEMORY
/tmp/nvidia-mps       -  absent       -  -      -            -           -
none                  -  bypassing  801  carol  jupyter-lab  1    1024 MiB

What to do: MPS daemon /tmp/nvidia-mps has been down for 10 s
  The control daemon does not run, and no operator stopped it. Any clients ended with it. New CUDA processes run \
without MPS and without limits, and get no error.
  Start the daemon. Then restart the processes that bypass MPS.
  CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps CUDA_MPS_LOG_DIRECTORY=/tmp/nvidia-mps/log nvidia-cuda-mps-control -d
"""


def waiting() -> Node:
    """A second user's client waits for the first user's to leave."""
    lines = control_log(
        "NEW CLIENT 601 from user 1000: Server is not ready, push client to pending list",
        f"Server {SERVER} has 2 active worker threads. Server will not shutdown.",
    )
    return reduced(*at_work(CLIENT), *lines).node


class TestTable:
    """One row for each client and GPU; then what could not be seen."""

    @pytest.mark.parametrize(
        ("scene", "table"),
        [(three_clients, THREE_CLIENTS), (idle, IDLE), (waiting, WAITING), (daemon_dead, DEAD)],
        ids=("three clients", "idle", "waiting", "dead"),
    )
    def test_renders_a_small_node(self, scene: Callable[[], Node], table: str) -> None:
        assert status_text.status_table(scene()) == table

    def test_shows_a_column_for_workloads(self) -> None:
        """In few words, so that a row still fits 100 columns."""
        lines = status_text.status_table(owned()).splitlines()[:10]
        column = lines[0].index("WORKLOAD")
        assert [line[column : column + 24].rstrip() for line in lines[1:]] == [
            "pod train-0",
            "pod train-0",
            "pod train-0",
            "job 42",
            f"job {SLUID}",
            f"container {CONTAINER[:12]}",
            "vllm@llama\\x2d70b.ser…",
            "-",
            "-",
        ]
        assert max(map(len, lines)) <= 100
        assert "WORKLOAD" not in status_text.status_table(three_clients())

    def test_reports_that_no_daemon_is_expected(self) -> None:
        """An empty table would look like a defect."""
        present = reduced(no_daemon(), start=node(DAEMON, expected=False)).node
        assert status_text.status_table(present) == "No MPS control daemon, and none expected.\n"

    def test_lists_all_clients_of_a_full_server(self) -> None:
        """A person may want to see them all."""
        rows = [line for line in status_text.status_table(full()).splitlines() if line.startswith(DAEMON)]
        assert len(rows) == 48

    def test_shows_faults_and_unresponsive_daemons_as_states(self) -> None:
        faulted = reduced(*at_work(CLIENT), *fault()).node
        assert " fault " in status_text.status_table(faulted)
        hung = reduced(*at_work(CLIENT), silence(at=AT + 5), silence(at=AT + 10)).node
        assert " unresponsive " in status_text.status_table(hung)

    def test_reports_collection_errors(self) -> None:
        """No old number poses as a present one."""
        table = status_text.status_table(no_nvml())
        assert "nvml: NVML: NVML is not there. Check the driver with nvidia-smi\n" in table
        assert "MiB" not in table

    def test_shows_nothing_of_a_lost_gpu(self) -> None:
        """What it held then is not what it holds."""
        table = status_text.status_table(gpu_lost())
        assert "1540 MiB" in table
        assert "4612 MiB" not in table
        assert "bypassing" not in table


class TestJson:
    """The same as one object."""

    def test_limits_of_a_server(self) -> None:
        """What each of its clients may have of a GPU."""
        (server,) = node_object(view_of(limited()))["daemons"][0]["servers"]
        assert server["active_thread_ratio"] == 0.5
        assert server["pinned_memory_limit_bytes"] == {OTHER_GPU: 2 << 30}

    def test_renders_a_small_node(self) -> None:
        used = (1 << 30) + CONTEXT_BYTES
        who = process(ticks=36, cgroup="0::/system.slice/train.service\n")
        present = reduced(*at_work(CLIENT), daemon_process(), who, gpu_reading([CLIENT]), look()).node
        assert json.loads(json.dumps(node_object(view_of(present)))) == {
            "at": AT,
            "simulated": False,
            "findings": [],
            "daemons": [
                {
                    "name": DAEMON,
                    "state": "up",
                    "severity": "well",
                    "expected": True,
                    "pid": CONTROL,
                    "foreign_uid": None,
                    "version": "13000",
                    "waiting": [],
                    "watchdog": None,
                    "servers": [
                        {
                            "pid": SERVER,
                            "uid": None,
                            "state": "active",
                            "active_thread_ratio": None,
                            "pinned_memory_limit_bytes": {},
                            "clients_limit": 48,
                            "clients": [
                                {
                                    "client": f"{CLIENT}-10",
                                    "pid": CLIENT,
                                    "user": "alice",
                                    "command": "train.py",
                                    "unit": "train.service",
                                    "container": None,
                                    "pod_uid": None,
                                    "pod": None,
                                    "namespace": None,
                                    "slurm_job_id": None,
                                    "slurm_job_sluid": None,
                                    "task": None,
                                    "workload": {"kind": "unit", "name": "train.service"},
                                    "memory_used_bytes": {GPU: used},
                                    "failure_domain": {"others": [], "gpus": [GPU], "upper_bound": False},
                                }
                            ],
                        }
                    ],
                }
            ],
            "gpus": [
                {
                    "uuid": GPU,
                    "index": 0,
                    "name": "NVIDIA H200",
                    "problem": None,
                    "memory_used_bytes": used + 66 * MIB,
                    "memory_total_bytes": GPU_BYTES,
                    "bypassing": [],
                    "sharing": sharing_object(present, gpu_sharing(present)[GPU]),
                    "shares": [],
                }
            ],
            "incidents": [],
            "sources": {"nvml": {"problem": None}},
        }

    def test_workloads_of_clients(self) -> None:
        """As the labels of their info have it."""
        (server,) = node_object(view_of(owned()))["daemons"][0]["servers"]
        by_pid = {client["pid"]: client for client in server["clients"]}
        assert (by_pid[600]["pod_uid"], by_pid[600]["pod"], by_pid[600]["namespace"]) == (POD, "train-0", "team-a")
        assert (by_pid[600]["container"], by_pid[604]["container"]) == (CONTAINER, CONTAINER)
        assert (by_pid[602]["slurm_job_id"], by_pid[603]["slurm_job_sluid"]) == ("42", SLUID)
        assert by_pid[607]["unit"] == "user@1001.service"
        assert by_pid[607]["workload"] == {"kind": "user", "name": "alice"}

    def test_waiting_clients_and_bypassing_processes(self) -> None:
        assert node_object(view_of(waiting()))["daemons"][0]["waiting"] == [601]
        assert [gpu["bypassing"] for gpu in node_object(view_of(three_clients()))["gpus"]] == [[], [801]]

    def test_collection_errors(self) -> None:
        shown_of = node_object(view_of(no_nvml()))
        problem = shown_of["sources"]["nvml"]["problem"]
        assert (problem["code"], problem["detail"]) == ("driver_error", "NVML is not there")
        assert problem["text"] == "NVML: NVML is not there. Check the driver with nvidia-smi"
        assert [(gpu["problem"], gpu["memory_used_bytes"]) for gpu in shown_of["gpus"]] == [(problem, None)] * 2
        clients = shown_of["daemons"][0]["servers"][0]["clients"]
        assert [client["memory_used_bytes"] for client in clients] == [{}, {}, {}]

    def test_lost_gpu_has_its_problem(self) -> None:
        """The other one has none."""
        gpus = {gpu["uuid"]: gpu["problem"] for gpu in node_object(view_of(gpu_lost()))["gpus"]}
        assert gpus[GPU] is None
        assert gpus[OTHER_GPU]


class TestLine:
    """For the service manager."""

    @pytest.mark.parametrize(
        ("present", "line"),
        [
            (three_clients(), "1 of 1 daemons up, 3 clients"),
            (daemon_dead(), "0 of 1 daemons up, 0 clients"),
            (no_nvml(), "1 of 1 daemons up, 3 clients; cannot collect: nvml"),
        ],
        ids=("three clients", "dead", "blind"),
    )
    def test_renders_one_line(self, present: Node, line: str) -> None:
        """What is up, who is there, and what cannot be seen."""
        assert status_text.summary_line(present) == line
