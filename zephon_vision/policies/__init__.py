"""Image policies: one module per model family, one class per policy, each an entry point of `zephon.image_policies`."""
