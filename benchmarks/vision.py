"""Images: headers, decode and resize, the whole pipeline, beside the bare libraries and beside the model's own processor in a DataLoader."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy.typing as npt
import pyarrow as pa
import simplejpeg  # type: ignore[import-untyped]
import torch
from PIL import Image
from tokenizers import Tokenizer

from benchmarks.harness import CORES, Result, Setting, alternate, rates, script
from benchmarks.vision_data import Illustrated, illustrated, special_tokens
from zephon import Dataset, Pipeline, StaticMixtureWorkSource
from zephon_vision.headers import read_header
from zephon_vision.policies.base import load
from zephon_vision.probe_images import ProbeImages

_POLICY = "qwen2_5_vl"
_MAX_LENGTH, _MAX_PATCHES = 8192, 32768
_PASSES, _PIPELINE_PASSES = 3, 8
"""Over the documents, about 500 images. Of the pipeline more: until its buffers are full it reads more than it decodes, which is 0.2 s of
two cores, the same however long it runs."""

Size = tuple[int, int]


def measure(setting: Setting) -> list[Result]:
    """Photographs of the web's sizes; every pool has two threads or processes, torch one thread in each."""
    torch.set_num_threads(1)  # the pools' threads are those that work; torch's own would only get in their way
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    made = illustrated(setting.folder, 12 if setting.quick else 160)
    return [
        _probe(made, setting),
        _decode(made, 'siglip{"size": 384}', _decoded, setting),
        _decode(made, _POLICY, _decoded, setting),
        _decode(made, _POLICY, _decoded_blocks, setting),
        _beside_libraries(made, _decoded, setting),
        _beside_libraries(made, _decoded_blocks, setting),
        _beside_processor(made, setting),
    ]


def _probe(made: Illustrated, setting: Setting) -> Result:
    files = made.images
    times = -(-20_000 // len(files))
    group = pa.RecordBatch.from_pydict({"images": pa.array([[f] for f in files], pa.list_(pa.binary()))})
    apply: Any = ProbeImages().bind()

    def bare() -> float:
        for _ in range(times):
            for data in files:
                with Image.open(io.BytesIO(data)) as image:
                    assert image.size
        return float(times * len(files))

    def ours() -> float:
        for _ in range(times):
            apply(group)
        return float(times * len(files))

    note = "one thread; bare: `Image.open(...).size`, which doesn't look at the orientation"
    return rates("probe_images", *alternate(bare, ours, repeats=setting.repeats), unit="images/s", note=note)


def _decode(made: Illustrated, policy: str, bare_one: Callable[[bytes, Size], object], setting: Setting) -> Result:
    files, passes = made.images, 1 if setting.quick else _PASSES
    sizes = [_target(data, policy) for data in files]
    # in memory beforehand, as the bare side's files are: what is measured is not how fresh memory is filled with them
    photographs = Dataset.from_records("photographs", [{"image": {"bytes": data, "path": None}} for data in files])

    def bare() -> float:
        with ThreadPoolExecutor(CORES) as pool:
            return float(sum(1 for _ in pool.map(bare_one, files * passes, sizes * passes)))

    def ours() -> float:
        pipeline = (
            Pipeline(StaticMixtureWorkSource([photographs], seed=1, stop_after_passes=passes))
            .decode_images(column="image", policy=policy)
            .batch(4)
            .options(lanes=8, runner="threads", workers=CORES)
        )
        return float(sum(len(batch) - batch.empty for batch in pipeline))

    theirs, mine = alternate(bare, ours, repeats=setting.repeats)
    assert theirs[0].work == mine[0].work, "not the same work"
    name = policy.partition("{")[0]
    note = "bare: simplejpeg, torch's antialiased bicubic to the same sizes"
    if bare_one is _decoded:
        note += "; ours makes the model's blocks of it, too"
        return rates(f"decode + resize, {name}", theirs, mine, unit="images/s", at_least=0.95, note=note)
    note += ", the model's blocks as its processor in `transformers` cuts them"
    return rates(f"decode + resize + blocks, {name}", theirs, mine, unit="images/s", note=note)


def _decoded(data: bytes, size: Size) -> torch.Tensor:
    """What the libraries do, and nothing else."""
    rgb = torch.from_numpy(simplejpeg.decode_jpeg(data, "RGB", strict=True))
    image = rgb.permute(2, 0, 1)[None]
    return torch.nn.functional.interpolate(image, size=size, mode="bicubic", align_corners=False, antialias=True)


def _decoded_blocks(data: bytes, size: Size) -> torch.Tensor:
    """The same with Qwen2.5-VL's blocks: reshape and permute."""
    policy: Any = load(_POLICY)
    patch, merge = policy.patch_size, policy.merge_size
    rows, columns = (side // (patch * merge) for side in size)
    cut = _decoded(data, size).reshape(3, rows, merge, patch, columns, merge, patch)
    return cut.permute(1, 4, 2, 5, 0, 3, 6).reshape(-1, 3 * patch * patch)


def _target(data: bytes, policy: str) -> Size:
    header = read_header(data)
    return load(policy).plan(header.height, header.width).sizes[0]


def _beside_libraries(made: Illustrated, bare_one: Callable[[bytes, Size], object], setting: Setting) -> Result:
    encoder = made.encoder()
    documents = [
        (
            [text for text in row["texts"] if text is not None],
            [(image["bytes"], _target(image["bytes"], _POLICY)) for image in row["images"] if image is not None],
        )
        for row in made.rows
    ]
    passes = 1 if setting.quick else _PIPELINE_PASSES

    def bare() -> float:
        with ThreadPoolExecutor(CORES) as pool:
            return float(sum(pool.map(lambda document: _bare_document(encoder, bare_one, *document), documents * passes)))

    theirs, mine = alternate(bare, lambda: _ours(made, passes), repeats=setting.repeats)
    _check_work(theirs[0].work, mine[0].work)
    note = "bare: tokenizers, simplejpeg and torch's resize on the same documents in memory, a thread pool of two"
    if bare_one is _decoded:
        note += "; ours makes the model's blocks, too"
        return rates("vision pipeline, threads", theirs, mine, unit="images/s", at_least=0.9, note=note)
    note += ", and the model's blocks as its processor in `transformers` cuts them"
    return rates("vision pipeline, threads, blocks on both sides", theirs, mine, unit="images/s", note=note)


def _beside_processor(made: Illustrated, setting: Setting) -> Result:
    with _processor_loader(made, made.rows) as loader:
        theirs, mine = alternate(loader, lambda: _ours(made, 1), repeats=setting.repeats)
    _check_work(theirs[0].work, mine[0].work)
    note = "bare: Pillow and `Qwen2_5_VLProcessor` document by document in a DataLoader of two workers (after their start)"
    against = rates("vision pipeline, threads", theirs, mine, unit="images/s", at_least=3.0, note=note)
    return replace(against, cpu_ratio=None)  # the workers' CPU time is not counted while they live


def _check_work(theirs: float, mine: float) -> None:
    # a long document is cut, and a piece that is an image alone trains on nothing: left out, and counted
    assert 0.99 * theirs <= mine <= theirs, f"not the same work: {theirs:.0f} and {mine:.0f} images"


def _ours(made: Illustrated, passes: int) -> float:
    """To tensors, as a trainer takes them."""
    return float(sum(len(batch.to_training().get("image_grid_thw", ())) for batch in pipeline(made, passes)))


def pipeline(made: Illustrated, passes: int = 1) -> Pipeline:
    """The pipeline of the front page, over some passes."""
    return (
        Pipeline(StaticMixtureWorkSource([Dataset.from_path("pages", made.parquet)], seed=1, stop_after_passes=passes))
        .interleave(layout="auto")
        .probe_images()
        .tokenize_interleaved(tokenizer=str(made.tokenizer), images=_POLICY, max_length=_MAX_LENGTH, over_long="split")
        .pack_multimodal(max_length=_MAX_LENGTH, max_patches=_MAX_PATCHES, open_bins=32)
        .shuffle(buffer_size=64)
        .decode_images()
        .batch(1)
        .options(lanes=4, runner="threads", workers=CORES)
    )


def _bare_document(
    encoder: Tokenizer, bare_one: Callable[[bytes, Size], object], texts: list[str], images: list[tuple[bytes, Size]]
) -> int:
    encoder.encode_batch_fast(texts, add_special_tokens=False)
    for data, size in images:
        bare_one(data, size)
    return len(images)


@contextmanager
def _processor_loader(made: Illustrated, rows: list[dict[str, Any]]) -> Iterator[Callable[[], float]]:
    """A DataLoader with workers of its own that stay, over documents that the model's processor makes ready."""
    from torch.utils.data import DataLoader

    loader: Any = DataLoader(
        _Processed(str(made.tokenizer), special_tokens(made.tokenizer), rows),  # type: ignore[arg-type]
        batch_size=None,
        shuffle=True,
        num_workers=CORES,
        persistent_workers=True,
        multiprocessing_context="spawn",  # a fork would take the threads' locks along
    )

    def run() -> float:
        return float(sum(len(fields["image_grid_thw"]) for fields in loader))

    run()  # workers start, and load their processors
    yield run


class _Processed:
    """Documents by the model's own processor."""

    def __init__(self, tokenizer: str, special: list[str], rows: list[dict[str, Any]]) -> None:
        self._tokenizer, self._special, self._rows = tokenizer, special, rows
        self._processor: Any = None

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, npt.NDArray[Any]]:
        if self._processor is None:
            self._processor = _processor(self._tokenizer, self._special)
        row = self._rows[index]
        images = [Image.open(io.BytesIO(i["bytes"])).convert("RGB") for i in row["images"] if i is not None]
        shown = "<|vision_start|><|image_pad|><|vision_end|>"
        text = "".join(shown if part is None else part for part in row["texts"])
        made = self._processor(text=[text], images=images, return_tensors="pt")
        return {name: made[name] for name in ("input_ids", "pixel_values", "image_grid_thw")}


def _processor(tokenizer: str, special: list[str]) -> Any:
    import transformers

    kinds: Any = transformers
    kind = getattr(kinds, "Qwen2VLImageProcessorFast", None) or kinds.Qwen2VLImageProcessor
    policy: Any = load(_POLICY)
    size = {"shortest_edge": policy.min_pixels, "longest_edge": policy.max_pixels}
    fast = kinds.Qwen2TokenizerFast(
        tokenizer_object=Tokenizer.from_file(tokenizer), additional_special_tokens=special, pad_token=special[0]
    )
    return kinds.Qwen2_5_VLProcessor(
        image_processor=kind(size=size), tokenizer=fast, video_processor=kinds.Qwen2VLVideoProcessor()
    )


if __name__ == "__main__":
    script(measure)
