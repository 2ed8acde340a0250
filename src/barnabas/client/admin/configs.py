"""Settings of topics, brokers and loggers; quotas of clients; SCRAM credentials of users."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from barnabas.base.words import AlterOperation, ConfigResourceType, ConfigSource
from barnabas.client.core import ClientCore
from barnabas.client.errors import BrokerRefused, UnexpectedAnswer, check, first_error
from barnabas.wire.auth.mechanisms.scram import ScramMechanism
from barnabas.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    OpData,
    RequestEntityData,
    RequestEntryData,
)
from barnabas.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from barnabas.wire.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from barnabas.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)
from barnabas.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)
from barnabas.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from barnabas.wire.messages.list_config_resources import ListConfigResourcesRequest, ListConfigResourcesResponse


@dataclass(frozen=True, slots=True)
class Synonym:
    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    name: str
    #: None if the value is sensitive or not set.
    value: str | None
    source: ConfigSource
    read_only: bool
    sensitive: bool
    synonyms: tuple[Synonym, ...]

    @property
    def is_default(self) -> bool:
        return self.source is ConfigSource.DEFAULT_CONFIG


Resource = tuple[ConfigResourceType, str]


async def describe_configs(
    cluster: ClientCore,
    resources: Sequence[Resource],
    *,
    synonyms: bool = False,
    names: Sequence[str] | None = None,
    refused: dict[Resource, BrokerRefused] | None = None,
) -> dict[Resource, list[ConfigEntry]]:
    """Describe the settings of these resources. A broker (or its loggers) is asked itself; any broker can describe the rest.

    `names` selects settings; None means all. The first refusal is raised, unless `refused` is given: then it collects all.
    """
    found: dict[Resource, list[ConfigEntry]] = {}
    for broker_id, group in _by_broker(resources).items():
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=kind, resource_name=name, configuration_keys=None if names is None else list(names)
                )
                for kind, name in group
            ],
            include_synonyms=synonyms,
        )
        if broker_id is None:
            response = await cluster.ask_any(request, DescribeConfigsResponse)
        else:
            response = await cluster.ask(broker_id, request, DescribeConfigsResponse)
        for result in response.results:
            key = _resource(result.resource_type, result.resource_name)
            if result.error_code and refused is not None:
                refused[key] = BrokerRefused(result.error_code, result.error_message)
                continue
            check(result.error_code, result.error_message)
            found[key] = [_entry(config) for config in result.configs]
    return found


def _resource(kind: int, name: str) -> Resource:
    try:
        return ConfigResourceType(kind), name
    except ValueError:
        raise UnexpectedAnswer(
            f"the broker answered about a resource of type {kind}, but this client asked about none"
        ) from None


def _by_broker(resources: Iterable[Resource]) -> dict[int | None, list[Resource]]:
    groups: dict[int | None, list[Resource]] = {}
    for kind, name in resources:
        own = kind in (ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER) and name
        groups.setdefault(int(name) if own else None, []).append((kind, name))
    return groups


def _entry(config: DescribeConfigsResourceResult) -> ConfigEntry:
    return ConfigEntry(
        name=config.name,
        value=config.value,
        source=ConfigSource(config.config_source),
        read_only=config.read_only,
        sensitive=config.is_sensitive,
        synonyms=tuple(Synonym(s.name, s.value, ConfigSource(s.source)) for s in config.synonyms),
    )


async def list_resources(cluster: ClientCore, kind: ConfigResourceType) -> list[str]:
    """List the resources of a type that have settings (KIP-1142)."""
    # Version 0 lists client metrics only; later versions take the types.
    version_min = 0 if kind is ConfigResourceType.CLIENT_METRICS else 1
    broker_id = min(await cluster.brokers())
    request = ListConfigResourcesRequest(resource_types=[kind])
    response = await cluster.ask(broker_id, request, ListConfigResourcesResponse, version_min=version_min)
    check(response.error_code)
    return sorted(each.resource_name for each in response.config_resources if each.resource_type == kind)


async def alter_configs(
    cluster: ClientCore, kind: ConfigResourceType, name: str, changes: Mapping[str, tuple[AlterOperation, str | None]]
) -> None:
    """Change some settings and leave the others alone (KIP-339)."""
    request = IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    AlterableConfig(name=setting, config_operation=operation, value=value)
                    for setting, (operation, value) in changes.items()
                ],
            )
        ]
    )
    own = kind in (ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER) and name
    if own:
        response = await cluster.ask(int(name), request, IncrementalAlterConfigsResponse)
    else:
        response = await cluster.ask_any(request, IncrementalAlterConfigsResponse)
    for result in response.responses:
        check(result.error_code, result.error_message)


# -- quotas -------------------------------------------------------------------------------------------------------------

_EXACT, _DEFAULT, _ANY = 0, 1, 2

#: Entity type (`user`, `client-id`, `ip`) to name; None is the default entity.
QuotaEntity = Mapping[str, str | None]


async def describe_quotas(
    cluster: ClientCore, entity: Mapping[str, str | None], *, any_name: Iterable[str] = (), strict: bool = True
) -> list[tuple[dict[str, str | None], dict[str, float]]]:
    """Return the quotas of matching entities: by name, by default (None), or of any name for the types in `any_name`."""
    components = [
        ComponentData(entity_type=kind, match_type=_EXACT if name is not None else _DEFAULT, match=name)
        for kind, name in entity.items()
    ]
    components += [ComponentData(entity_type=kind, match_type=_ANY, match=None) for kind in any_name]
    response = await cluster.ask_any(
        DescribeClientQuotasRequest(components=components, strict=strict), DescribeClientQuotasResponse
    )
    check(response.error_code, response.error_message)
    return [
        ({part.entity_type: part.entity_name for part in entry.entity}, {v.key: v.value for v in entry.values})
        for entry in response.entries or ()
    ]


async def alter_quotas(cluster: ClientCore, entity: QuotaEntity, changes: Mapping[str, float | None]) -> None:
    """Set quotas; a value of None removes the quota."""
    request = AlterClientQuotasRequest(
        entries=[
            RequestEntryData(
                entity=[RequestEntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()],
                ops=[
                    OpData(key=key, value=value if value is not None else 0.0, remove=value is None)
                    for key, value in changes.items()
                ],
            )
        ]
    )

    response = await cluster.ask_controller(
        request, AlterClientQuotasResponse, first_error=lambda r: first_error(r.entries)
    )
    for entry in response.entries:
        check(entry.error_code, entry.error_message)


# -- SCRAM --------------------------------------------------------------------------------------------------------------


SCRAM_ITERATIONS_DEFAULT = 4096


@dataclass(frozen=True, slots=True)
class ScramUpsert:
    mechanism: ScramMechanism
    iterations: int
    password: str


async def describe_scram(
    cluster: ClientCore, users: Sequence[str] | None
) -> dict[str, list[tuple[ScramMechanism, int]]]:
    """Return mechanisms and iterations by user; None asks for all users that have credentials."""
    request = DescribeUserScramCredentialsRequest(
        users=None if users is None else [UserName(name=user) for user in users]
    )
    response = await cluster.ask_any(request, DescribeUserScramCredentialsResponse)
    check(response.error_code, response.error_message)
    found: dict[str, list[tuple[ScramMechanism, int]]] = {}
    for result in response.results:
        if not result.error_code:
            found[result.user] = [(ScramMechanism(c.mechanism), c.iterations) for c in result.credential_infos]
    return found


async def alter_scram(
    cluster: ClientCore, user: str, *, upserts: Sequence[ScramUpsert] = (), deletions: Sequence[ScramMechanism] = ()
) -> None:
    """Change a user's credentials. The password is not sent: the broker gets the salted hash."""
    upsertions = []
    for upsert in upserts:
        salt = os.urandom(26)
        salted = upsert.mechanism.salted_password(upsert.password, salt, upsert.iterations)
        upsertions.append(
            ScramCredentialUpsertion(
                name=user,
                mechanism=upsert.mechanism,
                iterations=upsert.iterations,
                salt=salt,
                salted_password=salted,
            )
        )
    request = AlterUserScramCredentialsRequest(
        deletions=[ScramCredentialDeletion(name=user, mechanism=mechanism) for mechanism in deletions],
        upsertions=upsertions,
    )

    response = await cluster.ask_controller(
        request, AlterUserScramCredentialsResponse, first_error=lambda r: first_error(r.results)
    )
    for result in response.results:
        if result.error_code:
            raise BrokerRefused(result.error_code, result.error_message)
