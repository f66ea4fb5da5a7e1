"""Basic authentication."""

import base64
import contextlib
import threading
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

import bcrypt
import pytest

from exporter.web.pages import Answer, Request, plain
from exporter.web.web_config import BasicAuth, bcrypt_check
from tests.eventually import PATIENCE_SECONDS, eventually, until
from tests.web.serving import Counting as Metrics
from tests.web.serving import Web, read_all, serving

# The tests state these values, so that they notice a change of the program's constants.
MAX_CACHED_LOGINS = 100
MAX_PENDING_CHECKS = 8

ALICE = bcrypt.hashpw(b"wonderland", b"$2b$04$abcdefghijklmnopqrstuu").decode()
COSTLIER = "$2y$12$1DpfPeqF9HzHJt.EWswy1exHluGfbhnn3yXhR7Xes6m3WJqFg0Wby"


def basic(name: str | bytes, password: str | bytes) -> str:
    """Return the Authorization header of a client."""
    parts = [part if isinstance(part, bytes) else part.encode() for part in (name, password)]
    return "Basic " + base64.b64encode(b":".join(parts)).decode()


class Counting:
    """A password check that records the hashes."""

    def __init__(self, answer: Callable[[bytes, bytes], bool] = lambda password, _: password == b"right") -> None:
        self.hashes: list[bytes] = []
        self._answer = answer

    def __call__(self, password: bytes, hashed: bytes) -> bool:
        """Return whether the password is right."""
        self.hashes.append(hashed)
        return self._answer(password, hashed)


@pytest.fixture(scope="module")
def alice() -> BasicAuth:
    """One user, checked with bcrypt."""
    return BasicAuth({"alice": ALICE}, bcrypt_check())


def test_admits_the_right_password_of_which_72_bytes_count(alice: BasicAuth) -> None:
    long = b"x" * 72
    auth = BasicAuth({"a": bcrypt.hashpw(long, bcrypt.gensalt(4)).decode()}, bcrypt_check())
    assert auth.verdict(basic("a", long + b"more")) is HTTPStatus.OK
    assert alice.verdict(basic("alice", "wonderland")) is HTTPStatus.OK
    assert alice.verdict(basic("alice", "wonderland").replace("Basic ", "bAsIc  ")) is HTTPStatus.OK


def test_refuses_all_other_credentials(alice: BasicAuth, subtests: pytest.Subtests) -> None:
    others = (
        *("", "Basic", "Basic ", "Bearer x", "Basic !!!!", "Basic \xe4"),
        "Basic " + base64.b64encode(b"alice").decode(),
        *(basic("alice", text) for text in ("", "Wonderland", ALICE, "wonderland:", b"wonderland\0", b"\xff\xfe")),
        *(basic("alice", "x" * 5000), basic("", "")),
        *(basic(name, "wonderland") for name in ("Alice", "bob", "x" * 5000)),
    )
    for header in others:
        with subtests.test(header=header):
            assert alice.verdict(header) is HTTPStatus.UNAUTHORIZED


def test_checks_the_password_of_an_unknown_user_at_the_same_cost() -> None:
    check = Counting()
    auth = BasicAuth({"alice": COSTLIER}, check)

    assert [auth.verdict(basic(name, "wrong")) for name in ("alice", "bob")] == [HTTPStatus.UNAUTHORIZED] * 2
    assert BasicAuth({"alice": ALICE}, lambda *_: True).verdict(basic("bob", "any")) is HTTPStatus.UNAUTHORIZED
    assert [each[:7] for each in check.hashes] == [b"$2y$12$", b"$2b$12$"]
    assert bcrypt.checkpw(b"any", check.hashes[1].replace(b"12", b"04", 1)) is False  # a valid hash of no user


def test_checks_a_right_password_once_and_a_wrong_one_each_time() -> None:
    check = Counting()
    auth = BasicAuth({"alice": ALICE}, check)
    for _ in range(3):
        auth.verdict(basic("alice", "right"))
    assert len(check.hashes) == 1

    for _ in range(3):
        auth.verdict(basic("alice", "wrong"))
    assert len(check.hashes) == 4


def test_limits_the_cached_logins() -> None:
    check = Counting(lambda *_: True)
    users = {f"user{n}": ALICE for n in range(3 * MAX_CACHED_LOGINS)}
    auth = BasicAuth(users, check)
    for name in users:
        auth.verdict(basic(name, "right"))
    for name in list(users)[-MAX_CACHED_LOGINS:]:
        auth.verdict(basic(name, "right"))

    assert len(check.hashes) == len(users)
    auth.verdict(basic("user0", "right"))
    assert len(check.hashes) == len(users) + 1


def test_checks_one_password_at_a_time_with_few_waiting_and_cached_users_do_not_wait() -> None:
    enough, begun = threading.Event(), threading.Semaphore(0)
    at_once: list[int] = []
    running = 0

    def slow(password: bytes, _: bytes) -> bool:
        nonlocal running
        running += 1
        at_once.append(running)
        if password != b"right":
            begun.release()
            assert enough.wait(PATIENCE_SECONDS)
        running -= 1
        return password == b"right"

    auth = BasicAuth({"alice": ALICE}, slow)
    assert auth.verdict(basic("alice", "right")) is HTTPStatus.OK
    verdicts: list[HTTPStatus] = []
    guessing = [
        threading.Thread(target=lambda n=n: verdicts.append(auth.verdict(basic("alice", f"guess{n}"))))
        for n in range(3 * MAX_PENDING_CHECKS)
    ]
    for guess in guessing:
        guess.start()
    assert begun.acquire(timeout=PATIENCE_SECONDS)
    try:
        eventually(lambda: _are_refused(verdicts, 2 * MAX_PENDING_CHECKS))
        assert auth.verdict(basic("alice", "right")) is HTTPStatus.OK
    finally:
        enough.set()
        for guess in guessing:
            guess.join()

    assert max(at_once) == 1
    assert set(verdicts) == {HTTPStatus.UNAUTHORIZED, HTTPStatus.SERVICE_UNAVAILABLE}
    assert verdicts.count(HTTPStatus.SERVICE_UNAVAILABLE) == 2 * MAX_PENDING_CHECKS


def test_a_page_waits_for_no_password_check_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long head is parsed while pages wait, but its password is checked while they go on."""
    enough, begun = threading.Event(), threading.Event()

    def slow(password: bytes, _: bytes) -> bool:
        if password != b"right":
            begun.set()
            assert enough.wait(PATIENCE_SECONDS)
        return password == b"right"

    monkeypatch.setattr(bcrypt, "checkpw", slow)
    configuration = tmp_path / "web.yml"
    configuration.write_text(f"basic_auth_users: {{alice: '{ALICE}'}}")
    with serving(config=configuration) as web, contextlib.ExitStack() as guesses:
        guesses.callback(enough.set)
        right = basic("alice", "right")
        assert web.get("/events", Authorization=right).status == 200
        for number in range(3 * MAX_PENDING_CHECKS):
            guess = guesses.enter_context(web.connect())
            wrong = basic("alice", f"guess{number}").encode()
            guess.sendall(b"GET / HTTP/1.1\r\nAuthorization: " + wrong + b"\r\nX: " + b"x" * 9000 + b"\r\n\r\n")
        assert begun.wait(PATIENCE_SECONDS)
        eventually(lambda: _is_shown(web, right))


def test_a_page_gets_503_and_a_scrape_its_answer_while_many_pages_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, continues, right = threading.Event(), threading.Event(), basic("alice", "wonderland")

    def render(_: Request) -> Answer:
        began.set()
        assert continues.wait(PATIENCE_SECONDS)
        return plain(HTTPStatus.OK, "page")

    configuration = tmp_path / "web.yml"
    configuration.write_text(f"basic_auth_users: {{alice: '{ALICE}'}}")
    with serving(config=configuration, max_requests=4) as web, contextlib.ExitStack() as pages:
        pages.callback(continues.set)
        web.exposition.publish(Metrics())
        web.get(Authorization=right)
        assert web.replaceable.site is not None
        monkeypatch.setattr(web.replaceable.site, "answer", render)
        waiting = [pages.enter_context(web.connect()) for _ in range(2)]
        for page in waiting:
            page.sendall(f"GET /events HTTP/1.1\r\nAuthorization: {right}\r\n\r\n".encode())
        assert began.wait(PATIENCE_SECONDS)
        until(lambda: [*web.server._slots._slots.values()] == [False, False])

        refused = web.get("/events", Authorization=right)
        assert (refused.status, refused.headers) == (503, {"Retry-After": "1", "Content-Length": "0"})
        assert web.get(Authorization=right).status == 200
        continues.set()
        assert [read_all(page)[-5:] for page in waiting] == [b"page\n"] * 2


def _is_shown(web: Web, authorization: str) -> None:
    try:
        assert web.get("/events", Authorization=authorization).status == 200
    except ConnectionError as error:
        raise AssertionError("too many pages wait") from error


def _are_refused(verdicts: list[HTTPStatus], count: int) -> None:
    assert verdicts == [HTTPStatus.SERVICE_UNAVAILABLE] * count
