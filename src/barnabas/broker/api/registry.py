"""All APIs that this broker serves, gathered from the families."""

from collections.abc import Iterable

from barnabas.broker.api import api_versions
from barnabas.broker.server.pipeline import ApiHandler
from barnabas.broker.zookeeper_client.features import ClusterFeatures
from barnabas.wire.versions import VersionRange, advertise


def build(families: Iterable[list[ApiHandler]], features: ClusterFeatures) -> dict[int, ApiHandler]:
    """Handlers by API key, and ApiVersions, which lists all of them."""
    handlers: dict[int, ApiHandler] = {}

    def advertised() -> dict[int, VersionRange]:
        return advertise(handlers)

    for family in (*families, api_versions.handlers(advertised, features)):
        for handler in family:
            if handler.api_key in handlers:
                raise ValueError(f"two handlers for {handler.name}")
            handlers[handler.api_key] = handler
    return handlers
