"""Hooks of MkDocs: pages that stand outside ``docs/``, and links as the repository has them.

Pages link to each other and to files of the repository by relative paths, so that the links work on GitHub. The
site has the pages of the root folder under other names, and a page for each file outside ``docs/`` that a page
links to. A link that leads nowhere stays as it is, and MkDocs rejects it (``make docs`` is strict).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[2]

ROOT_PAGES: Final = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security-policy.md",
}
"""Pages of the root folder, and their names on the site."""

SOURCE_BYTES_MAX: Final = 200_000
"""A larger file is not shown on the site."""

CODE_OR_LINK: Final = re.compile(
    r"(?P<code>^(?P<fence>```+).*?^(?P=fence)|`[^`\n]*`)|(?P<before>\]\()(?P<target>[^)\s]+)(?=\))",
    re.DOTALL | re.MULTILINE,
)
EXTERNAL: Final = re.compile(r"[a-z]+:")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root folder and the files that any page links to."""
    for name, site_name in ROOT_PAGES.items():
        files.append(File.generated(config, site_name, content=(ROOT / name).read_text()))
    names = {file.src_uri for file in files}
    pages = [file for file in files if file.is_documentation_page()]
    linked = {each for page in pages for each in _linked_sources(page)}
    for name in sorted(_with_their_files(linked)):
        if _source_page(name) not in names:
            files.append(File.generated(config, _source_page(name), content=_shown(name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Translate the links of one page."""
    del config, files
    here = _repository_name(page.file.src_uri)

    def translated(match: re.Match[str]) -> str:
        if match["code"] is not None:
            return match[0]
        return match["before"] + _site_link(here, match["target"])

    return CODE_OR_LINK.sub(translated, markdown)


def _site_link(here: str, target: str) -> str:
    """What the link of a page of the repository is on the site."""
    name, anchor = _named_file(here, target)
    if name is None or not (ROOT / name).exists():
        return target
    start = posixpath.dirname(_site_name(here)) or "."
    return posixpath.relpath(_site_name(name), start) + anchor


def _named_file(here: str, target: str) -> tuple[str | None, str]:
    """The file or folder of the repository that a link names, and the link's anchor."""
    if EXTERNAL.match(target) or target.startswith("#"):
        return None, ""
    path, hash_sign, anchor = target.partition("#")
    name = posixpath.normpath(posixpath.join(posixpath.dirname(here), path))
    if (ROOT / name / "README.md").exists():
        name = posixpath.normpath(f"{name}/README.md")
    return name, hash_sign + anchor


def _site_name(name: str) -> str:
    """Where the site has a file of the repository."""
    if name in ROOT_PAGES:
        return ROOT_PAGES[name]
    return name.removeprefix("docs/") if name.startswith("docs/") else _source_page(name)


def _repository_name(site_name: str) -> str:
    for name, page in ROOT_PAGES.items():
        if page == site_name:
            return name
    return f"docs/{site_name}"


def _source_page(name: str) -> str:
    return f"source/{name}.md"


def _linked_sources(page: File) -> Iterator[str]:
    """The files and folders outside ``docs/`` that a page links to."""
    here = _repository_name(page.src_uri)
    for match in CODE_OR_LINK.finditer(page.content_string):
        name = None if match["code"] is not None else _named_file(here, match["target"])[0]
        if name is None or not (ROOT / name).exists():
            continue
        if _site_name(name) == _source_page(name):
            yield name


def _with_their_files(names: Iterable[str]) -> set[str]:
    """The same with all files in the folders."""
    return {*names, *(file for name in names for file in _files_of(name))}


def _files_of(folder: str) -> list[str]:
    paths = (path for path in (ROOT / folder).rglob("*") if path.is_file())
    names = (path.relative_to(ROOT).as_posix() for path in paths)
    return sorted(name for name in names if "__pycache__" not in name)


def _shown(name: str) -> str:
    """The page of a file, or of a folder with links to its files."""
    path = ROOT / name
    if path.is_dir():
        start = posixpath.dirname(_source_page(name))
        lines = [
            f"* [`{file}`]({posixpath.relpath(_source_page(file), start)})"
            for file in _files_of(name)
        ]
        return f"# {name}/\n\n" + "\n".join(lines) + "\n"
    text = path.read_text(encoding="utf-8")
    if len(text) > SOURCE_BYTES_MAX:
        raise ValueError(f"{name} is too large for a page: do not link to it")
    language = {".py": "python", ".lua": "lua", ".sh": "sh", ".java": "java", ".yaml": "yaml"}
    kind = language.get(PurePosixPath(name).suffix, "text")
    return f"# {name}\n\n````{kind}\n{text}\n````\n"
