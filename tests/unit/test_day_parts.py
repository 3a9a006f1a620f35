"""A session that is too long is cut into parts of about the same size, each of which fits."""

from hypothesis import given, settings
from hypothesis import strategies as st

from trading_agent.memory.day_parts import next_part, part_count, size_of
from trading_agent.memory.exchange import Exchange


def exchange(length: int) -> Exchange:
    """Returns an exchange whose texts have so many characters."""
    return Exchange('x' * (length // 2), 'y' * (length - length // 2), 'gpt', '')


def parts_of(exchanges: list[Exchange], budget: int) -> list[list[Exchange]]:
    """Returns all the parts of a session."""
    parts: list[list[Exchange]] = []
    done = 0
    while done < len(exchanges):
        parts.append(next_part(exchanges, done, budget))
        done += len(parts[-1])
    return parts


def test_parts_are_of_about_the_same_size() -> None:
    """900 exchanges that are a little too many for two parts make three alike, and not two and a rest."""
    parts = parts_of([exchange(450)] * 900, 200_000)
    assert [len(part) for part in parts] == [300, 300, 300]


def test_an_exchange_that_is_too_large_alone_is_cut() -> None:
    """It is a part of its own, whose texts say that they are cut; those around it stay whole."""
    small, large = exchange(100), exchange(5000)
    parts = parts_of([small, large, small], 1000)
    assert [part == [small] for part in parts] == [True, False, True]
    assert size_of(parts[1]) <= 1000
    assert parts[1][0].answer.endswith('[… cut here]')


@settings(deadline=None)
@given(st.lists(st.integers(0, 3000), min_size=1, max_size=60), st.integers(200, 5000))
def test_the_parts_are_the_session(lengths: list[int], budget: int) -> None:
    """Every exchange is in one part, in order; no part is over the budget, and there are few of them."""
    exchanges = [exchange(length) for length in lengths]
    parts = parts_of(exchanges, budget)
    assert all(parts)
    assert sum(map(len, parts)) == len(exchanges)
    assert all(size_of(part) <= budget for part in parts)
    whole = [each for part in parts for each in part]
    assert all(kept == each for kept, each in zip(whole, exchanges, strict=True) if size_of([each]) <= budget)
    assert len(parts) <= 2 * part_count(exchanges, budget) + 1
