"""An empty reply to a query for a list proves nothing: a refused command can have one too (1 to 3 % of them, R580)."""

from exporter.model.daemon import Daemon
from exporter.model.observation import Observation
from tests.builders import (
    AT,
    CLIENT,
    SERVER,
    clients,
    daemon_process,
    gpu_reading,
    reduced,
    refusal,
    servers,
    status,
)

FIVE = tuple(range(CLIENT, CLIENT + 5))


def known_clients(*seen: Observation) -> int | None:
    """Return the number of clients after these observations; None if it is not known."""
    daemon: Daemon = reduced(daemon_process(), *seen).daemon
    return len(daemon.clients) if daemon.clients_known else None


def test_an_empty_list_of_servers_beside_clients_in_nvml_is_no_list() -> None:
    nvml = gpu_reading(FIVE)
    assert known_clients(nvml, servers()) is None
    assert known_clients(nvml, servers(), servers(SERVER, at=AT + 2)) is None
    assert known_clients(nvml, servers(), servers(SERVER, at=AT + 2), clients(*FIVE, at=AT + 2)) == len(FIVE)


def test_an_empty_list_of_clients_beside_clients_in_nvml_is_no_list() -> None:
    seen = (gpu_reading(FIVE), servers(SERVER), status("ACTIVE"), clients())
    assert known_clients(*seen) is None
    assert known_clients(*seen, clients(*FIVE, at=AT + 2)) == len(FIVE)


def test_an_empty_list_is_one_if_nvml_shows_no_client() -> None:
    assert known_clients(gpu_reading(), servers()) == 0
    assert known_clients(servers()) == 0


def test_a_repeated_empty_list_is_one() -> None:
    """NVML may show clients of another daemon."""
    assert known_clients(gpu_reading(FIVE), servers(), servers(at=AT + 2)) == 0
    assert known_clients(gpu_reading(FIVE), servers(), refusal(at=AT + 1), servers(at=AT + 2)) is None


def test_what_is_known_outlasts_a_later_session() -> None:
    """The log reports what connects since."""
    assert known_clients(servers(), servers(at=AT + 30), refusal(at=AT + 40), refusal(at=AT + 50)) == 0
    assert known_clients(servers(SERVER), clients(*FIVE), refusal(at=AT + 0.1)) == len(FIVE)
