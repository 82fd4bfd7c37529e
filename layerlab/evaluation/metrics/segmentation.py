"""Word segmentation of texts whose words are compared.

Chinese has no spaces, so a score over words is one of a segmentation: figures over characters and
over jieba's words do not compare. Each way has a name, to stand beside the figure.
"""

import logging
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any

from layerlab.errors import UserError, describe_install

# Characters without a break that jieba is given at once: its time grows with the square of them.
RUN = 2000
_UNBROKEN = r"\u4E00-\u9FD5a-zA-Z0-9+#&._%\-"
_RUNS = re.compile(f"[{_UNBROKEN}]{{1,{RUN}}}|[^{_UNBROKEN}]+")


@dataclass(frozen=True)
class Segmentation:
    """A way to cut a text into words.

    Attributes:
        name: as it is printed beside a score.
        cut: does it.
    """

    name: str
    cut: Callable[[str], list[str]]

    def __call__(self, text: str) -> list[str]:
        return self.cut(text)

    def __str__(self) -> str:
        return self.name


@cache
def _tokenizer() -> Any:
    """Return a tokenizer of our own, untouched by words added elsewhere in the process."""
    try:
        with warnings.catch_warnings(action="ignore"):  # it imports a module that is deprecated
            import jieba
    except ImportError:
        raise UserError(
            "words of Chinese are found with jieba, which is not installed; "
            f"{describe_install('eval')}"
        ) from None
    jieba.setLogLevel(logging.ERROR)
    return _read_dictionary(jieba.Tokenizer())


def _read_dictionary(found: Any) -> Any:
    """Read the dictionary of jieba's package, a second's work.

    In its place jieba would load any `jieba.cache` in the folder for temporary files, where
    everybody may put one.
    """
    found.FREQ, found.total = found.gen_pfdict(found.get_dict_file())
    found.initialized = True
    return found


def prepare_default() -> None:
    """Do so for jieba's own tokenizer, where a task of lm-eval has imported it."""
    jieba = sys.modules.get("jieba")
    if jieba is not None and not jieba.dt.initialized:
        _read_dictionary(jieba.dt)


def _cut(text: str) -> list[str]:
    """Return the words of a text, breaks among them; a longer run than `RUN` is cut there too."""
    return list(chain.from_iterable(map(_tokenizer().cut, _RUNS.findall(text))))


def _segment(text: str) -> list[str]:
    return [word for word in _cut(text) if word.strip()]


def _in_sentences(text: str) -> list[str]:
    """Return the words of sentences, where a blank piece between two counts as a word too."""
    spaced = " ".join(_cut(text))
    pieces = re.sub("([。！？?])([^”’])", r"\1\n\2", spaced).rstrip().split("\n")
    return [word for piece in pieces if piece for word in piece.split() or [""]]


def _characters(text: str) -> list[str]:
    return [character for character in text if not character.isspace()]


def _latin(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


JIEBA = Segmentation("jieba words", _segment)
# As LawBench's scores are published: rouge-chinese counts the blank lines of an output.
JIEBA_LINES = Segmentation("jieba words and blank lines", _in_sentences)
CHARACTERS = Segmentation("characters", _characters)
SPACED = Segmentation("words between spaces", str.split)
LATIN = Segmentation("lower-case runs of a-z and 0-9", _latin)
