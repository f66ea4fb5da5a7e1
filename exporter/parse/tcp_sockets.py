"""The text of /proc/net/tcp and tcp6 (proc(5)): the sockets that listen.

An address is in words of 32 bits, each with its last byte first, as on every machine that CUDA runs on.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

Address = IPv4Address | IPv6Address

_LISTENING = re.compile(
    r"^ *[0-9]+: ([0-9A-F]{8}|[0-9A-F]{32}):([0-9A-F]{4}) [0-9A-F]+:[0-9A-F]{4} 0A [0-9A-F:]+ [0-9A-F:]+ [0-9A-F]+"
    r" +([0-9]+) +[0-9]+ ([0-9]+) ",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket that listens: where, whose, and its inode, by which its process can be told."""

    address: Address
    port: int
    uid: int
    inode: int

    def is_in_the_way_of(self, host: str, port: int) -> bool:
        """Whether nobody else can listen there; an empty host stands for all addresses."""
        if port != self.port:
            return False
        return not host or self.address.is_unspecified or host in (str(self.address), _NAMES.get(str(self.address)))


_NAMES = {"127.0.0.1": "localhost", "::1": "localhost"}


def listeners(text: str) -> Iterator[Listener]:
    """The sockets of a table that listen."""
    for address, port, uid, inode in _LISTENING.findall(text):
        yield Listener(_address(address), int(port, 16), int(uid), int(inode))


def _address(written: str) -> Address:
    words = (bytes.fromhex(written[start : start + 8])[::-1] for start in range(0, len(written), 8))
    address = b"".join(words)
    return IPv4Address(address) if len(address) == 4 else IPv6Address(address)
