"""`make release`: a version is committed and built, and nothing is pushed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts/release.py"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository with the two files that a release changes, and programs that only note their arguments."""
    folder = tmp_path / "clone"
    (folder / "src/barnabas").mkdir(parents=True)
    (folder / "src/barnabas/__init__.py").write_text('"""Doc."""\n\n__version__ = "0.2.0.dev0"\n')
    (folder / "CHANGELOG.md").write_text(
        "# Changelog\n\n## 0.2.0, not released yet\nNew.\n\n## 0.1.0, 15 November 2026\n"
    )
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("make", "buildah", "mmdebstrap"):
        (programs / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/called\n')
        (programs / name).chmod(0o755)
    (folder / "deploy/container").mkdir(parents=True)
    (folder / "deploy/container/build").write_text(f'#!/bin/sh\necho build "$@" >> {tmp_path}/called\n')
    (folder / "deploy/container/build").chmod(0o755)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "first")
    return folder


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def release(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    identity = {
        f"GIT_{role}_{what}": value
        for role in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", "A"), ("EMAIL", "a@example.org"))
    }
    path = f"{folder.parent / 'programs'}:{os.environ['PATH']}"
    return subprocess.run(
        [sys.executable, SCRIPT, *arguments],
        cwd=folder,
        env={**os.environ, **identity, "PATH": path},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_release_is_committed_and_built_and_stays_here(clone: Path) -> None:
    done = release(clone, "0.2.0")
    assert done.returncode == 0, done.stderr
    assert git(clone, "log", "-1", "--format=%s") == "release: 0.2.0"
    assert '__version__ = "0.2.0"\n' in (clone / "src/barnabas/__init__.py").read_text()
    heading = (clone / "CHANGELOG.md").read_text().splitlines()[2]
    assert heading.startswith("## 0.2.0, ") and "not released" not in heading
    assert (clone.parent / "called").read_text() == "make dist\nmake docs\nbuild barnabas:0.2.0\n"
    assert git(clone, "status", "--porcelain") == git(clone, "tag") == ""
    assert "git push" in done.stdout and "Nothing has left this machine" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"), [((), "give the version"), (("1",), "give the version"), (("0.3.0",), 'not "0.3.0.dev0"')]
)
def test_wrong_version_changes_nothing(clone: Path, arguments: tuple[str, ...], words: str) -> None:
    done = release(clone, *arguments)
    assert done.returncode != 0 and words in done.stderr
    assert git(clone, "log", "-1", "--format=%s") == "first"
    assert git(clone, "status", "--porcelain") == ""


def test_changes_that_are_not_committed_and_a_version_that_exists_are_refused(clone: Path) -> None:
    (clone / "new.txt").write_text("x")
    assert "commit or remove" in release(clone, "0.2.0").stderr
    (clone / "new.txt").unlink()
    git(clone, "tag", "v0.2.0")
    assert "a version is released once" in release(clone, "0.2.0").stderr
