"""Codecs for the bytes of keys and values: JSON, Avro and Protobuf, also with a schema registry.

orders = decode(records, Avro(registry=SchemaRegistry("http://registry:8081"), subject="orders-value"))
out = encode(orders, Json(), column="data")
orders = records.select(from_registry("value", "http://registry:8081", "orders-value").alias("order"))
"""

from barnabas.spark.pipelines.codecs.avro import Avro
from barnabas.spark.pipelines.codecs.base import CodecError, FormatCodec, Mode, decode, encode
from barnabas.spark.pipelines.codecs.json_codec import Json
from barnabas.spark.pipelines.codecs.protobuf import Protobuf
from barnabas.spark.pipelines.codecs.registered import Registered, from_registry, to_registry
from barnabas.spark.pipelines.codecs.registry import (
    RegistryError,
    RegistryRefused,
    RegistryUnavailable,
    SchemaRegistry,
    UnknownSchema,
)

__all__ = [
    "Avro",
    "CodecError",
    "FormatCodec",
    "Json",
    "Mode",
    "Protobuf",
    "Registered",
    "RegistryError",
    "RegistryRefused",
    "RegistryUnavailable",
    "SchemaRegistry",
    "UnknownSchema",
    "decode",
    "encode",
    "from_registry",
    "to_registry",
]
