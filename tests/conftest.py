"""What all tests share: pinned seeds, and the shapes in the signatures of attendb checked at every call."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

SHAPED = ("columns", "scores.pairwise", "scores.tanh_sum", "weightings")
SHAPED += ("plans.flash", "plans.gather")
install_import_hook([f"attendb.{module}" for module in SHAPED], "beartype.beartype")

# The same examples on every run and machine, and no time limit for one example: machines differ.
settings.register_profile(
    "pinned", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("pinned")


@pytest.fixture(autouse=True)
def _seeds() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
