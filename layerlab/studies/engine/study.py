"""Declarations of studies, and their outcomes.

A study is one file: a function `run` that takes the `StudyContext` at hand (settings, seeded draws,
batches that outlive an interruption) and gives an `Outcome`, and at the foot `STUDY = Study(...)`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from layerlab.known_options import KnownOptions, check_study
from layerlab.validation import Constraint

# `smaller than asked`: the difference has the claimed sign, and is surely below the threshold.
Word = Literal["holds", "smaller than asked", "fails", "not decided"]
# The unit of what nothing is drawn for: a proof, a counterexample, a count.
EXACT = "no draws: one exact case"


@dataclass(frozen=True, kw_only=True)
class StudyVerdict:
    """The verdict on one claim.

    Attributes:
        claim: one sentence that can be false.
        word: whether it holds.
        number: that decides it.
        said: one sentence with the number, its interval and what it is compared with.
        source: where it stands, if that is not the place the study names.
        unit: of replication, with its number: `3 seeds`, `100 passages of one text`; that of the
            study where it is left out.
        scale: the models that it was judged on, with parameters and training tokens; that of the
            study where it is left out.
        looked: whether its threshold or its number of draws was set after a first result.
        p: of a test of the claim, before any correction for others; None where an interval judges.
    """

    claim: str
    word: Word
    number: float
    said: str
    source: str = ""
    unit: str = ""
    scale: str = ""
    looked: bool = False
    p: float | None = None


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One plotly figure, as plain JSON values."""

    name: str
    title: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a study; the first verdict is about the claim of the study itself.

    Attributes:
        used: settings that were not what was asked for.
    """

    verdicts: tuple[StudyVerdict, ...]
    frames: Mapping[str, pd.DataFrame]
    pictures: tuple[Picture, ...]
    remarks: tuple[str, ...] = ()
    used: Mapping[str, Any] = field(default_factory=dict)


def claimant(source: str) -> str:
    """Return the author of a claim: a key of docs/sources.md, or Own.

    Example:
        >>> claimant("pangu23, Table 4"), claimant("Own, after dong21, section 3")
        ('pangu23', 'Own')
    """
    return re.split(r"[,; ]", source, maxsplit=1)[0]


def nothing(runs: Path) -> None:
    """Read nothing of earlier trainings, as most studies do."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """One figure, table or claim of a source, and how to repeat it.

    Attributes:
        source: a key of docs/sources.md, and the place.
        claim: of the source, in one sentence.
        cost: how long it takes with the draws of the source, in words.
        draws: of the source, or ours where it has none.
        unit: what one draw is: a random initialisation, a passage of text, a seed of training.
        run: computes, judges and draws.
        options: what a user may set, with what it is when nobody does.
        domains: which values an option takes.
        fast: draws and options that give the same verdict in seconds.
        fixed: whether the draws are what they are.
        most: draws that there are; 0 where there is no end of them.
        inputs: what the numbers depend on in the folder of training runs, as JSON values.
        models: the names of the trained models that it reads; the user may name others.
        roles: what each of them stands for, if it reads just so many.
        passage: tokens of the longest passage that it cuts from the text, or the option that says.
        attention: whether it looks at attention.
        layers: with attention that a model needs at least.
        few: draws of the fast mode on models of a user, which may be large; 0 where they are those
            of the fast mode.
        scale: the models that it judges, with parameters and training tokens; an option in
            braces stands for its value.
    """

    name: str
    title: str
    source: str
    claim: str
    cost: str
    draws: int
    run: Callable[[Any], Outcome]
    options: Mapping[str, Any] = field(default_factory=dict)
    domains: Mapping[str, Constraint] = field(default_factory=dict)
    unit: str = "random initialisations"
    fast: Mapping[str, Any] = field(default_factory=dict)
    fixed: bool = False
    most: int = 0
    inputs: Callable[[Path], Any] = nothing
    models: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    passage: int | str = 0
    attention: bool = False
    layers: int = 1
    few: int = 0
    scale: str = ""

    @property
    def key(self) -> str:
        """Return the key of the study's source in docs/sources.md, or Own."""
        return claimant(self.source)

    @property
    def known_options(self) -> KnownOptions:
        """Return what each option is when nobody sets it, and which values it takes."""
        return {name: (usual, self.domains.get(name)) for name, usual in self.options.items()}

    def settled(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options, updated with the given values.

        Raises:
            UserError: an unknown option, or a value that it does not take.
        """
        check_study(self.name, given, self.known_options)
        # A whole number stands for a float, and is the same setting as that float.
        floats = {name for name, value in self.options.items() if isinstance(value, float)}
        return {
            **self.options,
            **{name: float(value) if name in floats else value for name, value in given.items()},
        }
