"""A .proto file as text: Confluent's canonical form, and the normalized one. Pure.

The canonical text has everything that was written, except comments, grouped by kind: messages before enums, fields before
oneofs. The normalized text also sorts members by number and options by name, and writes types with their full names.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from typing import Any

from barnabas.services.registry.formats.limits import SchemaError
from barnabas.services.registry.formats.proto_model import (
    SCALARS,
    TAG_MAX,
    Constant,
    Enum,
    Extend,
    Extensions,
    Field,
    File,
    Group,
    Message,
    Names,
    OneOf,
    Option,
    Primitive,
    Range,
    Rpc,
    Service,
    joined,
)

_ESCAPES = str.maketrans({key: "\\" + value for key, value in zip("\a\b\f\n\r\t\v\\'\"", "abfnrtv\\'\"", strict=True)})


def canonical(file: File, *, extensions: bool = True) -> str:
    """Without `extensions`, leave out extensions and custom options, except Confluent's."""
    return _Writer(None, extensions=extensions).file(file)


def normalized(file: File, names: Names) -> str:
    """Raise SchemaError for an unknown type."""
    return _Writer(names).file(file)


class _Writer:
    def __init__(self, names: Names | None, *, extensions: bool = True) -> None:
        self._names = names
        self._extensions = extensions
        self._scope = names.package if names is not None else ""

    def file(self, file: File) -> str:
        head = ""
        if file.syntax and (self._names is None or file.syntax == "proto3"):
            head += f'syntax = "{file.syntax}";\n'
        if file.package:
            head += f"package {file.package};\n"
        imports = [
            f'import {kind}"{name}";\n'
            for kind, listed in (("", file.imports), ("public ", file.public_imports), ("weak ", file.weak_imports))
            for name in (listed if self._names is None else sorted(set(listed)))
        ]
        groups = [
            imports,
            [self._option_statement(option) for option in self._kept(file.options)],
            self._types(file.types),
            [self._extend(extend) for extend in self._extends(file.extends)],
            [self._service(service) for service in file.services],
        ]
        return head + "".join("\n" + "".join(group) for group in groups if group)

    def _types(self, types: list[Message | Enum]) -> list[str]:
        """Keep the order of messages: a serialized message refers to its type by position."""
        messages = [item for item in types if isinstance(item, Message)]
        if self._names is not None:
            messages = [item for item in messages if not item.is_map_entry]
        written = [self._within(item.name, self._message, item) for item in messages]
        return written + [self._within(item.name, self._enum, item) for item in types if isinstance(item, Enum)]

    def _within(self, name: str, write: Callable[[Any], str], item: Any) -> str:
        outer, self._scope = self._scope, joined(self._scope, name)
        written = write(item)
        self._scope = outer
        return written

    def _message(self, message: Message) -> str:
        fields, oneofs, groups = message.fields, message.oneofs, message.groups
        extensions = message.extensions if self._extensions else []
        if self._names is not None:
            fields = sorted(fields, key=lambda item: item.tag)
            groups = sorted(groups, key=lambda item: item.tag)
            oneofs = [
                replace(item, fields=sorted(item.fields, key=lambda inner: inner.tag)) for item in oneofs if item.fields
            ]
            oneofs.sort(key=lambda item: item.fields[0].tag)
            extensions = [Extensions([value], item.options) for item in extensions for value in item.values]
            extensions.sort(key=lambda item: _start(item.values[0]))
        return _block(
            f"message {message.name}",
            [self._ranges("reserved", values) for values in self._reserved(message.reserved)],
            [self._option_statement(option) for option in self._kept(message.options)],
            [self._field(item) for item in fields],
            [self._oneof(item) for item in oneofs],
            [self._group(item) for item in groups],
            [self._ranges("extensions", item.values, item.options) for item in extensions],
            [self._extend(item) for item in self._extends(message.extends)],
            self._types(message.types),
        )

    def _enum(self, enum: Enum) -> str:
        constants: list[Constant] = enum.constants
        if self._names is not None:
            constants = sorted(constants, key=lambda item: (item.tag, item.name))
        members = [self._ranges("reserved", values) for values in self._reserved(enum.reserved)]
        members += [self._option_statement(option) for option in self._kept(enum.options)]
        members += [f"{item.name} = {item.tag}{self._brackets(item.options)};\n" for item in constants]
        return _block(f"enum {enum.name}", members)

    def _oneof(self, oneof: OneOf) -> str:
        groups = oneof.groups if self._names is None else sorted(oneof.groups, key=lambda item: item.tag)
        return _block(
            f"oneof {oneof.name}",
            [self._option_statement(option) for option in self._kept(oneof.options)],
            [self._field(item) for item in oneof.fields],
            [self._group(item) for item in groups],
        )

    def _group(self, group: Group) -> str:
        fields = group.fields if self._names is None else sorted(group.fields, key=lambda item: item.tag)
        label = f"{group.label} " if group.label else ""
        return _block(f"{label}group {group.name} = {group.tag}", [self._field(item) for item in fields])

    def _extends(self, extends: list[Extend]) -> list[Extend]:
        if self._names is None:
            return extends if self._extensions else []
        grouped: dict[str, Extend] = {}
        for extend in extends:
            name = self._resolved(extend.name)
            grouped.setdefault(name, Extend(name)).fields.extend(extend.fields)
        return list(grouped.values())

    def _extend(self, extend: Extend) -> str:
        fields = extend.fields if self._names is None else sorted(extend.fields, key=lambda item: item.tag)
        return _block(f"extend {extend.name}", [self._field(item) for item in fields])

    def _service(self, service: Service) -> str:
        return _block(
            f"service {service.name}",
            [self._option_statement(option) for option in self._kept(service.options)],
            [self._rpc(rpc) for rpc in service.rpcs],
        )

    def _rpc(self, rpc: Rpc) -> str:
        request, response = rpc.request, rpc.response
        if self._names is not None:
            request, response = self._resolved(request), self._resolved(response)
        request = f"stream {request}" if rpc.request_streams else request
        response = f"stream {response}" if rpc.response_streams else response
        options = "".join(_indented(self._option_statement(option)) for option in self._kept(rpc.options))
        return f"rpc {rpc.name} ({request}) returns ({response})" + (f" {{\n{options}}}" if options else "") + ";\n"

    def _field(self, item: Field) -> str:
        label, kind = item.label, item.type
        if self._names is not None:
            label, kind = self._normalized_type(item, self._names)
        options = list(item.options)
        if item.default is not None:
            options.append(item.default)
        if item.json_name is not None:
            options.append(Option("json_name", "STRING", item.json_name))
        return f"{f'{label} ' if label else ''}{kind} {item.name} = {item.tag}{self._brackets(options)};\n"

    def _normalized_type(self, item: Field, names: Names) -> tuple[str | None, str]:
        kind, types = item.type, item.map_types
        if types is None and kind not in SCALARS:
            kind = self._resolved(kind)
            entry = names.types[kind[1:]].map_type
            if entry is not None:
                types = replace(item, type=entry).map_types
        if types is None:
            return item.label, kind
        key, value = types
        return None, f"map<{key}, {value if value in SCALARS else self._resolved(value)}>"

    def _resolved(self, name: str) -> str:
        assert self._names is not None
        full = self._names.resolve(name, self._scope)
        if full is None:
            raise SchemaError(f"Could not resolve type: {name}")
        return f".{full}"

    def _reserved(self, reserved: list[list[int | str | Range]]) -> list[list[int | str | Range]]:
        if self._names is None:
            return reserved
        return sorted(
            [[value] for values in reserved for value in values], key=lambda one: (_start(one[0]), str(one[0]))
        )

    def _ranges(self, word: str, values: Iterable[int | str | Range], options: list[Option] | None = None) -> str:
        return f"{word} {', '.join(map(self._range, values))}{self._brackets(options or [])};\n"

    def _range(self, value: int | str | Range) -> str:
        if isinstance(value, str):
            return f'"{value}"'
        if isinstance(value, int):
            return str(value)
        if self._names is not None and value.start == value.end:
            return str(value.start)
        return f"{value.start} to {value.end if value.end < TAG_MAX else 'max'}"

    # Options

    def _kept(self, options: list[Option]) -> list[Option]:
        """Normalized: sorted by name, with full names; settings of one option in several places are merged."""
        if not self._extensions:
            options = [option for option in options if not option.custom or option.name.startswith("confluent.")]
        if self._names is None or not options:
            return options
        named: list[Option] = []
        for option in options:
            full = self._names.resolve_extension(option.name, self._scope) if option.custom else None
            named.append(option if full is None else _as_map(replace(option, name=full)))
        named.sort(key=lambda option: option.name)
        kept: list[Option] = []
        for option in named:
            extension = self._names.extensions.get(option.name)
            if extension is None or extension.label == "repeated" or not kept or kept[-1].name != option.name:
                kept.append(option)
            elif kept[-1].kind == option.kind == "MAP":
                merged = self._merged(extension, kept[-1].value, option.value)
                kept[-1] = replace(option, value=merged)
            else:
                kept[-1] = option
        return kept

    def _merged(self, item: Field | None, first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
        assert self._names is not None
        kind = self._names.type(item.type, self._scope) if item is not None else None
        members: dict[str, Field] = {}
        if kind is not None and isinstance(kind.element, Message):
            members = {member.name: member for member in kind.element.fields}
            members |= {member.name: member for oneof in kind.element.oneofs for member in oneof.fields}
        merged = dict(first)
        for key, value in second.items():
            member = members.get(key)
            if key not in merged:
                merged[key] = value
            elif member is not None and member.label != "repeated":
                both = isinstance(merged[key], dict) and isinstance(value, dict)
                merged[key] = self._merged(member, merged[key], value) if both else value
            else:
                listed = merged[key] if isinstance(merged[key], list) else [merged[key]]
                more = value if isinstance(value, list) else [value]
                merged[key] = listed + [one for one in more if one not in listed]
        return merged

    def _option_statement(self, option: Option) -> str:
        return f"option {self._option(option)};\n"

    def _brackets(self, options: list[Option]) -> str:
        kept = self._kept(options)
        return f" {self._list(kept)}" if kept else ""

    def _list(self, items: list[Any]) -> str:
        if len(items) == 1:
            return f"[{self._value(items[0])}]"
        return "[\n" + self._lines(map(self._value, items)) + "]"

    def _lines(self, values: Iterable[str]) -> str:
        texts = list(values)
        return "".join(_indented(text + ("," if index < len(texts) - 1 else "")) for index, text in enumerate(texts))

    def _option(self, option: Option) -> str:
        name = f"({option.name})" if option.custom else option.name
        match option.kind:
            case "STRING":
                return f'{name} = "{_escaped(str(option.value))}"'
            case "NUMBER":
                return f"{name} = {self._number(option.value)}"
            case "OPTION":
                return f"{name}.{self._option(option.value)}"
            case "MAP":
                return f"{name} = {self._map(option.value)}"
            case "LIST":
                return f"{name} = {self._list(option.value)}"
            case _:
                return f"{name} = {option.value}"

    def _map(self, values: dict[str, Any]) -> str:
        if self._names is not None:
            full: dict[str, Any] = {}
            for key, value in values.items():
                found = self._names.resolve_extension(key[1:-1], self._scope) if key.startswith("[") else None
                if value != []:
                    full.setdefault(f"[{found}]" if found else key, value)
            values = dict(sorted(full.items()))
        return "{\n" + self._lines(f"{key}: {self._value(value)}" for key, value in values.items()) + "}"

    def _value(self, value: Any) -> str:
        if isinstance(value, Option):
            return self._option(value)
        if isinstance(value, str):
            return f'"{_escaped(value)}"'
        if isinstance(value, dict):
            return self._map(value)
        if isinstance(value, list):
            if self._names is not None and len(value) == 1:
                return self._value(value[0])
            return "[\n" + self._lines(map(self._value, value)) + "]"
        assert isinstance(value, Primitive)
        return self._number(value.value) if value.kind == "NUMBER" else value.value

    def _number(self, text: str) -> str:
        """Normalized: written as Java's DecimalFormat does, with at most three digits after the decimal point."""
        if self._names is None:
            return text
        try:
            if text.lower().startswith(("0x", "-0x")):
                return str(int(text[:20], 16))
            number = Decimal(text)
            if abs(number.adjusted()) > 400:
                return text
            written = f"{number.quantize(Decimal('0.001'), ROUND_HALF_EVEN):f}"
        except (InvalidOperation, ValueError):
            return text
        return written.rstrip("0").rstrip(".")


def _as_map(option: Option) -> Option:
    return replace(option, kind="MAP", value=_parts(option.value)) if option.kind == "OPTION" else option


def _parts(part: Option) -> dict[str, Any]:
    if part.kind == "OPTION":
        return {part.name: _parts(part.value)}
    return {part.name: Primitive(part.kind, part.value) if part.kind in ("BOOLEAN", "ENUM", "NUMBER") else part.value}


def _block(head: str, *groups: list[str]) -> str:
    """Groups of members with a blank line between them. Blank lines are indented as well, as in Confluent's text."""
    body = "".join("\n" + "".join(map(_indented, group)) for group in groups if group)
    return f"{head} {{{body}}}\n"


def _indented(text: str) -> str:
    return "".join(f"  {line}\n" for line in text.rstrip("\n").split("\n"))


def _start(value: int | str | Range) -> int:
    if isinstance(value, Range):
        return value.start
    return value if isinstance(value, int) else 2**31 - 1


def _escaped(text: str) -> str:
    return text.translate(_ESCAPES)
