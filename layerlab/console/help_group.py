"""A group of commands that shows its help when no command is named."""

from typing import Any

from typer.core import TyperGroup


class HelpGroup(TyperGroup):
    """A group that reads an empty line as `--help`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words; without any, show the help."""
        return super().parse_args(ctx, args or ["--help"])
