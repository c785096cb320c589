"""Pre-training on documents with images in the text (OBELICS layout): packed for Qwen2.5-VL, and one training step of a tiny one."""

import io

import torch
from PIL import Image, ImageDraw
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from zephon import Dataset, Pipeline, StaticMixtureWorkSource

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]
POLICY = (
    'qwen2_5_vl{"min_pixels": 3136, "max_pixels": 12544}'  # at most 16 tokens per image; leave the settings out in real runs
)


def document(number: int) -> dict[str, list[object]]:
    """At each place a text or an image: the file's bytes, or its path under `media_root`."""
    made: dict[str, list[object]] = {"texts": [], "images": []}
    for colour in ("red", "green", "blue")[: 1 + number % 3]:
        image, side = Image.new("RGB", (120, 90), "white"), 20 + 5 * number % 50
        ImageDraw.Draw(image).ellipse((10, 10, 10 + side, 10 + side), fill=colour)
        image.save(file := io.BytesIO(), "JPEG")
        made["texts"] += [f"A {colour} disc of {side} points:", None]
        made["images"] += [None, {"bytes": file.getvalue(), "path": None}]
    return made


documents = [document(number) for number in range(60)]
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
trainer = trainers.BpeTrainer(special_tokens=SPECIAL, show_progress=False)
tokenizer.train_from_iterator((text for d in documents for text in d["texts"] if text), trainer)
pipeline = (
    Pipeline(StaticMixtureWorkSource(Dataset.from_records("pages", documents), chunk_size=16, seed=42))
    .interleave()
    .probe_images()  # sizes from the files' headers: exact token counts before anything is decoded
    .tokenize_interleaved(tokenizer=tokenizer, images=POLICY, max_length=256, over_long="split")
    .pack_multimodal(max_length=256, max_patches=768)
    .shuffle(buffer_size=16)
    .decode_images()  # after packing and shuffling: these buffers hold JPEG, not pixels
    .batch(microbatch_size=1)
)

size = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
rope = {"type": "mrope", "rope_type": "default", "mrope_section": [2, 3, 3]}
text = {**size, "rope_scaling": rope, "vocab_size": tokenizer.get_vocab_size()}
tower = {"depth": 2, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64}
image_id = tokenizer.token_to_id("<|image_pad|>")
model = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=tower, image_token_id=image_id))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step, batch in zip(range(3), pipeline, strict=False):
    fields = batch.to_training(pixel_dtype="float32")  # position_ids start anew in every document: none sees another
    loss = model(**{n: fields[n] for n in ("input_ids", "labels", "position_ids", "pixel_values", "image_grid_thw")}).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: {len(fields['image_grid_thw'])} images, {fields['num_label_tokens']} labels, loss {loss.item():.3f}")
