"""The parts of a broker that a handler may use, and the check whether a caller is authorized.

Built once by `barnabas.broker.compose`. Handlers only translate between the protocol and these parts.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from barnabas.base.clock import Clock
from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.dynamic import DynamicConfig
from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import BrokerEpoch, BrokerId
from barnabas.base.metrics.registry import Registry
from barnabas.base.words import SHARE_VERSION, STREAMS_VERSION, AclOperation, AclResourceType
from barnabas.broker.replication.fetch_session_cache import FetchSessionCache
from barnabas.broker.replication.log_dir_moves import LogDirMoves
from barnabas.broker.replication.manager import ReplicaManager
from barnabas.broker.replication.throttle import ReplicationThrottle
from barnabas.broker.security.authorizer import CLUSTER_NAME, SUPPORTED_OPERATIONS, AllowEverything, Authorizer
from barnabas.broker.security.quotas import ClientQuotas, MutationQuota, Quota
from barnabas.broker.server.call import Audit, Call
from barnabas.broker.storage.manager import LogManager
from barnabas.broker.zookeeper_client.metadata_cache import MetadataCache

if TYPE_CHECKING:
    from barnabas.broker.controller.driver import Controller
    from barnabas.broker.groups.coordinator import GroupCoordinator
    from barnabas.broker.transactions.coordinator import TransactionCoordinator


@dataclass(slots=True, kw_only=True)
class BrokerContext:
    """Owner: the event loop."""

    broker_id: BrokerId
    cluster_id: str
    dynamic: DynamicConfig
    clock: Clock
    registry: Registry
    metadata: MetadataCache
    logs: LogManager
    replicas: ReplicaManager
    fetch_sessions: FetchSessionCache
    moves: LogDirMoves
    controller: "Controller"
    #: Returns the registration's czxid, which changes when the broker registers again.
    broker_epoch: Callable[[], BrokerEpoch]
    #: Creates topics that a client asked for, with the broker's defaults; returns errors by name.
    auto_create: Callable[[list[str]], Awaitable[dict[str, ErrorCode]]]
    authorizer: Authorizer = field(default_factory=AllowEverything)
    quotas: ClientQuotas = field(default_factory=lambda: ClientQuotas(windows=11, window_ms=1_000))
    #: Limits what this broker, as leader, sends to replicas that are being moved.
    leader_throttle: ReplicationThrottle | None = None
    #: Returns the link that mirrors a topic into this cluster; None: the topic is not a mirror.
    link_of: Callable[[str], str | None] = field(default=lambda topic: None)
    #: Returns whether share groups (KIP-932) are on: every live broker has them. It changes when brokers come or go.
    share_groups_on: Callable[[], bool] = field(default=lambda: False)
    #: Returns whether streams groups (KIP-1071) are on, in the same way.
    streams_groups_on: Callable[[], bool] = field(default=lambda: False)
    #: Records denied requests; None: there is no audit log.
    audit: Audit | None = None
    #: Set by the composition root once the coordinators exist.
    groups: "GroupCoordinator" = field(init=False)
    transactions: "TransactionCoordinator" = field(init=False)

    @property
    def config(self) -> BrokerConfig:
        """The current settings; a dynamic change replaces the whole snapshot."""
        return self.dynamic.broker

    def allows(self, call: Call, operation: AclOperation, resource: AclResourceType, name: str) -> bool:
        """Whether the caller is authorized. A refusal goes to the audit log."""
        channel = call.channel
        if self.authorizer.allows(channel.principal, channel.peer_host, operation, resource, name):
            return True
        if self.audit is not None:
            self.audit.denied(call, operation, resource, name)
        return False

    def allows_topic(self, call: Call, operation: AclOperation, topic: str) -> bool:
        return self.allows(call, operation, AclResourceType.TOPIC, topic)

    def shows(self, call: Call, operation: AclOperation, resource: AclResourceType, name: str) -> bool:
        """Like `allows`, for resources that the client did not name, or if another right is enough: a refusal is not
        audited."""
        channel = call.channel
        return self.authorizer.allows(channel.principal, channel.peer_host, operation, resource, name)

    def require_share_groups(self) -> None:
        if not self.share_groups_on():
            raise Refused(ErrorCode.UNSUPPORTED_VERSION, f"Share groups are off: not every broker has {SHARE_VERSION}.")

    def require_streams_groups(self) -> None:
        if not self.streams_groups_on():
            raise Refused(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Streams groups are off: not every broker has {STREAMS_VERSION}, or a setting forbids them.",
            )

    def require_cluster(self, call: Call, operation: AclOperation) -> None:
        if not self.allows(call, operation, AclResourceType.CLUSTER, CLUSTER_NAME):
            raise Refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")

    def now_monotonic_ms(self) -> int:
        return int(self.clock.monotonic_s() * 1000)

    def throttle(self, call: Call, quota: Quota, size_bytes: int) -> None:
        """Count bytes for the client that sent the call. If the client is over its quota, it has to wait after the answer."""
        throttle_ms = self.quotas.record(
            quota, call.channel.principal.name, call.client_id or "", size_bytes, now_ms=self.now_monotonic_ms()
        )
        call.throttle_ms = max(call.throttle_ms, throttle_ms)

    def mutation_quota(self, call: Call, *, strict: bool) -> MutationQuota:
        """Return the quota for what the caller creates and deletes (KIP-599)."""
        return self.quotas.mutations(
            call.channel.principal.name, call.client_id or "", strict=strict, now_ms=self.now_monotonic_ms
        )

    def authorized_operations(self, call: Call, resource: AclResourceType, name: str) -> int:
        """Return the bit field of the operations that the client is authorized for."""
        bits = 0
        for operation in SUPPORTED_OPERATIONS[resource]:
            if self.shows(call, operation, resource, name):
                bits |= 1 << operation
        return bits
