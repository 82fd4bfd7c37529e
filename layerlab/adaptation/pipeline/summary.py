"""Gathers the results of all stages as plain values for a report."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from layerlab.adaptation.pipeline.stage import Stage, StageStore
from layerlab.adaptation.pretraining.replay import DOMAIN, GENERAL
from layerlab.data.places import data_folder
from layerlab.experiments.statistics.differences import Level, difference_to
from layerlab.recipes.adaptation import AdaptationRecipe
from layerlab.records.json_values import Json
from layerlab.tokenization.round_trip import describe_loss
from layerlab.version import VERSION

SCHEMA = 1
LEVEL = Level()
SCORED = ("score", "error", "low", "high", "n")


class Tally:
    """The finished stages of a recipe, as tables."""

    def __init__(
        self, recipe: AdaptationRecipe, stages: Sequence[Stage], store: StageStore
    ) -> None:
        """Read the results of the finished stages."""
        self.recipe, self.stages = recipe, stages
        found = {stage.key: store.read(stage.key) for stage in stages}
        self.left = {key: one for key, one in found.items() if one is not None}
        self.arms = list(recipe.arms())

    def content(self) -> Json:
        """Return the whole summary, without paths of this machine."""
        content: Json = _placeless(self._content())
        return content

    def _content(self) -> Json:
        return {
            "schema": SCHEMA,
            "layerlab": VERSION,
            "name": self.recipe.name,
            "about": self.recipe.about,
            "inferred": self.recipe.inferred,
            "recipe": self.recipe.model_dump(mode="json", exclude_none=True),
            "arms": self.arms,
            "stages": [self._stage(stage) for stage in self.stages],
            "base": self._results("base"),
            "texts": self._each("clean", "sources"),
            "contamination": [
                {name: value for name, value in one.items() if name != "matches"}
                for one in self._results("contamination")
            ],
            "vocabulary": self._results("vocabulary"),
            "embedding": self._results("embedding"),
            "pretrain": list(self._list_pretrained()),
            "changes": list(self._changes()),
            "tune": self._results("tune"),
            "scores": (scores := list(self._scores())),
            "table": _table(scores, len(self.arms)),
            "samples": list(self._samples()),
            "left_out": list(self._list_left_out()),
            "remarks": list(dict.fromkeys(self._remarks())),
        }

    def _of(self, *kinds: str) -> Iterator[tuple[Stage, Json]]:
        """Yield the finished stages of these kinds with their results."""
        for stage in self.stages:
            if stage.kind in kinds and stage.key in self.left:
                yield stage, self.left[stage.key]

    def _stage(self, stage: Stage) -> Json:
        kept = self.left.get(stage.key)
        return {
            "stage": stage.title(len(self.arms)),
            "kind": stage.kind,
            "key": stage.key,
            "arms": list(stage.arms),
            "seed": stage.seed,
            "finished": kept is not None,
            "seconds": kept["seconds"] if kept else None,
        }

    def _results(self, kind: str) -> list[Json]:
        return [{"arms": list(stage.arms), **left["result"]} for stage, left in self._of(kind)]

    def _each(self, kind: str, name: str) -> list[Json]:
        return [
            {"arms": list(stage.arms), **one}
            for stage, left in self._of(kind)
            for one in left["result"][name]
        ]

    def _list_pretrained(self) -> Iterator[Json]:
        """Yield every run of continued pretraining with its curves."""
        for stage, left in self._of("pretrain"):
            events = [one for one in left["events"] if one["kind"] == "evaluate"]
            curves: Json = {"update": [one["update"] for one in events]}
            curves["tokens"] = [one["tokens"] for one in events]
            for kind in (DOMAIN, GENERAL):
                if events and kind in events[0]["bits_per_byte"]:
                    curves[kind] = [one["bits_per_byte"][kind] for one in events]
            for arm in stage.arms:
                yield {"arm": arm, "seed": stage.seed, "curves": curves, **left["result"]}

    def _changes(self) -> Iterator[Json]:
        """Yield how much each arm learned and forgot, over its seeds.

        Then arms against the first.

        change = bits per byte after - before, the mean over seeds with Student's interval
        """
        runs: dict[tuple[str, str], dict[int, tuple[float, float]]] = {}
        single: dict[tuple[str, str], Json] = {}
        for run in self._list_pretrained():
            for kind in run["after"]:
                pair = (run["before"][kind], run["after"][kind])
                runs.setdefault((run["arm"], kind), {})[run["seed"]] = pair
                single.setdefault((run["arm"], kind), run["change"][kind])
        for (arm, kind), ends in runs.items():
            before = {seed: first for seed, (first, _) in ends.items()}
            after = {seed: last for seed, (_, last) in ends.items()}
            means = {"before": _mean(before.values()), "after": _mean(after.values())}
            found = _interval(difference_to(after, before, LEVEL))
            if len(after) == 1:  # then it is over held-out text
                one = single[arm, kind]
                found |= {"low": one["low"], "high": one["high"], "p": None}
                found |= {"n": one["units"], "over": f"{one['per']}s"}
            yield {"arm": arm, "kind": kind, "against": "before", **means, **found}
            other = runs.get((self.arms[0], kind))
            if arm != self.arms[0] and other is not None and self._read_alike(arm, kind):
                gap = difference_to(after, {seed: last for seed, (_, last) in other.items()}, LEVEL)
                yield {"arm": arm, "kind": kind, "against": self.arms[0], **_interval(gap)}

    def _read_alike(self, arm: str, kind: str) -> bool:
        """Return whether an arm and the first one were measured on the same held-out text.

        Of another tokenizer a block is another piece of it: then all of it has to be read.
        """
        texts = []
        for name in (arm, self.arms[0]):
            stage, left = next(found for found in self._of("pretrain") if name in found[0].arms)
            fraction = self.recipe.arms()[name].data.validation_fraction
            texts_read = left["result"].get("held", {}).get(kind)  # 0.1 kept none
            texts.append(((stage.needs["text"], fraction), texts_read))
        (ours, own), (theirs, other) = texts
        if own is None or other is None or own["digest"] == other["digest"]:
            return True
        return bool(ours == theirs and own["whole"] and other["whole"])

    def _scores(self) -> Iterator[Json]:
        """Yield every score of every model: held-out text, held-out answers, benchmarks."""
        for stage, left in self._of("evaluate"):
            labels = {"after": stage.after, "arms": list(stage.arms)}
            for kind, bits in left["result"]["bits"].items():
                yield {
                    **labels,
                    "title": f"{kind} text",
                    "kind": kind,
                    "unit": "bits per byte",
                    "score": bits["bits_per_byte"],
                    "error": bits["error"],
                    "n": bits["documents"],
                    "chance": None,
                }
            section = self.recipe.arms()[stage.arms[0]].evaluate
            domain = section.domain if section else ()
            for row in left["result"]["benchmarks"]:
                yield {
                    **labels,
                    "title": row["title"],
                    "kind": DOMAIN if row["benchmark"] in domain else GENERAL,
                    "unit": "score",
                    **_sound(row),
                    "chance": row.get("chance"),
                    "abstained": row.get("abstained"),
                    "too_long": (row.get("shots") or {}).get("unfit"),
                }

    def _samples(self) -> Iterator[Json]:
        for stage, left in self._of("evaluate"):
            for one in left["result"]["answers"]:
                yield {"after": stage.after, "arms": list(stage.arms), **one}

    def _list_left_out(self) -> Iterator[Json]:
        seen = set()
        for _, left in self._of("evaluate", "contamination"):
            for one in left["result"]["left_out"]:
                if (entry := (one["what"], one["why"])) not in seen:
                    seen.add(entry)
                    yield {"what": entry[0], "why": entry[1]}
        for stage, left in self._of("tune"):
            for name, source in left["result"]["sources"].items():
                for why, count in source["dropped"].items():
                    yield {
                        "what": f"{count} rows of {name} ({', '.join(stage.arms)})",
                        "why": why.removeprefix("left out: "),
                    }

    def _remarks(self) -> Iterator[str]:
        for name in dict.fromkeys(one.base.model for one in self.recipe.arms().values()):
            if name is not None:
                yield (
                    f"what the base {name} was trained on is not known here, as no recipe tells "
                    "it: it may have learned what is held out, whose loss then tells what was "
                    "memorized"
                )
        for one in self._each("clean", "sources"):
            yield from one["notes"]
        for found in self._results("contamination"):
            yield from found.get("notes", ())
        for stage, left in self._of("pretrain", "tune"):
            yield from (f"{stage.title(len(self.arms))}: {one}" for one in left["result"]["notes"])
        for stage, left in self._of("evaluate"):
            for kind, bits in left["result"]["bits"].items():
                if bits.get("loss"):  # 0.1 kept none
                    title = stage.title(len(self.arms))
                    yield f"{title}: {describe_loss(f'{kind} text', bits['loss'])}"
        ends = {
            (run["arm"], kind): None for run in self._list_pretrained() for kind in run["after"]
        }
        for arm, kind in ends:
            if (self.arms[0], kind) in ends and not self._read_alike(arm, kind):
                yield (
                    f"{arm} is not held against {self.arms[0]} on {kind} text: they were measured "
                    "on other text, or on other blocks of it; pretrain.max_eval_blocks = 0 reads "
                    "all"
                )
        if self.recipe.pretrain is not None and len(self.recipe.pretrain.seeds) > 1:
            yield (
                "continued pretraining ran with every seed; tuning and questions go on from the "
                f"first of them, {self.recipe.pretrain.seeds[0]}"
            )


def _sound(row: Mapping[str, Any]) -> Json:
    """Return the numbers of a score; of a model without finite logits only those of questions."""
    kept = ("n",) if row.get("lost") else SCORED
    return {name: row.get(name) if name in kept else None for name in SCORED}


def _placeless(value: Any) -> Any:
    """Return values without the path of the data folder; of a machine only a whole path tells."""
    if isinstance(value, str):
        folder = str(data_folder())
        pattern = rf"(?<![\w./-]){re.escape(folder)}(?![\w-]|\.\w)"
        absolute = data_folder().is_absolute() and folder != data_folder().anchor
        return re.sub(pattern, "LAYERLAB_DATA", value) if absolute else value
    if isinstance(value, Mapping):
        return {name: _placeless(one) for name, one in value.items()}
    return [_placeless(one) for one in value] if isinstance(value, list | tuple) else value


def _table(scores: Sequence[Json], arms: int) -> Json:
    """Return a table with a row for each score and a column for each model."""
    columns = list(dict.fromkeys(_column(one, arms) for one in scores))
    rows: dict[str, Json] = {}
    for one in scores:
        about = {name: one[name] for name in ("title", "kind", "unit", "chance")}
        row = rows.setdefault(one["title"], {**about, "cells": [None] * len(columns)})
        kept = {name: one[name] for name in (*SCORED, "too_long") if one.get(name) is not None}
        kept = {**dict.fromkeys(("score", "error", "n")), **kept}
        row["cells"][columns.index(_column(one, arms))] = kept
    return {"columns": columns, "rows": list(rows.values())}


def _column(score: Json, arms: int) -> str:
    own = "" if len(score["arms"]) == arms else f" ({', '.join(score['arms'])})"
    return f"{score['after']}{own}"


def _interval(found: Any) -> Json:
    kept = {name: getattr(found, name) for name in ("n", "low", "high", "p")}
    return {"value": found.mean, **kept, "over": "seeds"}


def _mean(values: Any) -> float:
    every = list(values)
    return sum(every) / len(every)
