"""A schema registry: Confluent's REST API over the compacted topic `_schemas`. Installed with `barnabas[registry]`.

`formats` knows Avro, JSON Schema and Protobuf. `store` is the state, `reads` and `writes` decide, all without I/O. `log` reads
and writes the topic, `election` finds the primary, `node` is one instance, `http_server` and `server` answer clients.
"""
