"""A parser for .proto text, proto2 and proto3. Pure.

proto-schema-parser is based on ANTLR, which recurses with the text. protoc (grpcio-tools) loses the order and the options
that Confluent's canonical text needs, and reads files only. So this module parses the text itself, as Wire does, in one
pass; blocks may be nested as deep as protoc allows.
"""

import re
from collections.abc import Iterator
from typing import Any, NoReturn

from barnabas.services.registry.formats.limits import SchemaError
from barnabas.services.registry.formats.proto_model import (
    TAG_MAX,
    Constant,
    Enum,
    Extend,
    Extensions,
    Field,
    File,
    Group,
    Message,
    OneOf,
    Option,
    Primitive,
    Range,
    Rpc,
    Service,
)

#: protoc's own limit for nested messages, also used for nested options.
BLOCKS_MAX = 32
NAME_CHARS_MAX = 512
NAME_PARTS_MAX = 64
_TOKENS = re.compile(
    r"""\s+ | //[^\n]*+ | /\*.*?(?:\*/|\Z)
    | (?P<text>"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"? | '[^'\\\n]*+(?:\\.[^'\\\n]*+)*+'?)
    | (?P<word>[A-Za-z0-9_.\-]++(?:(?<=[eE])\+[0-9]++)?)
    | (?P<mark>.)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ESCAPED = re.compile(r"\\(?:[xX]([0-9a-fA-F]{1,2})|([0-7]{1,3})|(.))", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_FULL_NAME = re.compile(r"\.?[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*\Z")
_LABELS = ("required", "optional", "repeated")


def parse(text: str) -> File:
    return _Parser(text).file()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._scan = _TOKENS.finditer(text)
        self._kind = ""
        self._token = ""
        self._at = 0
        self._depth = 0
        self._syntax: str | None = None
        self._next()

    # Tokens

    def _next(self) -> str:
        """Return the current token and read the next one."""
        taken = self._token
        for match in self._scan:
            if match.lastgroup is not None:
                self._kind, self._token, self._at = match.lastgroup, match[0], match.start()
                return taken
        self._kind, self._token, self._at = "end", "", len(self._text)
        return taken

    def _fail(self, said: str) -> NoReturn:
        line = self._text.count("\n", 0, self._at) + 1
        raise SchemaError(f"Could not parse Protobuf - line {line}: {said}")

    def _expect(self, mark: str) -> None:
        if self._kind != "mark" or self._token != mark:
            self._fail(f"expected '{mark}' but was '{self._token[:40]}'")
        self._next()

    def _take(self, mark: str) -> bool:
        if self._kind == "mark" and self._token == mark:
            self._next()
            return True
        return False

    def _word(self, said: str = "a word") -> str:
        if self._kind != "word":
            self._fail(f"expected {said} but was '{self._token[:40]}'")
        return self._next()

    def _name(self) -> str:
        return self._named(_NAME)

    def _full_name(self) -> str:
        return self._named(_FULL_NAME)

    def _named(self, pattern: re.Pattern[str]) -> str:
        if self._kind != "word" or not pattern.match(self._token):
            self._fail(f"'{self._token[:40]}' is not a name")
        self._check_length(self._token)
        return self._next()

    def _check_length(self, name: str) -> None:
        """Types are looked up in every scope around them, so the number of scopes must be small."""
        if len(name) > NAME_CHARS_MAX or name.count(".") > NAME_PARTS_MAX:
            self._fail(
                f"a name has more than {NAME_CHARS_MAX} characters or {NAME_PARTS_MAX} parts, which is the limit"
            )

    def _int(self) -> int:
        return self._to_int(self._word("a number"))

    def _to_int(self, word: str) -> int:
        try:
            number = int(word, 16) if word.lower().startswith(("0x", "-0x")) else int(word[:20])
        except ValueError:
            self._fail(f"expected an integer but was {word[:40]}")
        if not -(2**31) <= number < 2**31:
            self._fail(f"{word[:40]} is out of range")
        return number

    def _string(self) -> str:
        """Concatenate adjacent texts."""
        parts: list[str] = []
        while self._kind == "text":
            if len(self._token) < 2 or self._token[-1] != self._token[0]:
                self._fail("unterminated string")
            parts.append(_ESCAPED.sub(_unescape, self._token[1:-1]))
            self._next()
        if not parts:
            self._fail(f"expected a quoted string but was '{self._token[:40]}'")
        return "".join(parts)

    def _open(self, mark: str = "{") -> None:
        self._expect(mark)
        self._depth += 1
        if self._depth > BLOCKS_MAX:
            self._fail(f"nested more than {BLOCKS_MAX} deep, which is the limit")

    def _close(self, mark: str = "}") -> bool:
        if self._take(mark):
            self._depth -= 1
            return True
        if self._kind == "end":
            self._fail("unexpected end of file")
        return False

    def _statements(self) -> Iterator[None]:
        """Yield once for each statement of a block in braces; skip empty statements."""
        self._open()
        while not self._close():
            if not self._take(";"):
                yield

    # Declarations

    def file(self) -> File:
        result = File()
        first = True
        while self._kind != "end":
            if not self._take(";"):
                self._declaration(result, first=first)
            first = False
        _check_distinct("type", [item.name for item in result.types], self)
        _check_distinct("service", [item.name for item in result.services], self)
        return result

    def _declaration(self, result: File, *, first: bool) -> None:
        word = self._word("a declaration")
        match word:
            case "syntax":
                self._expect("=")
                said = self._string()
                if not first or said not in ("proto2", "proto3"):
                    self._fail("the syntax is proto2 or proto3, and stands first")
                result.syntax = self._syntax = said
                self._expect(";")
            case "edition":
                self._fail("editions are not supported: the syntax is proto2 or proto3")
            case "package":
                result.package = self._full_name()
                self._expect(";")
            case "import":
                kind = self._next() if self._kind == "word" else ""
                if kind not in ("", "public", "weak"):
                    self._fail(f"unexpected import {kind[:40]}")
                imports = {"": result.imports, "public": result.public_imports, "weak": result.weak_imports}[kind]
                imports.append(self._string())
                self._expect(";")
            case "option":
                result.options.append(self._option_statement())
            case "message":
                result.types.append(self._message())
            case "enum":
                result.types.append(self._enum())
            case "extend":
                result.extends.append(self._extend())
            case "service":
                result.services.append(self._service())
            case _:
                self._fail(f"unexpected label: {word[:40]}")

    def _message(self) -> Message:
        result = Message(self._name())
        for _ in self._statements():
            self._member(result, self._word("a field"))
        _check_distinct("type", [item.name for item in result.types], self)
        return result

    def _member(self, result: Message, word: str) -> None:
        match word:
            case "option":
                result.options.append(self._option_statement())
            case "message":
                result.types.append(self._message())
            case "enum":
                result.types.append(self._enum())
            case "extend":
                result.extends.append(self._extend())
            case "oneof":
                result.oneofs.append(self._oneof())
            case "reserved":
                result.reserved.append(self._reserved())
            case "extensions":
                result.extensions.append(self._extensions())
            case _:
                field = self._field(word)
                if isinstance(field, Group):
                    result.groups.append(field)
                else:
                    result.fields.append(field)

    def _field(self, word: str) -> Field | Group:
        label = None
        if word in _LABELS:
            if word == "required" and self._syntax == "proto3":
                self._fail("'required' label forbidden in proto3 field declarations")
            label, word = word, self._word("a type")
        elif self._syntax != "proto3" and not (word == "map" and self._token == "<"):
            self._fail(f"unexpected label: {word[:40]}")
        kind = self._type(word)
        if kind == "group":
            return self._group(label)
        if label is not None and kind.startswith("map<"):
            self._fail("'map' type cannot have label")
        return self._rest_of_field(label, kind)

    def _type(self, word: str) -> str:
        if word == "map" and self._take("<"):
            key = self._type(self._word("a type"))
            self._expect(",")
            value = self._type(self._word("a type"))
            self._expect(">")
            if key.startswith("map<") or value.startswith("map<"):
                self._fail("a map holds no maps")
            return f"map<{key}, {value}>"
        if not _FULL_NAME.match(word):
            self._fail(f"'{word[:40]}' is not a type")
        self._check_length(word)
        return word

    def _rest_of_field(self, label: str | None, kind: str) -> Field:
        result = Field(label, kind, self._name(), 0)
        self._expect("=")
        result.tag = self._int()
        for option in self._options():
            if option.name == "default" and not option.custom:
                result.default = option
            elif option.name == "json_name" and not option.custom:
                result.json_name = str(option.value)
            else:
                result.options.append(option)
        self._expect(";")
        return result

    def _group(self, label: str | None) -> Group:
        result = Group(label, self._name(), 0)
        self._expect("=")
        result.tag = self._int()
        self._open()
        while not self._close():
            field = self._field(self._word("a field"))
            if isinstance(field, Group):
                self._fail("expected field declaration")
            result.fields.append(field)
        return result

    def _oneof(self) -> OneOf:
        result = OneOf(self._name())
        for _ in self._statements():
            kind = self._type(self._word("a field"))
            if kind == "group":
                result.groups.append(self._group(None))
            elif kind == "option":
                result.options.append(self._option_statement())
            elif kind.startswith("map<") or kind in _LABELS:
                self._fail("a oneof holds no labels and no maps")
            else:
                result.fields.append(self._rest_of_field(None, kind))
        return result

    def _enum(self) -> Enum:
        result = Enum(self._name())
        for _ in self._statements():
            word = self._word("a constant")
            if word == "option" and not (self._kind == "mark" and self._token == "="):
                result.options.append(self._option_statement())
            elif word == "reserved" and not (self._kind == "mark" and self._token == "="):
                result.reserved.append(self._reserved())
            else:
                if not _NAME.match(word):
                    self._fail(f"'{word[:40]}' is not a name")
                self._expect("=")
                result.constants.append(Constant(word, self._int(), self._options()))
                self._expect(";")
        return result

    def _extend(self) -> Extend:
        result = Extend(self._full_name())
        for _ in self._statements():
            field = self._field(self._word("a field"))
            if isinstance(field, Group):
                self._fail("an extension by a group is not supported")
            result.fields.append(field)
        return result

    def _service(self) -> Service:
        result = Service(self._name())
        for _ in self._statements():
            word = self._word("an rpc")
            if word == "option":
                result.options.append(self._option_statement())
            elif word == "rpc":
                result.rpcs.append(self._rpc())
            else:
                self._fail(f"unexpected label: {word[:40]}")
        return result

    def _rpc(self) -> Rpc:
        name = self._name()
        request, request_streams = self._rpc_type()
        if self._word() != "returns":
            self._fail("expected 'returns'")
        response, response_streams = self._rpc_type()
        result = Rpc(name, request, response, request_streams, response_streams)
        if not (self._kind == "mark" and self._token == "{"):
            self._expect(";")
            return result
        for _ in self._statements():
            if self._word("an option") != "option":
                self._fail("expected an option")
            result.options.append(self._option_statement())
        return result

    def _rpc_type(self) -> tuple[str, bool]:
        self._expect("(")
        word = self._word("a type")
        streams = word == "stream" and self._kind == "word"
        kind = self._type(self._word("a type") if streams else word)
        self._expect(")")
        return kind, streams

    def _reserved(self) -> list[int | str | Range]:
        values: list[int | str | Range] = []
        while True:
            values.append(self._string() if self._kind == "text" else self._number_or_range())
            if not self._take(","):
                self._expect(";")
                return values

    def _extensions(self) -> Extensions:
        values = [self._number_or_range()]
        while self._take(","):
            values.append(self._number_or_range())
        options = self._options()
        self._expect(";")
        return Extensions(values, options)

    def _number_or_range(self) -> int | Range:
        start = self._int()
        if self._kind != "word":
            return start
        if self._next() != "to":
            self._fail("expected ',', ';', or 'to'")
        end = self._word("a number")
        return Range(start, TAG_MAX if end == "max" else self._to_int(end))

    # Options

    def _option_statement(self) -> Option:
        option = self._option("=")
        self._expect(";")
        return option

    def _options(self) -> list[Option]:
        options: list[Option] = []
        if self._take("["):
            options.append(self._option("="))
            while not self._take("]"):
                self._expect(",")
                options.append(self._option("="))
        return options

    def _option(self, separator: str) -> Option:
        custom = self._kind == "mark" and self._token == "("
        if self._take("("):
            name = self._full_name()
            self._expect(")")
        elif self._take("["):
            name = f"[{self._url()}]"
            self._expect("]")
        else:
            name = self._word("the name of an option")
        name, parts = self._option_parts(name, custom=custom)
        if not (separator == ":" and self._kind == "mark" and self._token == "{"):
            self._expect(separator)
        kind, value = self._value()
        for part, part_custom in reversed(parts):
            value, kind = Option(part, kind, value, part_custom), "OPTION"
        return Option(name, kind, value, custom)

    def _option_parts(self, name: str, *, custom: bool) -> tuple[str, list[tuple[str, bool]]]:
        """Parse `(name).part.(other).more`: a word contains dots, so parts come in one word or in several."""
        parts: list[tuple[str, bool]] = []
        dots = ""
        if not custom and not name.startswith("["):
            dots = name
            name, *rest = name.rstrip(".").split(".")
            parts += [(part, False) for part in rest]
        while True:
            if self._kind == "word" and self._token.startswith("."):
                dots = self._next()
                parts += [(part, False) for part in dots.split(".") if part]
            elif dots.endswith(".") and self._take("("):
                dots = ""
                parts.append((self._full_name(), True))
                self._expect(")")
            elif len(parts) > BLOCKS_MAX:
                self._fail(f"an option has more than {BLOCKS_MAX} parts, which is the limit")
            elif dots.endswith(".") or not all(_FULL_NAME.match(part) for part, _ in parts):
                self._fail("an option has a part without a name")
            elif not (name.startswith("[") or _FULL_NAME.match(name)):
                self._fail(f"'{name[:40]}' is not the name of an option")
            else:
                return name, parts

    def _url(self) -> str:
        url = self._word("a name")
        while self._take("/"):
            url += "/" + self._word("a name")
        return url

    def _value(self) -> tuple[str, Any]:
        if self._kind == "text":
            return "STRING", self._string()
        if self._kind == "mark" and self._token == "{":
            return "MAP", self._map()
        if self._kind == "mark" and self._token == "[":
            return "LIST", self._list()
        word = self._word("a value")
        if word in ("true", "false"):
            return "BOOLEAN", word
        return ("NUMBER" if word[0].isdigit() or word[0] in "-." else "ENUM"), word

    def _map(self) -> dict[str, Any]:
        """Collect repeated keys into a list."""
        result: dict[str, Any] = {}
        self._open()
        while not self._close():
            option = self._option(":")
            value = _plain(option.kind, option.value)
            if isinstance(value, Option):
                nested = result.setdefault(option.name, {})
                if isinstance(nested, dict):
                    nested[value.name] = _plain(value.kind, value.value)
            elif option.name not in result:
                result[option.name] = value
            else:
                known = result[option.name]
                if not isinstance(known, list):
                    known = result[option.name] = [known]
                known += value if isinstance(value, list) else [value]
            if not self._take(","):
                self._take(";")
        return result

    def _list(self) -> list[Any]:
        result: list[Any] = []
        self._open("[")
        while not self._close("]"):
            result.append(_plain(*self._value()))
            if not self._take(",") and not (self._kind == "mark" and self._token == "]"):
                self._fail("expected ',' or ']'")
        return result


def _plain(kind: str, value: Any) -> Any:
    return Primitive(kind, value) if kind in ("BOOLEAN", "NUMBER", "ENUM") else value


def _unescape(match: re.Match[str]) -> str:
    hexadecimal, octal, other = match.groups()
    if hexadecimal:
        return chr(int(hexadecimal, 16))
    if octal:
        return chr(int(octal, 8))
    return _ESCAPES.get(other, other)


def _check_distinct(kind: str, names: list[str], parser: _Parser) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            parser._fail(f"the {kind} {name} is already defined")
        seen.add(name)
