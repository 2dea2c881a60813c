"""Count the statements of each package: `ast.stmt` nodes without imports and docstrings.

Lines would reward long ones and punish comments; statements do neither.

    python benchmarks/statements.py [FOLDER] [--files]
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path


def count_statements(path: Path) -> int:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = sum(ast.get_docstring(node) is not None for node in ast.walk(tree) if isinstance(node, documented))
    imports = sum(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.walk(tree))
    return sum(isinstance(node, ast.stmt) for node in ast.walk(tree)) - docstrings - imports


def main() -> None:
    words = [word for word in sys.argv[1:] if word != "--files"]
    root = Path(words[0] if words else "src/vitreous")
    counts: Counter[str] = Counter()
    for path in root.rglob("*.py"):
        name = path.relative_to(root)
        counts[str(name) if "--files" in sys.argv else name.parts[0]] += count_statements(path)
    for name, count in counts.most_common():
        print(f"{count:6,} {name}")
    print(f"{counts.total():6,} in all")


if __name__ == "__main__":
    main()
