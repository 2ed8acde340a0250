"""The views of `/inside`, enabled by `barnabas.inside.enable`."""

from barnabas.broker.features.inside.routes import InsideRoutes
from barnabas.broker.parts.feature import Host, Plugin


def build(host: Host) -> Plugin:
    host.metrics_server.views = InsideRoutes(
        host.context,
        host.session,
        host.server,
        host.pipeline,
        disk=host.platform.disk,
        timers=host.timers,
        on_thread=host.on_thread,
    ).views
    return Plugin()
