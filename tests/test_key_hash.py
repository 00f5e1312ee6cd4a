"""The hash of keys: the same in every process and version, since it is stored, and by either of its two loops."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from attendb.columns import Opaque
from attendb.sources import key_hash
from attendb.sources.key_hash import key_hashes

DTYPES = (torch.float16, torch.float32, torch.float64, torch.int8, torch.int32, torch.int64, torch.bool)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [1, 3, 8, 65])
def test_the_compiled_loop_gives_the_same_hashes(dtype, width, monkeypatch):
    generator = torch.Generator().manual_seed(width)
    x = (3 * torch.randn(2500, width, generator=generator)).to(dtype)
    x[1] = 0
    x[2] = -x[1] if dtype.is_floating_point else x[1]
    monkeypatch.setattr(key_hash, "MANY", sys.maxsize)
    monkeypatch.delitem(sys.modules, "numba", raising=False)
    assert key_hash._compiled(x.nbytes) is None
    plain, present = key_hashes({"x": x})
    monkeypatch.undo()
    monkeypatch.setattr(key_hash, "MANY", 0)
    monkeypatch.setattr(key_hash, "SMALL", 0)
    assert key_hash._compiled(x.nbytes) is not None
    compiled, _ = key_hashes({"x": x})
    assert (plain == compiled).all() and present.all() and plain[1] == plain[2]
    assert dtype == torch.bool or width < 8 or len(np.unique(plain)) >= 2490


def test_hashes_are_those_that_tables_hold():
    numbers = torch.tensor([[1.5, -0.0], [0.0, 2.0]])
    assert key_hashes({"x": numbers})[0].tolist() == [5779729601785754237, 3016174844258234016]
    mixed = {"x": numbers[:, :1], "site": Opaque(np.array(["a", None], dtype=object))}
    hashes, present = key_hashes(mixed)
    assert hashes[:1].tolist() == [-1939549346204334507] and present.tolist() == [True, False]
