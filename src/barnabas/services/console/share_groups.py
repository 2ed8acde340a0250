"""Share groups (KIP-932) in the console: members, start offsets, and the lag that their coordinators compute.

A share group has no committed offsets: its share coordinators have a start offset for each partition, and know how many records
after it are done. Several members read the same partition.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from barnabas.base.ids import TopicPartition
from barnabas.client.admin import share_groups as admin
from barnabas.client.admin.share_groups import ShareOffset
from barnabas.client.errors import ClientError
from barnabas.services.console.cluster import ConsoleCluster
from barnabas.services.console.errors import not_found
from barnabas.services.console.lag import Listed

#: Maximum age of the offsets in a list and on a group's page.
_LIST_AGE_S: Final = 2.0
_AGE_S: Final = 0.9
_GROUPS_A_REQUEST: Final = 50

Offsets = dict[str, dict[TopicPartition, ShareOffset]]


def known_lag(offsets: dict[TopicPartition, ShareOffset]) -> int:
    """Return the lag of all partitions that have one."""
    return sum(each.lag for each in offsets.values() if each.lag > 0)


async def offsets_in_sight(cluster: ConsoleCluster, window: Sequence[Listed]) -> Offsets:
    """Return the offsets of the share groups among the rows of a list. Groups whose coordinator fails are left out."""
    wanted = [group for group in window if group.type == admin.SHARE]
    if not wanted:
        return {}

    async def ask() -> Offsets:
        by_broker: dict[int, list[str]] = {}
        for group in wanted:
            by_broker.setdefault(group.coordinator, []).append(group.group)
        answers = await cluster.client.io.together(
            [
                admin.share_offsets_of_many(cluster.client, broker, some[at : at + _GROUPS_A_REQUEST])
                for broker, some in by_broker.items()
                for at in range(0, len(some), _GROUPS_A_REQUEST)
            ]
        )
        return {
            group: found for answer in answers if not isinstance(answer, ClientError) for group, found in answer.items()
        }

    key = ("share offsets", tuple(group.group for group in wanted))
    return await cluster.kept(key, _LIST_AGE_S, ask, paced_s=30.0)


async def share_group_detail(cluster: ConsoleCluster, group: str) -> dict[str, Any]:
    """Describe one share group, in the shape of every group's page."""
    described, offsets = await asyncio.gather(
        cluster.kept(
            ("share group", group), _AGE_S, lambda: admin.describe_share_group(cluster.client, group), paced_s=3.0
        ),
        cluster.kept(("share offsets", group), _AGE_S, lambda: admin.share_offsets(cluster.client, group), paced_s=3.0),
    )
    if described.missing:
        raise not_found(f"there is no group {group}")
    readers: dict[TopicPartition, list[str]] = {}
    for member in described.members:
        for each in member.assignment:
            readers.setdefault(each, []).append(member.client_id)
    partitions = sorted({*offsets, *readers})
    ends = await cluster.offsets.ends(partitions, _AGE_S)
    return {
        "group": group,
        "state": described.state,
        "type": admin.SHARE,
        "protocol": "share",
        "assignor": described.assignor,
        "coordinator": described.coordinator_id,
        "lag": known_lag(offsets),
        "lagLeavesOut": sum(each.lag < 0 for each in offsets.values()),
        "consumed": None,
        "produced": None,
        "members": [
            {
                "id": member.member_id,
                "instance": None,
                "client": member.client_id,
                "host": member.host.removeprefix("/"),
                "partitions": [{"topic": each.topic, "partition": each.partition} for each in member.assignment],
            }
            for member in described.members
        ],
        "partitions": [
            {
                "topic": each.topic,
                "partition": each.partition,
                "committed": _shown(offsets.get(each), "start"),
                "start": None,
                "end": ends.get(each),
                "stableEnd": None,
                "lag": _shown(offsets.get(each), "lag"),
                "produced": cluster.offsets.growth.rate(each),
                "consumed": None,
                "client": _readers(readers.get(each, [])),
                "member": None,
            }
            for each in partitions
        ],
        "causes": [],
        "history": {"at": [], "lag": []},
    }


def _shown(offset: ShareOffset | None, name: str) -> int | None:
    """Return a number; None where the group has not begun, or the number is not known."""
    value = -1 if offset is None else int(getattr(offset, name))
    return value if value >= 0 else None


def _readers(clients: Sequence[str]) -> str | None:
    if not clients:
        return None
    return clients[0] if len(clients) == 1 else f"{len(clients)} members"
