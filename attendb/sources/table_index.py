"""The indexes of a stored table: of the hashes of its keys, and of its id column. Rows appended since are scanned.

Segments of an index grow like the levels of a log-structured merge tree: new rows become a segment, which takes up
those before it that are not much larger. So a row is indexed again O(log m) times, and few segments are searched.
Source: O'Neil et al. 1996.
"""

from __future__ import annotations

from typing import Any

from .layout import HASH, Layout, stored_name

FRAGMENTS, ROWS = 8, 1 << 18  # that may stand outside the index: each fragment costs a look, 0.2 ms


def create_indexes(dataset: Any, layout: Layout) -> None:
    """Make the indexes that a version lacks."""
    have = {index.name for index in dataset.describe_indices()}
    for column in _columns(layout):
        if f"{column}_idx" in have:
            continue
        dataset.create_scalar_index(column, "BTREE", name=f"{column}_idx")


def tend_indexes(dataset: Any, layout: Layout, *, all_rows: bool = False) -> bool:
    """Take up rows that stand outside, where they are many; ``all_rows``: all, in one segment. True: a new version."""
    rows = {fragment.fragment_id: fragment.metadata.physical_rows for fragment in dataset.get_fragments()}
    segments = {
        index.name: [set(segment.fragment_ids) for segment in index.segments] for index in dataset.describe_indices()
    }
    done = False
    for column in _columns(layout):
        own = segments.get(f"{column}_idx")
        if own is None:
            continue
        outside = set(rows) - set().union(*own)
        count = sum(rows[number] for number in outside)
        few = len(outside) <= FRAGMENTS and count <= ROWS
        if (len(own) == 1 and not outside) if all_rows else few:
            continue
        merged = len(own) if all_rows else _taken_up([sum(rows.get(i, 0) for i in part) for part in own], count)
        dataset.optimize.optimize_indices(num_indices_to_merge=merged, index_names=[f"{column}_idx"])
        done = True
    return done


def _taken_up(sizes: list[int], count: int) -> int:
    """How many of the last segments the new one takes up: each at most twice what it would be without it."""
    merged = 0
    for size in reversed(sizes):
        if size > 2 * count:
            break
        count += size
        merged += 1
    return merged


def _columns(layout: Layout) -> list[str]:
    return [HASH] + ([] if layout.id is None else [stored_name(layout.id)])
