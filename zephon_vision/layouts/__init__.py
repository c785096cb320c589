"""How data sets keep documents with images: one module per layout, each to the canonical segments of `zephon_vision.columns`."""
