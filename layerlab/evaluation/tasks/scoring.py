"""Marks of one question: its likelihoods or its written answer against what is right.

Pure functions of lists and texts; the file beside the tasks hands them what lm-eval gives.
"""

import math
import re
from collections.abc import Sequence

from layerlab.data.normal_form import normal_form
from layerlab.evaluation.tasks.answer_extraction import extract_letter

# What a value is called, as the x of "x=2".
_NAME = re.compile(r"^[A-Za-z]{1,2}=(?=[^=]+$)")
# What changes nothing in a value.
_EMPTY = r"\\(?:left|right|!|,|;|quad)|[\s$]|\^\\circ"
_STOPS = ".。,，;；"


def likeliest(likelihoods: Sequence[float]) -> int:
    """Return the place of the largest likelihood; of equal ones, the first.

    Example:
        >>> likeliest([-2.0, -1.0, -1.0])
        1
    """
    return max(range(len(likelihoods)), key=lambda index: likelihoods[index])


def list_likeliest(
    likelihoods: Sequence[float], lengths: Sequence[int] | None = None, *, unit: float = 0.0
) -> list[int]:
    """Return the places of the likeliest choice and of all that cannot be told from it.

    Args:
        likelihoods: logarithms.
        lengths: what they are divided by before they are compared.
        unit: the arithmetic's unit roundoff: two that are nearer than unit (1 + |log-likelihood|)
            round to the same number.

    Example:
        >>> list_likeliest([-2.0, -1.0, -1.0]), list_likeliest([-2.0, -2.01], unit=2**-8)
        ([1, 2], [0, 1])
    """
    by = lengths or [1] * len(likelihoods)
    worth = [one / long for one, long in zip(likelihoods, by, strict=True)]
    best = likeliest(worth)
    room = unit * (1 + abs(likelihoods[best])) / by[best]
    # Where all are minus infinity, their difference is no number, and they are equal.
    return [
        index for index, one in enumerate(worth) if one == worth[best] or worth[best] - one <= room
    ]


def by_likelihood(likelihoods: Sequence[float], right: Sequence[int]) -> float:
    """Score 1 where the likeliest choice is right, else 0.

    Differs: AGIEval asks for all right options of some questions; one choice can name only one,
    so it is right where it is among them, as in lm-eval's own tasks. A likelihood that is no number
    tells nothing, and the question counts as wrong; lm-eval takes the first choice there, so that a
    model that computes nothing scores as one that guesses.

    Example:
        >>> by_likelihood([-1.0, -2.0], [0]), by_likelihood([math.nan, math.nan], [0])
        (1.0, 0.0)
    """
    are_numbers = not any(map(math.isnan, likelihoods))
    return float(are_numbers and likeliest(likelihoods) in right)


def by_letter(output: str, letters: str, right: str, *, reasoned: bool = False) -> dict[str, float]:
    """Judge whether a written answer names the right option; an abstention counts as wrong.

    Example:
        >>> by_letter("我不知道", "ABCD", "B")
        {'score': 0.0, 'abstained': 1.0}
    """
    letter = extract_letter(output, letters, reasoned=reasoned)
    return {"score": float(letter == right), "abstained": float(letter is None)}


def by_value(output: str, reply: str) -> dict[str, float]:
    r"""Judge whether a written answer equals the right one, up to meaningless notation.

    A name of at most two letters before the right value need not be repeated, as in the source.

    Differs: AGIEval compares through many rules of LaTeX; this is an exact match after the few
    that are safe, so it can only be lower.

    Example:
        >>> by_value(r"so the answer is $\dfrac{1}{2}$.", r"\frac12")
        {'score': 1.0, 'abstained': 0.0}
        >>> by_value("It is $2x + y = 0$.", "$2x+y=0$")["score"]
        1.0
    """
    values, right = _list_values(output), _plain(reply)
    answers = {right, _NAME.sub("", right)} - {""}
    return {"score": float(not answers.isdisjoint(values)), "abstained": float(not any(values))}


def _list_values(output: str) -> list[str]:
    """Return what an output may state as its value.

    What is boxed; else its first line, what follows the last "is" there, and of that what stands
    between the last dollars, or follows the last "=".
    """
    boxed = output.rfind("\\boxed{")
    if boxed >= 0:
        return [_plain(_find_braces(output[boxed + len("\\boxed") :]))]
    first = summary(output)
    stated = re.split(r"\bis\b|答案是|为", first)[-1]
    dollars = re.findall(r"\$([^$]+)\$", first)
    last = (dollars[-1] if dollars else stated).rpartition("=")[2]
    return [_plain(one) for one in (first, stated, last)]


def _find_braces(text: str) -> str:
    """Return what the first pair of braces of a text holds."""
    depth = 0
    for position, letter in enumerate(text):
        depth += (letter == "{") - (letter == "}")
        if depth == 0:
            return text[1:position]
    return ""


def _plain(value: str) -> str:
    """Return a value without the notation that changes nothing in it."""
    # Behind the last brace no \text is closed, and none is looked for: n of them took n squared.
    head, brace, tail = normal_form("NFKC", value).rpartition("}")
    text = re.sub(rf"\\text\{{ ?[^}}]*\}}|{_EMPTY}", "", head + brace) + re.sub(_EMPTY, "", tail)
    if not text.strip(_STOPS):  # a word and no unit
        text = re.sub(r"\\text|[{}\s$]", "", head)
    text = text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    text = re.sub(r"\\frac(\w)(\w)", r"\\frac{\1}{\2}", text)
    return text.strip(_STOPS)


def summary(output: str) -> str:
    r"""Return the first line of an output that is not blank.

    Example:
        >>> summary("\n 央行降准\n以下")
        '央行降准'
    """
    return next((line.strip() for line in output.split("\n") if line.strip()), "")
