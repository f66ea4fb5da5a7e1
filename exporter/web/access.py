"""Who may see the private pages, which name users and workloads: this machine's own, and whoever is authenticated."""

import contextlib
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """Whom a request comes from, as far as the server knows it itself."""

    peer: str = ""
    host: str = ""
    """The Host header."""
    proxied: bool = False
    """Whether a proxy says that it stands between."""
    authenticated: bool = False
    """By password, or by a certificate that was asked for and verified."""


def may_see_private(visitor: Visitor) -> bool:
    """Whether private pages are for this visitor.

    A header that tells of another address is never believed, but where there is one the peer is a proxy, and being
    near says nothing about who stands behind it. The Host header must name this machine too: a browser that a foreign
    page has pointed here under the page's own name (DNS rebinding) is a local peer as well.
    """
    if visitor.authenticated:
        return True
    return is_loopback(visitor.peer) and not visitor.proxied and _names_this_machine(visitor.host)


def is_loopback(text: str) -> bool:
    """Whether this is an address of this machine's own; IPv4 may come in the clothes of IPv6."""
    with contextlib.suppress(ValueError):
        address: IPv4Address | IPv6Address | None = ip_address(text)
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return address is not None and address.is_loopback
    return False


def _names_this_machine(host: str) -> bool:
    name = _without_port(host.strip())
    return name.lower() == "localhost" or is_loopback(name)


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
