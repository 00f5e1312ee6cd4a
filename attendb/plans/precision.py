"""Arithmetic here is chosen by this library: inside torch.autocast, scores would be rounded to bfloat16 unseen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


@contextmanager
def own_precision() -> Iterator[None]:
    """Without the autocast of the caller."""
    with ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield
