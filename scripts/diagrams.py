#!/usr/bin/env python3
"""Draw the Mermaid diagrams of docs/ into docs/diagrams/, so that the site needs no script from another site to show them.

A picture's name ends in the hash of its text: a test finds text without a picture, and pictures without text. Drawing needs
npm (for Mermaid, by name) and Chromium with playwright. Reading the site needs none of them.
"""

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PICTURES = DOCS / "diagrams"
MERMAID = "mermaid@11"
FENCE = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Each picture has a unique id, because its styles apply to the whole page.
DRAW = """async ([id, text]) => {
    mermaid.initialize({startOnLoad: false, theme: "neutral", fontFamily: "sans-serif", htmlLabels: false,
                        flowchart: {htmlLabels: false, useMaxWidth: true}, sequence: {useMaxWidth: true}})
    return (await mermaid.render(id, text)).svg
}"""


class Diagram(NamedTuple):
    name: str
    text: str


def picture_name(page: str, text: str) -> str:
    """Return the name of the picture for the diagram `text` on this page."""
    return f"{page.lower()}-{hashlib.sha256(text.encode()).hexdigest()[:10]}.svg"


def diagrams() -> list[Diagram]:
    found = []
    for page in sorted(DOCS.rglob("*.md")):
        found += [Diagram(picture_name(page.stem, text), text) for text in FENCE.findall(page.read_text())]
    return found


def draw(wanted: list[Diagram]) -> None:
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        subprocess.run(["npm", "pack", "--silent", MERMAID], cwd=folder, check=True, capture_output=True, timeout=300)
        [archive] = Path(folder).glob("*.tgz")
        shutil.unpack_archive(archive, folder)
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"],
        )
        page = browser.new_page()
        page.add_script_tag(path=Path(folder) / "package/dist/mermaid.min.js")
        for diagram in wanted:
            svg = page.evaluate(DRAW, [diagram.name.removesuffix(".svg"), diagram.text])
            (PICTURES / diagram.name).write_text(svg.strip() + "\n")
            print(f"drew {diagram.name}")
        browser.close()


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    wanted = diagrams()
    names = {diagram.name for diagram in wanted}
    for stale in PICTURES.glob("*.svg"):
        if stale.name not in names:
            stale.unlink()
    missing = [diagram for diagram in wanted if not (PICTURES / diagram.name).exists()]
    if missing:
        draw(missing)
    print(f"{len(wanted)} diagrams, {len(missing)} of them drawn now")


if __name__ == "__main__":
    sys.exit(main())
