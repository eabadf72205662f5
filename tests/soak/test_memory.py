"""How the soak tells a leak from a size that goes up and down."""

import pytest

from soak.memory import Sample, growth


def life(pid: int, n_requests: int, mb_per_1000: float, *, begins_mb: float = 300.0) -> list[Sample]:
    """A process that begins 50 MB below its size, grows, and for every seventh sample has 40 MB more."""
    samples = []
    for k, n_ended in enumerate(range(0, n_requests + 1, 100)):
        size_mb = begins_mb + mb_per_1000 * n_ended / 1_000 - 50 * (n_ended < 500) + 40 * (k % 7 == 0)
        samples.append(Sample("part", pid, n_ended, int(size_mb * 1e6)))
    return samples


@pytest.mark.parametrize("mb_per_1000", [0.0, 1.5])
def test_the_start_and_single_samples_are_no_growth(mb_per_1000):
    assert growth(life(1, 10_000, mb_per_1000)).mb_per_1000_requests == pytest.approx(mb_per_1000, abs=0.1)


def test_of_several_long_lives_the_one_that_grows_most_counts_and_short_ones_tell_nothing():
    samples = [*life(1, 10_000, 0.5), *life(2, 9_000, 2.0), *life(3, 4_000, 9.0)]
    assert growth(samples).mb_per_1000_requests == pytest.approx(2.0, abs=0.1)
    assert growth(samples).n_lives == 3
    assert growth(life(3, 4_000, 9.0)).mb_per_1000_requests is None
