"""The page of a campaign: what is left to spend, and each idea with its verdict and its interval.

The content is the dict that `campaign.json` holds.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from layerlab.records.json_values import Json
from layerlab.report.figures.campaign import PICTURES, WORDS, campaign_pictures
from layerlab.report.i18n.language import ENGLISH, Label, label, language
from layerlab.report.pages.shell import fill_page
from layerlab.report.views.forest_plot import format_signed
from layerlab.system import files
from layerlab.system.own_page import check_own_files

PAGE, NUMBERS, COMMAND = "report.html", "campaign.json", "ledger"
_STYLES = ("page.css", "comparison.css")
STEPS = {
    "judge": label("run and judge it"),
    "confirm": label("confirm it with fresh seeds"),
    "nothing": label("nothing"),
}
# What columns hold, and whether that is numbers.
HEAD = (
    *((label("Idea"), False), (label("Verdict"), False), (label("What is changed"), False)),
    *((label("Difference"), True), (label("95 % interval"), True), (label("p"), True)),
    *((label("Level"), True), (label("Seeds"), True), (label("Measure"), False)),
    *((label("Next"), False), (label("Written down"), False)),
)
STAGES = {"screening": label("first runs"), "confirmation": label("confirmation")}


def render(content: Mapping[str, Any], lang: str = ENGLISH) -> str:
    """Render the whole page of a campaign.

    Raises:
        UserError: there is no page in this language.
    """
    return fill_page(
        "campaign.html",
        _STYLES,
        lang,
        content=content,
        title=Path(content["folder"]).name or content["folder"],
        facts=list(_facts(content)),
        ideas=[_row(one) for one in content["ideas"]],
        pictures=campaign_pictures(content, language(lang).label),
        head=HEAD,
        stages=STAGES,
    )


def save_campaign(content: Mapping[str, Any], folder: Path, lang: str = ENGLISH) -> Path:
    """Write report.html, campaign.json and the pictures.

    Returns:
        The page.

    Raises:
        UserError: the folder holds something else, or cannot be written.
    """
    check_own_files(folder, COMMAND, (PAGE, NUMBERS, *PICTURES), "the page of a campaign")
    page = render(content, lang)
    text = json.dumps(content, ensure_ascii=False, indent=1)
    # First: it tells that what lies beside it was written here.
    files.write_files(folder, {PAGE: page, NUMBERS: text + "\n", **campaign_pictures(content)})
    return folder / PAGE


def _facts(content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield label("Ideas"), content["tried"]
    yield label("Adopted"), content["adopted"]
    yield label("Refuted"), content["refuted"]
    yield label("Undecided"), content["undecided"]
    yield label("Confirmations"), content["confirmations"]
    yield label("Wealth left"), content["wealth"]
    yield label("Level of the next one"), content["next_level"]


def _row(idea: Json) -> Json:
    """Return an idea as its line of the table: by its last runs."""
    last = idea["trials"][-1]
    found = last["verdict"] or {}
    low, high = found.get("low"), found.get("high")
    interval = None
    if low is not None and high is not None:
        width = high - low
        interval = Label(f"{format_signed(low, width)} to {format_signed(high, width)}")
    return {
        **idea,
        "word": WORDS[idea["verdict"]],
        "step": STEPS[idea["next"]],
        "difference": found.get("difference"),
        "signed": format_signed(found.get("difference"), None if low is None else high - low),
        "interval": interval,
        "p": found.get("p"),
        "level": last["level"],
        "measure": last["measure"],
        "count": len(last["seeds"]),
        "time": idea["trials"][0]["time"],
    }
