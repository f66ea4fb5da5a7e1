"""Who waits for another user's turn to end, by the daemon's log."""

from exporter.doctor.directory_readers import queued_clients
from tests.builders import SERVER, stamped


def put_off(pid: int, uid: int) -> str:
    return stamped(f"NEW CLIENT {pid} from user {uid}: Server is not ready, push client to pending list")


def let_in(pid: int, uid: int) -> str:
    return stamped(f"NEW CLIENT {pid} from user {uid}: Server already exists")


READY = (stamped(f"Starting new server {SERVER} for user 1001"), stamped(f"NEW SERVER {SERVER}: Ready"))


def test_who_waits_for_the_servers_start_is_let_in_with_it() -> None:
    assert queued_clients([put_off(600, 1001)]) == {600: 1001}
    assert queued_clients([put_off(600, 1001), *READY]) == {}


def test_another_user_waits_on() -> None:
    assert queued_clients([put_off(600, 1001), *READY, put_off(601, 1002), let_in(602, 1001)]) == {601: 1002}


def test_who_was_let_in_waits_no_more_and_a_new_daemon_knows_nobody() -> None:
    assert queued_clients([put_off(601, 1002), let_in(601, 1002)]) == {}
    assert queued_clients([put_off(601, 1002), stamped("Start")]) == {}


def test_a_line_of_a_servers_or_of_nobodys_says_nothing() -> None:
    forged = stamped("NEW CLIENT 7 from user 0: Server is not ready, push client to pending list", role="Server")
    assert queued_clients([forged, "NEW CLIENT 7 from user 0", "", "\0" * 50]) == {}
