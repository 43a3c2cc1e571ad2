"""API pages: the public names, one page for each room with its modules, and a list of modules."""

import ast
from collections.abc import Iterator
from pathlib import Path

import prixlm

SOURCE = Path(__file__).parents[2] / "src" / "prixlm"

_INDEX = """# The Python API

These names are importable from `prixlm`. They are imported when first used, so `import prixlm` is
fast and needs no torch. All other modules are listed by room; their names may change between minor
versions.

"""


def pages() -> Iterator[tuple[str, str]]:
    """Yield the page of public names, then `reference/api/ROOM.md` for each room and the root."""
    yield "reference/modules.md", _modules_page()
    yield "reference/api/index.md", _INDEX + "\n".join(_public_sections())
    rooms = sorted(path.parent for path in SOURCE.glob("*/__init__.py"))
    for room in (SOURCE, *rooms):
        package = "prixlm" if room == SOURCE else f"prixlm.{room.name}"
        modules = [".".join(p.relative_to(room).with_suffix("").parts) for p in _files(room)]
        blocks = [
            f"## {package}.{module} {{ #{package}.{module} }}\n\n::: {package}.{module}\n"
            for module in modules
        ]
        name = "root" if room == SOURCE else room.name
        yield f"reference/api/{name}.md", f"# {package}\n\n" + "\n".join(blocks)


def _files(room: Path) -> list[Path]:
    """Return the files of a room and of the folders in it."""
    found = room.glob("*.py") if room == SOURCE else room.rglob("*.py")
    return sorted(path for path in found if not path.stem.startswith("_"))


def _modules_page() -> str:
    """Return the list of modules: the first sentence of each docstring, room by room."""
    lines = ["# Modules\n\nThe first sentence of every file, room by room."]
    for room in (SOURCE, *sorted(path.parent for path in SOURCE.glob("*/__init__.py"))):
        name = "root" if room == SOURCE else room.name
        lines.append(f"\n## {name}\n\n| module | what it is |\n| --- | --- |")
        for path in _files(room):
            text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
            first = " ".join(text.partition("\n\n")[0].split())
            module = path.relative_to(SOURCE).as_posix()
            anchor = ".".join(("prixlm", *path.relative_to(SOURCE).with_suffix("").parts))
            lines.append(f"| [`{module}`](api/{name}.md#{anchor}) | {first} |")
    return "\n".join(lines) + "\n"


def _public_sections() -> Iterator[str]:
    """Yield verbs, nouns and configs, each under its heading, in alphabetical order."""
    names = sorted(prixlm.__all__, key=str.lower)
    configs = [name for name in names if name.endswith("Config")]
    verbs = [name for name in names if name.islower()]
    nouns = [name for name in names if name not in (*configs, *verbs)]
    for title, group in (("Functions", verbs), ("Classes", nouns), ("Settings", configs)):
        blocks = [_BLOCK.format(name=name) for name in group]
        yield f"## {title}\n\n" + "\n".join(blocks)


_BLOCK = """::: prixlm.{name}
    options:
      heading_level: 3
      show_root_heading: true
      show_root_toc_entry: true
"""
