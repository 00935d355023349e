"""The documentation site: it builds, needs no other host, and shows what GitHub shows."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from docs.generator.site import ROOT, ROOT_PAGES
from markdown_it import MarkdownIt

COMPARED = ("h2", "h3", "ul", "ol", "li", "table", "tr", "td", "blockquote")
"""Elements that a page has equally often on the site and on GitHub."""

BUILD_SECONDS_MAX = 240.0
"""For a build on a busy machine; it takes ten seconds of processor time."""

API_PAGES = "reference/sdk/"
"""make docs writes these with pdoc, after the site."""


class Html(HTMLParser):
    """What a page consists of: its links, what it loads, its anchors, and the elements of its article."""

    def __init__(self, text: str, *, is_article: bool = False) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.anchors: set[str] = set()
        self.elements: Counter[str] = Counter()
        self._is_article = is_article
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.add(values["href"])
        elif tag == "link" and values.get("rel") not in {"canonical", "next", "prev"}:
            self.loaded.add(values.get("href", ""))
        elif "src" in values:
            self.loaded.add(values["src"])
        if tag == "article":
            self._is_article = True
        if self._is_article:
            self.elements[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        if tag == "article":
            self._is_article = False


def test_the_site_builds_without_broken_links_and_needs_no_other_host(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path))
    built = subprocess.run(
        command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX
    )
    assert built.returncode == 0, built.stderr
    pages = {path: Html(path.read_text()) for path in tmp_path.rglob("*.html")}
    assert len(pages) > 60
    assert broken(pages) == []
    foreign = {each for page in pages.values() for each in page.loaded if urlsplit(each).netloc}
    assert foreign == set()
    assert shown_differently(tmp_path, pages) == {}


def broken(pages: dict[Path, Html]) -> list[str]:
    """Links and resources of the site that lead to no file or no anchor of it."""
    found = []
    for path, page in pages.items():
        if path.name == "404.html":  # its links are absolute
            continue
        for target in sorted(page.links | page.loaded):
            parts = urlsplit(target)
            if parts.scheme or parts.netloc or API_PAGES in f"reference/{parts.path}":
                continue
            other = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            is_there = other.exists()
            if is_there and anchor and other in pages:
                is_there = anchor in pages[other].anchors or anchor == "__skip"
            if not is_there:
                found.append(f"{path.name}: {target}")
    return found


def shown_differently(site: Path, pages: dict[Path, Html]) -> dict[str, object]:
    """Pages whose lists and tables the site and GitHub take for different things."""
    renderer = MarkdownIt("commonmark").enable("table")
    found: dict[str, object] = {}
    for source, name in sources():
        expected = Html(renderer.render(source.read_text()), is_article=True).elements
        shown = pages[site / name].elements
        differing = {
            tag: (expected[tag], shown[tag]) for tag in COMPARED if expected[tag] != shown[tag]
        }
        if differing:
            found[name] = differing
    return found


def sources() -> Iterable[tuple[Path, str]]:
    """Each page of the repository with its file on the site."""
    for name, site_name in ROOT_PAGES.items():
        yield ROOT / name, site_name.removesuffix(".md") + ".html"
    for path in sorted((ROOT / "docs").rglob("*.md")):
        page = path.relative_to(ROOT / "docs").with_suffix(".html")
        shown = page.with_name("index.html") if path.name == "README.md" else page
        yield path, shown.as_posix()
