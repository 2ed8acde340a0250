"""Compatibility settings and modes: of a subject, of its context, and global. Pure.

The nearest setting wins: the subject's, then its context's (for the default context the global one), then that of the context
`.__GLOBAL`, then the default.
"""

from collections.abc import Mapping
from typing import Any, Final

from barnabas.services.registry import errors, names
from barnabas.services.registry.content import BadContent, metadata_of, rule_set_of, rule_set_trouble
from barnabas.services.registry.store import Store

LEVELS: Final = (
    "NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE",
)  # fmt: skip
READWRITE, READONLY, READONLY_OVERRIDE = "READWRITE", "READONLY", "READONLY_OVERRIDE"
IMPORT, FORWARD = "IMPORT", "FORWARD"
MODES: Final = (READWRITE, READONLY, READONLY_OVERRIDE, IMPORT, FORWARD)
LEVEL: Final = "compatibilityLevel"

_GLOBAL: Final = f":{names.GLOBAL_CONTEXT}:"
#: In the order in which Confluent writes them.
_FIELDS: Final = (
    "alias", "aliasForDeks", "normalize", "validateFields", "validateNewSchemas", "validateRules", LEVEL,
    "compatibilityPolicy", "compatibilityGroup", "defaultMetadata", "overrideMetadata", "defaultRuleSet",
    "overrideRuleSet",
)  # fmt: skip
_FLAGS: Final = ("normalize", "validateFields", "validateNewSchemas", "validateRules")
#: Fields that a subject inherits from the global setting.
_INHERITED: Final = (*_FLAGS, "compatibilityPolicy", "compatibilityGroup")


def config(store: Store, subject: str | None) -> dict[str, Any] | None:
    """Return the settings of exactly this subject or context; for the global settings, the default if nothing is set."""
    found = store.configs.get(subject)
    if found is not None:
        return _with_level(store, found)
    return {LEVEL: store.default_compatibility} if _is_global(subject) else None


def config_in_scope(store: Store, subject: str | None) -> dict[str, Any]:
    own = store.configs.get(subject)
    if subject is not None and own is not None:
        overall = config(store, None) or {}
        inherited = {name: overall[name] for name in _INHERITED if name in overall}
        return _ordered(inherited | _with_level(store, own))
    for place in _scope(subject):
        if (found := store.configs.get(place)) is not None:
            return _with_level(store, found)
    return {LEVEL: store.default_compatibility}


def mode(store: Store, subject: str | None) -> str | None:
    found = store.modes.get(subject)
    return READWRITE if found is None and _is_global(subject) else found


def mode_in_scope(store: Store, subject: str | None) -> str:
    everywhere = store.modes.get(None)
    if everywhere == READONLY_OVERRIDE:
        return everywhere  # the global mode overrides the subjects' modes
    for place in (subject, *_scope(subject)):
        if (found := store.modes.get(place)) is not None:
            return found
    return READWRITE


def _scope(subject: str | None) -> tuple[str | None, ...]:
    context = names.DEFAULT_CONTEXT if subject is None else names.context_of(subject)
    return (None if context == names.DEFAULT_CONTEXT else f":{context}:", _GLOBAL)


def _is_global(subject: str | None) -> bool:
    return subject is None or names.context_of(subject) == names.GLOBAL_CONTEXT


def _with_level(store: Store, found: Mapping[str, Any]) -> dict[str, Any]:
    return _ordered({LEVEL: store.default_compatibility, **found})


def _ordered(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: given[name] for name in _FIELDS if given.get(name) is not None}


def updated_config(old: Mapping[str, Any] | None, request: Mapping[str, Any]) -> dict[str, Any]:
    """Apply a request; null removes a member. The request names the level `compatibility`, the record `compatibilityLevel`."""
    changes = {LEVEL if name == "compatibility" else name: value for name, value in request.items()}
    new = dict(old or {})
    for name in _FIELDS:
        if name in changes:
            new[name] = None if changes[name] is None else _checked(name, changes[name])
    return _ordered(new)


def _checked(name: str, value: object) -> object:
    if name == LEVEL:
        level = value.upper() if isinstance(value, str) else ""
        if level not in LEVELS:
            raise errors.invalid_compatibility()
        return level
    if name in _FLAGS:
        if not isinstance(value, bool):
            raise BadContent(f"{name} must be true or false")
        return value
    if name.endswith("Metadata"):
        return metadata_of(value)
    if name.endswith("RuleSet"):
        rule_set = rule_set_of(value)
        if trouble := rule_set_trouble(rule_set):
            raise errors.invalid_rule_set(trouble)
        return rule_set
    if not isinstance(value, str):
        raise BadContent(f"{name} must be a string")
    return value


def as_request(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a change, in which the level has the request's name."""
    return {"compatibility" if name == LEVEL else name: value for name, value in config.items()}


def checked_mode(value: object) -> str:
    found = value.upper() if isinstance(value, str) else ""
    if found not in MODES:
        raise errors.invalid_mode()
    return found
