"""The prefixes that lie wholly within an expression of a link."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.base.expressions import BadExpression, compile_expression
from barnabas.base.words import AclResourceType, PatternType
from barnabas.broker.features.link.coverage import covers, open_prefixes
from barnabas.broker.security.acl import ResourcePattern
from barnabas.broker.zookeeper_client.znodes_link import LinkSpec


@pytest.mark.parametrize(
    ("expression", "prefixes"),
    [
        (".*", {""}),
        ("orders-.*", {"orders-"}),
        ("orders", set()),
        ("a|b-.*|c\\.d.*", {"b-", "c.d"}),
        ("(eu|us)-(orders|payments).*", {"eu-orders", "eu-payments", "us-orders", "us-payments"}),
        ("(?:a.*|b)", {"a"}),
        ("((a|b).*)", {"a", "b"}),
        (".*-orders", set()),
        ("a.*b", set()),
        ("a.+", set()),
        ("[ab].*", set()),
        ("a*", set()),
        ("ab?.*", set()),
        ("(a.*)?", set()),
        ("\\d.*", set()),
        ("\\p{L}.*", set()),
        ("a.*{2}", set()),
        ("^a.*", set()),
        ("a.*$", set()),
        ("(?i)a.*", set()),
        ("(a.*", set()),
        ("a.*)", set()),
        ("", set()),
        ("|".join(["(a|b|c|d|e|f|g|h|i|j)" * 5]) + ".*", set()),
    ],
)
def test_prefixes_that_an_expression_covers(expression: str, prefixes: set[str]) -> None:
    assert open_prefixes(expression) == prefixes


@given(st.text(alphabet="ab.*|()\\+?[]^$-:", max_size=14), st.text(alphabet="ab.-*", max_size=6))
def test_every_name_that_begins_with_a_covered_prefix_matches(expression: str, rest: str) -> None:
    prefixes = open_prefixes(expression)
    try:
        pattern = compile_expression(expression)
    except BadExpression:
        return  # no link can have it
    for prefix in prefixes:
        assert pattern.fullmatch(prefix + rest), (expression, prefix, rest)


@pytest.mark.parametrize(
    ("topics", "groups", "kind", "is_covered"),
    [
        (".*", None, AclResourceType.TOPIC, True),
        ("a.*", ".*", AclResourceType.TOPIC, False),
        (".*", None, AclResourceType.GROUP, False),
        ("a", ".*", AclResourceType.GROUP, True),
        (".*", None, AclResourceType.TRANSACTIONAL_ID, True),
        ("a.*", ".*", AclResourceType.TRANSACTIONAL_ID, False),
        (".*", ".*", AclResourceType.CLUSTER, False),
        (".*", ".*", AclResourceType.DELEGATION_TOKEN, False),
        (".*", ".*", AclResourceType.USER, False),
    ],
)
def test_entry_about_all_resources_needs_a_link_of_all_names(
    topics: str, groups: str | None, kind: AclResourceType, is_covered: bool
) -> None:
    spec = LinkSpec(configs={}, topics=topics, groups=groups)
    assert covers(spec, {}, ResourcePattern(kind, "*", PatternType.LITERAL)) is is_covered
