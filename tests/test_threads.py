"""Work in threads, in order: `compiled.threads`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch

from attendb.compiled.threads import WAITING, in_order


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_results_come_in_the_order_of_the_items(threads: int):
    def task(i: int) -> int:
        time.sleep(0.002 * (i % 3))
        return i * i

    assert list(in_order(task, range(20))) == [i * i for i in range(20)]
    assert list(in_order(task, [])) == []


def test_items_are_made_as_they_are_needed(threads: int):
    made: list[int] = []

    def items() -> Iterator[int]:
        for i in range(1_000):
            made.append(i)
            yield i

    found = in_order(lambda i: i, items())
    assert [next(found) for _ in range(5)] == [0, 1, 2, 3, 4]
    assert len(made) <= 5 + threads + WAITING + 1
    found.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("attendb-stream")]


def test_errors_are_raised_where_they_belong(threads: int):
    def task(i: int) -> int:
        if i == 3:
            raise ValueError("three")
        return i

    found = in_order(task, range(9))
    assert [next(found), next(found), next(found)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(found)

    def items() -> Iterator[int]:
        yield 0
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        list(in_order(task, items()))
