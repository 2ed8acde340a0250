"""The steps of a restore: the difference between a backup and the cluster.

So an interrupted restore can continue, and a second one does nothing. What only the cluster has stays.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

from barnabas.base.ids import TopicPartition
from barnabas.cli.backup.document import Document, Entity, Topic
from barnabas.client.admin.acls import Ace, ResourcePattern
from barnabas.client.admin.groups import CommittedOffset

V = TypeVar("V")


class Target(Protocol):
    """A cluster that a backup is restored into."""

    async def set_broker(self, name: str, settings: Mapping[str, str]) -> None: ...
    async def set_quotas(self, entity: Entity, values: Mapping[str, float]) -> None: ...
    async def add_acls(self, pattern: ResourcePattern, aces: Iterable[Ace]) -> None: ...
    async def create_topic(self, topic: Topic) -> None: ...
    async def set_topic(self, name: str, settings: Mapping[str, str]) -> None: ...


class Root(Protocol):
    """Writes that need access to the znodes. With it, topics also keep their ids."""

    async def set_cluster_id(self, cluster_id: str) -> None: ...
    async def set_producer_ids(self, first: int) -> None: ...
    async def set_scram(self, user: str, verifiers: Mapping[str, str]) -> None: ...


@dataclass(frozen=True, slots=True)
class Step:
    text: str
    carry_out: Callable[[], Awaitable[None]]


#: Commits a group's offsets, always through brokers.
Commit = Callable[[str, Mapping[TopicPartition, CommittedOffset]], Awaitable[None]]


@dataclass(slots=True)
class Plan:
    steps: list[Step] = field(default_factory=list)
    #: Problems that prevent the restore. While there are any, nothing is done.
    conflicts: list[str] = field(default_factory=list)
    #: Differences that stay.
    notes: list[str] = field(default_factory=list)


def make(
    wanted: Document, present: Document, to: Target, root: Root | None, *, brokers: frozenset[int], spread: bool
) -> Plan:
    """Plan the steps. `brokers`: the live brokers; empty before the first one starts."""
    plan = Plan()
    if root is not None:
        _of_root(plan, wanted, present, root)
    elif wanted.scram:
        number = sum(map(len, wanted.scram.values()))
        plan.notes.append(f"{number} SCRAM verifiers of {len(wanted.scram)} users are left out: they need --zookeeper")
    _settings(plan, wanted, present, to)
    for topic in wanted.topics.values():
        existing = present.topics.get(topic.name)
        if existing is not None:
            _existing(plan, topic, existing, to, keeps_ids=root is not None)
            continue
        missing = {broker for each in topic.partitions for broker in each.replicas} - brokers
        if brokers and missing and not spread:
            names = ", ".join(map(str, sorted(missing)))
            plan.conflicts.append(
                f"topic {topic.name} has replicas on brokers that are not here: {names}; see --spread"
            )
        more = f", {len(topic.settings)} settings" if topic.settings else ""
        plan.steps.append(
            Step(f"topic {topic.name}: {len(topic.partitions)} partitions{more}", partial(to.create_topic, topic))
        )
    return plan


def _of_root(plan: Plan, wanted: Document, present: Document, to: Root) -> None:
    if wanted.cluster_id and present.cluster_id is None:
        plan.steps.append(Step(f"cluster id {wanted.cluster_id}", partial(to.set_cluster_id, wanted.cluster_id)))
    elif wanted.cluster_id != present.cluster_id:
        plan.notes.append(f"the cluster keeps its id {present.cluster_id}; the backup's is {wanted.cluster_id}")
    if wanted.producer_id_next is not None and present.producer_id_next is None:
        first = wanted.producer_id_next
        plan.steps.append(Step(f"producer ids from above {first}", partial(to.set_producer_ids, first)))

    for user, verifiers in wanted.scram.items():
        if new := _news(verifiers, present.scram.get(user, {})):
            plan.steps.append(Step(f"user {user}: {', '.join(sorted(new))}", partial(to.set_scram, user, new)))


def _settings(plan: Plan, wanted: Document, present: Document, to: Target) -> None:
    for name, settings in wanted.brokers.items():
        if new := _news(settings, present.brokers.get(name, {})):
            owner = f"broker {name}" if name.isdecimal() else "all brokers"
            plan.steps.append(Step(f"settings of {owner}: {', '.join(sorted(new))}", partial(to.set_broker, name, new)))
    for entity, values in wanted.quotas.items():
        if limits := _news(values, present.quotas.get(entity, {})):
            owner = " ".join(f"{kind} {name or '<default>'}" for kind, name in entity)
            plan.steps.append(
                Step(f"quotas of {owner}: {', '.join(sorted(limits))}", partial(to.set_quotas, entity, limits))
            )
    for pattern, aces in wanted.acls.items():
        if added := aces - present.acls.get(pattern, frozenset()):
            what = f"{pattern.resource_type.name} {pattern.pattern_type.name} {pattern.name}"
            plan.steps.append(Step(f"ACLs of {what}: {len(added)}", partial(to.add_acls, pattern, added)))


def _existing(plan: Plan, topic: Topic, there: Topic, to: Target, *, keeps_ids: bool) -> None:
    differs = ""
    if len(there.partitions) != len(topic.partitions):
        differs = f"has {len(there.partitions)} partitions, in the backup {len(topic.partitions)}"
    elif keeps_ids and topic.id is not None and there.id is not None and topic.id != there.id:
        differs = "exists with another id: it is another topic of the same name"
    if differs:
        # Brokers create these topics when they are first needed.
        is_internal = topic.name.startswith("__")
        (plan.notes if is_internal else plan.conflicts).append(f"topic {topic.name} {differs}")
        return
    if new := _news(topic.settings, there.settings):
        plan.steps.append(
            Step(f"settings of topic {topic.name}: {', '.join(sorted(new))}", partial(to.set_topic, topic.name, new))
        )


def add_offsets(plan: Plan, wanted: Document, present: Document, commit: Commit) -> None:
    for group, offsets in wanted.groups.items():
        held = present.groups.get(group, {})
        new = {where: each for where, each in offsets.items() if not _same(held.get(where), each)}
        if new:
            plan.steps.append(Step(f"group {group}: offsets of {len(new)} partitions", partial(commit, group, new)))


def _same(held: CommittedOffset | None, wanted: CommittedOffset) -> bool:
    """Compare without leader epochs, because these are not restored."""
    return held is not None and (held.offset, held.metadata) == (wanted.offset, wanted.metadata)


def _news(wanted: Mapping[str, V], present: Mapping[str, V]) -> dict[str, V]:
    return {name: value for name, value in wanted.items() if present.get(name) != value}
