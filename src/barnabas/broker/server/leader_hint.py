"""KIP-951: a "not the leader" error names the present leader and its address, so that the client need not fetch metadata."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import BrokerId, TopicPartition
from barnabas.broker.server.call import Call
from barnabas.broker.server.context import BrokerContext

#: Errors that mean that the client must send the request to another broker.
MOVED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


class _Node(Protocol):
    node_id: int


N = TypeVar("N", bound=_Node)


class Leader(NamedTuple):
    leader_id: int
    leader_epoch: int


def tell_leader(
    context: BrokerContext, call: Call, tp: TopicPartition, nodes: list[N], make_node: Callable[..., N]
) -> Leader | None:
    """Return the partition's leader, if known. Adds the leader's address to `nodes`, once for each broker."""
    known = context.metadata.partition(tp)
    if known is None:
        return None
    leader = Leader(known.leader, known.leader_epoch)
    endpoint = context.metadata.endpoint(BrokerId(known.leader), call.channel.listener_name)
    broker = context.metadata.brokers.get(BrokerId(known.leader))
    if endpoint is not None and broker is not None and all(node.node_id != leader.leader_id for node in nodes):
        nodes.append(make_node(node_id=leader.leader_id, host=endpoint.host, port=endpoint.port, rack=broker.rack))
    return leader
