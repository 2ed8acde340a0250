"""Every file operation of storage, of sending ranges, and of the embedded ZooKeeper goes through `base.host.disk`.

The simulation runs them on a disk in memory: a call that avoids it would touch a real file and escape all faults.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import barnabas

SOURCE = Path(barnabas.__file__).parent
#: A separate process, the pipes to it, and a tool that prints files.
OUTSIDE = {"broker/storage/cleaner/worker.py", "broker/storage/cleaner/process.py"}
EMBEDDED = ("store.py", "txnlog.py", "snapshot.py", "commit.py", "server.py")
MODULES = sorted(
    str(path.relative_to(SOURCE))
    for path in (
        *(SOURCE / "broker/storage").rglob("*.py"),
        SOURCE / "broker/server/ranges.py",
        SOURCE / "broker/server/writer.py",
        *(SOURCE / "zookeeper" / name for name in EMBEDDED),
    )
    if path.parent.name != "dump" and str(path.relative_to(SOURCE)) not in OUTSIDE
)
FILE_MODULES = {"fcntl", "glob", "io.open", "mmap", "shutil", "tempfile"}
#: `dup` duplicates a socket.
HARMLESS_OS = {"path", "urandom", "dup", "sep"}
HARMLESS_PATH = {"abspath", "basename", "dirname", "join", "split", "splitext"}
#: Methods of `pathlib.Path` that touch files. For those that `Disk` also has, the receiver is checked.
PATH_ONLY = {
    "glob",
    "is_file",
    "iterdir",
    "read_bytes",
    "read_text",
    "rglob",
    "stat",
    "touch",
    "write_bytes",
    "write_text",
}
PATH_AND_DISK = {"exists", "is_dir", "mkdir", "open", "rename", "replace", "rmdir", "unlink"}
RECEIVERS = {"disk", "_disk", "_store"}


def last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def past_the_seam(tree: ast.Module) -> Iterator[str]:
    imported = {
        alias.name.partition(".")[0] if isinstance(node, ast.Import) else node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    yield from (f"import {name}" for name in imported & FILE_MODULES)
    for node in ast.walk(tree):
        where = f"line {getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            yield f"{where}: from os import"
        if isinstance(node, ast.Attribute):
            owner = node.value
            if isinstance(owner, ast.Name) and owner.id == "os" and node.attr not in HARMLESS_OS:
                yield f"{where}: os.{node.attr}"
            if isinstance(owner, ast.Attribute) and ast.unparse(owner) == "os.path" and node.attr not in HARMLESS_PATH:
                yield f"{where}: os.path.{node.attr}"
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id == "open":
                yield f"{where}: open()"
            if "pathlib" in imported and isinstance(node.func, ast.Attribute):
                method, owner_name = node.func.attr, last_name(node.func.value)
                if method in PATH_ONLY or (method in PATH_AND_DISK and owner_name not in RECEIVERS):
                    yield f"{where}: {owner_name}.{method}()"


@pytest.mark.parametrize("module", MODULES)
def test_no_file_operation_passes_by_the_disk(module: str) -> None:
    assert list(past_the_seam(ast.parse((SOURCE / module).read_text()))) == []


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.unlink('x')",
        "import os\nos.path.getsize('x')",
        "from os import unlink",
        "import mmap",
        "import shutil",
        "open('x')",
        "from pathlib import Path\nPath('x').read_text()",
        "from pathlib import Path\npath = Path('x')\npath.unlink()",
    ],
)
def test_the_rule_sees_each_way_around(source: str) -> None:
    assert list(past_the_seam(ast.parse(source)))


def test_the_rule_covers_storage_and_zookeeper() -> None:
    assert len(MODULES) > 40
    assert "broker/storage/segment.py" in MODULES and "zookeeper/txnlog.py" in MODULES
