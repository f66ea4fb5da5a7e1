"""With the polkit rule, the exporter's user has the rights that the watchdog needs, and no others."""

from collections.abc import Iterator

import pytest

from .node import DAEMON, EXPORTER, RULES, USER, Node

pytestmark = pytest.mark.systems

OF_A_GPU = "nvidia-cuda-mps@0.service"
REFUSED = ("Interactive authentication required", "Access denied")


@pytest.fixture(scope="module", autouse=True)
def _ruled(node: Node) -> Iterator[None]:
    """Install the rule, and stop afterwards what the tests have started."""
    node.machine.do("install", "-Dm", "644", "-t", "/etc/polkit-1/rules.d", f"/root/systemd/{RULES}")
    node.machine.do("systemctl", "restart", "polkit")
    node.settles()
    yield
    node.machine.do("systemctl", "stop", OF_A_GPU)
    node.machine.do("rm", f"/etc/polkit-1/rules.d/{RULES}")
    node.machine.do("systemctl", "restart", "polkit")


def _systemctl_error(node: Node, *words: str, user: str = USER) -> str:
    """Run systemctl as a user, and return the error."""
    return node.machine.run("systemctl", "--no-ask-password", *words, user=user).stderr


@pytest.mark.parametrize("verb", ["restart", "start"])
@pytest.mark.parametrize("unit", [DAEMON, OF_A_GPU])
def test_the_exporter_may_restart_the_daemons_units(node: Node, verb: str, unit: str) -> None:
    assert _systemctl_error(node, verb, unit) == ""


@pytest.mark.parametrize(
    "words",
    [
        ("stop", DAEMON),
        ("kill", DAEMON),
        ("try-restart", DAEMON),
        ("restart", EXPORTER),
        ("restart", "dbus.service"),
        ("restart", "nvidia-cuda-mps@x.target"),
        ("restart", "nvidia-cuda-mps@x.service.d.service"),
        ("restart", "not-nvidia-cuda-mps.service"),
        ("enable", OF_A_GPU),
        ("set-property", DAEMON, "MemoryMax=1G"),
        ("daemon-reload",),
        ("reset-failed", DAEMON),
    ],
    ids=" ".join,
)
def test_the_exporter_may_do_nothing_else(node: Node, words: tuple[str, ...]) -> None:
    before = node.pid(DAEMON)

    assert any(each in _systemctl_error(node, *words) for each in REFUSED)

    assert node.pid(DAEMON) == before


def test_another_user_may_not_restart_the_units(node: Node) -> None:
    assert any(each in _systemctl_error(node, "restart", DAEMON, user="daemon") for each in REFUSED)
