"""All APIs that this broker serves, gathered from the families."""

from collections.abc import Iterable

from barnabas.api import api_versions
from barnabas.coordination.features import ClusterFeatures
from barnabas.protocol.versions import VersionRange, advertise
from barnabas.server.pipeline import ApiHandler


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
