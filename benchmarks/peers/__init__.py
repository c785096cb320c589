"""Zephon beside its peers: the same cases, interleaved, each in a fresh process of the peer's own virtual environment.

`python -m benchmarks.peers` measures. What runs in a peer's process (`child`, `measuring`, `tools`, `writers`, `loaders/`) imports only
relatively and needs nothing of ours, so that the public package of the same name can be measured too.
"""
