"""Values written on the command line: literals of Python, with YAML's spelling of true, false and null beside it."""

from __future__ import annotations

import ast
from typing import Any, Final

WORDS: Final = {"true": True, "false": False, "none": None, "null": None}
OPENING, CLOSING, QUOTES = "([{", ")]}", "'\""


def literal(text: str) -> Any:
    """The value that a text stands for: a literal of Python, ``true``, ``false``, ``none`` or ``null``, else the text.

    The four words count in any case; in quotes they are texts.
    """
    word = text.strip()
    if word.lower() in WORDS:
        return WORDS[word.lower()]
    try:
        return ast.literal_eval(word)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text


def literals(text: str) -> list[Any]:
    """Several values, separated by commas; a comma inside quotes or brackets separates none.

    Raises:
        ValueError: one of them is empty.
    """
    parts = _parts(text)
    for number, part in enumerate(parts, 1):
        if not part.strip():
            raise ValueError(f"value {number} of {text!r} is empty; write '' for a text without letters")
    return [literal(part) for part in parts]


def _parts(text: str) -> list[str]:
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in QUOTES:
            quote = letter
        else:
            depth += (letter in OPENING) - (letter in CLOSING)
        if letter == "," and not quote and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts
