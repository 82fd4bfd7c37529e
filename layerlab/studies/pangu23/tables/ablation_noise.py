"""Differences in the ablation of pangu23 beside the chance of its questions."""

from dataclasses import dataclass
from math import sqrt

from layerlab.studies.engine.pictures import gap, gaps
from layerlab.studies.engine.sampling import StudyContext
from layerlab.studies.engine.scale import COUNTED
from layerlab.studies.engine.statistics import Interval, table
from layerlab.studies.engine.study import Outcome, Picture, Study, StudyVerdict, Word
from layerlab.studies.engine.verdict import above, combine

# Questions of C-Eval; the source does not say which of the two splits it took.
SPLITS = {"validation": 1346, "test": 12_342}
# 95 % of a normal distribution.
WIDE = 1.959964


@dataclass(frozen=True, kw_only=True)
class Contest:
    """Two printed accuracies, per cent, of which the source prefers the first."""

    name: str
    better: float
    worse: float
    source: str

    @property
    def difference(self) -> float:
        return self.better - self.worse

    def interval(self, questions: int) -> Interval:
        """Return the difference with the interval that chance makes of so many questions."""
        error = sqrt(sum(one * (100 - one) / questions for one in (self.better, self.worse)))
        return Interval(
            self.difference, self.difference - WIDE * error, self.difference + WIDE * error
        )


BOTH = Contest(name="both modules against none", better=37.9, worse=35.0, source="pangu23, Table 4")
SERIES = Contest(name="two terms against one", better=36.9, worse=35.0, source="pangu23, Table 2")
SHORTCUT = Contest(
    name="shortcut of 1/32 against none", better=36.3, worse=35.0, source="pangu23, Table 3"
)
WIDENET = Contest(
    name="both modules against WideNet", better=37.9, worse=36.5, source="pangu23, Table 4"
)
CONTESTS = (
    BOTH,
    SERIES,
    SHORTCUT,
    WIDENET,
    Contest(name="three terms against two", better=37.0, worse=36.9, source="pangu23, Table 2"),
    Contest(
        name="shortcut of 1/4 against 1/32", better=36.7, worse=36.3, source="pangu23, Table 3"
    ),
    Contest(
        name="shortcut of 1/32 against 1/64", better=36.3, worse=35.5, source="pangu23, Table 3"
    ),
)


def word(found: Contest) -> Word:
    """Combine the verdicts of both splits, as the source does not say which one it took."""
    return combine(above(found.interval(questions), 0) for questions in SPLITS.values())


def run(context: StudyContext) -> Outcome:
    """Compute, judge and draw."""
    rows = [
        {
            "contest": one.name,
            "split": split,
            "questions": questions,
            "difference": found.value,
            "low": found.low,
            "high": found.high,
        }
        for one in CONTESTS
        for split, questions in SPLITS.items()
        for found in [one.interval(questions)]
    ]
    return Outcome(
        verdicts=(
            judge(BOTH, STUDY.claim),
            judge(SERIES, "A series of two terms is more accurate than the plain activation."),
            judge(SHORTCUT, "An augmented shortcut of the width over 32 raises accuracy."),
            judge(WIDENET, "Both modules together are more accurate than WideNet."),
        ),
        frames={"contests": table(rows)},
        pictures=(plot(),),
        remarks=(
            "Intervals are those of independent questions, two proportions, unpaired: two models "
            "that answer the same questions differ by less chance than that, and the answers are "
            "not printed.",
            "Every model was trained once. What another seed would change comes on top, and is "
            "not printed either.",
        ),
    )


def judge(found: Contest, claim: str) -> StudyVerdict:
    """Judge one difference against chance."""
    values = ", ".join(
        f"{found.interval(questions)} if it was the {split} split of {questions:,} questions"
        for split, questions in SPLITS.items()
    )
    return StudyVerdict(
        claim=claim,
        word=word(found),
        number=found.difference,
        said=f"{found.better:g} against {found.worse:g} %: {values}; the source does not say which",
        source="" if claim == STUDY.claim else found.source,
        unit="questions; each model was trained once",
    )


def plot() -> Picture:
    """Plot every contest with the intervals of both splits."""
    rows = []
    for one in CONTESTS:
        for split, questions in SPLITS.items():
            found = one.interval(questions)
            name = f"{one.name}, {split}"
            rows.append(gap(name, found))
    return gaps(
        "contests",
        "Printed differences on C-Eval, with 95 % of the chance of its questions",
        rows,
        x="points of a per cent",
    )


STUDY = Study(
    name="ablation-noise",
    title="The ablation against chance",
    source="pangu23, Tables 2 to 4",
    claim="Series activation and augmented shortcut together raise accuracy on C-Eval.",
    unit="reading of the tables",
    run=run,
    **COUNTED,
)
