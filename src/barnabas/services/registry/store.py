"""The state of a registry: the result of applying the records of `_schemas` in order. Pure; only `apply` changes it.

Every instance reads the same records and reaches the same state. So all of them skip a record that contradicts earlier ones (an
id that another schema has); the writer finds out when its own reader applies the record.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any, Final

from barnabas.services.registry import formats, names, records
from barnabas.services.registry.content import AVRO, Content
from barnabas.services.registry.formats import Reference
from barnabas.services.registry.records import BadRecord, Key, Record, SchemaVersion, key_of

ContentKey = tuple[str, bytes]
#: A subject and a version.
Place = tuple[str, int]
#: Beginnings of an Avro schema whose members are sorted. In Avro's own order, `type` comes first.
_SORTED: Final = tuple(f'{{"{name}":' for name in ("aliases", "default", "doc", "fields", "items", "name", "namespace"))
#: Longer texts are not reordered, because records are applied on the event loop.
_REORDERED_MAX: Final = 64 * 1024
LAST_ID: Final = 2**31 - 1
#: The highest id that an import may use. A billion ids remain for later registrations.
IMPORTED_ID_MAX: Final = 2**30
#: An id that is further than this above the highest one, and above the range of imports, is read, but later ids do not continue
#: from it. Else a single record (an import into an older registry, a damaged `maxId`) would use up the ids of its context.
_JUMP_MAX: Final = 1_000_000


class Applied(Enum):
    DONE = auto()
    #: No registry writes such a record, or only a newer version than this.
    UNREADABLE = auto()
    #: The record uses an id that another schema has.
    CONFLICT = auto()


@dataclass(slots=True)
class _Context:
    #: By id, then by subject: the number of versions that have the id. All have the same content.
    ids: dict[int, dict[str, int]] = field(default_factory=dict)
    contents: dict[int, Content] = field(default_factory=dict)
    by_content: dict[ContentKey, int] = field(default_factory=dict)
    #: Never decreases: an id is used once.
    highest_id: int = 0

    def note_given(self, schema_id: object) -> None:
        """Record that an id is in use: later schemas get higher ones."""
        highest = self.highest_id
        if type(schema_id) is int and highest < schema_id <= min(max(highest, IMPORTED_ID_MAX) + _JUMP_MAX, LAST_ID):
            self.highest_id = schema_id


class Store:
    def __init__(self, *, default_compatibility: str = "BACKWARD") -> None:
        #: Used if no record sets a level.
        self.default_compatibility = default_compatibility
        self.forget()

    def forget(self) -> None:
        """Reset the state, before the first record or when the log has to be read again."""
        #: The next record to apply has this offset or a higher one.
        self.next_offset = 0
        #: By subject and version, including soft-deleted versions. Every subject has at least one version.
        self.subjects: dict[str, dict[int, SchemaVersion]] = {}
        self.configs: dict[str | None, dict[str, Any]] = {}
        self.modes: dict[str | None, str] = {}
        self.contexts: dict[str, _Context] = {names.DEFAULT_CONTEXT: _Context()}
        #: Contexts that a record names; only these are listed.
        self.named_contexts: set[str] = set()
        #: Versions that refer to a version, including soft-deleted ones.
        self._referrers: dict[Place, set[Place]] = {}
        #: Keys in the log whose bytes differ from those that this registry writes.
        self._other_forms: dict[Key, set[bytes]] = {}
        #: Approximate memory of all schemas.
        self.size_bytes = 0

    # -- reading --------------------------------------------------------------------------------------------------------

    def version(self, subject: str, version: int, *, deleted: bool = False) -> SchemaVersion | None:
        found = self.subjects.get(subject, {}).get(version)
        return found if found is not None and (deleted or not found.deleted) else None

    def versions(self, subject: str, *, deleted: bool = False) -> list[SchemaVersion]:
        """Return the versions in ascending order."""
        found = self.subjects.get(subject, {})
        return [found[number] for number in sorted(found) if deleted or not found[number].deleted]

    def latest(self, subject: str) -> SchemaVersion | None:
        found = self.versions(subject)
        return found[-1] if found else None

    def has_subjects(self, pattern: str | None, *, deleted: bool = False) -> bool:
        """Whether the subject exists, or any subject in the context that `pattern` names."""
        return next(self.matching(pattern, deleted=deleted), None) is not None

    def matching(self, pattern: str | None, *, deleted: bool = False) -> Iterator[str]:
        if pattern is not None and names.split(pattern).name:
            candidates = [pattern] if pattern in self.subjects else []
        else:
            candidates = [subject for subject in self.subjects if names.covers(pattern, subject)]
        for subject in candidates:
            if deleted or any(not version.deleted for version in self.subjects[subject].values()):
                yield subject

    def context_ids(self) -> list[str]:
        """Return the default context first, then the contexts that records name."""
        return [names.DEFAULT_CONTEXT, *sorted(self.named_contexts - {names.DEFAULT_CONTEXT})]

    def content_by_id(self, context: str, schema_id: int) -> Content | None:
        known = self.contexts.get(context)
        return known.contents.get(schema_id) if known else None

    def places_of_id(self, context: str, schema_id: int) -> dict[str, int]:
        known = self.contexts.get(context)
        return known.ids.get(schema_id, {}) if known else {}

    def id_of(self, context: str, content: Content) -> int | None:
        known = self.contexts.get(context)
        return known.by_content.get(content.key) if known else None

    def version_of(self, subject: str, content: Content) -> SchemaVersion | None:
        """Return the version of a subject with this content; a soft-deleted one only if no other has it."""
        schema_id = self.id_of(names.context_of(subject), content)
        candidates = [each for each in self.versions(subject, deleted=True) if each.id == schema_id]
        return max(candidates, key=lambda each: (not each.deleted, each.version), default=None)

    def ids_of_guid(self, digest: bytes) -> list[tuple[str, int]]:
        return [
            (name, schema_id)
            for name, context in self.contexts.items()
            for (_, known), schema_id in context.by_content.items()
            if known == digest
        ]

    def next_id(self, context: str) -> int | None:
        """Return the id for the next schema; None if all ids are used."""
        known = self.contexts.get(context)
        following = self.highest_id(context) + 1
        while known is not None and following in known.contents:  # an id too high for `note_given`
            following += 1
        return following if following <= LAST_ID else None

    def highest_id(self, context: str) -> int:
        """Return the highest id from which later ids continue."""
        known = self.contexts.get(context)
        return known.highest_id if known else 0

    def referrers(self, subject: str, version: int, *, deleted: bool = False) -> list[SchemaVersion]:
        places = self._referrers.get((subject, version), ())
        found = (self.version(*place, deleted=deleted) for place in sorted(places))
        return [each for each in found if each is not None]

    def tombstones(self, key: Key) -> list[Record]:
        """Return records that remove a key in every form in which it was written."""
        own = key.to_bytes()
        return [Record(form, None) for form in (*sorted(self._other_forms.get(key, ())), own)]

    # -- applying -------------------------------------------------------------------------------------------------------

    def apply(self, key: bytes, value: bytes | None, offset: int) -> Applied:
        """Apply one record; the calls must be in order. A record that cannot be parsed is skipped."""
        assert offset >= self.next_offset, f"offset {offset} was applied before (next is {self.next_offset})"
        self.next_offset = offset + 1
        try:
            parsed = key_of(key)
            outcome = self._apply(parsed, value)
        except BadRecord:
            return Applied.UNREADABLE
        if key != parsed.to_bytes():
            self._other_forms.setdefault(parsed, set()).add(key)
        return outcome

    def _apply(self, key: Key, value: bytes | None) -> Applied:
        match key.kind:
            case records.SCHEMA:
                return self._apply_schema(key, value)
            case records.CONFIG:
                if value is None:
                    self.configs.pop(key.subject, None)
                else:
                    config = records.value_of(value)
                    config.pop("subject", None)
                    self.configs[key.subject] = config
            case records.MODE:
                if value is None:
                    self.modes.pop(key.subject, None)
                else:
                    self.modes[key.subject] = str(records.value_of(value).get("mode", "READWRITE"))
            case records.DELETE_SUBJECT if value is not None:
                self._delete_subject(key, records.value_of(value))
            case records.CLEAR_SUBJECT if value is not None:
                self._clear(key.subject)
            case records.CONTEXT:
                if value is None:
                    self.named_contexts.discard(key.context)
                else:
                    self.named_contexts.add(key.context)
            case records.NOOP if key.context and value is not None:
                self._context(key.context).note_given(records.value_of(value).get("maxId"))
            case records.NOOP | records.DELETE_SUBJECT | records.CLEAR_SUBJECT:
                pass
            case _:
                return Applied.UNREADABLE
        return Applied.DONE

    def _apply_schema(self, key: Key, value: bytes | None) -> Applied:
        assert key.subject is not None
        old = self.subjects.get(key.subject, {}).get(key.version)
        if value is None:
            if old is not None:
                self._remove(old)
            return Applied.DONE
        new = records.schema_version_of(value)
        if (new.subject, new.version) != (key.subject, key.version):
            raise BadRecord("a schema whose key names another version")
        context = self._context(names.context_of(new.subject))
        taken = context.contents.get(new.id)
        if taken is not None and taken.text != new.content.text:
            return Applied.CONFLICT
        if old is not None:
            self._remove(old)
        self._add(context, new)
        return Applied.DONE

    def _add(self, context: _Context, new: SchemaVersion) -> None:
        kept = context.contents.get(new.id)
        if kept == new.content:
            new = replace(new, content=kept)  # one text in memory, however many subjects share it
        else:
            self.size_bytes += new.content.size_bytes - (kept.size_bytes if kept is not None else 0)
            context.contents[new.id] = new.content
        context.ids.setdefault(new.id, {})[new.subject] = new.version
        context.by_content[new.content.key] = new.id
        if (canonical := _in_our_order(new.content)) is not None:
            context.by_content.setdefault(canonical.key, new.id)
        context.note_given(new.id)
        self.subjects.setdefault(new.subject, {})[new.version] = new
        for place in _places(new.subject, new.content.references):
            self._referrers.setdefault(place, set()).add((new.subject, new.version))

    def _remove(self, old: SchemaVersion) -> None:
        versions = self.subjects[old.subject]
        del versions[old.version]
        context = self._context(names.context_of(old.subject))
        holders = context.ids[old.id]
        left = [each.version for each in versions.values() if each.id == old.id]
        if left:
            holders[old.subject] = max(left)
        else:
            holders.pop(old.subject, None)
        if not versions:
            del self.subjects[old.subject]
        if not holders:
            del context.ids[old.id]
            content = context.contents.pop(old.id)
            self.size_bytes -= content.size_bytes
            canonical = _in_our_order(content) or content
            for known in {content.key, old.content.key, canonical.key}:
                if context.by_content.get(known) == old.id:
                    del context.by_content[known]
        for place in _places(old.subject, old.content.references):
            referrers = self._referrers.get(place, set())
            referrers.discard((old.subject, old.version))
            if not referrers:
                self._referrers.pop(place, None)

    def _delete_subject(self, key: Key, value: dict[str, Any]) -> None:
        last = value.get("version")
        if not isinstance(last, int) or key.subject is None:
            raise BadRecord("a deleted subject without its last version")
        versions = self.subjects.get(key.subject, {})
        for number, version in versions.items():
            if number <= last and not version.deleted:
                versions[number] = replace(version, deleted=True)

    def _clear(self, pattern: str | None) -> None:
        for subject in list(self.matching(pattern, deleted=True)):
            for version in list(self.subjects[subject].values()):
                if version.deleted:
                    self._remove(version)

    def _context(self, name: str) -> _Context:
        known = self.contexts.get(name)
        if known is None:
            known = self.contexts[name] = _Context()
        return known


def _places(subject: str, references: tuple[Reference, ...]) -> set[Place]:
    return {(names.beside(subject, each.subject), each.version) for each in references}


def _in_our_order(content: Content) -> Content | None:
    """Karapace sorts the members of an Avro schema. Return the content in the order that clients ask for, else None."""
    is_sorted = content.schema_type == AVRO and not content.references and content.text.startswith(_SORTED)
    if not is_sorted or len(content.text) > _REORDERED_MAX:
        return None
    try:
        return content.with_text(formats.parse(AVRO, content.text, {}, as_new=False).canonical())
    except formats.SchemaError:
        return None
