"""A member of a classic group, with the data from its JoinGroup.

Pure; owner: its group.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from barnabas.base.errors import BrokenInvariant, Malformed
from barnabas.broker.runtime.machine import Ticket
from barnabas.wire import codec
from barnabas.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from barnabas.wire.messages.describe_groups import DescribedGroupMember
from barnabas.wire.messages.join_group import JoinGroupRequestProtocol

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
NO_MEMBER_ID: Final = ""


class Protocol(NamedTuple):
    """An assignor that the member supports, and the member's metadata for it."""

    name: str
    metadata: bytes


@dataclass(slots=True, kw_only=True, eq=False)
class ClassicMember:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    #: In order of preference. After a fail-over only the chosen protocol is known.
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    #: Set while a JoinGroup of the member waits for the others.
    join_ticket: Ticket | None = None
    #: Set while a SyncGroup of the member waits for the leader's SyncGroup.
    sync_ticket: Ticket | None = None
    #: The member has not been in a generation yet. Its JoinGroup expires, in case the client has gone.
    is_new: bool = False

    def names(self) -> list[str]:
        return [each.name for each in self.protocols]

    def metadata(self, protocol: str) -> bytes:
        for each in self.protocols:
            if each.name == protocol:
                return each.metadata
        raise BrokenInvariant(f"member {self.member_id} does not support protocol {protocol}")

    def vote(self, candidates: frozenset[str]) -> str:
        for each in self.protocols:
            if each.name in candidates:
                return each.name
        raise BrokenInvariant(f"member {self.member_id} supports none of {sorted(candidates)}")

    def satisfies_heartbeat(self) -> bool:
        """A member that waits for a response cannot send a heartbeat on that connection."""
        return not self.is_new and (self.join_ticket is not None or self.sync_ticket is not None)

    def describe(self, protocol: str | None) -> DescribedGroupMember:
        return DescribedGroupMember(
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            member_metadata=self.metadata(protocol) if protocol is not None else b"",
            member_assignment=self.assignment,
        )


def protocols_of(requested: Iterable[JoinGroupRequestProtocol]) -> tuple[Protocol, ...]:
    """Return each protocol once: of equal names the first entry counts."""
    unique: dict[str, Protocol] = {}
    for each in requested:
        unique.setdefault(each.name, Protocol(each.name, bytes(each.metadata)))
    return tuple(unique.values())


def subscription_prefix(metadata: bytes) -> ConsumerProtocolSubscription:
    """Decode a subscription as version 0, which is a prefix of every later version."""
    if len(metadata) < 2:
        raise Malformed("a subscription has no version")
    return codec.decode(ConsumerProtocolSubscription, metadata, 0, 2, allow_trailing=True)
