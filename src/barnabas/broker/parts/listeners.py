"""Builds a listener with its configured security, and opens connections between brokers that use it."""

import logging

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.listeners import Listener
from barnabas.base.errors import ConfigError
from barnabas.broker.api.sasl import SaslApi, SaslGate
from barnabas.broker.security.sasl_mechanisms import SaslParts, mechanisms_of
from barnabas.broker.security.tls import certificate_principals, listener_context, setting_text
from barnabas.broker.server.listener import Endpoint
from barnabas.broker.server.settings import control_listener_name
from barnabas.broker.zookeeper_client.znodes import Endpoint as BrokerEndpoint
from barnabas.client.connection import Connection, authenticate, open_connection
from barnabas.client.errors import ConnectionLost
from barnabas.client.security import ClientSecurity
from barnabas.wire.auth.machine import SaslSession
from barnabas.wire.auth.registry import login_settings

log = logging.getLogger(__name__)

#: Client settings for the connections between brokers.
_LINK_SETTINGS = (
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.key.password",
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.certificates",
    "ssl.protocol",
    "ssl.enabled.protocols",
    "ssl.cipher.suites",
    "ssl.endpoint.identification.algorithm",
)
#: How long a broker waits for each answer while it authenticates to another.
_AUTHENTICATION_TIMEOUT_MS = 10_000


def secured(config: BrokerConfig, listener: Listener, api: SaslApi, parts: SaslParts) -> Endpoint:
    """Return the listener's endpoint. :raises ConfigError: for settings that cannot work."""
    protocol = listener.security_protocol
    tls = listener_context(config, listener) if protocol.uses_tls else None
    if not protocol.uses_sasl:
        principal_of = certificate_principals(config, listener) if protocol.uses_tls else None
        return Endpoint(name=listener.name, host=listener.host, port=listener.port, tls=tls, principal_of=principal_of)
    mechanisms = mechanisms_of(config, listener, parts)
    frame_bytes_max = config.sasl_server_max_receive_size
    return Endpoint(
        name=listener.name,
        host=listener.host,
        port=listener.port,
        tls=tls,
        gate=lambda: SaslGate(SaslSession(mechanisms), api, frame_bytes_max=frame_bytes_max),
    )


class InterBrokerSecurity:
    """Opens connections to other brokers with the security of their listener. Owner: the event loop."""

    def __init__(self, config: BrokerConfig) -> None:
        """:raises ConfigError: for settings that cannot work."""
        self._securities = _link_securities(config)
        self._setup_timeout_ms = config.socket_connection_setup_timeout_ms
        self._setup_timeout_max_ms = config.socket_connection_setup_timeout_max_ms
        #: Failed attempts to connect since the last success, by host and port.
        self._failures: dict[tuple[str, int], int] = {}

    def reload(self, config: BrokerConfig) -> None:
        """Use the present settings and certificate files for new connections."""
        try:
            self._securities = _link_securities(config)
        except ConfigError as error:
            log.error("[broker connections] keeping the previous certificate, correct the ssl settings: %s", error)

    async def open(self, endpoint: BrokerEndpoint, client_id: str) -> Connection:
        security = self._securities.get(endpoint.listener)

        async def prove(connection: Connection) -> None:
            if security is not None:
                await authenticate(connection, security, timeout_ms=_AUTHENTICATION_TIMEOUT_MS)

        address = (endpoint.host, endpoint.port)
        try:
            connection = await open_connection(
                *address,
                client_id=client_id,
                ssl_context=None if security is None else security.tls,
                authenticate=prove,
                connect_timeout_ms=self._connect_timeout_ms(self._failures.get(address, 0)),
                max_in_flight=64,
            )
        except ConnectionLost:
            self._failures[address] = self._failures.get(address, 0) + 1
            raise
        self._failures.pop(address, None)
        return connection

    def _connect_timeout_ms(self, failures: int) -> int:
        """Return the timeout, doubled with each failure (KIP-601). The shift is bounded: its result could be huge."""
        return max(self._setup_timeout_ms, min(self._setup_timeout_ms << min(failures, 30), self._setup_timeout_max_ms))


def _link_securities(config: BrokerConfig) -> dict[str, ClientSecurity]:
    """Return the security by listener, for the listeners between brokers. A plain-text listener has no entry."""
    listeners = (config.inter_broker_listener_name, control_listener_name(config))
    found = {listener: _link_security(config, listener) for listener in listeners}
    return {listener: security for listener, security in found.items() if security is not None}


def _link_security(config: BrokerConfig, listener: str) -> ClientSecurity | None:
    protocol = config.listener_security_protocol_map[listener]
    if not protocol.uses_tls and not protocol.uses_sasl:
        return None
    mechanism = config.sasl_mechanism_inter_broker_protocol
    settings = {name: setting_text(config, listener, name) for name in _LINK_SETTINGS}
    settings["sasl.mechanism"] = mechanism
    settings |= {name: setting_text(config, listener, name, mechanism) for name in login_settings()}
    return ClientSecurity.of(protocol.name, {name: text for name, text in settings.items() if text is not None})
