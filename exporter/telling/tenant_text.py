"""Who a client is, in a few words."""

from exporter.model.incident import Tenant
from exporter.telling.short import process_text, short_owner


def called(tenant: Tenant) -> str:
    """A client in a few words: `PID 600 (train.py of alice, job 42)`."""
    return process_text(tenant.pid, tenant.command, tenant.user, short_owner(tenant.workload, tenant.pod))
