"""The client of Prometheus' HTTP API, for `--prometheus`.

Credentials come from files: a password from ~/.netrc, a client certificate from `--cert`. The answer is untrusted.
"""

import base64
import contextlib
import http.client
import json
import netrc
import os
import ssl
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import SplitResult, urlencode, urlsplit

from exporter.collectors.thread import BoundedCalls
from exporter.errors import ConfigError, ServiceError
from exporter.parse.printable import LONGEST_PROBLEM, printable
from exporter.status_client import MAX_ANSWER_BYTES, Answer

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


class Prometheus:
    """A server with the HTTP API of Prometheus, below any path.

    No redirect is followed, so credentials reach only the host of the URL.
    """

    def __init__(self, url: str, certificate: str | None = None, *, timeout: float) -> None:
        """`certificate` is a PEM file with a certificate and its key. ConfigError for an invalid URL or file."""
        self.url = url
        self._timeout = timeout
        self._parts = _parsed(url)
        self._login = _login(self._parts.hostname or "")
        self._headers = {}
        if self._login is not None:
            self._headers["Authorization"] = "Basic " + base64.b64encode(":".join(self._login).encode()).decode()
        self._tls = _tls(certificate) if self._parts.scheme == "https" else None
        if certificate is not None and self._tls is None:
            raise ConfigError("--cert: a client certificate needs --prometheus https://…")

    def vector(self, expression: str, at: float) -> list[tuple[Mapping[str, str], float]]:
        """Return the samples of an expression at a time; ServiceError if there are none, with what to do."""
        query = urlencode({"query": expression, "time": f"{at:.0f}"})
        answer = self._answer(f"{self._parts.path.rstrip('/')}/api/v1/query?{query}")
        if answer.get("isPartial") or answer.get("warnings"):
            problem = f"the answer is incomplete: {answer.get('warnings') or 'a part of the store is down'}; try again"
            raise self._error(problem)
        try:
            return [(dict(each["metric"]), float(each["value"][1])) for each in answer["data"]["result"]]
        except (LookupError, TypeError, ValueError) as error:
            raise self._error(f"{_OTHER}; {_CHECK}") from error

    def _answer(self, target: str) -> Answer:
        """Return the envelope of a page of the API; ServiceError if there is none, with what to do."""
        # A timeout of the connection begins again with each byte, and looking up a name has none.
        received = BoundedCalls(self._timeout).call(target, lambda: self._get(target), None)
        if received is None:
            raise self._error(f"no complete answer within {self._timeout:g} s; check the node and the network")
        status, body = received
        try:
            envelope = json.loads(body)
        except (ValueError, RecursionError):
            envelope = None
        if status != HTTPStatus.OK:
            raise self._error(self._refusal(status, envelope))
        if not isinstance(envelope, dict) or not isinstance(envelope.get("data"), dict | list):
            raise self._error(f"{_OTHER}; {_CHECK}")
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
        if status in _STATED and (stated := _stated(envelope)):
            return f"{printable(stated, 256)} (HTTP {status}); check --selector, or choose fewer days"
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            return "the server is busy (HTTP 503); try again"
        return f"{_OTHER} (HTTP {status}); {_CHECK}"

    def _error(self, problem: str) -> ServiceError:
        return ServiceError(f"{self.url}: {printable(problem, LONGEST_PROBLEM)}")


def _stated(envelope: Any) -> str:
    stated = envelope.get("error") if isinstance(envelope, dict) else None
    return stated if isinstance(stated, str) else ""


def _parsed(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and url.isprintable()
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment or " " in url:
        raise ConfigError("--prometheus: expected an address such as http://prometheus:9090")
    if parts.path.rstrip("/").endswith(("/metrics", "/api/v1")):
        raise ConfigError(f"--prometheus: expected the address without a page: {url[: -len(parts.path)]}")
    if "@" in parts.netloc:
        raise ConfigError("--prometheus: other users can see a password on the command line; put it into ~/.netrc")
    return parts


def _login(host: str) -> tuple[str, str] | None:
    """Return user and password for a host from ~/.netrc. Its `default` entry is for no particular host, so not used."""
    try:
        found = netrc.netrc().hosts.get(host)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, netrc.NetrcParseError) as error:
        raise ConfigError(f"~/.netrc cannot be used: {error}") from error
    return None if found is None else (found[0], found[2])


def _tls(certificate: str | None) -> ssl.SSLContext:
    authority = os.environ.get("SSL_CERT_FILE")
    try:
        context = ssl.create_default_context(cafile=authority or None)
    except OSError as error:
        raise ConfigError(f"SSL_CERT_FILE={authority}: {error.strerror or error}") from error
    if certificate is not None:
        try:
            context.load_cert_chain(certificate)
        except OSError as error:
            raise ConfigError(f"--cert {certificate}: expected PEM of a certificate and its key: {error}") from error
    return context


def _tls_problem(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _OTHER_NAME:
            return f"{error.verify_message} Use a host name that the certificate contains."
        return f"the certificate is not trusted: {error.verify_message}; name the file of its CA in SSL_CERT_FILE"
    if error.reason in _NO_TLS:
        return "the server does not use TLS; use http://"
    return f"TLS failed: {error.reason or error}; {_NEEDS_CERTIFICATE}"
