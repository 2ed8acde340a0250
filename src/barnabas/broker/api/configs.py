"""DescribeConfigs v1 to v4, AlterConfigs v0 to v2, IncrementalAlterConfigs v0 to v1 (KIP-339): topics, brokers, the
cluster's default, groups, client metrics (KIP-714). ListConfigResources v0 and v1 (KIP-1142).

Broker loggers answer with this process's log levels. Kafka has client metrics only in KRaft mode; here ZooKeeper keeps them.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar

from barnabas.base.config.alter import ConfigChange, apply_changes, invalid_value, replacement
from barnabas.base.config.catalog import BROKER_SETTINGS, TOPIC_SETTINGS
from barnabas.base.config.client_metrics_config import CLIENT_METRICS_SETTINGS, validate_client_metrics
from barnabas.base.config.definition import Setting
from barnabas.base.config.describe import (
    ConfigEntry,
    Shown,
    describe_broker,
    describe_client_metrics,
    describe_cluster_default,
    describe_group,
    describe_topic,
)
from barnabas.base.config.group_config import GROUP_SETTINGS, validate_group_config
from barnabas.base.config.topic import check_not_by_hand, keep_link, validate_topic_config
from barnabas.base.errors import ConfigError, ErrorCode, Refused
from barnabas.base.topics import check_topic_name
from barnabas.base.words import AclOperation, AclResourceType, ConfigResourceType, ConfigSource
from barnabas.broker.security.authorizer import CLUSTER_NAME
from barnabas.broker.server.call import Call
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.server.handler import HandlerResult, serves
from barnabas.broker.server.refusal import refusal
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.config_store import ChangeConfig, ConfigStore
from barnabas.broker.zookeeper_client.request_sizes import check_fits
from barnabas.broker.zookeeper_client.znodes import encode_config
from barnabas.wire.messages import alter_configs as full
from barnabas.wire.messages import incremental_alter_configs as incremental
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from barnabas.wire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

A = TypeVar("A")
#: Reads the dynamic settings of this broker, or of the cluster's default, from ZooKeeper, by the name of the entity.
ReadBroker = Callable[[str], Awaitable[Mapping[str, str]]]
#: Maps the present settings to the new ones.
Wanted = Callable[[Mapping[str, str]], Mapping[str, str]]

#: Resources handled before other requests run: refused resources never wait for ZooKeeper.
TURN_RESOURCES = 200
#: More settings than exist for any resource, including a listener's own and loggers.
SETTINGS_MAX = 1_000
#: From this version of ListConfigResources on, it lists more than client metrics.
ALL_RESOURCES_FROM = 1
#: The types that it lists, in Kafka's order.
_LISTABLE: Final = (
    ConfigResourceType.GROUP,
    ConfigResourceType.CLIENT_METRICS,
    ConfigResourceType.BROKER_LOGGER,
    ConfigResourceType.BROKER,
    ConfigResourceType.TOPIC,
)


class ConfigsApi:
    def __init__(
        self, context: BrokerContext, store: ConfigStore, read_broker: ReadBroker, change: ChangeConfig
    ) -> None:
        self._context = context
        self._store = store
        self._read_broker = read_broker
        self._change = change

    # -- describe -----------------------------------------------------------------------------------------------------

    @serves("DescribeConfigs", refusal("results <- resources"))
    async def describe(self, call: Call, request: DescribeConfigsRequest) -> ApiMessage:
        response = DescribeConfigsResponse()
        # Each resource once: the answer is hundreds of times as long as the request.
        for resource in {(r.resource_type, r.resource_name): r for r in request.resources}.values():
            result = DescribeConfigsResult(
                resource_type=resource.resource_type, resource_name=resource.resource_name, error_message=None
            )
            response.results.append(result)
            try:
                self._authorize(call, resource, AclOperation.DESCRIBE_CONFIGS)
                entries = await self._entries(resource, request)
            except Refused as refusal:
                result.error_code, result.error_message = refusal.code, refusal.message
                continue
            except ConfigError as error:
                # A client has stored an unusable value. The other resources of the request are not affected.
                result.error_code, result.error_message = ErrorCode.INVALID_CONFIG, str(error)
                continue
            result.configs = [_result(entry) for entry in entries]
        return response

    async def _entries(
        self, resource: DescribeConfigsResource, request: DescribeConfigsRequest
    ) -> Iterable[ConfigEntry]:
        dynamic, name = self._context.dynamic, resource.resource_name
        names = frozenset(resource.configuration_keys or ())
        shown = Shown(names, request.include_synonyms, request.include_documentation)
        match resource.resource_type:
            case ConfigResourceType.TOPIC:
                return describe_topic(dynamic, await self._topic_settings(name), shown)
            case ConfigResourceType.BROKER if not name:
                return describe_cluster_default(dynamic, shown)
            case ConfigResourceType.BROKER:
                self._check_own_id(name)
                return describe_broker(dynamic, shown)
            case ConfigResourceType.BROKER_LOGGER:
                self._check_own_id(name)
                return _loggers(resource.configuration_keys)
            case ConfigResourceType.GROUP:
                own = await self._store.read(paths.GROUPS, _group_entity(name))
                return describe_group(dynamic, own, shown)
            case ConfigResourceType.CLIENT_METRICS:
                own = await self._store.read(paths.CLIENT_METRICS, _subscription_entity(name))
                return describe_client_metrics(dynamic, own, shown)
        raise Refused(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {_type_name(resource.resource_type)}")

    # -- alter --------------------------------------------------------------------------------------------------------

    @serves("AlterConfigs", refusal("responses <- resources"))
    async def alter(self, call: Call, request: full.AlterConfigsRequest) -> ApiMessage:
        response = full.AlterConfigsResponse()
        named = Counter((r.resource_type, r.resource_name) for r in request.resources)
        for number, resource in enumerate(request.resources):
            if number % TURN_RESOURCES == TURN_RESOURCES - 1:
                await asyncio.sleep(0)
            answer = full.AlterConfigsResourceResponse(
                resource_type=resource.resource_type, resource_name=resource.resource_name, error_message=None
            )
            response.responses.append(answer)
            try:
                _check_once(named, resource)
                self._authorize(call, resource, AclOperation.ALTER_CONFIGS)
                _check_few(len(resource.configs))
                if resource.resource_type == ConfigResourceType.BROKER_LOGGER:
                    raise Refused(
                        ErrorCode.INVALID_REQUEST,
                        "AlterConfigs is deprecated and does not support the resource type BROKER_LOGGER",
                    )
                settings = replacement((entry.name, entry.value) for entry in resource.configs)
                kind, name = resource.resource_type, resource.resource_name
                await self._alter(kind, name, lambda existing, new=settings: new, request.validate_only)  # type: ignore[misc]
            except Refused as refusal:
                answer.error_code, answer.error_message = refusal.code, refusal.message
        return response

    @serves("IncrementalAlterConfigs", refusal("responses <- resources"))
    async def alter_incrementally(self, call: Call, request: incremental.IncrementalAlterConfigsRequest) -> ApiMessage:
        response = incremental.IncrementalAlterConfigsResponse()
        named = Counter((r.resource_type, r.resource_name) for r in request.resources)
        for number, resource in enumerate(request.resources):
            if number % TURN_RESOURCES == TURN_RESOURCES - 1:
                await asyncio.sleep(0)
            kind, name = resource.resource_type, resource.resource_name
            answer = incremental.AlterConfigsResourceResponse(
                resource_type=kind, resource_name=name, error_message=None
            )
            response.responses.append(answer)
            try:
                _check_once(named, resource)
                self._authorize(call, resource, AclOperation.ALTER_CONFIGS)
                _check_few(len(resource.configs))
                changes = [ConfigChange(each.name, each.config_operation, each.value) for each in resource.configs]
                if kind == ConfigResourceType.BROKER_LOGGER:
                    self._check_own_id(name)
                    _alter_loggers(changes, request.validate_only)
                    continue
                if kind == ConfigResourceType.TOPIC:
                    check_not_by_hand({each.name: each.value for each in changes})
                await self._alter(kind, name, partial(_applied, changes, _KNOWN.get(kind, {})), request.validate_only)
            except Refused as refusal:
                answer.error_code, answer.error_message = refusal.code, refusal.message
        return response

    async def _topic_settings(self, name: str) -> Mapping[str, str]:
        """Read from ZooKeeper: a broker that does not host the topic does not have its settings."""
        self._check_topic(name)
        return await self._store.read(paths.TOPICS, name)

    async def _alter(self, kind: int, name: str, wanted: Wanted, validate_only: bool) -> None:
        """Change the settings in ZooKeeper, based on those in ZooKeeper: this broker may not have another broker's latest
        change yet, and a change of one setting writes all of them."""
        match kind:
            case ConfigResourceType.TOPIC:
                self._check_topic(name)
                entity_type, entity, check = paths.TOPICS, name, partial(self._checked_topic, name)
            case ConfigResourceType.BROKER:
                if name:
                    self._check_own_id(name)
                entity_type = paths.BROKERS_ENTITY
                entity = str(self._context.broker_id) if name else paths.DEFAULT_ENTITY
                check = partial(self._checked_broker, bool(name))
            case ConfigResourceType.GROUP:
                entity_type, entity, check = paths.GROUPS, _group_entity(name), partial(self._checked_group, name)
            case ConfigResourceType.CLIENT_METRICS:
                entity_type, entity = paths.CLIENT_METRICS, _subscription_entity(name)
                check = partial(_checked_client_metrics)
            case _:
                raise Refused(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {_type_name(kind)}")

        def changed(existing: Mapping[str, str]) -> Mapping[str, str]:
            return check(existing, wanted(existing))

        if not validate_only:
            await self._change(entity_type, entity, changed)
            return
        is_broker = entity_type == paths.BROKERS_ENTITY
        existing = await (self._read_broker(entity) if is_broker else self._store.read(entity_type, entity))
        check_fits(paths.config_entity(entity_type, entity), encode_config(changed(existing)))

    def _checked_topic(self, name: str, existing: Mapping[str, str], settings: Mapping[str, str]) -> Mapping[str, str]:
        settings = keep_link(settings, existing)
        try:
            validate_topic_config(self._context.dynamic.broker, settings, existing)
        except ConfigError as error:
            raise invalid_value("TOPIC", name, error) from error
        return settings

    def _checked_broker(
        self, per_broker: bool, existing: Mapping[str, str], settings: Mapping[str, str]
    ) -> Mapping[str, str]:
        self._context.dynamic.validate_broker_change(settings, per_broker=per_broker)
        return settings

    def _checked_group(self, name: str, existing: Mapping[str, str], settings: Mapping[str, str]) -> Mapping[str, str]:
        try:
            validate_group_config(self._context.config, settings)
        except ConfigError as error:
            raise invalid_value("GROUP", name, error) from error
        return settings

    # -- list ---------------------------------------------------------------------------------------------------------

    @serves("ListConfigResources", refusal())
    def list_resources(self, call: Call, request: ListConfigResourcesRequest) -> HandlerResult:
        self._context.require_cluster(call, AclOperation.DESCRIBE_CONFIGS)
        listable = _LISTABLE if call.api_version >= ALL_RESOURCES_FROM else (ConfigResourceType.CLIENT_METRICS,)
        wanted = set(request.resource_types) or set(listable)
        if not wanted <= set(listable):
            raise Refused(ErrorCode.UNSUPPORTED_VERSION)
        brokers = [str(broker) for broker in sorted(self._context.metadata.brokers)]
        names: dict[ConfigResourceType, Iterable[str]] = {
            ConfigResourceType.GROUP: sorted(self._context.dynamic.groups),
            ConfigResourceType.CLIENT_METRICS: sorted(self._context.dynamic.client_metrics),
            ConfigResourceType.BROKER_LOGGER: brokers,
            ConfigResourceType.BROKER: brokers,
            ConfigResourceType.TOPIC: sorted(self._context.metadata.topics),
        }
        return ListConfigResourcesResponse(
            config_resources=[
                ConfigResource(resource_name=name, resource_type=kind)
                for kind in listable
                if kind in wanted
                for name in names[kind]
            ]
        )

    # -- checks -------------------------------------------------------------------------------------------------------

    def _authorize(
        self,
        call: Call,
        resource: DescribeConfigsResource | full.AlterConfigsResource | incremental.AlterConfigsResource,
        operation: AclOperation,
    ) -> None:
        if resource.resource_type == ConfigResourceType.TOPIC:
            if not self._context.allows_topic(call, operation, resource.resource_name):
                raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")
        elif resource.resource_type == ConfigResourceType.GROUP:
            if not self._context.allows(call, operation, AclResourceType.GROUP, resource.resource_name):
                raise Refused(ErrorCode.GROUP_AUTHORIZATION_FAILED, "Group authorization failed.")
        elif not self._context.allows(call, operation, AclResourceType.CLUSTER, CLUSTER_NAME):
            raise Refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")

    def _check_topic(self, name: str) -> None:
        check_topic_name(name)
        if self._context.metadata.topic(name) is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")

    def _check_own_id(self, name: str) -> None:
        try:
            broker_id = int(name)
        except ValueError:
            raise Refused(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}") from None
        if broker_id != self._context.broker_id:
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                f"Unexpected broker id, expected {self._context.broker_id} or empty string, but received {name}",
            )


#: Settings by the type of their resource.
_KNOWN: Final[Mapping[int, Mapping[str, Setting]]] = {
    ConfigResourceType.TOPIC: TOPIC_SETTINGS,
    ConfigResourceType.BROKER: BROKER_SETTINGS,
    ConfigResourceType.GROUP: GROUP_SETTINGS,
    ConfigResourceType.CLIENT_METRICS: CLIENT_METRICS_SETTINGS,
}


def _group_entity(group_id: str) -> str:
    """Return the name of the group's znode."""
    if not group_id:
        raise Refused(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
    entity = paths.sanitize(group_id)
    if not paths.is_valid_name(entity):
        raise Refused(ErrorCode.INVALID_REQUEST, f"A group named '{group_id}' cannot have settings: use another name.")
    return entity


def _subscription_entity(name: str) -> str:
    """Return the name of the znode of a subscription to metrics of clients."""
    if not name:
        raise Refused(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
    entity = paths.sanitize(name)
    if not paths.is_valid_name(entity):
        raise Refused(ErrorCode.INVALID_REQUEST, f"A subscription cannot be named '{name}': use another name.")
    return entity


def _checked_client_metrics(existing: Mapping[str, str], settings: Mapping[str, str]) -> Mapping[str, str]:
    validate_client_metrics(settings)
    return settings


def _applied(
    changes: Sequence[ConfigChange], known: Mapping[str, Setting], existing: Mapping[str, str]
) -> Mapping[str, str]:
    return apply_changes(existing, changes, known)


def _check_once(named: Counter[tuple[int, str]], resource: "_Resource") -> None:
    """Refuse a resource that the request names twice: it would be undefined which settings apply."""
    if named[resource.resource_type, resource.resource_name] > 1:
        raise Refused(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")


def _check_few(settings: int) -> None:
    if settings > SETTINGS_MAX:
        raise Refused(
            ErrorCode.INVALID_REQUEST, f"{settings} settings for one resource, which has at most {SETTINGS_MAX}"
        )


def _type_name(kind: int) -> str:
    return ConfigResourceType(kind).name if kind in set(ConfigResourceType) else str(kind)


def _result(entry: ConfigEntry) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in entry.synonyms
        ],
        config_type=entry.type_code,
        documentation=entry.documentation,
    )


# -- loggers: Kafka's levels on Python's loggers ----------------------------------------------------------------------

_LEVELS = {"FATAL": logging.CRITICAL, "ERROR": logging.ERROR, "WARN": logging.WARNING, "INFO": logging.INFO}
_LEVELS |= {"DEBUG": logging.DEBUG, "TRACE": logging.DEBUG}
_STRING_TYPE = 2


def _loggers(names: Iterable[str] | None) -> list[ConfigEntry]:
    wanted = frozenset(names or ())
    known = ["root", *sorted(name for name in logging.root.manager.loggerDict if name.startswith("barnabas"))]
    return [
        ConfigEntry(
            name=name,
            value=_level_name(logging.getLogger(None if name == "root" else name).getEffectiveLevel()),
            read_only=False,
            source=ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG,
            is_sensitive=False,
            synonyms=(),
            type_code=_STRING_TYPE,
            documentation=None,
        )
        for name in known
        if not wanted or name in wanted
    ]


def _level_name(level: int) -> str:
    return next((name for name, value in _LEVELS.items() if value <= level), "DEBUG")


def _alter_loggers(changes: list[ConfigChange], validate_only: bool) -> None:
    known = {entry.name for entry in _loggers(None)}
    for change in changes:
        if change.name not in known:
            raise Refused(ErrorCode.INVALID_CONFIG, f"Logger {change.name} does not exist!")
        if change.operation not in (0, 1):
            raise Refused(ErrorCode.INVALID_REQUEST, "log levels can be set and deleted, not appended or subtracted")
        if change.operation == 0 and (change.value or "") not in _LEVELS:
            raise Refused(
                ErrorCode.INVALID_CONFIG,
                f"Cannot set the log level of {change.name} to {change.value} as it is not a supported log level. "
                f"Valid log levels are {', '.join(_LEVELS)}",
            )
        if change.operation == 1 and change.name == "root":
            raise Refused(ErrorCode.INVALID_REQUEST, "Removing the log level of the root logger is not allowed")
    if validate_only:
        return
    for change in changes:
        logger = logging.getLogger(None if change.name == "root" else change.name)
        logger.setLevel(_LEVELS[change.value or ""] if change.operation == 0 else logging.NOTSET)


# -- refusals ---------------------------------------------------------------------------------------------------------


class _Resource(Protocol):
    resource_type: int
    resource_name: str


def _refused(answer: Callable[..., A], resource: _Resource, code: ErrorCode, message: str | None) -> A:
    return answer(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
