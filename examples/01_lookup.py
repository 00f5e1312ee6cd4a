"""A table asked by exact key, then by similarity: python examples/01_lookup.py"""

import attendb as ad

db = ad.Database(
    keys=["Zhang", "Lipton", "Li", "Smola", "Hu", "Werness"],
    values=["Aston", "Zachary", "Mu", "Alex", "Rachel", "Brent"],
)
print("exact key 'Li':", db.lookup("Li"))

# A misspelt key has no exact answer, but a nearest one.
try:
    db.lookup("Smolla")
except KeyError as error:
    print("exact key 'Smolla':", error)
nearest = db.attend("Smolla", score=ad.EditSimilarity(), weighting=ad.Nearest(at_least=0.5))
print("nearest to 'Smolla':", nearest.value)

# Softmax weights give every row a part; for texts the answer is a distribution over them.
answer = db.attend("Lipson", score=ad.EditSimilarity(), weighting=ad.Softmax(temperature=0.2))
names, chances = answer.distribution()
for name, chance in sorted(zip(names, chances[0], strict=True), key=lambda pair: -pair[1]):
    print(f"{chance:6.1%}  {name}")
