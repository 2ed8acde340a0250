"""Resolves the subscriptions of a consumer group's members, by name and by regular expression, to existing topics. Pure.

Regular expressions are RE2's: their cost is linear, so that no member can keep the coordinator busy. They match whole names,
also those of internal topics, as in Kafka 4.
"""

from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.expressions import BadExpression, compile_expression
from barnabas.broker.groups import records
from barnabas.broker.groups.consumer_group import ConsumerGroup, ConsumerMember, ResolvedRegex, TopicMetadata
from barnabas.broker.groups.group import Outcome, Topics
from barnabas.wire.messages import consumer_group_records as modern

MayDescribe = Callable[[str], bool]


def check_regex(expression: str) -> None:
    try:
        compile_expression(expression)
    except BadExpression as error:
        raise Refused(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{expression}` is not a valid regular expression: {error}.",
        ) from None


def resolve(expression: str, topics: Topics, may_describe: MayDescribe) -> frozenset[str]:
    pattern = compile_expression(expression)
    return frozenset(name for name in topics.names() if pattern.fullmatch(name) and may_describe(name))


def refresh_regexes(
    group: ConsumerGroup,
    members: Iterable[ConsumerMember],
    topics: Topics,
    may_describe: MayDescribe,
    out: Outcome,
    now_ms: int,
) -> dict[str, ResolvedRegex]:
    """Return the topics that the members' expressions match. Resolve those that are new, or older than a change of topics."""
    used = dict.fromkeys(member.subscribed_regex for member in members if member.subscribed_regex)
    resolved: dict[str, ResolvedRegex] = {}
    for expression in used:
        known = group.regexes.get(expression)
        if known is not None and group.topics_version == topics.version:
            resolved[expression] = known
            continue
        names = resolve(expression, topics, may_describe)
        if known is not None and known.topics == names:
            resolved[expression] = known
            continue
        resolved[expression] = ResolvedRegex(names, topics.version, now_ms)
        out.records.append(
            records.regular_expression(
                group.group_id, expression, topics=names, version=topics.version, timestamp_ms=now_ms
            )
        )
    forgotten = (expression for expression in group.regexes if expression not in used)
    out.records.extend(records.regular_expression_tombstone(group.group_id, expression) for expression in forgotten)
    return resolved


def existing_topics(
    group: ConsumerGroup,
    members: Iterable[ConsumerMember],
    regexes: Mapping[str, ResolvedRegex],
    topics: Topics,
) -> dict[str, TopicMetadata]:
    """Return the topics to which the members subscribe and which exist."""
    return topics_named({name for member in members for name in group.topics_of(member, regexes)}, topics)


def topics_named(names: Iterable[str], topics: Topics) -> dict[str, TopicMetadata]:
    """Return those of the topics that exist."""
    found: dict[str, TopicMetadata] = {}
    for name in sorted(names):
        topic_id = topics.topic_id(name)
        partitions = topics.partition_count(name)
        if topic_id is not None and partitions > 0:
            found[name] = TopicMetadata(topic_id, name, partitions)
    return found


def metadata_hash_of(existing: Mapping[str, TopicMetadata]) -> int:
    """Return a number that changes with the topics. No other program compares it, so it need not be Kafka's."""
    if not existing:
        return 0
    digest = blake2b(digest_size=8)
    for name in sorted(existing):
        topic = existing[name]
        digest.update(topic.topic_id + topic.partitions.to_bytes(4, "big"))
    return int.from_bytes(digest.digest(), "big", signed=True)


def topics_record(topics: Mapping[str, TopicMetadata]) -> list[modern.TopicMetadata]:
    return [
        modern.TopicMetadata(topic_id=each.topic_id, topic_name=each.name, num_partitions=each.partitions)
        for each in topics.values()
    ]
