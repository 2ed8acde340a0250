"""`python -m tests.fuzz.registry [--seconds 300] [--seed 7]`: hostile bodies and histories at the registry's own code.

A history is a random sequence of requests, beside records that another program writes into `_schemas`. After each
step every acknowledged schema is there, ids are in range and given once, every record that was written can be read, and a
registry that reads the log from its beginning comes to the same state. Nothing but a refusal may be raised.
Exits with 1 and what was found.
"""

import argparse
import json
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from barnabas.services.http import errors as http_errors
from barnabas.services.http.bodies import json_object
from barnabas.services.registry import names, reads, records, settings, writes
from barnabas.services.registry.api import _schema_of
from barnabas.services.registry.content import BadContent, Content
from barnabas.services.registry.errors import Refusal
from barnabas.services.registry.parsing import Parser
from barnabas.services.registry.records import Record, SchemaVersion
from barnabas.services.registry.store import IMPORTED_ID_MAX, Applied, Store
from barnabas.services.registry.writes import Decision, Registration

REFUSALS: Final = (Refusal, http_errors.Refusal, BadContent)
#: A single input may not take longer: it is read on a thread, and others wait for it.
INPUT_S_MAX: Final = 10.0
SUBJECTS: Final = ("s", "t", "u-value", ":.c:s", ":.c:t", ":.d:s")
IDS: Final = (0, 1, 2, 7, 100_001, IMPORTED_ID_MAX - 1, IMPORTED_ID_MAX, IMPORTED_ID_MAX + 1, 2**31 - 2, 2**31 - 1)
VERSIONS: Final = (*[0] * 12, 1, 2, 3, 2**31 - 2, 2**31 - 1)
MODES: Final = (*settings.MODES, "NONE", None)
SEEDS: Final = (
    '{"type":"record","name":"R","fields":[{"name":"a","type":"string"},{"name":"b","type":["null","int"],"default":null}]}',
    '{"type":"array","items":{"type":"map","values":{"type":"fixed","name":"F","size":4}}}',
    '{"type":"enum","name":"E","symbols":["A","B"],"default":"A"}',
    '{"type":"bytes","logicalType":"decimal","precision":9,"scale":2}',
    '"int"',
    '{"type":"object","properties":{"a":{"type":"integer"},"b":{"$ref":"#/$defs/x"}},"$defs":{"x":{"type":"string"}}}',
    '{"oneOf":[{"type":"string"},{"type":"object","additionalProperties":false}]}',
    'syntax = "proto3"; message M { string a = 1; repeated M b = 2; oneof o { int32 c = 3; } map<int32, M> d = 4; }',
    'syntax = "proto2"; enum E { A = 0; } message M { required E e = 1 [default = A]; extensions 100 to max; }',
)  # fmt: skip
HOSTILE: Final = (
    "",
    "null",
    "0",
    "-1",
    "1e999",
    "\\ud800",
    "\u0000",
    "$ref",
    "#",
    "[" * 300,
    "{" * 40,
    "9" * 400,
    "a" * 3_000,
)


class Found(Exception):
    """An invariant does not hold."""


@dataclass
class History:
    """A registry without its log: the state, the records that made it, and what it acknowledged."""

    chance: random.Random
    store: Store = field(default_factory=Store)
    log: list[Record] = field(default_factory=list)
    parser: Parser = field(default_factory=Parser)
    #: By context and id: the text that was acknowledged. The registry never gives an id to another one.
    given: dict[tuple[str, int], str] = field(default_factory=dict)
    #: The last request left its id to the registry.
    chosen: bool = False

    def step(self) -> str:
        kinds: list[tuple[Callable[[], Decision | None], int]] = [
            (self.register, 10), (self.delete, 4), (self.settings, 4), (self.stranger, 2),
        ]  # fmt: skip
        kind = self.chance.choices([each for each, _ in kinds], [weight for _, weight in kinds])[0]
        try:
            decision = kind()
        except REFUSALS:
            return f"{kind.__name__} refused"
        if decision is not None:
            self.write(decision)
        return kind.__name__

    def write(self, decision: Decision) -> None:
        writes.check_readable(decision.records)
        for record in decision.records:
            if self.store.apply(record.key, record.value, len(self.log)) is not Applied.DONE:
                raise Found(f"a record of ours was skipped: {record}")
            self.log.append(record)
        if not writes.is_kept(self.store, decision.records):
            raise Found("the state does not hold what was written")
        if isinstance(decision.answer, SchemaVersion):
            self.acknowledged(decision.answer)

    def acknowledged(self, version: SchemaVersion) -> None:
        if self.store.version(version.subject, version.version) != version:
            raise Found(f"{version.subject} version {version.version} was acknowledged and is not there")
        if not 0 <= version.id < 2**31 or not 0 < version.version < 2**31:
            raise Found(f"id {version.id}, version {version.version}")
        place = (names.context_of(version.subject), version.id)
        if self.chosen and self.given.get(place, version.content.text) != version.content.text:
            raise Found(f"id {place} was given twice")
        self.given[place] = version.content.text

    def register(self) -> Decision:
        chance, store = self.chance, self.store
        subject = chance.choice(SUBJECTS)
        content, _, _ = _schema_of(body(chance, list(self.store.subjects)))
        imports = writes.is_imported(store, subject) != (chance.random() < 0.05)
        schema_id = chance.choice(IDS) if imports else -1
        wanted = Registration(subject=subject, content=content, version=chance.choice(VERSIONS), id=schema_id)
        self.chosen = schema_id < 0
        writes.check_registration(store, wanted)
        full = writes.filled_in(store, wanted)
        is_new = not writes.is_imported(store, subject)
        resolved = reads.resolve(store, subject, full.content, lambda _: None, is_new=is_new)
        text = self.parser.canonical(resolved, normalize=is_new and chance.random() < 0.2)
        full = Registration(subject=subject, content=full.content.with_text(text), version=full.version, id=full.id)
        if found := writes.registered(store, full):
            return Decision([], found)
        if is_new:
            versions = reads.previous_for(store, subject, full.content, store.versions(subject), lambda _: None)
            level = settings.config_in_scope(store, subject)[settings.LEVEL]
            new = reads.resolve(store, subject, full.content, lambda _: None, is_new=True)
            if self.parser.incompatibilities(level, new, versions):
                raise BadContent("incompatible")
        return writes.register(store, full)

    def delete(self) -> Decision:
        chance, subject = self.chance, self.chance.choice(SUBJECTS)
        permanent = chance.random() < 0.5
        if chance.random() < 0.3:
            return writes.delete_subject(self.store, subject, permanent=permanent)
        return writes.delete_version(self.store, subject, chance.choice((1, 2, 3, -1, 2**31 - 1)), permanent=permanent)

    def settings(self) -> Decision:
        chance, subject = self.chance, self.chance.choice((*SUBJECTS, None, ":.c:"))
        match chance.choice((0, 0, 1, 2, 3, 3, 3, 3, 4)):
            case 0:
                request = {"compatibility": chance.choice((*settings.LEVELS, "x")), "normalize": chance.random() < 0.5}
                return writes.set_config(self.store, subject, request)
            case 1:
                return writes.delete_config(self.store, subject)
            case 2:
                return writes.delete_mode(self.store, subject, recursive=chance.random() < 0.2)
            case 3:
                return writes.set_mode(self.store, subject, settings.READWRITE, force=True)
            case _:
                return writes.set_mode(self.store, subject, chance.choice(MODES), force=chance.random() < 0.5)

    def stranger(self) -> None:
        """A record that another program writes, also one that is damaged."""
        chance = self.chance
        text = chance.choice(('"long"', '"double"', SEEDS[0], "{", ""))
        version = SchemaVersion(
            chance.choice(SUBJECTS), chance.choice((1, 2, 9, 2**31 - 1, 2**31)), chance.choice((*IDS, 2**31, 2**63)),
            Content("AVRO", text), deleted=chance.random() < 0.2,
        )  # fmt: skip
        key, value = version.key.to_bytes(), version.to_bytes()
        if chance.random() < 0.3:
            key = records.Key(records.NOOP, context=chance.choice((".", ".c"))).to_bytes()
            value = json.dumps({"maxId": chance.choice((*IDS, 2**31, 10**40, True, None, "1", 1.5))}).encode()
        if chance.random() < 0.3:
            key, value = (mutated(chance, each) if chance.random() < 0.5 else each for each in (key, value))
        offset = len(self.log)
        if self.store.apply(key, value, offset) is Applied.DONE:
            self.forget_given()
        self.log.append(Record(key, value))

    def forget_given(self) -> None:
        """A stranger's record may take an id that was given, where its schema is gone: that is not the registry's doing."""
        for context, known in self.store.contexts.items():
            for schema_id, content in known.contents.items():
                self.given[context, schema_id] = content.text

    def check_replayed(self) -> None:
        again = Store()
        for offset, record in enumerate(self.log):
            again.apply(record.key, record.value, offset)
        if _seen(again) != _seen(self.store):
            raise Found("a registry that reads the log from its beginning comes to another state")
        for context in self.store.contexts:
            following = self.store.next_id(context)
            if following is None or self.store.content_by_id(context, following) is not None:
                raise Found(f"the next id of {context} is {following}")


def _seen(store: Store) -> object:
    return store.subjects, store.configs, store.modes, store.named_contexts, {
        name: (context.ids, context.contents, context.highest_id) for name, context in store.contexts.items()
    }  # fmt: skip


def mutated(chance: random.Random, data: bytes) -> bytes:
    at = chance.randrange(len(data) + 1)
    match chance.randrange(4):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + chance.randbytes(chance.randrange(8)) + data[at:]
        case 2:
            return (
                data[:at] + chance.choice(HOSTILE).encode("utf-8", "surrogatepass") + data[at + chance.randrange(4) :]
            )
        case _:
            return data[:at] + data[chance.randrange(len(data) + 1) :]


def schema(chance: random.Random) -> str:
    text = chance.choice(SEEDS)
    for _ in range(chance.choice((0, 0, 0, 0, 0, 1, 2, 5))):
        text = mutated(chance, text.encode("utf-8", "surrogatepass")).decode("utf-8", "replace")
    return text


def body(chance: random.Random, subjects: list[str]) -> dict[str, Any]:
    """A body of a registration, by way of its bytes: what cannot be read is refused here as in the server."""
    document: dict[str, Any] = {"schema": schema(chance)}
    document["schemaType"] = (
        "PROTOBUF" if "syntax" in document["schema"] else chance.choice(("AVRO", "AVRO", "JSON", None))
    )
    if subjects and chance.random() < 0.3:
        document["references"] = [
            {"name": chance.choice("REF"), "subject": chance.choice(subjects), "version": chance.choice((1, 2, -1))}
            for _ in range(chance.randrange(3))
        ]
    if chance.random() < 0.2:
        document["metadata"] = {
            "properties": {"owner": "x"},
            "tags": {"a": ["PII"]},
            "sensitive": [chance.choice(HOSTILE)],
        }
    if chance.random() < 0.2:
        document["ruleSet"] = {"domainRules": [{"name": chance.choice(("r", "1", "")), "type": "CEL", "mode": "READ"}]}
    data = json.dumps(document).encode()
    for _ in range(chance.choice((0, 0, 0, 0, 0, 0, 1, 3))):
        data = mutated(chance, data)
    return json_object(data)


def fuzz(*, seconds: float, seed: int, most: int | None = None) -> tuple[Counter[str], list[str]]:
    steps: Counter[str] = Counter()
    findings: list[str] = []
    ends_s = time.monotonic() + seconds
    number = 0
    while time.monotonic() < ends_s and len(findings) < 20 and (most is None or number < most):
        number += 1
        history = History(random.Random(f"{seed}/{number}"))
        try:
            for _ in range(history.chance.choice((20, 60, 200))):
                began_s = time.process_time()
                steps[history.step()] += 1
                if (took_s := time.process_time() - began_s) > INPUT_S_MAX:
                    raise Found(f"one step took {took_s:.1f} s of CPU")
            history.check_replayed()
        except Found as error:
            findings.append(f"history {seed}/{number}: {error}")
        except Exception:
            findings.append(f"history {seed}/{number}:\n{traceback.format_exc(limit=-6)}")
    steps["histories"] = number
    return steps, findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    steps, findings = fuzz(seconds=options.seconds, seed=options.seed)
    print(f"seed {options.seed}: {dict(steps)}")
    for each in findings:
        print(f"FOUND: {each}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
