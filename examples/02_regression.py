"""Kernel regression whose bandwidth is learned by leaving one point out: python examples/02_regression.py"""

import torch

import attendb as ad


def truth(x: torch.Tensor) -> torch.Tensor:
    return 2 * x.sin() + x


generator = torch.Generator().manual_seed(0)
x = (5 * torch.rand(200, 1, dtype=torch.float64, generator=generator)).sort(dim=0).values
y = truth(x) + 0.5 * torch.randn(200, 1, dtype=torch.float64, generator=generator)
places = torch.linspace(0, 5, 101, dtype=torch.float64)[:, None]


def distance_from_truth(score: ad.Score) -> float:
    with torch.no_grad():
        fit = ad.attend(places, x, y, score=score).value
    return float((fit - truth(places)).square().mean().sqrt())


score = ad.Gaussian(2.0, learn=True)
print(f"before: bandwidth {score.bandwidth.item():.2f}, distance from the truth {distance_from_truth(score):.3f}")

# No point may answer for itself: with its own key in the table, a bandwidth of 0 would look perfect.
adam = torch.optim.Adam(score.parameters(), lr=0.1)
for _ in range(40):
    without_itself = ad.attend(x, x, y, score=score, exclude=torch.arange(len(x))).value
    loss = (without_itself - y).square().mean()
    adam.zero_grad()
    loss.backward()
    adam.step()

print(f"after:  bandwidth {score.bandwidth.item():.2f}, distance from the truth {distance_from_truth(score):.3f}")
