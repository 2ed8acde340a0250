"""All APIs that this broker serves, collected from the families."""

from collections.abc import Iterable

from barnabas.base.ids import BrokerId
from barnabas.broker.api.api_versions import ApiVersionsApi
from barnabas.broker.server.handler import ApiHandler, handlers_of
from barnabas.broker.zookeeper_client.features import ClusterFeatures
from barnabas.wire.versions import VersionRange, advertise


def build(
    families: Iterable[object], features: ClusterFeatures, *, cluster_id: str, broker_id: BrokerId
) -> dict[int, ApiHandler]:
    """Return the handlers by API key, with ApiVersions, which lists all of them."""
    handlers: dict[int, ApiHandler] = {}

    def advertised() -> dict[int, VersionRange]:
        return advertise(handlers)

    versions = ApiVersionsApi(advertised, features, cluster_id=cluster_id, broker_id=broker_id)
    for family in (*families, versions):
        for handler in handlers_of(family):
            if handler.api_key in handlers:
                raise ValueError(f"two handlers for {handler.name}")
            handlers[handler.api_key] = handler
    return handlers
