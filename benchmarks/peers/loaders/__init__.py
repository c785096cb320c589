"""One module per peer: `CASES` maps a case to a function from the run's settings to a `Loader`. They run in the peer's own process."""
