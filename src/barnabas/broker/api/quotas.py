"""Client quotas: DescribeClientQuotas v0 to v1 and AlterClientQuotas v0 to v1 (KIP-546), served by any broker.

Users and client ids have `producer_byte_rate`, `consumer_byte_rate`, `request_percentage` and `controller_mutation_rate`;
addresses have `connection_creation_rate`. All of them are enforced.
"""

import math
from collections.abc import Mapping
from typing import Final

from barnabas.base.config.definition import INT_MAX, LONG_MAX
from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.words import AclOperation
from barnabas.broker.security import connection_rates
from barnabas.broker.security.quotas import Quota
from barnabas.broker.server.addresses import address_of
from barnabas.broker.server.call import Call
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.server.handler import serves
from barnabas.broker.server.refusal import refusal
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.config_store import ChangeConfig, ConfigStore
from barnabas.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    OpData,
    RequestEntryData,
    ResponseEntityData,
    ResponseEntryData,
)
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
_CLIENT_KEYS: Final = frozenset(quota.value for quota in Quota)
_IP_KEYS: Final = frozenset({connection_rates.SETTING})
#: Limits that may have fractions.
_FRACTIONAL: Final = frozenset({Quota.REQUEST.value, Quota.CONTROLLER_MUTATION.value})
_EPSILON: Final = 1e-6
#: How a filter matches: a given name, the default, or any name.
_EXACT, _DEFAULT, _ANY = 0, 1, 2

#: Names by entity type, None for the default.
Named = dict[str, str | None]


def _refuse_alter(request: AlterClientQuotasRequest, code: ErrorCode, message: str | None) -> ApiMessage:
    return AlterClientQuotasResponse(entries=[_answer(entry, code, message) for entry in request.entries])


class QuotasApi:
    def __init__(self, context: BrokerContext, store: ConfigStore, change_config: ChangeConfig) -> None:
        self._context = context
        self._store = store
        self._change_config = change_config

    # -- DescribeClientQuotas -----------------------------------------------------------------------------------------

    @serves("DescribeClientQuotas", refusal(entries=None))
    async def describe(self, call: Call, request: DescribeClientQuotasRequest) -> ApiMessage:
        self._context.require_cluster(call, AclOperation.DESCRIBE_CONFIGS)
        components = _components(request)
        entries = []
        for named, values in await stored_quotas(self._store):
            if _matches(named, components, strict=request.strict):
                entries.append(
                    EntryData(
                        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in named.items()],
                        values=[ValueData(key=key, value=float(value)) for key, value in sorted(values.items())],
                    )
                )
        return DescribeClientQuotasResponse(error_message=None, entries=entries)

    # -- AlterClientQuotas --------------------------------------------------------------------------------------------

    @serves("AlterClientQuotas", _refuse_alter)
    async def alter(self, call: Call, request: AlterClientQuotasRequest) -> ApiMessage:
        self._context.require_cluster(call, AclOperation.ALTER_CONFIGS)
        response = AlterClientQuotasResponse()
        for entry in request.entries:
            answer = _answer(entry)
            response.entries.append(answer)
            try:
                await self._alter(entry, validate_only=request.validate_only)
            except Refused as refused:
                answer.error_code, answer.error_message = refused.code, refused.message
        return response

    async def _alter(self, entry: RequestEntryData, *, validate_only: bool) -> None:
        entity_type, name, keys = _path_of(entry)
        if (
            entity_type == paths.IPS
            and name != paths.DEFAULT_ENTITY
            and await address_of(paths.desanitize(name)) is None
        ):
            raise Refused(ErrorCode.INVALID_REQUEST, f"{name} is not a valid IP or resolvable host.")

        def changed(stored: Mapping[str, str]) -> dict[str, str]:
            settings = dict(stored)
            for operation in entry.ops:
                if operation.remove:
                    settings.pop(operation.key, None)
                else:
                    settings[operation.key] = _value(operation, keys)
            return settings

        if validate_only:
            changed({})
        else:
            await self._change_config(entity_type, name, changed)


async def stored_quotas(store: ConfigStore) -> list[tuple[Named, dict[str, str]]]:
    """Return every entity that has quotas, with their stored values."""
    found: list[tuple[Named, frozenset[str], dict[str, str]]] = []
    for name, settings in (await store.read_all(paths.USERS)).items():
        found.append(({USER: _plain(name)}, _CLIENT_KEYS, settings))
    for name, settings in (await store.read_user_clients()).items():
        user, _, client_id = name.partition(f"/{paths.CLIENTS}/")
        found.append(({USER: _plain(user), CLIENT_ID: _plain(client_id)}, _CLIENT_KEYS, settings))
    for name, settings in (await store.read_all(paths.CLIENTS)).items():
        found.append(({CLIENT_ID: _plain(name)}, _CLIENT_KEYS, settings))
    for name, settings in (await store.read_all(paths.IPS)).items():
        found.append(({IP: _plain(name)}, _IP_KEYS, settings))
    quotas = [(named, {key: settings[key] for key in settings if key in keys}) for named, keys, settings in found]
    return [(named, values) for named, values in quotas if values]


def _plain(sanitized: str) -> str | None:
    return None if sanitized == paths.DEFAULT_ENTITY else paths.desanitize(sanitized)


def _stored(name: str | None) -> str:
    return paths.DEFAULT_ENTITY if name is None else paths.sanitize(name)


def _components(request: DescribeClientQuotasRequest) -> dict[str, ComponentData]:
    components: dict[str, ComponentData] = {}
    for each in request.components:
        if not each.entity_type:
            raise Refused(ErrorCode.INVALID_REQUEST, "Unexpected empty filter component entity type")
        if each.entity_type not in (USER, CLIENT_ID, IP):
            raise Refused(ErrorCode.UNSUPPORTED_VERSION, f"Custom entity type '{each.entity_type}' not supported")
        if each.entity_type in components:
            kind = each.entity_type.removesuffix("-id")
            raise Refused(ErrorCode.INVALID_REQUEST, f"Duplicate {kind} filter component entity type")
        if each.match_type not in (_EXACT, _DEFAULT, _ANY):
            raise Refused(ErrorCode.INVALID_REQUEST, f"Unexpected match type: {each.match_type}")
        components[each.entity_type] = each
    if IP in components and len(components) > 1:
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            "Invalid entity filter component combination, IP filter component should not be used with user or clientId "
            "filter component.",
        )
    return components


def _matches(named: Named, components: dict[str, ComponentData], *, strict: bool) -> bool:
    if strict and named.keys() - components.keys():
        return False
    for kind, component in components.items():
        if kind not in named:
            return False
        if component.match_type == _EXACT and named[kind] != component.match:
            return False
        if component.match_type == _DEFAULT and named[kind] is not None:
            return False
    return True


def _path_of(entry: RequestEntryData) -> tuple[str, str, frozenset[str]]:
    """Return the path of an entity's settings below /config, and the allowed setting names."""
    if not entry.entity:
        raise Refused(ErrorCode.INVALID_REQUEST, "Invalid empty client quota entity")
    named: Named = {}
    for each in entry.entity:
        if each.entity_type not in (USER, CLIENT_ID, IP):
            raise Refused(ErrorCode.INVALID_REQUEST, f"Unhandled client quota entity type: {each.entity_type}")
        if each.entity_name == "":
            raise Refused(ErrorCode.INVALID_REQUEST, f"Empty {each.entity_type} not supported")
        if each.entity_name is not None and not paths.is_valid_name(paths.sanitize(each.entity_name)):
            raise Refused(ErrorCode.INVALID_REQUEST, f"{each.entity_type} {each.entity_name} cannot be stored")
        named[each.entity_type] = each.entity_name
    return entity_path(named)


def entity_path(named: Mapping[str, str | None]) -> tuple[str, str, frozenset[str]]:
    """Like `_path_of`, for names by entity type."""
    if IP in named:
        if len(named) > 1:
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                "Invalid quota entity combination, IP entity should not be used with user/client ID entity.",
            )
        return paths.IPS, _stored(named[IP]), _IP_KEYS
    if USER not in named:
        return paths.CLIENTS, _stored(named[CLIENT_ID]), _CLIENT_KEYS
    user = _stored(named[USER])
    if CLIENT_ID not in named:
        return paths.USERS, user, _CLIENT_KEYS
    return paths.USERS, f"{user}/{paths.CLIENTS}/{_stored(named[CLIENT_ID])}", _CLIENT_KEYS


def _value(operation: OpData, keys: frozenset[str]) -> str:
    if operation.key not in keys:
        raise Refused(ErrorCode.INVALID_REQUEST, f"Invalid configuration key {operation.key}")
    return quota_text(operation.key, operation.value)


def quota_text(key: str, value: float) -> str:
    """Return the value in its stored form."""
    if not math.isfinite(value):
        raise Refused(ErrorCode.INVALID_REQUEST, f"Configuration {key} must be a finite number, not {value}")
    if key in _FRACTIONAL:
        return str(value)
    kind, most = ("INT", INT_MAX) if key in _IP_KEYS else ("LONG", LONG_MAX)
    # As in Java, where 2^63 is the largest long. A Kafka broker of the cluster could not start with a larger value.
    whole = max(-most, min(int(value + _EPSILON), most))
    if abs(whole - value) > _EPSILON:
        raise Refused(ErrorCode.INVALID_REQUEST, f"Configuration {key} must be a {kind} value")
    return str(whole)


def _answer(entry: RequestEntryData, code: ErrorCode = ErrorCode.NONE, message: str | None = None) -> ResponseEntryData:
    return ResponseEntryData(
        error_code=code,
        error_message=message,
        entity=[
            ResponseEntityData(entity_type=each.entity_type, entity_name=each.entity_name) for each in entry.entity
        ],
    )
