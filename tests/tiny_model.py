"""Make a model directory with a tokenizer and two random layers that two ranks can share.

SmolLM2 itself has 9 heads and can't be split. Run as a program, because torch and transformers belong in a process of
their own:  python tiny_model.py TOKENIZER_DIRECTORY TARGET_DIRECTORY
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

_COPIED = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def main(tokenizer_directory: Path, target: Path) -> None:
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_directory)
    config = LlamaConfig(
        vocab_size=-(-len(tokenizer) // 128) * 128,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,  # smaller ones are refused by vLLM's attention on CPUs
        max_position_embeddings=8_192,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id,
    )
    # whole or not at all, also when two test runs make it at once
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / target.name
        LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(made)
        for path in filter(Path.exists, (tokenizer_directory / name for name in _COPIED)):
            shutil.copy(path, made / path.name)
        try:
            os.rename(made, target)
        except OSError:
            if not target.exists():
                raise


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
