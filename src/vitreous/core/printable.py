"""Text that holds untrusted names, made safe to show in a terminal, a log, a page or a spreadsheet.

Names of files, classes and architectures are untrusted input. A name may hold line breaks, escape codes, bidirectional
overrides, bytes that are not text, and formulas.
"""

from __future__ import annotations

import re

# A spreadsheet runs what begins so. A mere "-", as standard input is called, is harmless.
_FORMULA = re.compile(r"'*[=+\-@\t\r\n].", re.DOTALL)


def printable(text: object, encoding: str = "utf-8") -> str:
    """The text on one line, in characters that `encoding` has; all others are written as \\n, \\xNN or \\uNNNN."""
    shown = "".join(c if c.isprintable() else _escape(c) for c in str(text))
    return shown.encode(encoding, "backslashreplace").decode(encoding)


def printable_lines(text: str, encoding: str = "utf-8") -> str:
    """The same for text of several lines, which stay."""
    return "\n".join(printable(line, encoding) for line in text.split("\n"))


def _escape(character: str) -> str:
    number = ord(character)
    if 0xDC80 <= number <= 0xDCFF:  # how Python holds a byte of a file name that is not valid UTF-8
        return f"\\x{number - 0xDC00:02x}"
    return character.encode("unicode_escape", "surrogatepass").decode()


def escape_formula(cell: str, before: str = "'") -> str:
    """The cell of a CSV file, with `before` in front where a spreadsheet would run it as a formula."""
    return before + cell if _FORMULA.match(cell) else cell


def unescape_formula(cell: str) -> str:
    """What `escape_formula` was given, with its usual `before`."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell
