"""The report of models that were inspected."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from os import PathLike
from typing import Any

import pandas as pd
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from layerlab.loading.text_input import TextInput
from layerlab.measures.drilldown import Wanted
from layerlab.measures.measure import Measure
from layerlab.measures.readings import Readings
from layerlab.report.findings.find import find
from layerlab.report.results.report import SCHEMA, Report
from layerlab.report.results.source_notes import notes
from layerlab.report.results.text_remarks import describe_text
from layerlab.system.untrusted.trust import granted_options
from layerlab.version import VERSION

Model = str | PathLike[str] | PreTrainedModel
LIBRARIES = ("torch", "transformers", "accelerate", "numpy", "pandas", "safetensors", "tokenizers")


@dataclass(frozen=True, kw_only=True)
class InspectionRequest:
    """An inspection that is ready to run: everything the user gave, checked.

    Attributes:
        named: whether the user named the measures.
    """

    models: Sequence[Model]
    passage: TextInput
    measures: Sequence[Measure]
    named: bool = False
    tokenizer: PreTrainedTokenizerBase | None = None
    device: str | None = None
    dtype: str | None = None
    load: Sequence[str] = ()


@dataclass
class InspectedModel:
    """The contribution of one model to a report."""

    card: dict[str, Any]
    found: Readings
    text: list[dict[str, Any]]
    tokens: str | None  # a hash of what it has read
    details: dict[Wanted, dict[str, Any]] = field(default_factory=dict)

    def find_wanted(self, measures: Sequence[Measure]) -> set[Wanted]:
        """Return what its findings ask to be looked at again, in detail."""
        head = {"models": [self.card], "measures": _declare([self], measures), "text": {}}
        found = find(head, _frames([self], measures))
        return {finding.wanted for finding in found if finding.wanted is not None}


def make_report(parts: Sequence[InspectedModel], job: InspectionRequest) -> Report:
    """Return the report of the models side by side."""
    job = replace(job, measures=_leave_out(parts, job))
    frames = _frames(parts, job.measures)
    head = _head(parts, job)
    findings = find(head, frames)
    pictures = {request: view for part in parts for request, view in part.details.items()}
    content = {
        **head,
        "findings": [finding.to_dict() for finding in findings],
        "details": {
            finding.detail: pictures[finding.wanted]
            for finding in findings
            if finding.detail is not None and finding.wanted in pictures
        },
        "notes": notes(frames, head["models"]),
        "pictures": _pictures(parts, job.measures),
    }
    return Report(content, frames)


def _leave_out(parts: Sequence[InspectedModel], job: InspectionRequest) -> list[Measure]:
    """Return the measures without those of modules that none of the models has, if not named."""
    return [
        one
        for one in job.measures
        if job.named or not one.rare or any(one.name not in part.found.refused for part in parts)
    ]


def _frames(
    parts: Sequence[InspectedModel], measures: Sequence[Measure]
) -> dict[str, pd.DataFrame]:
    """Return one table per measure: model, the columns that name a row, the readings."""
    frames = {}
    for measure in measures:
        rows = [
            {"model": part.card["name"], **row}
            for part in parts
            for row in part.found.rows.get(measure.name, ())
        ]
        columns = ["model", *measure.per, *measure.columns]
        frames[measure.name] = pd.DataFrame(rows, columns=columns)
    return frames


def _declare(parts: Sequence[InspectedModel], measures: Sequence[Measure]) -> list[dict[str, Any]]:
    """Return the measures as a report knows them: without functions, with what did not apply."""
    entries = []
    for measure in measures:
        refused = [
            {"model": part.card["name"], "reason": part.found.refused[measure.name]}
            for part in parts
            if measure.name in part.found.refused
        ]
        remarks = [
            note if note.startswith(f"{part.card['name']}: ") else f"{part.card['name']}: {note}"
            for part in parts
            for note in part.found.notes.get(measure.name, ())
        ]
        entries.append(
            {
                **{
                    name: getattr(measure, name)
                    for name in ("name", "title", "unit", "source", "about", "equation", "better")
                },
                "per": list(measure.per),
                "columns": dict(measure.columns),
                "plot": list(measure.plot),
                "roles": dict(measure.roles),
                "typed": list(measure.typed),
                "options": dict(measure.options),
                "bounds": [vars(bound) for bound in measure.bound],
                "limits": list(measure.limits),
                "band": None if measure.band is None else vars(measure.band),
                "not_applicable": refused,
                "notes": remarks,
            }
        )
    return entries


def _pictures(parts: Sequence[InspectedModel], measures: Sequence[Measure]) -> dict[str, Any]:
    """Return the pictures of measures, by measure, then by model."""
    found = {
        measure.name: {
            part.card["name"]: part.found.pictures[measure.name]
            for part in parts
            if measure.name in part.found.pictures
        }
        for measure in measures
    }
    return {name: pictures for name, pictures in found.items() if pictures}


def _head(parts: Sequence[InspectedModel], job: InspectionRequest) -> dict[str, Any]:
    """Return all but the tables and what follows from them: enough to repeat the inspection."""
    readers = [part for part in parts if part.card["loss_nats"] is not None]
    return {
        "schema": SCHEMA,
        "layerlab": VERSION,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "options": {
            "models": [part.card["source"] for part in parts],
            "text": job.passage.source,
            "samples": job.passage.samples,
            "context": job.passage.context,
            "measures": {measure.name: dict(measure.options) for measure in job.measures},
            "device": job.device,
            "dtype": job.dtype,
            "load": list(job.load) or None,
            **granted_options(),
        },
        "versions": {
            "python": platform.python_version(),
            **{library: version(library) for library in LIBRARIES},
        },
        "machine": {"system": platform.platform(), "threads": torch.get_num_threads()},
        "models": [part.card for part in parts],
        "text": {
            "source": job.passage.source,
            "hash": job.passage.hash,
            "hashed": job.passage.hash_source,
            "sequences": parts[0].text,
            "remarks": describe_text(
                [part.tokens for part in readers],
                fewest=min((len(part.text) for part in readers), default=0),
                samples=job.passage.samples,
            ),
        },
        "measures": _declare(parts, job.measures),
    }
