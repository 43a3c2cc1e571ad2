"""Figures of the house: how large its files are, and how well they are explained.

    python benchmarks/house.py [ROOT]

Counts files by room, lines per file, the share of public functions with a docstring, the share of
lines that are comments of their own, and how often the shared type aliases are defined.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles


def public_definitions(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield public functions and classes at the top, and the public methods of public classes."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for node in tree.body:
        if isinstance(node, kinds) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from (
                    inner
                    for inner in node.body
                    if isinstance(inner, kinds) and not inner.name.startswith("_")
                )


def main(root: Path) -> None:
    """Print the figures of the package below `root`."""
    source = root / "src" / "prixlm"
    files = sorted(source.rglob("*.py"))
    texts = [path.read_text("utf-8") for path in files]
    rooms = Counter(str(path.parent.relative_to(source)) for path in files)
    sizes = [text.count("\n") for text in texts]
    lines = [line for text in texts for line in text.splitlines()]
    comments = sum(line.lstrip().startswith("#") for line in lines)
    trees = [ast.parse(text) for text in texts]
    public = [node for tree in trees for node in public_definitions(tree)]
    explained = sum(ast.get_docstring(node) is not None for node in public)  # type: ignore[arg-type]
    print("files by room:", ", ".join(f"{room} {count}" for room, count in rooms.most_common()))
    print(f"files: {len(files)}, most in one room: {max(rooms.values())}")
    p90 = quantiles(sizes, n=10)[-1]
    print(f"lines: {len(lines):,}, median {median(sizes):.0f}, p90 {p90:.0f}, max {max(sizes)}")
    print(f"public definitions with a docstring: {explained / len(public):.1%} of {len(public)}")
    print(f"comments of their own: {comments / len(lines):.2%} of the lines")
    for alias in ("Array", "Progress"):
        count = sum(len(re.findall(rf"^ *{alias}\b.* = (?:np|Callable)", t, re.M)) for t in texts)
        print(f"definitions of {alias}: {count}")
    print(f"README: {(root / 'README.md').stat().st_size:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1])
