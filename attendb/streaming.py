"""Attention over a source that is read block by block: the fold over blocks, each of which any plan may answer.

    state = merge(lift(block 1), lift(block 2), …)          the same state and the same merge as within a block

A block is a table of its own: the planner answers it, and from its answer and its log-normaliser comes the state of the
weighting. Weightings whose threshold all rows decide (Sparsemax) are folded cell by cell, one pass over the source a
step. Selecting weightings name rows in one pass; the question is then asked once more, of those rows alone.

Backward, every block is read and answered again with a graph. With p_b the share of block b in the weights of a query,

    dO_b = p_b dO      dλ_b = p_b (⟨dO, O_b − O⟩ + dλ)

are the gradients of its answer O_b and its log-normaliser λ_b, and the block's own plan does the rest. Memory is
O(block), forward and backward.

Longer than other modules: both directions stand on the same pass over the blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from .answer import Answer
from .asking import TableQuestion
from .attention import check_size
from .columns import Labels
from .errors import InputError
from .plans import planner
from .plans.cells import Problem
from .plans.dense import CellFold, cell_gradients
from .plans.planner import PlanReport
from .plans.precision import own_precision
from .plans.solution import Solution, padded_ranks, padded_top
from .question import Options, Question
from .scores.base import Score
from .sources.base import Block
from .weightings.base import Accumulator, Done, Fold, Pooling, Selecting, State
from .weightings.sampled import Sampled
from .weightings.selecting import Best
from .weightings.softmax import Softmax

PIECE_BYTES = 1 << 24  # of keys that are embedded at once: temporaries of 32 MB and more cost a page fault a page
FEW_COLUMNS = 16  # below, what is embedded is small beside what is computed, and some plans gain from many rows
UNKNOWN = object()


def ask_blocks(table: TableQuestion) -> Answer:
    """Answer a question to a streamed source."""
    if isinstance(table.weighting, Selecting):
        return _select(table, table.weighting)
    stream = _Stream(table)
    solution = _pool(stream)
    return Answer(stream.first, solution, stream.report(), every_row=table.of_all)


class _Stream:
    """The blocks of a source as questions, with an account of the plans that answered them."""

    def __init__(self, table: TableQuestion, *, with_values: bool = True):
        self.table = table
        self.names = table.names if with_values else ()
        self.plans: Counter[str] = Counter()
        self.blocks = self.rows = 0
        self.last: PlanReport | None = None
        self.found: _Found | None = None
        self.anchor: Any = UNKNOWN
        self._first: Question | None = None

    @property
    def first(self) -> Question:
        """The question to the first block, which says how the answer is handed back."""
        if self._first is None:
            next(iter(self.questions()))
        assert self._first is not None
        problem = self._first.problem
        if isinstance(problem.values, Labels):  # the blocks after it have added names
            names = np.empty(len(self.table.labels), dtype=object)
            names[:] = list(self.table.labels)
            names = names[self.table.order_of_labels()]
            problem = replace(problem, values=Labels(problem.values.codes, names))
        return replace(self._first, problem=problem, rows=len(self.table.source), kept=None)

    def questions(self, swap: Callable[[Any], Any] = lambda x: x) -> Iterator[Question]:
        """One question a block. ``swap`` puts tensors in the place of others in what is asked and in the blocks."""
        table = self.table
        queries, asked = swap(table.queries), _swapped_options(table.options, swap)
        blocks = table.source.mapped(swap).blocks(self.names, table.filter)
        for block in (piece for whole in blocks for piece in _pieces(whole, table.score)):
            if self.anchor is UNKNOWN:
                self.anchor = table.anchor_of(block)
            options = table.options_of(block.positions, asked)
            question = table.of(block, options, queries=queries, anchor=self.anchor)
            if self._first is None:
                check_size(question.problem)
                self._first = question
            problem = question.problem
            # the errors of two log-normalisers move the shares of the blocks
            tol = None if problem.tol is None else problem.tol / 4
            yield replace(question, problem=replace(problem, tol=tol, rows_in_all=len(table.source)))

    def solve(self, problem: Problem, *, again: bool = False) -> Solution:
        """The answer of one block, by the cheapest plan or by the one forced."""
        solution, report = planner.solve(problem, self.table.options.plan)
        if not again:
            self.note(report.name, problem)
            self.last = report
        return solution

    def note(self, plan: str, problem: Problem) -> None:
        """Count a block, and the plan that served it."""
        self.plans[plan] += 1
        self.blocks += 1
        self.rows += problem.m

    def parameters(self) -> list[Tensor]:
        """What the score and the weighting learn."""
        modules = (self.table.score, self.table.weighting)
        return [p for module in modules for p in module.parameters() if p.requires_grad]

    def report(self) -> PlanReport:
        """The plan of most blocks, what the last block had to say about the others, and how many blocks there were."""
        names = ", ".join(f"{name} × {count}" for name, count in self.plans.most_common())
        said = (("blocks", f"{self.rows:,} rows read in {self.blocks} blocks: {names}"),)
        name = self.plans.most_common(1)[0][0]
        return PlanReport(name, (*(() if self.last is None else self.last.candidates), *said))


def _pieces(block: Block, score: Score) -> Iterator[Block]:
    """A block in pieces whose embedded keys stay small; whole where keys need no embedding of numbers."""
    numbers = [x for x in block.keys.values() if isinstance(x, Tensor)]
    columns = sum(x.shape[1] for x in numbers)
    plain = type(score).embed_keys is Score.embed_keys
    if plain or columns < FEW_COLUMNS or len(numbers) < len(block.keys):
        yield block
        return
    rows = max(1, PIECE_BYTES // sum(x.shape[1] * x.element_size() for x in numbers))
    for start in range(0, max(1, len(block.positions)), rows):
        yield block.cut(slice(start, start + rows))


class _BlockFold:
    """One pass over all blocks: the `Fold` that weightings are run on."""

    def __init__(self, stream: _Stream, *, needs_grad: bool = False):
        self.stream = stream
        self.needs_grad = needs_grad
        self.rows = len(stream.table.source)
        self.best: State | None = None
        self.bound: Tensor | None = None

    def __call__(self, accumulator: Accumulator, *context: Tensor, last: bool = False) -> State:
        state: State | None = None
        for question in self.stream.questions():
            problem = question.problem
            if isinstance(accumulator, Pooling):
                part, best = self._solved(accumulator, problem)
            else:
                fold = CellFold(problem, needs_grad=self.needs_grad)
                part = fold(accumulator, *context, last=last)
                best = fold.best
                self.stream.note("dense", problem)
            state = part if state is None else accumulator.merge(*_equally_wide(state, part))
            if best is not None:
                self._keep(best, problem.top)
        assert state is not None
        return state

    def _solved(self, weighting: Pooling, problem: Problem) -> tuple[State, State | None]:
        solution = self.stream.solve(problem)
        part = weighting.state_of(solution.value, solution.empty, *_threshold(solution, weighting))
        assert part is not None
        if problem.tol is not None:
            bound = torch.zeros_like(solution.empty, dtype=torch.float64)
            bound = bound if solution.error_bound is None else solution.error_bound
            self.bound = bound if self.bound is None else torch.maximum(self.bound, bound)
        if not problem.top:
            return part, None
        assert solution.top is not None and solution.ranks is not None
        return part, (solution.ranks, solution.top[0])

    def _keep(self, best: State, r: int) -> None:
        ranks, positions = padded_ranks(best[0], r), padded_top(best[1], best[0], r)[0]
        ranks = ranks.masked_fill(positions < 0, -torch.inf)
        keeper = Best(r, Best.by_score)
        self.best = (ranks, positions) if self.best is None else keeper.merge(self.best, (ranks, positions))


class _SelectingFold:
    """One pass over all blocks that keeps the best rows."""

    needs_grad = False

    def __init__(self, stream: _Stream):
        self.stream = stream
        self.rows = len(stream.table.source)

    def __call__(self, accumulator: Accumulator, *context: Tensor, last: bool = False) -> State:
        assert isinstance(accumulator, Best)
        state: State | None = None
        for question in self.stream.questions():
            problem = question.problem
            fold, plan = planner.selecting_fold(problem, self.stream.table.options.plan)
            self.stream.note(plan, problem)
            floor = None if state is None else state[0][..., -1]
            part = Best(min(accumulator.k, max(1, problem.m)), accumulator.rank, floor=floor)
            found = fold(part, *context, last=last)
            ranks, positions = padded_ranks(found[0], accumulator.k), padded_top(found[1], found[0], accumulator.k)[0]
            state = (ranks, positions) if state is None else accumulator.merge(state, (ranks, positions))
        assert state is not None
        return state


def _select(table: TableQuestion, weighting: Selecting) -> Answer:
    """Name the rows in one pass, then ask those rows alone."""
    with torch.no_grad():
        names = _Stream(table, with_values=False)
        positions, _ = weighting.select(cast(Fold, _SelectingFold(names)))
    rows = positions[positions >= 0].unique().cpu()
    found = table.source.take(rows.numpy())
    block = Block(found.positions, found.keys, {name: found.values[name] for name in table.names})
    question = table.of(block, table.options_of(rows, table.options), anchor=names.anchor)
    check_size(question.problem)
    solution, report = planner.solve(question.problem, table.options.plan)
    names.last = report
    if isinstance(weighting, Sampled):
        solution = _with_all_rows(table, solution)
    question = replace(question, rows=len(table.source), kept=None)
    return Answer(question, solution, names.report(), every_row=table.of_all)


def _with_all_rows(table: TableQuestion, solution: Solution) -> Solution:
    """The drawn rows, with the log-normaliser and their log-probability among all rows of the table."""
    every = copy(table)
    every.weighting, every.options = Softmax(), replace(table.options, top=0, plan=None)
    total = _pool(_Stream(every, with_values=False)).log_normalizer
    among, of_drawn = solution.log_normalizer, solution.log_prob
    assert total is not None and among is not None and of_drawn is not None
    log_prob = (of_drawn + among - total).masked_fill(solution.empty, 0.0)
    return replace(solution, log_normalizer=total, log_prob=log_prob)


def _pool(stream: _Stream) -> Solution:
    """A pooling weighting over all blocks."""
    leaves = _learning(stream)
    value, log_normalizer, empty = _Pooled.apply(stream, *leaves)  # type: ignore[misc]
    found = stream.found
    assert found is not None
    if isinstance(stream.first.problem.values, Labels):
        value = value[..., torch.from_numpy(stream.table.order_of_labels())]
    has_log = stream.table.weighting.has_log_normalizer
    return Solution(
        value,
        empty,
        log_normalizer if has_log else None,
        top=found.top,
        error_bound=found.bound,
    )


class _Found(NamedTuple):
    """What the pass over all blocks has found, beside the answer."""

    done: Done
    top: tuple[Tensor, Tensor] | None
    bound: Tensor | None


def _fold(stream: _Stream, *, needs_grad: bool) -> _Found:
    weighting = stream.table.weighting
    assert isinstance(weighting, Pooling)
    fold = _BlockFold(stream, needs_grad=needs_grad)
    done = weighting.run(fold)
    top = None
    if fold.best is not None:
        ranks, positions = fold.best
        weights = weighting.weight_of_rank(ranks, done).masked_fill(positions < 0, 0.0)
        top = positions, weights.to(stream.first.problem.dtype)
    bound = None
    if fold.bound is not None:  # values, and shares of blocks whose log-normalisers are off by as much
        bound = fold.bound + torch.expm1(2 * fold.bound)
    return _Found(done, top, bound)


class _Pooled(torch.autograd.Function):
    """The answer over all blocks; ``leaves`` are the tensors that want a gradient."""

    @staticmethod
    def forward(ctx: Any, stream: _Stream, *leaves: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        stream.found = _fold(stream, needs_grad=bool(leaves))
        done, dtype = stream.found.done, stream.first.problem.dtype
        value = done.value.masked_fill(done.empty[..., None], 0.0).to(dtype)
        log_normalizer = (done.ref.double() + done.tau).masked_fill(done.empty, -torch.inf).to(dtype)
        ctx.stream = stream
        ctx.save_for_backward(*leaves)
        ctx.mark_non_differentiable(done.empty)
        ctx.set_materialize_grads(False)
        return value, log_normalizer, done.empty

    @staticmethod
    @own_precision()
    def backward(ctx: Any, dvalue: Tensor | None, dlog: Tensor | None, _: Any) -> tuple[Any, ...]:  # type: ignore[override]
        stream, leaves = ctx.stream, ctx.saved_tensors
        if torch.is_grad_enabled():
            raise InputError(
                "second derivatives over a table on disk would read it once more for each of them: read the rows into "
                "memory with ad.Database(keys, values), and ask those"
            )
        done = stream.found.done
        dvalue = torch.zeros_like(done.value) if dvalue is None else dvalue.double()
        dlog = torch.zeros_like(done.tau) if dlog is None else dlog.double()
        dvalue = dvalue.masked_fill(done.empty[..., None], 0.0)
        dlog = dlog.masked_fill(done.empty, 0.0)
        # copies: a gradient that reached a query through the block and through the leaf would count twice
        own = [x.detach().requires_grad_() for x in leaves]
        total = [torch.zeros_like(x, dtype=torch.float64) for x in leaves]
        copies = {id(x): copy for x, copy in zip(leaves, own, strict=True)}
        parameters = {id(x) for x in stream.parameters()}
        targets = [x if id(x) in parameters else copy for x, copy in zip(leaves, own, strict=True)]
        for x in parameters:
            copies.pop(x, None)
        with torch.enable_grad():
            for question in stream.questions(lambda x: _swapped(x, copies)):
                grads = _block_gradients(stream, question.problem, targets, dvalue, dlog)
                for sum_, grad in zip(total, grads, strict=True):
                    if grad is not None:
                        sum_ += grad
        return (None, *(sum_.to(x.dtype) for sum_, x in zip(total, leaves, strict=True)))


def _block_gradients(
    stream: _Stream, problem: Problem, targets: list[Tensor], dvalue: Tensor, dlog: Tensor
) -> Sequence[Tensor | None]:
    """The part of one block in the gradients of the targets."""
    weighting, done = stream.table.weighting, stream.found.done  # type: ignore[union-attr]
    assert isinstance(weighting, Pooling)
    nothing = torch.zeros(problem.batch, problem.n, dtype=torch.float64, device=problem.device)
    if weighting.state_of(nothing[..., None], nothing > 0, nothing, nothing) is None:
        xs, layouts = problem.inputs()
        wanted = [x.requires_grad for x in xs]
        if not any(wanted):
            return [None] * len(targets)
        parts = cell_gradients(problem, xs, layouts, wanted, done, dvalue.to(problem.dtype), dlog.to(problem.dtype))
        pairs = [(x, part) for x, part in zip(xs, parts, strict=True) if part is not None]
    else:
        solution = stream.solve(problem, again=True)
        shares = _share(solution, weighting, done)
        part = shares[..., None] * dvalue
        pairs = [(solution.value, part)]
        if solution.log_normalizer is not None and weighting.has_log_normalizer:
            apart = (dvalue * (solution.value.detach().double() - done.value)).sum(-1)
            pairs.append((solution.log_normalizer, shares * (apart + dlog)))
    pairs = [(head, seed.to(head.dtype)) for head, seed in pairs if head.requires_grad]
    if not pairs:
        return [None] * len(targets)
    heads, seeds = zip(*pairs, strict=True)
    return torch.autograd.grad(heads, targets, seeds, allow_unused=True)


def _share(solution: Solution, weighting: Pooling, done: Done) -> Tensor:
    """The share (b, n) of a block in the weights of each query; 1 where the weights are not normalised."""
    if not weighting.has_log_normalizer:
        return torch.ones_like(done.tau)
    ref, tau = _threshold(solution, weighting)
    apart = torch.where(ref == done.ref, 0.0, ref.double() - done.ref.double())
    return (apart + tau.double() - done.tau).exp().masked_fill(solution.empty | done.empty, 0.0)


def _threshold(solution: Solution, weighting: Pooling) -> tuple[Tensor, Tensor]:
    """(ref, τ) of a block: their sum is its log-normaliser."""
    if solution.threshold is not None:
        return solution.threshold
    log = solution.log_normalizer
    if log is None:
        nothing = torch.zeros_like(solution.empty, dtype=torch.float64)
        return nothing, nothing
    log = log.detach().double()
    return (log, torch.zeros_like(log)) if isinstance(weighting, Softmax) else (torch.zeros_like(log), log)


def _equally_wide(a: State, b: State) -> tuple[State, State]:
    """Distributions over texts, as wide as the names that are known by now."""

    def pair(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if x.ndim < 3 or x.shape[-1] == y.shape[-1]:
            return x, y
        width = max(x.shape[-1], y.shape[-1])
        wide = [torch.nn.functional.pad(z, (0, width - z.shape[-1])) for z in (x, y)]
        return wide[0], wide[1]

    pairs = [pair(x, y) for x, y in zip(a, b, strict=True)]
    return tuple(x for x, _ in pairs), tuple(y for _, y in pairs)


def _learning(stream: _Stream) -> list[Tensor]:
    """Every tensor that wants a gradient, once."""
    if not torch.is_grad_enabled():
        return []
    table = stream.table
    found: dict[int, Tensor] = {}

    def note(x: Tensor) -> Tensor:
        if x.requires_grad:
            found[id(x)] = x
        return x

    options = table.options
    for part in (table.queries, options.bias, options.key_weights, *table.source.learning):
        _map_tensors(part, note)
    for parameter in stream.parameters():
        note(parameter)
    return list(found.values())


def _swapped(x: Any, copies: Mapping[int, Tensor]) -> Any:
    return _map_tensors(x, lambda y: copies.get(id(y), y))


def _swapped_options(options: Options, swap: Callable[[Any], Any]) -> Options:
    return replace(options, bias=swap(options.bias), key_weights=swap(options.key_weights))


def _map_tensors(x: Any, fn: Callable[[Tensor], Tensor]) -> Any:
    """The same, with ``fn`` of every tensor in it."""
    if isinstance(x, Tensor):
        return fn(x)
    return {name: _map_tensors(part, fn) for name, part in x.items()} if isinstance(x, dict) else x
