"""The card of a built-in model: how it was made and how well it does, from measured numbers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

KINDS = {
    "pre-norm": "Pre-norm LayerNorm with a final norm, learned positions, GELU: `GPT2LMHeadModel`.",
    "post-norm": (
        "Post-norm LayerNorm without a final norm, learned positions, GELU: `OpenAIGPTLMHeadModel`."
    ),
    "llama": "Pre-norm RMSNorm with a final norm, RoPE, SwiGLU, no biases: `LlamaForCausalLM`.",
}


@dataclass(frozen=True, kw_only=True)
class Result:
    """What was measured of one model.

    Attributes:
        nats: sum of -log p over all validation tokens, by the stored weights in float32.
        train_loss: mean over the last 100 steps, nats per token.
        seen: chained hash of all batches that the model was given.
        history: step and validation loss in nats per token.
    """

    name: str
    nats: float
    tokens: int
    characters: int
    bytes: int
    parameters: int
    train_loss: float
    seconds: float
    seen: str
    history: Sequence[tuple[int, float]] = field(default_factory=list)

    @property
    def loss(self) -> float:
        """Return the validation loss in nats per token."""
        return self.nats / self.tokens

    @property
    def bits_per_byte(self) -> float:
        """Return the validation loss in bits per byte, comparable between vocabularies."""
        return self.nats / math.log(2) / self.bytes


def table(rows: Sequence[Sequence[object]]) -> str:
    """Write rows as a Markdown table, the first being the heading."""
    lines = ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]])


def comparison(results: Sequence[Result]) -> str:
    """Write a table of the arms side by side."""
    rows: list[Sequence[object]] = [("", *(result.name for result in results))]
    rows.append(("parameters", *(f"{result.parameters:,}" for result in results)))
    rows.append(("validation, nats per token", *(f"{result.loss:.4f}" for result in results)))
    rows.append(
        ("validation, bits per byte", *(f"{result.bits_per_byte:.4f}" for result in results))
    )
    rows.append(("training, nats per token", *(f"{result.train_loss:.4f}" for result in results)))
    rows.append(("hash of all batches", *(f"`{result.seen}`" for result in results)))
    rows.append(("training time, minutes", *(f"{r.seconds / 60:.1f}" for r in results)))
    return table(rows)


def course(results: Sequence[Result]) -> str:
    """Write a table of the validation losses during training, the arms side by side."""
    rows: list[Sequence[object]] = [("step", *(result.name for result in results))]
    for points in zip(*(result.history for result in results), strict=True):
        rows.append((points[0][0], *(f"{loss:.4f}" for _, loss in points)))
    return table(rows)


def card(
    name: str,
    results: Sequence[Result],
    recipe: Mapping[str, object],
    origin: Mapping[str, object],
) -> str:
    """Write the card of one model.

    Args:
        name: the model.
        results: of all arms, since each card shows the comparison.
        recipe: what decided the run.
        origin: text, versions and machine.

    Returns:
        Markdown.
    """
    mine = next(result for result in results if result.name == name)
    settings = table([("setting", "value"), *recipe.items()])
    made = table([("what", "value"), *origin.items()])
    return f"""---
license: apache-2.0
language: en
library_name: transformers
pipeline_tag: text-generation
---
# layerlab built-in model: {name}

{KINDS[name]}
One of three causal language models of the same depth, width, heads, vocabulary and context, trained
in lockstep on the same batches from the same initial numbers (wherever the shapes of the weights
agree), to be inspected and compared. `pre-norm` and `post-norm` are a fair pair for questions about
norm placement: nothing else differs between them, apart from the final norm, which post-norm does
not have. `llama` has the same number of parameters within 0.1 %.

## Result

{comparison(results)}

Validation is the whole last part of the text ({mine.characters:,} characters, {mine.bytes:,} bytes,
{mine.tokens:,} tokens), which neither the weights nor the tokenizer were trained on. It is read in
windows of {recipe["context"]} tokens that do not overlap, each predicting as many tokens, so that
every token is predicted once; a separator stands before the first. The figures are those of the
stored weights, loaded in float32. Training loss is the mean of the last 100 steps.

Validation loss during training, nats per token:

{course(results)}

## Recipe

AdamW (no decay on biases and norms), gradients clipped by their norm, no dropout, float32
throughout, tied embeddings. The learning rate warms up linearly, follows a cosine to
the last rate at the last step, and is drawn there in a straight line too over the cool-down.
Every matrix starts normal with the same deviation; GPT-2's extra division of the output projections
by sqrt(2 layers) is left out, in all arms. Windows start anywhere in the text; in every other row
the first token is replaced by the separator `<|endoftext|>`, so that it can serve as a prefix. The
program is `tools/builtin_models/train.py`.

{settings}

{made}

One model and one seed per arm: small differences between the losses above are not evidence for one
architecture over another. The learning rate is one that all arms bear; none was tuned by itself.

## Not good for

Anything but being looked at. It writes something that resembles verse drama and means nothing; it
knows no facts, follows no instructions, and has met no language but the English of Shakespeare's
plays. Any text can be encoded, since the tokenizer falls back on bytes, but most bytes outside
ASCII were never trained. Findings about a model this small, on this little text, need not carry
over to larger ones.

The text (TinyShakespeare) is in the public domain.
"""
