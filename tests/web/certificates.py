"""Certificates for tests, created with openssl."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.tools import needed


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates for clients and servers."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self._issued = 0
        usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")  # required by Python 3.13
        self.itself = self._make(name, "-x509", "-addext", "basicConstraints=critical,CA:TRUE", *usage)

    @property
    def cert(self) -> Path:
        """The certificate to trust."""
        return self.itself.cert

    def issue(self, name: str, *alternatives: str) -> Certificate:
        """A certificate for these subject alternative names, such as DNS:localhost."""
        names = ("-addext", f"subjectAltName={','.join(alternatives)}") if alternatives else ()
        self._issued += 1
        signed_by = ("-x509", "-CA", str(self.itself.cert), "-CAkey", str(self.itself.key))
        return self._make(f"{name}{self._issued}", *signed_by, "-addext", "basicConstraints=CA:FALSE", *names)

    def _make(self, name: str, *arguments: str) -> Certificate:
        made = Certificate(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", str(made.key))
        request = (needed("openssl"), "req", "-new", *key, "-subj", f"/CN={name}", "-days", "2", "-out", str(made.cert))
        done = subprocess.run((*request, *arguments), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return made
