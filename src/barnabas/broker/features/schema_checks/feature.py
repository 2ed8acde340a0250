"""Schema checks of a broker. They are part of every broker, because topics enable them."""

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.log_config import LogConfig
from barnabas.broker.features.schema_checks.checks import SchemaChecks
from barnabas.broker.parts.feature import Host, Plugin


class SchemaChecksPlugin(Plugin):
    def __init__(self, host: Host) -> None:
        context = host.context
        self.checks = SchemaChecks(lambda: context.config, context.clock, on_thread=host.on_thread, spawn=host.spawn)
        host.produce.checks = self.checks
        for topic in context.dynamic.topics:
            self.checks.topic_settings_changed(topic, context.dynamic.log_config(topic))

    def topic_settings_changed(self, topic: str, config: LogConfig) -> None:
        self.checks.topic_settings_changed(topic, config)

    def settings_changed(self, before: BrokerConfig, after: BrokerConfig) -> None:
        self.checks.settings_changed(before, after)


build = SchemaChecksPlugin
