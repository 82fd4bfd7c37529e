"""Round trip of a text through its tokens: only then do they say which bytes they stand for."""

import re

from tokenizers import Tokenizer

from layerlab.data.normal_form import normal_form
from layerlab.tokenization.load import special_tokens

# Characters of a text that are shown where it does not come back, and those before the difference.
SHOWN, BEFORE = 24, 8


class RoundTrip:
    """Decodes tokens, and holds what comes back against the text.

    These are no loss: a space more or less at the beginning and beside special tokens, and another
    canonical form of the same characters (NFC, NFD), which Unicode takes for the same text.
    """

    def __init__(self, machine: Tokenizer) -> None:
        """Take an engine that encodes whole texts."""
        self.machine = machine
        longest = "|".join(map(re.escape, special_tokens(machine)))
        self._special = re.compile(f" *({longest}) *") if longest else None

    def loss(self, text: str, ids: list[int]) -> str:
        """Return an example of how a text does not come back from its tokens, or nothing."""
        back = self.machine.decode(ids, skip_special_tokens=False)
        if back == text:
            return ""
        plain, other = self._plain(text), self._plain(back)
        if plain == other or f" {plain}" == other or plain == f" {other}":
            return ""
        text, back = text.removeprefix(" "), back.removeprefix(" ")
        alike = enumerate(zip(text, back, strict=False))
        at = next((n for n, (one, its) in alike if one != its), min(len(text), len(back)))
        first = max(0, at - BEFORE)
        source, found = (repr(one[first : first + SHOWN]) for one in (text, back))
        return f"{source} comes back as {found}"

    def _plain(self, text: str) -> str:
        found = normal_form("NFC", text)
        return self._special.sub(r"\1", found) if self._special else found


def describe_loss(name: str, example: str) -> str:
    """Say why a text has no bits per byte.

    Args:
        name: of the text.
        example: of how it does not come back.
    """
    return (
        f"bits per byte of {name} are not given: the tokenizer does not give its held-out text "
        f"back ({example}), so that tokens do not say which bytes they stand for"
    )
