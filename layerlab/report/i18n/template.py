"""Sentences with numbers in them, known again by their templates.

A template is a message of a catalogue with `{name}` where something is filled in.
"""

import re
from functools import cached_property

PLACEHOLDER = re.compile(r"\{(\w+)\}")
# A template with no more letters than these takes single words at its placeholders only.
_FEW = 5
# One with no more takes no second clause at them.
_LITTLE = 12
# Anything, with its brackets closed.
_ANY = r"(?:[^()]|\((?:[^()]|\([^()]*\))*\))*?"
# The same that is one clause, or several with commas.
_FIRST = r"(?:[^();]|;(?! )|\((?:[^()]|\([^()]*\))*\))*?"
_WORD = r"(?:[^\s(,:;]|[,:;](?=\S))*(?: %)?(?: \(\S+ to \S+\))?"


class Template:
    """A message with placeholders, and what it is in the other language."""

    def __init__(self, message: str, translation: str):
        """Take a message; its pattern is made when a text has all the words of the message."""
        self.message, self.translation = message, translation
        self.words = [word for word in PLACEHOLDER.split(message)[::2] if word]
        self.own = own(message)
        self.begins = not message.startswith("{")
        longest = max(self.words, key=len, default="")
        # No text without it, whatever the case of its letters, is of this template.
        self.sign = longest.lower()
        self._most = longest if own(longest) >= _FEW else ""

    def parts(self, text: str) -> dict[str, str] | None:
        """Return what fills the placeholders in a text, or None if the text is another."""
        position = 0
        for word in self.words:
            if (start := text.find(word, position)) < 0:
                return None
            position = start + len(word)
        if (found := self._strict.fullmatch(text) or self._pattern.fullmatch(text)) is None:
            return None
        parts = found.groupdict()
        # What says the template twice is a list.
        again = self._most and any(self._most.strip() in part for part in parts.values())
        return None if again else parts

    @cached_property
    def _strict(self) -> re.Pattern[str]:
        return pattern(self.message, numbers=True)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return pattern(self.message)


def pattern(message: str, *, numbers: bool = False) -> re.Pattern[str]:
    """Return the pattern that a filled template matches.

    Args:
        numbers: where nothing but a space stands between two, the second begins with a digit.

    Example:
        >>> pattern("layer {layer}: {what}.").fullmatch("layer 3: fine.").groupdict()
        {'layer': '3', 'what': 'fine'}
    """
    parts = PLACEHOLDER.split(message)
    few, little = (own(message) <= most and ":" not in message for most in (_FEW, _LITTLE))
    seen: set[str] = set()
    written = []
    for index, part in enumerate(parts):
        if index % 2 == 0:
            # A stop that a digit follows belongs to a number.
            stop = part.startswith(".") and index
            written.append(rf"\.(?!\d){re.escape(part[1:])}" if stop else re.escape(part))
        elif part in seen:
            written.append(f"(?P={part})")
        else:
            # Where nothing stands between two, the first is a number or a name.
            touching = not parts[index + 1] and index + 2 < len(parts)
            digit = r"(?=[-+]?\d)" if numbers and index > 1 and parts[index - 1] == " " else ""
            # What stands before a semicolon is another clause, and behind it, too, where the
            # template says little.
            some = _ANY if seen or (written[0] and not little) else _FIRST
            written.append(f"{digit}(?P<{part}>{_WORD if few or touching else some})")
            seen.add(part)
    return re.compile("".join(written), re.DOTALL)


def fill(message: str, parts: dict[str, str]) -> str:
    """Fill the placeholders of a template.

    A placeholder that nothing is given for stays.

    Example:
        >>> fill("第 {layer} 层", {"layer": "3"})
        '第 3 层'
    """
    return PLACEHOLDER.sub(lambda found: parts.get(found[1], found[0]), message)


def own(message: str) -> int:
    """Count the letters and digits that a template brings itself."""
    return sum(character.isalnum() for character in PLACEHOLDER.sub("", message))
