"""Readers of file formats; each module is one entry point of `zephon.formats`, against `zephon.plugin` and the helpers under it."""
