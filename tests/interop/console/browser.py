"""Debian's Chromium, driven by Playwright; a page that notes everything that must not happen; axe-core on what it shows.

Chromium comes from Debian and axe-core from npm, both by name. Screenshots stay in `.interop/screenshots/`, which git ignores.
"""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.interop import maven

AXE: Final = "axe-core@4.14.0"
SCREENSHOTS: Final = maven.ROOT / "screenshots"
#: For what a page shows once it has its data; a busy machine takes long.
PATIENCE_MS: Final = 60_000
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
#: Counts what the page's own policy refused, before any script of the page runs.
_WATCH_POLICY: Final = """
    window.__refused = [];
    document.addEventListener("securitypolicyviolation",
        (event) => window.__refused.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
"""


def chromium_path() -> str:
    """The browser; from Debian's package of that name where it is missing."""
    if shutil.which("chromium") is None and shutil.which("apt-get") is not None:
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium", "fonts-dejavu-core"]
        subprocess.run(install, capture_output=True, timeout=280, check=False)
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("needs chromium")
    return found


def axe_source() -> str:
    """The script of axe-core, fetched once."""
    folder = maven.ROOT / AXE
    script = folder / "node_modules" / "axe-core" / "axe.min.js"
    if not script.exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("needs npm")
        folder.mkdir(parents=True, exist_ok=True)
        install = [npm, "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", AXE]
        done = subprocess.run(install, cwd=folder, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr
    return script.read_text()


@contextmanager
def chromium() -> Iterator[Browser]:
    path = chromium_path()
    with sync_playwright() as playwright:
        # Root may not use the sandbox, and containers have a small /dev/shm.
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """A page and what went wrong on it. `check` says whether anything did."""

    def __init__(self, context: BrowserContext, url: str, axe: Callable[[], str]) -> None:
        self.context = context
        self.url = url.rstrip("/")
        self._axe = axe
        self.page: Page = context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.dialogs: list[str] = []
        self.errors: list[str] = []
        #: Addresses outside of the console that the page asked for.
        self.strangers: list[str] = []
        #: Answers that a test expects: texts of the browser's own console to overlook.
        self.expected: list[str] = []
        self.page.add_init_script(_WATCH_POLICY)
        self.page.on("dialog", self._on_dialog)
        self.page.on("pageerror", lambda error: self.errors.append(f"exception: {error}"))
        self.page.on("console", self._on_console)
        self.page.on("request", self._on_request)

    def _on_dialog(self, dialog: Any) -> None:
        self.dialogs.append(f"{dialog.type}: {dialog.message}")
        dialog.dismiss()

    def _on_console(self, message: Any) -> None:
        if message.type == "error":
            self.errors.append(f"{message.text} ({message.location.get('url', '')})")

    def _on_request(self, request: Any) -> None:
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.strangers.append(request.url)

    def go(self, path: str) -> Page:
        """A page of the console, by the address that a person would type."""
        self.page.goto(self.url + path, wait_until="domcontentloaded")
        return self.page

    def see(self, text: str) -> None:
        """Wait until the page shows a text."""
        self.page.get_by_text(text).first.wait_for(state="visible")

    def refused_by_policy(self) -> list[str]:
        refused: list[str] = self.page.evaluate("window.__refused || []")
        return refused

    def screenshot(self, name: str) -> Path:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        path = SCREENSHOTS / f"{name}.png"
        self.page.screenshot(path=str(path), full_page=True)
        return path

    def overflow_px(self) -> int:
        """How much wider the page is than the window: a page that scrolls sideways is hard to read on a phone."""
        found: int = self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        return found

    def serious_findings(self) -> list[str]:
        """What axe-core finds serious or critical on what is shown now."""
        self.page.evaluate(self._axe() + "; undefined")
        options = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}}
        result = self.page.evaluate("(options) => axe.run(document, options)", options)
        return [
            f"{each['id']}: {each['help']}: " + "; ".join(node["html"][:200] for node in each["nodes"][:4])
            for each in result["violations"]
            if each["impact"] in ("serious", "critical")
        ]

    def check(self) -> None:
        """Nothing happened that must not: no dialog, no exception, no refusal by the policy, nobody else asked."""
        unexpected = [error for error in self.errors if not any(text in error for text in self.expected)]
        assert not self.dialogs, self.dialogs
        assert not unexpected, unexpected
        assert not self.strangers, self.strangers
        assert not self.refused_by_policy(), self.refused_by_policy()
