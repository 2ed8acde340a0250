"""Describes groups for ShareGroupDescribe and StreamsGroupDescribe: each group has an error of its own."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol, TypeVar

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.words import AclOperation, AclResourceType
from barnabas.broker.server.call import Call
from barnabas.broker.server.context import BrokerContext


class _Described(Protocol):
    group_id: str
    error_code: int
    authorized_operations: int


G = TypeVar("G", bound=_Described)


class _Request(Protocol):
    group_ids: list[str]
    include_authorized_operations: bool


async def describe_groups(
    context: BrokerContext,
    call: Call,
    request: _Request,
    *,
    describe: Callable[[str], Awaitable[G]],
    topics_of: Callable[[G], Iterable[str]],
    refused: Callable[..., G],
    hidden_topics: str,
) -> list[G]:
    """`refused` makes the description of a group that has an error; `hidden_topics` is the message for a group with topics that
    the sender may not see."""

    async def described(group_id: str) -> G:
        if not context.allows(call, AclOperation.DESCRIBE, AclResourceType.GROUP, group_id):
            return refused(group_id=group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if not group_id:
            return refused(group_id=group_id, error_code=ErrorCode.INVALID_GROUP_ID)
        try:
            group = await describe(group_id)
        except Refused as refusal:
            return refused(group_id=group_id, error_code=refusal.code)
        if not all(context.allows_topic(call, AclOperation.DESCRIBE, topic) for topic in topics_of(group)):
            return refused(
                group_id=group_id, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, error_message=hidden_topics
            )
        return group

    groups = [await described(group_id) for group_id in dict.fromkeys(request.group_ids)]
    if request.include_authorized_operations:
        for group in groups:
            if not group.error_code:
                group.authorized_operations = context.authorized_operations(call, AclResourceType.GROUP, group.group_id)
    return groups
