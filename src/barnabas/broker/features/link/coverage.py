"""Decides which names lie wholly within the names that a link mirrors. Pure.

For a single name, the link's expression matches or not. A prefix stands for infinitely many names, of which an expression may
match only some: a prefix lies within `orders-.*` if it begins with `orders-`. The analysis understands literal text, groups,
`|` and `.*` at the end. Any other expression covers no prefix, which is the safe answer.
"""

from collections.abc import Mapping
from typing import Final

from barnabas.base.expressions import compile_expression
from barnabas.base.words import AclResourceType, PatternType
from barnabas.broker.security.acl import WILDCARD, ResourcePattern
from barnabas.broker.zookeeper_client.znodes_link import LinkSpec, MirrorState, MirrorTopic

#: Limit of the alternatives in one expression.
_ALTERNATIVES_MAX: Final = 1000
_SPECIAL: Final = frozenset(".^$*+?{}[]\\|()")


class _TooGeneral(Exception):
    """The expression uses more than literal text, groups, `|` and `.*` at the end."""


def covers(spec: LinkSpec, topics: Mapping[str, MirrorTopic], pattern: ResourcePattern) -> bool:
    """Whether the link mirrors everything that an ACL's pattern matches. `topics` are the link's topics."""
    is_all = pattern.pattern_type is PatternType.LITERAL and pattern.name == WILDCARD
    if pattern.resource_type is AclResourceType.TRANSACTIONAL_ID:
        # Mirrors have no transactional ids. Only a link that mirrors every topic copies ACLs about them.
        return "" in open_prefixes(spec.topics)
    if pattern.resource_type is AclResourceType.TOPIC:
        expression: str | None = spec.topics
        if pattern.pattern_type is PatternType.LITERAL and not is_all:
            mirror = topics.get(pattern.name)
            return mirror is not None and mirror.state not in (MirrorState.STOPPED, MirrorState.PROMOTED)
    elif pattern.resource_type is AclResourceType.GROUP:
        expression = spec.groups
    else:
        return False
    if expression is None:
        return False
    if pattern.pattern_type is PatternType.LITERAL and not is_all:
        return compile_expression(expression).fullmatch(pattern.name) is not None
    prefix = "" if is_all else pattern.name
    return any(prefix.startswith(each) for each in open_prefixes(expression))


def open_prefixes(expression: str) -> frozenset[str]:
    """Return prefixes such that the expression matches all names that begin with one. The list may be incomplete."""
    try:
        found, end = _alternatives(expression, 0)
    except _TooGeneral:
        return frozenset()
    if end != len(expression):
        return frozenset()
    return frozenset(text for text, is_open in found if is_open)


#: Literal text, and whether any text may follow.
_Alternative = tuple[str, bool]


def _alternatives(text: str, at: int) -> tuple[list[_Alternative], int]:
    """Parse up to the end, or to a closing parenthesis."""
    found: list[_Alternative] = []
    while True:
        some, at = _sequence(text, at)
        found += some
        if len(found) > _ALTERNATIVES_MAX:
            raise _TooGeneral
        if at == len(text) or text[at] == ")":
            return found, at
        at += 1  # skip the bar


def _sequence(text: str, at: int) -> tuple[list[_Alternative], int]:
    found: list[_Alternative] = [("", False)]
    while at < len(text) and text[at] not in "|)":
        item, at = _item(text, at)
        if at < len(text) and text[at] in "*+?{":
            raise _TooGeneral
        if any(is_open for _, is_open in found):
            raise _TooGeneral  # text after `.*`
        found = [(before + after, is_open) for before, _ in found for after, is_open in item]
        if len(found) > _ALTERNATIVES_MAX:
            raise _TooGeneral
    return found, at


def _item(text: str, at: int) -> tuple[list[_Alternative], int]:
    if text.startswith(".*", at):
        return [("", True)], at + 2
    if text[at] == "(":
        at += 3 if text.startswith("(?:", at) else 1
        if text.startswith("?", at):
            raise _TooGeneral  # flags
        inner, at = _alternatives(text, at)
        if at == len(text):
            raise _TooGeneral
        return inner, at + 1
    if text[at] == "\\":
        if at + 1 == len(text) or text[at + 1].isalnum():
            raise _TooGeneral  # a class such as \d
        return [(text[at + 1], False)], at + 2
    if text[at] in _SPECIAL:
        raise _TooGeneral
    return [(text[at], False)], at + 1
