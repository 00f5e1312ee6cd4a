"""The command line: each command reads its options, calls the library and prints. No mathematics stands here.

One file a family of commands; `app.py` holds what they share: the exit codes, and where messages go.
"""

from __future__ import annotations

from . import change, demo, export, history, predict, query  # each file adds its commands to the app
from .app import app, main

__all__ = ["app", "change", "demo", "export", "history", "main", "predict", "query"]
