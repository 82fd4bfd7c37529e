"""A vocabulary cut down to what a text needs, after PanGu-π Pro: rows of the embedding go with it.

Special tokens and bytes stay, and of the others the most frequent. Unlike the source, which takes
pieces out of a list, a token is only kept together with those that it is merged from: without them
nothing would ever make it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from tokenizers import pre_tokenizers
from transformers import PreTrainedTokenizerFast

from layerlab.errors import UserError
from layerlab.tokenization.bpe_file import BpeFile, Merge, is_byte, read_bpe, rebuild
from layerlab.tokenization.compression import batches
from layerlab.tokenization.load import engine
from layerlab.tokenization.spm.model_file import SPACE


@dataclass(frozen=True)
class PrunedTokenizer:
    """A smaller tokenizer, and what is left of the old one.

    Attributes:
        tokenizer: the smaller one.
        kept: of every new id, in order, the old one.
        fixed: tokens that stay whatever the text.
        coverage: share of the text's tokens, as the old tokenizer cuts it, that are kept.
    """

    tokenizer: PreTrainedTokenizerFast
    kept: tuple[int, ...]
    fixed: int
    coverage: float


def prune(tokenizer: PreTrainedTokenizerFast, texts: Iterable[str], size: int) -> PrunedTokenizer:
    """Cut a tokenizer down to the entries that texts use most; decoding still gives the text back.

    Args:
        texts: of all that the model is for, read once and not kept.
        size: entries that are left.

    Raises:
        UserError: it is of a kind that cannot be pruned, or `size` is none that it can have.

    Source: tang24.

    Example:
        >>> from layerlab.tokenization.load import train_tokenizer
        >>> base = train_tokenizer(["an ant and an aunt", "no one and none"], 270)
        >>> small = prune(base, ["an ant and an aunt"], 262)
        >>> ids = small.tokenizer("an ant! none")["input_ids"]
        >>> len(small.tokenizer), small.tokenizer.decode(ids)
        (262, 'an ant! none')
    """
    found = read_bpe(tokenizer)
    fixed = _fix(found)
    if not len(fixed) <= size < len(found.vocab):
        raise UserError(
            f"cannot prune a vocabulary of {len(found.vocab):,} entries to {size:,}; expected "
            f"fewer, and at least the {len(fixed):,} special tokens and bytes that stay"
        )
    counts = _count(tokenizer, texts)
    if not counts:
        raise UserError("there is no text to tell which tokens are used; give one with words in it")
    kept = _keep(found, fixed, counts, size)
    numbers = sorted(found.vocab[token] for token in kept)
    renumbered = {old: new for new, old in enumerate(numbers)}
    merges = [pair for pair in found.merges if {*pair, "".join(pair)} <= kept]
    vocab = {token: renumbered[found.vocab[token]] for token in kept}
    return PrunedTokenizer(
        tokenizer=rebuild(tokenizer, found.engine(vocab, merges)),
        kept=tuple(numbers),
        fixed=len(fixed),
        coverage=sum(counts[number] for number in numbers) / counts.total(),
    )


def _fix(found: BpeFile) -> set[str]:
    """Return the special tokens, the unknown one, and all that is needed to write any character."""
    if found.bytewise:
        alphabet = set(pre_tokenizers.ByteLevel.alphabet())
        spare = {token for token in found.vocab if token in alphabet}
    else:
        # A space is a character of its own there, and its bytes would be read as that character.
        spare = {token for token in found.vocab if is_byte(token) or token == SPACE}
    merged = {"".join(pair) for pair in found.merges}
    marks = (token for token in found.vocab if _is_mark(token) and token not in merged)
    return {*found.fixed, *found.around, *spare, *marks}


def _is_mark(token: str) -> bool:
    """Return whether the source takes a token for a special one."""
    return len(token) > 2 and (token[0], token[-1]) in {("<", ">"), ("[", "]")}


def _count(tokenizer: PreTrainedTokenizerFast, texts: Iterable[str]) -> Counter[int]:
    machine, counts = engine(tokenizer), Counter[int]()
    for batch in batches(texts):
        for one in machine.encode_batch_fast(batch, add_special_tokens=False):
            counts.update(one.ids)
    return counts


def _keep(found: BpeFile, fixed: set[str], counts: Mapping[int, int], size: int) -> set[str]:
    """Return the most frequent tokens, each with all that it is merged from, up to the size."""
    ranks = {pair: rank for rank, pair in enumerate(found.merges)}
    kept, number = set(fixed), found.vocab
    for token in sorted(number, key=lambda one: (-counts.get(number[one], 0), number[one])):
        if len(kept) == size:
            break
        needed = parts_of(token, found, ranks) - kept
        if token in needed and len(kept) + len(needed) <= size:
            kept |= needed
    return kept


def parts_of(token: str, found: BpeFile, ranks: Mapping[Merge, int]) -> set[str]:
    """Return a token and all that it is merged from; nothing where merges do not make it.

    A token that a tokenizer looks up as a whole word needs nothing else.
    """
    parts = list(token)
    used = {token, *parts}
    while len(parts) > 1:
        pairs = list(pairwise(parts))
        index = min(range(len(pairs)), key=lambda one: ranks.get(pairs[one], len(ranks)))
        if pairs[index] not in ranks:
            return {token} if found.content["model"].get("ignore_merges") else set()
        parts[index : index + 2] = ["".join(pairs[index])]
        used.add(parts[index])
    return used
