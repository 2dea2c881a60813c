"""A page as tests read it."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"meta", "img", "br", "line", "path", "circle", "rect", "input"}


class Page(HTMLParser):
    """Every element with its attributes; fails where tags do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.said, self.scripts = "", ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "script":
            self.scripts += data
        elif self._open and self._open[-1] != "style":
            # Line breaks of the template are no text.
            self.said += re.sub(r"\s*\n\s*", " ", re.sub(r"^\s*\n\s*|\s*\n\s*$", "", data))

    def of(self, tag: str, kind: str = "") -> list[dict[str, str | None]]:
        return [a for name, a in self.elements if name == tag and (not kind or kind in (a.get("class") or "").split())]
