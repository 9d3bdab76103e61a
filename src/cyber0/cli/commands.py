"""The commands of `cyber0`."""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cyber0 import __version__
from cyber0.cli.data import data
from cyber0.cli.demo import demo
from cyber0.cli.doctor import doctor
from cyber0.cli.errors import in_front, report, want_traceback
from cyber0.cli.export import export
from cyber0.cli.flower import flower
from cyber0.cli.join import join
from cyber0.cli.keys import keys
from cyber0.cli.ledger import ledger
from cyber0.cli.names import list_names
from cyber0.cli.plot import plot
from cyber0.cli.privacy import privacy
from cyber0.cli.replay import replay
from cyber0.cli.roster import admit, extend, revoke, roster, rotate
from cyber0.cli.run import run
from cyber0.cli.serve import serve
from cyber0.cli.status import status
from cyber0.cli.study import study
from cyber0.cli.theory import theory
from cyber0.cli.verify import verify
from cyber0.cli.withdraw import renew, withdraw

__all__ = ["app"]


class Commands(TyperGroup):
    """The commands; --traceback may stand anywhere, and Ctrl-C and a closed pipe are errors like any other.

    Otherwise click would end the process on its own, without a word of what was kept.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options before the command's name, and --traceback wherever it is."""
        return super().parse_args(ctx, in_front(args))

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise typer.Exit(report(error)) from None
        except (BrokenPipeError, SystemExit) as error:  # rich makes an exit of a pipe that nobody reads any longer
            if getattr(error, "__notes__", None):  # else nothing is lost, as by `| head`
                report(error)
            raise


app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.command()(run)
app.command()(study)
app.command()(plot)
app.command()(data)
app.command()(demo)
app.command()(doctor)
app.command()(theory)
app.command()(privacy)
app.command("list")(list_names)
app.add_typer(ledger, name="ledger")
app.add_typer(keys, name="keys")
app.add_typer(flower, name="flower")
app.command()(serve)
app.command()(join)
app.command()(roster)
app.command()(admit)
app.command()(revoke)
app.command()(rotate)
app.command()(extend)
app.command()(withdraw)
app.command()(renew)
app.command()(status)
app.command()(replay)
app.command()(verify)
app.command()(export)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"cyber0 {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    traceback: Annotated[
        bool,
        typer.Option(
            "--traceback",
            callback=want_traceback,
            envvar="CYBER0_TRACEBACK",
            help="Show where an error comes from, in your code or in ours; for any command.",
        ),
    ] = False,
) -> None:
    """Train one model across clients that share no data and do not trust each other, a few numbers per round."""
