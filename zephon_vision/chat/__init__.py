"""Chat templates: one renderer per family, and the tokenizer's own. They write pieces (text, special tokens, images), never one string:
a special token is a token because the template says so, and what users write stays text."""
