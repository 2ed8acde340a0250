"""Valid names of topics, and the names of the broker's own topics."""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from barnabas.base.errors import ErrorCode, Refused

GROUP_METADATA_TOPIC: Final = "__consumer_offsets"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
#: The state of share partitions (KIP-932).
SHARE_GROUP_STATE_TOPIC: Final = "__share_group_state"
#: Reports of Spark queries, for the console. An ordinary topic.
PIPELINES_TOPIC: Final = "__barnabas_pipelines"
#: Metadata of the segments in tiered storage.
REMOTE_LOG_METADATA_TOPIC: Final = "__remote_log_metadata"
#: The topics that are also kept as tables. An ordinary topic.
TABLES_TOPIC: Final = "__barnabas_tables"
#: KRaft's topic. Its log has another format, so no client can create a topic with this name.
CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
INTERNAL_TOPICS: Final = frozenset({GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_GROUP_STATE_TOPIC})
#: Topics whose number of partitions must not change, because it determines the partition of each key.
FIXED_TOPICS: Final = INTERNAL_TOPICS | {REMOTE_LOG_METADATA_TOPIC}

#: Leaves room for the partition number and the suffixes of a directory name.
NAME_LENGTH_MAX: Final = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def is_internal(topic: str) -> bool:
    return topic in INTERNAL_TOPICS


def check_topic_name(name: str) -> None:
    """:raises Refused: INVALID_TOPIC_EXCEPTION, if no topic can have this name."""
    if not name:
        wrong = "the empty string is not allowed"
    elif name in (".", ".."):
        wrong = f"'{name}' is not allowed"
    elif len(name) > NAME_LENGTH_MAX:
        wrong = f"the length of '{name}' is longer than the max allowed length {NAME_LENGTH_MAX}"
    elif not _LEGAL.fullmatch(name):
        wrong = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    else:
        return
    raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {wrong}")


class NewInternalTopic(NamedTuple):
    """The partitions, replicas and settings of an internal topic that is to be created."""

    partitions: int
    replication_factor: int
    settings: Mapping[str, str]
    #: Prefix of the broker settings that give these values.
    prefix: str
