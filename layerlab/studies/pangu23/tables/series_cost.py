"""Cost of terms of the series activation of pangu23 by exact count, beside its Table 2."""

from typing import Any

from layerlab.model.cost.cost import Account, account
from layerlab.model.design import design
from layerlab.studies.engine.pictures import Curve, curves
from layerlab.studies.engine.sampling import StudyContext
from layerlab.studies.engine.scale import COUNTED
from layerlab.studies.engine.statistics import table
from layerlab.studies.engine.study import Outcome, Study, StudyVerdict
from layerlab.studies.engine.verdict import decide

SIZE = "pangu-pi-1b"
# Milliseconds, as printed for n terms.
PRINTED = {1: 7.56, 2: 7.76, 3: 8.02, 4: 8.35}
# What nobody would notice, in per cent.
LITTLE = 1.0
CHOSEN = 2
CostRow = dict[str, Any]


def count_costs(n: int, form: str) -> Account:
    """Count the source's 1B model with a series of n terms and no augmented shortcut."""
    options = {} if n == 1 else {"form": form}
    found = design(f"siaf-{n}", preset=SIZE, options=options)
    return account(found.spec, found.shape)


def excess(value: float, base: float) -> float:
    """Return by how many per cent a value is above its base.

    Example:
        >>> excess(3, 2)
        50.0
    """
    return 100 * (value / base - 1)


def rows(form: str) -> list[CostRow]:
    """Return the increase over one term, in per cent, of counts and of the printed latency."""
    base = count_costs(1, form)
    found: list[CostRow] = []
    for n, milliseconds in PRINTED.items():
        own = count_costs(n, form)
        found.append(
            {
                "form": form,
                "n": n,
                "parameters": excess(own.parameters, base.parameters),
                "products": excess(own.forward, base.forward),
                "operations": excess(own.forward + own.pointwise, base.forward + base.pointwise),
                "printed_latency": excess(milliseconds, PRINTED[1]),
            }
        )
    return found


def run(context: StudyContext) -> Outcome:
    """Count, judge and draw."""
    every = {form: rows(form) for form in ("affine-in", "multi-projection")}
    lines = [
        Curve(
            name=name,
            x=list(PRINTED),
            y=[float(row[column]) for row in every[form]],
            kind=kind,
            style=style,
        )
        for kind, (name, form, column, style) in enumerate(
            (
                ("printed latency", "affine-in", "printed_latency", "solid"),
                ("operations, scales and shifts", "affine-in", "operations", "dash"),
                ("parameters, scales and shifts", "affine-in", "parameters", "dot"),
                ("operations, a matrix per term", "multi-projection", "operations", "dashdot"),
            )
        )
    ]
    picture = curves(
        "terms",
        "Cost of further terms at the 1B shape",
        lines,
        x="terms of the series",
        y="per cent above one term",
        log="",
    )
    return Outcome(
        verdicts=(judge_ignored(every), judge_matrices(every), judge_steady()),
        frames={"terms": table([row for found in every.values() for row in found])},
        pictures=(picture,),
        remarks=(
            "Counts are exact and have no interval. The feed-forward width is not printed: here "
            "8/3 of the width, rounded up to 16. Element-wise operations are an estimate of ours.",
            "What the printed milliseconds were measured on, and how often, is not said; they are "
            "taken as printed.",
        ),
    )


def judge_ignored(every: dict[str, list[CostRow]]) -> StudyVerdict:
    """Judge whether the cost of two terms, as counted, can be ignored."""
    two = every["affine-in"][CHOSEN - 1]
    largest = max(float(two["parameters"]), float(two["operations"]))
    return StudyVerdict(
        claim=STUDY.claim,
        word=decide(holds=largest < LITTLE),
        number=float(two["operations"]),
        said=f"two terms of scales and shifts add {two['parameters']:.3f} % of the parameters, "
        f"{two['products']:.3g} % of the matrix products and {two['operations']:.3f} % of all "
        f"operations; less than {LITTLE:g} % was asked for. The source prints "
        f"{two['printed_latency']:.1f} % of latency: element-wise work costs more time than its "
        "count",
    )


def judge_matrices(every: dict[str, list[CostRow]]) -> StudyVerdict:
    """Judge whether two terms are as cheap where every term has its own matrix."""
    two = every["multi-projection"][CHOSEN - 1]
    least = min(float(two["parameters"]), float(two["operations"]))
    printed = float(two["printed_latency"])
    return StudyVerdict(
        claim="It can be ignored with a matrix for every term, too, as in equation 9.",
        word=decide(fails=least > LITTLE),
        number=float(two["operations"]),
        said=f"a second matrix adds {two['parameters']:.1f} % of the parameters and "
        f"{two['operations']:.1f} % of the operations, {float(two['operations']) / printed:.1f} "
        f"times the printed latency of {printed:.1f} %: the table was not made with it",
        source="pangu23, equation 9 and Table 2",
    )


def judge_steady() -> StudyVerdict:
    """Judge whether each further term costs the same time, as counts predict."""
    steps = [PRINTED[n + 1] - PRINTED[n] for n in (1, 2, 3)]
    # Two numbers rounded to 0.01 put an error of 0.01 on each step, and 0.02 between two.
    apart = max(steps) - min(steps)
    return StudyVerdict(
        claim="Each further term costs the same.",
        word=decide(fails=apart > 0.02 + 1e-9),
        number=max(steps) / min(steps),
        said="counted it does; the printed latency grows by "
        + ", ".join(f"{step:.2f}" for step in steps)
        + f" ms, {max(steps) / min(steps):.2f} times as much for the last as for the first",
        source="Own, on the numbers of pangu23, Table 2",
    )


STUDY = Study(
    name="series-cost",
    title="Cost of the series activation",
    source="pangu23, abstract and Table 2",
    claim="What the series activation adds to the calculations can be ignored.",
    unit="exact count",
    run=run,
    **COUNTED,
)
