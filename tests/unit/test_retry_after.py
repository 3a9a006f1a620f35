"""How long a server asks to be left alone."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trading_agent.providers.retry_after import LONGEST, retry_after

NOW = datetime(2026, 1, 5, 10, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ('headers', 'seconds'),
    [
        ({}, None),
        ({'retry-after': '3'}, 3.0),
        ({'retry-after': '0'}, 0.0),
        ({'retry-after': ' 2.5 '}, 2.5),
        ({'retry-after': '-1'}, None),
        ({'retry-after': 'nan'}, None),
        ({'retry-after': 'inf'}, None),
        ({'retry-after': '1e9'}, LONGEST),
        ({'retry-after-ms': '250', 'retry-after': '9'}, 0.25),
        ({'retry-after-ms': 'x', 'retry-after': '9'}, 9.0),
        ({'retry-after': 'Mon, 05 Jan 2026 10:00:20 GMT'}, 20.0),
        ({'retry-after': 'Monday, 05-Jan-26 10:00:20 GMT'}, 20.0),
        ({'retry-after': 'Mon, 05 Jan 2026 15:30:20 +0530'}, 20.0),
        ({'retry-after': 'Mon, 05 Jan 2026 09:59:00 GMT'}, 0.0),
        ({'retry-after': 'Mon, 05 Jan 2026 10:00:20 GMT', 'date': 'Mon, 05 Jan 2026 10:00:15 GMT'}, 5.0),
        ({'retry-after': 'Mon, 05 Jan 2026 10:00:20 GMT', 'date': 'today'}, 20.0),
        ({'retry-after': 'Fri, 05 Jan 2029 10:00:20 GMT'}, LONGEST),
        ({'retry-after': 'in a moment'}, None),
    ],
)
def test_what_a_server_may_say(headers: dict[str, str], seconds: float | None) -> None:
    """Seconds, milliseconds and HTTP dates are read, and bounded; what makes no sense says nothing."""
    assert retry_after(headers, NOW) == seconds


@given(st.dictionaries(st.sampled_from(['retry-after', 'retry-after-ms', 'date']), st.text()))
def test_anything_at_all(headers: dict[str, str]) -> None:
    """Whatever stands in the headers, the answer is in bounds or there is none."""
    seconds = retry_after(headers, NOW)
    assert seconds is None or 0 <= seconds <= LONGEST
