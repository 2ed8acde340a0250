"""The brokers that are recorded: the same requests, other settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tests.authorization.probes import PROBES, Probe
from tests.authorization.table import BROKER_CONFIG


@dataclass(frozen=True)
class World:
    config: Mapping[str, str]
    probes: tuple[Probe, ...] = PROBES
    #: Whether the tables of single entries are recorded too, or only the mixed ones.
    with_singles: bool = True


#: One probe for each type of resource, and one for the permission on any topic.
_SOME: Final = frozenset(
    {
        "Produce v11",
        "Metadata of all topics",
        "Metadata by name",
        "Heartbeat v4",
        "InitProducerId with an id",
        "InitProducerId without",
        "DescribeAcls v3",
        "DeleteRecords v2",
        "DescribeConfigs of a topic",
        "AlterConfigs of a topic",
    }
)

WORLDS: Final = {
    "closed": World(BROKER_CONFIG),
    "open without entries": World(
        BROKER_CONFIG | {"allow.everyone.if.no.acl.found": "true"},
        tuple(probe for probe in PROBES if probe.name in _SOME),
        with_singles=False,
    ),
}
