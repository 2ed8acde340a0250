"""A Trino server on this machine, from Maven: one process that is coordinator and worker, with queries over HTTP.

It reads folders: Delta tables by their path, Iceberg tables by the SQLite file that is their catalog.
"""

import base64
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

from bench.kafka import free_port

from tests.interop import maven

#: The last version of which Maven Central has everything.
SERVER: Final = "io.trino:trino-server:476:tar.gz"
#: The driver that the Iceberg connector needs for a catalog in SQLite.
SQLITE: Final = "org.xerial:sqlite-jdbc:3.50.3.0"
JAVA_LEAST: Final = 24
_PLUGINS: Final = ("delta-lake", "iceberg")
_READY_TIMEOUT_S: Final = 180.0
_REQUEST_TIMEOUT_S: Final = 120.0

Row = dict[str, Any]


def java_home(least: int = JAVA_LEAST) -> Path | None:
    """Return the home of the newest Java on this machine that is not older than `least`."""
    named = [Path(home) for name, home in os.environ.items() if name.startswith("JAVA_HOME") and home]
    known = [*named, *Path("/usr/lib/jvm").glob("*")]
    fit = [(version, home) for home in known if (version := _java_version(home)) >= least]
    return max(fit)[1] if fit else None


def _java_version(home: Path) -> int:
    release = home / "release"
    found = re.search(r'^JAVA_VERSION="(\d+)', release.read_text(), re.MULTILINE) if release.is_file() else None
    return int(found[1]) if found is not None and (home / "bin" / "java").is_file() else 0


def _server() -> Path:
    """Unpack the server with only the needed plugins, because each takes time to load."""
    folder = maven.unpacked(SERVER, _keep_plugins)
    [server] = folder.glob("trino-server-*")
    return server


def _keep_plugins(folder: Path) -> None:
    for plugin in folder.glob("*/plugin/*"):
        if plugin.name not in _PLUGINS:
            shutil.rmtree(plugin)
    for iceberg in folder.glob("*/plugin/iceberg"):
        for jar in maven.jars(SQLITE):
            shutil.copy(jar, iceberg)


class Trino:
    """`with Trino(java_home, catalogs) as trino: trino.rows("SELECT …")`. `catalogs`: name -> properties."""

    def __init__(self, home: Path, catalogs: Mapping[str, Mapping[str, str]]) -> None:
        self._home = home
        self._catalogs = catalogs
        self._port = free_port()

    def __enter__(self) -> Self:
        server = _server()
        self._folder = Path(tempfile.mkdtemp(prefix="trino-"))
        address = f"http://127.0.0.1:{self._port}"
        _write(
            self._folder / "config.properties",
            {
                "coordinator": "true",
                "node-scheduler.include-coordinator": "true",
                "http-server.http.port": str(self._port),
                "node.internal-address": "127.0.0.1",
                "discovery.uri": address,
                "plugin.dir": str(server / "plugin"),
                "catalog.config-dir": str(self._folder / "catalog"),
                "query.max-memory-per-node": "300MB",
                "web-ui.enabled": "false",
            },
        )
        for name, properties in self._catalogs.items():
            _write(self._folder / "catalog" / f"{name}.properties", properties)
        command = [
            str(self._home / "bin" / "java"),
            "-Xmx1g",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Djdk.attach.allowAttachSelf=true",
            "-Dfile.encoding=UTF-8",
            "--add-modules=jdk.incubator.vector",
            "--enable-native-access=ALL-UNNAMED",
            "--sun-misc-unsafe-memory-access=allow",
            "-Dnode.environment=test",
            f"-Dnode.data-dir={self._folder / 'data'}",
            f"-Dconfig={self._folder / 'config.properties'}",
            "-cp",
            f"{server / 'lib'}/*",
            "io.trino.server.TrinoServer",
        ]
        self._log = self._folder / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=self._folder)
        try:
            self._wait(f"{address}/v1/info")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait(60)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _wait(self, url: str) -> None:
        ends_s = time.monotonic() + _READY_TIMEOUT_S
        while time.monotonic() < ends_s:
            if self._process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(url, timeout=5) as answer:
                    if not json.load(answer)["starting"]:
                        return
            except OSError:
                pass  # the server does not listen or answer yet
            time.sleep(0.5)
        raise RuntimeError(f"Trino does not start:\n{self._log.read_text()[-4000:]}")

    def rows(self, query: str) -> list[Row]:
        """Return the rows of a query: bytes as bytes, nested rows as dicts, other values as in JSON."""
        found: list[Row] = []
        for page in self._pages(query):
            columns = page.get("columns", [])
            reads = [(each["name"], _read_as(each["typeSignature"])) for each in columns]
            for row in page.get("data", []):
                found.append({name: read(value) for (name, read), value in zip(reads, row, strict=True)})
        return found

    def _pages(self, query: str) -> Iterator[dict[str, Any]]:
        """Follow `nextUri` from one page to the next."""
        url, body = f"http://127.0.0.1:{self._port}/v1/statement", query.encode()
        headers = {"X-Trino-User": "test", "X-Trino-Time-Zone": "UTC"}
        request = urllib.request.Request(url, data=body, headers=headers)
        while True:
            with urllib.request.urlopen(request, timeout=_REQUEST_TIMEOUT_S) as answer:
                page: dict[str, Any] = json.load(answer)
            if "error" in page:
                raise RuntimeError(f"{query}: {page['error']['message']}")
            yield page
            if "nextUri" not in page:
                return
            request = urllib.request.Request(page["nextUri"], headers=headers)


def _write(file: Path, properties: Mapping[str, str]) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))


def _read_as(signature: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Return the function that converts a JSON value to this type."""
    kind, arguments = signature["rawType"], [each["value"] for each in signature["arguments"]]
    if kind == "varbinary":
        read: Callable[[Any], Any] = base64.b64decode
    elif kind == "array":
        item = _read_as(arguments[0])
        read = lambda values: [item(value) for value in values]  # noqa: E731
    elif kind == "row":
        fields = [(each["fieldName"]["name"], _read_as(each["typeSignature"])) for each in arguments]
        read = lambda values: {n: each(value) for (n, each), value in zip(fields, values, strict=True)}  # noqa: E731
    else:
        read = lambda value: value  # noqa: E731
    return lambda value: None if value is None else read(value)
