"""`--config.check` refuses what `serve` would refuse."""

import errno
from pathlib import Path

import pytest

from exporter.cli import main
from exporter.config.checks import OWN_PAGES
from exporter.errors import ConfigError, ListenError
from exporter.web.server import listen
from tests.config.reading import config, written
from tests.web.serving import serving


def test_reserved_paths_are_those_of_the_web_server() -> None:
    """The configuration refuses these paths for the metrics, so the web server need not."""
    with serving() as web:
        site = web.site("/telemetry")
    assert set(site._routes) - {"/", "/telemetry"} == set(OWN_PAGES)


def test_check_refuses_the_path_of_another_page(subtests: pytest.Subtests, tmp_path: Path) -> None:
    for page in (own.replace("*", "x") for own in OWN_PAGES):
        with subtests.test(page=page):
            with pytest.raises(ConfigError, match=r"^--web.telemetry-path: .* the exporter has no other page"):
                config("serve", f"--web.telemetry-path={page}")
            path = written(tmp_path, f'[web]\ntelemetry_path = "{page}"')
            assert main(["serve", "--config.check", f"--config.file={path}"]) == 2
    for page in ("/api/v1/metrics", "/runbooks/a/b", "/metrics"):
        assert config("serve", f"--web.telemetry-path={page}").telemetry_path == page


def test_check_refuses_an_impossible_address_and_names_the_flag(subtests: pytest.Subtests) -> None:
    ports = ("", "10677", "host", "host:", "host:http", ":65536", ":-1", "::1:80", ":٣", ":²", ":" + "9" * 5000)
    hosts = ("[zzz]:1", "[1.2.3.4]:1", "[::1%]:1", "999.1.1.1:1", "a b:1", "http://a:1", "a/b:1")
    for address in (*ports, *hosts):
        with subtests.test(address=address), pytest.raises(ConfigError, match=r"^--web.listen-address: "):
            config("serve", f"--web.listen-address={address}")


def test_check_accepts_an_address_that_may_exist(subtests: pytest.Subtests) -> None:
    for text, address in {
        ":10677": ("", 10677),
        "127.0.0.1:80": ("127.0.0.1", 80),
        "127.1:1": ("127.1", 1),
        "node7:0": ("node7", 0),
        "node_1.example.org:1": ("node_1.example.org", 1),
        "h\u00f6st:1": ("h\u00f6st", 1),
        "[::1]:65535": ("::1", 65535),
        "[fe80::1%eth0]:1": ("fe80::1%eth0", 1),
    }.items():
        with subtests.test(text=text):
            assert config("serve", f"--web.listen-address={text}").listen == (address,)


OVERLAPPING = [
    (":PORT", "127.0.0.1:PORT"),
    ("127.0.0.1:PORT", ":PORT"),
    ("[::]:PORT", "0.0.0.0:PORT"),
    ("0.0.0.0:PORT", "127.0.0.1:PORT"),
    ("localhost:PORT", "127.0.0.1:PORT"),
]


def test_check_refuses_addresses_that_overlap(subtests: pytest.Subtests) -> None:
    for addresses in OVERLAPPING:
        with subtests.test(addresses=addresses):
            flags = [f"--web.listen-address={each.replace('PORT', '10677')}" for each in addresses]
            with pytest.raises(ConfigError, match=r"^web.listen_address: .* overlap.*remove one$"):
                config("serve", *flags)


def test_addresses_that_overlap_cannot_be_listened_on(subtests: pytest.Subtests) -> None:
    """The kernel refuses them, so the check must refuse them too."""
    for addresses in OVERLAPPING:
        with subtests.test(addresses=addresses):
            hosts = [each.removesuffix(":PORT").strip("[]") for each in addresses]
            with listen((hosts[0], 0)) as first, pytest.raises(ListenError) as refused:
                listen((hosts[1], first.getsockname()[1]))
            assert isinstance(refused.value.__cause__, OSError)
            assert refused.value.__cause__.errno == errno.EADDRINUSE


def test_check_accepts_addresses_that_do_not_overlap(subtests: pytest.Subtests) -> None:
    for addresses in ((":1", ":2"), ("127.0.0.1:1", "[::1]:1"), ("0.0.0.0:1", "[::1]:1"), (":0", "a:0")):
        with subtests.test(addresses=addresses):
            assert len(config("serve", *(f"--web.listen-address={address}" for address in addresses)).listen) == 2


def test_overlapping_addresses_do_not_matter_to_sockets_of_systemd() -> None:
    flags = ["--web.listen-address=:1", "--web.listen-address=a:1", "--web.systemd-socket"]
    assert config("serve", *flags).systemd_socket
