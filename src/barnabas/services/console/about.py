"""Facts about the console itself that the page needs."""

from typing import Any

from barnabas import __version__
from barnabas.services.console.web import Call, Endpoint


async def about(call: Call) -> dict[str, Any]:
    settings = call.services.settings
    return {
        "version": __version__,
        "user": call.user.name,
        "readWrite": settings.read_write,
        "schemaRegistry": settings.schema_registry is not None,
        "bootstrap": ",".join(f"{host}:{port}" for host, port in settings.client.bootstrap),
    }


ENDPOINTS = [Endpoint(method="GET", path="/about", handler=about, summary="The console: version, user, permissions.")]
