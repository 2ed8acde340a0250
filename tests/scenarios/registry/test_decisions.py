"""Decisions of the pure parts: the state that results from records, names, settings, levels, elections."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.services.registry import names, reads, records, settings, writes
from barnabas.services.registry import store as store_module
from barnabas.services.registry.content import Content, Previous, Resolved
from barnabas.services.registry.election import Identity, assignment_of, choose, identity_of
from barnabas.services.registry.errors import Refusal
from barnabas.services.registry.formats import Reference
from barnabas.services.registry.parsing import Parser
from barnabas.services.registry.records import Record, SchemaVersion
from barnabas.services.registry.store import Applied, Store
from barnabas.services.registry.writes import Decision, Registration

ALL = settings.LEVELS
A = '{"type":"record","name":"R","fields":[{"name":"a","type":"string"}]}'
AB = '{"type":"record","name":"R","fields":[{"name":"a","type":"string"},{"name":"b","type":"string"}]}'
A_B = (
    '{"type":"record","name":"R","fields":'
    '[{"name":"a","type":"string"},{"name":"b","type":["null","string"],"default":null}]}'
)


def anybody(subject: str) -> None:
    """A user who may read everything."""


class Log:
    """A store, and its records as a topic would hold them."""

    def __init__(self) -> None:
        self.store = Store()
        self.records: list[Record] = []

    def write(self, decision: Decision) -> Decision:
        for record in decision.records:
            assert self.store.apply(record.key, record.value, len(self.records)) is Applied.DONE
            self.records.append(record)
        return decision

    def register(self, subject: str, text: str, **more: int) -> SchemaVersion:
        wanted = Registration(subject=subject, content=Content("AVRO", text), **more)
        version = self.write(writes.register(self.store, wanted)).answer
        assert isinstance(version, SchemaVersion)
        return version

    def compacted(self) -> Store:
        """Return the state after a compaction of all records."""
        last = {record.key: offset for offset, record in enumerate(self.records)}
        store = Store()
        for offset, record in enumerate(self.records):
            if last[record.key] == offset and record.value is not None:
                store.apply(record.key, record.value, offset)
        return store


def seen(store: Store) -> object:
    """All that clients can see of a state."""
    return (
        {subject: store.versions(subject, deleted=True) for subject in sorted(store.subjects)},
        {name: (context.ids, context.contents, context.highest_id) for name, context in sorted(store.contexts.items())},
        store.configs,
        store.modes,
        store.named_contexts,
        {
            (subject, version): store.referrers(subject, version, deleted=True)
            for subject, versions in store.subjects.items()
            for version in versions
        },
    )


# -- state ------------------------------------------------------------------------------------------------------------------

_operations = st.lists(
    st.tuples(
        st.sampled_from(["register", "soft", "hard", "soft subject", "hard subject", "config", "no config", "import"]),
        st.sampled_from(["s", "t", ":.c:s"]),
        st.integers(1, 4),
    ),
    max_size=40,
)


@given(_operations)
def test_compaction_changes_nothing_that_clients_see(operations: list[tuple[str, str, int]]) -> None:
    log = Log()
    given_out: dict[tuple[str, int], str] = {}
    for what, subject, number in operations:
        try:
            match what:
                case "register":
                    version = log.register(subject, f'"text {number}"')
                    place = (names.context_of(subject), version.id)
                    assert given_out.setdefault(place, version.content.text) == version.content.text
                case "soft" | "hard":
                    log.write(writes.delete_version(log.store, subject, number, permanent=what == "hard"))
                case "soft subject" | "hard subject":
                    log.write(writes.delete_subject(log.store, subject, permanent=what.startswith("hard")))
                case "config":
                    log.write(writes.set_config(log.store, subject, {"compatibility": ALL[number]}))
                case "no config":
                    log.write(writes.delete_config(log.store, subject))
                case "import":
                    log.write(writes.set_mode(log.store, subject, "IMPORT", force=False))
                    log.write(writes.delete_mode(log.store, subject))
        except Refusal:
            continue
    assert seen(log.compacted()) == seen(log.store)
    again = Store()
    for offset, record in enumerate(log.records):
        again.apply(record.key, record.value, offset)
    assert seen(again) == seen(log.store)
    assert again.size_bytes == log.store.size_bytes


def test_a_record_that_gives_an_id_twice_is_skipped_by_all() -> None:
    log = Log()
    first = log.register("s", A)
    rival = SchemaVersion("t", 1, first.id, Content("AVRO", AB))
    assert log.store.apply(rival.key.to_bytes(), rival.to_bytes(), 9) is Applied.CONFLICT
    assert log.store.content_by_id(".", first.id) == first.content
    assert "t" not in log.store.subjects
    undone = writes.undo(log.store, [Record(rival.key.to_bytes(), rival.to_bytes())])
    assert undone == [Record(rival.key.to_bytes(), None)], "compaction must not bring it back when the first one goes"


def test_the_same_schema_of_many_subjects_is_kept_once() -> None:
    log = Log()
    versions = [log.register(f"s{number}", A) for number in range(100)]
    assert len({version.id for version in versions}) == 1
    kept = [log.store.version(version.subject, 1) for version in versions]
    assert len({id(each.content) for each in kept if each is not None}) == 1
    assert log.store.size_bytes == versions[0].content.size_bytes


def test_a_tombstone_removes_a_key_in_every_way_in_which_it_was_written() -> None:
    store = Store()
    old = b'{"magic":0,"keytype":"SCHEMA","version":1,"subject":"s"}'
    store.apply(old, b'{"subject":"s","version":1,"id":1,"schema":"\\"int\\"","deleted":true}', 0)
    decision = writes.delete_version(store, "s", 1, permanent=True)
    own = b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}'
    assert [record.key for record in decision.records if record.value is None] == [old, own]


def test_a_deleted_subject_counts_up_to_the_version_that_the_record_names() -> None:
    log = Log()
    log.register("s", A)
    log.register("s", A_B)
    record = records.delete_subject_record("s", 1)
    log.store.apply(record.key, record.value, 5)
    assert [version.version for version in log.store.versions("s")] == [2]


# -- references -------------------------------------------------------------------------------------------------------------


def test_references_come_in_the_order_in_which_they_need_each_other() -> None:
    store = Store()

    def put(subject: str, text: str, *references: Reference) -> None:
        version = SchemaVersion(subject, 1, store.next_id("."), Content("AVRO", text, references))
        store.apply(version.key.to_bytes(), version.to_bytes(), store.next_offset)

    put("d", "D")
    put("b", "B", Reference("D", "d", 1))
    put("c", "C", Reference("D", "d", 1))
    content = Content("AVRO", "A", (Reference("B", "b", 1), Reference("C", "c", 1)))
    resolved = reads.resolve(store, "a", content, anybody, is_new=True)
    assert resolved.references == (("D", "D"), ("B", "B"), ("C", "C"))
    # Import may bring circles: they end.
    put("x", "X", Reference("Y", "y", 1))
    put("y", "Y", Reference("X", "x", 1))
    assert dict(
        reads.resolve(store, "a", Content("AVRO", "A", (Reference("X", "x", 1),)), anybody, is_new=True).references
    ) == {
        "X": "X",
        "Y": "Y",
    }


def test_a_chain_of_references_has_an_end() -> None:
    store = Store()
    for number in range(1, 1_200):
        references = (Reference(f"N{number - 1}", f"s{number - 1}", 1),) if number > 1 else ()
        version = SchemaVersion(f"s{number}", 1, number, Content("AVRO", f"T{number}", references))
        store.apply(version.key.to_bytes(), version.to_bytes(), number)
    last = Content("AVRO", "T", (Reference("N", "s1199", 1),))
    with pytest.raises(Refusal, match="more than 1000 schemas"):
        reads.resolve(store, "s", last, anybody, is_new=True)


# -- levels -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "new", "allowed"),
    [
        ([A], A_B, set(ALL)),
        ([A], AB, {"NONE", "FORWARD", "FORWARD_TRANSITIVE"}),
        ([AB], A, {"NONE", "BACKWARD", "BACKWARD_TRANSITIVE"}),
        ([A, A_B], AB, {"NONE", "FORWARD", "FORWARD_TRANSITIVE"}),
        ([A, AB], AB, {"NONE", "FORWARD", "FORWARD_TRANSITIVE", "BACKWARD", "FULL"}),
        (['"string"', '"int"'], '"int"', {"NONE", "BACKWARD", "FORWARD", "FULL"}),
        ([], A, set(ALL)),
    ],
)
def test_each_level_lets_through_what_it_says(before: list[str], new: str, allowed: set[str]) -> None:
    parser = Parser()
    previous = [Previous(number, Resolved("AVRO", text)) for number, text in enumerate(before, 1)]
    found = {level for level in ALL if not parser.incompatibilities(level, Resolved("AVRO", new), previous)}
    assert found == allowed


def test_the_cache_of_parsed_schemas_is_bounded() -> None:
    parser = Parser(cache_bytes_max=1_000)
    for number in range(100):
        schema = Resolved("AVRO", f'{{"type":"fixed","name":"F{number}","size":{number}}}')
        assert parser.parse(schema) is parser.parse(schema)
    assert sum(schema.size_bytes for schema in parser._cache) == parser._cache.weight <= 1_000


# -- names ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "context", "name"),
    [
        ("orders", ".", "orders"),
        (":.staging:orders", ".staging", "orders"),
        (":.staging:", ".staging", ""),
        (":.staging", ".staging", ""),
        (":.:orders", ".", "orders"),
        (":*:orders", "*", "orders"),
        (":orders", ".", ":orders"),
        (":.c:a:b", ".c", "a:b"),
    ],
)
def test_a_subject_may_name_its_context(text: str, context: str, name: str) -> None:
    assert names.split(text) == (context, name)


def test_settings_are_those_of_the_nearest() -> None:
    store = Store(default_compatibility="FULL")
    assert settings.config_in_scope(store, ":.c:s")["compatibilityLevel"] == "FULL"
    store.configs[":.__GLOBAL:"] = {"compatibilityLevel": "FORWARD"}
    assert settings.config_in_scope(store, ":.c:s")["compatibilityLevel"] == "FORWARD"
    store.configs[None] = {"compatibilityLevel": "BACKWARD", "normalize": True}
    assert settings.config_in_scope(store, "s")["compatibilityLevel"] == "BACKWARD"
    assert settings.config_in_scope(store, ":.c:s")["compatibilityLevel"] == "FORWARD"
    store.configs[":.c:"] = {"compatibilityLevel": "NONE"}
    assert settings.config_in_scope(store, ":.c:s")["compatibilityLevel"] == "NONE"
    store.configs["s"] = {"compatibilityLevel": "NONE"}
    assert settings.config_in_scope(store, "s") == {"normalize": True, "compatibilityLevel": "NONE"}


# -- elections --------------------------------------------------------------------------------------------------------------


def _at(port: int, **more: bool) -> Identity:
    return Identity(host="h", port=port, **more)


def test_the_smallest_address_is_elected_unless_one_leads_already() -> None:
    assert choose({"a": _at(2), "b": _at(1)}).member_id == "b"
    assert choose({"a": _at(2, is_primary=True), "b": _at(1)}).member_id == "a"
    assert choose({"a": _at(2, is_primary=True), "b": _at(1), "c": _at(3, is_primary=True)}).member_id == "b"
    assert choose({"a": _at(1, is_eligible=False), "b": _at(2)}).member_id == "b"
    without_primary = choose({"a": _at(1, is_eligible=False)})
    assert (without_primary.member_id, without_primary.primary) == (None, None)
    assert choose({"a": _at(1), "b": _at(1)}).error == 1


def test_members_of_other_makes_are_understood() -> None:
    confluent = '{"host":"sr1","port":8081,"master_eligibility":true,"scheme":"https","version":1,"leader":false}'
    assert identity_of(json.loads(confluent)).url == "https://sr1:8081"
    karapace = '{"version": 2, "host": "127.0.0.1", "port": 8081, "scheme": "http", "master_eligibility": false}'
    assert not identity_of(json.loads(karapace)).is_eligible
    assignment = b'{"version":1,"error":0,"master":"m-1","master_identity":' + confluent.encode() + b"}"
    found = assignment_of(assignment)
    assert found.member_id == "m-1" and found.primary is not None and found.primary.port == 8081
    assert assignment_of(found.to_bytes()) == found


# -- ids and versions at the end of their range -------------------------------------------------------------------------------

_LAST = 2**31 - 1


def _imported(log: Log, subject: str, text: str, **more: int) -> SchemaVersion:
    """A record as an older registry, another product or a mirror would write it."""
    version = SchemaVersion(subject, more.get("version", 1), more["id"], Content("AVRO", text))
    log.write(Decision([Record(version.key.to_bytes(), version.to_bytes())], version))
    return version


def _importing(log: Log, subject: str) -> None:
    log.write(writes.set_mode(log.store, subject, "IMPORT", force=True))


@pytest.mark.parametrize("schema_id", [store_module.IMPORTED_ID_MAX + 1, 2 * 10**9, _LAST - 1, _LAST])
def test_an_import_near_the_end_of_the_ids_is_refused(schema_id: int) -> None:
    log = Log()
    _importing(log, "s")
    with pytest.raises(Refusal) as refused:
        log.register("s", A, id=schema_id)
    assert (refused.value.status, refused.value.code) == (422, 42205)
    assert log.register("s", A, id=store_module.IMPORTED_ID_MAX).id == store_module.IMPORTED_ID_MAX
    assert log.register("t", AB).id == store_module.IMPORTED_ID_MAX + 1


@pytest.mark.parametrize("context", ["", ":.c:"])
@pytest.mark.parametrize("schema_id", [2**31 - 1, 2**31 - 2, 2**31 - 1_000_001, 2**30 + 1_000_001])
def test_a_context_with_a_poisoned_id_goes_on_with_its_ordinary_ids(context: str, schema_id: int) -> None:
    log = Log()
    log.register(f"{context}a", A)
    poison = _imported(log, f"{context}poison", '"int"', id=schema_id)
    assert log.register(f"{context}b", AB).id == 2
    for permanent in (False, True):
        log.write(writes.delete_subject(log.store, f"{context}poison", permanent=permanent))
    assert log.register(f"{context}c", A_B).id == 3
    again = log.compacted()
    assert again.next_id(names.context_of(poison.subject)) == 4, "the same after a restart"


def test_ids_above_the_imported_ones_are_given_one_by_one_and_once() -> None:
    log, last = Log(), store_module.IMPORTED_ID_MAX
    _importing(log, "s")
    log.register("s", A, id=last)
    _imported(log, "poison", '"double"', id=_LAST)
    _imported(log, "near", '"float"', id=last + 2)
    assert [log.register("t", text).id for text in (AB, '"int"', '"long"')] == [last + 3, last + 4, last + 5]
    for permanent in (False, True):
        log.write(writes.delete_version(log.store, "t", 3, permanent=permanent))
    assert log.compacted().next_id(".") == last + 6


@pytest.mark.parametrize("highest", [_LAST, _LAST + 1, 10**30, True, "7", 1.5, None, -3])
def test_a_highest_id_that_no_registry_gives_does_not_count(highest: object) -> None:
    log = Log()
    key = records.Key(records.NOOP, context=".").to_bytes()
    log.write(Decision([Record(key, json.dumps({"maxId": highest}).encode())], None))
    assert log.register("s", A).id == 1


def test_a_context_whose_ids_are_all_given_refuses_before_it_writes() -> None:
    log = Log()
    log.store.contexts["."].highest_id = _LAST  # two thousand million schemas later
    with pytest.raises(Refusal) as refused:
        log.register("s", A)
    assert (refused.value.status, refused.value.code) == (500, 50001)
    assert log.register(":.other:s", A).id == 1, "another context has its own ids"


def test_no_version_follows_the_last_one_until_it_is_deleted_permanently() -> None:
    log = Log()
    log.register("s", A)
    _imported(log, "s", '"int"', id=2, version=_LAST)
    with pytest.raises(Refusal) as refused:
        log.register("s", AB)
    assert (refused.value.status, refused.value.code) == (422, 42205)
    for permanent in (False, True):
        log.write(writes.delete_version(log.store, "s", _LAST, permanent=permanent))
    assert log.register("s", AB).version == 2


@pytest.mark.parametrize(
    ("version", "schema_id"), [(1, 2**31), (2**31, 1), (1, -1), (-1, 1)], ids=["id", "version", "no id", "no version"]
)
def test_a_record_that_would_be_skipped_is_not_written(version: int, schema_id: int) -> None:
    new = SchemaVersion("s", version, schema_id, Content("AVRO", A))
    with pytest.raises(Refusal) as refused:
        writes.check_readable([Record(new.key.to_bytes(), new.to_bytes())])
    assert refused.value.code == 50001


def test_written_records_are_compared_with_the_state() -> None:
    log = Log()
    first = SchemaVersion("s", 1, 1, Content("AVRO", A))
    written = [
        Record(first.key.to_bytes(), first.to_bytes()),
        records.config_record("s", {"compatibilityLevel": "NONE"}),
        records.mode_record("s", "IMPORT"),
    ]
    assert not any(writes.is_kept(log.store, [each]) for each in written)
    log.write(Decision(written, None))
    assert writes.is_kept(log.store, written)
    other = SchemaVersion("s", 1, 2, Content("AVRO", AB))
    assert not writes.is_kept(log.store, [Record(other.key.to_bytes(), other.to_bytes())])
    assert not writes.is_kept(log.store, log.store.tombstones(first.key))
    gone = [*log.store.tombstones(first.key), *log.store.tombstones(records.Key(records.MODE, "s"))]
    log.write(Decision(gone, None))
    assert writes.is_kept(log.store, gone)
