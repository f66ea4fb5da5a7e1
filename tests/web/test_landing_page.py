"""Landing page: access and headers."""

from typing import Any

import pytest

from exporter.web.handler import Request
from tests.web.serving import Web

STRANGER: dict[str, Any] = {"peer": "192.0.2.7", "host": "node1:10677"}
NAMES = (b"alice", b"train.py", b"node1")


def test_shows_the_node_to_this_machine_and_to_authenticated_visitors(web: Web) -> None:
    answer = web.get("/")

    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert all(name in answer.body for name in NAMES)
    assert b"alice" in web.site().answer(Request(path="/", **STRANGER, authenticated=True)).body


def test_shows_only_links_to_other_visitors_and_through_a_proxy(web: Web) -> None:
    answer = web.site().answer(Request(path="/", **STRANGER))

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
    answer = web.site().answer(Request(path=path, **STRANGER))

    assert (answer.status, answer.content_type) == (200, f"{kind}; charset=utf-8")
    assert len(answer.body) > 1000
