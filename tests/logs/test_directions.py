"""Which way a score is better: known by whole words of its name, typed, and never guessed."""

from collections.abc import Callable
from pathlib import Path

import pytest

import layerlab
from layerlab import UserError
from layerlab.logs.directions import is_higher_better, split_direction
from tests.support.refused import refuses

HIGHER = (
    "eval_rougeL eval_rougeLsum matthews_correlation spearmanr pearson mcc pass@1 top1 top_5 em "
    "chrf chrf++ chrF ndcg@10 win_rate psnr ssim log_likelihood eval/accuracy evalAcc F1Score R^2 "
    "exact_match roc_auc eval_bleu meteor hits@10 mAP rewards/margins tokens_per_second "
    "explained_variance true_negatives rouge-1.f1 score own_score train_steps_per_second "
    "text_to_image_recall accuracy_no_cot"
).split()
LOWER = (
    "loss eval_loss val/loss trainLoss MSELoss evalloss nats bits_per_byte eval_brier_score ece "
    "brier wer CER word_perplexity eval_ppl nll neg_log_likelihood negative-log-likelihood "
    "mean_squared_error rmse mae false_positive_rate top_1_error accuracy_loss error_score "
    "kl_divergence latency seq_to_seq_loss loss_no_pad false_negative_rate validLoss2"
).split()
UNTOLD = (
    "own grad_norm acc_stderr reward_std rewards/rejected neg_mean_squared_error negative_f1 "
    "1-accuracy reward/kl inaccuracy mirror loss_scale embedding terms "
    "steps_to_success success_time time_to_success success_steps tokens_to_accuracy accuracy_drop "
    "f1_decrease bleu_drop not_solved pass_failures reward_penalty accuracy_degradation no_error "
    "loss_improvement error_reduction nll_gain toxicity_free non_toxicity inverse_accuracy "
    "neg_loss acc_forgetting accuracy_gap epochs_until_success NegLoss negloss val_loss_inverse "
    "perplexity_inv logloss_skill acc_negative"
).split()
SIDES = {True: HIGHER, False: LOWER, None: UNTOLD}


@pytest.mark.parametrize(
    ("name", "better"), [(name, side) for side, names in SIDES.items() for name in names]
)
def test_words_of_a_name_say_which_way_it_is_better(name, better):
    assert is_higher_better(name) is better


@pytest.mark.parametrize("given", ["=lower", "=", "", "=higher"])
def test_a_direction_of_nothing_is_refused(given, tmp_path):
    with pytest.raises(UserError, match=rf"--metric is '{given}', which names nothing; expected N"):
        split_direction(given, "--metric")
    with pytest.raises(UserError, match=r"loss is .*, which names nothing; expected NAME, NAME=l"):
        layerlab.create_ledger(tmp_path / "own", baseline="a", loss=given)


def test_a_sign_inside_a_name_is_of_the_name():
    assert split_direction("lr=0.1/eval_loss", "--loss") == ("lr=0.1/eval_loss", None)
    assert split_direction("lr=0.1/own=lower", "--loss") == ("lr=0.1/own", False)
    with pytest.raises(UserError, match=r"--loss says 'less' of own; expected own=lower or own=hi"):
        split_direction("own=less", "--loss")


@pytest.fixture
def logs(tmp_path: Path) -> Callable[..., Path]:
    """Write runs of two arms, of which b has more of a column."""

    def write(column: str, **beside: float) -> Path:
        rows = [",".join(("arm", "seed", "step", column, *beside))]
        for seed in range(5):
            for arm, more in (("a", 0), ("b", 0.1 + seed / 1000)):
                values = (seed, 9, 0.5 + seed / 99 + more, *beside.values())
                rows.append(",".join(map(str, (arm, *values))))
        (tmp_path / "log.csv").write_text("\n".join(rows))
        return tmp_path / "log.csv"

    return write


@pytest.mark.parametrize(
    ("column", "word"),
    [("eval_rougeL", "better"), ("matthews_correlation", "better"), ("brier_score", "worse")],
)
def test_logs_are_judged_the_way_that_their_column_is_better(logs, column, word):
    """Named, and where it alone may be meant."""
    for given in (column, None):
        found = layerlab.judge(logs(column), loss=given)
        assert found.rows[1]["verdict"] == word
    with pytest.raises(UserError, match="has no column with a usual name for a loss; type loss="):
        layerlab.judge(logs(column, tokens_seen=3.0))
    refuses("has no column with a usual name for a loss; type loss=", layerlab.judge, logs("own"))


def test_what_no_word_tells_is_asked_for(logs):
    table = logs("own")
    with pytest.raises(UserError, match=r"more of 'own' .* type loss='own=lower' or loss='own=h"):
        layerlab.judge(table, loss="own")
    words = {
        direction: layerlab.judge(table, loss=f"own={direction}").rows[1]["verdict"]
        for direction in ("lower", "higher")
    }
    assert words == {"lower": "worse", "higher": "better"}
    table = logs("eval_accuracy")
    assert layerlab.judge(table, loss="eval_accuracy=lower").rows[1]["verdict"] == "worse"
