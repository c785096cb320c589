"""Instruction tuning on chats with images, packed for SmolVLM (Idefics 3): only what the assistant says is trained; one tiny step."""

import io

import torch
from PIL import Image, ImageDraw
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import SmolVLMConfig, SmolVLMForConditionalGeneration

from zephon import Dataset, Pipeline, StaticMixtureWorkSource

TILE = 28
POLICY = f'smolvlm{{"tile": {TILE}, "longest_edge": {2 * TILE}, "image_seq_len": 1}}'  # real ones: 512, 2048 and 64
IMAGE = [f"<row_{r}_col_{c}>" for r in range(1, 7) for c in range(1, 7)]  # the tiles' names in the text
SPECIAL = ["<|im_start|>", "<|im_end|>", "<fake_token_around_image>", "<global-img>", "<image>", *IMAGE]


def chat(number: int) -> dict[str, object]:
    colour, form = ("red", "green", "blue")[number % 3], ("disc", "box")[number % 2]
    image = Image.new("RGB", (90, 60), "white")
    draw = ImageDraw.Draw(image)
    (draw.ellipse if form == "disc" else draw.rectangle)((15, 10, 55, 50), fill=colour)
    image.save(file := io.BytesIO(), "PNG")
    talk = ["<image>What is this?", f"It is a {colour} {form}.", "Really?", f"Yes, a {form}."]
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(talk)]
    return {"images": [{"bytes": file.getvalue(), "path": None}], "messages": messages}


chats = [chat(number) for number in range(60)]
texts = [message["content"] for c in chats for message in c["messages"]]
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
trainer = trainers.BpeTrainer(special_tokens=SPECIAL, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
tokenizer.train_from_iterator(texts, trainer)
pipeline = (
    Pipeline(StaticMixtureWorkSource(Dataset.from_records("chats", chats), chunk_size=16, seed=42))
    .interleave()
    .probe_images()
    .tokenize_interleaved(tokenizer=tokenizer, images=POLICY, template="chatml", train_on="assistant", max_length=512)
    .pack_multimodal(max_length=512, max_patches=64, pad_token_id=0)  # blocks are tiles here
    .decode_images()
    .batch(microbatch_size=1)
)

size = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
text = {"model_type": "llama", "vocab_size": tokenizer.get_vocab_size(), "num_key_value_heads": 2, **size}
tower = {"patch_size": 14, "image_size": TILE, **size}
ids = {"image_token_id": tokenizer.token_to_id("<image>"), "pad_token_id": 0}
model = SmolVLMForConditionalGeneration(SmolVLMConfig(text_config=text, vision_config=tower, scale_factor=2, **ids))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step, batch in zip(range(3), pipeline, strict=False):
    fields = batch.to_training(pixel_dtype="float32")
    loss = model(**{n: fields[n] for n in ("input_ids", "labels", "position_ids", "pixel_values")}).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(
        f"step {step}: {len(fields['image_row'])} chats, {fields['num_label_tokens']} of 512 tokens trained, loss {loss.item():.3f}"
    )
