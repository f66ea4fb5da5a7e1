"""What the exporter's user may do to units, where the rule is installed: as much as the watchdog needs."""

import pytest

from .node import DAEMON, EXPORTER, RULES, USER, Node


@pytest.fixture(autouse=True)
def _ruled(node: Node) -> None:
    node.machine.do("install", "-Dm", "644", "-t", "/etc/polkit-1/rules.d", f"/root/systemd/{RULES}")
    node.machine.run("systemctl", "restart", "polkit")


def _asks(node: Node, *words: str, user: str = USER) -> int:
    return node.machine.run("systemctl", "--no-ask-password", *words, user=user).returncode


@pytest.mark.parametrize("verb", ["restart", "start"])
@pytest.mark.parametrize("unit", [DAEMON, "nvidia-cuda-mps@0.service"])
def test_the_daemons_units_may_be_brought_back(node: Node, verb: str, unit: str) -> None:
    assert _asks(node, verb, unit) == 0


@pytest.mark.parametrize(
    "words",
    [
        ("stop", DAEMON),
        ("kill", DAEMON),
        ("reload-or-restart", EXPORTER),
        ("restart", EXPORTER),
        ("restart", "dbus.service"),
        ("restart", "nvidia-cuda-mps@x.target"),
        ("restart", "not-nvidia-cuda-mps.service"),
        ("enable", "nvidia-cuda-mps@0.service"),
        ("set-property", DAEMON, "MemoryMax=1G"),
        ("daemon-reload",),
        ("reset-failed", DAEMON),
    ],
    ids=" ".join,
)
def test_nothing_else_may(node: Node, words: tuple[str, ...]) -> None:
    before = node.pid(DAEMON)

    assert _asks(node, *words) != 0

    assert node.pid(DAEMON) == before


def test_nobody_else_may(node: Node) -> None:
    assert _asks(node, "restart", DAEMON, user="nobody") != 0
