"""The command line: thin commands over `layerlab.api`; heavy imports only inside."""

import re
from functools import partial
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperOption

from layerlab.cli.adapt.group import adapt
from layerlab.cli.bench import bench
from layerlab.cli.doctor import doctor
from layerlab.cli.evaluate import evaluate
from layerlab.cli.gap import gap
from layerlab.cli.inspect import inspect
from layerlab.cli.judge import judge
from layerlab.cli.ledger import ledger
from layerlab.cli.precision import precision
from layerlab.cli.retrofit import retrofit
from layerlab.cli.runs import runs
from layerlab.cli.study import study
from layerlab.cli.train import compare, suggest_arms, train
from layerlab.cli.variants import variants
from layerlab.console.help_group import HelpGroup
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
app.command()(variants)
app.command()(trustable(retrofit))
app.command()(trustable(precision))
app.command()(trustable(gap))
for command in (train, compare, limit_archives(judge), runs, study):
    app.command()(command)
app.command()(limit_archives(trustable(evaluate)))
app.add_typer(adapt, name="adapt")
app.add_typer(bench, name="bench")
app.add_typer(ledger, name="ledger")
app.command()(doctor)


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
            message = f"{short_repr(rest[0])} is one word too many; expected " + " and ".join(
                [*takes, "options alone"]
            )
            if "arms" in ctx.params and (arms := suggest_arms(rest, **ctx.params)):
                raise UserError(f"{message}: {arms}")
            ctx.fail(message)
        return rest

    def invoke(self, ctx: Any) -> Any:
        """Carry it out; an argument that an error names becomes the option that stands for it."""
        try:
            return super().invoke(ctx)
        except UserError as error:
            message = ARGUMENT.sub(partial(self._type_option, ctx), str(error))
            if message == str(error):
                raise
            raise UserError(message) from error

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
