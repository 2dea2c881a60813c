"""Text for a terminal, a log or a page: whatever a name holds, it stays on its line and moves no cursor.

Names of files, classes and architectures are untrusted input. A name may hold line breaks, escape codes, bidirectional
overrides, and bytes that are no text.
"""

from __future__ import annotations


def printable(text: object, encoding: str = "utf-8") -> str:
    """The text on one line, in characters that `encoding` has; all others are written as \\n, \\xNN or \\uNNNN."""
    shown = "".join(c if c.isprintable() else _escape(c) for c in str(text))
    return shown.encode(encoding, "backslashreplace").decode(encoding)


def printable_lines(text: str, encoding: str = "utf-8") -> str:
    """The same for text of several lines, which stay."""
    return "\n".join(printable(line, encoding) for line in text.split("\n"))


def _escape(character: str) -> str:
    number = ord(character)
    if 0xDC80 <= number <= 0xDCFF:  # how Python holds a byte of a file name that is no valid UTF-8
        return f"\\x{number - 0xDC00:02x}"
    return character.encode("unicode_escape", "surrogatepass").decode()
