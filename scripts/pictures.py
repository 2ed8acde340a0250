"""Makes the pictures of README.md: a terminal that shows a dead leader, and the console of that cluster.

    python -m scripts.pictures

Runs a real cluster on the default ports, and Chromium (Debian's `chromium`) for the console. Look at both pictures before you
commit them.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from playwright.sync_api import ViewportSize

ASSETS = Path(__file__).parents[1] / "docs" / "assets"
BOOTSTRAP = "localhost:9092,localhost:9093"
_WRITE = "seq 1000 | barnabas console-producer $K"
#: Commands of the terminal. `$K` is shorter than the address for the eye of a reader.
STORY = (
    "barnabas up --brokers 3 --faults --console --detach",
    f"K='--bootstrap-server {BOOTSTRAP} --topic orders'",
    "barnabas topics $K --create --partitions 3 --replication-factor 3",
    _WRITE,
    "barnabas fault add kill --leader-of orders",
    "barnabas topics $K --describe",
    _WRITE,
    "barnabas console-consumer $K --from-beginning --max-messages 2000 | wc -l",
)
END = "barnabas down"
_FONT_PX, _LINE_PX, _MARGIN_PX, _BAR_PX = 14, 20, 18, 34
_COLUMNS = 120
_CONSOLE_SIZE: "Final[ViewportSize]" = {"width": 1280, "height": 800}
#: How long the page is open before the picture is taken, so that its charts show something.
_CHARTS_S = 60


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        shell = _Shell(Path(folder))
        try:
            lines = [line for command in STORY for line in (f"$ {command}", *shell.run(command), "")]
            ASSETS.mkdir(exist_ok=True)
            (ASSETS / "terminal.svg").write_text(drawn(list(_folded(lines[:-1]))))
            _photograph("http://127.0.0.1:8080", ASSETS / "console.png", shell)
        finally:
            shell.run(END)


class _Shell:
    """Runs commands in one shell, so that variables stay."""

    def __init__(self, folder: Path) -> None:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "COLUMNS": str(_COLUMNS)}
        self._process = subprocess.Popen(
            ["bash"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, command: str) -> list[str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print("$", command, flush=True)
        self._process.stdin.write(f'{command}\necho "end of command $?"\n')
        self._process.stdin.flush()
        shown: list[str] = []
        for line in self._process.stdout:
            if line.startswith("end of command "):
                if line.split()[-1] != "0":
                    raise SystemExit(f"{command}\n" + "\n".join(shown))
                return shown
            print(line, end="", flush=True)
            shown.append(line.rstrip("\n").expandtabs(4))
        raise SystemExit("the shell has ended")


def _folded(lines: list[str]) -> Iterator[str]:
    for line in lines:
        yield line[:_COLUMNS]
        rest = line[_COLUMNS:]
        while rest:
            yield "    " + rest[: _COLUMNS - 4]
            rest = rest[_COLUMNS - 4 :]


def drawn(lines: list[str]) -> str:
    """Return a terminal with these lines, as SVG."""
    width = 2 * _MARGIN_PX + round(_COLUMNS * _FONT_PX * 0.6)
    height = _BAR_PX + _MARGIN_PX + len(lines) * _LINE_PX
    dots = "".join(
        f'<circle cx="{_MARGIN_PX + 18 * number}" cy="17" r="5.5" fill="{color}"/>'
        for number, color in enumerate(("#f7768e", "#e0af68", "#9ece6a"))
    )
    rows = []
    for number, line in enumerate(lines):
        y = _BAR_PX + _FONT_PX + number * _LINE_PX
        text = escape(line)
        if line.startswith("$ "):
            text = f'<tspan fill="#9ece6a">$</tspan><tspan fill="#ffffff" font-weight="600">{text[1:]}</tspan>'
        rows.append(f'<text x="{_MARGIN_PX}" y="{y}" xml:space="preserve">{text}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="A terminal: a cluster of three brokers loses a leader, and no record">\n'
        f'<rect width="{width}" height="{height}" rx="8" fill="#1a1b26"/>\n{dots}\n'
        f'<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace" font-size="{_FONT_PX}" '
        f'fill="#a9b1d6">\n' + "\n".join(rows) + "\n</g>\n</svg>\n"
    )


def _photograph(url: str, to: Path, shell: _Shell) -> None:
    """Take a picture of the console's first page while records come in."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        page = browser.new_page(viewport=_CONSOLE_SIZE)
        page.goto(url)
        page.get_by_text("Overview").first.wait_for(state="visible")
        until_s = time.monotonic() + _CHARTS_S
        while time.monotonic() < until_s:
            shell.run(_WRITE)
        page.screenshot(path=str(to))
        browser.close()


if __name__ == "__main__":
    main()
