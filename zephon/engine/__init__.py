"""Runs a plan through operators, lane by lane."""
