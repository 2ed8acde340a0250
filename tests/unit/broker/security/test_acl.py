"""Decisions of the ACL authorizer: Kafka's rules, one by one."""

import itertools
from typing import Any

import pytest

from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.words import ACL_RESOURCES, AclOperation, AclResourceType, PatternType, Permission
from barnabas.broker.security import acl
from barnabas.broker.security.acl import ALL, ANY, MATCH, AclAuthorizer, Entry, Filter, ResourcePattern, check_creation
from barnabas.broker.security.authorizer import SUPPORTED_OPERATIONS
from barnabas.broker.security.principal import Principal

ALICE = Principal("User", "alice")
BOB = Principal("User", "bob")
HOST = "10.0.0.1"
TOPIC = AclResourceType.TOPIC


def allow(operation: int, principal: str = "User:alice", host: str = "*") -> Entry:
    return Entry(principal, host, operation, Permission.ALLOW)


def deny(operation: int, principal: str = "User:alice", host: str = "*") -> Entry:
    return Entry(principal, host, operation, Permission.DENY)


def literal(name: str, kind: AclResourceType = TOPIC) -> ResourcePattern:
    return ResourcePattern(kind, name)


def prefixed(name: str, kind: AclResourceType = TOPIC) -> ResourcePattern:
    return ResourcePattern(kind, name, PatternType.PREFIXED)


def authorizer(*held: tuple[ResourcePattern, Entry], **options: object) -> AclAuthorizer:
    made = AclAuthorizer(**options)  # type: ignore[arg-type]
    by_pattern: dict[ResourcePattern, list[Entry]] = {}
    for pattern, entry in held:
        by_pattern.setdefault(pattern, []).append(entry)
    for pattern, entries in by_pattern.items():
        made.set_entries(pattern, entries)
    return made


def test_resource_without_entries_is_closed_by_default() -> None:
    assert not authorizer().allows(ALICE, HOST, AclOperation.READ, TOPIC, "t")
    assert authorizer(allow_if_no_acl=True).allows(ALICE, HOST, AclOperation.READ, TOPIC, "t")


def test_any_entry_that_covers_a_resource_closes_it_for_others() -> None:
    for pattern in (literal("t"), literal("*"), prefixed("")):
        made = authorizer((pattern, allow(AclOperation.READ)), allow_if_no_acl=True)
        assert not made.allows(BOB, HOST, AclOperation.READ, TOPIC, "t")


def test_super_user_is_allowed_even_denied_operations() -> None:
    made = authorizer((literal("t"), deny(ALL, "User:*")), super_users={"User:alice"})
    assert made.allows(ALICE, HOST, AclOperation.DELETE, TOPIC, "t")
    assert made.allows_on_any(ALICE, HOST, AclOperation.WRITE, TOPIC)
    assert not made.allows(BOB, HOST, AclOperation.DELETE, TOPIC, "t")


IMPLIED = {
    AclOperation.DESCRIBE: {AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER},
    AclOperation.DESCRIBE_CONFIGS: {AclOperation.ALTER_CONFIGS},
}
PATTERNS = {"literal": literal, "prefixed": prefixed, "wildcard": lambda name, kind: literal("*", kind)}


@pytest.mark.parametrize("kind", ACL_RESOURCES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_operation_against_every_entry(kind: AclResourceType, pattern: str) -> None:
    """Table: asked operation x entry's operation x allow and deny, on each resource type and pattern."""
    operations = SUPPORTED_OPERATIONS[kind]
    resource = PATTERNS[pattern]("thing", kind)
    for asked, held in itertools.product(operations, (*operations, ALL)):
        permitted = held in (asked, ALL) or held in IMPLIED.get(asked, ())
        made = authorizer((resource, allow(held)))
        assert made.allows(ALICE, HOST, asked, kind, "thing") is permitted, (asked, held)
        assert not made.allows(BOB, HOST, asked, kind, "thing")
        # A denied operation denies itself alone: nothing is implied by it.
        denying = authorizer((resource, allow(ALL)), (resource, deny(held)))
        assert denying.allows(ALICE, HOST, asked, kind, "thing") is (held not in (asked, ALL)), (asked, held)


def test_prefix_covers_names_that_begin_with_it_and_no_other() -> None:
    made = authorizer((prefixed("pay"), allow(AclOperation.READ)))
    assert made.allows(ALICE, HOST, AclOperation.READ, TOPIC, "payments")
    assert made.allows(ALICE, HOST, AclOperation.READ, TOPIC, "pay")
    assert not made.allows(ALICE, HOST, AclOperation.READ, TOPIC, "pa")
    assert not made.allows(ALICE, HOST, AclOperation.READ, AclResourceType.GROUP, "payments")


def test_hosts_are_compared_as_written() -> None:
    made = authorizer((literal("t"), allow(AclOperation.READ, host=HOST)))
    assert made.allows(ALICE, HOST, AclOperation.READ, TOPIC, "t")
    assert not made.allows(ALICE, "10.0.0.2", AclOperation.READ, TOPIC, "t")
    made = authorizer(
        (literal("t"), allow(AclOperation.READ)), (literal("t"), deny(AclOperation.READ, host="10.0.0.2"))
    )
    assert made.allows(ALICE, HOST, AclOperation.READ, TOPIC, "t")
    assert not made.allows(ALICE, "10.0.0.2", AclOperation.READ, TOPIC, "t")


def test_principals_of_another_kind_are_others() -> None:
    made = authorizer((literal("t"), allow(AclOperation.READ, "User:*")))
    assert made.allows(BOB, HOST, AclOperation.READ, TOPIC, "t")
    made = authorizer((literal("t"), allow(AclOperation.READ, "Group:alice")))
    assert not made.allows(ALICE, HOST, AclOperation.READ, TOPIC, "t")


def test_denied_anywhere_wins_over_allowed_anywhere() -> None:
    for allowing, denying in itertools.permutations([literal("pay"), literal("*"), prefixed("p")], 2):
        made = authorizer((allowing, allow(AclOperation.READ)), (denying, deny(AclOperation.READ, "User:*")))
        assert not made.allows(ALICE, HOST, AclOperation.READ, TOPIC, "pay")


def test_change_is_seen_by_the_next_question() -> None:
    made = authorizer((literal("t"), allow(AclOperation.READ)))
    assert made.allows(ALICE, HOST, AclOperation.READ, TOPIC, "t")
    made.set_entries(literal("t"), ())
    assert not made.allows(ALICE, HOST, AclOperation.READ, TOPIC, "t")
    made.set_entries(prefixed("t"), [allow(AclOperation.WRITE)])
    assert made.allows(ALICE, HOST, AclOperation.DESCRIBE, TOPIC, "t")


def test_remembered_decisions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl, "DECISIONS_MAX", 10)
    made = authorizer((prefixed("t"), allow(AclOperation.READ)))
    for number in range(35):
        assert made.allows(ALICE, HOST, AclOperation.READ, TOPIC, f"t{number}")
    assert len(made._decisions) <= 10


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        ([], False),
        ([(literal("t"), allow(AclOperation.WRITE))], True),
        ([(literal("t"), allow(ALL, "User:*"))], True),
        ([(literal("t"), allow(AclOperation.READ))], False),
        ([(literal("t"), allow(AclOperation.WRITE, host="10.9.9.9"))], False),
        ([(literal("t"), allow(AclOperation.WRITE)), (literal("t"), deny(AclOperation.WRITE))], False),
        ([(literal("t"), allow(AclOperation.WRITE)), (literal("*"), deny(AclOperation.WRITE))], False),
        ([(literal("t"), allow(AclOperation.WRITE)), (prefixed("t"), deny(ALL))], False),
        ([(literal("*"), allow(AclOperation.WRITE)), (prefixed("t"), deny(ALL))], True),
        ([(prefixed("pay"), allow(AclOperation.WRITE)), (prefixed("p"), deny(ALL))], False),
        ([(prefixed("p"), allow(AclOperation.WRITE)), (prefixed("pay"), deny(ALL))], True),
        ([(prefixed("p"), allow(AclOperation.WRITE)), (literal("p"), deny(ALL))], True),
    ],
)
def test_whether_there_is_any_topic_to_write_to(held: list[tuple[ResourcePattern, Entry]], expected: bool) -> None:
    """KIP-679."""
    assert authorizer(*held).allows_on_any(ALICE, HOST, AclOperation.WRITE, TOPIC) is expected


def test_without_entries_any_topic_is_open_when_the_setting_says_so() -> None:
    assert authorizer(allow_if_no_acl=True).allows_on_any(ALICE, HOST, AclOperation.WRITE, TOPIC)
    closed = authorizer((literal("*"), deny(ALL, "User:*")), allow_if_no_acl=True)
    assert not closed.allows_on_any(ALICE, HOST, AclOperation.WRITE, TOPIC)


@pytest.mark.parametrize(
    ("wanted", "covered"),
    [
        (Filter(), {"pay", "p*", "*"}),
        (Filter(name="pay"), {"pay"}),
        (Filter(name="payments", pattern_type=MATCH), {"p*", "*"}),
        (Filter(name="pay", pattern_type=MATCH), {"pay", "p*", "*"}),
        (Filter(name="p", pattern_type=PatternType.PREFIXED), {"p*"}),
        (Filter(pattern_type=PatternType.LITERAL), {"pay", "*"}),
        (Filter(resource_type=AclResourceType.GROUP), set()),
        (Filter(principal="User:bob"), set()),
        (Filter(principal="User:alice", host="*", operation=AclOperation.READ, permission=Permission.ALLOW), {"pay"}),
        (Filter(operation=ANY, permission=Permission.DENY), {"*"}),
    ],
)
def test_filters(wanted: Filter, covered: set[str]) -> None:
    made = authorizer(
        (literal("pay"), allow(AclOperation.READ)),
        (prefixed("p"), allow(ALL)),
        (literal("*"), deny(AclOperation.WRITE)),
    )
    names = {p.name + ("*" if p.pattern_type is PatternType.PREFIXED else "") for p in made.find(wanted)}
    assert names == covered


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (literal("other", AclResourceType.CLUSTER), "only valid name for the CLUSTER resource is kafka-cluster"),
        (literal(""), "Invalid empty resource name"),
        (literal("a/b", AclResourceType.GROUP), "Failed to create ACL"),
        (literal(".."), "Failed to create ACL"),
        (prefixed("a\x01b"), "Failed to create ACL"),
    ],
)
def test_patterns_that_cannot_be_stored(pattern: ResourcePattern, words: str) -> None:
    with pytest.raises(Refused, match=words) as refused:
        check_creation(pattern, "User:a")
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_good_patterns_are_accepted() -> None:
    check_creation(literal("kafka-cluster", AclResourceType.CLUSTER), "User:*")
    check_creation(prefixed("pay"), "Group:")
    check_creation(literal("*"), ":a")


@pytest.mark.parametrize("principal", ["alice", ""])
def test_principal_without_a_kind_is_not_stored(principal: str) -> None:
    """An Apache broker of the cluster could not read the resource's list any more."""
    with pytest.raises(Refused, match="expected a string in format principalType:principalName") as refused:
        check_creation(literal("t"), principal)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


# -- what a question costs ---------------------------------------------------------------------------------------------


def test_question_that_was_asked_before_is_not_decided_again() -> None:
    """Under two microseconds on the hot path: one look into a dict, however many entries there are."""
    decided: list[str] = []

    class Watched(AclAuthorizer):
        def _decide(
            self, principal: str, host: str, operation: AclOperation, resource: AclResourceType, name: str
        ) -> bool:
            decided.append(name)
            return super()._decide(principal, host, operation, resource, name)

    authorizer = Watched()
    pattern = ResourcePattern(AclResourceType.TOPIC, "orders")
    authorizer.set_entries(pattern, [Entry("User:alice", "*", AclOperation.READ, Permission.ALLOW)])
    alice = Principal("User", "alice")
    for _ in range(100):
        assert authorizer.allows(alice, "h", AclOperation.READ, AclResourceType.TOPIC, "orders")
    assert decided == ["orders"]
    authorizer.set_entries(pattern, [Entry("User:alice", "*", AclOperation.READ, Permission.ALLOW)])
    assert authorizer.allows(alice, "h", AclOperation.READ, AclResourceType.TOPIC, "orders") and decided == ["orders"]
    authorizer.set_entries(pattern, ())
    assert not authorizer.allows(alice, "h", AclOperation.READ, AclResourceType.TOPIC, "orders")
    assert decided == ["orders", "orders"]


def test_prefixes_are_looked_up_by_length_and_not_one_by_one() -> None:
    class Counted(dict[str, frozenset[Entry]]):
        looks = 0

        def get(self, key: str, default: Any = None) -> Any:
            Counted.looks += 1
            return super().get(key, default)

    authorizer = AclAuthorizer()
    authorizer._prefixed[AclResourceType.TOPIC] = Counted()
    entry = Entry("User:alice", "*", AclOperation.READ, Permission.ALLOW)
    for number in range(1_000):
        authorizer.set_entries(ResourcePattern(AclResourceType.TOPIC, f"p{number:03}-", PatternType.PREFIXED), [entry])
    Counted.looks = 0
    alice = Principal("User", "alice")
    assert authorizer.allows(alice, "h", AclOperation.READ, AclResourceType.TOPIC, "p123-x") and Counted.looks == 1
    assert not authorizer.allows(alice, "h", AclOperation.READ, AclResourceType.TOPIC, "p1") and Counted.looks == 1
    for number in range(1_000):
        authorizer.set_entries(ResourcePattern(AclResourceType.TOPIC, f"p{number:03}-", PatternType.PREFIXED), ())
    Counted.looks = 0
    assert not authorizer.allows(alice, "h", AclOperation.READ, AclResourceType.TOPIC, "p123-x") and Counted.looks == 0


def test_decisions_about_names_of_any_length_are_not_kept() -> None:
    authorizer = AclAuthorizer()
    for number in range(10):
        assert not authorizer.allows(
            Principal("User", "eve"), "h", AclOperation.READ, AclResourceType.TOPIC, f"{number}" * 5000
        )
    assert authorizer._decisions == {}
    assert not authorizer.allows(Principal("User", "eve"), "h", AclOperation.READ, AclResourceType.TOPIC, "short")
    assert len(authorizer._decisions) == 1
