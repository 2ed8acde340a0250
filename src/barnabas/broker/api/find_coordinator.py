"""FindCoordinator, v0 to v6: for groups, transactions, and (v6, for brokers) share partitions; batched from v4 on (KIP-699).

The coordinator is the leader of the key's partition of an internal topic. A missing topic is created; unlike Kafka, the answer
waits a little for its leaders, so that the first client need not try again.
"""

from collections.abc import Mapping
from enum import IntEnum

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import BrokerId, TopicPartition
from barnabas.base.words import AclOperation, AclResourceType
from barnabas.broker.server.call import Call
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.server.handler import HandlerResult, serves
from barnabas.broker.share_coordinator.coordinator import is_coordinator_key
from barnabas.broker.zookeeper_client.internal_topic import InternalTopic
from barnabas.broker.zookeeper_client.metadata_waits import wait_until_shown
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

CREATION_WAIT_S = 2.0
#: From this version on, a request contains several keys.
BATCHED_FROM = 4
#: From this version on, a request may ask for share coordinators.
SHARE_FROM = 6


class KeyType(IntEnum):
    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


_DESCRIBED = {
    KeyType.GROUP: (AclResourceType.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED),
    KeyType.TRANSACTION: (AclResourceType.TRANSACTIONAL_ID, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
}


def refuse(request: FindCoordinatorRequest, code: ErrorCode, message: str | None) -> ApiMessage:
    return FindCoordinatorResponse(
        error_code=code,
        error_message=message,
        node_id=-1,
        host="",
        port=-1,
        coordinators=[_nowhere(key, code, message) for key in request.coordinator_keys],
    )


class FindCoordinatorApi:
    def __init__(self, context: BrokerContext, topics: Mapping[KeyType, InternalTopic]) -> None:
        self._context = context
        self._topics = topics

    @serves("FindCoordinator", refuse)
    def handle(self, call: Call, request: FindCoordinatorRequest) -> HandlerResult:
        try:
            internal = self._topics[KeyType(request.key_type)]
        except (KeyError, ValueError):
            raise Refused(ErrorCode.INVALID_REQUEST, f"there is no coordinator of type {request.key_type}") from None
        if request.key_type == KeyType.SHARE:
            if call.api_version < SHARE_FROM:
                raise Refused(ErrorCode.INVALID_REQUEST, f"share coordinators need version {SHARE_FROM}")
            self._context.require_cluster(call, AclOperation.CLUSTER_ACTION)
        if not internal.partitions or self._context.metadata.topic(internal.name) is None:
            return self._create_then_answer(call, request, internal)
        return self._answer(call, request, internal)

    async def _create_then_answer(
        self, call: Call, request: FindCoordinatorRequest, internal: InternalTopic
    ) -> ApiMessage:
        keys = _keys(call, request)
        metadata = self._context.metadata

        def has_leader(key: str) -> bool:
            # The partition of a key is known only once the topic and its number of partitions are.
            place = internal.place_of(key)
            return place is not None and metadata.has_all_leaders(internal.name, [place])

        is_allowed = any(self._is_allowed(call, request, key) is ErrorCode.NONE for key in keys)
        if is_allowed and await internal.ensure():
            # If a leader comes later, the client gets COORDINATOR_NOT_AVAILABLE, and tries again.
            await wait_until_shown(metadata, keys, has_leader, timeout_s=CREATION_WAIT_S)
        return self._answer(call, request, internal)

    def _is_allowed(self, call: Call, request: FindCoordinatorRequest, key: str) -> ErrorCode:
        key_type = KeyType(request.key_type)
        if key_type is KeyType.SHARE:
            return ErrorCode.NONE if is_coordinator_key(key) else ErrorCode.INVALID_REQUEST
        resource, error = _DESCRIBED[key_type]
        return ErrorCode.NONE if self._context.allows(call, AclOperation.DESCRIBE, resource, key) else error

    def _answer(self, call: Call, request: FindCoordinatorRequest, internal: InternalTopic) -> FindCoordinatorResponse:
        found = [self._find(call, request, internal, key) for key in _keys(call, request)]
        if call.api_version >= BATCHED_FROM:
            return FindCoordinatorResponse(coordinators=found)
        [one] = found
        return FindCoordinatorResponse(
            error_code=one.error_code,
            error_message=one.error_message or ErrorCode.NONE.name,  # as in Kafka before v4; kafkajs checks it
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )

    def _find(self, call: Call, request: FindCoordinatorRequest, internal: InternalTopic, key: str) -> Coordinator:
        error = self._is_allowed(call, request, key)
        if error is not ErrorCode.NONE:
            return _nowhere(key, error)
        metadata = self._context.metadata
        place = internal.place_of(key)
        state = None if place is None else metadata.partition(TopicPartition(internal.name, place))
        endpoint = None if state is None else metadata.endpoint(BrokerId(state.leader), call.channel.listener_name)
        if state is None or endpoint is None:
            return _nowhere(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return Coordinator(key=key, node_id=state.leader, host=endpoint.host, port=endpoint.port)


def _keys(call: Call, request: FindCoordinatorRequest) -> list[str]:
    return request.coordinator_keys if call.api_version >= BATCHED_FROM else [request.key]


def _nowhere(key: str, code: ErrorCode, message: str | None = None) -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=message or code.name)
