"""Which stored rows a prediction came from, and what it is without them: python examples/05_explain.py"""

from importlib.resources import files

import pandas as pd

import attendb as ad

with (files("attendb") / "data" / "power_plant.csv").open() as file:
    table = pd.read_csv(file)
*inputs, output = table.columns
asked, stored = table.iloc[:1], table.iloc[1:].reset_index(drop=True)

# Two rows are as near as their columns differ, counted in fractions of each column's spread.
score = ad.Gaussian((0.1 * stored[inputs].std()).tolist())
answer = ad.attend(asked[inputs].to_numpy(), stored[inputs].to_numpy(), stored[output].to_numpy(), score=score, top=5)
prediction, truth = answer.value.item(), asked[output].item()
print(f"asked:  {asked[inputs].to_string(header=False, index=False)}")
print(f"answer: {prediction:.2f} MW, in truth {truth:.2f} MW, from these {len(stored):,} hours:\n")

best = answer.top.positions[0]
rows = stored.iloc[best].assign(weight=answer.top.weights[0].round(3))
print(rows.to_string(index=False))
print(f"\nThese five carry {answer.top.captured.item():.0%} of the weight.")

without = ad.attend(
    asked[inputs].to_numpy(),
    stored[inputs].to_numpy(),
    stored[output].to_numpy(),
    score=score,
    exclude=best[:1],
)
print(f"Without the first of them the answer would be {without.value.item():.2f} MW.")
