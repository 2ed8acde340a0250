"""Convert a .proto file to and from protobuf's own descriptors. Pure.

Descriptors serve three purposes. Protobuf's own pool checks a new schema: names, numbers, types. Clients may register a
descriptor in base64, and receive one (`format=serialized`). And protobuf ships the well-known types as descriptors.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from barnabas.services.registry.formats.limits import SchemaError
from barnabas.services.registry.formats.proto_model import (
    SCALARS,
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
    Range,
    Rpc,
    Service,
    joined,
)

_Field = descriptor_pb2.FieldDescriptorProto
_TYPE_NAMES = {number: name.removeprefix("TYPE_").lower() for name, number in _Field.Type.items()}
_TYPES = {name: number for number, name in _TYPE_NAMES.items() if name in SCALARS}
_LABELS = {
    None: _Field.LABEL_OPTIONAL,
    "optional": _Field.LABEL_OPTIONAL,
    "required": _Field.LABEL_REQUIRED,
    "repeated": _Field.LABEL_REPEATED,
}
#: Confluent writes the options of a file in this order, and others after them.
_FILE_OPTIONS = [
    *("java_package", "java_outer_classname", "java_multiple_files", "java_generate_equals_and_hash"),
    *("java_string_check_utf8", "optimize_for", "go_package", "cc_generic_services", "java_generic_services"),
    *("py_generic_services", "deprecated", "cc_enable_arenas", "objc_class_prefix", "csharp_namespace", "swift_prefix"),
    *("php_class_prefix", "php_namespace", "php_metadata_namespace", "ruby_package"),
]


def check(name: str, file: File, imported: Mapping[str, File], names: Names) -> None:
    """Check by protobuf's own rules; raise SchemaError. `imported` has each file after those that it needs."""
    pool = descriptor_pool.DescriptorPool()
    try:
        for other_name, other in imported.items():
            pool.AddSerializedFile(to_descriptor(other_name, other, names).SerializeToString())
        pool.AddSerializedFile(to_descriptor(name, file, names).SerializeToString())
    except (TypeError, ValueError, DecodeError) as error:
        said = str(error).replace("Couldn't build proto file into descriptor pool", "").strip(" :")
        raise SchemaError(f"Could not parse Protobuf - {said}") from None


def from_bytes(data: bytes) -> File:
    descriptor = descriptor_pb2.FileDescriptorProto()
    try:
        descriptor.ParseFromString(data)
    except DecodeError as error:
        raise SchemaError(f"not a FileDescriptorProto: {error}") from None
    if descriptor.syntax not in ("", "proto2", "proto3"):
        raise SchemaError("editions are not supported: the syntax is proto2 or proto3")
    return _from_file(descriptor)


def to_descriptor(name: str, file: File, names: Names) -> descriptor_pb2.FileDescriptorProto:
    """`names` may contain more files than `file` imports."""
    package = file.package or ""
    result = descriptor_pb2.FileDescriptorProto(name=name)
    if file.syntax == "proto3":
        result.syntax = "proto3"
    if file.package:
        result.package = file.package
    result.dependency.extend(file.all_imports)
    result.public_dependency.extend(range(len(file.imports), len(file.imports) + len(file.public_imports)))
    result.weak_dependency.extend(range(len(file.imports) + len(file.public_imports), len(result.dependency)))
    writer = _DescriptorWriter(names, proto3=file.syntax == "proto3")
    for item in file.types:
        if isinstance(item, Message):
            writer.message(item, result.message_type.add(), package)
        else:
            writer.enum(item, result.enum_type.add())
    for extend in file.extends:
        writer.extend(extend, result.extension, package)
    for service in file.services:
        writer.service(service, result.service.add(), package)
    _set_options(file.options, result)
    return result


def to_set(files: list[descriptor_pb2.FileDescriptorProto]) -> bytes:
    return bytes(descriptor_pb2.FileDescriptorSet(file=files).SerializeToString())


class _DescriptorWriter:
    def __init__(self, names: Names, *, proto3: bool) -> None:
        self._names = names
        self._proto3 = proto3

    def message(self, message: Message, result: Any, outer: str) -> None:
        scope = joined(outer, message.name)
        result.name = message.name
        for item in message.types:
            if isinstance(item, Message):
                self.message(item, result.nested_type.add(), scope)
            else:
                self.enum(item, result.enum_type.add())
        for item_field in message.fields:
            self._field(item_field, result.field.add(), scope, message=result)
        for index, oneof in enumerate(message.oneofs):
            declared = result.oneof_decl.add(name=oneof.name)
            _set_options(oneof.options, declared)
            for item_field in oneof.fields:
                added = result.field.add(oneof_index=index)
                self._field(item_field, added, scope)
            for group in oneof.groups:
                self._group(group, result, scope).oneof_index = index
        for group in message.groups:
            self._group(group, result, scope)
        if self._proto3:  # protobuf requires the synthetic oneofs after all others
            for added in result.field:
                if added.proto3_optional:
                    added.oneof_index = len(result.oneof_decl)
                    result.oneof_decl.add(name=f"_{added.name}")
        for values in message.reserved:
            for value in values:
                if isinstance(value, str):
                    result.reserved_name.append(value)
                else:
                    result.reserved_range.add(start=_start(value), end=_end(value) + 1)
        for extensions in message.extensions:
            for number in extensions.values:
                result.extension_range.add(start=_start(number), end=_end(number) + 1)
        for extend in message.extends:
            self.extend(extend, result.extension, scope)
        _set_options(message.options, result)

    def _group(self, group: Group, result: Any, scope: str) -> Any:
        self.message(Message(group.name, fields=group.fields), result.nested_type.add(), scope)
        return result.field.add(
            name=group.name.lower(),
            number=group.tag,
            label=_LABELS[group.label],
            type=_Field.TYPE_GROUP,
            type_name=f".{joined(scope, group.name)}",
        )

    def _field(self, item: Field, result: Any, scope: str, message: Any = None) -> None:
        result.name, result.number, result.label = item.name, item.tag, _LABELS[item.label]
        types = item.map_types
        if types is not None and message is not None:
            entry = message.nested_type.add(name=_entry_name(item.name))
            entry.options.map_entry = True
            for index, (name, kind) in enumerate(zip(("key", "value"), types, strict=True)):
                self._field(Field(None, kind, name, index + 1), entry.field.add(), scope)
            result.label, result.type = _Field.LABEL_REPEATED, _Field.TYPE_MESSAGE
            result.type_name = f".{joined(scope, entry.name)}"
        elif item.type in _TYPES:
            result.type = _TYPES[item.type]
        else:
            full = self._names.resolve(item.type, scope)
            if full is None:
                raise SchemaError(f"Could not resolve type: {item.type}")
            element = self._names.types[full].element
            result.type = _Field.TYPE_ENUM if isinstance(element, Enum) else _Field.TYPE_MESSAGE
            result.type_name = f".{full}"
        if self._proto3 and item.label == "optional":
            result.proto3_optional = True
        if item.default is not None:
            result.default_value = str(item.default.value)
        if item.json_name is not None:
            result.json_name = item.json_name
        _set_options(item.options, result)

    def enum(self, enum: Enum, result: Any) -> None:
        result.name = enum.name
        for constant in enum.constants:
            added = result.value.add(name=constant.name, number=constant.tag)
            _set_options(constant.options, added)
        for values in enum.reserved:
            for value in values:
                if isinstance(value, str):
                    result.reserved_name.append(value)
                else:
                    result.reserved_range.add(start=_start(value), end=_end(value))
        _set_options(enum.options, result)

    def extend(self, extend: Extend, extensions: Any, scope: str) -> None:
        for item in extend.fields:
            added = extensions.add()
            self._field(item, added, scope)
            added.extendee = f".{self._type(extend.name, scope)}"

    def service(self, service: Service, result: Any, scope: str) -> None:
        result.name = service.name
        for rpc in service.rpcs:
            added = result.method.add(
                name=rpc.name,
                input_type=f".{self._type(rpc.request, scope)}",
                output_type=f".{self._type(rpc.response, scope)}",
            )
            if rpc.request_streams:
                added.client_streaming = True
            if rpc.response_streams:
                added.server_streaming = True
            _set_options(rpc.options, added)
        _set_options(service.options, result)

    def _type(self, name: str, scope: str) -> str:
        full = self._names.resolve(name, scope)
        if full is None:
            raise SchemaError(f"Could not resolve type: {name}")
        return full


def _set_options(options: Iterable[Option], target: Any) -> None:
    """Set the options that protobuf itself defines. Custom options stay in the text; a reader of data does not need them."""
    for option in options:
        known = target.DESCRIPTOR.fields_by_name["options"].message_type.fields_by_name.get(option.name)
        if option.custom or known is None or option.kind not in ("BOOLEAN", "STRING", "ENUM"):
            continue
        try:
            if known.type == FieldDescriptor.TYPE_BOOL:
                setattr(target.options, option.name, str(option.value) == "true")
            elif known.type == FieldDescriptor.TYPE_STRING:
                setattr(target.options, option.name, str(option.value))
            elif known.type == FieldDescriptor.TYPE_ENUM:
                number = known.enum_type.values_by_name[str(option.value)].number
                if known.is_repeated:
                    getattr(target.options, option.name).append(number)
                else:
                    setattr(target.options, option.name, number)
        except KeyError:
            raise SchemaError(f"Could not parse Protobuf - {option.value} is not a value of {option.name}") from None


def _from_file(descriptor: Any) -> File:
    public, weak = set(descriptor.public_dependency), set(descriptor.weak_dependency)
    imports = list(enumerate(descriptor.dependency))
    proto3 = descriptor.syntax == "proto3"
    return File(
        syntax=descriptor.syntax or None,
        package=descriptor.package or None,
        imports=[name for index, name in imports if index not in public | weak],
        public_imports=[name for index, name in imports if index in public],
        weak_imports=[name for index, name in imports if index in weak],
        types=[
            *(_from_message(item, proto3=proto3) for item in descriptor.message_type),
            *(_from_enum(item) for item in descriptor.enum_type),
        ],
        services=[_from_service(item) for item in descriptor.service],
        extends=_from_extends(descriptor.extension, proto3=proto3),
        options=_from_options(descriptor),
    )


def _from_message(descriptor: Any, *, proto3: bool) -> Message:
    result = Message(
        descriptor.name,
        oneofs=[OneOf(item.name, options=_from_options(item)) for item in descriptor.oneof_decl],
        types=[
            *(_from_message(item, proto3=proto3) for item in descriptor.nested_type),
            *(_from_enum(item) for item in descriptor.enum_type),
        ],
        options=_from_options(descriptor),
        reserved=[[_range(item.start, item.end - 1)] for item in descriptor.reserved_range],
        extensions=[Extensions([_range(item.start, item.end - 1)]) for item in descriptor.extension_range],
        extends=_from_extends(descriptor.extension, proto3=proto3),
    )
    result.reserved += [[name] for name in descriptor.reserved_name]
    for item in descriptor.field:
        if item.HasField("oneof_index") and not item.proto3_optional:
            if not 0 <= item.oneof_index < len(result.oneofs):
                raise SchemaError(f"the field {item.name} is in a oneof that {descriptor.name} does not have")
            result.oneofs[item.oneof_index].fields.append(_from_field(item, proto3=proto3, in_oneof=True))
        else:
            result.fields.append(_from_field(item, proto3=proto3, in_oneof=False))
    result.oneofs = [item for item in result.oneofs if item.fields]
    return result


def _from_field(item: Any, *, proto3: bool, in_oneof: bool) -> Field:
    label: str | None = {1: "optional", 2: "required", 3: "repeated"}[item.label]
    if in_oneof or (proto3 and label != "repeated" and not item.proto3_optional):
        label = None
    kind = item.type_name or _TYPE_NAMES[item.type]
    default = None
    if item.HasField("default_value") and not proto3:
        quoted = item.type in (_Field.TYPE_STRING, _Field.TYPE_BYTES)
        default = Option("default", "STRING" if quoted else "ENUM", item.default_value)
    json_name = item.json_name if item.HasField("json_name") else None
    return Field(label, kind, item.name, item.number, default, json_name, _from_options(item))


def _from_enum(descriptor: Any) -> Enum:
    result = Enum(
        descriptor.name,
        constants=[Constant(item.name, item.number, _from_options(item)) for item in descriptor.value],
        options=_from_options(descriptor),
        reserved=[[_range(item.start, item.end)] for item in descriptor.reserved_range],
    )
    result.reserved += [[name] for name in descriptor.reserved_name]
    return result


def _from_service(descriptor: Any) -> Service:
    rpcs = [
        Rpc(
            item.name,
            item.input_type,
            item.output_type,
            item.client_streaming,
            item.server_streaming,
            _from_options(item),
        )
        for item in descriptor.method
    ]
    return Service(descriptor.name, rpcs, _from_options(descriptor))


def _from_extends(extensions: Iterable[Any], *, proto3: bool) -> list[Extend]:
    grouped: dict[str, Extend] = {}
    for item in extensions:
        extend = grouped.setdefault(item.extendee, Extend(item.extendee))
        extend.fields.append(_from_field(item, proto3=proto3, in_oneof=False))
    return list(grouped.values())


def _from_options(descriptor: Any) -> list[Option]:
    found: list[Option] = []
    for known, value in descriptor.options.ListFields():
        for one in value if known.is_repeated else [value]:
            if known.type == FieldDescriptor.TYPE_BOOL:
                found.append(Option(known.name, "BOOLEAN", "true" if one else "false"))
            elif known.type == FieldDescriptor.TYPE_STRING:
                found.append(Option(known.name, "STRING", one))
            elif known.type == FieldDescriptor.TYPE_ENUM:
                found.append(Option(known.name, "ENUM", known.enum_type.values_by_number[one].name))
    order = {name: index for index, name in enumerate(_FILE_OPTIONS)}
    if isinstance(descriptor, descriptor_pb2.FileDescriptorProto):
        found.sort(key=lambda option: order.get(option.name, len(order)))
    return found


def _entry_name(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.split("_")) + "Entry"


def _range(start: int, end: int) -> int | Range:
    return start if start == end else Range(start, end)


def _start(value: int | Range) -> int:
    return value.start if isinstance(value, Range) else value


def _end(value: int | Range) -> int:
    return value.end if isinstance(value, Range) else value
