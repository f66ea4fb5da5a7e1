"""A line of a process' maps is a file that it has mapped, or none; whatever the file is called."""

import pytest

from exporter.parse.proc import MappedFile, parse_mapped_file

HEAD = b"7f5c28d21000-7f5c28d22000 r-xp 00000000 "


@pytest.mark.parametrize(
    ("line", "path", "numbers", "executable", "deleted"),
    [
        (HEAD + b"08:01 173521      /usr/lib/libcuda.so.1\n", "/usr/lib/libcuda.so.1", (8, 1, 173521), True, False),
        (HEAD.replace(b"x", b"-") + b"103:1a3 7 /a b\n", "/a b", (0x103, 0x1A3, 7), False, False),
        (HEAD + b"00:27 9 /tmp/libcuda.so.1 (deleted)\n", "/tmp/libcuda.so.1", (0, 0x27, 9), True, True),
        (HEAD + b"00:27 9 /a\\012b\r\xff\n", "/a\\012b\r\udcff", (0, 0x27, 9), True, False),
    ],
    ids=["a library", "data", "deleted", "an odd name"],
)
def test_a_file(line: bytes, path: str, numbers: tuple[int, int, int], executable: bool, deleted: bool) -> None:
    assert parse_mapped_file(line) == MappedFile(path, numbers, executable, deleted)


@pytest.mark.parametrize(
    "line", [b"", b"\n", HEAD + b"00:00 0 \n", HEAD + b"00:00 0                  [vdso]\n", b"/usr/lib/libcuda.so.1\n"]
)
def test_no_file(line: bytes) -> None:
    assert parse_mapped_file(line) is None
