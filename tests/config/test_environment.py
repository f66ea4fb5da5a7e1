"""A variable with the exporter's prefix is an option, a known foreign variable, or refused."""

import pytest

from exporter.errors import ConfigError
from tests.config.reading import config

OTHERS = (
    "CUDA_MPS_EXPORTER_ARGS",
    "CUDA_MPS_EXPORTER_SERVICE_HOST",
    "CUDA_MPS_EXPORTER_SERVICE_PORT",
    "CUDA_MPS_EXPORTER_SERVICE_PORT_METRICS",
    "CUDA_MPS_EXPORTER_PORT",
    "CUDA_MPS_EXPORTER_PORT_10677_TCP",
    "CUDA_MPS_EXPORTER_PORT_10677_TCP_PROTO",
    "CUDA_MPS_EXPORTER_PORT_10677_TCP_PORT",
    "CUDA_MPS_EXPORTER_PORT_10677_TCP_ADDR",
)


def test_refuses_an_unknown_variable_and_suggests_another() -> None:
    with pytest.raises(ConfigError) as refused:
        config("serve", CUDA_MPS_EXPORTER_LOG_LEVLE="debug")
    assert str(refused.value) == (
        "unknown variable 'CUDA_MPS_EXPORTER_LOG_LEVLE'; did you mean CUDA_MPS_EXPORTER_LOG_LEVEL?"
    )


def test_refuses_an_unusable_value_and_names_the_variable() -> None:
    with pytest.raises(ConfigError, match=r"^CUDA_MPS_EXPORTER_LOG_LEVEL: invalid value 'loud': expected one of"):
        config("serve", CUDA_MPS_EXPORTER_LOG_LEVEL="loud")
    with pytest.raises(ConfigError, match=r"^CUDA_MPS_EXPORTER_WEB_LISTEN_ADDRESS: invalid value 'here': expected"):
        config("serve", CUDA_MPS_EXPORTER_WEB_LISTEN_ADDRESS=":1, here")


def test_ignores_foreign_variables_with_the_same_prefix(subtests: pytest.Subtests) -> None:
    """A Service named cuda-mps-exporter must not prevent the exporter's own pods from starting."""
    for variable in OTHERS:
        with subtests.test(variable=variable):
            assert config("serve", **{variable: "tcp://10.0.0.1:10677"}) == config("serve")


def test_ignores_a_variable_of_another_command() -> None:
    assert config("status", CUDA_MPS_EXPORTER_WEB_MAX_REQUESTS="7") == config("status")
