"""Texts of pages that no file declares in one piece: names of rows, places in sources, marks."""

# What rows are named by and no file declares.
KINDS = (
    *("stream", "attention", "ffn", "upper", "lower", "component", "pair", "matrix"),
    *("residual stream", "weights (stored)", "behind the blocks", "experts chosen otherwise"),
    *("operation", "remedy", "router", "by layer", "by token", "by remedy", "LM head"),
    *("{plain} unless widened", "one in {every}", "summed as {sums}", "normalized", "unnormalized"),
    *("renormalized", "not verified: {told}", "no description", "nats", "ratio"),
    *(f"share of the {one}" for one in ("tokens", "choices", "squared difference")),
    *("attention weights or output, narrowed", "rotary tables"),
    *("residual stream with {part}", "weights (stored) with {part}"),
    *("Theorem 4", "Theorem 6", "Theorem 7", "Theorem 8", "Theorem 9"),
    *("Theorem 7, gated", "Theorem 8, gated", "Theorem 9, gated"),
)
# Where in a source something stands.
PLACES = (
    *("section {number}", "sections {number}", "Figure {number}", "Table {number}", "Own"),
    *("Tables {number}", "Tables {number} and {last}", "Lemma {number}", "Lemmas {number}"),
    *("Theorem {number}", "Theorems {number}", "Theorems {number} and {last}"),
    *("Remark {number}", "gated", "gated feed-forward"),
    *("Equation {number}", "equation {number}", "conclusion {number}", "conclusion", "abstract"),
    *("introduction", "future work", "advice {number}", "script", "corrected", "after {key}"),
    *("beside {key}", "of {key}", "of {key}'s two batches", "on {key}", "on the numbers of {key}"),
    *("on machine learning", "first batch", "second batch", "first figure", "second figure"),
    *(
        "third figure",
        "fourth figure",
        "the design is own",
        "before training is own",
        "the rate: Own",
    ),
    *("the running bound is Own", "the factor of ten is Own"),
    "neighbour form of the series activation",
)
# What studies name curves and settings by, in a word.
WORDS = (
    *("attention", "feed-forward", "norms", "logits", "scores", "weights", "queries", "keys"),
    *("centring", "perceptron", "nearest", "stochastic", "observed", "drawn", "variances"),
    *("trained", "random", "neither", "larger", "extended", "causal", "padded", "forward"),
    *("backward", "test", "validation", "draws", "terms", "token", "tokens", "semi-axis"),
    *("convolution", "Gaussian", "share", "scale {scale}", "twin {seed}", "all", "seed"),
    *("{value} nats per token", "{value} bits per byte", "{value} loss spikes a run"),
    "{value} updates",
    ", line {number}",
    "mean of {there} tasks{how}",
    "mean of {there} of {wanted} tasks{how}; not run: {missing}",
    "{value} powers of ten",
    *("looks", "look", "smallest", "largest", "smaller", "is", "are", "seeds"),
    *("grows", "shrinks", "rises", "falls", "short", "long", "trained heads"),
    "counted it does; the printed latency grows by {steps} ms, {times} times as much for the last "
    "as for the first",
    *("{setting} is {one} in {run} and {other} in {second}", "not set"),
    "micro-batches of {sizes} sequences were used; the tokens of an update are the same",
    *("{value} in random, causal mask", "{value} in random, no mask", "{value} in trained llama"),
    "no draws: one exact case",
    "Timed on {processor} with {threads} thread, in processor time, {pairs} repetitions; torch "
    "{torch}, transformers {transformers}.",
    *("kept from an earlier run", "wall seconds", "processor seconds", "system", "threads"),
)
# Sentences that results of earlier versions hold, and no code writes any more.
FORMER = (
    "{place}: without it the loss falls by {value} nats, more than {limit} standard errors{more} "
    "(of {rows})",
    "taken out alone, {spare} of {rows} heads change the loss by less than {spare_2} nats each",
    "compared at one learning rate {rates} for all: an arm that would rather have another is "
    "judged too harshly",
    "{name} is left out: the recipe has no arm {arm}",
    "; if it is no larger than it looks, even {most_seeds} seeds would not tell",
    "; if it is as large as it looks, {more} find it with that probability",
    *("{start} more seeds or any number", "before the blocks"),
    "it takes {found} of the tokens that the base takes after growing on general text to 1.14 "
    "times its size; the source prints {YunShan} beside Baichuan2, and below {asked} was asked for",
    "every head of attention layer {layer} gives {least} or more of its attention to the first "
    "token",
    *("attention layer {layer}, head {head}", "norm over the norm of the embedding output"),
    "largest singular value of the block's Jacobian at this input, from below; none for layer 0, "
    "since token ids cannot be changed a little",
    "Each draw is a passage of {tokens} tokens and one block of each built-in model, at the last "
    "token; scores and softmax are those of the first head.",
    "GPT-2-large is on the Hub: type layerlab inspect openai-community/gpt2-large --measures "
    "spectrum for its own curve. What is judged here is what the source makes of it: that the "
    "placement of the norm is why the curve stays flat.",
    "weighed by its share of the output, a path passes {trained} in trained llama, {causal} in "
    "random, causal mask, {open} in random, no mask of {layers} attention sublayers; below "
    "{middle}, which is what all paths alike would make, was asked for. Lengths 0 and 1 carry "
    "{least} of the trained output, and are {depth} of all paths",
    "The built-in llama has {layers} layers and no biases; passages of {tokens} tokens.",
    "The random stacks are attention with RMS norm and skips, width {width}, {heads} heads, on "
    "random features.",
)
# Faults, whose counts and names are filled in at two places.
FAULTS = (
    "{where}: {name} holds {bad} of {tensor} weights not finite",
    "{where}: {name} holds {bad} of {stream} features not finite",
)
# Between the entries of a list, and a number with its interval.
MARKS = (
    *(".", "; ", ": ", ", ", ",", ", and ", " and "),
    *("{value} ({low} to {high})", "{first} to {last}", "{value} ({note})"),
)
TEXTS = {
    "rows": KINDS,
    "sources": PLACES,
    "studies": WORDS,
    "lists": MARKS,
    "earlier": FORMER,
    "findings": FAULTS,
}
