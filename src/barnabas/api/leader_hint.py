"""KIP-951: with "not the leader" comes who leads now, and where, so that the client need not ask for metadata first."""

from typing import NamedTuple

from barnabas.coordination.metadata_cache import BrokerImage
from barnabas.coordination.znodes import Endpoint
from barnabas.core.errors import ErrorCode
from barnabas.core.ids import BrokerId, TopicPartition
from barnabas.server.call import Call
from barnabas.server.context import BrokerContext

#: Errors that mean "ask another broker".
MOVED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


class LeaderHint(NamedTuple):
    leader_id: int
    leader_epoch: int
    #: None where the leader is not alive, or not on the client's listener.
    broker: BrokerImage | None
    endpoint: Endpoint | None


def leader_hint(context: BrokerContext, call: Call, tp: TopicPartition) -> LeaderHint | None:
    known = context.metadata.partition(tp)
    if known is None:
        return None
    leader = BrokerId(known.leader)
    endpoint = context.metadata.endpoint(leader, call.channel.listener_name)
    broker = context.metadata.brokers.get(leader) if endpoint is not None else None
    return LeaderHint(known.leader, known.leader_epoch, broker, endpoint)
