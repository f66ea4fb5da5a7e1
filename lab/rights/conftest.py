"""The daemon and the clients of lab/gpu."""

from lab.gpu.conftest import (  # noqa: F401
    clients,
    daemon,
    gpu,
    load_program,
    numbers,
    pytest_runtest_makereport,
    root,
    unstarted_daemon,
)
