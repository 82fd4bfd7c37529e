"""The page of all claims: what holds, what fails, what is not decided, and by which number."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from layerlab.report.i18n.language import ENGLISH
from layerlab.report.pages.shell import fill_page
from layerlab.report.pages.study import TONES

OWN = "Own"
# What ends the key of a source.
_KEY = re.compile(r"[,; ]")


def render(
    studies: Sequence[Mapping[str, Any]],
    lang: str = ENGLISH,
    *,
    provenance: Mapping[str, Any] | None = None,
) -> str:
    """Render the page of all claims.

    Args:
        studies: of each its name, title, source, draws and verdicts, or the error that kept it
            from any.
        provenance: the mode, the time, the machine, the version and the command of this page.

    Raises:
        UserError: there is no page in this language.
    """
    return fill_page(
        "holds.html",
        ["page.css"],
        lang,
        sources=list(group_sources(studies)),
        made=provenance,
        counts=count_words(studies),
        tones=TONES,
        scripts=["unfold.js"],
    )


def group_sources(studies: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the studies of each source with the words of their verdicts; our own come last."""
    keys = dict.fromkeys(_KEY.split(str(study["source"]), maxsplit=1)[0] for study in studies)
    for key in sorted(keys, key=lambda key: key == OWN):
        own = [one for one in studies if _KEY.split(str(one["source"]), maxsplit=1)[0] == key]
        counted = Counter(verdict["word"] for study in own for verdict in study["verdicts"])
        yield {"title": key, "studies": own, "words": counted}


def count_words(studies: Sequence[Mapping[str, Any]]) -> dict[bool, Counter[str]]:
    """Count each verdict's word: among claims of the sources, and, under True, among our own."""
    counts: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
    for study in studies:
        for one in study["verdicts"]:
            source = str(one.get("source") or study["source"])
            counts[source.startswith(OWN)][one["word"]] += 1
    return counts
