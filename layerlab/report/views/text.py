"""Text that came from outside (tokens, names, sentences), made visible and harmless to lay out.

Markup is escaped where the text is written; here only what no reader could see is spelled out:
control characters, invisible ones, changes of direction, halves of a surrogate pair.
"""

import json
import unicodedata
from collections.abc import Iterable

# What a measure writes where a token holds but a part of a character.
PART = "\u25cc"
LONGEST = 4096  # characters of a name
_SPELLED = {" ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍", "\x7f": "␡"}
_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"}


def token(text: str, limit: int = 24) -> str:
    r"""Return a token as it is printed: spaces and line ends shown, at most `limit` characters.

    Example:
        >>> token(" King\n")
        '␣King↵'
    """
    visible = "".join(_SPELLED.get(c) or _visible(c) for c in text[: limit + 1])
    return _cut(visible, limit) or "∅"


def prose(text: str, limit: int = 600) -> str:
    r"""Write a name or a sentence with plain spaces; what is invisible is spelled out.

    Example:
        >>> prose("layer 3\n is fine")
        'layer 3  is fine'
    """
    visible = "".join(" " if c.isspace() else _visible(c) for c in text[: limit + 1])
    return _cut(visible, limit)


def tell_apart(names: Iterable[str], limit: int) -> list[str]:
    """Return names of so many characters at most: the ends of those that begin alike.

    Example:
        >>> tell_apart(["/runs/one", "/runs/two", "llama"], 6)
        ['…s/one', '…s/two', 'llama']
    """
    full_names = [prose(name, LONGEST) for name in names]
    cut = [prose(name, limit) for name in full_names]
    return [
        short if cut.count(short) == 1 or len(name) <= limit else f"…{name[1 - limit :]}"
        for short, name in zip(cut, full_names, strict=True)
    ]


def quote_text(text: str, limit: int = 600) -> str:
    r"""Quote what a model wrote, with every space of it and escapes as in JSON.

    Example:
        >>> quote_text("  the\n"), quote_text("")
        ('"  the\\n"', '""')
    """
    visible = "".join(c if c.isprintable() and c not in '"\\' else _escape(c) for c in text[:limit])
    return f'"{visible}"' if len(text) <= limit else f'"{visible}"…'


def _escape(character: str) -> str:
    return "\\u007f" if character == "\x7f" else json.dumps(character)[1:-1]


def _visible(character: str) -> str:
    if character < " ":
        return chr(0x2400 + ord(character))
    if unicodedata.category(character) in _INVISIBLE:
        return f"⟨U+{ord(character):04X}⟩"
    return character


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
