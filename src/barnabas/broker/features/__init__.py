"""The optional parts of a broker: each package here plugs in by `barnabas.broker.parts.feature`.

The core imports no feature, and a feature imports no other. A broker without one of them is a broker without its line.
"""

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from barnabas.base.config.broker import BrokerConfig
    from barnabas.broker.parts.feature import Host, Plugin

#: When a broker has each feature, in the order in which they are built, started and stopped. Others are not imported.
FEATURES: Mapping[str, "Callable[[BrokerConfig], bool]"] = {
    "audit": lambda config: config.barnabas_audit_log is not None,
    "tracing": lambda config: config.barnabas_otel_endpoint is not None,
    "schema_checks": lambda config: True,
    "link": lambda config: True,
    "tiered": lambda config: config.remote_log_storage_system_enable,
    "client_metrics": lambda config: True,
    "neighbours": lambda config: True,
    "inside": lambda config: config.barnabas_inside_enable,
}


def wanted(config: "BrokerConfig") -> "Iterator[Callable[[Host], Plugin]]":
    """Yield what builds each feature that these settings ask for."""
    for name, is_wanted in FEATURES.items():
        if is_wanted(config):
            yield import_module(f"{__name__}.{name}.feature").build
