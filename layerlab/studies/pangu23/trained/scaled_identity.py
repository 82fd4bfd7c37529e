"""The linear alternative of pangu23 trained: a shortcut of larger weight against two others.

Predicted: the larger weight loses to the plain Llama by more than the margin, and keeps tokens
apart.
"""

from layerlab.known_options import study_options
from layerlab.studies.engine.sampling import StudyContext
from layerlab.studies.engine.statistics import Interval, over_seeds, ratio_over_seeds, table
from layerlab.studies.engine.study import Outcome, Study, StudyVerdict
from layerlab.studies.engine.verdict import above
from layerlab.studies.support import small_models
from layerlab.studies.support.feature_statistics import DIMENSION, RESIDUAL

LARGER, AUGMENTED = "scaled-identity", "pangu-pi-no-siaf"
ARMS = (small_models.PLAIN, LARGER, AUGMENTED)
# Nats per token, as in the comparison pangu-pretrain-twin.
MARGIN = 0.02
# Of the features: more than this part of them has to differ between tokens where it did not.
APART = 0.02
EFFECT = 1.05


def run(context: StudyContext) -> Outcome:
    """Train, read, judge and draw."""
    parts, remarks = small_models.gather_arms(context, ARMS)
    return Outcome(
        verdicts=(
            judge_worse(parts),
            judge_prevents(parts),
            judge_wider(parts),
            judge_augmented(parts),
        ),
        frames={"layers": table(list(small_models.rows(parts)))},
        pictures=tuple(small_models.plot(parts, column) for column in (RESIDUAL, DIMENSION)),
        remarks=(
            *remarks,
            "The larger weight is 2, around attention; the source says of its own only that it is "
            "large, and of the linear form that it is trained. The weight costs no parameters. "
            "Before any training: scaled-identity.",
        ),
    )


def more(parts: small_models.Parts, ours: str, theirs: str) -> Interval:
    """Return by how many nats per token the loss of one arm exceeds that of the other."""
    return over_seeds(parts[ours]["nats"], parts[theirs]["nats"])


def judge_worse(parts: small_models.Parts) -> StudyVerdict:
    """Judge whether the larger weight hurts."""
    found = more(parts, LARGER, small_models.PLAIN)
    losses = ", ".join(f"{arm} {parts[arm]['nats'].mean():.3f}" for arm in ARMS)
    return StudyVerdict(
        claim=STUDY.claim,
        word=above(found, MARGIN, 0),
        number=found.value,
        said=f"it loses {found} nats per token more than the plain Llama "
        f"({len(parts[LARGER]['nats'])} seeds); more than {MARGIN:g} was asked for. Loss in nats: "
        f"{losses}",
    )


def judge_prevents(parts: small_models.Parts) -> StudyVerdict:
    """Judge whether tokens stay apart."""
    last = {arm: parts[arm]["layers"][:, -1, RESIDUAL] for arm in ARMS}
    found = over_seeds(last[LARGER], last[small_models.PLAIN])
    shares = ", ".join(f"{arm} {last[arm].mean():.3f}" for arm in ARMS)
    return StudyVerdict(
        claim="Trained, too, the larger weight keeps tokens further apart.",
        word=above(found, APART, 0),
        number=found.value,
        said=f"behind the last layer {found} more of the features differs between tokens than in "
        f"the plain Llama; more than {APART:g} was asked for. Shares: {shares}",
        source="pangu23, section 4.1",
    )


def judge_wider(parts: small_models.Parts) -> StudyVerdict:
    """Judge whether features use more directions."""
    means = {arm: parts[arm]["layers"][:, 1:, DIMENSION].mean(1) for arm in ARMS}
    found = ratio_over_seeds(means[LARGER], means[small_models.PLAIN])
    other = ratio_over_seeds(means[AUGMENTED], means[small_models.PLAIN])
    return StudyVerdict(
        claim="The effective dimension of its features is larger, in the mean over layers.",
        word=above(found, EFFECT, 1),
        number=found.value,
        said=f"d(0.8) is {found} times that of the plain Llama, and {other} times with the "
        f"augmented shortcut; above {EFFECT:g} was asked for",
        source="Own, on pangu23, section 4.1",
    )


def judge_augmented(parts: small_models.Parts) -> StudyVerdict:
    """Judge whether the nonlinear shortcut is the better remedy."""
    found = more(parts, LARGER, AUGMENTED)
    return StudyVerdict(
        claim="The augmented shortcut, which is nonlinear, trains better than the larger weight.",
        word=above(found, MARGIN, 0),
        number=found.value,
        said=f"the larger weight loses {found} nats per token more; more than {MARGIN:g} was asked "
        "for",
        source="pangu23, section 4.1",
    )


STUDY = Study(
    name="scaled-identity-trained",
    title="A shortcut of larger weight, trained",
    source="pangu23, section 4.1",
    claim="An identity shortcut of larger weight trains worse than the plain one.",
    cost="4 minutes",
    run=run,
    **small_models.DECLARED,
    **study_options("scaled-identity-trained"),
)
