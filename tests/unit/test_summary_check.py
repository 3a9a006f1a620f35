"""What a summary states is looked up in what it was made from, by value; what is not there is marked."""

import time
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trading_agent.clock import utc_text
from trading_agent.memory.carry import harmless
from trading_agent.memory.exchange import Exchange
from trading_agent.memory.facts import MARK, facts_in
from trading_agent.memory.summary_check import LEGEND, CheckedSummary, checked
from trading_agent.providers.extract import day_summary

DAY = date(2025, 12, 16)
DATA = Path(__file__).parents[1] / 'data'


def exchange(told: str, answer: str = 'Noted.', at: str = '2025-12-16T05:00:00Z') -> Exchange:
    """Returns an exchange of 10:30 in India."""
    return Exchange(told, answer, 'gpt', at)


def check(summary: str, *told: str, others: Sequence[str] = (), budget: int = 6000) -> CheckedSummary:
    """Checks a summary of a day on which this was told."""
    return checked(summary, DAY, [exchange(text) for text in told], others, budget)


def marked(summary: str, *told: str) -> list[str]:
    """Returns the words that are marked."""
    text = check(summary, *told).text.removesuffix(f'\n\n{LEGEND}')
    return [part.split()[-1] for part in text.split(MARK)[:-1]]


# -- numbers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('told', 'said'),
    [
        ('closed at 1,234.50', 'closed at 1234.5'),
        ('closed at 1234.5', 'closed at 1,234.50'),
        ('an order of Rs. 16.53 Cr', 'an order of ₹16.53 crore'),
        ('an order of &#8377; 16.53 Cr (Rupees Sixteen Crore)', 'an order of Rs 16.53 crores'),
        ('an order of &#8377; 16.53 Cr', 'quoted: &#8377; 16.53 Cr'),
        ('13,81,40,000 shares', '13.814 crore shares'),
        ('13,81,40,000 shares', '138.14 million shares'),
        ('INR 5,00,000', '₹5 lakh'),
        ('5 lakhs', 'Rs.5,00,000/-'),
        ('Rs 1.2 lakh crore', '1.2 trillion'),
        ('a stake of 60 per cent', 'a stake of 60%'),
        ('a stake of 60.00%', 'a stake of 60 percent'),
        ('rates up 0.25%', 'rates up 25 bps'),
        ('figures in Rs crore: 345.20', 'revenue of ₹345.2 crore'),
        ('revenue of Rs. 345.20 Crore', '345.2 in the table (₹ crore)'),
        ('profit 197.29 crore', 'about ₹197 crore'),
        ('profit 197.29 crore', 'over 190 crore'),
        ('1,287 filings', 'nearly 1,300 filings'),
        ('500MW of solar', '500 MW of solar'),
        ('500 MW of solar', '500MW of solar'),
        ('REG30 filed', 'Regulation 30'),
        ('bought 300 INFY at 1,452.35', 'long 300 INFY at 1452.35, cost ~₹1,450'),
    ],
)
def test_the_same_number_written_another_way(told: str, said: str) -> None:
    """A number is proved by its value, in whichever unit and with whichever commas it is written."""
    assert check(said, told).unproved == 0


@pytest.mark.parametrize(
    ('told', 'said', 'unproved'),
    [
        ('closed at 1,234.50', 'closed at 1,234.60', ['1,234.60']),
        ('an order of Rs. 16.53 Cr', 'an order of ₹16.53 lakh', ['lakh']),
        ('an order of Rs. 16.53 Cr', 'an order of ₹16.5 crore', ['crore']),
        ('a stake of 60%', 'Rs 60 crore', ['crore']),
        ('profit 197.29 crore', 'about ₹250 crore', ['crore']),
        ('closed at 1700', 'about 1,000', ['1,000']),
        ('an order of ABC', 'bought 12 ABC', ['12']),
        ('an order of ABC', 'ABC at 7', ['7']),
        ('an order of ABC', '9 lots of ABC, 4.5 each', ['9', '4.5']),
        ('an order of ABC', '5,000 shares', ['5,000']),
        ('an order of ABC', 'up 3%', ['3%']),
    ],
)
def test_another_number_is_marked(told: str, said: str, unproved: list[str]) -> None:
    """A figure, a unit, a rounding that nobody asked for, a quantity or a price that was not said is marked."""
    assert marked(said, told) == unproved


def test_counts_and_lists_need_no_proof() -> None:
    """How many things of a kind there were, and numbers of a list, are the summary's own; up to the number of lines."""
    said = '1. Of 40 announcements 12 were of results.\n2) 3 positions are open, 1st of all none.\n- (7) 12x Dividend'
    assert check(said, *['news'] * 20).unproved == 0
    assert marked('41 announcements', *['news'] * 20) == ['41']


# -- dates and times -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    'said',
    [
        'on 3 March 2024',
        'on March 3, 2024',
        'on 03-Mar-2024',
        'on 03/03/2024',
        'on 2024-03-03',
        'on the 3rd of March',
        'today, 16 December 2025',
        'tomorrow, 17 Dec',
        'on Monday 2025-12-15',
        'by 16.12.2025',
        'at 10:28, or 10.32 am',
        'at the open, 09:15, and the close, 3:30 pm',
        'the call is at 18:45 IST',
        'the call is at 6.45 p.m.',
        'Q3FY26, Q3 FY26, H1 FY2025-26 and 9M FY26',
        'in 2025 and 2026',
    ],
)
def test_dates_and_times_that_need_no_other_proof(said: str) -> None:
    """Dates that were told in any form, the session's own days and times, and the exchange's hours are known."""
    assert check(said, 'the board met on March 3, 2024', 'a call at 18:45 Hrs').unproved == 0


@pytest.mark.parametrize('said', ['on 4 March 2024', 'on 2024-03-30', 'on 3 March 2023', 'on 25 December', 'at 23:47'])
def test_other_dates_and_times_are_marked(said: str) -> None:
    """A date that nobody named and that is not near the session, and a time outside of it, is marked whole."""
    result = check(said, 'the board met on March 3, 2024')
    assert result.unproved == 1
    assert result.text.startswith(said + MARK)


@pytest.mark.parametrize('at', ['', 'soon', '2025-12-16T05:00:00', '0001-01-01T00:00:00Z', '9999-12-31T23:59:59Z'])
def test_a_session_whose_times_are_not_known(at: str) -> None:
    """Where an exchange's time cannot be read, no time of the day is the session's own."""
    assert checked('at 10:30', DAY, [exchange('news', at=at)], [], 6000).unproved == 1


# -- symbols ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    'said',
    ['INFY', '**M&M**', "BAJAJ-AUTO's", 'INFY.NS', 'INE002A01018', 'NSE and BSE', 'OPEN POSITIONS:', '3MINDIA',
     'CIRP', 'REAFFIRMED', 'EBITDA', 'a P&L', 'https://nse.example/a_1.pdf.', 'A+ and a B'],
)  # fmt: skip
def test_symbols_that_were_told(said: str) -> None:
    """A symbol that was told, an ISIN, a link, usual abbreviations and initials of what was told are known."""
    told = (
        'Infosys INFY, M&amp;M, BAJAJ-AUTO, 3MINDIA, ISIN INE002A01018. see https://nse.example/a_1.pdf',
        'Corporate Insolvency Resolution Process; reaffirmed',
    )
    assert check(said, *told).unproved == 0


@pytest.mark.parametrize('said', ['INFYX', 'WIPRO', 'INE002A01019', 'M&N', '360ONE', 'https://nse.example/a_2.pdf'])
def test_symbols_that_were_not_told_are_marked(said: str) -> None:
    """A symbol, an ISIN or a link that nobody named is marked."""
    assert marked(f'bought {said} today', 'Infosys INFY, M&M, INE002A01018, https://nse.example/a_1.pdf') == [said]


def test_answers_notes_and_memory_prove_too() -> None:
    """What the desk answered, noted down or has in Memory.md stands there as well."""
    told = [exchange('a question', 'sold 733 ABC at 15.75')]
    assert checked('sold 733 ABC at 15.75; limit 4,44,000 for XYZ', DAY, told, ['XYZ: 4.44 lakh'], 6000).unproved == 0


# -- the mark --------------------------------------------------------------------------------------------------


def test_what_a_marked_summary_looks_like() -> None:
    """The mark stands behind the fact and its unit, and one line at the end says what it means."""
    result = check('XYZ won 512.77 crore.', 'news')
    assert result == CheckedSummary(f'XYZ [?] won 512.77 crore [?].\n\n{LEGEND}', 2)


def test_a_second_check_changes_nothing() -> None:
    """A summary that is checked again, or that a model copies with its marks, is not marked twice."""
    first = check('XYZ won 512.77 crore; ABC is flat.', 'news of ABC')
    assert check(first.text, 'news of ABC') == first
    assert check('XYZ[?] won 512.77 crore [?]; ABC [?] is flat.', 'news of ABC') == first


def test_a_mark_is_carried_on() -> None:
    """What was not proved one day stays unproved on the next, which its summary is carried to."""
    first = check('XYZ won 512.77 crore; ABC at 15.75.', 'ABC is at 15.75')
    carried = harmless(first.text)
    assert carried == first.text
    second = check('XYZ won 512.77 crore; ABC at 15.75.', f'What came before:\n\n{carried}\n\ngood morning')
    assert second == first
    assert check('XYZ won 512.77 crore', f'{carried}\n\nXYZ won 512.77 crore').unproved == 0, 'told since'


def test_marks_and_all_it_is_within_its_budget() -> None:
    """A summary that is too long is cut at a line, and still ends with what its marks mean."""
    result = check('\n'.join(f'XYZ at {number + 5000}' for number in range(300)), 'news', budget=1000)
    assert len(result.text) <= 1000
    assert result.text.endswith(f'\n[… cut here]\n\n{LEGEND}')
    assert len(check('a line\n' * 300, 'news', budget=500).text) <= 500


# -- real days -------------------------------------------------------------------------------------------------


def day_of(name: str) -> list[Exchange]:
    """Returns the exchanges of a recorded day."""
    lines = [line for line in (DATA / name).read_text().split('\n') if line.strip()]
    at = datetime.fromisoformat('2025-12-16T03:45:00+00:00')
    return [exchange(line, at=utc_text(at + timedelta(minutes=number))) for number, line in enumerate(lines)]


@pytest.mark.parametrize('name', ['announcements-first-day.txt', 'announcements-second-day.txt'])
@pytest.mark.parametrize('budget', [600, 2000, 6000, 100_000])
def test_a_quoting_summary_has_no_marks(name: str, budget: int) -> None:
    """A summary that only quotes and counts a real day is proved whole."""
    day = day_of(name)
    summary = day_summary(day, budget)
    assert checked(summary, DAY, day, [], budget) == CheckedSummary(summary, 0)


def test_a_long_day_is_checked_quickly() -> None:
    """900 exchanges of a real kind, and texts that are made to be slow, take seconds at most."""
    day = (day_of('announcements-first-day.txt') * 30)[:900]
    began = time.process_time()
    checked(day_summary(day, 6000), DAY, day, [], 6000)
    assert time.process_time() - began < 10
    for nasty in ('12,', '1.', '1/1/', 'A&', 'AB-', '9:59:', '1 Jan', '1 lakh ', 'http://', '[?] ', '1' * 50):
        began = time.process_time()
        checked(nasty * 2000, DAY, [exchange(nasty * (200_000 // len(nasty)))], [], 6000)
        assert time.process_time() - began < 10, nasty


@settings(deadline=None, max_examples=300)
@given(st.text(max_size=200), st.lists(st.text(max_size=80), max_size=3), st.integers(200, 1000))
def test_any_text(summary: str, told: list[str], budget: int) -> None:
    """Whatever is written, a check ends, keeps to the budget, and done twice is done once."""
    first = check(summary, *told, budget=budget)
    assert len(first.text) <= budget
    if len(first.text) < budget - 50:
        assert check(first.text, *told, budget=budget) == first


@settings(deadline=None, max_examples=300)
@given(st.text('0123456789.,:/- JanFebMarABCdefRs%&₹', max_size=60))
def test_a_text_proves_itself(text: str) -> None:
    """Whatever figures, dates and symbols a text has, it is proved by being told; and facts do not overlap."""
    assert check(text, text.strip()).unproved == 0
    ends = [0]
    for fact in facts_in(text):
        assert text[fact.start : fact.end] == fact.text
        assert fact.start >= ends[-1]
        ends.append(fact.end)
