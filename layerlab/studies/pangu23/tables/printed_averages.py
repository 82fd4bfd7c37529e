"""Averages that pangu23 prints, recomputed from the cells that it prints beside them."""

from layerlab.evaluation.results.published import PublishedTable, tables
from layerlab.studies.engine.pictures import Gap, gaps
from layerlab.studies.engine.sampling import StudyContext
from layerlab.studies.engine.scale import COUNTED
from layerlab.studies.engine.statistics import table
from layerlab.studies.engine.study import Outcome, Study, StudyVerdict
from layerlab.studies.engine.verdict import decide

# Half of the last printed digit of every cell, and of the average; one that is cut off loses a
# whole digit.
CELL, AVERAGE = 0.005, 0.01
PrintedRow = dict[str, str | int | float]


def rows() -> list[PrintedRow]:
    """Return every average as printed and as recomputed from its cells."""
    return [one for found in tables().values() for one in averages(found)]


def averages(found: PublishedTable) -> list[PrintedRow]:
    """Return the averages of one table."""
    return [
        {
            "table": found.number,
            "model": model,
            "printed": found.printed_average(model),
            "recomputed": found.recompute_average(model).mean.value,
            "difference": found.printed_average(model) - found.recompute_average(model).mean.value,
        }
        for model in found.rows
    ]


def same(row: PrintedRow) -> bool:
    """Return whether both averages agree to two decimals."""
    return f"{row['printed']:.2f}" == f"{row['recomputed']:.2f}"


def beyond(row: PrintedRow) -> bool:
    """Return whether no rounding explains the difference."""
    return abs(float(row["difference"])) >= CELL + AVERAGE


def is_ranked(found: PublishedTable) -> bool:
    """Return whether the models stand in the same order by both averages."""
    printed = sorted(found.rows, key=found.printed_average)
    return printed == sorted(
        found.rows, key=lambda model: found.recompute_average(model).mean.value
    )


def run(context: StudyContext) -> Outcome:
    """Compute, judge and draw."""
    every = rows()
    largest = [
        Gap(name=f"{row['model']}, Table {row['table']}", middle=float(row["difference"]))
        for row in sorted(every, key=lambda row: -abs(float(row["difference"])))[:12]
    ]
    picture = gaps(
        "differences",
        "Printed averages less those of the printed cells (the 12 largest of 36)",
        largest,
        x="points of a per cent",
    )
    return Outcome(
        verdicts=(judge_follow(every), judge_order()),
        frames={"averages": table(every)},
        pictures=(picture,),
        remarks=(
            "Arithmetic on printed numbers, without an interval: no model is run. A digit that "
            "was lost between the paper and the text that was read looks like a slip of the paper.",
        ),
    )


def judge_follow(every: list[PrintedRow]) -> StudyVerdict:
    """Judge whether the printed averages follow from their cells."""
    off = [row for row in every if not same(row)]
    slips = [row for row in off if beyond(row)]
    named = ", ".join(
        f"{row['model']} in Table {row['table']} ({row['printed']:.2f}, by its cells "
        f"{row['recomputed']:.2f})"
        for row in slips
    )
    return StudyVerdict(
        claim=STUDY.claim,
        word=decide(fails=bool(slips)),
        number=len(slips),
        said=f"{len(every) - len(off)} of {len(every)} agree to the last digit, "
        f"{len(off) - len(slips)} differ by rounding; {len(slips)} differ by more: {named}",
    )


def judge_order() -> StudyVerdict:
    """Judge whether the slips change the order of the models."""
    changed = [found.number for found in tables().values() if not is_ranked(found)]
    return StudyVerdict(
        claim="The order of the models is that of the averages that the cells give.",
        word=decide(fails=bool(changed)),
        number=len(changed),
        said=f"the order changes in {len(changed)} of {len(tables())} tables: the slips matter to "
        "nobody's rank"
        if not changed
        else f"the order changes in tables {changed}",
        source="Own, on the numbers of pangu23, Tables 5, 6, 8, 9 and 10",
    )


STUDY = Study(
    name="printed-averages",
    title="Averages as printed",
    source="pangu23, Tables 5, 6, 8, 9 and 10",
    claim="Every printed average follows from the cells beside it.",
    unit="reading of the tables",
    run=run,
    **COUNTED,
)
