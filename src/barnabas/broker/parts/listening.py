"""Keeps a broker's listeners as the setting `listeners` says: in the file, and in dynamic settings while the broker runs.

Owner: the event loop. The broker binds the ports of its file before it uses ZooKeeper. The dynamic settings come later, and
this part then moves the listeners, just as after a later change of the settings.
"""

import logging
from collections.abc import Mapping

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.catalog import CLUSTER_LISTENER_NAMES, listener_base_name
from barnabas.base.config.dynamic import DynamicConfig
from barnabas.base.config.listeners import Listener
from barnabas.base.errors import ConfigError
from barnabas.broker.parts.security import SecurityParts
from barnabas.broker.server.listener import SocketServer

log = logging.getLogger(__name__)

#: Prefixes of the settings that define a listener.
_PREFIXES = ("listener", "ssl.", "sasl.", "connections.max.reauth.ms")


class ListeningParts:
    def __init__(self, dynamic: DynamicConfig, server: SocketServer, security: SecurityParts) -> None:
        """:raises ConfigError: for a listener that cannot work, or whose port is taken."""
        self._server = server
        self._security = security
        #: The port of each listener. It differs from the setting's port if that is 0.
        self.ports: dict[str, int] = {}
        self._bound: dict[str, Listener] = {}
        self._current = dynamic.broker
        #: Whether clients use the listeners: from then on, a change that fails leaves the others as they are.
        self.is_serving = False
        for listener in self._current.listeners:
            self._listen(self._current, listener)
        dynamic.subscribe(self._settings_changed)

    def _listen(self, config: BrokerConfig, listener: Listener) -> None:
        endpoint = self._security.endpoint(config, listener)
        listen = self._server.move if listener.name in self._bound else self._server.bind
        self.ports[listener.name] = listen(endpoint)
        self._bound[listener.name] = listener

    def check(self, config: BrokerConfig) -> None:
        """Check that a broker with these settings can listen, now and after its next start.

        :raises ConfigError: if not.
        """
        if _settings_of_listeners(config) == _settings_of_listeners(self._current):
            return
        own = {*self.ports.values()}
        for listener in config.listeners:
            self._security.check_endpoint(config, listener)
            if listener != self._bound.get(listener.name) and listener.port not in own:
                self._server.check_free(listener.name, listener.host, listener.port)

    def _settings_changed(self, before: BrokerConfig, after: BrokerConfig) -> None:
        if _settings_of_listeners(after) == _settings_of_listeners(self._current):
            return
        self._current = after
        wanted = {listener.name for listener in after.listeners}
        for name in [name for name in self._bound if name not in wanted]:
            self._server.unbind(name)
            del self._bound[name], self.ports[name]
            log.info("[listener %s] closed", name)
        for listener in after.listeners:
            if listener != self._bound.get(listener.name):
                self._move(after, listener)
            elif not self.is_serving:
                self._secure_again(after, listener)

    def _move(self, config: BrokerConfig, listener: Listener) -> None:
        try:
            self._listen(config, listener)
        except ConfigError as error:
            if self.is_serving:
                log.error(
                    "[listener %s] could not be changed and stays as it was, correct the setting: %s",
                    listener.name,
                    error,
                )
                return
            raise ConfigError(
                f"{error}. The dynamic settings of this broker in ZooKeeper ask for this listener: free the port, or delete "
                "the setting `listeners` with `barnabas configs --zookeeper`"
            ) from error
        log.info("[listener %s] listening at %s (port %d)", listener.name, listener, self.ports[listener.name])

    def _secure_again(self, config: BrokerConfig, listener: Listener) -> None:
        """Apply dynamic settings that come while the broker starts. A listener that already serves keeps its security, as in
        Kafka; only its certificates change."""
        try:
            self._server.replace(self._security.endpoint(config, listener))
        except ConfigError as error:
            log.error(
                "[listener %s] keeps the security settings of the file, correct the dynamic ones: %s",
                listener.name,
                error,
            )


def _settings_of_listeners(config: BrokerConfig) -> Mapping[str, str]:
    return {
        name: raw
        for name, raw in config.originals.items()
        if name.startswith(_PREFIXES) and listener_base_name(name) not in CLUSTER_LISTENER_NAMES
    }
