"""Candidate names for benchmarks: made up, the same on every machine, about 13 bytes each, with shared prefixes.

They resemble a gazetteer: of 100,000 of them about half of all bytes are shared prefixes, as among real place names.
"""

import random

__all__ = ["candidate_names"]

_HEADS = "al an ash bar ber black bol bra bur cam car ches clo cor dar den dor ed el fair fen gar glen gold had har hol ing kel kin lan lin low mar mel mid mil nor oak or pel pen quin rad red ros sal sel shir sten sun tam ter thorn tor ul up val ver wal wes whit win wor yar"  # noqa: E501
_MIDDLES = "a ar bor der dle e en er field ford gar ham i in ing ke land ling low man mer min nor o on or ra ri ser ster ten ton ver vi wick wood"  # noqa: E501
_TAILS = "bach beck berg bury by church cliff croft dale den don end ey fell field ford gate ham heath hill holm hurst land leigh ley mere mouth pool port ridge stead stoke stow thorpe ton tree vale ville wick wold wood worth"  # noqa: E501
_SECONDS = (
    "Bay Bridge Castle Creek East End Falls Gate Green Grove Hall Hill Island Lake Mill North Park Point South West"
)


def candidate_names(n: int, *, seed: int = 1) -> list[str]:
    """`n` different names in random order; other seeds give other, overlapping lists."""
    choose = random.Random(seed)
    heads, middles, tails, seconds = (text.split() for text in (_HEADS, _MIDDLES, _TAILS, _SECONDS))
    names: dict[str, None] = {}
    while len(names) < n:
        name = choose.choice(heads).capitalize()
        if choose.random() < 0.75:
            name += choose.choice(middles)
        name += choose.choice(tails)
        if choose.random() < 0.45:
            name += " " + choose.choice(seconds)
        names[name] = None
    return list(names)
