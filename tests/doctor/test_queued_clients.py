"""Clients that wait for another user's clients to exit, by the daemon's log."""

from exporter.doctor.directory_readers import queued_clients
from tests.builders import SERVER, stamped


def queued(pid: int, uid: int) -> str:
    return stamped(f"NEW CLIENT {pid} from user {uid}: Server is not ready, push client to pending list")


def forwarded(pid: int, uid: int) -> str:
    return stamped(f"NEW CLIENT {pid} from user {uid}: Server already exists")


READY = (stamped(f"Starting new server {SERVER} for user 1001"), stamped(f"NEW SERVER {SERVER}: Ready"))


def test_clients_are_admitted_when_their_server_is_ready() -> None:
    assert queued_clients([queued(600, 1001)]) == {600: 1001}
    assert queued_clients([queued(600, 1001), *READY]) == {}


def test_clients_of_another_user_remain_queued() -> None:
    assert queued_clients([queued(600, 1001), *READY, queued(601, 1002), forwarded(602, 1001)]) == {601: 1002}


def test_forwarded_clients_and_a_new_daemon_leave_the_queue() -> None:
    assert queued_clients([queued(601, 1002), forwarded(601, 1002)]) == {}
    assert queued_clients([queued(601, 1002), stamped("Start")]) == {}


def test_ignores_lines_of_servers_and_other_text() -> None:
    forged = stamped("NEW CLIENT 7 from user 0: Server is not ready, push client to pending list", role="Server")
    assert queued_clients([forged, "NEW CLIENT 7 from user 0", "", "\0" * 50]) == {}
