"""The gateway's side of the parameter table: what of an HTTP body can't go with a candidate set.

The rows are in `maskfeed_workers.parameters`, which the engine reads too. Invariant: a body that passes here carries no
parameter that could make a mask wrong, except what only the vocabulary can tell, for which there is
`check_stop_token_ids`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from maskfeed_automata.errors import ParameterError
from maskfeed_cache.feed_messages import EngineRecord
from maskfeed_workers.parameters import ParameterRule, Place, rule_broken_by

__all__ = ["broken_rule", "check_parameters", "check_stop_token_ids"]


def broken_rule(body: Mapping[str, Any]) -> ParameterRule | None:
    """The first rule that the body breaks, or None."""
    return rule_broken_by(body.get, Place.GATEWAY)


def check_parameters(body: Mapping[str, Any]) -> None:
    """Refuse a body that can't go with candidates.

    Raises:
        ParameterError: context `field` is the parameter.
    """
    rule = broken_rule(body)
    if rule is not None:
        raise rule.refusal()


def check_stop_token_ids(
    stop_token_ids: Sequence[int], record: EngineRecord, is_text_token: Callable[[int], bool]
) -> None:
    """Refuse stop ids of the client that would cut candidates or be taken for a refusal.

    Args:
        stop_token_ids: the client's.
        record: of the engine.
        is_text_token: whether an id below the vocabulary's size has bytes.

    Raises:
        ParameterError: context `field` names the list and the position in it, `value` is the id.
    """
    for position, token_id in enumerate(stop_token_ids):
        if token_id >= record.logits_width:
            problem = f"the engine has {record.logits_width} token ids"
        elif token_id == record.reserved_id:
            problem = "this id marks refusals and can't be used"
        elif is_text_token(token_id):
            problem = "this token is text and would cut candidates"
        else:
            continue
        field = f"stop_token_ids[{position}]"
        raise ParameterError(f"`{field}` = {token_id}: {problem}", field=field, value=token_id)
