"""An MCP server that starts at once and misbehaves as it is told to, over stdio.

Run as `mcp_plain_server.py MODE ORDERS`. Its orders are lines of a file: the key, and what was ordered.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

KEY = 'trading-agent/idempotency-key'
NAMES = ('order', 'echo', 'pid', 'dies', 'hangs', 'nonsense', 'prints', 'floods', 'mib', 'endless', 'refuses')


def _send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({'jsonrpc': '2.0', **message}) + '\n')
    sys.stdout.flush()


def _tools(mode: str) -> list[dict[str, Any]]:
    if mode == 'odd':
        names = ['a.b', 'a/b', 'x' * 100, 'twice', 'twice', 'naïve', '_first']
        odd = [{'name': name, 'description': 'd' * 9000, 'inputSchema': {'type': 'object'}} for name in names]
        far = {'type': 'object', 'properties': {'a': {'$ref': 'http://127.0.0.1:1/schema.json'}}}
        wrong = {'type': 'object', 'properties': {'a': {'type': 'no such type'}}}
        schemas = {'far': far, 'wrong': wrong, 'long': {'type': 'object', 'description': 'd' * 40_000}}
        return odd + [{'name': name, 'inputSchema': schema} for name, schema in schemas.items()]
    return [{'name': name, 'description': name, 'inputSchema': {'type': 'object'}} for name in NAMES]


def _flood(text: str) -> None:
    while True:
        sys.stdout.write(text)
        time.sleep(0.01 if text.startswith('<') else 0)


def _order(arguments: dict[str, Any], meta: dict[str, Any], orders: Path) -> None:
    with orders.open('a') as file:
        file.write(f'{meta.get(KEY)} {arguments.get("symbol")}\n')
    time.sleep(arguments.get('pause', 0))


def _called(name: str, arguments: dict[str, Any]) -> object:
    """Does what a tool is called after, and returns what it gives back."""
    match name:
        case 'pid':
            return str(os.getpid())
        case 'dies':
            os._exit(9)
        case 'hangs':
            time.sleep(3600)
        case 'nonsense':
            return 7
        case 'prints':
            sys.stdout.write('log: a line that is no message\n\n{"half": \n[' + '[' * 100_000 + '\n')
        case 'floods':
            _flood('{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}\n')
        case 'mib':
            return 'x' * (arguments['mib'] << 20)
        case 'endless':
            _flood('x' * 65536)
        case 'refuses':
            raise ValueError('the broker is closed')
    return arguments.get('text', name)


def _listed(mode: str) -> dict[str, Any]:
    if mode == 'invalid':
        return {'tools': [{'name': 7}]}
    return {'tools': _tools(mode)} | ({'nextCursor': 'again'} if mode == 'pages' else {})


def _result(request: dict[str, Any], mode: str, orders: Path) -> dict[str, Any]:
    params = request.get('params') or {}
    arguments = params.get('arguments') or {}
    match request['method']:
        case 'initialize':
            version = '2025-06-18' if mode != 'future' else '2999-01-01'
            server = {'name': 'plain', 'version': '1'}
            return {'protocolVersion': version, 'capabilities': {'tools': {}}, 'serverInfo': server}
        case 'server/discover':
            return {'supportedVersions': ['2026-07-28'], 'capabilities': {'tools': {}}}
        case 'tools/list':
            return _listed(mode)
    if params['name'] == 'order':
        _order(arguments, params.get('_meta') or {}, orders)
    try:
        content = _called(params['name'], arguments)
    except ValueError as error:
        return {'content': [{'type': 'text', 'text': str(error)}], 'isError': True}
    return {'content': [{'type': 'text', 'text': content}] if isinstance(content, str) else content}


def _answer(request: dict[str, Any], mode: str, orders: Path) -> None:
    if mode == 'modern' and request['method'] == 'initialize':
        supported = {'requested': '2025-11-25', 'supported': ['2026-07-28']}
        _send({'id': request['id'], 'error': {'code': -32022, 'message': 'too old', 'data': supported}})
    else:
        extra = {'resultType': 'complete', 'ttlMs': 0, 'cacheScope': 'private'} if mode == 'modern' else {}
        _send({'id': request['id'], 'result': _result(request, mode, orders) | extra})


def main() -> None:
    """Serves until its stdin ends."""
    mode, orders = sys.argv[1], Path(sys.argv[2])
    match mode:
        case 'exits':
            sys.exit(f'there is no broker for {os.environ.get("BROKER_KEY")}')
        case 'silent':
            time.sleep(3600)
        case 'late':
            time.sleep(1)
        case 'garbage':
            _flood('<html>what is this?</html>\n')
        case 'endless':
            _flood('x' * 65536)
        case 'stubborn':
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        case 'parent':  # its child holds the pipes, and stays in its group
            subprocess.Popen(['sleep', '3600'])
    for line in sys.stdin:
        request = json.loads(line)
        if 'id' in request and 'method' in request:
            _answer(request, mode, orders)
        if mode == 'deaf' and request.get('method') == 'tools/list':
            time.sleep(3600)
    if mode == 'stubborn':
        time.sleep(3600)


if __name__ == '__main__':
    main()
