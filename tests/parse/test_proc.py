"""Files of /proc, with any name or path that a process can choose."""

import sys
from itertools import product

import pytest

from exporter.parse import proc
from exporter.parse.proc import (
    MOST_RANGES,
    MappedFile,
    effective_user,
    group_ids,
    listening_unix_sockets,
    max_open_files,
    parse_address_ranges,
    parse_mapped_file,
    tcp_user,
)

HEAD = b"7f5c28d21000-7f5c28d22000 r-xp 00000000 "


def test_parses_a_mapped_file(subtests: pytest.Subtests) -> None:
    for line, path, numbers, executable, deleted in [
        (HEAD + b"08:01 173521      /usr/lib/libcuda.so.1\n", "/usr/lib/libcuda.so.1", (8, 1, 173521), True, False),
        (HEAD.replace(b"x", b"-") + b"103:1a3 7 /a b\n", "/a b", (0x103, 0x1A3, 7), False, False),
        (HEAD + b"00:27 9 /tmp/libcuda.so.1 (deleted)\n", "/tmp/libcuda.so.1", (0, 0x27, 9), True, True),
        (HEAD + b"00:27 9 /a\\012b\r\xff\n", "/a\\012b\r\udcff", (0, 0x27, 9), True, False),
    ]:
        with subtests.test(line=line):
            assert parse_mapped_file(line) == MappedFile(path, numbers, executable, deleted)


def test_a_mapping_without_a_file_is_none(subtests: pytest.Subtests) -> None:
    for line in [
        b"",
        b"\n",
        HEAD + b"00:00 0 \n",
        HEAD + b"00:00 0                  [vdso]\n",
        b"/usr/lib/libcuda.so.1\n",
    ]:
        with subtests.test(line=line):
            assert parse_mapped_file(line) is None


LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max processes             515072               515072               processes
Max open files            {}                1048576              files
"""


def test_returns_the_soft_limit_of_open_files() -> None:
    assert max_open_files(LIMITS.format(16384)) == 16384
    assert max_open_files(LIMITS.format("unlimited")) is None
    assert max_open_files("") is None


STATUS = "Name:\tUid:\\t1\nUid:\t1001\t990\t1001\t990\nGid:\t100\t991\t100\t991\nGroups:\t4 101 \nNSpid:\t7\n"


def test_returns_effective_user_and_groups() -> None:
    assert effective_user(STATUS) == 990
    assert group_ids(STATUS) == {991, 4, 101}


@pytest.mark.parametrize("name", ["Uid:\t0\t0\t0", "Uid:\t0\t0\t0\t0", "\\nUid:\t0\t0\t0", "a\rUid:\t0\t0\t0\t0"])
def test_the_users_are_not_those_of_the_name(name: str) -> None:
    """The name comes first, and the kernel escapes only line breaks and backslashes in it."""
    text = f"Name:\t{name}\nUmask:\t0022\nState:\tS (sleeping)\nUid:\t1001\t1002\t1003\t1004\nGid:\t5\t6\t7\t8\n"
    assert (proc.real_user(text), proc.effective_user(text)) == (1001, 1002)
    assert proc.real_user(f"Name:\t{name}\nUmask:\t0022\n") is None


def test_missing_user_and_groups_are_none() -> None:
    assert effective_user("") is None
    assert group_ids("Gid:\t0\t0\t0\t0\nGroups:\t\n") == {0}
    assert group_ids("") == frozenset()


FIELDS = "S 1 513 513 0 -1 4194560 1234 0 0 0 7 3 0 0 20 0 4 0 88123456 1073741824 2048 18446744073709551615"


def test_returns_start_time_state_and_parent_for_any_name(subtests: pytest.Subtests) -> None:
    for name in [
        "train.py",
        "",
        "a b",
        "a) b",
        ") Z 1 (",
        "(((",
        ")))",
        "line\nbreak",
        "\udcff",
        "1 2 3 4 5 6 7 8 9 10 11 12 13",
        ") Z 1 (",
        "a) T 2 (b",
    ]:
        with subtests.test(name=name):
            text = f"513 ({name}) {FIELDS}\n"
            assert proc.start_ticks(text) == 88123456
            assert (proc.process_state(text), proc.parent_pid(text)) == ("S", 1)
            assert not proc.is_zombie(text)


def test_text_of_another_form_has_no_start_time_and_no_state(subtests: pytest.Subtests) -> None:
    for text in ["", "513", "513 (train.py)", f"513 train.py {FIELDS}", "513 (train.py) 12 1"]:
        with subtests.test(text=text):
            assert proc.process_state(text) is None
    for text in [
        "",
        "513",
        "513 (train.py)",
        "513 (train.py) S 1 513",
        f"513 train.py {FIELDS}",
        ") " + "x " * 30,
        ") " + "² " * 30,
    ]:
        with subtests.test(text=text):
            assert proc.start_ticks(text) is None


def test_an_ended_process_is_a_zombie(subtests: pytest.Subtests) -> None:
    """A process whose first thread alone has ended goes on."""
    for state, zombie in [("Z", True), ("X", True), ("S", False), ("R", False), ("D", False)]:
        with subtests.test(state=state, zombie=zombie):
            threads = f"513 (Z) {state}{FIELDS[1:]}"
            assert not proc.is_zombie(threads)
            assert proc.is_zombie(threads.replace(" 20 0 4 0 ", " 20 0 1 0 ")) is zombie


def remains(status: int, *, flags: int = 0x40800C, state: str = "Z", name: str = "train.py") -> str:
    """Return the stat line of a zombie, as measured on Linux 6.18."""
    behind = "0 0 0 20 0 1 0 88123456 " + "0 " * 29
    return f"513 ({name}) {state} 1 513 513 0 -1 {flags} 0 0 0 0 0 {behind}{status}\n"


SIGNALED = 0x40840C


def test_returns_the_wait_status_for_any_name(subtests: pytest.Subtests) -> None:
    for name, (status, flags) in product(
        ["train.py", "", ") Z 1 (", "1 2 3 4 5 6 7 8 9 10 11 12 13"],
        [(0, 0x40800C), (1792, 0x40800C), (9, SIGNALED), (11, SIGNALED)],
    ):
        with subtests.test(name=name, status=status, flags=flags):
            text = remains(status, flags=flags, name=name)

            assert proc.wait_status(text) == status
            assert proc.start_ticks(text) == 88123456


def test_wait_status_of_a_signalled_process_is_never_0() -> None:
    """The kernel reports 0 to a reader without permission."""
    assert proc.wait_status(remains(0, flags=SIGNALED)) is None


@pytest.mark.parametrize("text", ["", remains(9, state="S"), remains(-1), f"513 (x) Z {FIELDS[1:]}"])
def test_a_running_process_has_no_wait_status(text: str) -> None:
    assert proc.wait_status(text) is None


def test_returns_the_addresses_of_the_environment(subtests: pytest.Subtests) -> None:
    for span, found in [
        ("4096 8192", (4096, 8192)),
        ("0 0", None),
        ("8192 4096", None),
        ("4096", None),
        ("4096 -1", None),
    ]:
        with subtests.test(span=span, found=found):
            text = f"513 (a) b) {FIELDS} " + "0 " * 24 + span + "\n"
            assert proc.environment_addresses(text) == found


SOCKETS_HEAD = "Num       RefCount Protocol Flags    Type St Inode Path\n"


def row(path: str, flags: str = "00010000", state: str = "01") -> str:
    return f"00000000a907fcd5: 00000002 00000000 {flags} 0005 {state} 5325 {path}".rstrip() + "\n"


def test_returns_listening_unix_sockets() -> None:
    """The sockets of an R580 daemon with one client."""
    table = (
        SOCKETS_HEAD
        + row("/run/mps/control_privileged")
        + row("/run/mps/control")
        + row("/run/mps/control", flags="00000000", state="03")
        + row("", state="03", flags="00000000")
    )
    assert list(listening_unix_sockets(table)) == ["/run/mps/control_privileged", "/run/mps/control"]


def test_a_socket_path_may_contain_spaces() -> None:
    assert list(listening_unix_sockets(SOCKETS_HEAD + row("/run/a  b/control"))) == ["/run/a  b/control"]


def test_the_name_of_an_abstract_socket_begins_with_at() -> None:
    assert list(listening_unix_sockets(row("@/run/mps/control"))) == ["@/run/mps/control"]


def test_ignores_lines_of_another_form(subtests: pytest.Subtests) -> None:
    for text in ["", SOCKETS_HEAD, "00010000", "00010000 00010000 00010000 00010000\n", row(""), "\n\n", "\0"]:
        with subtests.test(text=text):
            assert list(listening_unix_sockets(text)) == []


def test_flags_in_another_column_do_not_count() -> None:
    assert list(listening_unix_sockets(row("/run/00010000/control", flags="00000000"))) == []


def test_address_ranges_are_those_of_gpus_and_large_anonymous_ones_without_names() -> None:
    maps = b"""\
200000000-200200000 rw-s 00000000 00:06 523 /dev/nvidiactl
200200000-300200000 ---p 00000000 00:00 0
55564b3a3000-55564c3a3000 rw-p 00000000 00:00 0                          [heap]
55564c3a3000-55564c3a4000 rw-p 00000000 00:00 0
7f0000000000-7f0040000000 ---p 00000000 00:00 0
7f0040000000-7f0040001000 r--p 00000000 08:01 5 /lib/secret.so
7f0050000000-7f0060000000 rw-p 00000000 00:00 0                          [anon:secret]
7f0070000000-7f0090000000 rw-p 00000000 08:01 6 /data/secret
7f00a0000000-7f00b0000000 rw-s 00000000 00:06 524 /dev/nvidia-uvm
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
"""
    gpu, host, complete = parse_address_ranges(maps)
    assert gpu == (
        (0x2_0000_0000, 0x3_0020_0000),
        (0x7F00_0000_0000, 0x7F00_4000_0000),
        (0x7F00_A000_0000, 0x7F00_B000_0000),
    )
    assert host == ((0x5556_4B3A_3000, 0x5556_4C3A_4000), (0x7F00_5000_0000, 0x7F00_6000_0000))
    assert complete


def test_of_too_many_address_ranges_the_largest_are_kept() -> None:
    sizes = range(2, 302)
    starts = ((1 << 44) + (number << 30) for number in sizes)
    lines = (
        f"{start:x}-{start + (mib << 20):x} ---p 00000000 00:00 0\n" for start, mib in zip(starts, sizes, strict=True)
    )
    gpu, _, complete = parse_address_ranges("".join(lines).encode())
    assert len(gpu) == MOST_RANGES
    assert min(end - start for start, end in gpu) == (302 - MOST_RANGES) << 20
    assert list(gpu) == sorted(gpu)
    assert not complete


def test_many_small_ranges_are_not_all_that_is_reserved() -> None:
    start = 1 << 44
    lines = (f"{start + (n << 20):x}-{start + (n << 20) + (1 << 19):x} ---p 00000000 00:00 0\n" for n in range(2100))
    assert parse_address_ranges("".join(lines).encode()) == ((), (), False)


def tcp_line(local: str, remote: str, uid: int, inode: int, state: str = "01") -> str:
    return f"   7: {local} {remote} {state} 00000000:00000000 00:00000000 00000000  {uid}        0 {inode} 1 0 20 4\n"


HOME, MAPPED, SIX = "0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"


@pytest.mark.skipif(sys.byteorder != "little", reason="NOT RUN: the lines are of a little-endian machine")
@pytest.mark.parametrize(
    ("line", "host", "uid"),
    [
        (tcp_line(f"{HOME}:9C40", f"{HOME}:29B5", 1001, 9), "127.0.0.1", 1001),
        (tcp_line(f"{MAPPED}:9C40", f"{MAPPED}:29B5", 1001, 9), "127.0.0.1", 1001),
        (tcp_line(f"{MAPPED}:9C40", f"{MAPPED}:29B5", 1001, 9), "::ffff:127.0.0.1", 1001),
        (tcp_line(f"{HOME}:9C40", f"{HOME}:29B5", 1001, 9), "::ffff:127.0.0.1", 1001),
        (tcp_line(f"{SIX}:9C40", f"{SIX}:29B5", 1001, 9), "::1", 1001),
        (tcp_line(f"{SIX}:9C40", f"{SIX}:29B5", 1001, 9), "127.0.0.1", None),
        (tcp_line(f"{HOME}:29B5", f"{HOME}:9C40", 0, 9), "127.0.0.1", None),
        (tcp_line(f"{HOME}:9C40", f"{HOME}:29B6", 0, 9), "127.0.0.1", None),
        (tcp_line(f"{HOME}:9C40", "00000000:0000", 0, 9, "0A"), "127.0.0.1", None),
        (tcp_line(f"{HOME}:9C40", f"{HOME}:29B5", 0, 0, "06"), "127.0.0.1", None),
        (f"{HOME}:9C40\n", "127.0.0.1", None),
        ("", "127.0.0.1", None),
    ],
)
def test_the_user_of_the_other_end_of_a_connection(line: str, host: str, uid: int | None) -> None:
    """The own end, another connection, a listener, and a socket that its process has closed are of no user."""
    others = (tcp_line(f"{HOME}:9C41", f"{HOME}:29B5", 1002, 9), "  sl  local_address rem_address   st\n")

    assert tcp_user([*others, line], (host, 40000), (host, 10677)) == uid
