"""The disk as one process sees it: the `Disk` of production code, on a `SimDisk`."""

import errno
import socket
from typing import TYPE_CHECKING

from barnabas.base.host.disk import Disk, FileMap, ReadableBuffer
from barnabas.base.host.kernel import WritableBuffer
from barnabas.testing.simulation.disk_files import LOOK, NAME, READ, SYNC, WRITE, Dir, File, Node, Open, os_error

if TYPE_CHECKING:
    from barnabas.testing.simulation.disk import SimDisk


class Life(Disk):
    """The disk as one process sees it. After the process ends every operation fails, and `close` does nothing."""

    __slots__ = ("_disk", "_ended", "_fds", "_maps", "descriptors_left", "keeps_what_it_closes")

    def __init__(self, disk: "SimDisk") -> None:
        self._disk = disk
        self._ended = False
        self._fds: dict[int, Open] = {}
        self._maps: list[tuple[memoryview, File]] = []
        #: Descriptors that the process may still open; None: no limit. Other connections take the ones that it closes, unless
        #: it may keep them.
        self.descriptors_left: int | None = None
        self.keeps_what_it_closes = False

    def end(self) -> None:
        self._ended = True
        for opened in self._fds.values():
            if opened.file.lock is opened:
                opened.file.lock = None
        self._fds.clear()
        for _, file in self._maps:
            file.detach()
        self._maps.clear()

    @property
    def open_files(self) -> dict[int, str]:
        """Return the open files by descriptor: their paths when they were opened."""
        return {fd: opened.path for fd, opened in self._fds.items()}

    @property
    def open_count(self) -> int:
        """Return the number of descriptors and maps, for tests that look for leaks."""
        return len(self._fds) + len(self._maps)

    def _take_descriptor(self, path: str) -> None:
        if self.descriptors_left is not None:
            if self.descriptors_left == 0:
                raise os_error(errno.EMFILE, path)
            self.descriptors_left -= 1

    def _give_back(self) -> None:
        if self.descriptors_left is not None and self.keeps_what_it_closes:
            self.descriptors_left += 1

    def _enter(self, kind: str, path: str, size_bytes: int = 0) -> "SimDisk":
        disk = self._disk
        if self._ended:
            raise OSError(errno.ESHUTDOWN, "the process has ended", path)
        if disk.on_cost is not None:
            disk.on_cost(kind, size_bytes)
        if disk.faults:
            disk.check(kind, path)
        return disk

    def _opened(self, fd: int) -> Open:
        opened = self._fds.get(fd)
        if opened is None:
            raise os_error(errno.ESHUTDOWN if self._ended else errno.EBADF, f"descriptor {fd}")
        return opened

    def _readable(self, fd: int, kind: str, size_bytes: int) -> File:
        opened = self._opened(fd)
        disk = self._disk
        if disk.on_cost is not None:
            disk.on_cost(kind, size_bytes)
        if disk.faults:
            disk.check(kind, opened.path)
        return opened.file

    def _changeable(self, fd: int, size_bytes: int) -> Open:
        opened = self._opened(fd)
        if opened.read_only:
            raise os_error(errno.EBADF, opened.path)
        self._enter(WRITE, opened.path, size_bytes)
        return opened

    # -- open files

    def open(
        self,
        path: str,
        *,
        create: bool = False,
        exclusive: bool = False,
        truncate: bool = False,
        read_only: bool = False,
        mode: int = 0o644,
    ) -> int:
        self._take_descriptor(path)
        disk = self._enter(LOOK, path)
        folder, name = disk.find_parent(path)
        node: Node | None = folder.entries.get(name) if name else folder
        if node is None:
            if not (create or exclusive):
                raise os_error(errno.ENOENT, path)
            self._enter(NAME, path)
            node = File(disk.now_ns())
            disk.change_name(node, None, (folder, name))
        elif exclusive:
            raise os_error(errno.EEXIST, path)
        if not isinstance(node, File):
            raise os_error(errno.EISDIR, path)
        if not read_only and disk.faults:
            # A file system that is mounted read-only refuses here.
            for fault in disk.faults:
                if fault.errno == errno.EROFS and fault.covers(path):
                    raise os_error(errno.EROFS, path)
        if truncate and node.length:
            self._enter(WRITE, path)
            disk.note_shrinking(node)
            node.truncate(0)
        fd = disk.next_fd()
        self._fds[fd] = Open(node, path, read_only)
        return fd

    def close(self, fd: int) -> None:
        opened = self._fds.pop(fd, None)
        if opened is None:
            if self._ended:
                return
            raise os_error(errno.EBADF, f"descriptor {fd}")
        if opened.file.lock is opened:
            opened.file.lock = None
        self._give_back()

    def pwrite(self, fd: int, data: ReadableBuffer, position: int) -> int:
        opened = self._fds.get(fd)
        if opened is None or opened.read_only:
            raise os_error(errno.ESHUTDOWN if self._ended else errno.EBADF, f"descriptor {fd}")
        file, disk, size = opened.file, self._disk, len(data)
        if disk.on_cost is not None:
            disk.on_cost(WRITE, size)
        if disk.faults:
            allowed = disk.writable_bytes(opened.path, size, max(position + size - file.length, 0))
            if allowed < size:
                data, size = memoryview(data)[:allowed], allowed
        file.write(data, position)
        file.modified_ns = disk.now_ns()
        return size

    def pread(self, fd: int, size_bytes: int, position: int) -> bytes:
        file = self._readable(fd, READ, size_bytes)
        file.cold = False
        data = file.read(position, size_bytes)
        if self._disk.on_read is not None:
            self._disk.on_read(len(data))
        return data

    def preadinto(self, fd: int, buffer: WritableBuffer, position: int) -> int:
        data = self.pread(fd, len(buffer), position)
        buffer[: len(data)] = data
        return len(data)

    def truncate(self, fd: int, size_bytes: int) -> None:
        opened = self._changeable(fd, 0)
        if size_bytes < opened.file.length:
            self._disk.note_shrinking(opened.file)
        opened.file.truncate(size_bytes)
        opened.file.modified_ns = self._disk.now_ns()

    def reserve(self, fd: int, position: int, size_bytes: int) -> None:
        opened = self._changeable(fd, 0)
        file, end = opened.file, position + size_bytes
        if self._disk.faults and (
            self._disk.writable_bytes(opened.path, size_bytes, size_bytes, is_whole=True) < size_bytes
        ):
            raise os_error(errno.ENOSPC, opened.path)
        if end > file.length:
            file.truncate(end)
        file.allocated = max(file.allocated, end)

    def length(self, fd: int) -> int:
        return self._opened(fd).file.length

    def map(self, fd: int, length: int, *, read_only: bool) -> FileMap:
        opened = self._opened(fd)
        self._take_descriptor(opened.path)  # the map keeps a duplicate of the descriptor
        self._enter(READ, opened.path)
        if not 0 < length <= opened.file.length or (opened.read_only and not read_only):
            raise os_error(errno.EINVAL if length <= 0 else errno.EACCES, opened.path)
        view = opened.file.map(length, read_only=read_only)
        self._maps.append((view, opened.file))
        return view

    def unmap(self, mapped: FileMap) -> None:
        assert isinstance(mapped, memoryview)
        mapped.release()
        for place, (view, file) in enumerate(self._maps):
            if view is mapped:
                file.maps -= 1
                del self._maps[place]
                self._give_back()
                return

    # -- sending

    def read_now(self, fd: int, buffer: WritableBuffer, position: int) -> int:
        file = self._readable(fd, READ, len(buffer))
        if file.cold:
            raise os_error(errno.EAGAIN, f"descriptor {fd}")
        data = file.read(position, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def is_resident(self, fd: int, position: int, size_bytes: int) -> bool:
        return not self._opened(fd).file.cold

    def load(self, fd: int, position: int, size_bytes: int) -> None:
        self._readable(fd, READ, size_bytes).cold = False

    def sendfile(self, sock: socket.socket, fd: int, position: int, size_bytes: int) -> int:
        data = self._readable(fd, READ, size_bytes).read(position, size_bytes)
        return sock.send(data) if data else 0

    # -- durability

    def fsync(self, fd: int) -> None:
        opened = self._opened(fd)
        file = opened.file
        try:
            disk = self._enter(SYNC, opened.path, file.dirty_bytes())
        except OSError:
            file.fail_sync()
            raise
        file.sync()
        disk.commit()
        disk.sync_name_of(file)

    def fdatasync(self, fd: int) -> None:
        self.fsync(fd)

    def fsync_dir(self, path: str) -> None:
        self._take_descriptor(path)
        self._give_back()
        disk = self._enter(SYNC, path)
        try:
            folder = disk.find(path)
        except FileNotFoundError:
            return
        if not isinstance(folder, Dir):
            raise os_error(errno.ENOTDIR, path)
        disk.sync_names(folder)
        disk.commit()

    # -- names

    def rename(self, source: str, target: str) -> None:
        disk = self._enter(NAME, source)
        self._enter(NAME, target)
        folder, name = disk.find_parent(source)
        target_folder, target_name = disk.find_parent(target)
        node = folder.entries.get(name)
        if node is None:
            raise os_error(errno.ENOENT, source)
        if f"{target}/".startswith(f"{source}/") and target != source:
            raise os_error(errno.EINVAL, target)
        replaced = target_folder.entries.get(target_name)
        if replaced is node:
            return
        if replaced is not None and isinstance(replaced, Dir) != isinstance(node, Dir):
            raise os_error(errno.EISDIR if isinstance(replaced, Dir) else errno.ENOTDIR, target)
        if isinstance(replaced, Dir) and replaced.entries:
            raise os_error(errno.ENOTEMPTY, target)
        disk.change_name(node, (folder, name), (target_folder, target_name))

    def unlink(self, path: str) -> bool:
        disk = self._enter(NAME, path)
        try:
            folder, name = disk.find_parent(path)
        except FileNotFoundError:
            return False
        node = folder.entries.get(name)
        if node is None:
            return False
        if isinstance(node, Dir):
            raise os_error(errno.EISDIR, path)
        disk.change_name(node, (folder, name), None)
        return True

    def mkdir(self, path: str) -> None:
        disk = self._enter(NAME, path)
        folder, name = disk.find_parent(path)
        if not name or name in folder.entries:
            raise os_error(errno.EEXIST, path)
        disk.change_name(Dir(disk.now_ns()), None, (folder, name))

    def makedirs(self, path: str) -> None:
        self._enter(NAME, path)
        parts = path.rstrip("/").split("/")
        for count in range(2, len(parts)):
            if not self.exists("/".join(parts[:count])):
                self.mkdir("/".join(parts[:count]))
        if not self.is_dir(path):
            self.mkdir(path)

    def rmdir(self, path: str) -> None:
        disk = self._enter(NAME, path)
        folder, name = disk.find_parent(path)
        node = folder.entries.get(name)
        if node is None:
            raise os_error(errno.ENOENT, path)
        if not isinstance(node, Dir):
            raise os_error(errno.ENOTDIR, path)
        if node.entries:
            raise os_error(errno.ENOTEMPTY, path)
        disk.change_name(node, (folder, name), None)

    def rmtree(self, path: str) -> None:
        for name in self.listdir(path):
            child = f"{path}/{name}"
            if self.is_dir(child):
                self.rmtree(child)
            else:
                self.unlink(child)
        self.rmdir(path)

    def listdir(self, path: str) -> list[str]:
        self._take_descriptor(path)
        node = self._enter(LOOK, path).find(path)
        if not isinstance(node, Dir):
            raise os_error(errno.ENOTDIR, path)
        return sorted(node.entries)

    def subdirs(self, path: str) -> list[str]:
        node = self._enter(LOOK, path).find(path)
        if not isinstance(node, Dir):
            raise os_error(errno.ENOTDIR, path)
        return sorted(name for name, child in node.entries.items() if isinstance(child, Dir))

    def _look(self, path: str) -> Node | None:
        """Return the node or None; like `os.path.exists`, treat every error as a missing file."""
        if self._ended:
            raise OSError(errno.ESHUTDOWN, "the process has ended", path)
        try:
            return self._enter(LOOK, path).find(path)
        except OSError:
            return None

    def exists(self, path: str) -> bool:
        return self._look(path) is not None

    def is_dir(self, path: str) -> bool:
        return isinstance(self._look(path), Dir)

    def size(self, path: str) -> int:
        node = self._enter(LOOK, path).find(path)
        return node.length if isinstance(node, File) else 0

    def modified_ns(self, path: str) -> int:
        return self._enter(LOOK, path).find(path).modified_ns

    def set_modified_ns(self, path: str, modified_ns: int) -> None:
        self._enter(NAME, path).find(path).modified_ns = modified_ns

    def space_bytes(self, path: str) -> tuple[int, int]:
        disk = self._enter(LOOK, path)
        disk.find(path)
        return disk.capacity_bytes, disk.room_bytes(path)

    def lock(self, path: str) -> int:
        fd = self.open(path, create=True)
        opened = self._fds[fd]
        if opened.file.lock is not None:
            self.close(fd)
            raise os_error(errno.EAGAIN, path)
        opened.file.lock = opened
        return fd
