"""A tokenizer, chat templates and conversations that tests share."""

from transformers import PreTrainedTokenizerFast

from layerlab.adaptation.sft.conversations import Conversation, Turn
from layerlab.adaptation.sft.encode import Encoder, Example
from layerlab.tokenization.train import train_bpe

MARKS = ("<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content + '<|im_end|>' }}"
    "{% endgeneration %}{% else %}{{ message.content + '<|im_end|>' }}{% endif %}{{ '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' }}"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content | trim }}"
    "{{ '<|eot_id|>' }}{% endgeneration %}{% else %}{{ message.content | trim + '<|eot_id|>' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
ALPACA = (
    "{{ 'Below is an instruction.\n\n' }}{% for message in messages %}"
    "{% if message.role == 'assistant' %}{{ '### Response:\n' }}{% generation %}"
    "{{ message.content + eos_token }}{% endgeneration %}{{ '\n\n' }}"
    "{% else %}{{ '### Instruction:\n' + message.content + '\n\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '### Response:\n' }}{% endif %}"
)
# As Qwen3: an answer has a thought, if an empty one, while no other question follows it.
FORGETFUL = (
    "{% set asked = namespace(last=-1) %}{% for message in messages %}"
    "{% if message.role == 'user' %}{% set asked.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{% if message.role == 'assistant' %}{% set parts = message.content.split('</think>') %}"
    "{% generation %}{% if loop.index0 > asked.last %}{{ '<think>\n' }}"
    "{{ parts[0].split('<think>')[-1].strip('\n') if parts[1:] else '' }}{{ '\n</think>\n\n' }}"
    "{% endif %}{{ parts[-1].lstrip('\n') + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message.content + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# As DeepSeek-R1: an answer is asked for by the beginning of a thought, and written without one.
THOUGHTLESS = (
    "{{ bos_token }}{% for message in messages %}{% if message.role == 'assistant' %}"
    "{{ '<|start_header_id|>' + message.content.split('</think>')[-1] + '<|eot_id|>' }}"
    "{% else %}{{ '<|end_header_id|>' + message.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|><think>\n' }}{% endif %}"
)
TEMPLATES = {"chatml": CHATML, "llama": LLAMA, "alpaca": ALPACA}
ENDS = {"chatml": "<|im_end|>", "llama": "<|eot_id|>", "alpaca": "<|endoftext|>"}


def unmarked(template: str) -> str:
    return template.replace("{% generation %}", "").replace("{% endgeneration %}", "")


def speaker(template: str | None = CHATML, vocab: int = 280) -> PreTrainedTokenizerFast:
    """A tokenizer of bytes and of the templates' marks."""
    words = train_bpe(["hello there, what is a contract? 合同是什么"], vocab=vocab)
    words.add_special_tokens({"additional_special_tokens": list(MARKS)})
    words.chat_template = template
    return words


def talk(*texts: str, system: str = "") -> Conversation:
    """A user and an assistant by turns."""
    turns = [Turn(("user", "assistant")[place % 2], text) for place, text in enumerate(texts)]
    return Conversation((*([Turn("system", system)] if system else []), *turns))


def encoded(encoder: Encoder, given: Conversation) -> Example:
    """A conversation that is one example."""
    (found,) = encoder.examples(given)
    return found
