"""A tokenizer and a tiny model made on the spot: no download, and a vocabulary as wide as those of current models.

The tokenizer is byte-level BPE trained on made-up names and paths; the model's logits are wider than it, as real ones
are, so a row costs what it costs there. Weights are random.
"""

import json
from pathlib import Path

from made_up_sets import made_up_set
from names import candidate_names
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

__all__ = ["LOGITS_WIDTH", "make_model", "train_tokenizer"]

LOGITS_WIDTH = 151_936
_SPECIAL = ["<unk>", "<s>", "</s>", "<pad>"]


def train_tokenizer(n_tokens: int) -> Tokenizer:
    """Byte-level BPE of at most `n_tokens` ids, 2 of them ends of sequences: `</s>`, and `<pad>` for nothing."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=n_tokens,
        special_tokens=_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [*candidate_names(30_000, seed=77), *made_up_set("paths", 10_000, seed=77), *made_up_set("codes", 5_000)]
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def make_model(directory: Path, tokenizer: Tokenizer, *, logits_width: int = LOGITS_WIDTH, n_layers: int = 4) -> None:
    """A model directory as vLLM reads it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=logits_width,
        hidden_size=512,
        intermediate_size=1_024,
        num_hidden_layers=n_layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=4_096,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=3,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    fast.save_pretrained(directory)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, "do_sample": False}))
