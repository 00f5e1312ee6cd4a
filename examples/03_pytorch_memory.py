"""A module whose keys and values are learned, a memory of 32 slots: python examples/03_pytorch_memory.py"""

import torch
from torch import Tensor, nn

import attendb as ad


class Memory(nn.Module):
    """Answers each query from slots that are parameters: Σ_i α(q, k_i) v_i."""

    def __init__(self, slots: int, key_width: int, value_width: int):
        super().__init__()
        self.keys = nn.Parameter(torch.randn(slots, key_width))
        self.values = nn.Parameter(torch.zeros(slots, value_width))
        self.score = ad.Gaussian(0.5, learn=True)

    def forward(self, queries: Tensor) -> Tensor:
        return ad.attend(queries, self.keys, self.values, score=self.score).value


torch.manual_seed(0)
points = torch.rand(500, 2) * 4 - 2
labels = (points.norm(dim=-1) > 1.2).long()  # inside or outside of a circle

memory = Memory(slots=32, key_width=2, value_width=2)
adam = torch.optim.Adam(memory.parameters(), lr=0.05)
for step in range(61):
    logits = memory(points)
    loss = nn.functional.cross_entropy(logits, labels)
    if step % 20 == 0:
        right = (logits.argmax(-1) == labels).float().mean()
        print(f"step {step:2}: loss {loss.item():.3f}, {right.item():.1%} right")
    adam.zero_grad()
    loss.backward()
    adam.step()

where = ad.attend(torch.zeros(1, 2), memory.keys, memory.values, score=memory.score, top=3)
print("the centre of the circle is answered by slots", where.top.positions[0].tolist())
