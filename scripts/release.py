"""Make a release: `make release VERSION=0.2.0`. Nothing leaves this machine.

Gives `__version__` and the first heading of CHANGELOG.md the version and today's date, commits that as `release: 0.2.0`, builds
packages, site and (where buildah and mmdebstrap are) the image, and prints what is left to do by hand: tag, push, upload.
"""

import datetime
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

VERSION_FILE: Final = Path("src/barnabas/__init__.py")
CHANGELOG: Final = Path("CHANGELOG.md")
IMAGE_TOOLS: Final = ("buildah", "mmdebstrap")


class NotReady(Exception):
    """The working tree is not one from which this version can be released."""


def with_version(source: str, version: str) -> str:
    """Return the module with this version, which must be the one that was developed."""
    found = re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE)
    if found is None or found[1] != f"{version}.dev0":
        raise NotReady(f'{VERSION_FILE} has {found[0] if found else "no version"}, not "{version}.dev0"')
    return source[: found.start(1)] + version + source[found.end(1) :]


def with_date(changelog: str, version: str, day: datetime.date) -> str:
    """Return the changelog with a date in the heading of this version, which must be the first."""
    heading = re.search(r"^## (.+)$", changelog, re.MULTILINE)
    if heading is None or heading[1] != f"{version}, not released yet":
        raise NotReady(f"the first heading of {CHANGELOG} is not '## {version}, not released yet'")
    return f"{changelog[: heading.start(1)]}{version}, {day.day} {day:%B %Y}{changelog[heading.end(1) :]}"


def main(arguments: Sequence[str]) -> None:
    if len(arguments) != 1 or not re.fullmatch(r"\d+\.\d+\.\d+", arguments[0]):
        raise NotReady("give the version: make release VERSION=0.2.0")
    [version] = arguments
    if _output("git", "status", "--porcelain"):
        raise NotReady("commit or remove what `git status` shows: the packages are made of commits")
    tag = f"v{version}"
    if _output("git", "tag", "--list", tag):
        raise NotReady(f"the tag {tag} exists: a version is released once")
    today = datetime.datetime.now(tz=datetime.UTC).date()
    source, changelog = VERSION_FILE.read_text(), CHANGELOG.read_text()
    source, changelog = with_version(source, version), with_date(changelog, version, today)
    VERSION_FILE.write_text(source)
    CHANGELOG.write_text(changelog)
    _run("git", "commit", "--quiet", "--message", f"release: {version}", str(VERSION_FILE), str(CHANGELOG))
    _run("make", "dist")
    _run("make", "docs")
    missing = [tool for tool in IMAGE_TOOLS if shutil.which(tool) is None]
    if missing:
        print(f"no image: {' and '.join(missing)} not found")
    else:
        _run("deploy/container/build", f"barnabas:{version}")
    print(
        f"\n{version} is committed and built: look at dist/, at site/ and at what was printed. Nothing has left this machine. "
        f"Then (docs/releasing.md has the rest):\n"
        f"  git tag --sign {tag} && git push && git push --tags\n"
        f"  .venv/bin/python -m twine upload dist/*.whl dist/*.tar.gz\n"
        f"To take it back: git reset --hard HEAD~1"
    )


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _run(*command: str) -> None:
    print(f"$ {' '.join(command)}", flush=True)
    subprocess.run(command, check=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except NotReady as error:
        sys.exit(f"release: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(
            f"release: {' '.join(error.cmd)} failed with status {error.returncode}; git reset --hard HEAD~1 takes it back"
        )
