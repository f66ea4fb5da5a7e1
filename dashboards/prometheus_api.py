"""The client of Prometheus' HTTP API, for the report.

Credentials come from files: a password from ~/.netrc, a client certificate from `--cert`. `SSL_CERT_FILE` names
a private CA. The answer is untrusted.
"""

import base64
import contextlib
import http.client
import json
import netrc
import os
import re
import ssl
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from threading import Thread
from typing import Any
from urllib.parse import SplitResult, urlencode, urlsplit

Vector = Sequence[tuple[Mapping[str, str], float | None]]
"""The labels and the value of each sample, in the order of the server. A value can be unknown."""

MAX_ANSWER_BYTES = 1 << 26

_NUMBER = re.compile(r"[+-]?(\d+(\.\d+)?(e[+-]?\d+)?|Inf|NaN)", re.ASCII)
_GREATEST = 1e18
"""No fleet has more of anything: such a value is unknown, as are infinity and NaN, which is 0 divided by 0."""

_LISTENS = "check that Prometheus runs there and listens on that address (default port: 9090)"
_OTHER = "no API of Prometheus answers there"
_CHECK = "check host, port and path (Mimir: /prometheus; cluster of VictoriaMetrics: /select/0/prometheus)"
_OTHER_NAME = (62, 64)
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""
_STATED = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.NOT_FOUND,
    HTTPStatus.UNPROCESSABLE_ENTITY,
    HTTPStatus.SERVICE_UNAVAILABLE,
)
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")
_NEEDS_CERTIFICATE = "if the server requires a client certificate, name its file with --cert"


class ReportError(Exception):
    """What prevents the report. The message says what is wrong, where, and what to do."""

    exit_code = 1


class UsageError(ReportError):
    """An argument, or a file that it names, is invalid."""

    exit_code = 2


def printable(text: str, longest: int = 128) -> str:
    """Return the text truncated, with each unprintable character and each line break replaced."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text[:longest])


class Prometheus:
    """A server with the HTTP API of Prometheus, below any path.

    No redirect is followed, so credentials reach only the host of the URL.
    """

    def __init__(self, url: str, certificate: str | None = None, *, timeout: float) -> None:
        """`certificate` is a PEM file with a certificate and its key. UsageError for an invalid URL or file."""
        self.url = url
        self._timeout = timeout
        self._parts = _parsed(url)
        self._login = _login(self._parts.hostname or "")
        self._headers = {}
        if self._login is not None:
            self._headers["Authorization"] = "Basic " + base64.b64encode(":".join(self._login).encode()).decode()
        self._tls = _tls(certificate) if self._parts.scheme == "https" else None
        if certificate is not None and self._tls is None:
            raise UsageError("--cert: a client certificate needs --prometheus https://…")

    def vector(self, expression: str, at: float, limit: int | None = None) -> Vector:
        """Return the samples of an expression at a time, at most `limit`; ReportError if there is no answer."""
        query = urlencode({"query": expression, "time": f"{at:.0f}"}, errors="replace")
        answer = self._answer(f"{self._parts.path.rstrip('/')}/api/v1/query?{query}")
        try:
            if answer.get("isPartial") or answer.get("warnings"):
                problem = answer.get("warnings") or "a part of the store is down"
                raise self._error(f"the answer is incomplete: {problem}; try again")
            return [_sample(each) for each in answer["data"]["result"][:limit]]
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise self._error(f"{_OTHER}; {_CHECK}") from error

    def _answer(self, target: str) -> Any:
        """Return the envelope of a page of the API; ReportError if there is none, with what to do."""
        received: list[tuple[int, bytes] | ReportError] = []

        def receive() -> None:
            try:
                received.append(self._get(target))
            except ReportError as error:
                received.append(error)

        # A timeout of the connection begins again with each byte, and looking up a name has none.
        thread = Thread(target=receive, daemon=True)
        thread.start()
        thread.join(self._timeout)
        if not received:
            raise self._error(f"no complete answer within {self._timeout:g} s; check the node and the network")
        if isinstance(received[0], ReportError):
            raise received[0]
        status, body = received[0]
        try:
            envelope = json.loads(body)
        except (ValueError, RecursionError):
            envelope = None
        if status != HTTPStatus.OK:
            raise self._error(self._refusal(status, envelope))
        return envelope

    def _get(self, target: str) -> tuple[int, bytes]:
        host, port = self._parts.hostname or "", self._parts.port
        connection = (
            http.client.HTTPConnection(host, port, timeout=self._timeout)
            if self._tls is None
            else http.client.HTTPSConnection(host, port, timeout=self._timeout, context=self._tls)
        )
        with contextlib.closing(connection):
            try:
                connection.connect()
            except ssl.SSLError as error:
                raise self._error(_tls_problem(error)) from error
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or error
                raise self._error(f"cannot connect: {reason}; {_LISTENS}") from error
            try:
                connection.request("GET", target, headers=self._headers)
                # An answer without a length owns the socket, which closing the connection would leave open.
                with connection.getresponse() as response:
                    body = response.read(MAX_ANSWER_BYTES + 1)
            except ssl.SSLError as error:
                raise self._error(_tls_problem(error)) from error
            except (OSError, http.client.HTTPException, ValueError) as error:
                advice = "if the server uses TLS, use https://" if self._tls is None else _NEEDS_CERTIFICATE
                raise self._error(f"no valid HTTP response: {error or type(error).__name__}; {advice}") from error
        if len(body) > MAX_ANSWER_BYTES:
            raise self._error(f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
        return response.status, body

    def _refusal(self, status: int, envelope: Any) -> str:
        """Return why the server did not answer, and what to do."""
        if status == HTTPStatus.UNAUTHORIZED and self._login is None:
            host = self._parts.hostname
            return f"a password is required; add `machine {host} login USER password PASSWORD` to ~/.netrc (mode 0600)"
        if status == HTTPStatus.UNAUTHORIZED and self._login is not None:
            return f"the password of user {self._login[0]} in ~/.netrc was refused; correct it there"
        stated = envelope.get("error") if isinstance(envelope, dict) else None
        if status in _STATED and isinstance(stated, str) and stated:
            return f"{printable(stated, 256)} (HTTP {status}); check --selector, or choose fewer days"
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            return "the server is busy (HTTP 503); try again"
        return f"{_OTHER} (HTTP {status}); {_CHECK}"

    def _error(self, problem: str) -> ReportError:
        return ReportError(f"{self.url}: {printable(problem, 512)}")


def _sample(found: Any) -> tuple[Mapping[str, str], float | None]:
    """Return the labels and the value of a sample."""
    labels, (time, text) = found["metric"], found["value"]
    if not all(isinstance(each, str) for each in labels.values()):
        raise TypeError(labels)
    if isinstance(time, str) or not _NUMBER.fullmatch(text):
        raise ValueError(text)
    value = float(text)
    return labels, value if abs(value) < _GREATEST else None


def _parsed(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and parts.path.isascii()
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment or " " in url or not url.isprintable():
        raise UsageError("--prometheus: expected an address such as http://prometheus:9090")
    if parts.path.rstrip("/").endswith(("/metrics", "/api/v1")):
        raise UsageError(f"--prometheus: expected the address without a page: {url[: -len(parts.path)]}")
    if "@" in parts.netloc:
        raise UsageError("--prometheus: other users can see a password on the command line; put it into ~/.netrc")
    return parts


def _login(host: str) -> tuple[str, str] | None:
    """Return user and password for a host from ~/.netrc. Its `default` entry is for no particular host, so not used."""
    try:
        found = netrc.netrc().hosts.get(host)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, netrc.NetrcParseError) as error:
        raise UsageError(f"~/.netrc cannot be used: {error}") from error
    return None if found is None else (found[0], found[2])


def _tls(certificate: str | None) -> ssl.SSLContext:
    authority = os.environ.get("SSL_CERT_FILE")
    try:
        context = ssl.create_default_context(cafile=authority or None)
    except OSError as error:
        raise UsageError(f"SSL_CERT_FILE={authority}: {error.strerror or error}") from error
    if certificate is not None:
        try:
            context.load_cert_chain(certificate)
        except OSError as error:
            raise UsageError(f"--cert {certificate}: expected PEM of a certificate and its key: {error}") from error
    return context


def _tls_problem(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _OTHER_NAME:
            return f"{error.verify_message} Use a host name that the certificate contains."
        return f"the certificate is not trusted: {error.verify_message}; name the file of its CA in SSL_CERT_FILE"
    if error.reason in _NO_TLS:
        return "the server does not use TLS; use http://"
    return f"TLS failed: {error.reason or error}; {_NEEDS_CERTIFICATE}"
