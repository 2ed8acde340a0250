import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )


def test_checked_in_modules_are_what_the_generator_writes() -> None:
    pytest.importorskip("kio", reason="kio, a development dependency, has the schemas")
    done = run("scripts/generate_messages.py", "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_checked_in_table_is_what_the_generator_writes() -> None:
    done = run("scripts/generate_protocol_doc.py", "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_at_run_time_imports_kio_and_messages_load_on_demand() -> None:
    program = """
import sys
from barnabas.wire import codec, frame, versions
loaded = [name for name in sys.modules if name.startswith("barnabas.wire.messages.")]
assert sorted(loaded) == ["barnabas.wire.messages.base", "barnabas.wire.messages.index"], loaded
for api in versions.API.values():
    codec.reader(api.request_class, api.max_version)
    codec.writer(api.response_class, api.max_version)
assert not [name for name in sys.modules if name.split(".")[0] in ("kio", "dataclasses", "hypothesis")]
"""
    done = run("-c", program)
    assert done.returncode == 0, done.stderr
