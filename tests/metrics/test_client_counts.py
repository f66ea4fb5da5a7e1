"""The number of clients is shown once all clients were known. A failure never looks like an idle daemon."""

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from exporter.metrics.catalogue import NodeCollector
from exporter.model.node import Node
from exporter.model.observation import ControlReply
from exporter.report.node_status import document_of
from exporter.report.status_text import counts_text
from exporter.usage.sampling import sample_of
from exporter.view import View
from tests.builders import AT, CONTROL, DAEMON, SERVER, daemon_process, exited, gpu_reading, reduced, servers, silence

FIVE = (600, 601, 602, 603, 604)
UNUSABLE = ControlReply(at=AT + 2, daemon=DAEMON, command="get_server_list", exit_code=1, stderr="Killed")


def listed(*pids: int, at: float = AT + 1) -> ControlReply:
    """The daemon's list of the server's clients."""
    text = "".join(f"{pid}\n" for pid in pids)
    return ControlReply(at=at, daemon=DAEMON, command=f"get_client_list {SERVER}", exit_code=0, stdout=text)


def shown(node: Node, family: str) -> list[float]:
    text = generate_latest(NodeCollector(View(node))).decode()
    families = text_string_to_metric_families(text)
    return [sample.value for each in families for sample in each.samples if sample.name == family]


def test_shows_the_number_of_clients_once_it_is_known() -> None:
    seen = {
        "only a process": [daemon_process(CONTROL)],
        "only its servers": [servers(SERVER)],
        "no server": [servers()],
        "the list of clients": [servers(SERVER), listed(*FIVE)],
        "an empty list of clients": [servers(SERVER), listed()],
        "a control program that fails": [daemon_process(CONTROL), gpu_reading(FIVE), UNUSABLE],
        "a control program that hangs": [daemon_process(CONTROL), gpu_reading(FIVE), silence(at=AT + 6)],
        "a hang after the list": [servers(SERVER), listed(*FIVE), silence(at=AT + 6)],
        "a restart": [servers(SERVER), listed(*FIVE), daemon_process(CONTROL), daemon_process(CONTROL + 1, at=AT + 3)],
        "an end": [daemon_process(CONTROL), servers(SERVER), listed(*FIVE), exited(CONTROL, at=AT + 9)],
    }
    numbers = {what: reduced(*observations).node for what, observations in seen.items()}
    assert {what: shown(node, "cuda_mps_daemon_clients") for what, node in numbers.items()} == {
        "only a process": [],
        "only its servers": [],
        "no server": [0],
        "the list of clients": [5],
        "an empty list of clients": [0],
        "a control program that fails": [],
        "a control program that hangs": [],
        "a hang after the list": [5],
        "a restart": [],
        "an end": [0],
    }
    assert shown(numbers["only its servers"], "cuda_mps_server_clients") == []
    assert shown(numbers["the list of clients"], "cuda_mps_server_clients") == [5]
    assert sample_of(numbers["only its servers"]).clients is None
    assert sample_of(numbers["the list of clients"]).clients == 5
    assert "at least 0 clients" in counts_text(document_of(numbers["only its servers"]))
