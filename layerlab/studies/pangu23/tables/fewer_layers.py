"""The 29 layers of PanGu-pi 7B instead of 32, by exact count: its modules, or its vocabulary."""

from layerlab.model.cost.cost import Account, account
from layerlab.model.design import design
from layerlab.studies.engine.pictures import Gap, gaps
from layerlab.studies.engine.sampling import StudyContext
from layerlab.studies.engine.scale import COUNTED
from layerlab.studies.engine.statistics import table
from layerlab.studies.engine.study import Outcome, Study, StudyVerdict
from layerlab.studies.engine.verdict import decide

OURS, THEIRS = "pangu-pi-7b", "llama-7b"
# Milliseconds per token, as printed.
LATENCY = {OURS: 43.00, THEIRS: 47.60}


def count_costs(name: str, preset: str, **sizes: int) -> Account:
    """Count the parameters of a variant at a published shape, with some sizes changed."""
    found = design(name, preset=preset, sizes=sizes)
    return account(found.spec, found.shape)


def accounting() -> dict[str, float]:
    """Return, in millions of parameters, where the 7B model and its baseline differ."""
    ours, plain = (count_costs(name, OURS) for name in ("pangu-pi", "llama"))
    shape = design(THEIRS).shape
    block = (
        count_costs("llama", THEIRS, layers=2).blocks
        - count_costs("llama", THEIRS, layers=1).blocks
    )
    small = count_costs("llama", OURS, vocab=shape.vocab)
    found = {
        "one block": block,
        "attention of one block": 4 * shape.width**2,
        "its modules": ours.parameters - plain.parameters,
        "its vocabulary": plain.parameters - small.parameters,
        "three blocks": 3 * block,
        "PanGu-pi 7B": ours.parameters,
        "Llama 7B": count_costs("llama", THEIRS).parameters,
    }
    return {name: number / 1e6 for name, number in found.items()}


def read_per_token(layers: int, vocab: int) -> float:
    """Count the weights of blocks and head that are read for each decoded token."""
    found = count_costs("llama", THEIRS, layers=layers, vocab=vocab)
    return float(found.blocks + found.head)


def run(context: StudyContext) -> Outcome:
    """Count, judge and draw."""
    found = accounting()
    block = found["one block"]
    bars = [
        Gap(name=name, middle=found[name] / block)
        for name in ("its modules", "its vocabulary", "three blocks")
    ]
    picture = gaps(
        "blocks",
        "What PanGu-pi 7B adds, and what three blocks weigh",
        bars,
        x="parameters, in blocks of Llama 7B",
    )
    rows = [{"what": name, "millions": number} for name, number in found.items()]
    return Outcome(
        verdicts=(judge_pays(found), judge_similar(found), judge_faster()),
        frames={"parameters": table(rows)},
        pictures=(picture,),
        remarks=(
            "Counts are exact and have no interval. Feed-forward width and whether the head is "
            "tied are not printed: here 11,008, as in Llama 7B, and an untied head.",
        ),
    )


def judge_pays(found: dict[str, float]) -> StudyVerdict:
    """Judge whether the modules' parameters explain the three layers that were given up."""
    worth = found["its modules"] / found["one block"]
    # A block has at least its attention, whatever the feed-forward is.
    most = found["its modules"] / found["attention of one block"]
    return StudyVerdict(
        claim=STUDY.claim,
        word=decide(fails=most < 1),
        number=worth,
        said=f"series and shortcut add {found['its modules']:.1f} million parameters, the weight "
        f"of {worth:.2f} blocks, and of {most:.2f} even where a block were its attention alone; "
        f"three were left out. The vocabulary of 100,883 in place of 32,000 adds "
        f"{found['its vocabulary']:.0f} million, {found['its vocabulary'] / found['one block']:.1f}"
        " blocks",
    )


def judge_similar(found: dict[str, float]) -> StudyVerdict:
    """Judge whether both models have the same number of parameters."""
    ratio = found["PanGu-pi 7B"] / found["Llama 7B"]
    return StudyVerdict(
        claim="PanGu-pi 7B has about as many parameters as Llama 7B.",
        word=decide(holds=abs(ratio - 1) < 0.01),
        number=ratio,
        said=f"{found['PanGu-pi 7B'] / 1e3:.3f} against {found['Llama 7B'] / 1e3:.3f} billion, a "
        f"ratio of {ratio:.4f}, with feed-forward and head as supposed here",
        source="pangu23, section 5",
    )


def judge_faster() -> StudyVerdict:
    """Judge whether the printed speed-up exceeds what layers and vocabularies explain."""
    printed = LATENCY[OURS] / LATENCY[THEIRS]
    vocab, theirs = (design(name).shape.vocab for name in (OURS, THEIRS))
    plain = read_per_token(32, theirs)
    own, equal = read_per_token(29, vocab) / plain, read_per_token(29, theirs) / plain
    return StudyVerdict(
        claim="PanGu-pi 7B decodes faster than Llama 7B by more than its missing layers explain.",
        word=decide(holds=False, fails=equal <= printed),
        number=printed,
        said=f"printed: {printed:.3f} of the time; 29 of 32 layers alone are {29 / 32:.3f}. By the "
        f"weights read for a token it would be {equal:.3f} if both had one vocabulary and "
        f"{own:.3f} with the printed ones, and the source does not say which its baseline had",
        source="pangu23, section 5.3",
    )


STUDY = Study(
    name="fewer-layers",
    title="Three layers for two modules",
    source="pangu23, section 5",
    claim="PanGu-pi has fewer layers than Llama because its modules bring parameters of their own.",
    unit="exact count",
    run=run,
    **COUNTED,
)
