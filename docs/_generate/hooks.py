"""MkDocs hook: add the generated pages to the site.

MkDocs calls `on_files` before it reads any page. The pages exist only in memory: nothing is written
below `docs/`, so they cannot go stale.

- `reference/cli/*.md` from the typer commands (`cli.py`);
- `reference/settings/*.md` from the config dataclasses (`settings.py`);
- `reference/api/ROOM.md`, one `:::` line for each module, which mkdocstrings fills in (`api.py`);
- `changelog.md`, `contributing.md` and `security.md` from the files at the root of the repository.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

from _generate import api, cli, settings  # noqa: E402  (after the path is set)

ROOT_PAGES = {
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
}


def generated_pages() -> Iterator[tuple[str, str]]:
    """Yield the path below `docs/` and the Markdown of every generated page."""
    yield from cli.pages()
    yield from settings.pages()
    yield from api.pages()
    for path, source in ROOT_PAGES.items():
        # Links of a root file start at the root; those of a page start at `docs/`.
        text = (ROOT / source).read_text("utf-8")
        yield path, text.replace("](docs/", "](").replace("](CHANGELOG.md", "](changelog.md")


_FIGURES = re.compile(r"<td>((?:<strong>)?[\d.,/()%+–\s-]+(?:</strong>)?)</td>")


def on_page_content(html: str, **_: object) -> str:
    """Mark table cells that hold figures only, so that they do not wrap (`extra.css`)."""
    return _FIGURES.sub(r'<td class="figures">\1</td>', html)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add every generated page to the files that MkDocs builds."""
    for path, content in generated_pages():
        files.append(File.generated(config, path, content=content))
    return files
