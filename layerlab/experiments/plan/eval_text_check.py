"""Checks that arms with their own text or tokenizer are evaluated on the same text."""

from collections.abc import Iterable, Mapping

from layerlab.corpus.batches import EvalBlocks
from layerlab.corpus.corpus import Corpus
from layerlab.errors import UserError
from layerlab.training.run_spec import RunSpec


def check_same_eval_text(runs: Iterable[RunSpec], corpora: Mapping[str, Corpus]) -> None:
    """Refuse arms that would be judged on different parts of the held-out text.

    All of it is the same text under every tokenizer. So many blocks of it are not: a block is a
    number of tokens.

    Args:
        corpora: of the arms, by name.

    Raises:
        UserError: arms cut the text into other blocks, and `max_eval_blocks` takes a part of them.
    """
    leads = {run.arm: run for run in runs}
    if len({(corpora[arm].digest, run.recipe.data.block_size) for arm, run in leads.items()}) == 1:
        return
    part = {
        arm: _hold(run, corpora[arm], run.recipe.evaluate.max_eval_blocks)
        for arm, run in leads.items()
    }
    whole = {arm: len(_hold(run, corpora[arm])) for arm, run in leads.items()}
    cut = [arm for arm in leads if len(part[arm]) < whole[arm]]
    if cut and len({held.digest for held in part.values()}) > 1:
        limit, most = leads[cut[0]].recipe.evaluate.max_eval_blocks, max(whole.values())
        raise UserError(
            f"arms cut the held-out text into other blocks, and evaluate.max_eval_blocks = {limit} "
            "would judge each on another part of it; leave it out, or write as many as there are: "
            f"evaluate.max_eval_blocks = {most}"
        )


def _hold(run: RunSpec, corpus: Corpus, limit: int | None = None) -> EvalBlocks:
    return EvalBlocks(corpus, run.recipe.data.block_size or 1, limit)
