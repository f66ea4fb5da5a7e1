"""`--config.check` refuses what `serve` would refuse."""

import errno
from pathlib import Path

import pytest

from exporter.cli import main
from exporter.config.values import OWN_PAGES
from exporter.errors import ConfigError, ListenError
from exporter.web.server import listen
from tests.config.reading import config, written
from tests.web.serving import serving


def test_reserved_paths_are_those_of_the_web_server() -> None:
    """The configuration refuses these paths for the metrics, so the web server need not."""
    with serving() as web:
        site = web.site("/telemetry")
    assert set(site._routes) - {"/", "/telemetry"} == set(OWN_PAGES)


@pytest.mark.parametrize("page", [each.replace("*", "x") for each in OWN_PAGES])
def test_check_refuses_the_path_of_another_page(page: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has another page there"):
        config("serve", f"--web.telemetry-path={page}")
    path = written(tmp_path, f'[web]\ntelemetry_path = "{page}"')
    assert main(["serve", "--config.check", f"--config.file={path}"]) == 2


@pytest.mark.parametrize("page", ["/api/v1/metrics", "/runbooks/a/b", "/metrics"])
def test_check_accepts_the_path_of_no_other_page(page: str) -> None:
    assert config("serve", f"--web.telemetry-path={page}").telemetry_path == page


def test_check_refuses_an_impossible_host(subtests: pytest.Subtests) -> None:
    for address in ["[zzz]:1", "[1.2.3.4]:1", "[::1%]:1", "999.1.1.1:1", "a b:1", "http://a:1", "a/b:1"]:
        with subtests.test(address=address), pytest.raises(ConfigError, match=r"^--web.listen-address: "):
            config("serve", f"--web.listen-address={address}")


def test_check_accepts_a_host_that_may_exist(subtests: pytest.Subtests) -> None:
    for address in ["[fe80::1%eth0]:1", "127.0.0.1:1", "127.1:1", "node_1.example.org:1", "h\u00f6st:1", ":1"]:
        with subtests.test(address=address):
            assert config("serve", f"--web.listen-address={address}").listen[0][1] == 1


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


@pytest.mark.parametrize(
    "addresses", [(":1", ":2"), ("127.0.0.1:1", "[::1]:1"), ("0.0.0.0:1", "[::1]:1"), (":0", "a:0")]
)
def test_check_accepts_addresses_that_do_not_overlap(addresses: tuple[str, str]) -> None:
    assert len(config("serve", *(f"--web.listen-address={each}" for each in addresses)).listen) == 2


def test_overlapping_addresses_do_not_matter_to_sockets_of_systemd() -> None:
    flags = ["--web.listen-address=:1", "--web.listen-address=a:1", "--web.systemd-socket"]
    assert config("serve", *flags).systemd_socket
