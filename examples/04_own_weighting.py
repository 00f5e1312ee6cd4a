"""A weighting of your own, entmax with exponent 1.25, in three lines: python examples/04_own_weighting.py

    α_i = max(0, (a_i − max a)/4 − τ)⁴,   τ such that Σ α = 1

Peters, Niculae and Martins 2019 (equation 5): exponent 1 is softmax, 2 is sparsemax.
"""

import torch
from torch import Tensor

import attendb as ad


class Entmax125(ad.Thresholded):
    """Entmax with exponent 1.25: the threshold, the pooling and all gradients follow from `weight`."""

    start = -1.0  # the τ at which one row alone has weight 1

    def weight(self, z: Tensor, tau: Tensor) -> Tensor:
        return (z / 4 - tau).clamp(min=0) ** 4


query = torch.tensor([[1.0]], dtype=torch.float64, requires_grad=True)
keys = torch.tensor([[0.0], [1.0], [1.5], [2.0], [2.5]], dtype=torch.float64)
values = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0], dtype=torch.float64)

for weighting in (ad.Softmax(), Entmax125(), ad.Entmax15(), ad.Sparsemax()):
    answer = ad.attend(query, keys, values, score=ad.Dot(), weighting=weighting)
    (gradient,) = torch.autograd.grad(answer.value.sum(), query)
    shown = "  ".join(f"{weight:.4f}" for weight in answer.weights()[0].tolist())
    print(f"{type(weighting).__name__:10} {shown}   gradient {gradient.item():.4f}")

good = torch.autograd.gradcheck(
    lambda q, k, v: ad.attend(q, k, v, score=ad.Dot(), weighting=Entmax125()).value,
    (query, keys.clone().requires_grad_(), values.clone().requires_grad_()),
)
print("gradients agree with finite differences:", good)
