"""The operators that come with the core; each is registered under the entry-point group `zephon.operators`, like anybody's."""
