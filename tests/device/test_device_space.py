from hypothesis import given
from hypothesis import strategies as st

from maskfeed_workers.device_space import Space


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=60))
def test_what_is_given_out_never_overlaps_and_everything_given_back_is_one_hole_again(steps):
    space = Space(100)
    taken: list[tuple[int, int]] = []
    for takes, n in steps:
        if takes:
            start = space.take(n)
            gaps = _gaps(taken, 100)
            assert (start is None) == (max(gaps, default=0) < n)
            if start is not None:
                assert all(start + n <= a or a + m <= start for a, m in taken)
                taken.append((start, n))
        elif taken:
            space.give_back(*taken.pop(n % len(taken)))
        assert space.free_bytes == 100 - sum(m for _, m in taken)
        assert space.largest_hole == max(_gaps(taken, 100), default=0)
    for start, n in taken:
        space.give_back(start, n)
    assert space.take(100) == 0


def test_the_smallest_hole_that_is_large_enough_is_used():
    space = Space(100)
    starts = [space.take(n) for n in (30, 10, 20, 10, 30)]
    for start, n in zip(starts[::2], (30, 20, 30), strict=True):
        space.give_back(start, n)
    assert space.take(15) == 40
    assert space.take(30) == 0


def test_an_arena_of_no_bytes_gives_out_nothing():
    assert Space(0).take(1) is None


def _gaps(taken: list[tuple[int, int]], size: int) -> list[int]:
    free = [True] * size
    for start, n in taken:
        free[start : start + n] = [False] * n
    runs = "".join("x" if each else " " for each in free).split()
    return [len(run) for run in runs]
