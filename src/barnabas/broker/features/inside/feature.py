"""The views of `/inside`, enabled by `barnabas.inside.enable`."""

from barnabas.broker.parts.feature import Feature, Host, Plugin


def build(host: Host) -> Plugin:
    from barnabas.broker.features.inside.routes import InsideRoutes

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


FEATURE = Feature(lambda config: config.barnabas_inside_enable, build)
