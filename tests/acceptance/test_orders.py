"""kill -9 while a desk places orders: no order is ever sent twice, and the desk is told what is not known."""

import importlib.util
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from process import Process, Start, until

needs_mcp = pytest.mark.skipif(
    importlib.util.find_spec('mcp') is None and not os.environ.get('TRADING_AGENT_TEST_ALL'),
    reason='SKIPPED: the extra `mcp` is not installed; scripts/check --all installs it',
)
KILLS = 200 if os.environ.get('TRADING_AGENT_TEST_ALL') else 6
SERVER = Path(__file__).parents[1] / 'integration' / 'mcp_order_server.py'
CONFIG = """
[backends.ordering]
kind = "ordering_backend:make"
pause = 0.02

[[desks]]
name = "main"
backends = ["ordering"]
mcp_servers = [{{ name = "broker", url = "http://127.0.0.1:{port}/mcp" }}]
"""


def orders_in(path: Path) -> list[str]:
    """Returns the key of each order that the broker got."""
    return [line.split(' ')[0] for line in path.read_text().split('\n') if line] if path.exists() else []


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A broker that lives on whatever becomes of the desk: the file of its orders, and its port."""
    orders = tmp_path / 'orders.txt'
    with subprocess.Popen(
        [sys.executable, str(SERVER), 'http', str(orders), '0'], stdout=subprocess.PIPE, stdin=subprocess.PIPE
    ) as server:
        assert server.stdout is not None
        try:
            yield orders, int(server.stdout.readline())
        finally:
            server.kill()


@needs_mcp
def test_no_order_is_sent_twice(start: Start, broker: tuple[Path, int]) -> None:
    """Over kills at every moment each order has its own key, each message at most one order, and each an outcome."""
    moments = random.Random(20261021)  # noqa: S311 - the same moments each time
    orders, port = broker
    config = CONFIG.format(port=port)
    environ = {'PYTHONPATH': os.pathsep.join([str(Path(__file__).parent), os.environ.get('PYTHONPATH', '')])}
    asked: list[str] = []
    for number in range(KILLS):
        daemon = start(config, environ=environ).ready()
        asked.append(f'm{number}')
        daemon.send('buy ABC', id=f'm{number}')
        until(lambda: daemon.found('turn_started'), 'a turn begins')  # noqa: B023 - of this round
        time.sleep(moments.uniform(0, 0.18))
        daemon.kill()
        daemon.close()
    daemon = start(config, environ=environ).ready()
    until(lambda: daemon.desk()['queue'] == 0, 'everything has its outcome')
    assert daemon.stop() == 0
    check(daemon, asked, orders_in(orders))


def check(daemon: Process, asked: list[str], keys: list[str]) -> None:
    """Checks the orders that the broker got against what the desk's files say."""
    outcomes = daemon.files_of().outcomes()
    assert [key for key, count in Counter(keys).items() if count > 1] == []
    by_message = Counter(key.rsplit('/', 2)[0] for key in keys)
    assert max(by_message.values()) == 1, 'a message was ordered for twice'
    assert {outcomes[trigger_id] for trigger_id in asked} <= {'answered', 'unknown', 'quarantined'}
    # Cut off three times before it had acted: nothing was ordered for it.
    quarantined = {trigger_id for trigger_id in asked if outcomes[trigger_id] == 'quarantined'}
    assert not quarantined & set(by_message)
    unknown = [trigger_id for trigger_id in asked if outcomes[trigger_id] == 'unknown']
    # While the broker's server was not there yet an order could not be sent, and the answer says so.
    answers = {exchange['trigger_id']: exchange['answer'] for exchange in daemon.files_of().exchanges()}
    ordered = [trigger_id for trigger_id in asked if 'Done: ordered' in answers.get(trigger_id, '')]
    assert set(ordered) <= set(by_message), 'an answer without its order'
    told = [exchange for exchange in daemon.files_of().exchanges() if exchange['trigger_id'].startswith('unknown-')]
    assert len(told) == len(unknown)
    assert all('broker__order({"symbol":"ABC"' in exchange['trigger_text'] for exchange in told)
    assert unknown or len(asked) < 100, 'no kill came in the middle of an order'
    assert ordered
