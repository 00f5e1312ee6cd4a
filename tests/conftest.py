"""What all tests share: pinned seeds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

# The same examples on every run and machine, and no time limit for one example: machines differ.
settings.register_profile(
    "pinned", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("pinned")


@pytest.fixture(autouse=True)
def _seeds() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
