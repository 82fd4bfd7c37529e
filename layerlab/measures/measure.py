"""Declarations of measures, and the records that a trace gives them.

A measure is one file: pure functions, and at the foot `MEASURES = (Measure(...),)`. The trace calls
`read` with one `Layer` of one sequence at a time (or, for a measure that needs only weights, with
one `HeadWeights` at a time, and for one of matrices with one `WeightMatrix`), so no measure ever
holds more than one layer. A measure that pools over sequences keeps what it needs in
`MeasureContext.memory` and gives its rows in `close`.

Rows are plain dicts; the trace adds the column `model`. A reading that does not exist is NaN, and
`NotApplicable` says why a measure, or some of its columns, has none.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor

from layerlab.known_options import KnownOptions, check_measure
from layerlab.measures.support.attention_pass import HeadQuantity
from layerlab.observe.tracing.records import Layer
from layerlab.records.layer_names import layer_name
from layerlab.shapes import TokenIds
from layerlab.validation import Constraint

Need = Literal["stream", "attention", "weights", "matrices", "gradient", "rerun", "model"]
Row = dict[str, Any]
# A column that is no quantity: the number of a position, channel or the like, of which no mean says
# anything; a size or count of what was read; a flag; or what the name of a row means.
ColumnRole = Literal["index", "size", "flag", "note"]
# What needs nothing else is measured without a text.
WEIGHTS: frozenset[Need] = frozenset({"weights", "matrices"})


def refuse_offloaded(subject: Any) -> str | None:
    """Return why a model is not run backwards as a whole: its graph would hold every weight."""
    if not subject.offloaded:
        return None
    return "some weights are offloaded, and a backward pass through the model holds all of them"


def describe_packed(name: str) -> str:
    """Return why a quantized weight is no number that the model computes with."""
    return f"{name} is quantized: its numbers are not those that it computes with"


def short_text() -> str:
    """Return the note of a text with fewer tokens than a measure of all of them wants."""
    return "--samples auto has read every sample of the text: a longer one gives more tokens"


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A curve beside a reading: `limit` is the column that bounds `column` from the given side.

    A limit `beside` it bounds nothing: it is another reading, or what was predicted. From `vacuous`
    on an upper limit says nothing, and is called so.
    """

    column: str
    limit: str
    side: Literal["upper", "lower", "beside"]
    source: str
    vacuous: float | None = None


@dataclass(frozen=True, kw_only=True)
class Band:
    """Two columns between which most of what makes up a reading lies; drawn around it."""

    column: str
    low: str
    high: str
    label: str


@dataclass(frozen=True, kw_only=True)
class ModelContext:
    """A model and what it reads, for a measure that runs it as often as it needs (`model`).

    Attributes:
        subject: the model as `loading.model.LoadedModel` describes it.
        begin: say how many runs will follow.
        step: say which run begins.
        trace: hand every layer of a sequence to a function, with its weights, one at a time.
        memory: shared by all measures of this model, so that one run can serve several.
    """

    subject: Any
    sequences: Sequence[TokenIds]
    begin: Callable[[int], None]
    step: Callable[[str], None]
    trace: Callable[[Tensor, Callable[[Layer], None]], None]
    memory: dict[Any, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class MeasureContext:
    """The options a measure was given, and the memory it may keep between layers.

    Attributes:
        subject: the model as `loading.model.LoadedModel` describes it.
        sequences: all that will be read.
        batches: how often tokens of a layer are given to `read` and `pool`, 0 where nobody knows.
        notes: remarks beside the rows.
        noted: the layers of remarks that `note_layer` was given, by what they are about.
        picture: what a report draws besides the rows: a `kind`, and what JSON can hold.
    """

    options: Mapping[str, Any]
    subject: Any = None
    sequences: Sequence[TokenIds] = ()
    batches: int = 0
    memory: dict[Any, Any] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    noted: dict[tuple[str, str], set[int]] = field(default_factory=dict)
    picture: dict[str, Any] = field(default_factory=dict)

    def note_layer(self, about: str, remark: str, layer: int) -> None:
        """Note what holds of a layer; `{layers}` in a remark becomes all of which it was noted."""
        noted = self.noted.setdefault((about, remark), set())
        noted.add(layer)
        stack = getattr(self.subject, "stack", None)
        every = range(len(getattr(stack, "blocks", ())))
        first = next(key for key in self.noted if key[0] == about)
        key = about if first[1] == remark else f"{about}: {remark}"
        self.notes[key] = remark.replace("{layers}", _name_layers(noted, every))


def _name_layers(layers: set[int], every: Iterable[int]) -> str:
    if len(layers) > 1 and layers >= set(every) > set():
        return "every layer"
    if len(layers) == 1:
        return layer_name(next(iter(layers)))
    return f"layers {', '.join(map(str, sorted(layers)))}"


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One quantity and how to read it.

    Attributes:
        per: the columns that name a row, besides `model`.
        columns: every other column with its meaning in one line (it is shown to the user).
        better: which direction is healthier, or None where there is no such direction.
        needs: what the trace must provide; one pass serves the union over all measures.
        read: rows of one record.
        heads: what it asks of every head, with what it was given; what all measures ask is read in
            one pass, and `read` takes its part from there.
        learn: what `read` does with a record for those behind it, where its rows need not be read.
        pool: takes a layer's tokens of sequences that nothing else reads, before `close`.
        close: rows that exist only when the last record was read.
        applies: why the measure has no reading on this model, or None.
        bound: theorems that speak about a column, and other lines beside it.
        limits: columns that bound what other measures read: no readings, and listed apart.
        band: where most of what a column averages lies.
        about: two sentences for the reader of a report.
        equation: the definition in plain text.
        plot: the columns that are drawn, the most telling first.
        roles: the columns that are no quantities, and what they are instead; none of them is drawn.
        typed: values of the first column of `per` whose rows are named by what a user types, which
            is the same in every language.
        options: what a user may set, with what it is when nobody does.
        check: refuses options that each are possible and cannot go together, before any work.
        domains: which values an option takes, where it is not every one of its default's kind.
        rare: whether it is of modules that few models have: where nobody named it, a report on
            models without them leaves it out.
        resumes: whether rows take long and hang on their record alone, or on what `learn` takes
            from others, so that they are kept of an inspection that is interrupted. To note or draw
            the same twice must then change nothing.
        use: how to ask and what it costs, in Markdown, for the page in docs/measures.
    """

    name: str
    title: str
    unit: str
    source: str
    about: str
    equation: str
    per: tuple[str, ...]
    columns: Mapping[str, str]
    plot: tuple[str, ...]
    better: Literal["higher", "lower"] | None
    needs: frozenset[Need]
    read: Callable[[Any, MeasureContext], Iterable[Row]]
    heads: Callable[[Mapping[str, Any]], HeadQuantity] | None = None
    learn: Callable[..., None] | None = None
    pool: Callable[[int, Tensor, MeasureContext], None] | None = None
    close: Callable[[MeasureContext], Iterable[Row]] | None = None
    applies: Callable[[Any], str | None] = lambda subject: None
    bound: tuple[Bound, ...] = ()
    limits: tuple[str, ...] = ()
    band: Band | None = None
    roles: Mapping[str, ColumnRole] = field(default_factory=dict)
    typed: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    domains: Mapping[str, Constraint] = field(default_factory=dict)
    check: Callable[[Mapping[str, Any]], object] = lambda options: None
    default: bool = True
    rare: bool = False
    resumes: bool = False
    use: str = ""

    def given(self, **options: Any) -> "Measure":
        """Return the same measure with other options.

        Raises:
            UserError: an option that the measure does not have, a value that it does not take, or
                values that cannot go together.
        """
        given = {**self.options, **check_measure(self.name, options, self.known_options)}
        self.check(given)
        return replace(self, options=given)

    @property
    def known_options(self) -> KnownOptions:
        """Return what each option is when nobody sets it, and which values it takes."""
        return {name: (usual, self.domain(name)) for name, usual in self.options.items()}

    def domain(self, name: str) -> Constraint | None:
        """Return the values that an option takes.

        None where neither a domain nor a default says it.
        """
        default = self.options[name]
        if name in self.domains or default is None:
            return self.domains.get(name)
        return Constraint(kind=type(default))
