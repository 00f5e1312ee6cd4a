"""Files, frames and SQL → a table that is about to be read: its types over whole columns, its rows as a stream."""

from .base import Import
from .opening import open_table

__all__ = ["Import", "open_table"]
