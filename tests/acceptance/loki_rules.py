"""Evaluates the rules of `config/alerts/loki-rules.yaml` over a log, as the ruler of Grafana Loki does.

Known is the part of LogQL that those rules use, and whatever else is refused: a selector of equal labels; the line
filters `|=`, `!=` and `|~`; `| json name="field"`, comparisons of a label with a number, `| label_format` with the
one template that turns a word into 1 or 0, `| unwrap`; `count_over_time`, `absent_over_time`, `last_over_time … by`;
`sum by`; a threshold; `unless`; and a rule's `for`. Written from Loki's documentation (grafana.com/docs/loki: Query,
Alert), with two of its traps: a field that a line lacks is an empty label, and comparing that with a number is an
error, by which a whole rule fails.
"""

import bisect
import json
import operator
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

Labels = dict[str, str]
Series = frozenset[tuple[str, str]]
Vector = dict[Series, float]
Stage = Callable[[str, Labels], Labels | None]

COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    '>': operator.gt,
    '>=': operator.ge,
    '<': operator.lt,
    '<=': operator.le,
    '==': operator.eq,
}
UNITS = {'s': 1, 'm': 60, 'h': 3600, 'd': 86400}
TOKEN = re.compile(
    r"""\s*(?: (?P<text> `[^`]*` | "[^"\\]*" ) | (?P<span> \d+[smhd] \b ) | (?P<number> \d+(?:\.\d+)? )
    | (?P<name> [a-zA-Z_]\w* ) | (?P<sign> \|= | \|~ | != | >= | <= | == | [|{}()\[\],=<>] ) )""",
    re.VERBOSE,
)
TEMPLATE = re.compile(r'\{\{ if eq \.(\w+) "(\w+)" \}\}1\{\{ else \}\}0\{\{ end \}\}')


class Refused(Exception):
    """Raised for what Loki would refuse or fail at, and for what is not known here."""


@dataclass(frozen=True)
class Entry:
    """One line of a log.

    Attributes:
        at: When it was written.
        line: Its text, without the newline.
    """

    at: datetime
    line: str


@dataclass(frozen=True)
class Stream:
    """The log as Loki keeps it: one stream.

    Attributes:
        labels: The labels of the stream.
        entries: Its lines, by time.
    """

    labels: Labels
    entries: Sequence[Entry]


@dataclass
class Samples:
    """What an expression reads of a log: once worked out, asked at any instant."""

    times: list[datetime]
    values: list[tuple[Series, float]]

    def within(self, at: datetime, span: timedelta) -> list[tuple[Series, float]]:
        """Returns what lies in the span that ends at an instant: its beginning excluded, its end included."""
        first, end = (bisect.bisect_right(self.times, instant) for instant in (at - span, at))
        return self.values[first:end]


@dataclass(frozen=True)
class OverTime:
    """`function(selector stages [span]) by (labels)`."""

    function: str
    selector: Labels
    stages: list[Stage]
    unwrapped: str | None
    span: timedelta
    by: list[str] | None

    def read(self, stream: Stream) -> Callable[[datetime], Vector]:
        """Reads a log; returns what tells the result at an instant."""
        samples = Samples([], [])
        for entry in stream.entries:
            labels = self._through(entry.line, stream.labels)
            if labels is None or (self.unwrapped and not labels[self.unwrapped]):
                continue
            value = float(labels.pop(self.unwrapped)) if self.unwrapped else 1.0
            kept = labels if self.by is None else {name: labels.get(name, '') for name in self.by}
            samples.times.append(entry.at)
            samples.values.append((_series(kept), value))
        return lambda at: self._result(samples.within(at, self.span))

    def _through(self, line: str, of_stream: Labels) -> Labels | None:
        if any(of_stream.get(name) != value for name, value in self.selector.items()):
            return None
        labels: Labels | None = dict(of_stream)
        for stage in self.stages:
            labels = stage(line, labels) if labels is not None else None
        return labels

    def _result(self, samples: list[tuple[Series, float]]) -> Vector:
        if self.function == 'absent_over_time':
            return {} if samples else {_series(self.selector): 1.0}
        if self.function == 'last_over_time':
            return dict(samples)
        counts: Vector = defaultdict(float)
        for series, value in samples:
            counts[series] += value
        return counts


@dataclass(frozen=True)
class Sum:
    """`sum by (labels) (…)`."""

    by: list[str]
    of: OverTime

    def read(self, stream: Stream) -> Callable[[datetime], Vector]:
        """Reads a log; returns what tells the result at an instant."""
        inner = self.of.read(stream)

        def result(at: datetime) -> Vector:
            sums: Vector = defaultdict(float)
            for series, value in inner(at).items():
                labels = dict(series)
                sums[_series({name: labels.get(name, '') for name in self.by})] += value
            return sums

        return result


@dataclass(frozen=True)
class Threshold:
    """`… > number`: keeps the series that pass."""

    of: OverTime | Sum
    sign: str
    number: float

    def read(self, stream: Stream) -> Callable[[datetime], Vector]:
        """Reads a log; returns what tells the result at an instant."""
        inner, passes = self.of.read(stream), COMPARISONS[self.sign]
        return lambda at: {series: value for series, value in inner(at).items() if passes(value, self.number)}


@dataclass(frozen=True)
class Unless:
    """`… unless …`: the series of the first that the second has not."""

    first: 'OverTime | Sum | Threshold'
    second: 'OverTime | Sum | Threshold'

    def read(self, stream: Stream) -> Callable[[datetime], Vector]:
        """Reads a log; returns what tells the result at an instant."""
        first, second = self.first.read(stream), self.second.read(stream)

        def result(at: datetime) -> Vector:
            without = second(at)
            return {series: value for series, value in first(at).items() if series not in without}

        return result


Expression = OverTime | Sum | Threshold | Unless


def _series(labels: Labels) -> Series:
    return frozenset((name, value) for name, value in labels.items() if value)


class Parser:
    """Reads one expression.

    Args:
        text: The expression.
    """

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        place = 0
        while text[place:].strip():
            match = TOKEN.match(text, place)
            if match is None or match.lastgroup is None:
                raise Refused(f'not known: {text[place:]!r}')
            self._tokens.append((match.lastgroup, match[match.lastgroup]))
            place = match.end()

    def parse(self) -> Expression:
        """Returns the whole expression."""
        result: Expression = self._threshold()
        if self._takes('unless'):
            result = Unless(self._checked(result), self._threshold())
        if self._tokens:
            raise Refused(f'not known: {self._tokens[0][1]}')
        return result

    def _checked(self, expression: Expression) -> OverTime | Sum | Threshold:
        assert not isinstance(expression, Unless)
        return expression

    def _threshold(self) -> OverTime | Sum | Threshold:
        vector = self._vector()
        for sign in COMPARISONS:
            if self._takes(sign):
                return Threshold(vector, sign, float(self._take('number')))
        return vector

    def _vector(self) -> OverTime | Sum:
        function = self._take('name')
        if function == 'sum':
            by = self._grouping()
            self._expect('(')
            inner = self._vector()
            self._expect(')')
            if by is None or isinstance(inner, Sum):
                raise Refused('a sum is `sum by (labels) (… over time)`')
            return Sum(by, inner)
        if function not in ('count_over_time', 'absent_over_time', 'last_over_time'):
            raise Refused(f'not known: {function}')
        self._expect('(')
        selector = self._selector()
        stages, unwrapped = self._pipeline()
        self._expect('[')
        span = span_of(self._take('span'))
        self._expect(']')
        self._expect(')')
        by = self._grouping()
        if (function == 'last_over_time') != (unwrapped is not None) or (by is not None and unwrapped is None):
            raise Refused('`last_over_time`, and nothing else, takes `| unwrap` and `by`')
        return OverTime(function, selector, stages, unwrapped, span, by)

    def _grouping(self) -> list[str] | None:
        if not self._takes('by'):
            return None
        self._expect('(')
        names = [self._take('name')]
        while self._takes(','):
            names.append(self._take('name'))
        self._expect(')')
        return names

    def _selector(self) -> Labels:
        self._expect('{')
        selector = dict([self._pair()])
        while self._takes(','):
            selector.update([self._pair()])
        self._expect('}')
        return selector

    def _pair(self) -> tuple[str, str]:
        name = self._take('name')
        self._expect('=')
        return name, self._take('text')[1:-1]

    def _pipeline(self) -> tuple[list[Stage], str | None]:
        stages: list[Stage] = []
        while True:
            if self._takes('|='):
                stages.append(_containing(self._take('text')[1:-1], wanted=True))
            elif self._takes('!='):
                stages.append(_containing(self._take('text')[1:-1], wanted=False))
            elif self._takes('|~'):
                stages.append(_matching(self._take('text')[1:-1]))
            elif self._takes('|'):
                if self._takes('unwrap'):
                    return stages, self._take('name')
                stages.append(self._stage())
            else:
                return stages, None

    def _stage(self) -> Stage:
        if self._takes('json'):
            fields = dict([self._pair()])
            while self._takes(','):
                fields.update([self._pair()])
            return _json(fields)
        if self._takes('label_format'):
            name, template = self._pair()
            match = TEMPLATE.fullmatch(template)
            if match is None:
                raise Refused(f'not known: the template {template}')
            return _one_if(name, match[1], match[2])
        name = self._take('name')
        sign = self._take('sign')
        if sign not in COMPARISONS:
            raise Refused(f'not known: {name} {sign}')
        return _compared(name, sign, float(self._take('number')))

    def _takes(self, token: str) -> bool:
        if self._tokens and self._tokens[0][0] in ('name', 'sign') and self._tokens[0][1] == token:
            del self._tokens[0]
            return True
        return False

    def _expect(self, token: str) -> None:
        if not self._takes(token):
            raise Refused(f'{token} is expected before {self._tokens[:1]}')

    def _take(self, kind: str) -> str:
        if not self._tokens or self._tokens[0][0] != kind:
            raise Refused(f'a {kind} is expected before {self._tokens[:1]}')
        return self._tokens.pop(0)[1]


def _containing(text: str, *, wanted: bool) -> Stage:
    return lambda line, labels: labels if (text in line) == wanted else None


def _matching(pattern: str) -> Stage:
    expression = re.compile(pattern)
    return lambda line, labels: labels if expression.search(line) else None


def _json(fields: dict[str, str]) -> Stage:
    def stage(line: str, labels: Labels) -> Labels:
        try:
            values = json.loads(line)
        except ValueError as error:
            raise Refused(f'not JSON, at which the rule would fail: {line}') from error
        for name, field in fields.items():
            if name in labels:
                raise Refused(f'the stream has a label {name} already: this one would be {name}_extracted')
            value = values.get(field, '')
            labels[name] = value if isinstance(value, str) else json.dumps(value)
        return labels

    return stage


def _one_if(name: str, label: str, word: str) -> Stage:
    return lambda _, labels: {**labels, name: str(int(labels[label] == word))}


def _compared(name: str, sign: str, number: float) -> Stage:
    def stage(line: str, labels: Labels) -> Labels | None:
        if not labels.get(name):
            raise Refused(f'no {name} to be compared, at which the rule would fail: {line}')
        return labels if COMPARISONS[sign](float(labels[name]), number) else None

    return stage


def span_of(text: str) -> timedelta:
    """Reads a span such as `5m`."""
    return timedelta(seconds=int(text[:-1]) * UNITS[text[-1]])


@dataclass(frozen=True)
class Rule:
    """One alert.

    Attributes:
        alert: Its name.
        text: Its expression, as it stands.
        expression: The same, read.
        pending: How long the expression has to hold before the alert fires.
        labels: What the alert is marked with.
        annotations: What a person is told.
    """

    alert: str
    text: str
    expression: Expression
    pending: timedelta
    labels: Labels
    annotations: Labels


@dataclass(frozen=True)
class RuleFile:
    """A file of rules, of one group.

    Attributes:
        interval: How often the rules are evaluated.
        rules: The rules.
    """

    interval: timedelta
    rules: list[Rule]

    def run(
        self, stream: Stream, first: datetime, last: datetime
    ) -> Iterator[tuple[datetime, dict[str, list[Labels]]]]:
        """Evaluates the rules over a log, again and again.

        Args:
            stream: The log.
            first: The first evaluation comes at this instant or up to an interval later.
            last: The last one comes at this instant.

        Yields:
            Each instant, and the alerts that fire at it: each with the labels of those that do.
        """
        results = [(rule, rule.expression.read(stream)) for rule in self.rules]
        since: dict[tuple[str, Series], datetime] = {}
        for place in range((last - first) // self.interval, -1, -1):
            at = last - place * self.interval
            active = {(rule.alert, series) for rule, result in results for series in result(at)}
            since = {key: since.get(key, at) for key in active}
            firing: dict[str, list[Labels]] = defaultdict(list)
            for rule in self.rules:
                for (alert, series), began in since.items():
                    if alert == rule.alert and at - began >= rule.pending:
                        firing[alert].append(dict(series))
            yield at, dict(firing)


def load(path: Path) -> RuleFile:
    """Reads a file of rules.

    Raises:
        Refused: It holds what Loki would refuse, or what is not known here.
    """
    (group,) = yaml.safe_load(path.read_text())['groups']
    if set(group) != {'name', 'interval', 'rules'}:
        raise Refused(f'not known: {set(group)}')
    return RuleFile(span_of(group['interval']), [_rule(rule) for rule in group['rules']])


def _rule(rule: dict[str, Any]) -> Rule:
    if not set(rule) <= {'alert', 'expr', 'for', 'labels', 'annotations'}:
        raise Refused(f'not known: {set(rule)}')
    return Rule(
        alert=rule['alert'],
        text=rule['expr'],
        expression=Parser(rule['expr']).parse(),
        pending=span_of(rule.get('for', '0s')),
        labels=rule['labels'],
        annotations=rule['annotations'],
    )
