"""The command line: thin commands over `layerlab.api`; heavy imports only inside."""

import re
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperOption

from layerlab.cli.adapt.group import adapt
from layerlab.cli.bench import bench
from layerlab.cli.early_checks import check_loads
from layerlab.cli.evaluate import evaluate
from layerlab.cli.gap import gap
from layerlab.cli.inspect import SAMPLES, Context, Samples, TextOption, inspect
from layerlab.cli.judge import judge
from layerlab.cli.ledger import ledger
from layerlab.cli.options import AsJson, Device, Dtype, Load, ModelArgument, ModelOrDefault, Quiet
from layerlab.cli.runs import runs
from layerlab.cli.study import study
from layerlab.cli.train import compare, suggest_arms, train
from layerlab.console.help_group import HelpGroup
from layerlab.console.tables import say, show_result
from layerlab.data.archives import limit_archives
from layerlab.errors import UserError
from layerlab.system.untrusted.trust import trustable
from layerlab.validation import short_repr
from layerlab.version import VERSION

# What an error of a function tells to type, as it is for Python.
ARGUMENT = re.compile(r"(type(?: for example)?|, or) (\w+)=([\w.'\"-]+)(?=[,;]|$)")

app = typer.Typer(
    cls=HelpGroup,
    help="A laboratory for Transformer blocks: what is wrong inside a model, layer by layer.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"layerlab {VERSION}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A laboratory for Transformer blocks: what is wrong inside a model, layer by layer."""  # noqa: D401


app.command()(trustable(inspect))


class Way(StrEnum):
    """The size by which two variants are matched."""

    ffn = "ffn"
    depth = "depth"
    width = "width"
    none = "none"


@app.command()
def variants(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="One variant or preset for its card, several for a table of them, none for all.",
        ),
    ] = None,
    width: Annotated[int | None, typer.Option(help="Features per token.  [default: 256]")] = None,
    layers: Annotated[int | None, typer.Option(help="Layers.  [default: 6]")] = None,
    heads: Annotated[int | None, typer.Option(help="Attention heads.  [default: 4]")] = None,
    kv_heads: Annotated[
        int | None, typer.Option(help="Heads of keys and values.  [default: as many]")
    ] = None,
    inner: Annotated[
        int | None,
        typer.Option(help="Features of the feed-forward.  [default: the variant's share]"),
    ] = None,
    vocab: Annotated[int | None, typer.Option(help="Vocabulary.  [default: 8192]")] = None,
    context: Annotated[
        int | None, typer.Option(help="Tokens of a full context.  [default: 256]")
    ] = None,
    preset: Annotated[
        str | None, typer.Option(metavar="NAME", help="Sizes of a preset, as pangu-pi-1b.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="An option: head=tied, shortcut.r=16; may be repeated."
        ),
    ] = None,
    match: Annotated[
        Way | None,
        typer.Option(help="Resize the variant until it has as many parameters as its baseline."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With --match: a variant to match, not the baseline."),
    ] = None,
    costs: Annotated[
        bool, typer.Option("--costs", help="Parameters, FLOPs and memory of each, in a table.")
    ] = False,
    as_json: AsJson = False,
    load: Load = None,
    new: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a variant of your own to start from."),
    ] = None,
) -> None:
    """Show what can be built: equation, source, options, costs."""
    if new is not None:
        import shlex

        from layerlab.variants.template import name_variant, write_template

        write_template(new)
        load_it = f"--load {shlex.quote(str(new))}"
        say(f"wrote {new}; type: layerlab variants {name_variant(new)} {load_it}")
        return
    from layerlab.model.preset import check_named, check_sizes
    from layerlab.model.typed_options import check_match, check_options, parse_options

    sizes = {
        "width": width,
        "layers": layers,
        "heads": heads,
        "kv_heads": kv_heads,
        "inner": inner,
        "vocab": vocab,
        "context": context,
    }
    check_loads(load)
    options = parse_options(option or ())
    check_match(names or (), match, against)
    check_sizes(names or (), preset, sizes)
    if not load:
        check_named([*(names or ()), *([] if against is None else [against])])
        check_options(options)
    # Late: these need torch, and what is refused above does not.
    from layerlab import plugins
    from layerlab.model.listing.listing import request

    plugins.load_files(load or ())
    wanted = request(
        names or [],
        sizes=sizes,
        preset=preset,
        options=options,
        by=None if match is None else match.value,
        against=against,
    )
    drawn = wanted.render_costs if costs or names else wanted.render
    show_result(wanted, as_json, drawn, indent=2)


@app.command()
@trustable
def retrofit(
    model: ModelArgument,
    out: Annotated[Path, typer.Option(metavar="DIR", help="New folder for the rebuilt model.")],
    variant: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A variant, as layerlab variants lists them.  [default: what it is already]",
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="An option: shortcut.r=16; may be repeated."),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(min=0, max=2**32 - 1, help="Seed for weights that the model does not have."),
    ] = 0,
    device: Device = None,
    dtype: Dtype = None,
    load: Load = None,
) -> None:
    """Rebuild a pretrained model as a variant, with its weights.

    The model is a Llama, Mistral, Qwen, GPT-2 or GPT-1.
    """
    from layerlab.loading.folders import check_found
    from layerlab.model.preset import check_named
    from layerlab.model.typed_options import check_options, parse_options
    from layerlab.system.files import check_folder

    before = check_folder(out, "model")
    check_loads(load)
    options = parse_options(option or ())
    if not load:
        check_named([] if variant is None else [variant])
        check_options(options)
    check_found([model])
    # Late: these need torch, and what is refused above does not.
    from layerlab import plugins
    from layerlab.api.retrofit import rework

    plugins.load_files(load or (), [model])

    target = {"device": device, "dtype": dtype}
    say(rework(model, variant, options, out=out, before=before, seed=seed, **target))


@app.command()
@trustable
def precision(
    model: ModelOrDefault = None,
    format: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Number format of what is not kept: bf16, fp16, fp8_e4m3, ..."
        ),
    ] = "bf16",
    budget: Annotated[
        float, typer.Option(help="Share of the squared error of the logits that may be left.")
    ] = 0.3,
    text: TextOption = None,
    samples: Samples = SAMPLES,
    context: Context = None,
    device: Device = None,
    dtype: Dtype = None,
    load: Load = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the policy, as TOML.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a policy that is there.")
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Find which operations to keep in float32, and verify it."""
    from layerlab.loading.folders import check_found
    from layerlab.loading.text_input import read_text
    from layerlab.numerics.emulation.policies.policy import check_place
    from layerlab.numerics.mixed_precision.request import check_request

    if out is not None:
        check_place(out, overwrite)
    check_request(format, budget)
    check_loads(load)
    check_found([] if model is None else [model])
    asked: dict[str, Any] = {"device": device, "dtype": dtype, "load": load or ()}
    asked["texts"] = read_text(text, samples=samples, context=context)
    # Late: it needs torch, and what is refused above does not.
    from layerlab.api.precision import precision as find_policy

    advice = find_policy(model, format, budget, progress=not quiet, **asked)
    show_result(advice, as_json, advice.summary(out), indent=2)
    if out is not None:
        advice.policy.save(out, overwrite=overwrite)
    if not advice.reached:
        say(f"layerlab: {advice.shortfall}", err=True)
        raise typer.Exit(1)


app.command()(trustable(gap))
for command in (train, compare, limit_archives(judge), runs, study):
    app.command()(command)
app.command()(limit_archives(trustable(evaluate)))
app.add_typer(adapt, name="adapt")
app.add_typer(bench, name="bench")
app.add_typer(ledger, name="ledger")


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Say what layerlab runs on: versions, devices, threads, kernels."""
    from layerlab.api.diagnose import diagnose

    found = diagnose()
    show_result(found, as_json, str(found), indent=2)


class OneCommand(TyperCommand):
    """A command that refuses an option given twice, and says in errors what to type in a shell."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse an option that is given twice, and words that the command takes none of."""
        try:
            _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        except typer.TyperException as error:
            error.ctx = ctx  # type: ignore[attr-defined] # what it lacks is told of this command
            raise
        given = [one for one in order if isinstance(one, TyperOption) and not one.multiple]
        for one in given:
            if given.count(one) > 1 and not ctx.resilient_parsing:
                ctx.fail(f"{one.opts[-1]} is given twice; leave one out")
        ctx.allow_extra_args = True
        rest = super().parse_args(ctx, args)
        if rest and not ctx.resilient_parsing:
            takes = [
                str(one.metavar or one.name)
                for one in self.params
                if not isinstance(one, TyperOption)
            ]
            told = f"{short_repr(rest[0])} is one word too many; expected " + " and ".join(
                [*takes, "options alone"]
            )
            if "arms" in ctx.params and (arms := suggest_arms(rest, **ctx.params)):
                raise UserError(f"{told}: {arms}")
            ctx.fail(told)
        return rest

    def invoke(self, ctx: Any) -> Any:
        """Carry it out; an argument that an error names becomes the option that stands for it."""
        try:
            return super().invoke(ctx)
        except UserError as error:
            told = ARGUMENT.sub(partial(self._type_option, ctx), str(error))
            if told == str(error):
                raise
            raise UserError(told) from error

    def _type_option(self, ctx: Any, found: re.Match[str]) -> str:
        """Return an argument as it is typed: as it stands within a word, or where no option is."""
        before, name, value = found.groups()
        options = {one.name: one for one in self.params if isinstance(one, TyperOption)}
        within = any(f"{name}=" in str(given) for given in ctx.params.values())
        if name in options and not options[name].is_flag and not within:
            return f"{before} {options[name].opts[0]} {value}"
        return f"{before} --option {name}={value}" if "option" in options else found[0]


for group in (app, adapt, bench, ledger):
    for registered in group.registered_commands:
        registered.cls = OneCommand
