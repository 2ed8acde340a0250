"""The object store: the operations that the tier needs, and stores by URL through `obstore`.

Owner: the event loop. A store does its I/O on its own threads and never blocks the loop. Its failures are `StoreFault`: the
caller retries later.
"""

import asyncio
import errno
import os
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, cast
from urllib.parse import urlsplit

from barnabas.base.errors import BarnabasError, ConfigError
from barnabas.base.host import kernel

T = TypeVar("T")

#: Larger objects are uploaded in parts of this size. Times the concurrent parts, it bounds the memory of an upload.
PART_BYTES: Final = 8 << 20
PARTS_AT_ONCE: Final = 4
#: Limit of a request's time; `rsm.config.timeout` sets another.
TIMEOUT_S: Final = 30
#: Callers retry later themselves: the store's own retries are for momentary errors.
RETRIES: Final = 2
RETRY_S: Final = 10

#: Errors of a file system or kernel that cannot copy files.
_NO_KERNEL_COPY: Final = (errno.ENOSYS, errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL)

SCHEMES: Final = ("s3", "gs", "az", "file")


class StoreFault(BarnabasError):
    """The store failed: it is unreachable, slow, denies access, or gave a wrong answer."""


class ObjectMissing(StoreFault):
    """The object does not exist."""


@dataclass(frozen=True, slots=True)
class FilePart:
    """The first `size_bytes` of a file, which does not change during the upload."""

    path: str
    size_bytes: int


class Store(Protocol):
    """Keys are relative to the URL. Operations can be repeated safely."""

    async def put(self, key: str, data: bytes | FilePart) -> None:
        """Store all of it or raise `StoreFault`: readers see the whole object or none."""
        ...

    async def get_range(self, key: str, start: int, end: int) -> memoryview:
        """Return [start, end) in memory of its own. :raises ObjectMissing, StoreFault: also if the answer is too short."""
        ...

    async def get(self, key: str, *, bytes_max: int) -> bytes:
        """Return the whole object. :raises ObjectMissing, StoreFault: also if it is larger, without reading it"""
        ...

    async def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; missing ones are not an error."""
        ...

    async def list(self, prefix: str) -> list[tuple[str, int]]:
        """Return key and size of every object below a prefix, which ends with a slash."""
        ...


def open_store(url: str, settings: Mapping[str, str] | None = None) -> Store:
    """`settings` are the store's own, by obstore's names: `aws_access_key_id`, `aws_endpoint`, `timeout`, …; the rest comes
    from the environment, as in the providers' tools. :raises ConfigError:
    """
    scheme = urlsplit(url).scheme
    if scheme not in SCHEMES:
        raise ConfigError(
            f"{url!r} is not the URL of an object store: it must begin with {', '.join(f'{each}://' for each in SCHEMES)}"
        )
    try:
        import obstore  # noqa: F401
    except ImportError:
        raise ConfigError("tiered storage needs the package obstore: pip install 'barnabas[tiered]'") from None
    return ObjectStore(url, settings or {})


class ObjectStore:
    """Any store that obstore supports."""

    def __init__(self, url: str, settings: Mapping[str, str]) -> None:
        import obstore.store

        self.url = url
        parts = urlsplit(url)
        options: dict[str, Any] = dict(settings)
        self._timeout_s = float(options.pop("timeout", TIMEOUT_S))
        self._root: Path | None = None
        try:
            if parts.scheme == "file":
                if options:
                    raise ConfigError(f"a store in a directory has no settings: {', '.join(sorted(options))}")
                self._root = Path(parts.path)
                self._store: Any = obstore.store.LocalStore(prefix=parts.path, mkdir=True)
            else:
                client: Any = {"timeout": timedelta(seconds=self._timeout_s), "allow_http": True}
                retry: Any = {"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_S)}
                self._store = obstore.store.from_url(
                    url, config=cast(Any, options), client_options=client, retry_config=retry
                )
        except (obstore.exceptions.BaseError, OSError, ValueError) as error:
            raise ConfigError(f"cannot open the object store {url}: {error}") from error

    async def put(self, key: str, data: bytes | FilePart) -> None:
        import obstore

        size = len(data) if isinstance(data, bytes) else data.size_bytes
        source: Any = data if isinstance(data, bytes) else Path(data.path)

        async def put() -> None:
            # obstore reads a file through its own memory, which takes several times the CPU.
            if (
                self._root is not None
                and isinstance(data, FilePart)
                and await asyncio.to_thread(_copy_in_kernel, data, self._root / key)
            ):
                return
            await obstore.put_async(
                self._store,
                key,
                source,
                use_multipart=size > PART_BYTES,
                chunk_size=PART_BYTES,
                max_concurrency=PARTS_AT_ONCE,
            )

        # The time limit applies to each request, not to the upload: a large segment may take long.
        await self._ask(f"put {key}", put, parts=1 + size // PART_BYTES)
        found = await self._ask(f"head {key}", lambda: obstore.head_async(self._store, key))
        if found["size"] != size:
            raise StoreFault(f"{self.url}: {key} has {found['size']} bytes after an upload of {size}")
        if self._root is not None:
            await asyncio.to_thread(_sync, self._root / key, self._root)

    async def get_range(self, key: str, start: int, end: int) -> memoryview:
        import obstore

        if end <= start:
            return memoryview(b"")
        found = await self._ask(f"get {key}", lambda: obstore.get_range_async(self._store, key, start=start, end=end))
        data = memoryview(found)  # without copying: that would block the loop for megabytes
        if len(data) != end - start:
            raise StoreFault(
                f"{self.url}: the store returned {len(data)} bytes of {key} from {start} on instead of {end - start}"
            )
        return data

    async def get(self, key: str, *, bytes_max: int) -> bytes:
        import obstore

        async def whole() -> tuple[bytes, int]:
            found = await obstore.get_async(self._store, key)
            size = found.meta["size"]
            if size > bytes_max:
                raise StoreFault(f"{self.url}: {key} has {size} bytes, more than the {bytes_max} that it can have")
            return bytes(await found.bytes_async()), size

        data, size = await self._ask(f"get {key}", whole)
        if len(data) != size:
            raise StoreFault(f"{self.url}: the store returned {len(data)} of {size} bytes of {key}")
        return data

    async def delete(self, keys: Iterable[str]) -> None:
        import obstore

        for key in keys:
            try:
                await self._ask(f"delete {key}", partial(obstore.delete_async, self._store, key))
            except ObjectMissing:
                continue

    async def list(self, prefix: str) -> list[tuple[str, int]]:
        import obstore

        async def collect() -> list[tuple[str, int]]:
            found: list[tuple[str, int]] = []
            async for chunk in obstore.list(self._store, prefix, chunk_size=1000):
                found += [(each["path"], each["size"]) for each in chunk]
            return found

        return await self._ask(f"list {prefix}", collect)

    async def _ask(self, what: str, request: Callable[[], Awaitable[T]], *, parts: int = 1) -> T:
        from obstore.exceptions import BaseError, NotFoundError

        try:
            # The client limits each request; this is for whatever it does not limit.
            async with asyncio.timeout((self._timeout_s + RETRY_S) * parts):
                return await request()
        except (NotFoundError, FileNotFoundError) as error:
            raise ObjectMissing(f"{self.url}: {what}: {_short(error)}") from error
        except TimeoutError as error:
            raise StoreFault(f"{self.url}: {what}: no answer in time") from error
        except (BaseError, OSError) as error:
            raise StoreFault(f"{self.url}: {what}: {_short(error)}") from error


def _short(error: BaseException) -> str:
    """Return the first line: obstore shows the whole chain of causes, over many lines."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def _copy_in_kernel(part: FilePart, target: Path) -> bool:
    """Copy a file in the kernel; return False if the system does not support it. Readers see the whole file or none."""
    target.parent.mkdir(parents=True, exist_ok=True)
    # obstore writes under such temporary names, too, and does not list them, so they cannot clash with keys.
    staged = target.with_name(f"{target.name}#{uuid.uuid4().int}")
    with Path(part.path).open("rb") as source, staged.open("xb") as copy:
        try:
            kernel.copy_data(source.fileno(), copy.fileno(), part.size_bytes)
            staged.rename(target)
        except OSError as error:
            staged.unlink()
            if error.errno in _NO_KERNEL_COPY:
                return False
            raise
    return True


def _sync(path: Path, root: Path) -> None:
    """Sync the file and its directories, because obstore does not: the local copy may be deleted right after this."""
    for each in (path, *path.parents):
        descriptor = os.open(each, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if each == root:
            break
