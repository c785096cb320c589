"""Vision-language operators, each an entry point of the group `zephon.operators`, and image policies (`zephon.image_policies`)."""
