"""SCRAM credentials: DescribeUserScramCredentials v0 and AlterUserScramCredentials v0 (KIP-554).

The controller changes them; any other broker answers NOT_CONTROLLER, as Kafka does in ZooKeeper mode. A password is never sent:
the client sends it salted and hashed.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.words import AclOperation
from barnabas.broker.server.call import Call
from barnabas.broker.server.context import BrokerContext
from barnabas.broker.server.handler import serves
from barnabas.broker.server.refusal import refusal
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.config_store import ChangeConfig, ConfigStore
from barnabas.wire.auth.mechanisms.scram import BY_NAME, ITERATIONS_MAX, ITERATIONS_MIN, ScramCredential, ScramMechanism
from barnabas.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from barnabas.wire.messages.base import ApiMessage
from barnabas.wire.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

_EMPTY_NAME = "Username must not be empty"
_NO_SUCH_USER = "Attempt to describe a user credential that does not exist"


def _refuse_alter(request: AlterUserScramCredentialsRequest, code: ErrorCode, message: str | None) -> ApiMessage:
    users = dict.fromkeys(name for name, _ in _pairs(request))
    return AlterUserScramCredentialsResponse(results=[_altered(user, code, message) for user in users])


class ScramApi:
    def __init__(self, context: BrokerContext, store: ConfigStore, change_config: ChangeConfig) -> None:
        self._context = context
        self._store = store
        self._change_config = change_config

    # -- DescribeUserScramCredentials ---------------------------------------------------------------------------------

    @serves("DescribeUserScramCredentials", refusal("results <- users"))
    async def describe(self, call: Call, request: DescribeUserScramCredentialsRequest) -> ApiMessage:
        self._context.require_cluster(call, AclOperation.DESCRIBE)
        if not request.users:
            users = await self._store.read_all(paths.USERS)
            named = {paths.desanitize(name): settings for name, settings in users.items()}
            results = [_described(name, settings) for name, settings in sorted(named.items()) if _has_any(settings)]
            return DescribeUserScramCredentialsResponse(error_message=None, results=results)
        times = Counter(user.name for user in request.users)
        # All at once: one by one, thousands of users would take a minute.
        once = [paths.sanitize(name) for name, count in times.items() if name and count == 1]
        settings_of = await self._store.read_many(paths.USERS, once)
        results = []
        for name, count in times.items():
            if not name:
                results.append(_undescribed(name, ErrorCode.RESOURCE_NOT_FOUND, _EMPTY_NAME))
            elif count > 1:
                message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
                results.append(_undescribed(name, ErrorCode.DUPLICATE_RESOURCE, message))
            else:
                settings = settings_of[paths.sanitize(name)]
                if _has_any(settings):
                    results.append(_described(name, settings))
                else:
                    results.append(_undescribed(name, ErrorCode.RESOURCE_NOT_FOUND, f"{_NO_SUCH_USER}: {name}"))
        return DescribeUserScramCredentialsResponse(error_message=None, results=results)

    # -- AlterUserScramCredentials ------------------------------------------------------------------------------------

    @serves("AlterUserScramCredentials", _refuse_alter)
    async def alter(self, call: Call, request: AlterUserScramCredentialsRequest) -> ApiMessage:
        if not self._context.controller.is_active:
            raise Refused(ErrorCode.NOT_CONTROLLER, "This is not the correct controller for this cluster.")
        self._context.require_cluster(call, AclOperation.ALTER)
        results = _check(request)
        users = dict.fromkeys(name for name, _ in _pairs(request))
        deletions: dict[str, list[ScramCredentialDeletion]] = defaultdict(list)
        upsertions: dict[str, list[ScramCredentialUpsertion]] = defaultdict(list)
        for deletion in request.deletions:
            deletions[deletion.name].append(deletion)
        for upsertion in request.upsertions:
            upsertions[upsertion.name].append(upsertion)
        for user in users:
            if user not in results:
                results[user] = await self._alter_user(user, deletions[user], upsertions[user])
        return AlterUserScramCredentialsResponse(results=[results[user] for user in users])

    async def _alter_user(
        self, user: str, deletions: list[ScramCredentialDeletion], upsertions: list[ScramCredentialUpsertion]
    ) -> AlterUserScramCredentialsResult:
        def changed(stored: Mapping[str, str]) -> dict[str, str]:
            settings = dict(stored)
            for deletion in deletions:
                if settings.pop(ScramMechanism(deletion.mechanism).sasl_name, None) is None:
                    raise Refused(
                        ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"
                    )
            for upsertion in upsertions:
                mechanism = ScramMechanism(upsertion.mechanism)
                settings[mechanism.sasl_name] = ScramCredential.of_salted(
                    mechanism,
                    bytes(upsertion.salted_password),
                    salt=bytes(upsertion.salt),
                    iterations=upsertion.iterations,
                ).encode()
            return settings

        try:
            await self._change_config(paths.USERS, paths.sanitize(user), changed)
        except Refused as refusal:
            return _altered(user, refusal.code, refusal.message)
        return _altered(user)


def _check(request: AlterUserScramCredentialsRequest) -> dict[str, AlterUserScramCredentialsResult]:
    """Return errors by user name: one mistake refuses all changes of a user."""
    known = frozenset(ScramMechanism)
    wrong: dict[str, AlterUserScramCredentialsResult] = {}
    pairs = _pairs(request)
    for name, mechanism in pairs:
        if not name:
            wrong[name] = _altered(name, ErrorCode.UNACCEPTABLE_CREDENTIAL, _EMPTY_NAME)
        elif not paths.is_valid_name(paths.sanitize(name)):
            wrong[name] = _altered(name, ErrorCode.UNACCEPTABLE_CREDENTIAL, f"Username {name} cannot be stored")
        elif mechanism not in known:
            wrong[name] = _altered(name, ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    for upsertion in request.upsertions:
        if upsertion.name in wrong:
            continue
        if upsertion.iterations < ITERATIONS_MIN:
            wrong[upsertion.name] = _altered(upsertion.name, ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
        elif upsertion.iterations > ITERATIONS_MAX:
            wrong[upsertion.name] = _altered(upsertion.name, ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    for (name, _), count in Counter(pairs).items():
        if count > 1 and name not in wrong:
            message = "A user credential cannot be altered twice in the same request"
            wrong[name] = _altered(name, ErrorCode.DUPLICATE_RESOURCE, message)
    return wrong


def _pairs(request: AlterUserScramCredentialsRequest) -> list[tuple[str, int]]:
    """Return (user, mechanism) of every change in the request."""
    return [(upsertion.name, upsertion.mechanism) for upsertion in request.upsertions] + [
        (deletion.name, deletion.mechanism) for deletion in request.deletions
    ]


def _has_any(settings: Mapping[str, str]) -> bool:
    return any(name in settings for name in BY_NAME)


def _described(user: str, settings: Mapping[str, str]) -> DescribeUserScramCredentialsResult:
    result = DescribeUserScramCredentialsResult(user=user, error_message=None)
    for name, mechanism in BY_NAME.items():
        if (text := settings.get(name)) is not None:
            try:
                iterations = ScramCredential.decode(text).iterations
            except ValueError:
                return _undescribed(
                    user, ErrorCode.UNKNOWN_SERVER_ERROR, "Error processing describe user SCRAM credential"
                )
            result.credential_infos.append(CredentialInfo(mechanism=mechanism, iterations=iterations))
    return result


def _undescribed(user: str, code: ErrorCode, message: str) -> DescribeUserScramCredentialsResult:
    return DescribeUserScramCredentialsResult(user=user, error_code=code, error_message=message)


def _altered(
    user: str, code: ErrorCode = ErrorCode.NONE, message: str | None = None
) -> AlterUserScramCredentialsResult:
    return AlterUserScramCredentialsResult(user=user, error_code=code, error_message=message)
