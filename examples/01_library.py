"""The library alone: compile a list for a tokenizer, walk one answer, look at the masks.

`python examples/01_library.py TOKENIZER`, where TOKENIZER is a Hugging Face model directory or a tokenizer.json.
"""

import sys

import numpy as np

import maskfeed


def main(tokenizer: str) -> None:
    """Print what is permitted at each step of one answer."""
    vocabulary = maskfeed.Vocabulary.from_tokenizer(tokenizer)
    tools = ["get_user", "get_users", "delete_user", "list_invoices"]
    automaton = maskfeed.compile(vocabulary, tools)
    print(f"{automaton.n_candidates} candidates, {automaton.n_nodes} nodes, digest {automaton.digest[:16]}")

    cursor = automaton.cursor()
    mask = np.empty((vocabulary.size + 31) // 32, dtype=np.int32)  # the layout of vLLM and xgrammar
    answer = b""
    while not cursor.is_finished:
        permitted = cursor.allowed_token_ids()
        cursor.fill_bitmask(mask)
        chosen = int(permitted[-1])  # a model would weigh these by its logits; here the last one wins
        text = vocabulary.token_bytes(chosen)
        n_bits = np.bitwise_count(mask.view(np.uint32)).sum()
        print(f"{answer!r:18} {len(permitted):3} permitted ids, {n_bits:3} bits in the mask, takes {text!r}")
        cursor.advance(chosen)
        answer += text or b""
    assert cursor.candidate_index is not None
    print(f"answer: {tools[cursor.candidate_index]}")


if __name__ == "__main__":
    main(sys.argv[1])
