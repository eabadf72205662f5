"""The logits processor for `generate()` of Hugging Face transformers.

    processor = CandidateLogitsProcessor(automaton)  # or one automaton for each prompt
    sequences = model.generate(**inputs, logits_processor=[processor], num_beams=4)
    processor.candidate_indices(sequences)

It needs the extra `hf`. It knows token histories and logits; nothing of models, tokenizers or searches. Greedy
search, sampling, several sequences for a prompt, beams and assisted generation all work the same way, because of one
invariant: what a row permits follows from its set and from the tokens after its prompt, and from nothing else. Beams
may therefore be reordered, copied and dropped between steps. A cursor for each history of the last step makes that
cost one token, not a replay.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from maskfeed_automata import Automaton, Cursor
from maskfeed_automata.errors import ParameterError, TokenNotAllowed

try:
    import torch
    from transformers import LogitsProcessor

    from maskfeed_workers.masking import masked_copy
except ImportError as error:
    raise ImportError("generate() of transformers needs the extra hf: pip install 'maskfeed[hf]'") from error

__all__ = ["CandidateLogitsProcessor"]

# The prompt that a row belongs to, and its tokens after the prompt.
_History = tuple[int, tuple[int, ...]]


class CandidateLogitsProcessor(LogitsProcessor):
    """Lets `generate()` answer with candidates only. One object serves one batch of prompts.

    Args:
        automata: one set for all prompts, or one for each prompt, in the order of the prompts. All of one vocabulary,
            each with stop ids; the model must end a sequence at these (`eos_token_id`).

    Raises:
        ParameterError: no automaton, one without stop ids, or automata of different vocabularies.
    """

    # Its rows are requests that come and go; here a row is a prompt of one call.
    supports_continuous_batching = False

    def __init__(self, automata: Automaton | Sequence[Automaton]) -> None:
        self._automata = (automata,) if isinstance(automata, Automaton) else tuple(automata)
        _check_automata(self._automata)
        self._prompts: torch.Tensor | None = None
        # Those of the last step. None: a token was not permitted, which only beams of probability zero take.
        self._cursors: dict[_History, Cursor | None] = {}

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Forbid what is not permitted.

        Args:
            input_ids: int64 [n_rows, length]; rows of a prompt are neighbours, as `generate()` expands them. The
                prompts are what the first call brings; padding on either side is part of them.
            scores: [n_rows, width], any float dtype and device; not changed.

        Returns:
            A new tensor: `scores` at the permitted ids, -inf elsewhere. A finished row permits the stop ids, and so
            does a row that took a token which was not permitted (a beam of probability zero).

        Raises:
            ParameterError: the rows are not those of the first call, or logits narrower than the vocabulary.

        Cost: for each different row one token and the ids that it permits.
        """
        self._check_call(input_ids, scores)
        reached: dict[_History, Cursor | None] = {}
        permitted: dict[_History, NDArray[np.int32]] = {}
        histories = self._histories(input_ids)
        for history in histories:
            if history not in reached:
                cursor = reached[history] = self._cursor(history)
                permitted[history] = self._automaton(history).stop_ids if cursor is None else cursor.allowed_token_ids()
        self._cursors = reached
        rows = [permitted[history] for history in histories]
        row_ptr = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([ids.size for ids in rows], out=row_ptr[1:])
        return masked_copy(scores, row_ptr, np.concatenate(rows))

    def candidate_indices(self, sequences: torch.Tensor) -> list[int | None]:
        """Which candidate each sequence that `generate()` returned is, or None where it is none (it was cut short).

        Args:
            sequences: int64 [n_rows, length], prompts included.

        Returns:
            For each row the index in the list that its automaton was compiled of.
        """
        cursors = [self._cursor(history) for history in self._histories(sequences)]
        return [None if cursor is None else cursor.candidate_index for cursor in cursors]

    def _histories(self, input_ids: torch.Tensor) -> list[_History]:
        prompt_length = 0 if self._prompts is None else self._prompts.shape[1]
        rows_per_prompt = input_ids.shape[0] // len(self._automata)
        tokens = input_ids[:, prompt_length:].tolist()
        return [(row // rows_per_prompt, tuple(history)) for row, history in enumerate(tokens)]

    def _automaton(self, history: _History) -> Automaton:
        return self._automata[history[0]]

    def _cursor(self, history: _History) -> Cursor | None:
        """The cursor after these tokens: one token on from the last step's, or replayed if that step had other rows."""
        prompt, tokens = history
        if history in self._cursors:
            return self._cursors[history]
        parent = (prompt, tokens[:-1])
        if tokens and parent in self._cursors:
            return _advance(self._cursors[parent], tokens[-1])
        cursor: Cursor | None = self._automaton(history).cursor()
        for token in tokens:
            cursor = _advance(cursor, token)
        return cursor

    def _check_call(self, input_ids: torch.Tensor, scores: torch.Tensor) -> None:
        if self._prompts is None:
            if input_ids.shape[0] % len(self._automata):
                raise ParameterError(
                    f"{input_ids.shape[0]} rows can't be shared out among {len(self._automata)} automata",
                    field="automata",
                )
            size = self._automata[0].vocabulary.size
            if scores.shape[1] < size:
                raise ParameterError(
                    f"the logits are {scores.shape[1]} wide and the vocabulary has {size} ids: give logits_width to "
                    f"Vocabulary.from_tokenizer",
                    field="automata",
                )
            self._prompts = input_ids.clone()
        elif not torch.equal(input_ids[:, : self._prompts.shape[1]], self._prompts):
            raise ParameterError(
                "these are other prompts: make a CandidateLogitsProcessor for each call of generate()",
                field="input_ids",
            )


def _check_automata(automata: tuple[Automaton, ...]) -> None:
    if not automata:
        raise ParameterError("at least one automaton is needed", field="automata")
    if len({automaton.fingerprint for automaton in automata}) > 1:
        raise ParameterError("the automata are for different vocabularies", field="automata")
    if not all(automaton.stop_token_ids for automaton in automata):
        raise ParameterError("an automaton has no stop ids, so no answer could end", field="automata")


def _advance(cursor: Cursor | None, token: int) -> Cursor | None:
    """The cursor after one more token. What comes after the end of an answer is padding, and changes nothing."""
    if cursor is None or cursor.is_finished:
        return cursor
    advanced = cursor.copy()
    try:
        advanced.advance(token)
    except TokenNotAllowed:
        return None
    return advanced
