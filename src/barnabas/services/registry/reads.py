"""Reads of the state: versions, ids, subjects, look-ups. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from barnabas.services.registry import errors, names, settings
from barnabas.services.registry.content import (
    Content,
    Previous,
    Resolved,
    merged_metadata,
    merged_rule_sets,
    without_version,
)
from barnabas.services.registry.formats.limits import CHARS_WITH_REFERENCES_MAX, REFERENCES_MAX
from barnabas.services.registry.records import SchemaVersion
from barnabas.services.registry.store import Store

LATEST: Final = -1
#: Raises a Refusal if the user may not read the subject.
CheckReadable = Callable[[str], None]
_VERSION_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Selects versions for a list: with `included`, deleted ones too; with `only`, deleted ones only."""

    included: bool = False
    only: bool = False

    def takes(self, deleted: bool) -> bool:
        return deleted if self.only else self.included or not deleted


def parse_version(text: str) -> int:
    trimmed = text.strip()
    if trimmed.lower() == "latest":
        return LATEST
    try:
        version = int(trimmed)
    except ValueError:
        raise errors.invalid_version(text) from None
    if version != LATEST and not 0 < version <= _VERSION_MAX:
        raise errors.invalid_version(version)
    return version


# -- versions of a subject --------------------------------------------------------------------------------------------------


def get_version(store: Store, subject: str, version: int, *, deleted: bool = False) -> SchemaVersion:
    found = store.latest(subject) if version == LATEST else store.version(subject, version, deleted=deleted)
    if found is None:
        if not store.has_subjects(subject, deleted=deleted):
            raise errors.subject_not_found(subject)
        raise errors.version_not_found(version)
    return found


def list_versions(store: Store, subject: str, wanted: Filter, *, deleted_as_negative: bool = False) -> list[int]:
    if not store.has_subjects(subject, deleted=wanted.included or wanted.only):
        raise errors.subject_not_found(subject)
    versions = store.versions(subject, deleted=True)
    if deleted_as_negative:
        return [-each.version if each.deleted else each.version for each in versions]
    return [each.version for each in versions if wanted.takes(each.deleted)]


def list_subjects(store: Store, prefix: str, wanted: Filter) -> list[str]:
    found = []
    for subject, versions in store.subjects.items():
        is_deleted = all(version.deleted for version in versions.values())
        if wanted.takes(is_deleted) and _has_prefix(subject, prefix):
            found.append(subject)
    return sorted(found)


def list_schemas(
    store: Store, prefix: str, *, deleted: bool = False, latest_only: bool = False, rule_type: str = ""
) -> list[SchemaVersion]:
    found: list[SchemaVersion] = []
    for subject in sorted(store.subjects):
        if _has_prefix(subject, prefix):
            versions = store.versions(subject, deleted=deleted)
            found += versions[-1:] if latest_only else versions
    return [each for each in found if not rule_type or _has_rule(each, rule_type)]


def _has_prefix(subject: str, prefix: str) -> bool:
    """`:*:orders` matches in all contexts."""
    if prefix.startswith(names.ALL_CONTEXTS):
        return names.split(subject).name.startswith(prefix.removeprefix(names.ALL_CONTEXTS))
    return subject.startswith(prefix)


def _has_rule(version: SchemaVersion, rule_type: str) -> bool:
    rules: Iterable[Mapping[str, Any]] = (
        rule
        for kind in ("migrationRules", "domainRules", "encodingRules")
        for rule in (version.content.rule_set or {}).get(kind, ())
    )
    return any(rule.get("type") == rule_type for rule in rules)


def latest_with_metadata(store: Store, subject: str, wanted: Mapping[str, str], *, deleted: bool) -> SchemaVersion:
    for version in reversed(store.versions(subject, deleted=deleted)):
        properties = (version.content.metadata or {}).get("properties", {})
        if all(properties.get(name) == value for name, value in wanted.items()):
            return version
    if not store.has_subjects(subject, deleted=deleted):
        raise errors.subject_not_found(subject)
    raise errors.schema_not_found()


def referenced_by(store: Store, subject: str, version: int, *, deleted: bool = False) -> list[SchemaVersion]:
    found = get_version(store, subject, version, deleted=True)
    return store.referrers(subject, found.version, deleted=deleted)


# -- ids --------------------------------------------------------------------------------------------------------------------


def context_with_id(store: Store, schema_id: int, subject: str | None) -> str | None:
    """Return the context that a client means with an id: that of its subject, or one that has the subject."""
    wanted = names.split(subject or "")
    if wanted.context != names.DEFAULT_CONTEXT or not wanted.name:
        return wanted.context if store.content_by_id(wanted.context, schema_id) else None
    for context in store.context_ids():
        if str(names.Subject(context, wanted.name)) in store.places_of_id(context, schema_id):
            return context
    return names.DEFAULT_CONTEXT if store.content_by_id(names.DEFAULT_CONTEXT, schema_id) else None


def content_of_id(store: Store, schema_id: int, subject: str | None) -> tuple[str, Content]:
    context = context_with_id(store, schema_id, subject)
    content = store.content_by_id(context, schema_id) if context is not None else None
    if context is None or content is None:
        raise errors.schema_not_found(schema_id)
    return context, content


def versions_of_id(
    store: Store, schema_id: int, subject: str | None, *, deleted: bool = False
) -> list[tuple[str, int]]:
    context = context_with_id(store, schema_id, subject)
    if context is None:
        raise errors.schema_not_found()
    places = sorted(store.places_of_id(context, schema_id).items())
    return [place for place in places if store.version(*place, deleted=deleted) is not None]


def places_of_guid(store: Store, guid: str) -> list[tuple[str, int]]:
    """Return the contexts that have the schema, with its id in each."""
    try:
        return store.ids_of_guid(bytes.fromhex(guid.replace("-", "")))
    except ValueError:
        return []


# -- schemas in requests ----------------------------------------------------------------------------------------------------


def resolve(store: Store, subject: str, content: Content, check: CheckReadable, *, is_new: bool) -> Resolved:
    """Return a schema with the texts behind its references. A new schema may not refer to a soft-deleted one.

    `check` is called for every subject that a reference leads to, because the texts appear in answers and messages.
    """
    found: dict[str, str] = {}
    seen: set[tuple[str, str, int]] = set()
    chars = 0

    # An explicit stack: a chain of references may be longer than Python's recursion limit.
    waiting: list[tuple[str, str, int, str | None]] = [
        (each.name, names.beside(subject, each.subject), each.version, None) for each in reversed(content.references)
    ]
    while waiting:
        name, target, number, text = waiting.pop()
        if text is not None:
            found.setdefault(name, text)
            continue
        if (name, target, number) in seen:
            continue  # reached a second time, or a circle that was imported
        seen.add((name, target, number))
        check(target)  # before reading the store: a refusal must not reveal whether the subject exists
        version = store.latest(target) if number == LATEST else store.version(target, number, deleted=not is_new)
        if version is None:
            raise errors.invalid_schema(f'No schema reference found for subject "{target}" and version {number}')
        chars += len(version.content.text)
        if len(seen) > REFERENCES_MAX or chars > CHARS_WITH_REFERENCES_MAX:
            raise errors.invalid_schema(
                f"more than {REFERENCES_MAX} schemas or {CHARS_WITH_REFERENCES_MAX} characters behind the references"
            )
        waiting.append((name, target, number, version.content.text))
        waiting += (
            (each.name, names.beside(target, each.subject), each.version, None)
            for each in reversed(version.content.references)
        )
    return Resolved(content.schema_type, content.text, tuple(found.items()), is_new)


def previous_for(
    store: Store, subject: str, content: Content, versions: list[SchemaVersion], check: CheckReadable
) -> list[Previous]:
    """Return the versions that a new one is compared with: with `compatibilityGroup`, only those of the same group."""
    config = settings.config_in_scope(store, subject)
    level, group = config[settings.LEVEL], config.get("compatibilityGroup")
    if group is not None:
        wanted = _property(content, group)
        versions = [each for each in versions if _property(each.content, group) == wanted]
    if level == "NONE":
        return []
    return [
        Previous(each.version, resolve(store, each.subject, each.content, check, is_new=False))
        for each in (versions if level.endswith("_TRANSITIVE") else versions[-1:])
    ]


def _property(content: Content, name: str) -> str | None:
    found = (content.metadata or {}).get("properties", {}).get(name)
    return None if found is None else str(found)


def completed(config: Mapping[str, Any], content: Content, previous: SchemaVersion | None) -> Content:
    """Fill in metadata and rules: the request's, else the previous version's, merged with defaults and overrides."""
    before = previous.content if previous is not None else None
    metadata = content.metadata if content.metadata is not None or before is None else before.metadata
    rule_set = content.rule_set if content.rule_set is not None or before is None else before.rule_set
    return replace(
        content,
        metadata=merged_metadata(config.get("defaultMetadata"), metadata, config.get("overrideMetadata")),
        rule_set=merged_rule_sets(config.get("defaultRuleSet"), rule_set, config.get("overrideRuleSet")),
    )


def look_up(store: Store, subject: str, content: Content, *, deleted: bool = False) -> SchemaVersion | None:
    """Return the newest version of a subject with this content in its canonical form."""
    for wanted in (content, completed(settings.config_in_scope(store, subject), content, store.latest(subject))):
        found = store.version_of(subject, wanted)
        if found is not None and (deleted or not found.deleted):
            return found
        for version in reversed(store.versions(subject, deleted=deleted)):
            if _same_but_for_version(version.content, wanted):
                return version
    return None


def look_up_in_contexts(
    store: Store, subject: str, content: Content, may_read: Callable[[str], bool], *, deleted: bool
) -> SchemaVersion | None:
    """Look a schema up. A subject without a context is searched in all contexts, the default one first."""
    if names.context_of(subject) != names.DEFAULT_CONTEXT:
        return look_up(store, subject, content, deleted=deleted)
    name = names.split(subject).name
    for context in store.context_ids():
        beside = str(names.Subject(context, name))
        if may_read(beside) and (found := look_up(store, beside, content, deleted=deleted)):
            return found
    return None


def _same_but_for_version(one: Content, other: Content) -> bool:
    return (
        (one.schema_type, one.text, one.references, one.rule_set)
        == (other.schema_type, other.text, other.references, other.rule_set)
    ) and without_version(one.metadata) == without_version(other.metadata)
