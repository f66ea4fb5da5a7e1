"""Private pages: who can see them."""

import pytest

from exporter.web.handler import Request, is_loopback
from tests.web.serving import Web


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"])
def test_accepts_loopback_addresses(peer: str) -> None:
    assert is_loopback(peer)


def test_accepts_no_other_address_as_loopback(subtests: pytest.Subtests) -> None:
    for peer in [
        "10.0.0.1",
        "0.0.0.0",
        "::",
        "::ffff:10.0.0.1",
        "fe80::1%lo",
        "2001:db8::1",
        "localhost",
        "127.1",
        "",
        "x",
    ]:
        with subtests.test(peer=peer):
            assert not is_loopback(peer)
            assert not Request(path="/", peer=peer, host="localhost").may_see_private


def test_shows_private_pages_to_a_loopback_peer_that_names_this_machine(subtests: pytest.Subtests) -> None:
    for host in ["localhost", "LOCALHOST:10677", "127.0.0.1:10677", "[::1]", "[::1]:10677", "[::ffff:127.0.0.1]:1"]:
        with subtests.test(host=host):
            assert Request(path="/", peer="127.0.0.1", host=host).may_see_private


def test_refuses_a_loopback_peer_that_names_another_host(subtests: pytest.Subtests) -> None:
    """DNS rebinding: the browser is local, but the page that sends the request is not."""
    for host in [
        "",
        "evil.example",
        "evil.example:10677",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "[::1",
        "::1",
    ]:
        with subtests.test(host=host):
            assert Request(path="/", peer="::1", host=host).may_see_private is (host == "[::1")


def test_refuses_a_local_proxy() -> None:
    assert not Request(path="/", peer="127.0.0.1", host="localhost", proxied=True).may_see_private


def test_shows_private_pages_to_authenticated_visitors_from_any_address() -> None:
    assert Request(path="/", peer="10.0.0.1", host="node1", proxied=True, authenticated=True).may_see_private


def test_shows_the_status_to_this_machine(web: Web) -> None:
    answer = web.get("/status")

    assert (answer.status, answer.body) == (200, b"DAEMON\n")
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"X_Forwarded_For": "127.0.0.1"},
        {"X_Forwarded_Proto": "https"},
        {"CF_Connecting_IP": "192.0.2.7"},
        {"Forwarded": "for=127.0.0.1"},
        {"X_Real_IP": "127.0.0.1"},
    ],
    ids=lambda headers: next(iter(headers)),
)
def test_tells_other_visitors_only_how_to_get_access(web: Web, headers: dict[str, str]) -> None:
    answer = web.get("/status", **headers)

    assert answer.status == 403
    assert b"--web.config.file" in answer.body
    assert b"DAEMON" not in answer.body
    assert web.get("/-/healthy", **headers).status == 200


def test_refuses_a_request_without_a_host_header(web: Web) -> None:
    assert web.raw(b"GET /status HTTP/1.0\r\n\r\n").split()[1] == b"403"


def test_replaces_characters_that_cannot_be_encoded(web: Web) -> None:
    web.status = "name \udcff\n"

    assert web.get("/status").body == b"name ?\n"
