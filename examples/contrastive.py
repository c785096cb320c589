"""Contrastive training on pairs of image and text (SigLIP, CLIP): crops and flips with keyed randomness, no packing; a tiny SigLIP."""

import io

import torch
from PIL import Image, ImageDraw
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import SiglipConfig, SiglipModel

from zephon import Dataset, Pipeline, StaticMixtureWorkSource

SIDE, WORDS = 32, 8


def pair(number: int) -> dict[str, object]:
    colour, form = ("red", "green", "blue", "orange")[number % 4], ("disc", "box")[number // 4 % 2]
    image = Image.new("RGB", (64 + number % 20, 64), "white")
    draw = ImageDraw.Draw(image)
    (draw.ellipse if form == "disc" else draw.rectangle)((12, 12, 52, 52), fill=colour)
    image.save(file := io.BytesIO(), "JPEG")
    return {"image": {"bytes": file.getvalue(), "path": None}, "caption": f"a {colour} {form} number {number}"}


pairs = [pair(number) for number in range(100)]
tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
trainer = trainers.WordLevelTrainer(special_tokens=["<pad>", "<unk>", "</s>"], show_progress=False)
tokenizer.train_from_iterator((p["caption"] for p in pairs), trainer)
pipeline = (
    Pipeline(StaticMixtureWorkSource(Dataset.from_records("pairs", pairs), chunk_size=32, seed=42))
    .tokenize(tokenizer=tokenizer, field="caption", max_length=WORDS, over_long="truncate", preserve_upstream_payload=True)
    .shuffle(buffer_size=64)  # of files
    .decode_images(column="image", policy="raw")
    .random_resized_crop(size=SIDE, scale=(0.5, 1.0))  # drawn from the seed and the record's key
    .flip()
    .normalize()
    .batch(microbatch_size=16)
)

size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
text = {**size, "vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": WORDS}
model = SiglipModel(SiglipConfig(text_config=text, vision_config={**size, "image_size": SIDE, "patch_size": 8}))
optimizer = torch.optim.AdamW(model.parameters())
for step, batch in zip(range(3), pipeline, strict=False):
    fields = batch.to_training()  # pixels [16, 3, SIDE, SIDE], texts padded to the longest
    loss = model(pixel_values=fields["pixel_values"], input_ids=fields["input_ids"], return_loss=True).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: {len(batch)} pairs, loss {loss.item():.3f}")
