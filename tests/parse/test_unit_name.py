"""What names a service, and nothing else: for the configuration, for systemctl, and for what restarts it."""

import pytest

from exporter.parse.systemd import is_service_name


@pytest.mark.parametrize("name", ["mps.service", "nvidia-cuda-mps@0.service", r"a\x2db.service"])
def test_a_name(name: str) -> None:
    assert is_service_name(name)


@pytest.mark.parametrize(
    "name", ["", "*.service", "--all.service", "-H.service", "a b.service", "mps", "a/b.service", "a\n.service"]
)
def test_no_name(name: str) -> None:
    """A pattern would show them all, and an option would do something else."""
    assert not is_service_name(name)
