"""What the exporter's user may do to units, where the rule is installed: as much as the watchdog needs."""

from collections.abc import Iterator

import pytest

from .node import DAEMON, EXPORTER, RULES, USER, Node

pytestmark = pytest.mark.systems

OF_A_GPU = "nvidia-cuda-mps@0.service"
REFUSED = ("Interactive authentication required", "Access denied")


@pytest.fixture(scope="module", autouse=True)
def _ruled(node: Node) -> Iterator[None]:
    """The rule is installed, and what it lets these tests start is ended with them."""
    node.machine.do("install", "-Dm", "644", "-t", "/etc/polkit-1/rules.d", f"/root/systemd/{RULES}")
    node.machine.do("systemctl", "restart", "polkit")
    node.settles()
    yield
    node.machine.do("systemctl", "stop", OF_A_GPU)
    node.machine.do("rm", f"/etc/polkit-1/rules.d/{RULES}")
    node.machine.do("systemctl", "restart", "polkit")


def _asks(node: Node, *words: str, user: str = USER) -> str:
    """What comes of it: nothing is said where it is done."""
    return node.machine.run("systemctl", "--no-ask-password", *words, user=user).stderr


@pytest.mark.parametrize("verb", ["restart", "start"])
@pytest.mark.parametrize("unit", [DAEMON, OF_A_GPU])
def test_the_daemons_units_may_be_brought_back(node: Node, verb: str, unit: str) -> None:
    assert _asks(node, verb, unit) == ""


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
def test_nothing_else_may_be_done(node: Node, words: tuple[str, ...]) -> None:
    before = node.pid(DAEMON)

    assert any(each in _asks(node, *words) for each in REFUSED)

    assert node.pid(DAEMON) == before


def test_nobody_else_may_do_it(node: Node) -> None:
    assert any(each in _asks(node, "restart", DAEMON, user="daemon") for each in REFUSED)
