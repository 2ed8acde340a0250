"""How a table's files are reached: the settings of the object store in the run's environment, in a form for executors.

Executors run elsewhere, and have another environment. Both formats read the same variables, which have the names of the
vendors' own tools; settings of a table's catalog win over them.
"""

import os
from collections.abc import Mapping
from typing import Final

from barnabas.spark.tables.definition import Definition

#: Prefixes of the variables that `deltalake` reads.
_PREFIXES: Final = {"s3": "AWS_", "s3a": "AWS_", "gs": "GOOGLE_", "az": "AZURE_", "abfs": "AZURE_", "abfss": "AZURE_"}
#: The settings of pyiceberg, each with its variables.
_OF_ICEBERG: Final = {
    "s3.endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "s3.region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "s3.access-key-id": ("AWS_ACCESS_KEY_ID",),
    "s3.secret-access-key": ("AWS_SECRET_ACCESS_KEY",),
    "s3.session-token": ("AWS_SESSION_TOKEN",),
}


def delta_storage(table: Definition, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """deltalake's `storage_options`."""
    prefix = _PREFIXES.get(table.url.partition("://")[0])
    if prefix is None:
        return {}
    return {name: value for name, value in environment.items() if name.startswith(prefix)}


def catalog_settings(table: Definition, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the settings with which pyiceberg opens the catalog and the table's files."""
    if _PREFIXES.get(table.url.partition("://")[0]) != "AWS_":
        return dict(table.catalog)
    found = {
        setting: environment[name]
        for setting, names in _OF_ICEBERG.items()
        for name in reversed(names)
        if environment.get(name)
    }
    return found | dict(table.catalog)
