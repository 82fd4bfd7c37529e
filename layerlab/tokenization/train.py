"""A byte-level BPE trained on a text: every string can be encoded, and decoding gives it back."""

from collections.abc import Iterable

import tokenizers
from transformers import PreTrainedTokenizerFast

from layerlab.tokenization.word_counts import cut_long_words

END = "<|endoftext|>"


def train_bpe(
    texts: Iterable[str], *, vocab: int, context: int | None = None
) -> PreTrainedTokenizerFast:
    """Train a tokenizer; the same texts give the same one in every process.

    Args:
        texts: in order, read once.
        vocab: entries at most; the first is the separator, the next 256 are bytes.
        context: of the model that it is for.

    Example:
        >>> tokenizer = train_bpe(["an ant and an aunt"], vocab=260)
        >>> len(tokenizer), tokenizer.decode(tokenizer("ünt")["input_ids"])
        (260, 'ünt')
    """
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(cut_long_words(texts), trainer)
    limit = {} if context is None else {"model_max_length": context}
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=END,
        eos_token=END,
        pad_token=END,
        clean_up_tokenization_spaces=False,
        **limit,
    )
