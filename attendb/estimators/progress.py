"""A bar on stderr while a model learns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def shown(title: str, *, visible: bool) -> Iterator[Callable[[int, int, float], None]]:
    """``advance(done, total, loss)``; nothing is drawn unless ``visible``."""
    if not visible:
        yield lambda done, total, loss: None
        return
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    console = Console(stderr=True)
    columns = (*Progress.get_default_columns(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, console=console, transient=console.is_terminal, redirect_stdout=False) as bar:
        task = bar.add_task(title, total=None, note="")
        yield lambda done, total, loss: bar.update(task, completed=done, total=total, note=f"loss {loss:.4g}")
