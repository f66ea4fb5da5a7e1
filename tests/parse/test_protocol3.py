"""Tables of protocol 3: NVIDIA's published samples, unknown columns and rows, and hostile command lines."""

import random

import pytest

from exporter.parse import protocol3
from exporter.parse.protocol3 import (
    LIST_CLIENTS,
    LIST_DEVICES,
    LIST_NAMESPACES,
    LIST_PARTITIONS,
    LIST_SERVERS,
    ClientRow,
    ServerRow,
    Table,
    client_rows,
    devices_by_ordinal,
    namespace_rows,
    parse_table,
    server_rows,
)

GPU = "GPU-cc97390c-c189-71f5-1bb7-5b0af481fa0d"
OTHER_GPU = "GPU-74d43ed3-cdf7-e667-3644-bf5b4f46ed65"

SAMPLES = {
    # NVIDIA's MPS guide, release 615, with the documented names as the header.
    LIST_SERVERS: (
        "name,uid,pid,status,pipe-directory,allowed-devices,context-ids\n"
        "training,1000,48201,Ready,/run/nvidia-mps/training,GPU-abcd-1234,GPU-efgh-5678,-\n"
        "idle,0,-,Configured,/run/nvidia-mps/idle,-,-\n"
    ),
    # The rows are those of driver 615 (NVIDIA, 2026), where the names of the columns come from too.
    LIST_CLIENTS: (
        "PID,SERVER,DEVICE,MAWS NS,CMD\n"
        f"3167082,srv,{GPU},srv/default (0),VLLM::EngineCore\n"
        "51087,training,0,high_priority,python eval.py --tags=a,b\n"
    ),
    LIST_NAMESPACES: (
        "NAME,SERVER,SERVER-STATUS,PINNED-MEMORY-LIMIT,ACTIVE-THREAD-PERCENTAGE,CLIENT-PRIORITY,PIPE-DIRECTORY\n"
        "high_priority,training,Ready,4G,25,0,/run/nvidia-mps/training/high_priority\n"
    ),
    LIST_DEVICES: (
        "Ordinal,Server,PCI ID,Device UUID,Name,Total SMs,Total Chunks,Attributes\n"
        f"0,training,0000:01:00.0,{GPU},NVIDIA H100,132,16,a,b\n1,training,0000:02:00.0,{OTHER_GPU},X,132,16,-\n"
    ),
    LIST_PARTITIONS: (
        "SERVER,DEVICE,NAME,CHUNKS,SM-COUNT,INCLUDE-REMAINDER,STATUS,VISIBLE-UUID\n"
        f"training,{OTHER_GPU},large,4,34,false,created,Kp8AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\n"
        f"training,{OTHER_GPU},-,1,8,-,unallocated,-\n"
    ),
}


def table(command: str, text: str | None = None) -> Table:
    found = parse_table(command, SAMPLES[command] if text is None else text)
    assert found is not None
    return found


def test_reads_each_row_of_the_samples(subtests: pytest.Subtests) -> None:
    for command in SAMPLES:
        with subtests.test(command=command):
            found = table(command)

            assert len(found.rows) == SAMPLES[command].count("\n") - 1
            assert (found.unknown_columns, found.unknown_rows) == (0, 0)


def test_reads_servers_also_those_that_do_not_run() -> None:
    assert list(server_rows(table(LIST_SERVERS))) == [
        ServerRow(name="training", pid=48201, uid=1000, status="ready"),
        ServerRow(name="idle", pid=None, uid=0, status="configured"),
    ]
    assert table(LIST_SERVERS).rows[0]["allowed-devices"] == "GPU-abcd-1234,GPU-efgh-5678"


def test_reads_clients_with_commas_in_their_commands() -> None:
    assert list(client_rows(table(LIST_CLIENTS))) == [
        ClientRow(pid=3167082, server="srv", device=GPU, namespace="default"),
        ClientRow(pid=51087, server="training", device="0", namespace="high_priority"),
    ]


def test_reads_limits_of_namespaces_and_devices() -> None:
    [row] = namespace_rows(table(LIST_NAMESPACES))
    assert (row.server, row.pinned_memory_limit, row.active_thread_percentage) == ("training", "4G", "25")
    assert devices_by_ordinal(table(LIST_DEVICES)) == {0: GPU, 1: OTHER_GPU}


def test_reads_namespaces_as_driver_615_71_lists_them() -> None:
    """NVIDIA published the columns and values, but not this format ("Per-GPU Compute and Memory Limits with MPS")."""
    header = "NAME,SERVER,SERVER STATUS,PINNED MEMORY LIMIT,ACTIVE THREAD PERCENTAGE\n"
    small, default = namespace_rows(
        table(LIST_NAMESPACES, f"{header}small,shared,Ready,20G,30.00\ndefault,shared,Ready,10G,50.00\n")
    )
    assert (small.name, small.server, small.pinned_memory_limit) == ("small", "shared", "20G")
    assert (default.active_thread_percentage, default.client_priority) == ("50.00", "")


def test_devices_that_servers_number_differently_are_unknown() -> None:
    text = SAMPLES[LIST_DEVICES] + f"0,other,0000:02:00.0,{OTHER_GPU},X,132,16,-\n"
    assert devices_by_ordinal(table(LIST_DEVICES, text)) == {}


def test_counts_unknown_columns_and_rows() -> None:
    header, *rows = SAMPLES[LIST_CLIENTS].splitlines()
    wider = "\n".join((f"NEW,{header}", *(f"7,{row}" for row in rows), "(2 rows)"))

    found = table(LIST_CLIENTS, wider)
    assert list(client_rows(found)) == list(client_rows(table(LIST_CLIENTS)))
    assert (found.unknown_columns, found.unknown_rows) == (1, 1)


def test_a_reply_without_a_known_header_is_no_table(subtests: pytest.Subtests) -> None:
    for text in [
        "",
        "\n",
        "Unknown command",
        "51023,training,0,default,python\n",
        "PID,PID,SERVER,DEVICE,CMD\n",
        "PID\n",
    ]:
        with subtests.test(text=text):
            assert parse_table(LIST_CLIENTS, text) is None


def test_reads_a_limited_number_of_rows() -> None:
    row = f"1,srv,{GPU},srv/default (0),x\n"
    found = table(LIST_CLIENTS, "PID,SERVER,DEVICE,MAWS NS,CMD\n" + row * 2 * protocol3.MAX_ROWS)
    assert (len(found.rows), found.unknown_rows) == (protocol3.MAX_ROWS, protocol3.MAX_ROWS)


def test_no_mutation_of_a_reply_breaks_the_parser() -> None:
    chance = random.Random(1)
    alphabet = ",\n\"'\0 \té�/-0123456789GPUabc"
    for _ in range(10_000):
        command = chance.choice(list(SAMPLES))
        text = list(SAMPLES[command])
        for _ in range(chance.randint(1, 8)):
            at = chance.randrange(len(text))
            match chance.randrange(3):
                case 0:
                    text[at] = chance.choice(alphabet)
                case 1:
                    text[at:at] = chance.choice(alphabet) * chance.randint(1, 3)
                case _:
                    del text[at : at + chance.randint(1, 12)]
            text = text or ["x"]
        found = parse_table(command, "".join(text))
        if found is not None:
            lines = sum(bool(line.strip()) for line in "".join(text).splitlines())
            assert len(found.rows) + found.unknown_rows == lines - 1
            assert all(row.pid is None or row.pid > 0 for row in server_rows(found))
            assert all(row.pid >= 0 for row in client_rows(found))
            assert all(row.name for row in namespace_rows(found))
            devices_by_ordinal(found)
