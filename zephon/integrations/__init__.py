"""Doors to training frameworks: one module for each, which imports it; nothing else in Zephon does."""
