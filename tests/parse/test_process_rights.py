"""As whom a process acts, by its `status`."""

from exporter.parse.proc import effective_user, group_ids

STATUS = "Name:\tUid:\\t1\nUid:\t1001\t990\t1001\t990\nGid:\t100\t991\t100\t991\nGroups:\t4 101 \nNSpid:\t7\n"


def test_the_effective_ones_count() -> None:
    assert effective_user(STATUS) == 990
    assert group_ids(STATUS) == {991, 4, 101}


def test_what_is_not_told_is_not_made_up() -> None:
    assert effective_user("") is None
    assert group_ids("Gid:\t0\t0\t0\t0\nGroups:\t\n") == {0}
    assert group_ids("") == frozenset()
