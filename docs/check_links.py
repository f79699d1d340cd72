"""Checks that a built documentation is complete in itself: python docs/check_links.py docs/_build/html

No page may take a script, a style, a font or a picture from outside of the folder, and every file that a page names has
to exist. Links that a reader clicks may lead anywhere, but links within the folder must have a target.
"""

from __future__ import annotations

import html.parser
import pathlib
import re
import sys
import urllib.parse

_LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "embed": "src", "object": "data"}
_NOT_LOADED = {"canonical", "next", "prev", "search", "index", "author", "copyright"}  # kinds of <link>
_URL_IN_STYLE = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")


class _Page(html.parser.HTMLParser):
    """Collects what a page loads, the links to click, and the targets of links."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.targets: set[str] = set()
        self._in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.targets |= {values[name] for name in ("id", "name") if name in values}
        if _LOADED.get(tag) in values:
            self.loaded.append(values[_LOADED[tag]])
        if tag == "link" and not set(values.get("rel", "").lower().split()) & _NOT_LOADED:
            self.loaded.append(values.get("href", ""))
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        self.loaded += _urls(values.get("style", ""))
        self._in_style = tag == "style"

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.loaded += _urls(data)


def _urls(style: str) -> list[str]:
    return [first or second for first, second in _URL_IN_STYLE.findall(style)]


def _is_elsewhere(address: str) -> bool:
    return address.startswith("//") or urllib.parse.urlsplit(address).scheme not in ("", "data")


def faults(folder: pathlib.Path) -> list[str]:
    """One line for each fault of a built documentation."""
    pages: dict[pathlib.Path, _Page] = {}
    for path in sorted(folder.rglob("*.html")):
        if "_static" in path.parts:  # templates of the theme
            continue
        pages[path.resolve()] = page = _Page()
        page.feed(path.read_text(encoding="utf-8"))
    if not pages:
        return [f"{folder}: no page"]
    lines = []
    loaded = {path: page.loaded for path, page in pages.items()}
    loaded |= {path.resolve(): _urls(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.css"))}
    for path, addresses in loaded.items():
        for address in addresses:
            name = urllib.parse.unquote(urllib.parse.urlsplit(address).path)
            if _is_elsewhere(address):
                lines.append(f"{path.name}: loads {address}")
            elif name and not address.startswith("data:") and not (path.parent / name).exists():
                lines.append(f"{path.name}: {address} does not exist")
    for path, page in pages.items():
        for address in page.links:
            if _is_elsewhere(address) or address.startswith("data:"):
                continue
            parts = urllib.parse.urlsplit(address)
            target = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                lines.append(f"{path.name}: a link to {address}, which does not exist")
            elif (
                parts.fragment and target in pages and urllib.parse.unquote(parts.fragment) not in pages[target].targets
            ):
                lines.append(f"{path.name}: a link to {address}, which has no such target")
    return lines


if __name__ == "__main__":
    all_faults = faults(pathlib.Path(sys.argv[1]))
    print("\n".join(all_faults) or "no page loads anything from elsewhere, and every link has a target")
    sys.exit(bool(all_faults))
