"""Cost of the augmented shortcut of pangu23 by exact count, beside its Tables 3 and 4."""

from itertools import pairwise

from layerlab.model.cost.cost import Account, account
from layerlab.model.design import design
from layerlab.studies.engine.pictures import Curve, curves
from layerlab.studies.engine.sampling import StudyContext
from layerlab.studies.engine.scale import COUNTED
from layerlab.studies.engine.statistics import table
from layerlab.studies.engine.study import Outcome, Study, StudyVerdict
from layerlab.studies.engine.verdict import decide
from layerlab.studies.pangu23.tables.series_cost import SIZE, excess

# Milliseconds, as printed for a bottleneck of the width over r.
PRINTED = {1: 8.66, 4: 8.06, 16: 7.96, 32: 7.66, 64: 7.62}
PLAIN, SERIES, BOTH = 7.56, 7.76, 7.86
CHOSEN = 32
# A printed number is off by half of its last digit.
DIGIT = 0.005
ShortcutRow = dict[str, float | int]


def count_costs(name: str, **options: object) -> Account:
    """Count the parameters of a variant at the shape of the source's 1B model."""
    found = design(name, preset=SIZE, options=options)
    return account(found.spec, found.shape)


def added_parameters(r: int, form: str = "bottleneck") -> int:
    """Count the parameters that a shortcut adds in all layers."""
    base = count_costs("llama").parameters
    return count_costs(f"as-{r}", form=form).parameters - base


def rows() -> list[ShortcutRow]:
    """Return the increase by a shortcut, in per cent, of weights read and of printed latency."""
    base = count_costs("llama")
    found: list[ShortcutRow] = []
    for r, milliseconds in PRINTED.items():
        more = added_parameters(r)
        found.append(
            {
                "r": r,
                "parameters": more,
                "of_blocks": 100 * more / base.blocks,
                "of_blocks_and_head": 100 * more / (base.blocks + base.head),
                "printed_latency": excess(milliseconds, PLAIN),
            }
        )
    return found


def run(context: StudyContext) -> Outcome:
    """Count, judge and draw."""
    found = rows()
    lines = [
        Curve(
            name=name,
            x=[1 / row["r"] for row in found],
            y=[float(row[column]) for row in found],
            kind=kind,
            style=style,
        )
        for kind, (name, column, style) in enumerate(
            (
                ("printed latency", "printed_latency", "solid"),
                ("weights, of the blocks", "of_blocks", "dash"),
                ("weights, of blocks and head", "of_blocks_and_head", "dot"),
            )
        )
    ]
    picture = curves(
        "widths",
        "Cost of the augmented shortcut at the 1B shape",
        lines,
        x="bottleneck, as a share of the width",
        y="per cent above no shortcut",
        log="xy",
    )
    return Outcome(
        verdicts=(judge_sixteen(), judge_by_weights(found), judge_slower(), judge_additive()),
        frames={"widths": table(found)},
        pictures=(picture,),
        remarks=(
            "Counts are exact and have no interval. The feed-forward width is not printed: here "
            "8/3 of the width, rounded up to 16.",
            "Decoding one token at a time reads every weight of blocks and head once, so its time "
            "is expected to grow with them; whether the source measured so is not said.",
        ),
    )


def judge_sixteen() -> StudyVerdict:
    """Judge the price of the bottleneck against that of a square matrix."""
    ratio = added_parameters(1, form="full") / added_parameters(CHOSEN)
    return StudyVerdict(
        claim=STUDY.claim,
        word=decide(holds=ratio == 16),
        number=ratio,
        said=f"a square matrix has {ratio:.4g} times the weights of a bottleneck of the width over "
        f"{CHOSEN}; the source's N d^2 FLOPs are multiplications with their additions counted as "
        "one",
    )


def judge_by_weights(found: list[ShortcutRow]) -> StudyVerdict:
    """Judge whether the printed latencies are those of the weights that the shapes add."""
    off: dict[int, float] = {}
    for row in found:
        # Both of the two numbers are rounded.
        rounding = 100 * DIGIT * 2 / PLAIN
        low, high = row["of_blocks_and_head"] - rounding, row["of_blocks"] + rounding
        printed = float(row["printed_latency"])
        if not low <= printed <= high:
            off[int(row["r"])] = printed / float(row["of_blocks"])
    worst = max(off, key=lambda r: off[r]) if off else CHOSEN
    number = off.get(worst, 1.0)
    numbers = ", ".join(
        f"{row['printed_latency']:.1f} % against {row['of_blocks_and_head']:.2f} to "
        f"{row['of_blocks']:.2f} % at 1/{row['r']}"
        for row in found
    )
    return StudyVerdict(
        claim="The latencies of the table follow from the weights that its shapes add.",
        word=decide(fails=bool(off)),
        number=number,
        said=f"printed against counted: {numbers}; the printed number is up to {number:.1f} times "
        "the counted one, so narrow shortcuts cost time that is not in their weights",
        source="Own, on the numbers of pangu23, Table 3",
    )


def judge_slower() -> StudyVerdict:
    """Judge what the text says of its table against the table itself."""
    times = [PRINTED[r] for r in sorted(PRINTED)]
    steps = [after - before for before, after in pairwise(times)]
    return StudyVerdict(
        claim="A larger reduction ratio lowers the speed.",
        word=decide(holds=min(steps) > 0, fails=max(steps) < 0),
        number=times[-1] / times[0],
        said=f"its table prints the opposite: every larger ratio is faster, from {times[0]} ms at "
        f"1 to {times[-1]} ms at {max(PRINTED)}",
        source="pangu23, section 5.1",
    )


def judge_additive() -> StudyVerdict:
    """Judge whether the two modules' latencies add up in the table of components."""
    apart = (SERIES - PLAIN) + (PRINTED[CHOSEN] - PLAIN) - (BOTH - PLAIN)
    return StudyVerdict(
        claim="Series activation and augmented shortcut together cost the sum of what each costs.",
        word=decide(holds=abs(apart) <= 4 * DIGIT),
        number=apart,
        said=f"printed {SERIES - PLAIN:.2f} ms and {PRINTED[CHOSEN] - PLAIN:.2f} ms apart, "
        f"{BOTH - PLAIN:.2f} ms together: {abs(apart):.2f} ms between them, and rounding explains "
        f"{4 * DIGIT:.2f}",
        source="Own, on the numbers of pangu23, Table 4",
    )


STUDY = Study(
    name="shortcut-cost",
    title="Cost of the augmented shortcut",
    source="pangu23, section 4.1 and Table 3",
    claim="A bottleneck of the width over 32 makes the augmented shortcut 16 times cheaper.",
    unit="exact count",
    run=run,
    **COUNTED,
)
