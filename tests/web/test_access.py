"""The private pages are for this machine's own, and for whoever is authenticated."""

import pytest

from exporter.web.access import Visitor, is_loopback, may_see_private
from tests.web.serving import Web


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"])
def test_an_address_of_this_machine_alone_is_near(peer: str) -> None:
    assert is_loopback(peer)


@pytest.mark.parametrize(
    "peer", ["10.0.0.1", "0.0.0.0", "::", "::ffff:10.0.0.1", "fe80::1%lo", "2001:db8::1", "localhost", "127.1", "", "x"]
)
def test_any_other_is_not(peer: str) -> None:
    assert not is_loopback(peer)
    assert not may_see_private(Visitor(peer=peer, host="localhost"))


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:10677", "127.0.0.1:10677", "[::1]", "[::1]:10677", "[::ffff:127.0.0.1]:1"]
)
def test_a_near_one_asks_for_this_machine(host: str) -> None:
    assert may_see_private(Visitor(peer="127.0.0.1", host=host))


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "evil.example:10677", "localhost.evil.example", "127.0.0.1.evil.example", "[::1", "::1"],
)
def test_a_page_of_another_name_that_points_here_does_not(host: str) -> None:
    """DNS rebinding: the browser is near, the page that makes it ask is not."""
    assert may_see_private(Visitor(peer="::1", host=host)) is (host == "[::1")


def test_a_proxy_that_is_near_says_nothing_of_who_stands_behind_it() -> None:
    assert not may_see_private(Visitor(peer="127.0.0.1", host="localhost", proxied=True))


def test_the_authenticated_may_come_from_anywhere_by_any_name() -> None:
    assert may_see_private(Visitor(peer="10.0.0.1", host="node1", proxied=True, authenticated=True))


def test_the_status_is_shown_to_this_machine(web: Web) -> None:
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
def test_to_others_is_said_what_to_do_and_nothing_else(web: Web, headers: dict[str, str]) -> None:
    answer = web.get("/status", **headers)

    assert answer.status == 403
    assert b"--web.config.file" in answer.body
    assert b"DAEMON" not in answer.body
    assert web.get("/-/healthy", **headers).status == 200


def test_without_a_host_nobody_is_known_to_be_near(web: Web) -> None:
    assert web.raw(b"GET /status HTTP/1.0\r\n\r\n").split()[1] == b"403"


def test_a_name_that_cannot_be_encoded_breaks_no_page(web: Web) -> None:
    web.status = "name \udcff\n"

    assert web.get("/status").body == b"name ?\n"
