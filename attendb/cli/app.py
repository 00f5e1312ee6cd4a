"""The app that the commands are added to, and how every command ends.

Exit codes: 0 done; 1 an error that the user can fix, one sentence on stderr; 2 a wrong use of the command; 130
interrupted. A reader that closes the pipe (`attendb query … | head -1`) has what it wanted: that is 0, in silence.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ..errors import AttendbError
from .printing import note, printable

INTERRUPTED = 130  # 128 + SIGINT, as shells count


class Commands(TyperGroup):
    """The commands, with one sentence on stderr in place of a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = lambda message, *_: note(f"warning: {message}")
                result = super().invoke(ctx)
            sys.stdout.flush()  # a pipe that closed is found out here, and not while Python shuts down
            return result
        except BrokenPipeError:
            _close_stdout()
            raise typer.Exit(0) from None
        except KeyboardInterrupt:
            typer.echo("attendb: interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except AttendbError as error:
            sentence = str(error)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            sentence = f"{where}{error.strerror or error}"
        except MemoryError:
            sentence = "the memory is not enough: ask fewer queries at once, or a stored table (attendb create)"
        typer.echo(f"attendb: {printable(sentence)}", err=True)
        raise typer.Exit(1)


def _close_stdout() -> None:
    """What Python still holds for the closed pipe goes nowhere."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # stdout is no file of the system
        sys.stdout = open(os.devnull, "w")


app = typer.Typer(
    name="attendb",
    cls=Commands,
    help="A database of key-value pairs that answers queries by attention.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # column names are printed as they are, examples stay on their lines
    context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command that the arguments name."""
    app(prog_name="attendb")


def examples(*lines: str) -> str:
    """The end of a help text: commands that can be typed as they stand."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(version("attendb"))
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """A database of key-value pairs that answers queries by attention."""
