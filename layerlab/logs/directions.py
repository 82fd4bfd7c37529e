"""Directions of scores, higher or lower is better: as typed, or by words of the name."""

import re
from collections.abc import Iterator

from layerlab.errors import UserError
from layerlab.validation import short_repr

DIRECTIONS = {"lower": False, "higher": True}
# A name is split where its writer splits it: at signs, and where a capital begins a word.
_CHUNK = re.compile(r"[^\W_]+")
_CAMEL = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+\d*|[A-Z]+\d*|\d+")
_LOWER = """
loss losses logloss error errors err nats bits bpb bpc bpt perplexity perplexities ppl nll xent ce
bce crossentropy cross-entropy negative-log-likelihood neg-log-likelihood negative-log-prob
neg-log-prob kl kld divergence mse rmse mae mape smape msle rmsle nmse nrmse wer cer ter mer eer ece
mce brier brier-score deviance hinge regret cost distance levenshtein chamfer hausdorff fid kid
lpips fpr fnr false-positive false-positives false-negative false-negatives self-bleu selfbleu
attack-success jailbreak jailbreak-success toxicity hallucination hallucinations violation
violations risk latency runtime
"""
_HIGHER = """
acc accs accuracy accuracies exact-match exactmatch em f1 f2 f-1 fbeta f-beta fscore fmeasure
f-measure precision recall sensitivity specificity tpr tnr true-positive true-positives
true-negative true-negatives auc auroc auprc aucpr roc pr-auc ap map mrr ndcg dcg hit hits top pass
mc mcc matthews pearson pearsonr spearman spearmanr kendall kendalltau correlation corr kappa r2 r-2
r2score explained-variance iou miou dice jaccard bleu sacrebleu bleurt bertscore comet chrf
brier-skill brier-skill-score meteor rouge rougel rougelsum cider spice psnr ssim snr sdr pesq stoi
mos reward rewards return returns win wins winrate success solved resolved correct likelihood
loglikelihood log-likelihood loglik logprob log-prob elbo similarity elo helpfulness harmlessness
throughput per-second steps-per-second mfu
"""
# What these are of may be a score; they are none, and neither way is better.
_NEITHER = """
std stderr variance var rejected weight coef scale threshold drop drops dropped decrease decreases
decreased reduction reductions reduced degradation forgetting gain gains improvement improvements
improved saved skill gap delta diff difference change free miss misses missed fail fails failed
failure failures penalty penalties time times steps
"""
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(_LOWER.split(), False),
    **dict.fromkeys(_HIGHER.split(), True),
    **dict.fromkeys(_NEITHER.split()),
}
# Where words are of two minds, these at the end decide: an accuracy_loss is a loss.
_HEADS = {"loss", "losses", "error", "errors", "err"}
# More is better of a score of which nothing else is said.
_SCORES = {"score", "scores"}
_NEGATIONS = {"neg", "negative", "minus", "not", "non", "no", "inverse", "inv"}
_BEHIND = {"neg", "negative", "minus", "inverse", "inv"}  # of these, which turn what is before them
_ENDS = ("loss", "perplexity", "error")  # also of longer words: evalloss
# Before a score: what it took to come to it.
_UNTIL = {"to", "until"}
_LONGEST = 3  # words of the longest entry


def is_higher_better(name: str) -> bool | None:
    """Tell by its name whether more of a score is better; None where no word says it.

    Example:
        >>> [is_higher_better(one) for one in ("eval/accuracy", "evalLoss", "eval_brier_score")]
        [True, False, False]
        >>> [is_higher_better(one) for one in ("pass@1", "accuracy_loss", "neg_mse", "acc_stderr")]
        [True, False, None, None]
    """
    words = list(_split(name))
    found = list(_find(words))
    if not found:
        return True if _SCORES.intersection(words) else None
    if any(index and words[index - 1] in _UNTIL for index, _ in found):
        return None
    values = {_WORDS[entry] for _, entry in found}
    if len(values) > 1:
        return False if None not in values and found[-1][1] in _HEADS else None
    before = words[: found[0][0]]
    after = words[found[-1][0] + 1 + found[-1][1].count("-") :]
    # Of a negative accuracy less may be better, or it may be that of a class.
    turned = _NEGATIONS.intersection(before) or _BEHIND.intersection(after)
    return None if before == ["1"] or turned else values.pop()


def split_direction(given: str, option: str) -> tuple[str, bool | None]:
    """Return the name in NAME, NAME=lower or NAME=higher, and whether more is then better.

    Raises:
        UserError: it names nothing, or says something else.

    Example:
        >>> split_direction("latency=lower", "--loss"), split_direction("acc", "--metric")
        (('latency', False), ('acc', None))
    """
    name, sign, word = given.rpartition("=")
    if word in DIRECTIONS and sign and name:
        return name, DIRECTIONS[word]
    if not given or (sign and not name):
        raise UserError(
            f"{option} is {short_repr(given)}, which names nothing; expected NAME, NAME=lower or "
            "NAME=higher"
        )
    if sign and (not word or word.isalpha()):
        raise UserError(
            f"{option} says {short_repr(word)} of {name}; expected {name}=lower or {name}=higher"
        )
    return given, None


def _split(name: str) -> Iterator[str]:
    """Yield the words of a name, in lower case."""
    for chunk in _CHUNK.findall(name):
        lowered = chunk.lower()
        whole = {lowered, lowered.rstrip("0123456789")} & _WORDS.keys()
        if not whole and len(parts := _CAMEL.findall(chunk)) > 1:
            yield from (one.lower() for one in parts)
            continue
        end = next((one for one in _ENDS if lowered.endswith(one)), "")
        negated = end and lowered.removesuffix(end) in _NEGATIONS
        yield from (lowered.removesuffix(end), end) if negated else (lowered,)


def _find(words: list[str]) -> Iterator[tuple[int, str]]:
    """Yield the entries of the table in a name with their places, the longest at each."""
    index = 0
    while index < len(words):
        for count in range(_LONGEST, 0, -1):
            entry = _look_up("-".join(words[index : index + count]))
            if entry is not None:
                yield index, entry
                break
        index += count


def _look_up(word: str) -> str | None:
    """Return the entry of the table that a word is: also rouge1, top5 and evalloss."""
    for one in (word, word.rstrip("0123456789")):
        if one in _WORDS:
            return one
    if "-" in word:  # several: each is looked up by itself, too
        return None
    return next((one for one in _ENDS if word.endswith(one)), None)
