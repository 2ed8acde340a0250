"""Debian's Chromium, driven by Playwright; a page that records forbidden events; axe-core checks each page.

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
#: How long a page may take to show its data; a busy machine is slow.
PATIENCE_MS: Final = 60_000
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
#: Counts the violations of the page's own policy; it runs before any script of the page.
_WATCH_POLICY: Final = """
    window.__refused = [];
    document.addEventListener("securitypolicyviolation",
        (event) => window.__refused.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
"""


def chromium_path() -> str:
    """Return the browser, from Debian's package if it is missing."""
    if shutil.which("chromium") is None and shutil.which("apt-get") is not None:
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium", "fonts-dejavu-core"]
        subprocess.run(install, capture_output=True, timeout=280, check=False)
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("needs chromium")
    return found


def axe_source() -> str:
    """Return the script of axe-core, which is downloaded once."""
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
    """A page and the errors on it. `check` fails if there are any."""

    def __init__(self, context: BrowserContext, url: str, axe: Callable[[], str]) -> None:
        self.context = context
        self.url = url.rstrip("/")
        self._axe = axe
        self.page: Page = context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.dialogs: list[str] = []
        self.errors: list[str] = []
        #: Addresses outside the console that the page requested.
        self.strangers: list[str] = []
        #: Expected errors: texts of the browser's own console to ignore.
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
        """Open a page of the console by its address."""
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
        """Return by how much the page is wider than the window: sideways scrolling is hard on a phone."""
        found: int = self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        return found

    def serious_findings(self) -> list[str]:
        """Return what axe-core calls serious or critical on the present page."""
        self.page.evaluate(self._axe() + "; undefined")
        options = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}}
        result = self.page.evaluate("(options) => axe.run(document, options)", options)
        return [
            f"{each['id']}: {each['help']}: " + "; ".join(node["html"][:200] for node in each["nodes"][:4])
            for each in result["violations"]
            if each["impact"] in ("serious", "critical")
        ]

    def check(self) -> None:
        """Check that nothing forbidden happened: no dialog, no exception, no policy violation, no request to another server."""
        unexpected = [error for error in self.errors if not any(text in error for text in self.expected)]
        assert not self.dialogs, self.dialogs
        assert not unexpected, unexpected
        assert not self.strangers, self.strangers
        assert not self.refused_by_policy(), self.refused_by_policy()
