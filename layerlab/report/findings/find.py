"""Readings turned into plain sentences, the gravest first.

The rules lie beside this file, one file per subject. None of them rests on a bound that says
nothing: a threshold is a published one, or our own and then called so.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import pandas as pd

from layerlab.records.json_values import json_values
from layerlab.report.findings import (
    ablation,
    attention,
    broken,
    collapse,
    induction,
    low_precision,
    matrices,
    near_threshold,
    rounding,
    stability,
)
from layerlab.report.findings.rule import SEVERITIES, Finding, Rule, RuleData, RuleHit, Severity
from layerlab.report.views.tables import tidy

__all__ = ["Finding", "RULES", "Severity", "exceeds", "find", "worst"]

RULES: tuple[Rule, ...] = (
    *broken.RULES,
    *rounding.RULES,
    *attention.RULES,
    *stability.RULES,
    *collapse.RULES,
    *low_precision.RULES,
    *induction.RULES,
    *ablation.RULES,
    *matrices.RULES,
)


def find(report: Mapping[str, Any], frames: Mapping[str, pd.DataFrame]) -> list[Finding]:
    """Find what the readings say, ranked by severity, then in the order of `RULES` and models.

    Args:
        report: the report's `models`, `measures` and `text`.
        frames: the readings by measure; each has the column `model`.
    """
    tables = {name: tidy(frame) for name, frame in frames.items()}
    models = [_readings(json_values(card), report, tables) for card in report["models"]]
    found = [
        _finding(rule, verdict, number, readings.card)
        for rule in RULES
        for number, readings in enumerate(models)
        for verdict in rule.judge(readings)
    ]
    spoken = {finding.model for finding in found}
    found += [
        _finding(near_threshold.RULE, verdict, number, readings.card)
        for number, readings in enumerate(models)
        if str(readings.card["name"]) not in spoken
        for verdict in near_threshold.RULE.judge(readings)
    ]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def worst(findings: Iterable[Finding]) -> Severity | None:
    """Return the gravest severity, or None where nothing was found."""
    present = {finding.severity for finding in findings}
    return next((severity for severity in SEVERITIES if severity in present), None)


def exceeds(findings: Iterable[Finding], limit: Literal["warning", "error"]) -> bool:
    """Return whether a finding is as grave as `limit`, or graver."""
    grave = SEVERITIES[: SEVERITIES.index(limit) + 1]
    return worst(findings) in grave


def _readings(
    card: Mapping[str, Any], report: Mapping[str, Any], frames: Mapping[str, pd.DataFrame]
) -> RuleData:
    own = {
        name: frame[frame["model"] == card["name"]] for name, frame in frames.items() if len(frame)
    }
    measures = {measure["name"]: measure for measure in report.get("measures", ())}
    return RuleData(card, own, measures, report.get("text", {}).get("sequences", ()))


def _finding(rule: Rule, verdict: RuleHit, number: int, card: Mapping[str, Any]) -> Finding:
    location, model = verdict.place, str(card["name"])
    return Finding(
        id="-".join(part for part in (rule.name, verdict.mark, str(number)) if part),
        severity=verdict.severity,
        model=model,
        measure=verdict.measure or rule.measure,
        column=verdict.column or rule.column,
        kind=verdict.kind,
        relative=verdict.relative or rule.relative,
        layer=location.layer,
        head=location.head,
        sequence=location.sequence,
        value=verdict.value,
        threshold=verdict.threshold,
        source=verdict.source or rule.source,
        sentence=verdict.sentence[:1].upper() + verdict.sentence[1:],
        advice=verdict.advice,
        detail=location.key(verdict.picture, model),
    )
