"""A backup of metadata survives its JSON, and a restore is planned before anything is changed."""

import asyncio
from collections.abc import Iterable, Mapping

import pytest

from barnabas.base.errors import ConfigError
from barnabas.base.ids import TopicPartition
from barnabas.base.words import AclOperation, AclResourceType, PatternType, Permission
from barnabas.cli._command import UsageError
from barnabas.cli.backup import plan
from barnabas.cli.backup.document import VERSION, Document, Entity, Partition, Topic, entity, from_json, to_json
from barnabas.client.admin.acls import Ace, ResourcePattern
from barnabas.client.admin.groups import CommittedOffset
from barnabas.wire.auth.password_encoder import PasswordEncoder

PATTERN = ResourcePattern(AclResourceType.TOPIC, "orders", PatternType.LITERAL)
READ = Ace("User:alice", "*", AclOperation.READ, Permission.ALLOW)
WRITE = Ace("User:alice", "*", AclOperation.WRITE, Permission.ALLOW)


def document() -> Document:
    part = Partition((1, 2), (1,), 5)
    return Document(
        cluster_id="cluster",
        taken="2026-01-01T00:00:00+00:00",
        topics={"orders": Topic("orders", "AAAAAAAAAAAAAAAAAAAAAQ", (part, part), {"retention.ms": "1"})},
        brokers={"<default>": {"log.retention.ms": "2"}, "1": {"message.max.bytes": "3"}},
        quotas={entity({"user": "alice", "client-id": None}): {"producer_byte_rate": 4.0}},
        scram={"alice": {"SCRAM-SHA-256": "salt=…"}},
        acls={PATTERN: frozenset({READ, WRITE})},
        groups={"g": {TopicPartition("orders", 1): CommittedOffset(7, "note", 3)}},
        producer_id_next=2000,
        left_out=["something"],
    )


def test_document_survives_its_json() -> None:
    assert from_json(to_json(document()), what="f") == document()


def test_sealed_verifiers_need_the_same_secret() -> None:
    encoder = PasswordEncoder("right", cipher="AES/GCM/NoPadding", key_bits=256)
    sealed = to_json(document(), encoder.encode)
    assert "alice" not in sealed["scram"]
    assert from_json(sealed, what="f", unseal=encoder.decode) == document()
    with pytest.raises(UsageError, match="are encrypted; give --secret-file"):
        from_json(sealed, what="f")
    with pytest.raises(ConfigError):
        from_json(sealed, what="f", unseal=PasswordEncoder("wrong").decode)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "something"}, "is not a backup of metadata"),
        ({"version": VERSION + 1}, "use a newer one"),
        ({"version": "one"}, "is not a version"),
        ({"topics": [{"name": "x"}]}, "is damaged"),
        ({"acls": [{"resource_type": "MOON"}]}, "is damaged"),
    ],
)
def test_file_that_is_not_a_backup_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        from_json(to_json(document()) | change, what="f")


class RecordingTarget:
    """A target that records the requested operations."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    async def set_cluster_id(self, cluster_id: str) -> None:
        self.calls.append(("cluster id", cluster_id))

    async def set_producer_ids(self, first: int) -> None:
        self.calls.append(("producer ids", first))

    async def set_broker(self, name: str, settings: Mapping[str, str]) -> None:
        self.calls.append(("broker", name, dict(settings)))

    async def set_quotas(self, entity: Entity, values: Mapping[str, float]) -> None:
        self.calls.append(("quotas", entity, dict(values)))

    async def set_scram(self, user: str, verifiers: Mapping[str, str]) -> None:
        self.calls.append(("scram", user, dict(verifiers)))

    async def add_acls(self, pattern: ResourcePattern, aces: Iterable[Ace]) -> None:
        self.calls.append(("acls", pattern, sorted(aces)))

    async def create_topic(self, topic: Topic) -> None:
        self.calls.append(("create", topic.name))

    async def set_topic(self, name: str, settings: Mapping[str, str]) -> None:
        self.calls.append(("topic", name, dict(settings)))

    async def commit(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        self.calls.append(("commit", group, dict(offsets)))


def planned(
    present: Document, *, brokers: Iterable[int] = (), has_root: bool = True
) -> tuple[plan.Plan, RecordingTarget]:
    target = RecordingTarget()
    made = plan.make(
        document(), present, target, target if has_root else None, brokers=frozenset(brokers), spread=False
    )
    plan.add_offsets(made, document(), present, target.commit)
    return made, target


def carry_out(made: plan.Plan) -> None:
    async def all_steps() -> None:
        for step in made.steps:
            await step.carry_out()

    asyncio.run(all_steps())


def test_empty_cluster_gets_everything_and_topics_last() -> None:
    made, target = planned(Document())
    carry_out(made)
    kinds = [call[0] for call in target.calls]
    assert kinds == ["cluster id", "producer ids", "scram", "broker", "broker", "quotas", "acls", "create", "commit"]


def test_restored_cluster_gets_nothing() -> None:
    restored = document()
    restored.groups = {"g": {TopicPartition("orders", 1): CommittedOffset(7, "note")}}  # epochs are not restored
    assert planned(restored)[0] == plan.Plan()


def test_restore_writes_only_differences() -> None:
    present = document()
    present.topics["orders"] = Topic("orders", "AAAAAAAAAAAAAAAAAAAAAQ", document().topics["orders"].partitions, {})
    present.acls = {PATTERN: frozenset({READ})}
    made, target = planned(present)
    carry_out(made)
    assert target.calls == [("acls", PATTERN, [WRITE]), ("topic", "orders", {"retention.ms": "1"})]


def test_topic_of_another_id_or_size_is_a_conflict() -> None:
    part = Partition((1,), (1,), 0)
    other_id = Document(topics={"orders": Topic("orders", "AAAAAAAAAAAAAAAAAAAAAg", (part, part), {})})
    assert "another id" in planned(other_id)[0].conflicts[0]
    # Through brokers a topic cannot get the backup's id anyway.
    assert planned(other_id, has_root=False)[0].conflicts == []
    smaller = Document(topics={"orders": Topic("orders", None, (part,), {})})
    assert "has 1 partitions, in the backup 2" in planned(smaller)[0].conflicts[0]


def test_replicas_on_brokers_that_are_not_here_stand_in_the_way() -> None:
    assert planned(Document(), brokers=(1, 2))[0].conflicts == []
    assert "not here: 2" in planned(Document(), brokers=(1,))[0].conflicts[0]
    assert planned(Document(), brokers=())[0].conflicts == []  # before the first broker is started
