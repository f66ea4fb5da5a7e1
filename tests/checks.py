"""Several checks in one test, where their setup is expensive or they are many."""

from collections.abc import Callable


def assert_all(*checks: Callable[[], None]) -> None:
    """Run all checks, and report all failures together."""
    failures = []
    for check in checks:
        try:
            check()
        except AssertionError as error:
            failures.append(f"{check.__name__}: {error}")
    assert not failures, "\n".join(failures)
