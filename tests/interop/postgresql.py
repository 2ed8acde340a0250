"""A PostgreSQL server of our own: Debian's programs, a folder that goes with it, the loopback address."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from adbc_driver_postgresql import dbapi

_PROGRAMS = Path("/usr/lib/postgresql")


def programs() -> Path:
    """Where initdb and postgres are; installs the package `postgresql` if they are missing, and skips if that fails."""
    if not list(_PROGRAMS.glob("*/bin/initdb")) and shutil.which("apt-get") is not None:
        subprocess.run(["apt-get", "install", "-y", "-qq", "postgresql"], capture_output=True, timeout=280, check=False)
    found = sorted(_PROGRAMS.glob("*/bin/initdb"))
    if not found:
        pytest.skip("needs postgresql")
    return found[-1].parent


@contextmanager
def server() -> Iterator[str]:
    """The URI of a running server. PostgreSQL refuses to run as root."""
    place = programs()
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    as_user: list[str] = []
    if os.geteuid() == 0:
        owner = pwd.getpwnam("postgres")
        os.chown(folder, owner.pw_uid, owner.pw_gid)
        as_user = ["runuser", "-u", "postgres", "--"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    data, log = folder / "data", folder / "log"
    initdb = [*as_user, str(place / "initdb"), "-D", str(data), "-A", "trust", "-U", "me", "--no-sync"]
    subprocess.run(initdb, check=True, capture_output=True, timeout=120)
    control = [*as_user, str(place / "pg_ctl"), "-D", str(data), "-w", "-l", str(log)]
    settings = (
        f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off -c wal_level=logical "
        "-c max_replication_slots=50"
    )
    subprocess.run([*control, "-o", settings, "start"], check=True, capture_output=True, timeout=120)
    try:
        yield f"postgresql://me@127.0.0.1:{port}/postgres"
    finally:
        subprocess.run([*control, "-m", "immediate", "stop"], check=True, capture_output=True, timeout=60)
        shutil.rmtree(folder)


def ask(uri: str, *statements: str) -> list[tuple[Any, ...]]:
    """The rows of the last of them."""
    with dbapi.connect(uri) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        rows = cursor.fetchall() if cursor.description else []
        connection.commit()
        return [tuple(row) for row in rows]
