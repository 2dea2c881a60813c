"""The picture in docs/reference/data-sets.md: some of each rendered set, with the labels.

python benchmarks/rendered_sheet.py docs/images/rendered.png
"""

from __future__ import annotations

import sys

from PIL import Image, ImageDraw

from vitreous.data.datasets.builtin import open_builtin
from vitreous.data.synthetic.rendered import Rendered

ROWS = (("shapes",), ("signs",), ("count",), ("position", "orientation"))
SIDE, ACROSS, GAP, TEXT = 96, 8, 4, 26


def caption(source: Rendered, index: int) -> str:
    name = source.classes[source.labels(index)[0]].replace("letter-", "").replace("-", " ")
    return f"{name} objects" if source.task == "count" else name


def main() -> None:
    sheet = Image.new("RGB", (ACROSS * (SIDE + GAP), len(ROWS) * (SIDE + TEXT)), "white")
    pen = ImageDraw.Draw(sheet)
    for row, tasks in enumerate(ROWS):
        sources = [open_builtin(f"{task}?size={SIDE}").source("train") for task in tasks]
        for column in range(ACROSS):
            x, y = column * (SIDE + GAP), row * (SIDE + TEXT)
            lines = []
            for source in sources:
                assert isinstance(source, Rendered)
                sheet.paste(Image.fromarray(source.read(column)), (x, y))  # the tasks of a row share their pictures
                lines.append(caption(source, column))
            pen.multiline_text((x + 1, y + SIDE + 1), "\n".join(lines), fill="black", font_size=9, spacing=1)
    sheet.quantize(128, dither=Image.Dither.NONE).save(sys.argv[1], optimize=True)


if __name__ == "__main__":
    main()
