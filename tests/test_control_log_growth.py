"""The benchmark of control.log's growth, with few clients: it counts every byte, and compares with the limit."""

from benchmarks.control_log_growth import MOST_BYTES_A_DAY, measure, table
from benchmarks.sessions import bytes_by_command
from tests.builders import stamped


def session(*texts: str) -> str:
    return "".join(f"{stamped(text)}\n" for text in texts)


def test_every_byte_belongs_to_a_command() -> None:
    lists = session("Accepting connection...", "NEW UI", "Cmd:get_client_list 513", "600", "601", "UI closed")
    life = session("Accepting connection...", "NEW UI", "Cmd:get_server_list", "513", "UI closed")
    assert bytes_by_command(life + lists + life) == {
        "get_server_list": (2, 2 * len(life)),
        "get_client_list": (1, len(lists)),
    }


def test_an_idle_node_meets_the_limit() -> None:
    """Watched for six minutes of a fast clock, in which the full lists are asked for once."""
    figures = measure(clients=2, gpus=1, hours=0.1)
    assert {"get_server_list", "get_server_status", "get_client_list"} <= figures.keys()
    assert sum(times for times, _ in figures.values()) <= 86_400 / 30 + 240
    assert list(table(figures))[-1] == f"at most {MOST_BYTES_A_DAY}: pass"


def test_a_value_above_the_limit_fails() -> None:
    assert list(table({"ps": (2880, 1_000_001)}))[-1].endswith("falls short")
