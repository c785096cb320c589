"""What is read, in which order: pure arithmetic, no I/O."""
