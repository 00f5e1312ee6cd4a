"""A bar on stderr while a model learns."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def shown(title: str, *, visible: bool) -> Iterator[Callable[[int, int, float], None]]:
    """``advance(done, total, loss)``; a bar is drawn where ``visible``, and only where stderr is a terminal."""
    if not (visible and sys.stderr.isatty()):
        yield lambda done, total, loss: None
        return
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    columns = (*Progress.get_default_columns(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as bar:
        task = bar.add_task(title, total=None, note="")
        yield lambda done, total, loss: bar.update(task, completed=done, total=total, note=f"loss {loss:.4g}")
