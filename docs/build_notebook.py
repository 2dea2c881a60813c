"""Write examples/read_the_paper.ipynb from docs/tutorials/read-the-model.md: `python docs/build_notebook.py`.

Text becomes Markdown cells, Python blocks become code cells. A test compares the two and runs the notebook.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE, NOTEBOOK = ROOT / "docs" / "tutorials" / "read-the-model.md", ROOT / "examples" / "read_the_paper.ipynb"


def make_notebook(page: str) -> dict[str, Any]:
    page = re.sub(r"The same page as a notebook:.*?\n\n", "", page)
    page = page.replace("](../../", "](../").replace("](../how-to/", "](../docs/how-to/")
    page = re.sub(r"\]\((?=[\w-]+\.md)", "](../docs/tutorials/", page)
    cells: list[dict[str, Any]] = []
    for at, part in enumerate(re.split(r"```python\n(.*?)```", page, flags=re.DOTALL)):
        if text := part.strip():
            code: dict[str, Any] = {"execution_count": None, "outputs": []} if at % 2 else {}
            kind = "code" if at % 2 else "markdown"
            cells.append(
                {
                    "cell_type": kind,
                    "id": f"cell-{len(cells)}",
                    "metadata": {},
                    **code,
                    "source": text.splitlines(keepends=True),
                }
            )
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {
        "cells": cells,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


if __name__ == "__main__":
    NOTEBOOK.parent.mkdir(exist_ok=True)
    NOTEBOOK.write_text(
        json.dumps(make_notebook(PAGE.read_text(encoding="utf-8")), indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
