"""Writes `golden/mistral_pixels.npz`: pixels by Mistral's own library. Needs `mistral-common` and `opencv-python-headless`.

PYTHONPATH=.:tests python tests/vision/policies/mistral_pixels.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image
from vision.pictures import scene

GOLDEN = Path(__file__).with_name("golden") / "mistral_pixels.npz"
CASES = {
    # name: source height and width, patch_size, spatial_merge_size, longest_edge
    "shrunk": (150, 211, 16, 1, 64),
    "a little larger": (50, 75, 16, 1, 1024),
    "merged": (97, 60, 14, 2, 84),
    "as it is": (48, 32, 16, 1, 64),
}


def picture(height: int, width: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """A scene with hard edges, beyond which the kernel shoots."""
    made = scene(height, width, seed=height)
    made[height // 3 : height // 2, width // 4 : width // 2] = 255
    made[height // 2 : height // 2 + 3] = 0
    return made


def main() -> None:
    import mistral_common
    from mistral_common.protocol.instruct.chunk import ImageChunk
    from mistral_common.tokens.tokenizers.image import ImageConfig, ImageEncoder, SpecialImageIDs

    arrays = {}
    for name, (height, width, patch, merge, longest) in CASES.items():
        encoder = ImageEncoder(ImageConfig(patch, longest, merge), SpecialImageIDs(1, 2, 3))
        source = picture(height, width)
        arrays[f"{name}: source"] = source
        arrays[f"{name}: pixels"] = encoder(ImageChunk(image=Image.fromarray(source))).image.astype(np.float32)
    np.savez_compressed(GOLDEN, **arrays)
    print(mistral_common.__version__, GOLDEN.stat().st_size)


if __name__ == "__main__":
    main()
