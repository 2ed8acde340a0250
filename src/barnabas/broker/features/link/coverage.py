"""Which names lie wholly within what a link mirrors. Pure.

A name is easy: the link's expression matches it or not. A prefix stands for names without end, and an expression can match
some of them: a prefix lies within `orders-.*` if it begins with `orders-`. What an expression matches is only worked out
for literal text, groups, `|` and `.*` at the end. Any other expression covers no prefix, which is the safe answer.
"""

from collections.abc import Mapping
from typing import Final

from barnabas.base.expressions import compile_expression
from barnabas.base.words import AclResourceType, PatternType
from barnabas.broker.security.acl import WILDCARD, ResourcePattern
from barnabas.broker.zookeeper_client.znodes_link import LinkSpec, MirrorState, MirrorTopic

#: Alternatives of one expression.
_ALTERNATIVES_MAX: Final = 1000
_SPECIAL: Final = frozenset(".^$*+?{}[]\\|()")


class _NotWorkedOut(Exception):
    """The expression has something else than literal text, groups, `|` and `.*` at the end."""


def covers(spec: LinkSpec, topics: Mapping[str, MirrorTopic], pattern: ResourcePattern) -> bool:
    """Whether all that the pattern of an ACL stands for is mirrored by the link. `topics` are those of the link."""
    is_all = pattern.pattern_type is PatternType.LITERAL and pattern.name == WILDCARD
    if pattern.resource_type is AclResourceType.TRANSACTIONAL_ID:
        # No mirror has a transactional id. A link that mirrors every topic stands for the whole source.
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
    """Prefixes such that the expression matches every name that begins with one. There may be others."""
    try:
        found, end = _alternatives(expression, 0)
    except _NotWorkedOut:
        return frozenset()
    if end != len(expression):
        return frozenset()
    return frozenset(text for text, is_open in found if is_open)


#: (literal text, whether anything may follow).
_Alternative = tuple[str, bool]


def _alternatives(text: str, at: int) -> tuple[list[_Alternative], int]:
    """Up to the end, or to a closing parenthesis."""
    found: list[_Alternative] = []
    while True:
        some, at = _sequence(text, at)
        found += some
        if len(found) > _ALTERNATIVES_MAX:
            raise _NotWorkedOut
        if at == len(text) or text[at] == ")":
            return found, at
        at += 1  # a bar


def _sequence(text: str, at: int) -> tuple[list[_Alternative], int]:
    found: list[_Alternative] = [("", False)]
    while at < len(text) and text[at] not in "|)":
        item, at = _item(text, at)
        if at < len(text) and text[at] in "*+?{":
            raise _NotWorkedOut
        if any(is_open for _, is_open in found):
            raise _NotWorkedOut  # something after `.*`
        found = [(before + after, is_open) for before, _ in found for after, is_open in item]
        if len(found) > _ALTERNATIVES_MAX:
            raise _NotWorkedOut
    return found, at


def _item(text: str, at: int) -> tuple[list[_Alternative], int]:
    if text.startswith(".*", at):
        return [("", True)], at + 2
    if text[at] == "(":
        at += 3 if text.startswith("(?:", at) else 1
        if text.startswith("?", at):
            raise _NotWorkedOut  # flags
        inner, at = _alternatives(text, at)
        if at == len(text):
            raise _NotWorkedOut
        return inner, at + 1
    if text[at] == "\\":
        if at + 1 == len(text) or text[at + 1].isalnum():
            raise _NotWorkedOut  # a class such as \d
        return [(text[at + 1], False)], at + 2
    if text[at] in _SPECIAL:
        raise _NotWorkedOut
    return [(text[at], False)], at + 1
