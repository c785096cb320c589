"""A curriculum: first mostly easy records, then a change of weights that is part of the recipe, then the end of the data."""

from collections import Counter

from zephon import Dataset, MixtureSpec, Phase, Pipeline, StaticMixtureWorkSource

easy = Dataset.from_records("easy", [{"level": "easy", "number": i} for i in range(600)])
hard = Dataset.from_records("hard", [{"level": "hard", "number": i} for i in range(300)])

source = StaticMixtureWorkSource(
    datasets=[easy, hard],
    mixture=MixtureSpec(
        phases=[
            Phase(weights={"easy": 0.9, "hard": 0.1}, records=400),  # over all lanes together
            Phase(weights={"easy": 0.5, "hard": 0.5}),  # until the end
        ]
    ),
    exhausted={"easy": "redistribute", "hard": "stop"},  # the run ends with the hard records
    chunk_size=25,
    seed=7,
)
pipeline = Pipeline(source).batch(microbatch_size=10).options(lanes=2)

seen: Counter[str] = Counter()
for number, batch in enumerate(pipeline, 1):
    seen.update(batch.to_pydict()["level"])
    if number % 20 == 0:
        print(f"after {number * 10} records: {dict(seen)}")

rows = pipeline.accounting()["rows"]
print({name: f"{side['in']} in, {side['out']} out" for name, side in rows["by_dataset"].items()})
assert rows["in"] == rows["out"]
assert rows["by_dataset"]["hard"]["out"] == 300
