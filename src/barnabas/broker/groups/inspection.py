"""DescribeGroups, ListGroups, DeleteGroups: administration of groups. Pure."""

from collections.abc import Mapping
from typing import Final

from barnabas.base.errors import ErrorCode, Refused
from barnabas.broker.groups.classic_group import DEAD, STABLE, ClassicGroup
from barnabas.broker.groups.group import Group
from barnabas.broker.groups.offsets import Offsets, removed_in_batches
from barnabas.broker.runtime.machine import KeyValue, Result
from barnabas.wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsResponse
from barnabas.wire.messages.describe_groups import DescribedGroup
from barnabas.wire.messages.list_groups import ListedGroup, ListGroupsRequest

#: From this version of DescribeGroups on, a group that does not exist is an error (KIP-1043).
GROUP_ID_NOT_FOUND_FROM: Final = 6


def describe_classic(groups: Mapping[str, Group], group_id: str, *, api_version: int) -> DescribedGroup:
    group = groups.get(group_id)
    if not isinstance(group, ClassicGroup):
        described = DescribedGroup(group_id=group_id, group_state=DEAD.value)
        if api_version >= GROUP_ID_NOT_FOUND_FROM:
            described.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            described.error_message = (
                f"Group {group_id} not found." if group is None else f"Group {group_id} is not a classic group."
            )
        return described
    protocol = group.protocol if group.state is STABLE else None
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state_name(),
        protocol_type=group.protocol_type or "",
        protocol_data=protocol or "",
        members=[member.describe(protocol) for member in group.members.values()],
    )


def list_groups(groups: Mapping[str, Group], request: ListGroupsRequest) -> list[ListedGroup]:
    states = {each.strip().lower() for each in request.states_filter}
    types = {each.strip().lower() for each in request.types_filter}
    return [
        ListedGroup(
            group_id=group.group_id,
            protocol_type=(group.protocol_type or "") if isinstance(group, ClassicGroup) else group.type.value,
            group_state=group.state_name(),
            group_type=group.type.value,
        )
        for group in groups.values()
        if (not states or group.state_name().lower() in states) and (not types or group.type.value in types)
    ]


def delete_groups(groups: Mapping[str, Group], offsets: Offsets, group_ids: list[str]) -> Result[DeleteGroupsResponse]:
    response = DeleteGroupsResponse()
    tombstones: list[KeyValue] = []
    for group_id in dict.fromkeys(group_ids):
        result = DeletableGroupResult(group_id=group_id)
        response.results.append(result)
        group = groups.get(group_id)
        if group is None:
            result.error_code, result.error_message = ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found."
            continue
        try:
            group.check_delete()
        except Refused as refusal:
            result.error_code, result.error_message = refusal.code, refusal.message
            continue
        tombstones += offsets.delete_all(group_id)
        tombstones += group.tombstones()
    return removed_in_batches(tombstones, response)
