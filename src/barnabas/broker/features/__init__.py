"""What a broker can do without: each package here plugs in by `barnabas.broker.parts.feature`.

The core imports no feature, and a feature imports no other. A broker without one of them is a broker without its line.
"""

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from barnabas.base.config.broker import BrokerConfig
    from barnabas.broker.parts.feature import Feature

#: In the order in which they are built, started and stopped.
NAMES = (
    "audit",
    "tracing",
    "schema_checks",
    "link",
    "tiered",
    "inside",
)


def wanted(config: "BrokerConfig") -> "Iterator[Feature]":
    for name in NAMES:
        feature: Feature = import_module(f"{__name__}.{name}.feature").FEATURE
        if feature.is_wanted(config):
            yield feature
