"""The documentation, as Markdown: the page renders it. A page in a folder is called `folder.page` here."""

from pathlib import Path
from typing import Any, Final

from barnabas.services.console.errors import not_found
from barnabas.services.console.web import Call, Endpoint

#: The folder in an installed package, and in a clone.
_FOLDERS: Final = (Path(__file__).parent / "markdown", Path(__file__).parents[4] / "docs")


#: Pages that the generator of the site assembles from other files: they have no content of their own.
_OF_THE_SITE: Final = ("api.", "changelog")


def _pages() -> dict[str, Path]:
    folder = next((each for each in _FOLDERS if each.is_dir()), None)
    if folder is None:
        return {}
    files = {".".join(file.relative_to(folder).with_suffix("").parts): file for file in sorted(folder.rglob("*.md"))}
    return {name: file for name, file in files.items() if not name.startswith(_OF_THE_SITE)}


async def page(call: Call) -> dict[str, Any]:
    pages = _pages()
    name = call.path["name"]
    if name not in pages:
        raise not_found(f"there is no page {name}")
    return {"name": name, "text": pages[name].read_text(encoding="utf-8"), "pages": list(pages)}


ENDPOINTS = [
    Endpoint(method="GET", path="/docs/{name}", handler=page, summary="A page of the documentation, in Markdown.")
]
