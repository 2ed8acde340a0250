"""What the security APIs refuse, and how refusals look on the wire."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from barnabas.base.errors import ErrorCode, Malformed, Refused
from barnabas.base.words import AclOperation, AclResourceType, Permission
from barnabas.broker.api import quotas, scram
from barnabas.broker.api.acls import AclApi, _binding, _filter
from barnabas.broker.api.cluster import ClusterApi
from barnabas.broker.security.acl import Entry, Filter, ResourcePattern
from barnabas.broker.security.acl_store import AclUnreadable, Removed
from barnabas.wire.frame import encode_response
from barnabas.wire.messages.alter_client_quotas import RequestEntityData, RequestEntryData
from barnabas.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from barnabas.wire.messages.create_acls import AclCreation
from barnabas.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from barnabas.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from tests.support.handlers import handler_of


def upsertion(name: str = "alice", mechanism: int = 1, iterations: int = 4096) -> ScramCredentialUpsertion:
    return ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=iterations, salt=b"s", salted_password=b"p"
    )


@pytest.mark.parametrize(
    ("upsertions", "deletions", "code", "words"),
    [
        ([upsertion(name="")], [], ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"),
        ([upsertion(mechanism=3)], [], ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
        ([upsertion(iterations=4095)], [], ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations"),
        ([upsertion(iterations=16385)], [], ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations"),
        ([upsertion(), upsertion()], [], ErrorCode.DUPLICATE_RESOURCE, "cannot be altered twice"),
        ([upsertion()], [("alice", 1)], ErrorCode.DUPLICATE_RESOURCE, "cannot be altered twice"),
        ([], [("alice", 0)], ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
        ([], [("", 1)], ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"),
        ([upsertion(name="..")], [], ErrorCode.UNACCEPTABLE_CREDENTIAL, "cannot be stored"),
        ([], [(".", 1)], ErrorCode.UNACCEPTABLE_CREDENTIAL, "cannot be stored"),
    ],
)
def test_credentials_that_cannot_be_are_refused_in_kafkas_words(
    upsertions: list[Any], deletions: list[tuple[str, int]], code: ErrorCode, words: str
) -> None:
    request = AlterUserScramCredentialsRequest(
        upsertions=upsertions,
        deletions=[ScramCredentialDeletion(name=name, mechanism=mechanism) for name, mechanism in deletions],
    )
    [wrong] = scram._check(request).values()
    assert wrong.error_code == code and words in (wrong.error_message or "")


def test_good_credentials_of_both_mechanisms_are_accepted() -> None:
    request = AlterUserScramCredentialsRequest(
        upsertions=[upsertion(mechanism=1), upsertion(mechanism=2, iterations=16384), upsertion(name="bob")]
    )
    assert scram._check(request) == {}


@pytest.mark.parametrize("kind", [quotas.USER, quotas.CLIENT_ID])
def test_quota_of_a_name_that_no_znode_can_have_is_refused(kind: str) -> None:
    def path_of(name: str | None) -> tuple[str, str, frozenset[str]]:
        return quotas._path_of(RequestEntryData(entity=[RequestEntityData(entity_type=kind, entity_name=name)], ops=[]))

    for name in (".", ".."):
        with pytest.raises(Refused, match="cannot be stored") as refused:
            path_of(name)
        assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert [path_of(name)[1] for name in ("...", "a/b", None)] == ["...", "a%2Fb", "<default>"]


def creation(**changes: Any) -> AclCreation:
    good: dict[str, Any] = {
        "resource_type": 2,
        "resource_name": "t",
        "resource_pattern_type": 3,
        "principal": "User:a",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    return AclCreation(**{**good, **changes})


def test_entry_with_known_numbers_is_read() -> None:
    pattern, entry = _binding(creation(operation=2))
    assert (pattern.name, entry.principal, entry.operation) == ("t", "User:a", 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"resource_type": 0},
        {"resource_type": 1},
        {"resource_type": 99},
        {"resource_pattern_type": 1},
        {"resource_pattern_type": 2},
        {"operation": 0},
        {"operation": 1},
        {"operation": 99},
        {"permission_type": 0},
        {"permission_type": 1},
    ],
)
def test_entry_with_numbers_that_mean_nothing_ends_the_connection(changes: dict[str, int]) -> None:
    with pytest.raises(Malformed):
        _binding(creation(**changes))


@pytest.mark.parametrize(
    "changes",
    [{"resource_type_filter": 0}, {"pattern_type_filter": 9}, {"operation": 0}, {"permission_type": 7}],
)
def test_filter_with_numbers_that_mean_nothing_ends_the_connection(changes: dict[str, int]) -> None:
    good: dict[str, Any] = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    _filter(DeleteAclsFilter(**good))
    with pytest.raises(Malformed):
        _filter(DeleteAclsFilter(**{**good, **changes}))


def test_revocation_that_could_not_be_made_is_not_called_done() -> None:
    pattern = ResourcePattern(AclResourceType.TOPIC, "t")
    entry = Entry("User:a", "*", AclOperation.READ, Permission.ALLOW)
    unreadable = AclUnreadable("the list of u cannot be read")

    async def remove(filters: list[Filter]) -> list[Removed]:
        return [Removed([(pattern, entry)], [unreadable]), Removed([(pattern, entry)], [])]

    api = AclApi(cast(Any, SimpleNamespace(require_cluster=lambda *_: None)), cast(Any, SimpleNamespace(remove=remove)))
    wanted = DeleteAclsFilter(resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1)
    response: Any = asyncio.run(api.delete(cast(Any, None), DeleteAclsRequest(filters=[wanted, wanted])))
    answered = [
        (result.error_code, result.error_message, len(result.matching_acls)) for result in response.filter_results
    ]
    assert answered == [(ErrorCode.UNKNOWN_SERVER_ERROR, "the list of u cannot be read", 1), (ErrorCode.NONE, None, 1)]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_refused_election_has_an_error_for_each_partition(version: int) -> None:
    request = ElectLeadersRequest(topic_partitions=[TopicPartitions(topic="t", partitions=[0, 1])])
    elections = handler_of(ClusterApi(cast(Any, None)), "ElectLeaders")
    response: Any = elections.refuse(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, None)
    [topic] = response.replica_election_results
    assert [each.error_code for each in topic.partition_result] == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED] * 2
    encode_response(response, version, 1)
