"""Decide writes: the records for `_schemas`, and the answer to send when they are applied. Pure; does not change the state.

The primary calls these one write at a time, with all earlier records applied.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

from barnabas.services.registry import errors, names, records, settings
from barnabas.services.registry.content import VERSION_PROPERTY, Content, rule_set_trouble, with_version
from barnabas.services.registry.reads import completed, get_version, look_up
from barnabas.services.registry.records import CONFIG, CONTEXT, MODE, SCHEMA, Key, Record, SchemaVersion
from barnabas.services.registry.store import IMPORTED_ID_MAX, Store

#: The largest version that a record can hold.
_VERSION_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Decision:
    records: list[Record]
    answer: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A request to register. `version` 0 and `id` -1 mean the next one; only IMPORT mode allows other ids."""

    subject: str
    content: Content
    version: int = 0
    id: int = -1


# -- registering ------------------------------------------------------------------------------------------------------------


def check_registration(store: Store, wanted: Registration) -> None:
    if not names.is_valid(wanted.subject):
        raise errors.invalid_subject(wanted.subject)
    if trouble := rule_set_trouble(wanted.content.rule_set):
        raise errors.invalid_rule_set(trouble)
    subject, context = wanted.subject, names.prefix_of(wanted.subject)
    mode = settings.mode_in_scope(store, subject)
    _check_writable(store, subject)
    if wanted.id >= 0:
        if not _is_import(mode):
            raise errors.not_permitted(f"Subject {subject} in context {context} is not in import mode")
    elif mode != settings.READWRITE:
        raise errors.not_permitted(f"Subject {subject} in context {context} is not in read-write mode")


def filled_in(store: Store, wanted: Registration) -> Registration:
    """Fill in what the request leaves out from the previous version: metadata and rules, or even the schema."""
    content = wanted.content
    previous = store.latest(wanted.subject)
    if is_imported(store, wanted.subject):
        if not content.text.strip():
            raise errors.invalid_schema("Empty schema")
        return wanted
    if not content.text.strip():
        if previous is None:
            raise errors.invalid_schema("Empty schema")
        before = previous.content
        content = replace(content, schema_type=before.schema_type, text=before.text, references=before.references)
    content = completed(settings.config_in_scope(store, wanted.subject), content, previous)
    if wanted.version != 0 or VERSION_PROPERTY in (content.metadata or {}).get("properties", {}):
        content = replace(content, metadata=with_version(content.metadata, _next_version(store, wanted.subject)))
    return replace(wanted, content=content)


def registered(store: Store, wanted: Registration) -> SchemaVersion | None:
    """Return the version that is already equal to the request: nothing needs to be written."""
    if wanted.version > 0:
        known = store.version(wanted.subject, wanted.version)
        is_same = known is not None and known.content == wanted.content and wanted.id in (-1, known.id)
        return known if is_same else None
    found = look_up(store, wanted.subject, wanted.content)
    return found if found is not None and wanted.id in (-1, found.id) else None


def register(store: Store, wanted: Registration) -> Decision:
    """Register content that is canonical, checked, and compatible."""
    subject, content = wanted.subject, wanted.content
    context = names.context_of(subject)
    number = _next_version(store, subject)
    if wanted.version > 0:
        if wanted.version != number and not is_imported(store, subject):
            raise errors.invalid_schema("Version is not one more than previous version")
        number = wanted.version
    if number > _VERSION_MAX:
        raise errors.not_permitted(
            f"Subject {subject} has version {_VERSION_MAX}, the highest possible: delete that version permanently"
        )
    schema_id = _id_for(store, context, wanted)
    taken = store.content_by_id(context, schema_id)
    if wanted.id < 0 and taken is not None:
        content = taken  # the same schema, perhaps with its members in another order
    if taken is not None and taken != content:
        raise errors.not_permitted(
            f"Overwrite new schema with id {schema_id} in context {names.prefix_of(subject)} is not permitted."
        )
    new = SchemaVersion(subject, number, schema_id, content)
    written: list[Record] = []
    if context != names.DEFAULT_CONTEXT and context not in store.named_contexts:
        written.append(records.context_record(context))
    for old in store.versions(subject, deleted=True):
        # The schema was soft-deleted and is registered again: only one version may have it.
        is_replaced = old.deleted and old.id == schema_id and old.version < number
        if is_replaced and not store.referrers(subject, old.version, deleted=True):
            written += store.tombstones(old.key)
    written.append(Record(new.key.to_bytes(), new.to_bytes()))
    return Decision(written, new)


def _id_for(store: Store, context: str, wanted: Registration) -> int:
    """Return the id of the request, of the same schema if it is registered, or the next one."""
    if wanted.id >= 0:
        if wanted.id > IMPORTED_ID_MAX and store.content_by_id(context, wanted.id) is None:
            raise errors.not_permitted(
                f"Schema id {wanted.id} is too close to the end of the range: an import may bring ids up to {IMPORTED_ID_MAX}"
            )
        return wanted.id
    known = store.id_of(context, wanted.content)
    if known is not None:
        return known
    following = store.next_id(context)
    if following is None:
        raise errors.store_failed(
            f"Error while registering the schema: all ids of the context {context} are in use; use another context"
        )
    return following


def _next_version(store: Store, subject: str) -> int:
    return max(store.subjects.get(subject, ()), default=0) + 1


# -- deleting ---------------------------------------------------------------------------------------------------------------


def delete_version(store: Store, subject: str, version: int, *, permanent: bool) -> Decision:
    known = store.version(subject, version, deleted=True)
    if known is not None and known.deleted and not permanent:
        raise errors.version_soft_deleted(subject, version)
    found = get_version(store, subject, version, deleted=True)
    _check_writable(store, subject)
    if store.referrers(subject, found.version, deleted=permanent):
        raise errors.reference_exists(subject, found.version)
    if not permanent:
        gone = replace(found, deleted=True)
        return Decision([Record(gone.key.to_bytes(), gone.to_bytes())], found.version)
    if not found.deleted:
        raise errors.version_not_soft_deleted(subject, found.version)
    written = _permanently(store, [found])
    if len(store.versions(subject, deleted=True)) == 1:
        written += _settings_gone(store, subject)
    return Decision(written, found.version)


def delete_subject(store: Store, subject: str, *, permanent: bool) -> Decision:
    versions = store.versions(subject, deleted=permanent)
    if not store.has_subjects(subject, deleted=True) or not names.split(subject).name:
        raise errors.subject_not_found(subject)
    if not versions:
        raise errors.subject_soft_deleted(subject)
    _check_writable(store, subject)
    for version in versions:
        if any(each.subject != subject for each in store.referrers(subject, version.version, deleted=permanent)):
            raise errors.reference_exists(subject, version.version)
        if permanent and not version.deleted:
            raise errors.subject_not_soft_deleted(subject)
    numbers = [version.version for version in versions]
    if not permanent:
        return Decision([records.delete_subject_record(subject, numbers[-1])], numbers)
    # Newest first: a version may refer to one before it.
    return Decision([*_permanently(store, versions[::-1]), *_settings_gone(store, subject)], numbers)


def _permanently(store: Store, versions: list[SchemaVersion]) -> list[Record]:
    """Return tombstones. An id stays used when its schema is deleted: if it was the highest one, a record stores it."""
    written: list[Record] = []
    for context in dict.fromkeys(names.context_of(version.subject) for version in versions):
        highest = store.highest_id(context)
        if any(version.id == highest and names.context_of(version.subject) == context for version in versions):
            written.append(records.highest_id_record(context, highest))
    for version in versions:
        written += store.tombstones(version.key)
    return written


def _settings_gone(store: Store, subject: str) -> list[Record]:
    written: list[Record] = []
    if subject in store.modes:
        written += store.tombstones(Key(MODE, subject))
    if subject in store.configs:
        written += store.tombstones(Key(CONFIG, subject))
    return written


def delete_context(store: Store, context: str) -> Decision:
    if store.has_subjects(f":{context}:" if context != names.DEFAULT_CONTEXT else "", deleted=True):
        raise errors.not_permitted(f"Context {context} is not empty")
    return Decision(store.tombstones(Key(CONTEXT, context=context)), None)


# -- settings ---------------------------------------------------------------------------------------------------------------


def set_config(store: Store, subject: str | None, request: dict[str, Any]) -> Decision:
    if subject is not None and not names.is_valid(subject, for_settings=True):
        raise errors.invalid_subject(subject)
    new = settings.updated_config(store.configs.get(subject), request)
    _check_writable(store, subject)
    return Decision([records.config_record(subject, new)], settings.as_request(new))


def delete_config(store: Store, subject: str | None) -> Decision:
    old = settings.config(store, subject)
    if old is None:
        raise errors.subject_not_found(subject)
    _check_writable(store, subject)
    return Decision(store.tombstones(Key(CONFIG, subject)), old)


def set_mode(store: Store, subject: str | None, mode: object, *, force: bool) -> Decision:
    if subject is not None and not names.is_valid(subject, for_settings=True):
        raise errors.invalid_subject(subject)
    new = settings.checked_mode(mode)
    written: list[Record] = []
    if new == settings.IMPORT and settings.mode_in_scope(store, subject) != settings.IMPORT and not force:
        # Ids that are imported must not meet ids that were given here.
        if store.has_subjects(subject):
            raise errors.not_permitted("Cannot import since found existing subjects")
        left = [
            version for each in store.matching(subject, deleted=True) for version in store.versions(each, deleted=True)
        ]
        for version in left:
            if store.referrers(version.subject, version.version, deleted=True):
                raise errors.reference_exists(version.subject, version.version)
        written += _permanently(store, left)
        written.append(records.clear_subject_record(subject))
    written.append(records.mode_record(subject, new))
    return Decision(written, {"mode": new})


def delete_mode(store: Store, subject: str | None, *, recursive: bool = False) -> Decision:
    old = settings.mode(store, subject)
    if old is None and not recursive:
        raise errors.subject_not_found(subject)
    targets: list[str | None] = [subject]
    if recursive:
        context = subject or ""
        targets += [
            each for each in store.modes if each is not None and each != subject and names.covers(context, each)
        ]
    written = [record for target in targets for record in store.tombstones(Key(MODE, target))]
    return Decision(written, {"mode": old})


# -- modes ------------------------------------------------------------------------------------------------------------------


def is_imported(store: Store, subject: str) -> bool:
    """Whether schemas come as they are: without checks, with the ids that they have elsewhere."""
    return _is_import(settings.mode_in_scope(store, subject))


def _is_import(mode: str) -> bool:
    return mode in (settings.IMPORT, settings.FORWARD)


def _check_writable(store: Store, subject: str | None) -> None:
    if settings.mode_in_scope(store, subject) in (settings.READONLY, settings.READONLY_OVERRIDE):
        raise errors.read_only(subject, names.prefix_of(subject or ""))


def check_readable(written: list[Record]) -> None:
    """Refuse a record that the readers of the log would skip, before it is written."""
    for record in written:
        try:
            records.check(record)
        except records.BadRecord as error:
            raise errors.store_failed(
                f"the record of this change cannot be read back, so it is not written: {error}"
            ) from None


def is_kept(store: Store, written: list[Record]) -> bool:
    """Whether the state agrees with these records: they were applied, and no later record changed the same keys."""
    last = {record.key: record.value for record in written}
    return all(_is_held(store, records.key_of(key), value) for key, value in last.items())


def _is_held(store: Store, key: Key, value: bytes | None) -> bool:
    match key.kind:
        case records.SCHEMA if key.subject is not None:
            known = store.version(key.subject, key.version, deleted=True)
            return known == (None if value is None else records.schema_version_of(value))
        case records.CONFIG:
            wanted = None if value is None else records.value_of(value)
            return store.configs.get(key.subject) == (
                None if wanted is None else {name: each for name, each in wanted.items() if name != "subject"}
            )
        case records.MODE:
            return store.modes.get(key.subject) == (None if value is None else records.value_of(value)["mode"])
        case _:
            return True


def undo(store: Store, written: list[Record]) -> list[Record]:
    """Return records that restore the state's value of each key, after the readers skipped the given records."""
    undone: list[Record] = []
    for record in written:
        key = records.key_of(record.key)
        if key.kind != SCHEMA or key.subject is None:
            continue
        known = store.version(key.subject, key.version, deleted=True)
        undone.append(Record(record.key, known.to_bytes() if known is not None else None))
    return undone
