"""Parsers of reference answers, which have fixed wordings by task."""

import re
from collections.abc import Sequence


class Unreadable(Exception):
    """An answer that is not of its task's wording; the text says what was expected."""


def after(start: str, answer: str) -> str:
    """Return the answer without the word that announces it."""
    return answer.replace(start, "")


def letter(start: str, options: str, answer: str) -> str:
    """Return the letter that follows `start`."""
    found = re.match(f"{re.escape(start)}([{options}])", answer)
    if not found:
        raise Unreadable(f"{start}{options[0]}")
    return found[1]


def label(start: str, end: str, options: Sequence[str], answer: str) -> str:
    """Return the one label between two wordings."""
    found = answer.removeprefix(start).removesuffix(end)
    if answer != start + found + end or found not in options:
        raise Unreadable(f"{start}{options[0]}{end}")
    return found


def labels(start: str, end: str, between: str, answer: str) -> frozenset[str]:
    """Return the labels of an answer.

    They need not be among the options, and then are never found.
    """
    found = answer.removeprefix(start).removesuffix(end)
    if answer != start + found + end or not found:
        raise Unreadable(f"{start}...{between}...{end}")
    return frozenset(found.split(between))


def articles(answer: str) -> frozenset[int]:
    """Return the numbers of the articles of criminal law that an answer names."""
    if not re.fullmatch(r"法条:刑法第\d+(、\d+)*条", answer):
        raise Unreadable("法条:刑法第264、266条")
    return frozenset(map(int, re.findall(r"\d+", answer)))


def months(answer: str) -> int:
    """Return the length of a prison term in months."""
    found = re.fullmatch(r"刑期:(\d+)个月", answer)
    if not found:
        raise Unreadable("刑期:12个月")
    return int(found[1])


def amount(answer: str) -> float:
    """Return a sum of money."""
    found = re.fullmatch(r"上文涉及到的犯罪金额:(\d+(?:\.\d+)?)元。", answer)
    if not found:
        raise Unreadable("上文涉及到的犯罪金额:2000.0元。")
    return float(found[1])


def entities(answer: str) -> dict[str, str]:
    """Return the entities by their type; a blank answer holds none."""
    parts = [part.split(":") for part in answer.split(";") if part.strip()]
    if any(len(part) < 2 for part in parts):
        raise Unreadable("受害人:...;时间:...")
    return {part[0]: part[1] for part in parts}


def parts(answer: str) -> list[str]:
    """Return the triggers of an answer, in their order."""
    return answer.split(";")
