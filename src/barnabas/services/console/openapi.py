"""The description of the HTTP API, generated from the endpoints."""

import re
from collections.abc import Sequence
from typing import Any

from barnabas import __version__
from barnabas.services.console.web import PATH_PREFIX, TEXT, Endpoint

_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {"code": TEXT, "message": TEXT},
            "required": ["code", "message"],
        }
    },
    "required": ["error"],
}


def document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(PATH_PREFIX + endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "barnabas console",
            "version": __version__,
            "description": "All functions of the console's pages. Changes need --read-write.",
        },
        "paths": paths,
        "components": {"schemas": {"Error": _ERROR}},
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": TEXT} for name in re.findall(r"{(\w+)}", endpoint.path)
    ] + [{"name": name, "in": "query", "schema": dict(schema)} for name, schema in endpoint.query.items()]
    schema: dict[str, Any] = {} if endpoint.content_type == "application/json" else {"type": "string"}
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "operationId": f"{endpoint.method.lower()}{endpoint.path}".replace("/", "_").replace("{", "").replace("}", ""),
        "parameters": parameters,
        "responses": {
            "200": {"description": "Done.", "content": {endpoint.content_type: {"schema": schema}}},
            "default": {
                "description": "An error: a sentence, and a name (Kafka's name for Kafka's errors).",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            },
        },
    }
    if endpoint.live_s is not None:
        operation["x-live-seconds"] = endpoint.live_s
    if endpoint.body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": dict(endpoint.body)}}}
    return operation
