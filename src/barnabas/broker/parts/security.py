"""Builds the security of a broker: secured listeners, the credentials that they check, and connections to brokers.

Owner: the event loop.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from barnabas.base.clock import Clock
from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.dynamic import DynamicConfig
from barnabas.base.config.listeners import Listener
from barnabas.base.metrics.registry import Registry
from barnabas.broker.api.acls import AclApi
from barnabas.broker.api.delegation_tokens import TokensApi
from barnabas.broker.api.sasl import SaslApi
from barnabas.broker.parts.listeners import InterBrokerSecurity, secured
from barnabas.broker.runtime.tasks import Spawn
from barnabas.broker.security.acl import AclAuthorizer
from barnabas.broker.security.acl_store import AclStore
from barnabas.broker.security.credentials import ScramCredentials
from barnabas.broker.security.dynamic_secrets import DynamicSecrets
from barnabas.broker.security.sasl_mechanisms import SaslParts
from barnabas.broker.security.setup import make_authorizer, make_tokens
from barnabas.broker.security.tls import Certificates
from barnabas.broker.security.token_store import TokenStore
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.server.listener import Endpoint, SocketServer
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from barnabas.client.key_sets import KeySets, KeySetSource


class SecurityParts:
    def __init__(
        self,
        dynamic: DynamicConfig,
        clock: Clock,
        *,
        now_s: Callable[[], float],
        spawn: Spawn,
    ) -> None:
        """:raises ConfigError: for settings that cannot work."""
        config = dynamic.broker
        self._dynamic = dynamic
        self._clock = clock
        self._now_s = now_s
        self._spawn = spawn
        self._sasl = SaslApi(clock, failure_delay_ms=config.connection_failed_authentication_delay_ms)
        self._parts = SaslParts(
            scram=ScramCredentials(), tokens=make_tokens(config), key_sets=KeySets(now_s), now_ms=clock.now_ms
        )
        #: Key sets that a task keeps up to date.
        self._loading: set[KeySetSource] = set()
        self._inter_broker = InterBrokerSecurity(config)
        self.authorizer = make_authorizer(config)
        self.acl_store: AclStore | None = None
        self._token_store: TokenStore | None = None
        self._certificates: Certificates | None = None
        #: Passwords among the broker's dynamic settings.
        self.secrets = DynamicSecrets(config)

    def endpoint(self, config: BrokerConfig, listener: Listener) -> Endpoint:
        """Return a listener with its configured security. :raises ConfigError: for settings that cannot work."""
        endpoint = secured(config, listener, self._sasl, self._parts)
        for source in self._parts.key_sets:
            if source not in self._loading:
                self._loading.add(source)
                self._spawn(source.run(), "oauth key set")
        return endpoint

    def check_endpoint(self, config: BrokerConfig, listener: Listener) -> None:
        """Check the settings of a listener. :raises ConfigError: if `endpoint` would."""
        secured(config, listener, self._sasl, replace(self._parts, key_sets=KeySets(self._now_s)))

    def watch_certificates(self, server: SocketServer, registry: Registry) -> None:
        self._certificates = certificates = Certificates(self._dynamic.broker, on_change=server.replace_tls)
        registry.table(
            "barnabas_listener_certificate_ends_seconds",
            "When the certificate that a listener serves ends, in seconds since 1970.",
            lambda: (({"listener": name}, ends_s) for name, ends_s in certificates.ends()),
        )
        self._dynamic.add_check(self._certificates.check)

    async def start(self, session: ZooKeeperSession) -> None:
        """Read ACLs and delegation tokens from ZooKeeper, if this broker uses them."""
        if isinstance(self.authorizer, AclAuthorizer):
            self.acl_store = AclStore(session, self.authorizer, self._clock)
            await session.outlive(self.acl_store.start)
            self._spawn(self.acl_store.run(), "acl changes")
        if self._parts.tokens.is_enabled:
            self._token_store = TokenStore(session, self._parts.tokens, self._clock)
            await session.outlive(self._token_store.start)
            self._spawn(self._token_store.run(), "delegation token changes")

    def serve(self, is_controller: Callable[[], bool]) -> None:
        if self._token_store is not None:
            interval_ms = self._dynamic.broker.delegation_token_expiry_check_interval_ms
            self._spawn(self._token_store.remove_expired(interval_ms, is_controller), "expired tokens")

    def families(self, context: BrokerContext) -> list[object]:
        return [
            AclApi(context, self.acl_store),
            self._sasl,
            TokensApi(context, self._parts.tokens, self._token_store),
        ]

    @property
    def inter_broker(self) -> InterBrokerSecurity:
        return self._inter_broker

    def user_changed(self, user: str, settings: Mapping[str, str]) -> None:
        self._parts.scram.user_changed(user, settings)

    def broker_changed(self) -> None:
        """Read certificates again: this broker's dynamic settings were written. They may be unchanged: to write them is also
        how an operator reports a changed certificate file."""
        if self._certificates is not None:
            self._certificates.reload(self._dynamic.broker)
        self._inter_broker.reload(self._dynamic.broker)
