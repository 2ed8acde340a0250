"""Optional parts of a broker: each package here plugs in through `barnabas.broker.parts.feature`.

The core imports no feature, and features do not import each other. Removing a line of `NAMES` removes the feature.
"""

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from barnabas.base.config.broker import BrokerConfig
    from barnabas.broker.parts.feature import Feature

#: In the order of building, starting and stopping.
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
