"""Groups segments that become one, so that segments do not shrink with each cleaning. Pure; as Kafka's groupSegmentsBySize."""

from collections.abc import Sequence
from typing import NamedTuple

from barnabas.broker.storage.log_types import RELATIVE_OFFSET_MAX


class GroupMember(NamedTuple):
    """The data of a segment that grouping needs."""

    base_offset: int
    #: The base offset of the segment after it.
    end_offset: int
    size_bytes: int
    index_bytes: int
    time_index_bytes: int


def group_segments(
    members: Sequence[GroupMember], *, segment_bytes: int, segment_index_bytes: int
) -> list[list[GroupMember]]:
    """Group neighbours that fit into one segment: by the size of log and indexes, and by offsets relative to its base."""
    groups: list[list[GroupMember]] = []
    size = index = time_index = 0
    for member in members:
        if (
            groups
            and size + member.size_bytes <= segment_bytes
            and index + member.index_bytes <= segment_index_bytes
            and time_index + member.time_index_bytes <= segment_index_bytes
            # An empty segment fits anywhere: otherwise an empty file would remain for every 2^31 offsets.
            and (member.size_bytes == 0 or member.end_offset - 1 - groups[-1][0].base_offset <= RELATIVE_OFFSET_MAX)
        ):
            groups[-1].append(member)
            size += member.size_bytes
            index += member.index_bytes
            time_index += member.time_index_bytes
        else:
            groups.append([member])
            size, index, time_index = member.size_bytes, member.index_bytes, member.time_index_bytes
    return groups
