"""Write docs/cli.md: what each command says under --help. Run it after a change of a command."""

from __future__ import annotations

from pathlib import Path

from typer.main import get_command
from typer.testing import CliRunner

from attendb.cli import app

PAGE = Path(__file__).with_name("cli.md")
WIDTH = "100"
INTRODUCTION = """\
# The command line

`attendb` asks tables by attention from a shell. The first command below needs nothing but a CSV file:

```console
$ attendb query plant.csv --value output --at temperature=20 vacuum=40
```

- Results go to stdout; messages, what was assumed, and progress (on a terminal only) go to stderr.
- `--json` prints one JSON object for programs: whole numbers in all their digits, a missing number or NaN as `null`.
- Exit codes: 0 done; 1 an error that you can fix, in one sentence; 2 a wrong use of the command; 130 interrupted.
  A closed pipe, as in `attendb query … | head -1`, ends the command quietly.
- An option that may be repeated is repeated with its name: `--key temperature --key vacuum`.
- A condition (`--where`) is what may follow WHERE in SQL, over the columns of the table and `id`.
- No command changes a table in place: each change is a new version, and `attendb restore` brings an old one back.

Everything below is what `--help` prints. `docs/make_cli.py` writes this page.
"""


def page() -> str:
    """The page, from the commands as they are."""
    commands = get_command(app).commands  # type: ignore[attr-defined]
    listed = "\n".join(f"- [`attendb {name}`](#attendb-{name})" for name in commands)
    parts = [INTRODUCTION, listed + "\n"]
    for words in ([], *([name] for name in commands)):
        title = " ".join(["attendb", *words])
        parts.append(f"## {title}\n\n```text\n{help_of(*words)}\n```\n")
    return "\n".join(parts)


def help_of(*words: str) -> str:
    """What a command prints under --help, in lines of a fixed width."""
    result = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": WIDTH}, prog_name="attendb")
    return "\n".join(line.rstrip() for line in result.stdout.strip().splitlines())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
