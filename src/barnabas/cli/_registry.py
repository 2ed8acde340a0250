"""How tools reach a schema registry."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from barnabas.cli.tool import Option
from barnabas.client.config import load_properties

if TYPE_CHECKING:
    from barnabas.client.registry import RegistryClient

#: Where the registry is, and how to sign in there.
REGISTRY: Final = (
    Option("--schema-registry", "A schema registry: values are JSON, by its schemas.", metavar="URL"),
    Option(
        "--schema-registry-config",
        "Settings for the registry: basic.auth.user.info, bearer.auth.token, ssl.ca.location. SCHEMA_REGISTRY_USER and "
        "SCHEMA_REGISTRY_TOKEN in the environment do as well.",
        Path,
        metavar="FILE",
    ),
)
_ENVIRONMENT: Final = {"SCHEMA_REGISTRY_USER": "basic.auth.user.info", "SCHEMA_REGISTRY_TOKEN": "bearer.auth.token"}


def registry_config(url: str | None, file: Path | None) -> dict[str, str]:
    """Return the file's settings; without a file, credentials from the environment."""
    if file is not None:
        return load_properties(file)
    if url is None:
        return {}
    return {setting: os.environ[name] for name, setting in _ENVIRONMENT.items() if os.environ.get(name)}


def registry_client(url: str | None, file: Path | None) -> "RegistryClient | None":
    if url is None:
        return None
    from barnabas.client.registry import RegistryClient

    return RegistryClient.from_config(url, registry_config(url, file))
