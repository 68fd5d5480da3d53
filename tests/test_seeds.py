"""Seeds: the values that every stored run depends on, their range, and that no two uses share one."""

import itertools

import pytest

from gspo_cli.seeds import derive_seed, permutation

# printf '["gspo-seed-1","sample",0,1,"p",0]' | sha256sum gives af57af943492f219...; half of its first 16 digits:
KNOWN = 0xAF57AF943492F219 >> 1


def test_known_values() -> None:
    assert derive_seed(0, "sample", 1, "p", 0) == KNOWN
    assert permutation(5, 0) == (4, 3, 2, 0, 1)


def test_keys_that_look_alike_are_kept_apart() -> None:
    uses = [("1", "23"), ("12", "3"), (1, "23"), ("1", 23), (1, 23), ("1,23",), ('1","23',), (12, 3), ()]
    seeds = {derive_seed(run, stream, *keys) for keys in uses for run in (0, 1) for stream in ("a", "b")}
    assert len(seeds) == 4 * len(uses)


@pytest.mark.parametrize("steps", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_no_two_samples_share_a_seed(steps: int) -> None:
    """A thousand samples a rollout batch; vLLM takes -1 for no seed, and 63 bits for the largest one."""
    keys = itertools.product(range(steps), ("0", "1", "x"), range(334))
    seeds = [derive_seed(0, "sample", *key) for key in keys]
    assert len(set(seeds)) == len(seeds) and min(seeds) >= 0 and max(seeds) < 2**63


def test_a_permutation_holds_each_number_once() -> None:
    assert sorted(permutation(100, 3)) == list(range(100)) and permutation(100, 3) != permutation(100, 4)
