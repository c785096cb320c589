"""One script per yardstick: the bare library and ours on the same work, in turns. `python -m benchmarks` runs all of them."""
