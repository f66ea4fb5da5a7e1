"""Which processes the libcuda probes watch, and how many threads each may use."""

import pytest

from exporter.model.settings import ACTIVE_THREAD_PERCENTAGE
from exporter.usage.attribution import processes_to_watch
from tests.builders import CLIENT, SERVER, clients, process, reduced, reply, servers


def test_the_lesser_percentage_applies(subtests: pytest.Subtests) -> None:
    """A client can set any text in its environment."""
    for of_server, own, percentage in [
        ("100.0", None, 100.0),
        ("50.0", None, 50.0),
        ("100.0", "25", 25.0),
        ("50.0", "25", 25.0),
        ("25.0", "50", 25.0),
        ("100.0", "100", 100.0),
        *(
            ("50.0", nonsense, 50.0)
            for nonsense in ("", "much", "nan", "inf", "-5", "0", "1e999", "2" * 5000, "\ud800")
        ),
    ]:
        with subtests.test(of_server=of_server, own=own):
            environment = {} if own is None else {ACTIVE_THREAD_PERCENTAGE: own}
            limit = reply(f"get_active_thread_percentage {SERVER}", f"{of_server}\n")
            node = reduced(servers(SERVER), clients(CLIENT), limit, process(environment=environment)).node

            assert processes_to_watch(node) == ({CLIENT: percentage}, frozenset())


def test_the_servers_percentage_applies_to_a_process_with_an_unreadable_environment() -> None:
    limit = reply(f"get_active_thread_percentage {SERVER}", "50.0\n")

    for readings in ((), (process(environment=None),)):
        node = reduced(servers(SERVER), clients(CLIENT), limit, *readings).node
        assert processes_to_watch(node) == ({CLIENT: 50.0}, frozenset())
