"""The page of all claims: what holds, what fails, what is not decided, and by which number."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from layerlab.report.i18n.language import ENGLISH
from layerlab.report.pages.shell import environment, policy, read_static
from layerlab.report.pages.study import TONES


def render(
    studies: Sequence[Mapping[str, Any]],
    lang: str = ENGLISH,
    *,
    made: Mapping[str, Any] | None = None,
) -> str:
    """Render the page of all claims.

    Args:
        studies: of each its name, title, source, draws and verdicts, or the error that kept it
            from any.
        made: the mode, the time, the machine, the version and the command of this page.

    Raises:
        UserError: there is no page in this language.
    """
    return (
        environment(lang)
        .get_template("holds.html")
        .render(
            studies=studies,
            made=made,
            counts=count_words(studies),
            tones=TONES,
            policy=policy([]),
            style=Markup(read_static("page.css")),
        )
    )


def count_words(studies: Sequence[Mapping[str, Any]]) -> dict[bool, Counter[str]]:
    """Count each verdict's word: among claims of the sources, and, under True, among our own."""
    counts: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
    for study in studies:
        for one in study["verdicts"]:
            place = str(one.get("source") or study["source"])
            counts[place.startswith("Own")][one["word"]] += 1
    return counts
