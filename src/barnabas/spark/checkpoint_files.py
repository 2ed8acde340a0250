"""The files of a streaming query's checkpoint, read and written without Spark.

A sink's driver is a Python process without a JVM. It opens a folder of the local machine as it is, and a folder of an object
store or of HDFS with pyarrow, which takes its credentials from the environment.
"""

import errno
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import uuid4

from barnabas.base.errors import BarnabasError

if TYPE_CHECKING:
    import pyarrow.fs

T = TypeVar("T")

#: Hadoop's names of a store, and pyarrow's.
_SCHEMES: Final = {"s3a": "s3", "s3n": "s3"}
_LOCAL: Final = re.compile(r"^file:(//)?(?=/)")


class CannotRead(BarnabasError):
    """The checkpoint's folder cannot be read or written from this process; the message says why."""


def location_of(given: str) -> str:
    """One name for one folder: an absolute path without links, or a URI without a slash at its end."""
    local = _LOCAL.sub("", given.strip())
    if "://" in local:
        return local.rstrip("/")
    return os.path.realpath(local)


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """Files below `location`, which comes from `location_of`."""

    location: str

    def read(self, name: str) -> bytes | None:
        """Return the whole file; None if it does not exist."""
        if self._is_local:
            return _or_none(lambda: Path(self.location, name).read_bytes())
        import pyarrow.fs

        def read() -> bytes | None:
            files, folder = self._remote()
            if files.get_file_info(f"{folder}/{name}").type != pyarrow.fs.FileType.File:
                return None
            with files.open_input_stream(f"{folder}/{name}") as stream:
                return bytes(stream.read())

        return self._asked(read)

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder of the checkpoint; no names if the folder does not exist."""
        if self._is_local:
            return _or_none(lambda: [path.name for path in Path(self.location, folder).iterdir()]) or []
        import pyarrow.fs

        def listed() -> list[str]:
            files, root = self._remote()
            selector = pyarrow.fs.FileSelector(f"{root}/{folder}", allow_not_found=True)
            return [info.base_name for info in files.get_file_info(selector)]

        return self._asked(listed)

    def write(self, name: str, data: bytes, *, only_if_new: bool = False) -> None:
        """Write the file: a reader finds the old one or the new one, whole. `only_if_new`: a file that exists stays as it
        is."""
        if not self._is_local:
            self._asked(lambda: self._write_remote(name, data, only_if_new=only_if_new))
            return
        path = Path(self.location, name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f".{path.name}.{uuid4().hex}")
            try:
                with open(part, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                # Hadoop would compare a file with the checksum of the one that it replaces.
                _checksum_of(path).unlink(missing_ok=True)
                if only_if_new:
                    _link(part, path)
                else:
                    part.replace(path)
            finally:
                part.unlink(missing_ok=True)
        except OSError as error:
            raise CannotRead(f"cannot write {path}: {error.strerror or error}") from error

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders in a folder."""
        if self._is_local:
            root = Path(self.location, folder)
            return _or_none(lambda: [path.name for path in root.iterdir() if path.is_dir()]) or []
        import pyarrow.fs

        def listed() -> list[str]:
            files, root = self._remote()
            selector = pyarrow.fs.FileSelector(f"{root}/{folder}", allow_not_found=True)
            found = files.get_file_info(selector)
            return [info.base_name for info in found if info.type == pyarrow.fs.FileType.Directory]

        return self._asked(listed)

    def remove(self, name: str) -> None:
        """Remove the file, if it exists. Spark's checksum beside a local file goes first."""
        if not self._is_local:
            self._asked(lambda: self._remove_remote(name))
            return
        path = Path(self.location, name)
        try:
            _checksum_of(path).unlink(missing_ok=True)
            path.unlink(missing_ok=True)
        except OSError as error:
            raise CannotRead(f"cannot remove {path}: {error.strerror or error}") from error

    def _remove_remote(self, name: str) -> None:
        import pyarrow.fs

        files, folder = self._remote()
        if files.get_file_info(f"{folder}/{name}").type == pyarrow.fs.FileType.File:
            files.delete_file(f"{folder}/{name}")

    @property
    def _is_local(self) -> bool:
        return "://" not in self.location

    def _write_remote(self, name: str, data: bytes, *, only_if_new: bool) -> None:
        import pyarrow.fs

        files, folder = self._remote()
        if only_if_new and files.get_file_info(f"{folder}/{name}").type == pyarrow.fs.FileType.File:
            return
        if not self.location.startswith(("s3", "gs", "abfs")):
            files.create_dir(f"{folder}/{name}".rpartition("/")[0], recursive=True)
        with files.open_output_stream(f"{folder}/{name}") as stream:
            stream.write(data)

    def _remote(self) -> "tuple[pyarrow.fs.FileSystem, str]":
        import pyarrow.fs

        scheme, _, rest = self.location.partition("://")
        found: tuple[pyarrow.fs.FileSystem, str] = pyarrow.fs.FileSystem.from_uri(
            f"{_SCHEMES.get(scheme, scheme)}://{rest}"
        )
        return found

    def _asked(self, ask: Callable[[], T]) -> T:
        import pyarrow

        try:
            return ask()
        except (OSError, pyarrow.ArrowException) as error:
            raise CannotRead(f"cannot open {self.location}: {error}") from error


def _checksum_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.crc")


def _or_none(ask: Callable[[], T]) -> T | None:
    try:
        return ask()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CannotRead(f"cannot read {error.filename}: {error.strerror}") from error


def _link(part: Path, path: Path) -> None:
    """Give `part` its name unless another process has just written the file."""
    try:
        os.link(part, path)
    except FileExistsError:
        return
    except OSError as error:
        # Some file systems have no hard links. Without them, two first starts at the same moment may both write the file.
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):
            raise
        if not path.exists():
            part.replace(path)
