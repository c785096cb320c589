"""From text files to tensors: tokenize, pack, shuffle, batch; then stop in the middle and go on on another number of ranks."""

import json
import pkgutil
import tempfile
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from zephon import Dataset, Pipeline, StaticMixtureWorkSource, merge_states


def make_data(folder: Path) -> tuple[Path, Path]:
    """One JSON line per module of the standard library, and a tokenizer that was trained on them."""
    texts = [Path(m.module_finder.path, f"{m.name}.py") for m in pkgutil.iter_modules() if hasattr(m.module_finder, "path")]
    lines = [json.dumps({"text": p.read_text("utf-8")}) for p in texts if p.is_file() and p.stat().st_size < 20_000]
    (folder / "code.jsonl").write_text("\n".join(lines[:100]))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(
        lines[:20], trainers.BpeTrainer(vocab_size=600, special_tokens=["<|endoftext|>"], show_progress=False)
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "code.jsonl", folder / "tokenizer.json"


def make_pipeline(rank: int, world: int) -> Pipeline:
    return (
        Pipeline(
            StaticMixtureWorkSource(Dataset.from_path("code", data), seed=42, chunk_size=16)
        )  # small: for quick first batches
        .tokenize(tokenizer_id=str(tokenizer), field="text")
        .pack_flat(max_length=257, algorithm="best_fit_wrap")
        .shuffle(buffer_size=64)
        .batch(microbatch_size=2)
        .options(lanes=4, dp_rank=rank, dp_size=world, runner="inline")
    )


with tempfile.TemporaryDirectory() as temporary:
    data, tokenizer = make_data(Path(temporary))

    ranks = [make_pipeline(rank, 2) for rank in range(2)]  # in real life each in its own process
    for pipeline in ranks:
        batches = iter(pipeline)
        for _ in range(6):
            training = next(batches).to_training()
        batches.close()
    print({name: getattr(value, "shape", value) for name, value in training.items()})

    state = merge_states(pipeline.checkpoint() for pipeline in ranks)  # plain values: json.dumps takes it
    after = next(iter(make_pipeline(0, 1).restore(state)))  # one rank goes on with all lanes
    print(f"lane {after.lane}, step {after.step}: {after.num_tokens} tokens, digest {after.sha256()[:16]}")
