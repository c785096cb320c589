"""Readers of file formats; each module is one entry point of the group `zephon.formats`, against `zephon.plugin` alone."""
