"""What the site has that the folder has not: CONTRIBUTING and CHANGELOG as pages.

Pages are written to be read where the repository is, too. There a link may lead to any file; on the site those that
leave the documentation become plain text.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    for page, source in ELSEWHERE.items():
        text = _LINK.sub(_from_root, (ROOT / source).read_text())
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(text: str, page: Any, config: Any, files: Files) -> str:
    return _LINK.sub(lambda link: _within(link, PurePosixPath(page.file.src_uri).parent), text)


def _from_root(link: re.Match[str]) -> str:
    words, target, anchor = link[1], link[2], link[3] or ""
    pages = {source: page for page, source in ELSEWHERE.items()}
    if target.startswith("docs/"):
        return f"[{words}]({target.removeprefix('docs/')}{anchor})"
    if target in pages:
        return f"[{words}]({pages[target]}{anchor})"
    return link[0] if "://" in target else words


def _within(link: re.Match[str], folder: PurePosixPath) -> str:
    target = link[2]
    if "://" in target or target.startswith("mailto:"):
        return link[0]
    depth = len(folder.parts)
    leaves = next((i for i, part in enumerate(PurePosixPath(target).parts) if part != ".."), 0) > depth
    if not leaves:
        return link[0]
    # The two that are pages here are linked as the files that they are there.
    name = PurePosixPath(target).name
    pages = {source: page for page, source in ELSEWHERE.items()}
    return f"[{link[1]}]({'../' * depth}{pages[name]})" if name in pages else link[1]
