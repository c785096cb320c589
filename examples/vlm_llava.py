"""Instruction tuning on LLaVA's own JSON (several images in a chat), packed for LLaVA-OneVision: tiles, and a step of a tiny one."""

import io

import torch
from PIL import Image, ImageDraw
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import LlavaOnevisionConfig, LlavaOnevisionForConditionalGeneration

from zephon import Dataset, Pipeline, StaticMixtureWorkSource

TILE = 28
PINPOINTS = [[TILE * rows, TILE * columns] for rows in (1, 2) for columns in (1, 2)]  # the sizes that an image is cut from
POLICY = f'llava_onevision{{"size": {TILE}, "patch_size": 14, "image_grid_pinpoints": {PINPOINTS}}}'  # real ones: the defaults


def image(number: int) -> dict[str, object]:
    draw = ImageDraw.Draw(made := Image.new("RGB", (90, 60), "white"))
    (draw.ellipse if number % 2 else draw.rectangle)((15, 10, 55, 50), fill=("red", "green", "blue")[number % 3])
    made.save(file := io.BytesIO(), "PNG")
    return {"bytes": file.getvalue(), "path": None}


def chat(number: int) -> dict[str, object]:
    count = 1 + number % 2  # one image is cut in tiles, of two each is one tile
    asked = {"from": "human", "value": "<image>" * count + "What is this?"}
    talk = [asked, {"from": "gpt", "value": f"The number {number} is shown in {count} pictures."}]
    return {"image": [image(number + i) for i in range(count)], "conversations": talk}


chats = [chat(number) for number in range(60)]
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
trainer = trainers.BpeTrainer(special_tokens=["<|im_start|>", "<|im_end|>", "<image>"], show_progress=False)
tokenizer.train_from_iterator((turn["value"] for c in chats for turn in c["conversations"]), trainer)
pipeline = (
    Pipeline(StaticMixtureWorkSource(Dataset.from_records("chats", chats), chunk_size=16, seed=42))
    .interleave()
    .probe_images()
    .tokenize_interleaved(tokenizer=tokenizer, images=POLICY, template="chatml", max_length=512)
    .pack_multimodal(max_length=512, max_patches=64, pad_token_id=0)  # blocks are tiles here
    .decode_images()
    .batch(microbatch_size=1)
)

size = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
text = {"model_type": "qwen2", "vocab_size": tokenizer.get_vocab_size(), "num_key_value_heads": 2, "pad_token_id": 0, **size}
tower = {"model_type": "siglip_vision_model", "patch_size": 14, "image_size": TILE, "vision_use_head": False, **size}
more = {"image_grid_pinpoints": PINPOINTS, "vision_feature_layer": -1, "image_token_index": tokenizer.token_to_id("<image>")}
model = LlavaOnevisionForConditionalGeneration(LlavaOnevisionConfig(text_config=text, vision_config=tower, **more))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step, batch in zip(range(3), pipeline, strict=False):
    fields = batch.to_training(pixel_dtype="float32")
    text = {n: fields[n] for n in ("input_ids", "labels", "position_ids")}
    loss = model(**text, **{n: fields[n] for n in ("pixel_values", "image_sizes", "batch_num_images")}).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: {len(fields['image_row'])} images, {fields['num_label_tokens']} labels, loss {loss.item():.3f}")
