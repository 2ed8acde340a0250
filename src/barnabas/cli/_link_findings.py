"""Turn the observations of a source into findings: data that a link carries over, data that it cannot, and advice. No I/O."""

from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

from barnabas.base.config.broker import BrokerConfig
from barnabas.base.config.catalog import TOPIC_SETTINGS
from barnabas.base.config.topic import validate_topic_config
from barnabas.base.errors import BarnabasError
from barnabas.base.words import AclOperation, PatternType
from barnabas.cli._link_source import Source, SourceTopic, Target
from barnabas.cli._words import size_text
from barnabas.client.exchange import BrokerVersions
from barnabas.client.image import NO_TOPIC_ID
from barnabas.services.doctor.finding import Finding, Severity, count, some
from barnabas.wire.versions import api_named

#: The first Fetch version with today's record batches (0.11).
_FETCH_OF_BATCHES: Final = 4
#: The first Metadata version with topic ids (2.8).
_METADATA_WITH_IDS: Final = 10
_MAGIC_OF_BATCHES: Final = 2
_TIERED: Final = "remote.storage.enable"
SHARE, STREAMS, CONSUMER = "Share", "Streams", "Consumer"


class Row(NamedTuple):
    """One kind of data at the source, and whether a link carries it over."""

    what: str
    found: str
    carries: str


# -- what there is ------------------------------------------------------------------------------------------------------


def kind_of(source: Source) -> str:
    versions = source.versions
    if source.cluster_id.startswith("redpanda."):
        return "Redpanda"
    if level := versions.finalized_features.get("metadata.version"):
        return f"Kafka in KRaft mode (metadata.version {level[1]})"
    if api_named("LeaderAndIsr").key in versions.apis:
        return "Kafka with ZooKeeper, or barnabas"
    return "a cluster that speaks Kafka's protocol"


def rows(source: Source) -> list[Row]:
    topics = source.topics.values()
    partitions = sum(topic.partitions for topic in topics)
    settings = [name for topic in topics for name in topic.settings or ()]
    known = [name for name in settings if name in source.topic_configs]
    by_type = {kind: len(_groups(source, kind)) for kind in (SHARE, STREAMS)}
    offsets = None if source.groups is None else len(source.groups) - sum(by_type.values())
    entries = None if source.acls is None else sum(map(len, source.acls.values()))
    found = [
        Row("topics", f"{len(topics)} with {count(partitions, 'partition')}", "yes: partitions, offsets, batches"),
        Row("topic settings", str(len(settings)), f"{len(known)} of {len(settings)}"),
        Row("groups' offsets", _number(offsets), "yes, with --groups"),
        Row("ACLs", _number(entries), "yes, with --acls"),
    ]
    found += [Row(f"{kind.lower()} groups", str(number), "no") for kind, number in by_type.items() if number]
    others = (
        ("quotas", source.quotas),
        ("SCRAM users", None if source.scram_users is None else len(source.scram_users)),
        ("delegation tokens", source.tokens),
        ("client metrics", None if source.client_metrics is None else len(source.client_metrics)),
        ("settings of groups", None if source.group_settings is None else len(source.group_settings)),
    )
    return found + [Row(what, _number(number), "no") for what, number in others if number]


def _number(number: int | None) -> str:
    return "not known" if number is None else str(number)


def _groups(source: Source, kind: str) -> list[str]:
    return [group.group_id for group in source.groups or () if group.type == kind]


# -- what is wrong ------------------------------------------------------------------------------------------------------


def _protocol(source: Source) -> Iterable[Finding]:
    for broker_id, versions in source.brokers.items():
        if _newest(versions, "Fetch") < _FETCH_OF_BATCHES:
            yield Finding(
                Severity.ERROR, "too-old", f"broker {broker_id}",
                "does not serve Fetch with today's record batches", "upgrade the source to Kafka 0.11 or newer",
            )  # fmt: skip
    if api_named("OffsetForLeaderEpoch").key not in source.versions.apis:
        yield Finding(
            Severity.WARNING, "no-leader-epochs", "source", "does not serve OffsetForLeaderEpoch",
            "do not allow unclean elections at the source",
            means="records that the source loses in an unclean election would stay in the mirror",
        )  # fmt: skip
    without = [name for name, topic in source.topics.items() if topic.info.topic_id == NO_TOPIC_ID]
    if without and _newest(source.versions, "Metadata") < _METADATA_WITH_IDS:
        yield Finding(
            Severity.WARNING, "no-topic-ids", "source", "its topics have no ids",
            "do not delete a topic at the source and create it again while the link runs",
            means="a topic that is created again under its old name looks like the old one",
        )  # fmt: skip


def _newest(versions: BrokerVersions, api: str) -> int:
    served = versions.apis.get(api_named(api).key)
    return -1 if served is None else served.max_version


def _topics(source: Source) -> Iterable[Finding]:
    if not source.topics:
        yield Finding(
            Severity.ERROR, "no-topics", "source", "no topic matches, or the given user may see none",
            "compare --topics with barnabas topics --list; give the user DESCRIBE on the topics",
        )  # fmt: skip
    for name, topic in source.topics.items():
        yield from _topic(f"topic {name}", topic)
        yield from _topic_settings(f"topic {name}", topic.settings or {}, source.topic_configs)


def _topic(subject: str, topic: SourceTopic) -> Iterable[Finding]:
    leaderless = [each.index for each in topic.info.partitions if each.leader < 0]
    if leaderless:
        yield Finding(
            Severity.ERROR, "no-leader", subject, f"no leader for partitions {some(leaderless)}",
            "start the source's brokers that have them",
        )  # fmt: skip
    lacking = _lacking(topic)
    if lacking:
        yield Finding(
            Severity.ERROR if AclOperation.READ in lacking else Severity.WARNING, "missing-right", subject,
            f"the given user lacks {', '.join(right.name for right in lacking)}",
            "allow it at the source: kafka-acls --add --allow-principal User:… --operation …",
            means="" if AclOperation.READ in lacking else "the topic comes over with the settings of a new topic",
        )  # fmt: skip
    elif topic.unreadable:
        tiered = (topic.settings or {}).get(_TIERED) == "true"
        yield Finding(
            Severity.ERROR, "unreadable-history" if tiered else "unreadable", subject,
            f"its first records cannot be read: {topic.unreadable}",
            "link it with --from latest, or mend the source's remote storage" if tiered else "mend this at the source",
        )  # fmt: skip
    if 0 <= topic.magic < _MAGIC_OF_BATCHES:
        yield Finding(
            Severity.ERROR, "old-format", subject, f"has messages in the format of before 0.11 (magic {topic.magic})",
            "copy the topic at the source into a new one, or link it with --from latest",
        )  # fmt: skip
    if topic.remote:
        yield Finding(
            Severity.WARNING, "tiered", subject,
            f"{count(topic.remote, 'partition')} begin in remote storage, whose size is not in the estimate",
            "make room for all of it, or link with --from a later time",
            means="the link reads it through the source's brokers, and the mirror keeps all of it on its disks",
        )  # fmt: skip


def _lacking(topic: SourceTopic) -> list[AclOperation]:
    if topic.operations is None:
        return []
    needed = (AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
    return [right for right in needed if right not in topic.operations]


def _topic_settings(subject: str, settings: dict[str, str], carried: Collection[str]) -> Iterable[Finding]:
    unknown = [name for name in settings if name not in TOPIC_SETTINGS]
    if unknown:
        yield Finding(
            Severity.WARNING, "unknown-setting", subject, f"has settings that barnabas does not: {some(unknown)}",
            "check that no client needs them; the mirror does not have them",
        )  # fmt: skip
    uncarried = [name for name in settings if name in TOPIC_SETTINGS and name not in carried]
    idle = [name for name in uncarried if TOPIC_SETTINGS[name].no_effect]
    if idle and any(settings[name] != "false" for name in idle):
        yield Finding(
            Severity.NOTE, "setting-without-effect", subject, f"settings have no effect here: {some(idle)}",
            f"nothing: {TOPIC_SETTINGS[idle[0]].no_effect}",
        )  # fmt: skip
    if behind := [name for name in uncarried if name not in idle]:
        yield Finding(
            Severity.NOTE, "setting-left-behind", subject, f"a link leaves these settings behind: {some(behind)}",
            "set them on the mirror, or name them in link.topic.configs",
        )  # fmt: skip
    try:
        known = {name: value for name, value in settings.items() if name in carried}
        validate_topic_config(BrokerConfig.parse({"zookeeper.connect": "any"}), known)
    except BarnabasError as refused:
        yield Finding(
            Severity.ERROR, "refused-setting", subject, f"barnabas refuses its settings: {refused}",
            "change them at the source, or leave them out of link.topic.configs",
        )  # fmt: skip


def _groups_and_state(source: Source) -> Iterable[Finding]:
    if shares := _groups(source, SHARE):
        yield Finding(
            Severity.WARNING, "share-groups", "groups", f"share groups keep state that no link can read: {some(shares)}",
            "let them read everything before the move, or start them again with share.auto.offset.reset",
            means="records that were acknowledged may come again, or be skipped",
        )  # fmt: skip
    if streams := _groups(source, STREAMS):
        yield Finding(
            Severity.WARNING, "streams-groups", "groups", f"use the streams protocol (KIP-1071): {some(streams)}",
            "set group.protocol=classic in these applications, once they are stopped for the move",
            means="a link does not copy their offsets; their internal topics carry over if --topics matches them",
        )  # fmt: skip
    if modern := _groups(source, CONSUMER):
        yield Finding(
            Severity.NOTE, "consumer-groups", "groups", f"use the protocol of KIP-848: {some(modern)}",
            "nothing: their offsets carry over, and barnabas serves that protocol",
        )  # fmt: skip
    active = [group.group_id for group in source.groups or () if group.state not in ("", "Empty", "Dead")]
    if active:
        yield Finding(
            Severity.NOTE, "active-groups", "groups", f"{count(len(active), 'group')} with members: {some(active)}",
            "move them one by one: stop it there, wait until its offsets are here, start it here",
        )  # fmt: skip
    if source.open_transactions:
        ids = source.open_transactions
        yield Finding(
            Severity.NOTE, "open-transactions", "source", f"{count(len(ids), 'open transaction')}: {some(ids)}",
            "stop these producers before the promotion",
            means="a promotion aborts what is open then; transactional ids start again with initTransactions",
        )  # fmt: skip


def _security(source: Source) -> Iterable[Finding]:
    if source.acls:
        prefixed = [p.name or "" for p in source.acls if p.pattern_type is PatternType.PREFIXED]
        number = sum(map(len, source.acls.values()))
        by_prefix = f", {len(prefixed)} resources by prefix: {some(prefixed)}" if prefixed else ""
        yield Finding(
            Severity.NOTE, "acls", "ACLs", f"{number} entries{by_prefix}",
            "create the link with --acls, and give barnabas the same principals",
        )  # fmt: skip
    if source.scram_users:
        yield Finding(
            Severity.WARNING, "scram-users", "SCRAM", f"passwords cannot be read: {some(source.scram_users)}",
            "create the users here: barnabas configs --alter --entity-type users --entity-name NAME --add-config …",
            means="these users cannot log in here until then",
        )  # fmt: skip
    if source.tokens:
        yield Finding(
            Severity.WARNING, "delegation-tokens", "tokens", count(source.tokens, "delegation token"),
            "create new ones here: barnabas delegation-tokens --create",
            means="clients that log in with a token of the source cannot do so here",
        )  # fmt: skip
    if source.quotas:
        yield Finding(
            Severity.WARNING, "quotas", "quotas", f"{count(source.quotas, 'quota')} of users, clients or addresses",
            "set them here: barnabas configs --alter --entity-type users|clients|ips …",
            means="clients are not held to them here until then",
        )  # fmt: skip
    if source.client_metrics:
        yield Finding(
            Severity.NOTE, "client-metrics", "client metrics", f"subscriptions: {some(source.client_metrics)}",
            "create them here: barnabas client-metrics --alter --name NAME …",
        )  # fmt: skip
    if source.group_settings:
        yield Finding(
            Severity.WARNING, "group-settings", "groups", f"settings of their own: {some(source.group_settings)}",
            "set them here: barnabas configs --alter --entity-type groups --entity-name GROUP …",
        )  # fmt: skip


def _not_seen(source: Source) -> Iterable[Finding]:
    rights = source.cluster_operations
    if rights is not None and AclOperation.DESCRIBE not in rights:
        yield Finding(
            Severity.WARNING, "missing-right", "cluster", "the given user lacks DESCRIBE on the cluster",
            "allow it at the source: kafka-acls --add --cluster --allow-principal User:… --operation Describe",
            means="ACLs cannot carry over, and groups only where the user may describe each",
        )  # fmt: skip
    for what, why in source.unread.items():
        yield Finding(
            Severity.NOTE, "not-answered", what, f"the source does not say: {why}",
            "look there by other means, or with a user that may see it",
        )  # fmt: skip


_ABOUT_SOURCE: Final[tuple[Callable[[Source], Iterable[Finding]], ...]] = (
    _protocol,
    _topics,
    _groups_and_state,
    _security,
    _not_seen,
)


# -- the cluster that it would come to ----------------------------------------------------------------------------------


def _about_target(source: Source, target: Target) -> Iterable[Finding]:
    if source.cluster_id and source.cluster_id == target.cluster_id:
        yield Finding(
            Severity.ERROR, "same-cluster", "target", "source and target are one cluster", "name two different ones"
        )
    lacking = [
        broker for broker, versions in target.brokers.items() if api_named("CreateLink").key not in versions.apis
    ]
    if lacking:
        yield Finding(
            Severity.ERROR, "no-links", "target", f"brokers {some(lacking)} cannot run a link",
            "upgrade them; a link needs brokers of barnabas that have it, and no broker of Apache Kafka beside them",
        )  # fmt: skip
    here = [name for name in source.topics if name in target.topics]
    if here:
        yield Finding(
            Severity.ERROR, "topic-exists", "target", f"has topics of these names: {some(here)}",
            "delete them here, or leave them out with --topics",
        )  # fmt: skip
    brokers = len(target.brokers)
    wide = [
        name
        for name, topic in source.topics.items()
        if max((len(each.replicas) for each in topic.info.partitions), default=0) > brokers
    ]
    if wide:
        yield Finding(
            Severity.WARNING, "fewer-replicas", "target",
            f"has {count(brokers, 'broker')}, fewer than there are replicas of {some(wide)}",
            "add brokers, or accept fewer replicas",
        )  # fmt: skip
    both = sorted({group.group_id for group in source.groups or ()} & set(target.active_groups))
    if both:
        yield Finding(
            Severity.WARNING, "group-active-here", "target", f"groups have members here already: {some(both)}",
            "stop them, or leave them out with --groups",
            means="the link never writes offsets of a group that is active here",
        )  # fmt: skip
    yield from _room(source, target)


def _room(source: Source, target: Target) -> Iterable[Finding]:
    known = [size for size in target.usable_bytes.values() if size is not None]
    if source.size_bytes is None or len(known) < len(target.usable_bytes):
        return
    replicas = max((len(p.replicas) for t in source.topics.values() for p in t.info.partitions), default=1)
    needed = source.size_bytes * min(replicas, len(target.brokers))
    if needed > sum(known):
        yield Finding(
            Severity.ERROR, "no-room", "target",
            f"{size_text(needed)} are needed for all replicas, {size_text(sum(known))} are free", "make room, or link less",
        )  # fmt: skip


def judge(source: Source, target: Target | None) -> list[Finding]:
    found = [finding for check in _ABOUT_SOURCE for finding in check(source)]
    return found + (list(_about_target(source, target)) if target is not None else [])
