"""What a tokenizer_config.json says about tokens, and how it completes a table of token bytes.

Only roles (eos, bos, pad, ...) and added tokens are read. Invariant: an added token that is special, or a token with a
role, has no bytes; any other added token is literal text. No file is touched here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from maskfeed_automata.errors import VocabularyError

__all__ = ["TokenTable", "TokenizerConfig"]

_ROLES: Final = ("eos_token", "bos_token", "pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
_MAX_ID: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class TokenTable:
    """What a file of token bytes says by itself."""

    # by id; None for control tokens and holes
    tokens: list[bytes | None]
    # text -> id of the control tokens that the file names
    control_ids: Mapping[str, int]
    # the end-of-sequence ids that it names
    stop_token_ids: list[int]
    # U+2581 stands for a space, also in added tokens
    marks_space: bool = False

    def literal(self, text: str) -> bytes:
        """Bytes of a token that is no control token."""
        return (text.replace("\u2581", " ") if self.marks_space else text).encode()


@dataclass(frozen=True, slots=True)
class TokenizerConfig:
    """Roles and added tokens."""

    # role -> text
    roles: Mapping[str, str]
    # texts of all tokens that control something
    control_texts: frozenset[str]
    # added tokens: `id`, `content`, `special`
    added: tuple[Mapping[str, Any], ...]

    @classmethod
    def from_contents(cls, contents: Mapping[str, Any]) -> Self:
        """Read a parsed tokenizer_config.json; an empty mapping where there is none."""
        roles = {role: _text_of(contents[role]) for role in _ROLES if contents.get(role)}
        controls = {*roles.values(), *map(_text_of, contents.get("additional_special_tokens") or ())}
        decoder = contents.get("added_tokens_decoder") or {}
        added = tuple({**item, "id": int(token_id)} for token_id, item in decoder.items())
        return cls(roles, frozenset(controls), added)

    @property
    def eos_text(self) -> str | None:
        """Text of the end-of-sequence token."""
        return self.roles.get("eos_token")

    def complete(self, table: TokenTable) -> tuple[list[bytes | None], list[int]]:
        """Token bytes and end-of-sequence ids of a table, with what is said here.

        Raises:
            VocabularyError: an added token under the id of other text, or an end-of-sequence token that is none.
        """
        tokens = list(table.tokens)
        ids = dict(table.control_ids)
        for item in self.added:
            token_id, text = item["id"], str(item["content"])
            if not 0 <= token_id < _MAX_ID:
                raise VocabularyError(f"added token {text!r} has id {token_id}", token_id=token_id)
            tokens.extend([None] * (token_id + 1 - len(tokens)))
            if tokens[token_id] not in (None, table.literal(text)):
                raise VocabularyError(
                    f"tokenizer_config.json adds {text!r} under id {token_id}, which is another token",
                    token_id=token_id,
                )
            tokens[token_id] = table.literal(text)
            if item.get("special") or ids.get(text) == token_id:
                ids[text] = token_id
        # A token with a role is a control token, also where the file holds it for text.
        with_role = {table.literal(text): text for text in self.control_texts - ids.keys()}
        ids |= {with_role[token]: token_id for token_id, token in enumerate(tokens) if token in with_role}
        for token_id in ids.values():
            tokens[token_id] = None
        if self.eos_text is None:
            return tokens, table.stop_token_ids
        if self.eos_text not in ids:
            raise VocabularyError(f"tokenizer_config.json names {self.eos_text!r} as eos_token, which is no token")
        return tokens, [ids[self.eos_text]]


def _text_of(token: Any) -> str:
    """A token in a tokenizer_config.json is its text, or an object with the text as `content`."""
    return str(token["content"] if isinstance(token, Mapping) else token)
