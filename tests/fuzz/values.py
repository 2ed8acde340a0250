"""`python -m tests.fuzz.values [--seconds 300] [--seed 7] [console spark cel]`: hostile values behind schemas, and filters.

The console's decoder, Spark's codecs and the filters in CEL run in a process of their own, which reports each input before it
begins. Found is: that process ends, an input takes long or fills the memory, an unexpected exception, or two ways to
evaluate a filter that disagree.
"""

import argparse
import asyncio
import io
import json
import multiprocessing
import random
import resource
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Final

#: CPU time of one input. A filter alone may take `expressions.SECONDS_MAX`.
INPUT_S_MAX: Final = 8.0
#: What the process may grow by, in all: allocators keep what one large input took.
GROWTH_KB_MAX: Final = 1_500_000
#: An input that takes longer, waiting included, hangs.
HANG_S_MAX: Final = 120.0


class Inputs:
    """Random schemas and values: mostly well-formed, so that they get far."""

    def __init__(self, seed: str) -> None:
        self.chance = random.Random(seed)
        self._names = 0
        #: Values that one Avro value is made of: those without bytes do not let it grow.
        self._left = 20_000

    # -- Avro ---------------------------------------------------------------------------------------------------------

    def avro(self, depth: int = 0, known: tuple[str, ...] = ()) -> Any:
        chance = self.chance
        kind = chance.choice(["plain", "plain", "record", "array", "map", "union", "named", "logical", "fixed", "enum"])
        if kind == "named" and known:
            return chance.choice(known)
        if depth > 4 or kind in ("plain", "named"):
            return chance.choice(["null", "boolean", "int", "long", "float", "double", "bytes", "string"])
        self._names += 1
        name = f"N{self._names}"
        match kind:
            case "record":
                types = [self.avro(depth + 1, (*known, name)) for _ in range(chance.choice([0, 1, 2, 3, 8]))]
                fields = [{"name": f"f{at}", "type": each} for at, each in enumerate(types)]
                return {"type": "record", "name": name, "fields": fields}
            case "array":
                return {"type": "array", "items": self.avro(depth + 1, known)}
            case "map":
                return {"type": "map", "values": self.avro(depth + 1, known)}
            case "union":
                branches = [self.avro(depth + 1, known) for _ in range(chance.randrange(1, 4))]
                return [
                    each
                    for each in {json.dumps(each): each for each in ["null", *branches]}.values()
                    if not isinstance(each, list)
                ]
            case "fixed":
                return {"type": "fixed", "name": name, "size": chance.choice([0, 0, 1, 16, 5000])}
            case "enum":
                return {"type": "enum", "name": name, "symbols": ["A", "B"]}
        logical, of = chance.choice(
            [("decimal", "bytes"), ("date", "int"), ("timestamp-millis", "long"), ("timestamp-micros", "long"),
             ("time-millis", "int"), ("uuid", "string"), ("duration", "string"), ("local-timestamp-micros", "long")]
        )  # fmt: skip
        return {"type": of, "logicalType": logical, "precision": chance.choice([1, 10, 1000]), "scale": 1}

    def schema_text(self) -> str:
        text = json.dumps(self.avro())
        if self.chance.random() < 0.1:
            at = self.chance.randrange(len(text))
            text = text[:at] + self.chance.choice(['"', "{", "null", "[[", "\\u0000", "9" * 50]) + text[at + 1 :]
        return text

    def number(self) -> bytes:
        """A zigzag varint: mostly small, now and then one that lies."""
        chance = self.chance
        value = chance.choice(
            [0, 0, 1, 1, 2, 3, -1, -2, chance.randrange(-70, 70), chance.randrange(-(2**63), 2**63), 2**32]
        )
        left = (value << 1) ^ (value >> 63)
        out = bytearray()
        while left > 127:
            out.append(left & 127 | 128)
            left >>= 7
        return bytes([*out, left])

    def avro_pair(self) -> tuple[str, bytes]:
        """A schema, and a value that is of it in half of the cases."""
        if self.chance.random() < 0.5:
            return self.schema_text(), self.payload()
        schema = self.avro()
        out = bytearray()
        self._write(schema, {}, out)
        if self.chance.random() < 0.2:
            out += self.payload()
        return json.dumps(schema), bytes(out)

    def _write(self, schema: Any, named: dict[str, Any], out: bytearray, depth: int = 0) -> None:
        """As the schema says, until it is deep or large enough."""
        chance = self.chance
        self._left -= 1
        if len(out) > 5_000 or depth > 250 or self._left < 0:
            return
        if isinstance(schema, list):
            branch = chance.randrange(len(schema))
            out += bytes([branch * 2])
            self._write(schema[branch], named, out, depth + 1)
            return
        details = named.get(schema, {}) if isinstance(schema, str) else schema
        if "name" in details:
            named[details["name"]] = details
        match details.get("type", schema):
            case "boolean":
                out += bytes([chance.randrange(2)])
            case "int" | "enum":
                out += bytes([chance.choice([0, 2])])
            case "long":
                out += self.number()
            case "float":
                out += chance.choice([b"\0\0\xc0\x7f", b"\0\0\x80\xff", chance.randbytes(4)])
            case "double":
                out += chance.choice([bytes(6) + b"\xf8\x7f", bytes(6) + b"\xf0\xff", chance.randbytes(8)])
            case "bytes" | "string":
                size = chance.randrange(20)
                out += bytes([2 * size]) + b"a" * size
            case "fixed":
                out += bytes(details["size"])
            case "record":
                for field in details["fields"]:
                    self._write(field["type"], named, out, depth + 1)
            case "array" | "map":
                self._write_items(details, named, out, depth)

    def _write_items(self, details: dict[str, Any], named: dict[str, Any], out: bytearray, depth: int) -> None:
        count = self.chance.choice([0, 1, 2, 30])
        out += bytes([2 * count]) if count else b""
        for _ in range(count):
            out += b"\2k" if details["type"] == "map" else b""
            self._write(details.get("items", details.get("values")), named, out, depth + 1)
        out += b"\0"

    def payload(self) -> bytes:
        chance = self.chance
        match chance.randrange(5):
            case 0:
                return chance.randbytes(chance.randrange(200))
            case 1:
                return b"".join(self.number() for _ in range(chance.randrange(100)))
            case 2:
                pattern = b"".join(self.number() for _ in range(chance.randrange(1, 4)))
                return pattern * (chance.choice([10, 1_000, 50_000]) // len(pattern) + 1)
            case 3:
                return self.number() + b"\x55" * chance.choice([10, 5_000, 300_000])
        return b"\x02" * chance.choice([3, 300, 100_000]) + b"\0" * chance.choice([0, 3, 300])

    # -- Protobuf, JSON -----------------------------------------------------------------------------------------------

    def message(self, depth: int = 0) -> bytes:
        """Fields of Protobuf's wire format, messages within messages, groups that do not end."""
        chance, out = self.chance, bytearray()
        for _ in range(chance.choice([0, 1, 2, 5])):
            number, kind = chance.randrange(1, 9), chance.choice([0, 1, 2, 2, 2, 3, 5])
            out += bytes([number << 3 | kind])
            if kind == 0:
                out += self.number()
            elif kind in (1, 5):
                out += chance.randbytes(8 if kind == 1 else 4)
            elif kind == 2:
                inner = self.message(depth + 1) if depth < 6 else chance.randbytes(5)
                out += bytes([len(inner) & 127]) + inner[:127]
            else:
                out += self.message(depth + 1) + bytes([number << 3 | 4]) if depth < 6 else b""
        if depth == 0 and chance.random() < 0.1:
            return bytes([8 + chance.choice([3, 2])]) * chance.choice([50, 5_000, 200_000])
        return b"\x0a\x00" * chance.choice([100_000, 300_000]) if depth == 0 and chance.random() < 0.02 else bytes(out)

    def json(self) -> bytes:
        chance = self.chance
        value = json.dumps(self.document()).encode()
        match chance.randrange(6):
            case 0:
                return chance.choice([b"[", b'{"a":', b"[{"]) * chance.choice([10, 190, 210, 1_000, 100_000])
            case 1:
                return b'{"id": 1, "x": ' + b"[" * 150 + value + b"]" * 150 + b"}"
            case 2:
                at = chance.randrange(len(value))
                return (
                    value[:at] + chance.choice([b"NaN", b"1e999", b"9" * 5_000, b"\xff", b'"', b"\0"]) + value[at + 1 :]
                )
        return value

    def document(self, depth: int = 0) -> Any:
        chance = self.chance
        kinds: list[Callable[[], Any]] = [
            lambda: chance.choice([0, 1, -2, 2.5, True, None, "", "abc", "\u202e", 2**70, 1e300]),
            lambda: chance.randrange(-(2**63), 2**63),
        ]
        if depth < 3:
            kinds += 2 * [
                lambda: [self.document(depth + 1) for _ in range(chance.randrange(4))],
                lambda: {chance.choice("nslmbz"): self.document(depth + 1) for _ in range(chance.randrange(4))},
            ]
        return chance.choice(kinds)()

    # -- CEL ----------------------------------------------------------------------------------------------------------

    def expression(self, depth: int = 0) -> str:
        chance = self.chance
        if depth > 3 or chance.random() < 0.3:
            return chance.choice(
                ["1", "-2", "2.5", '"a"', "true", "null", "value", "value.n", "value.s", "value.l", "value.m.n", "value.b",
                 "key", "value.l[0]", "value.gone", "[1, 2]", '{"a": 1}', "offset", "headers", "x", "1u", 'b"a"', "0x10"]
            )  # fmt: skip
        one, two, three = (self.expression(depth + 1) for _ in range(3))
        return chance.choice(
            [f"({one} {chance.choice(['==', '!=', '<', '<=', '>', '>=', '&&', '||', '+', '-', '*', '/', '%', 'in'])} {two})",
             f"!({one})", f"-({one})", f"({one} ? {two} : {three})", f"({one}).contains({two})", f"({one}).matches({two})",
             f"({one}).exists(x, {two})", f"({one}).all(x, {two})", f"({one}).map(x, [x, x, {two}])",
             f"({one}).filter(x, {two})",
             f"size({one})", f"has({one}.n)", f"string({one})", f"[{one}, {two}]", f"({one}).map(x, x + x)" * 1,
             f"({one}){'.map(x, x + x)' * 20}", f"int({one})", f"({one})[{two}]", f"duration({one})", f"({one} {two}"]
        )  # fmt: skip


# -- targets --------------------------------------------------------------------------------------------------------------


class _Registry:
    """One schema, whatever it is asked for."""

    def __init__(self) -> None:
        self.answer: Any = None

    def ask(self, *_: object, **__: object) -> Any:
        return self.answer

    def close(self) -> None: ...


PROTO: Final = """syntax = "proto3"; import "google/protobuf/struct.proto"; import "google/protobuf/any.proto";
message Tree { repeated Tree t = 1; map<string, Tree> m = 2; double d = 3; bytes b = 4; google.protobuf.Value v = 5;
  google.protobuf.Any a = 6; repeated bool p = 7; oneof o { string s = 8; Tree n = 9; } }"""
WIDE: Final = (
    'syntax = "proto3"; message Many { repeated Wide w = 1; map<string, Wide> m = 2; double d = 3; repeated int32 p = 7; } '
    f"message Wide {{ {' '.join(f'int32 f{at} = {at};' for at in range(1, 400))} }}"
)


def console(inputs: Inputs) -> str:
    """A value, shown in every way and exported."""
    from barnabas.services.console.decoding import FORMATS, show_record
    from barnabas.services.console.export import _json_line
    from barnabas.services.console.registered import Registered
    from barnabas.services.registry import wire
    from barnabas.wire.records import Record

    kind = inputs.chance.choice(["AVRO", "AVRO", "PROTOBUF", "JSON"])
    if kind == "AVRO":
        schema, payload = inputs.avro_pair()
    elif kind == "PROTOBUF":
        schema = inputs.chance.choice([PROTO, WIDE])
        payload = inputs.chance.choice([b"\0", b"\0", b"\2\0", b"\4\2\2"]) + inputs.message()
    else:
        schema, payload = "{}", inputs.json()
    client = _Registry()
    client.answer = {"schema": schema, "schemaType": kind}
    registered = Registered(client)  # type: ignore[arg-type]
    value = wire.frame(1, payload) if inputs.chance.random() < 0.9 else payload
    record = Record(0, 0, payload[:50], value, (("h", payload[:500]),))
    asyncio.run(registered.prepare([record]))
    shown = show_record(
        "t",
        0,
        record,
        key="auto",
        value=inputs.chance.choice(["registry"] * 15 + [*FORMATS]),
        by_registry=registered.decode,
    )

    def refuse(word: str) -> None:
        raise AssertionError(f"the export has {word}, which is not JSON")

    json.loads(_json_line("t", shown).decode("utf-8", "surrogatepass"), parse_constant=refuse)
    return shown.value.format


def spark(inputs: Inputs) -> str:
    """A batch of good and hostile records becomes values or errors, each for itself."""
    import fastavro
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_type

    from barnabas.spark.pipelines.codecs import avro, avro_types, protobuf
    from barnabas.spark.pipelines.codecs.base import CodecError, convert_all

    if inputs.chance.random() < 0.25:
        from barnabas.services.registry.formats.protobuf import ProtobufSchema

        files = ProtobufSchema(WIDE, {}, as_new=False).descriptor_set()
        kind = to_arrow_type(protobuf.spark_type(files, "Many"), timezone="UTC")
        values = pa.array([b"", inputs.message(), b""])
        found = convert_all(values, protobuf.reader(files, "Many", framed=False), kind).to_pylist()
        assert found[0]["error"] is None and found[2]["error"] is None, found
        return "protobuf"
    text, payload = inputs.avro_pair()
    try:
        written_as = avro_types.parse(text)
        read_as = {"type": "record", "name": "N1", "fields": []}
        if inputs.chance.random() < 0.3 or not isinstance(written_as.schema, dict):
            kind = to_arrow_type(avro_types.spark_type(avro_types.parse_for_columns(text)), timezone="UTC")
            reader = avro._Reader(text, (), None)
        elif written_as.schema.get("type") == "record":
            fields = [each for each in json.loads(text)["fields"][-1:] if isinstance(each["type"], str)]
            read_as["fields"] = [each for each in fields if each["type"] in ("int", "long", "string", "double")]
            kind = to_arrow_type(avro_types.spark_type(avro_types.parse(json.dumps(read_as))), timezone="UTC")
            reader = avro._Reader(json.dumps(read_as), (), None)
            reader._registry = object()  # type: ignore[assignment]
            reader._written_with = lambda *_: written_as  # type: ignore[method-assign]
            reader.whole = lambda *_: None  # type: ignore[method-assign]
        else:
            return "skipped"
    except (CodecError, TypeError, pa.ArrowException) as error:
        return type(error).__name__
    head = b"\0\0\0\0\1" if reader._registry is not None else b""
    hostile = [head + each for each in (payload, inputs.payload(), inputs.payload())]
    found = convert_all(pa.array(hostile), reader, kind).to_pylist()
    assert len(found) == 3
    try:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, written_as.schema, {})
    except Exception:  # few schemas have an empty record
        return "hostile"
    [good] = convert_all(pa.array([head + out.getvalue()]), reader, kind).to_pylist()
    assert good["error"] is None, good
    return "hostile and good"


def cel(inputs: Inputs) -> str:
    """A filter: refused in time, or the same answer both ways."""
    from barnabas.services.console.errors import Refusal
    from barnabas.services.console.expressions import CannotSay, compiled

    text = inputs.expression()
    if inputs.chance.random() < 0.03:
        text = inputs.chance.choice(["(", "!", "-", "[", "a.", "1+", "x&&"]) * inputs.chance.choice([100, 1_300])
    record = {"value": inputs.document(), "key": "k", "headers": {}, "offset": 1}
    if inputs.chance.random() < 0.1:
        record["value"] = list(range(20_000))
    try:
        both = [compiled(text[:4_000], record), compiled(text[:4_000])]
    except Refusal:
        return "refused"
    answers: list[bool | None] = []
    for evaluate in both:
        try:
            answers.append(evaluate(record))
        except CannotSay:
            answers.append(None)
    # celpy calls some comparisons an error, and gives up where the quick functions do not.
    assert answers[1] is None or answers[0] == answers[1], f"{text}: {answers}"
    return str(answers[0])


TARGETS: Final[dict[str, Callable[[Inputs], str]]] = {"console": console, "spark": spark, "cel": cel}


# -- processes ------------------------------------------------------------------------------------------------------------


def _work(name: str, seed: int, first: int, pipe: Connection) -> None:
    at, started_kb = first, 0
    while True:
        pipe.send(("begins", at, ""))
        began_s = time.process_time()
        try:
            outcome = TARGETS[name](Inputs(f"{name} {seed} {at}"))
        except Exception:
            pipe.send(("found", at, traceback.format_exc(limit=-6)))
            outcome = "found"
        if (took_s := time.process_time() - began_s) > INPUT_S_MAX and at > first:
            pipe.send(("found", at, f"it took {took_s:.1f} s of CPU"))
        size_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if at == first + 20:
            started_kb = size_kb
        if started_kb and size_kb - started_kb > GROWTH_KB_MAX:
            pipe.send(("found", at, f"the process has grown by {(size_kb - started_kb) // 1024} MB"))
            started_kb = size_kb
        pipe.send(("done", at, outcome))
        at += 1


def attack(name: str, *, seconds: float, seed: int) -> tuple[Counter[str], list[str]]:
    own = multiprocessing.get_context("spawn")
    outcomes: Counter[str] = Counter()
    found: list[str] = []
    at, ends_s = 0, time.monotonic() + seconds
    while time.monotonic() < ends_s and len(found) < 20:
        here, there = own.Pipe(duplex=False)
        process = own.Process(target=_work, args=(name, seed, at, there), daemon=True)
        process.start()
        there.close()
        try:
            while time.monotonic() < ends_s:
                if not here.poll(HANG_S_MAX):
                    found.append(f"{name} {at}: no end after {HANG_S_MAX:g} s")
                    break
                event, at, said = here.recv()
                if event == "found":
                    found.append(f"{name} {at}: {said}")
                elif event == "done":
                    outcomes[said] += 1
        except EOFError:
            process.join(10)
            found.append(f"{name} {at}: the process has ended with {process.exitcode}")
        process.kill()
        process.join()
        at += 1
    return outcomes, found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", default=list(TARGETS), help=f"of {', '.join(TARGETS)}")
    parser.add_argument("--seconds", type=float, default=300, help="For each target.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="One input again, in this process.")
    options = parser.parse_args()
    is_clean = True
    for name in options.targets:
        if options.only is not None:
            print(TARGETS[name](Inputs(f"{name} {options.seed} {options.only}")))
            continue
        outcomes, found = attack(name, seconds=options.seconds, seed=options.seed)
        print(f"{name}, seed {options.seed}: {outcomes.total()} inputs, {dict(outcomes)}", flush=True)
        for each in found:
            print(f"FOUND: {each}", flush=True)
        is_clean = is_clean and not found
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
