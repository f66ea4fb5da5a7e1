"""Functions that run as another user, each in a child of the test's process."""

import os
import traceback
from collections.abc import Callable


def run_as(become: Callable[[], None], function: Callable[[], str]) -> str:
    """Return what a function returns in a child that becomes another user first.

    That user may not be permitted to read the directories of the test's environment. So import what the function needs
    before: what is imported here does not depend on the tests that ran earlier in this process.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            become()
            with open(writer, "w") as pipe:
                pipe.write(function())
            os._exit(0)
        except BaseException:  # noqa: BLE001 (it is shown, and the test fails)
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(writer)
    with open(reader) as pipe:
        result = pipe.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, "the function raised an error, which is in stderr"
    return result


def become(uid: int) -> None:
    """Become a user without groups of root."""
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
