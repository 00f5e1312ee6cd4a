"""The network of the deep similarity: numbers in bins, categories, one residual block, two heads, and a correction.

x → [bins of each number · weights, categories, gaps] → linear → + block → norm → linear + A z = φ, and g
z: the standardised numbers, by which φ can tell near rows apart where the network smooths; g: what the row says alone
φ(x) − φ(x_i) → linear → ReLU → linear: T, what the case x_i adds to its vote for x
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn

from .encoding import Rows

BINS = 160  # at most
FEWEST_BINS = 32
ROWS_OF_A_BIN = 48
WIDTH_OF_A_NUMBER = 12
WIDTH = 96
DISTANCE_WIDTH = 32
CORRECTION_WIDTH = 64
STRAIGHTNESS = 0.5  # the spread of A at the start
SHARPNESS = 3.0  # at the start two random rows differ by about 9 in the square of φ


class Bins(nn.Module):
    """Piecewise linear embedding of numbers: how far each bin between quantiles is filled, times learned weights.

        b_t(x) = clip((x − e_t) / (e_{t+1} − e_t), 0, 1)      embedding = Σ_t b_t w_t + z w + c

    z is the standardised number, cut at ±4. The first bin goes on below its lower end and the last above its upper one,
    by one width. A missing number fills no bin. ``numbers``: how many columns.
    Cost: of one bin a number, however many there are: the bins below it are filled, and summed up once.

    Source: Gorishniy et al. 2022, "On embeddings for numerical features in tabular deep learning", section 3.2.
    """

    low: Tensor
    size: Tensor
    count: Tensor
    centre: Tensor
    spread: Tensor

    def __init__(self, numbers: int):
        super().__init__()
        wide = torch.float64
        self.register_buffer("low", torch.full((numbers, BINS), torch.inf, dtype=wide))
        self.register_buffer("size", torch.full((numbers, BINS), torch.inf, dtype=wide))
        self.register_buffer("count", torch.zeros(numbers, dtype=torch.int64))
        self.register_buffer("centre", torch.zeros(numbers, dtype=wide))
        self.register_buffer("spread", torch.full((numbers,), torch.inf, dtype=wide))
        self.weight = nn.Parameter(torch.randn(numbers, BINS, WIDTH_OF_A_NUMBER) / math.sqrt(BINS))
        self.slope = nn.Parameter(0.3 * torch.randn(numbers, WIDTH_OF_A_NUMBER))
        self.bias = nn.Parameter(torch.zeros(numbers, WIDTH_OF_A_NUMBER))

    def place(self, numbers: Tensor) -> None:
        """Put the bins between quantiles of these rows (n, p); a column without spread gets none.

        A third of the quantiles are of the rows where a value that occurs c times counts √c times: a column that is
        nearly always 0 keeps bins for its other values.
        """
        bins = min(BINS, max(FEWEST_BINS, len(numbers) // ROWS_OF_A_BIN))
        for j in range(numbers.shape[1]):
            x = numbers[:, j]
            x = x[~x.isnan()]
            values, often = x.unique(return_counts=True)
            if len(values) < 2:
                continue
            own = [
                _quantiles(values, often.double(), bins - bins // 3),
                _quantiles(values, often.double().sqrt(), bins // 3),
            ]
            edges = torch.cat(own).unique()
            count = len(edges) - 1
            self.low[j, :count] = edges[:-1]
            self.size[j, :count] = edges[1:] - edges[:-1]
            self.count[j] = count
            scale = x.abs().max()  # squares of large numbers overflow
            self.centre[j] = (x / scale).mean() * scale
            self.spread[j] = (x / scale).std(correction=0) * scale

    def standardised(self, numbers: Tensor) -> Tensor:
        """z (n, p), in the dtype of the weights; a missing number is 0."""
        z = ((numbers - self.centre) / self.spread).to(self.weight.dtype)
        return z.nan_to_num(nan=0.0).clamp(-4.0, 4.0)

    def forward(self, numbers: Tensor) -> Tensor:
        """(n, p · width) of numbers (n, p), in the dtype of the weights."""
        dtype, p = self.weight.dtype, len(self.count)
        x = numbers.T.contiguous()
        last = (self.count - 1).clamp(min=0)[:, None]
        bin_ = torch.minimum((torch.searchsorted(self.low, x, right=True) - 1).clamp(min=0), last)  # of NaN: the last
        filled = ((x - self.low.gather(1, bin_)) / self.size.gather(1, bin_)).nan_to_num(nan=0.0)
        filled = filled.clamp(min=-1.0, max=2.0)
        filled = torch.where(bin_ == 0, filled, filled.clamp(min=0.0))
        filled = torch.where(bin_ == last, filled, filled.clamp(max=1.0)).to(dtype)
        below = nn.functional.pad(self.weight.cumsum(1), (0, 0, 1, 0))[:, :-1]  # the sum of the bins before each
        table = torch.cat([below, self.weight], 2).flatten(0, 1)
        at = (bin_ + BINS * torch.arange(p, device=x.device)[:, None]).T
        before, own = nn.functional.embedding(at, table).split(WIDTH_OF_A_NUMBER, 2)
        known = (~numbers.isnan()).to(dtype)[..., None]
        z = self.standardised(numbers)
        out = known * before + filled.T[..., None] * own
        return (out + z[..., None] * self.slope + self.bias).flatten(1)


def _quantiles(values: Tensor, weights: Tensor, count: int) -> Tensor:
    """The least, the greatest and ``count`` − 1 values between, at equal shares of the weights."""
    reached = weights.cumsum(0)
    shares = torch.linspace(0, 1, count + 1, dtype=torch.float64)
    reached = (reached - reached[0]) / (reached[-1] - reached[0])
    return values[torch.searchsorted(reached, shares).clamp(max=len(values) - 1)]


class Network(nn.Module):
    """From encoded rows to φ (n, d) and g (n, outputs). ``levels``: how many each categorical column has."""

    gaps: Tensor

    def __init__(self, numbers: int, gaps: int, levels: list[int], outputs: int):
        super().__init__()
        self.levels, self.outputs = levels, outputs
        self.register_buffer("gaps", torch.zeros(gaps, dtype=torch.int64))  # columns in which cells are missing
        self.bins = Bins(numbers)
        self.mix = nn.Linear(numbers * WIDTH_OF_A_NUMBER + gaps + sum(levels), WIDTH)
        self.block = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Dropout(0.0), nn.Linear(2 * WIDTH, WIDTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.distance = nn.Linear(WIDTH, DISTANCE_WIDTH)
        self.straight = nn.Linear(numbers, DISTANCE_WIDTH, bias=False)  # A
        nn.init.normal_(self.straight.weight, std=STRAIGHTNESS)
        self.alone = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Dropout(0.0), nn.Linear(WIDTH, outputs))
        self.correction = nn.Sequential(
            nn.Linear(DISTANCE_WIDTH, CORRECTION_WIDTH),
            nn.ReLU(),
            nn.Dropout(0.0),
            nn.Linear(CORRECTION_WIDTH, outputs, bias=False),
        )
        nn.init.zeros_(cast(nn.Linear, self.correction[-1]).weight)
        self.log_sharpness = nn.Parameter(torch.tensor(math.log(SHARPNESS)))

    def forward(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """φ and g, in float32."""
        device = self.norm.weight.device
        numbers, codes = rows.numbers.to(device), rows.codes.to(device)
        parts = [self.bins(numbers), numbers[:, self.gaps].isnan().to(self.norm.weight.dtype)]
        for j, count in enumerate(self.levels):
            seen = (codes[:, j] >= 0) & (codes[:, j] < count)
            one_hot = nn.functional.one_hot(torch.where(seen, codes[:, j], count), count + 1)
            parts.append(one_hot[:, :count].to(self.norm.weight.dtype))
        x = self.mix(torch.cat(parts, 1))
        x = self.norm(x + self.block(x))
        scale = self.log_sharpness.exp() / math.sqrt(DISTANCE_WIDTH)
        phi = self.distance(x) + self.straight(self.bins.standardised(numbers))
        return phi * scale, self.alone(x)

    def moved(self, difference: Tensor) -> Tensor:
        """T (..., outputs) of φ(x) − φ(x_i) (..., d): 0 where the rows are equal."""
        return self.correction(difference) - self.correction(torch.zeros_like(difference[..., :1, :]))

    def drop(self, of_block: float, of_heads: float) -> None:
        """Set which shares of the features of the block, and of g and T, each step of learning leaves out."""
        for parts, share in ((self.block, of_block), (self.alone, of_heads), (self.correction, of_heads)):
            for part in parts:
                if isinstance(part, nn.Dropout):
                    part.p = share

    @torch.no_grad()
    def sharpen(self, factor: float) -> None:
        """Multiply φ by a factor; T stays what it is."""
        self.log_sharpness.add_(math.log(factor))
        cast(nn.Linear, self.correction[0]).weight.div_(factor)
