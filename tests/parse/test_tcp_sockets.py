"""Who listens, by the kernel's tables of TCP sockets."""

from ipaddress import ip_address

import pytest

from exporter.parse.proc import TcpListener, tcp_listeners

IPV4 = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:29B5 00000000:0000 0A 00000000:00000000 00:00000000 00000000  990        0 3884137 1 0000000000000000 100
   1: 0100007F:0050 0100007F:D431 01 00000000:00000000 00:00000000 00000000    0        0 41 1 0000000000000000 20 4 30
"""
IPV6 = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when
   0: 00000000000000000000000000000000:29B5 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 \
00000000    33        0 77 1 0000000000000000 100 0 0 10 0
   1: 00000000000000000000000001000000:1F90 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 \
00000000     0        0 78 1 0000000000000000 100 0 0 10 0
"""


def test_those_that_listen_are_told_with_their_user_and_inode() -> None:
    assert list(tcp_listeners(IPV4)) == [TcpListener(ip_address("127.0.0.1"), 10677, 990, 3884137)]
    assert list(tcp_listeners(IPV6)) == [
        TcpListener(ip_address("::"), 10677, 33, 77),
        TcpListener(ip_address("::1"), 8080, 0, 78),
    ]
    assert list(tcp_listeners("nothing of the kind\n" * 3)) == []


@pytest.mark.parametrize(
    ("where", "host", "in_the_way"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "localhost", True),
        ("127.0.0.1", "", True),
        ("127.0.0.1", "192.0.2.1", False),
        ("0.0.0.0", "192.0.2.1", True),
        ("::", "127.0.0.1", True),
        ("::1", "::1", True),
    ],
)
def test_one_conflicts_with_who_would_listen_there_too(where: str, host: str, in_the_way: bool) -> None:
    listener = TcpListener(ip_address(where), 10677, 0, 1)
    assert listener.conflicts_with(host, 10677) is in_the_way
    assert not listener.conflicts_with(host, 10678)
