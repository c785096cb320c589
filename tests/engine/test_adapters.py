"""What adapters of training frameworks write works as it stands, and what contradicts itself is refused (COMPAT.md)."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from operators.tokenizer_kinds import tokenizer

from zephon import Dataset, Pipeline, SampleBatch
from zephon.errors import CheckpointError, LaneCountError, RecipeError
from zephon.work import MixtureSpec, StaticMixtureWorkSource, TokenEstimation

TOKENIZER = tokenizer("gpt2")


@pytest.fixture
def source(tmp_path: Path) -> StaticMixtureWorkSource:
    lines = [json.dumps({"text": f"hello world {i} " * (i % 9 + 1), "id": i}) for i in range(200)]
    (tmp_path / "data.jsonl").write_text("\n".join(lines))
    return StaticMixtureWorkSource(
        datasets=[Dataset.from_path(name="d", path=tmp_path, fmt=None)],
        mixture=MixtureSpec({"d": 1.0}),
        chunk_size=16,
        seed=1,
        token_estimation=TokenEstimation(primer="measure", calibration_samples=8),
        exhausted_policy=None,
    )


def build(source: StaticMixtureWorkSource, **options: Any) -> Pipeline:
    """Both styles of use: chained and in place, with every spelling."""
    pipeline = Pipeline(source)
    pipeline.prefetch(buffer_size=2, parallelism=2).fetch_parallelism(2)
    pipeline.decode_text()
    pipeline.map_transform(lambda record: record if record["id"] % 7 else None)
    pipeline.tokenize(
        tokenizer=TOKENIZER, field="text", add_attention_mask=False, max_length=24, split_long_samples=True, special_tokens="eos",
        bos_token_id=None, eos_token_id=5, truncation=False, preserve_upstream_payload=False, missing_field="error", parallelism=2,
    ).pack_sequences(
        max_length=33, algorithm="best_fit", num_bins=4, max_sequences_per_bin=8, pad_token_id=None, emit_positions=True,
        drop_oversized=False, min_sequence_length=0, homogeneity="none", groups=None, parallelism=2,
    ).shuffle(buffer_size=None, seed=3).batch(2, drop_last=True)  # fmt: skip
    settings = {
        "runner": "threads", "mtp_mode": False, "deterministic": True, "dp_degree": 2, "dp_group_id": 0, "world_size": 2,
        "global_rank": 0, "canonical_replicas": 4, "flush_every_k_chunks": 4, "io_options": {"cache": {"enabled": False}},
        "prefetch_batches": 4, "default_stage_prefetch": 2, "op_queue_capacity": 3, "max_workers": 2, "worker_allocation": None,
        "run_id": "x", "aggregate_store": None, "aggregate_timeout_s": 5.0,
    }  # fmt: skip
    return pipeline.options(**{**settings, **options})


def test_a_pipeline_in_an_adapters_spelling_runs_resumes_and_measures_once(source: StaticMixtureWorkSource) -> None:
    pipeline = build(source)
    threads = threading.active_count()
    assert pipeline.ws.requires_token_priming
    batches = iter(pipeline.preflight_tokenizers())
    assert threading.active_count() == threads, "nothing runs before the first next()"
    taken = [next(batches) for _ in range(6)]
    assert all(isinstance(batch, SampleBatch) for batch in taken)
    assert not pipeline.ws.requires_token_priming
    state = json.loads(json.dumps(pipeline.checkpoint()))
    want = [next(batches).sha256() for _ in range(4)]
    batches.close()  # type: ignore[attr-defined]
    batches.close()  # type: ignore[attr-defined]
    pipeline.restore(state)
    again = iter(pipeline)
    assert [next(again).sha256() for _ in range(4)] == want
    again.close()  # type: ignore[attr-defined]
    with pytest.raises(LaneCountError):
        build(source, canonical_replicas=8).restore(state)


@pytest.mark.parametrize("rubbish", ["rubbish", {}, None, b"x", {"lanes": {}}, 7])
def test_rubbish_is_refused_before_iterating(source: StaticMixtureWorkSource, rubbish: Any) -> None:
    with pytest.raises(CheckpointError):
        build(source).restore(rubbish)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"split_long_samples": False, "max_length": 8}, "leaves open what becomes of texts"),
        ({"split_long_samples": True, "truncation": True, "max_length": 8}, "exclude each other"),
        ({"split_long_samples": True, "over_long": "drop", "max_length": 8}, "contradict"),
        ({"split_long_samples": False, "over_long": "split", "max_length": 8}, "contradict"),
        ({"truncation": True, "over_long": "split", "max_length": 8}, "contradict"),
        ({"truncation": True}, "needs max_length"),
        ({"eos_token_id": 10**6}, "eos_token_id of tokenize is 1000000; the tokenizer's vocabulary"),
        ({"bos_token_id": -1, "special_tokens": "bos"}, "bos_token_id of tokenize is -1"),
    ],
)
def test_settings_of_tokenize_that_make_no_sense_are_refused(
    source: StaticMixtureWorkSource, settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(RecipeError, match=problem):
        Pipeline(source).tokenize(tokenizer=TOKENIZER, **settings).recipe()


@pytest.mark.parametrize(
    ("settings", "becomes"),
    [
        ({"split_long_samples": False}, "whole"),
        ({"split_long_samples": False, "truncation": True, "max_length": 8}, "cut"),
        ({"split_long_samples": True, "truncation": False, "max_length": 8}, "pieces"),
        ({"split_long_samples": False, "over_long": "drop", "max_length": 8}, "nothing"),
        ({"max_length": 8}, "pieces"),
    ],
)
def test_what_becomes_of_a_long_text_is_what_was_said(settings: dict[str, Any], becomes: str) -> None:
    text = "hello world " * 20
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    assert len(ids) > 16
    want = {"whole": [ids], "cut": [ids[:8]], "pieces": [ids[i : i + 8] for i in range(0, len(ids), 8)], "nothing": []}
    source = StaticMixtureWorkSource(Dataset.from_records("d", [{"text": text}]), stop_after_passes=1)
    pipeline = Pipeline(source).tokenize(tokenizer=TOKENIZER, special_tokens="none", **settings).batch(1)
    pipeline.options(runner="inline")
    assert [row for batch in pipeline for row in batch.group.column("input_ids").to_pylist()] == want[becomes]


@pytest.mark.parametrize("pad", [10**6, 2**31])
def test_a_pad_id_outside_of_the_vocabulary_is_refused(source: StaticMixtureWorkSource, pad: int) -> None:
    with pytest.raises(RecipeError, match=f"pad_token_id.* is {pad}"):
        Pipeline(source).tokenize(tokenizer=TOKENIZER).pack_flat(max_length=8, pad_token_id=pad).recipe()


def test_over_long_documents_are_dropped_by_one_word_of_the_packer_only(source: StaticMixtureWorkSource) -> None:
    with pytest.raises(RecipeError, match="contradict"):
        Pipeline(source).pack_flat(max_length=8, drop_oversized=True, over_long="split")
    with pytest.raises(RecipeError, match="contradict"):
        Pipeline(source).pack_flat(max_length=8, drop_oversized=False, over_long="drop")


BUILDERS = (
    "prefetch", "fetch_parallelism", "decode_text", "map_transform", "tokenize", "tokenize_chat", "pack_flat", "pack_sequences", "shuffle",
    "ensure_mixture", "batch", "map_batch", "options", "preflight_tokenizers", "explain", "checkpoint", "restore", "to_torch_dataset",
)  # fmt: skip


def test_every_builder_of_an_adapter_is_there(source: StaticMixtureWorkSource) -> None:
    assert [name for name in BUILDERS if not callable(getattr(Pipeline(source), name))] == []


def test_options_without_effect_are_accepted_logged_and_change_no_recipe(
    source: StaticMixtureWorkSource, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "zephon.compat")
    plain = Pipeline(source).batch(1).recipe()
    for name in (
        "mtp_mode",
        "deterministic",
        "worker_allocation",
        "op_queue_capacity",
        "default_stage_prefetch",
        "aggregate_store",
    ):
        assert Pipeline(source).batch(1).options(**{name: True}).recipe() == plain
        assert f"option {name}=True" in caplog.text
        with pytest.raises(RecipeError, match="did you mean"):
            Pipeline(source).options(**{f"{name}x": True, "dp_sise": 1})


def test_a_mixture_that_is_ensured_is_the_sources(source: StaticMixtureWorkSource) -> None:
    pipeline = Pipeline(source).ensure_mixture().ensure_mixture({"d": 3}).ensure_mixture(MixtureSpec({"d": 0.1}))
    assert [op.name for op, _ in pipeline._steps] == []
    two = StaticMixtureWorkSource([Dataset.from_records(n, [{"x": 1}]) for n in "ab"], {"a": 1, "b": 3})
    Pipeline(two).ensure_mixture({"a": 0.25, "b": 0.75})
    for other in ({"a": 1, "b": 1}, {"a": 1}, {"a": 1, "b": 3, "c": 1}):
        with pytest.raises(RecipeError, match="ensure_mixture asks for"):
            Pipeline(two).ensure_mixture(other)
    with pytest.raises(RecipeError, match="takes a mixture"):
        Pipeline(two).ensure_mixture(0.5)
