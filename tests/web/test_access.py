"""Private pages and the landing page: which visitors see them, and with which headers."""

import re
from dataclasses import replace
from typing import Any

import pytest

from exporter.web.pages import Request
from tests.builders import process, reduced
from tests.web.serving import Web

FAR_PEERS = ["10.0.0.1", "0.0.0.0", "::", "::ffff:10.0.0.1", "fe80::1%lo", "2001:db8::1", "localhost", "127.1", "", "x"]
FOREIGN_HOSTS = (
    *("", "evil.example", "evil.example:10677", "localhost.evil.example", "127.0.0.1.evil.example", "::1"),
    "[::1.evil.example",
)
"""DNS rebinding: the browser is local, but the page that sends the request is not."""


def sees_private(peer: str = "127.0.0.1", host: str = "localhost", **known: bool) -> bool:
    return Request(path="/", peer=peer, host=host, **known).may_see_private


def test_private_pages_are_for_a_loopback_peer_that_names_this_machine_or_an_authenticated_visitor() -> None:
    for peer in ("127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"):
        assert sees_private(peer=peer)
    for host in ("localhost", "LOCALHOST:10677", "127.0.0.1:10677", "[::1]", "[::1]:10677", "[::ffff:127.0.0.1]:1"):
        assert sees_private(host=host)
    assert sees_private("10.0.0.1", "node1", proxied=True, authenticated=True)


def test_private_pages_are_hidden_from_other_peers_hosts_and_proxies(subtests: pytest.Subtests) -> None:
    for peer in FAR_PEERS:
        with subtests.test(peer=peer):
            assert not sees_private(peer=peer)
    for host in FOREIGN_HOSTS:
        with subtests.test(host=host):
            assert not sees_private(host=host)
    assert not sees_private(proxied=True)


def test_shows_the_status_to_this_machine(web: Web) -> None:
    answer = web.get("/status")

    assert answer.status == 200
    assert re.match(rb"warning: .*\n\n(warning: .*\n(  .*\n)+\n)+DAEMON ", answer.body)
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert answer.headers["Cache-Control"] == "no-store"


def test_tells_other_visitors_only_how_to_get_access(web: Web, subtests: pytest.Subtests) -> None:
    for name, text in {
        "Host": "evil.example",
        "X_Forwarded_For": "127.0.0.1",
        "X_Forwarded_Proto": "https",
        "CF_Connecting_IP": "192.0.2.7",
        "Forwarded": "for=127.0.0.1",
        "X_Real_IP": "127.0.0.1",
    }.items():
        with subtests.test(name):
            answer = web.get("/status", **{name: text})
            assert answer.status == 403
            assert b"--web.config.file" in answer.body
            assert b"DAEMON" not in answer.body
            assert web.get("/-/healthy", **{name: text}).status == 200


def test_the_page_of_a_client_is_private_and_an_unknown_one_says_where_to_look(web: Web) -> None:
    (path, *_) = re.findall(r'href="(/clients/[^"]+)"', web.get("/").body.decode())

    assert (web.get(path).status, web.get(path, Host="evil.example").status) == (200, 403)
    for unknown in ("/clients/600-0", "/clients/", "/clients/%2e%2e%00", f"{path}0", f"/clients/{'9' * 9000}"):
        answer = web.get(unknown)
        assert (answer.status, web.get(unknown, Host="evil.example").status) == (404, 403)
        assert b"/api/v1/incidents" in answer.body


def test_refuses_a_request_without_a_host_header(web: Web) -> None:
    assert web.raw(b"GET /status HTTP/1.0\r\n\r\n").split()[1] == b"403"


def test_names_that_cannot_be_encoded_are_replaced(web: Web) -> None:
    named = process(user="name \udcff", command="x")
    web.sight = replace(web.sight, node=reduced(named, start=web.sight.node).node)

    assert "name \N{REPLACEMENT CHARACTER}".encode() in web.get("/status").body


OTHER_VISITOR: dict[str, Any] = {"peer": "192.0.2.7", "host": "node1:10677"}
NAMES = (b"alice", b"train.py", b"node1")


def test_shows_the_node_to_this_machine_and_to_authenticated_visitors(web: Web) -> None:
    answer = web.get("/")

    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert all(name in answer.body for name in NAMES)
    assert b"alice" in web.site().answer(Request(path="/", **OTHER_VISITOR, authenticated=True)).body


def test_shows_only_links_to_other_visitors_and_through_a_proxy(web: Web) -> None:
    answer = web.site().answer(Request(path="/", **OTHER_VISITOR))

    assert answer.status == 200
    assert b'href="/metrics"' in answer.body
    for body in (answer.body, web.get("/", X_Forwarded_For="127.0.0.1").body):
        assert not any(name in body for name in NAMES)


@pytest.mark.parametrize("path", ["/", "/page.js", "/page.css"])
def test_headers_forbid_foreign_content_framing_and_caching(web: Web, path: str) -> None:
    headers = web.get(path).headers
    policy = dict(each.strip().partition(" ")[::2] for each in headers["Content-Security-Policy"].split(";"))

    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    assert (headers["X-Frame-Options"], headers["X-Content-Type-Options"]) == ("DENY", "nosniff")
    assert (headers["Cache-Control"], headers["Referrer-Policy"]) == ("no-store", "no-referrer")


@pytest.mark.parametrize(("path", "kind"), [("/page.js", "text/javascript"), ("/page.css", "text/css")])
def test_serves_script_and_style_to_all_visitors(web: Web, path: str, kind: str) -> None:
    answer = web.site().answer(Request(path=path, **OTHER_VISITOR))

    assert (answer.status, answer.content_type) == (200, f"{kind}; charset=utf-8")
    assert len(answer.body) > 1000
