"""Roles and operations become entries."""

import pytest

from barnabas.base.words import AclOperation, AclResourceType, PatternType, Permission
from barnabas.cli._command import UsageError
from barnabas.cli.acls import Rights, Subjects, parse_operation, plan_acls
from barnabas.client.admin.acls import Ace, ResourcePattern

TOPIC = ResourcePattern(AclResourceType.TOPIC, "t", PatternType.LITERAL)
GROUP = ResourcePattern(AclResourceType.GROUP, "g", PatternType.LITERAL)
TXN = ResourcePattern(AclResourceType.TRANSACTIONAL_ID, "x", PatternType.LITERAL)


def operations(plan: dict[ResourcePattern, list[Ace]], pattern: ResourcePattern) -> set[str]:
    return {entry.operation.name for entry in plan[pattern]}


def alice() -> Subjects:
    return Subjects(allow_principal=["User:alice"])


def test_producer_and_consumer_get_the_rights_that_they_need() -> None:
    plan = plan_acls([TOPIC, GROUP, TXN], alice(), Rights(producer=True, consumer=True, idempotent=True))
    assert operations(plan, TOPIC) == {"READ", "WRITE", "DESCRIBE", "CREATE"}
    assert operations(plan, GROUP) == {"READ"}
    assert operations(plan, TXN) == {"WRITE", "DESCRIBE"}
    cluster = ResourcePattern(AclResourceType.CLUSTER, "kafka-cluster", PatternType.LITERAL)
    assert operations(plan, cluster) == {"IDEMPOTENT_WRITE"}


def test_hosts_default_to_all_and_multiply_with_principals() -> None:
    subjects = Subjects(allow_principal=["User:a", "User:b"], allow_host=["h1", "h2"], deny_principal=["User:c"])
    entries = plan_acls([TOPIC], subjects, Rights(operation=["read"]))[TOPIC]
    assert len(entries) == 5
    assert Ace("User:c", "*", AclOperation.READ, Permission.DENY) in entries


def test_operation_that_a_resource_does_not_have_is_refused() -> None:
    with pytest.raises(UsageError, match="ResourceType GROUP only supports operations All, Read"):
        plan_acls([GROUP], alice(), Rights(operation=["Write"]))


@pytest.mark.parametrize("text", ["DescribeConfigs", "describe_configs", " DESCRIBECONFIGS "])
def test_operation_is_known_by_any_spelling(text: str) -> None:
    assert parse_operation(text) is AclOperation.DESCRIBE_CONFIGS


@pytest.mark.parametrize("text", ["Any", "Unknown", "Fly"])
def test_unknown_operation_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_operation(text)


def test_entries_are_printed_as_kafka_prints_them() -> None:
    entry = Ace("User:a", "*", AclOperation.READ, Permission.ALLOW)
    assert str(entry) == "(principal=User:a, host=*, operation=READ, permissionType=ALLOW)"
    assert str(TOPIC) == "ResourcePattern(resourceType=TOPIC, name=t, patternType=LITERAL)"


def test_two_phase_commit_can_be_granted() -> None:
    """The tools did not know operation 15, which brokers ask for (KIP-939)."""
    plan = plan_acls([TXN], alice(), Rights(operation=["TwoPhaseCommit"]))
    assert plan == {TXN: [Ace("User:alice", "*", AclOperation.TWO_PHASE_COMMIT, Permission.ALLOW)]}
