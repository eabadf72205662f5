"""`generate()` of Hugging Face transformers, each prompt with candidates of its own; no vLLM, no server.

`python examples/04_transformers.py MODEL_DIR`
"""

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import maskfeed
from maskfeed_workers.hf_processor import CandidateLogitsProcessor


def main(model_directory: str) -> None:
    """Two questions in one batch, with beams."""
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(model_directory, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(model_directory, dtype=torch.float32)
    questions = {
        "Granite, apple or hammer: which one is a fruit?": ["granite", "apple", "hammer"],
        "Which planet is known as the red planet?": ["Venus", "Mars", "Saturn"],
    }
    chats = [[{"role": "user", "content": question}] for question in questions]
    inputs = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
    )
    vocabulary = maskfeed.Vocabulary.from_tokenizer(tokenizer)
    automata = [maskfeed.compile(vocabulary, candidates) for candidates in questions.values()]
    processor = CandidateLogitsProcessor(automata)  # a new one for each call of generate()
    sequences = model.generate(
        **inputs, logits_processor=[processor], num_beams=3, max_new_tokens=16, pad_token_id=tokenizer.eos_token_id
    )
    indices = processor.candidate_indices(sequences)
    for (question, candidates), index in zip(questions.items(), indices, strict=True):
        assert index is not None
        print(f"{question} answer: {candidates[index]}")


if __name__ == "__main__":
    main(sys.argv[1])
