"""Changes of groups: resets of offsets with a preview, and deletions."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.words import EARLIEST, LATEST
from barnabas.client.admin import groups as admin
from barnabas.client.admin.groups import CommittedOffset
from barnabas.client.errors import check
from barnabas.services.console.errors import Refusal, bad_request, not_found
from barnabas.services.console.offsets import list_offsets
from barnabas.services.console.web import NUMBER, TEXT, Call, Endpoint, whole


async def preview_reset(call: Call) -> dict[str, Any]:
    """Return what a reset would do, by partition, without changing anything."""
    cluster, group = call.cluster, call.path["group"]
    described = await admin.describe_group(cluster.client, group)
    committed = {each: found.offset for each, found in (await admin.committed_offsets(cluster.client, group)).items()}
    partitions = await _reset_partitions(call, committed)
    starts = {e: o for e, (o, _) in (await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST))).items()}
    ends = {e: o for e, (o, _) in (await list_offsets(cluster, dict.fromkeys(partitions, LATEST))).items()}
    missing = [each for each in partitions if each not in starts or each not in ends]
    if missing:
        raise Refusal(502, ErrorCode.LEADER_NOT_AVAILABLE.name, f"{missing[0]} has no leader that answers")
    wanted = await _reset_targets(call, partitions, committed, starts, ends)
    rows = [
        {
            "topic": each.topic,
            "partition": each.partition,
            "committed": committed.get(each),
            "offset": wanted[each],
            "change": wanted[each] - committed[each] if each in committed else None,
            "start": starts[each],
            "end": ends[each],
        }
        for each in partitions
    ]
    return {
        "group": group,
        "state": described.state,
        "isActive": described.state not in ("Empty", "Dead"),
        "lagBefore": sum(max(ends[each] - committed[each], 0) for each in partitions if each in committed),
        "lagAfter": sum(ends[each] - wanted[each] for each in partitions),
        "offsets": rows,
    }


async def _reset_partitions(call: Call, committed: Mapping[TopicPartition, int]) -> list[TopicPartition]:
    topic = call.text("topic")
    if not topic:
        if not committed:
            raise bad_request("the group has committed nothing yet: name a topic")
        return sorted(committed)
    info = await call.cluster.topic(topic)
    partitions = [TopicPartition(topic, each.index) for each in info.partitions]
    if call.text("partitions"):
        indexes = {whole(part, "partitions") for part in call.text("partitions").split(",")}
        partitions = [each for each in partitions if each.partition in indexes]
        if len(partitions) != len(indexes):
            raise bad_request(f"{topic} has {len(info.partitions)} partitions")
    return partitions


async def _reset_targets(
    call: Call,
    partitions: Sequence[TopicPartition],
    committed: Mapping[TopicPartition, int],
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    to = call.choice("to", ("earliest", "latest", "offset", "time", "shift"))
    if to == "earliest":
        return dict(starts)
    if to == "latest":
        return dict(ends)
    if to == "time":
        found = await list_offsets(call.cluster, dict.fromkeys(partitions, call.number("value", 0)))
        wanted = {each: found[each][0] if each in found and found[each][0] >= 0 else ends[each] for each in partitions}
    elif to == "offset":
        wanted = dict.fromkeys(partitions, call.number("value", 0))
    else:
        shift = call.number("value", 0, low=-(2**62))
        if without := [each for each in partitions if each not in committed]:
            raise bad_request(f"{without[0]} cannot be shifted: the group has committed nothing there")
        wanted = {each: committed[each] + shift for each in partitions}
    return {each: min(max(offset, starts[each]), ends[each]) for each, offset in wanted.items()}


async def reset(call: Call) -> dict[str, Any]:
    """Reset to exactly these offsets, as a preview shows them."""
    cluster, group = call.cluster, call.path["group"]
    offsets: dict[TopicPartition, CommittedOffset] = {}
    for each in call.given("offsets", list):
        if not isinstance(each, dict) or not isinstance(each.get("topic"), str):
            raise bad_request("offsets is a list of objects with topic, partition and offset")
        where = TopicPartition(each["topic"], whole(each.get("partition"), "partition"))
        offsets[where] = CommittedOffset(whole(each.get("offset"), "offset"))
    if not offsets:
        raise bad_request("there are no offsets to reset to")
    described = await admin.describe_group(cluster.client, group)
    if described.state not in ("Empty", "Dead"):
        raise Refusal(
            409,
            ErrorCode.NON_EMPTY_GROUP.name,
            f"{group} is {described.state}: offsets can only be reset while the group has no members; stop its consumers first",
        )
    await cluster.client.topics({each.topic for each in offsets})
    for where, code in (await admin.commit_offsets(cluster.client, group, offsets)).items():
        check(code, f"commit of {where}")
    cluster.forget()
    return {"reset": len(offsets)}


async def delete_group(call: Call) -> dict[str, Any]:
    group = call.path["group"]
    check(await admin.delete_group(call.cluster.client, group), f"group {group}")
    call.cluster.forget()
    return {"deleted": group}


async def delete_offsets(call: Call) -> dict[str, Any]:
    """Delete the committed offsets of one topic."""
    group, topic = call.path["group"], call.path["topic"]
    committed = await admin.committed_offsets(call.cluster.client, group)
    partitions = [each for each in committed if each.topic == topic]
    if not partitions:
        raise not_found(f"{group} has committed nothing of {topic}")
    code, outcomes = await admin.delete_offsets(call.cluster.client, group, partitions)
    check(code, f"group {group}")
    for where, outcome in outcomes.items():
        check(outcome, str(where))
    call.cluster.forget()
    return {"deleted": len(partitions)}


_RESET: Final = {"to": {"enum": ["earliest", "latest", "offset", "time", "shift"]}, "value": NUMBER}
ENDPOINTS = [
    Endpoint(
        method="GET",
        path="/groups/{group}/reset",
        handler=preview_reset,
        summary="Preview a reset, without changing anything.",
        query={**_RESET, "topic": TEXT, "partitions": TEXT},
    ),
    Endpoint(
        method="POST",
        path="/groups/{group}/reset",
        handler=reset,
        summary="Reset the offsets of a group without members to those given.",
        body={"type": "object", "properties": {"offsets": {"type": "array", "items": {"type": "object"}}}},
    ),
    Endpoint(method="DELETE", path="/groups/{group}", handler=delete_group, summary="Delete a group without members."),
    Endpoint(
        method="DELETE",
        path="/groups/{group}/topics/{topic}",
        handler=delete_offsets,
        summary="Delete a group's committed offsets of a topic.",
    ),
]
