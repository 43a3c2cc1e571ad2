"""Settings pages: a table for each config dataclass, read from the source without importing it.

A field's meaning is the string below the field, or the comment at the end of its line.
"""

import ast
import html
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "prixlm"

# Page: its title, and the rooms whose config classes it lists ("" is the root).
PAGES = {
    "training": ("Settings: splits, models and training", ("kb", "lm", "training", "entities")),
    "enrichment": (
        "Settings: search, rankers, links, enrichment and engines",
        ("engine", "decoding", "rankers", "linking", "enrichment", "proposals"),
    ),
    "evaluation": ("Settings: evaluation and the demo", ("evaluation", "")),
}


def pages() -> Iterator[tuple[str, str]]:
    """Yield `reference/settings/PAGE.md` for each page; refuse a config that no page lists."""
    listed = {room for _, rooms in PAGES.values() for room in rooms}
    for name, (title, rooms) in PAGES.items():
        tables = [table for room in rooms for table in _tables_of(room)]
        yield f"reference/settings/{name}.md", f"# {title}\n\n" + "\n\n".join(tables) + "\n"
    for room in sorted({p.parent.name for p in SOURCE.glob("*/*.py")} - listed):
        if any(True for _ in _tables_of(room)):
            raise ValueError(f"docs/_generate/settings.py: no page lists the settings of {room}")


def _tables_of(room: str) -> Iterator[str]:
    for path in sorted((SOURCE / room).glob("*.py")):
        source = path.read_text("utf-8")
        comments = _comments(source)
        module = ".".join(("prixlm", *path.relative_to(SOURCE).with_suffix("").parts))
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef) and _is_config(node.name):
                table = _table(node, module, comments)
                if table:
                    yield table


def _is_config(name: str) -> bool:
    return name.endswith("Config") or name == "EncoderSettings"  # a table of MirrorConfig


def _comments(source: str) -> dict[int, str]:
    """Return the text of every comment, by line number."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}


def _table(node: ast.ClassDef, module: str, comments: dict[int, str]) -> str:
    """Return one class as Markdown: its docstring, then a row for each field."""
    rows = []
    for statement, following in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        meaning = comments.get(statement.end_lineno or 0) or comments.get(statement.lineno, "")
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            meaning = " ".join(str(following.value.value).split())
        kind, default = ast.unparse(statement.annotation), _default(statement.value)
        if _is_config(kind):  # a nested dataclass is a table in TOML
            meaning = f"{meaning or 'settings of this part'}; default {default}"
            default = f"table `[{statement.target.id}]`"
        cells = (_code(statement.target.id), _code(kind), default, meaning.replace("|", "\\|"))
        rows.append("| " + " | ".join(cells) + " |")
    if not rows:
        return ""
    docstring = (ast.get_docstring(node) or "").partition("\n\nExample:")[0]
    head = f"## {node.name}\n\n`{module}.{node.name}`. {docstring}\n\n"
    return (
        head + "| field | type | default | meaning |\n| --- | --- | --- | --- |\n" + "\n".join(rows)
    )


def _default(value: ast.expr | None) -> str:
    if value is None:
        return "required"
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
        [factory] = [k.value for k in value.keywords if k.arg == "default_factory"]
        if isinstance(factory, ast.Lambda):
            return _code(ast.unparse(factory.body))
        return _code(f"{ast.unparse(factory)}()")
    return _code(ast.unparse(value))


def _code(text: str) -> str:
    """Return inline code for a table cell: a bare `|` would end the cell."""
    return f"<code>{html.escape(text, quote=False).replace('|', '&#124;')}</code>"
