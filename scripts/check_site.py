#!/usr/bin/env python3
"""Check a built site: it loads nothing from other sites, and every internal link leads to an existing page and anchor."""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: Elements that make a browser load something when it shows a page.
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src"}


class Page(HTMLParser):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "link" and values.get("rel") in ("stylesheet", "icon", "preload", "preconnect"):
            self.loaded.append(values.get("href", ""))
        if tag in LOADED and values.get(LOADED[tag]):
            self.loaded.append(values[LOADED[tag]])


def problems(site: Path) -> list[str]:
    pages = {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    found = [] if len(pages) > 10 else [f"{site} has {len(pages)} pages"]
    for path, page in pages.items():
        where = path.relative_to(site)
        found += [f"{where} loads {each} from another site" for each in page.loaded if urlsplit(each).netloc]
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
            target = target / "index.html" if target.is_dir() else target
            known = pages.get(site.resolve() / target.relative_to(site.resolve())) if target.exists() else None
            if not target.exists():
                found.append(f"{where}: {link} leads nowhere")
            elif known and parts.fragment and unquote(parts.fragment) not in known.anchors | {"__skip", "__toc"}:
                found.append(f"{where}: {link}: there is no such anchor")
    styles = [path for path in site.rglob("*.css") if "url(http" in path.read_text() or "url(//" in path.read_text()]
    return found + [f"{path.relative_to(site)} loads something from another site" for path in styles]


def main() -> int:
    site = Path(sys.argv[1]).resolve()
    found = problems(site)
    for each in found:
        print(each, file=sys.stderr)
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file())
    print(f"{site.name}/: {len(list(site.rglob('*.html')))} pages, {size / 1e6:.1f} MB, {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
