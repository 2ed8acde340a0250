"""All APIs that this broker serves, collected from the families."""

from collections.abc import Iterable

from barnabas.broker.api.api_versions import ApiVersionsApi
from barnabas.broker.server.handler import ApiHandler, handlers_of
from barnabas.broker.zookeeper_client.features import ClusterFeatures
from barnabas.wire.versions import VersionRange, advertise


def build(families: Iterable[object], features: ClusterFeatures) -> dict[int, ApiHandler]:
    """Return the handlers by API key, with ApiVersions, which lists all of them."""
    handlers: dict[int, ApiHandler] = {}

    def advertised() -> dict[int, VersionRange]:
        return advertise(handlers)

    for family in (*families, ApiVersionsApi(advertised, features)):
        for handler in handlers_of(family):
            if handler.api_key in handlers:
                raise ValueError(f"two handlers for {handler.name}")
            handlers[handler.api_key] = handler
    return handlers
