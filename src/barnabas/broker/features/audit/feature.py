"""The audit log of a broker, enabled by `barnabas.audit.log`."""

from barnabas.broker.features.audit.audit_log import AuditLog
from barnabas.broker.parts.feature import Host, Plugin


def build(host: Host) -> Plugin:
    config = host.context.config
    assert config.barnabas_audit_log is not None
    host.pipeline.audit = host.context.audit = AuditLog(
        config.barnabas_audit_log,
        disk=host.platform.disk,
        clock=host.context.clock,
        on_thread=host.on_thread,
        spawn=host.spawn,
        file_bytes_max=config.barnabas_audit_log_max_bytes,
    )
    return Plugin()
