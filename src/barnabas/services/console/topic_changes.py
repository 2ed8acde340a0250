"""Settings of topics with their origins and defaults; creating, extending, altering and deleting topics."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from barnabas.base.config.catalog import TOPIC_SETTINGS
from barnabas.base.ids import TopicPartition
from barnabas.base.words import AlterOperation, ConfigResourceType, ConfigSource
from barnabas.client.admin import configs, partitions, topics
from barnabas.client.admin.configs import ConfigEntry
from barnabas.client.errors import ClientError, check
from barnabas.services.console.cluster import ConsoleCluster
from barnabas.services.console.errors import bad_request
from barnabas.services.console.web import FLAG, NUMBER, TEXT, Call, Endpoint, whole
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

#: Limit of checks whether brokers know a change.
_LOOKS_MAX: Final = 50
_LOOK_S: Final = 0.1
#: Names of the origins of values.
ORIGINS: Final = {
    ConfigSource.DYNAMIC_TOPIC_CONFIG: "topic",
    ConfigSource.DYNAMIC_BROKER_CONFIG: "broker, dynamic",
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG: "all brokers, dynamic",
    ConfigSource.STATIC_BROKER_CONFIG: "broker's file",
    ConfigSource.DEFAULT_CONFIG: "default",
    ConfigSource.DYNAMIC_GROUP_CONFIG: "group",
    ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG: "client metrics",
    ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG: "logger",
    ConfigSource.UNKNOWN: "unknown",
}


def entry_document(entry: ConfigEntry) -> dict[str, Any]:
    known = TOPIC_SETTINGS.get(entry.name)
    if entry.is_default:
        default = entry.value
    elif known is not None:  # a synonym's default may have another unit, such as hours for retention.ms
        default = known.format(known.default)
    else:
        default = next((each.value for each in entry.synonyms if each.source is ConfigSource.DEFAULT_CONFIG), None)
    return {
        "name": entry.name,
        "value": entry.value,
        "origin": ORIGINS[entry.source],
        "isDefault": entry.is_default,
        "default": default,
        "readOnly": entry.read_only,
        "sensitive": entry.sensitive,
        "about": known.documentation if known is not None else "",
        "synonyms": [
            {"name": each.name, "value": each.value, "origin": ORIGINS[each.source]} for each in entry.synonyms
        ],
    }


async def settings(call: Call) -> dict[str, Any]:
    resource = (ConfigResourceType.TOPIC, (await call.cluster.topic(call.path["topic"])).name)
    found = await configs.describe_configs(call.cluster.client, [resource], synonyms=True)
    entries = sorted(found[resource], key=lambda entry: entry.name)
    return {"settings": [entry_document(entry) for entry in entries]}


async def alter_settings(call: Call) -> dict[str, Any]:
    """Set settings; null removes a setting, so that the broker's value applies."""
    changes = call.given("settings", dict)
    if not changes:
        raise bad_request("there is nothing to change")
    await configs.alter_configs(
        call.cluster.client,
        ConfigResourceType.TOPIC,
        call.path["topic"],
        {
            str(name): (AlterOperation.DELETE, None) if value is None else (AlterOperation.SET, str(value))
            for name, value in changes.items()
        },
    )
    call.cluster.forget()
    return {"changed": sorted(changes)}


async def create(call: Call) -> dict[str, Any]:
    wanted = call.body.get("settings") or {}
    if not isinstance(wanted, dict):
        raise bad_request("settings is an object: names and values")
    new = topics.NewTopic(
        name=call.given("name"),
        partitions=_count(call.body, "partitions"),
        replication_factor=_count(call.body, "replicas"),
        configs={str(name): str(value) for name, value in wanted.items()},
    )
    await topics.create_topics(call.cluster.client, [new], validate_only=call.body.get("validateOnly") is True)
    if call.body.get("validateOnly") is not True:
        await _is_known(call.cluster, new.name, partitions=1)
    call.cluster.forget()
    return {"created": new.name}


async def _is_known(cluster: ConsoleCluster, topic: str, *, partitions: int) -> None:
    """Wait a limited time until every broker knows a change: the next request may go to any of them."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)

    async def ask(broker_id: int) -> bool:
        (found,) = (await cluster.client.ask(broker_id, request, MetadataResponse)).topics
        return not found.error_code and len(found.partitions) >= partitions

    for _ in range(_LOOKS_MAX):
        answers = await cluster.on_brokers(ask)
        if all(isinstance(answer, ClientError) or answer for answer in answers.values()):
            return
        await asyncio.sleep(_LOOK_S)


def _count(body: Mapping[str, Any], name: str) -> int:
    """Return the number, or -1 for the cluster's default if there is none."""
    value = body.get(name)
    return -1 if value in (None, "") else whole(value, name, low=1, high=100_000)


async def grow(call: Call) -> dict[str, Any]:
    topic = call.path["topic"]
    count = whole(call.given("partitions", (int, str)), "partitions", low=1, high=100_000)
    await topics.create_partitions(call.cluster.client, {topic: count})
    await _is_known(call.cluster, topic, partitions=count)
    call.cluster.forget()
    return {"partitions": count}


async def delete(call: Call) -> dict[str, Any]:
    topic = call.path["topic"]
    for name, code in (await topics.delete_topics(call.cluster.client, [topic])).items():
        check(code, f"topic {name}")
    call.cluster.forget()
    return {"deleted": topic}


async def delete_records(call: Call) -> dict[str, Any]:
    """Delete all records before these offsets; an offset of null deletes all records."""
    topic = call.path["topic"]
    before: dict[TopicPartition, int] = {}
    for each in call.given("partitions", list):
        if not isinstance(each, dict):
            raise bad_request("partitions is a list of objects with partition and offset")
        offset = each.get("offset")
        where = TopicPartition(topic, whole(each.get("partition"), "partition"))
        before[where] = -1 if offset is None else whole(offset, "offset")
    if not before:
        raise bad_request("there are no partitions to delete from")
    outcomes = await partitions.delete_records(call.cluster.client, before)
    for where, (_, code) in outcomes.items():
        check(code, f"partition {where}")
    call.cluster.forget()
    return {
        "partitions": [{"partition": where.partition, "start": start} for where, (start, _) in sorted(outcomes.items())]
    }


async def known_settings(call: Call) -> dict[str, Any]:
    """List settings for the creation of a topic; a cluster may know more, or fewer."""
    return {"settings": _known()}


def _known() -> Sequence[dict[str, Any]]:
    return [
        {"name": name, "default": setting.format(setting.default), "about": setting.documentation}
        for name, setting in sorted(TOPIC_SETTINGS.items())
        if not setting.internal
    ]


_SETTINGS: Final = {"type": "object", "additionalProperties": {"type": ["string", "null"]}}
ENDPOINTS = [
    Endpoint(
        method="GET",
        path="/topics/{topic}/settings",
        handler=settings,
        summary="A topic's settings: value, origin, default.",
    ),
    Endpoint(
        method="PATCH",
        path="/topics/{topic}/settings",
        handler=alter_settings,
        summary="Set some settings, or remove them with null; the others stay.",
        body={"type": "object", "properties": {"settings": _SETTINGS}, "required": ["settings"]},
    ),
    Endpoint(
        method="GET",
        path="/topic-settings",
        handler=known_settings,
        summary="Names of settings that topics may have.",
    ),
    Endpoint(
        method="POST",
        path="/topics",
        handler=create,
        summary="Create a topic. Without partitions or replicas the cluster decides.",
        body={
            "type": "object",
            "properties": {
                "name": TEXT,
                "partitions": NUMBER,
                "replicas": NUMBER,
                "settings": _SETTINGS,
                "validateOnly": FLAG,
            },
            "required": ["name"],
        },
    ),
    Endpoint(
        method="POST",
        path="/topics/{topic}/partitions",
        handler=grow,
        summary="Add partitions, up to this many.",
        body={"type": "object", "properties": {"partitions": NUMBER}, "required": ["partitions"]},
    ),
    Endpoint(method="DELETE", path="/topics/{topic}", handler=delete, summary="Delete a topic."),
    Endpoint(
        method="POST",
        path="/topics/{topic}/delete-records",
        handler=delete_records,
        summary="Delete the records before given offsets; null deletes all.",
        body={"type": "object", "properties": {"partitions": {"type": "array", "items": {"type": "object"}}}},
    ),
]
