"""Who a client is, in a few words."""

from exporter.model.incident import Tenant
from exporter.telling.short import pid_text, short_name, short_owner


def called(tenant: Tenant) -> str:
    """A client in a few words: `PID 600 (train.py of alice, job 42)`."""
    command, user = short_name(tenant.command), short_name(tenant.user)
    who = f"{command} of {user}" if command and user else command or user
    told = ", ".join(each for each in (who, short_owner(tenant.workload, tenant.pod)) if each)
    return f"{pid_text(tenant.pid)} ({told})" if told else pid_text(tenant.pid)
