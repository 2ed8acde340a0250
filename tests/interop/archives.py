"""Unpacks archives that tests fetch. Python 3.11.2, which Debian 12 has, knows no extraction filters yet."""

import tarfile
from pathlib import Path


def unpack(tar: tarfile.TarFile, folder: Path, members: list[tarfile.TarInfo] | None = None) -> None:
    if hasattr(tarfile, "data_filter"):
        tar.extractall(folder, members, filter="data")
    else:
        tar.extractall(folder, members)  # fetched by name through a registry's own client
