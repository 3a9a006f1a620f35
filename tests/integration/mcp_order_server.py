"""An MCP server made with the official SDK, over stdio or streamable HTTP. Its orders are lines of a file.

Run as `mcp_order_server.py stdio ORDERS` or `mcp_order_server.py http ORDERS PORT [json]`, which writes its port to
stdout; PORT may be 0, and with `json` it answers without event streams.
"""

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

import anyio
import uvicorn
from mcp.server.mcpserver import Context, Image, MCPServer

KEY = 'trading-agent/idempotency-key'


def make(orders: Path) -> MCPServer:
    """Returns a server that writes its orders to a file."""
    server = MCPServer('orders', version='1')

    async def echo(text: str) -> str:
        """Gives back a text."""
        return text

    async def slow(seconds: float) -> str:
        """Takes its time."""
        await anyio.sleep(seconds)
        return 'done at last'

    async def huge(kib: int) -> str:
        """Gives back very much."""
        return 'x' * (kib << 10)

    async def dies() -> str:
        """Ends the server."""
        os._exit(9)

    async def refuses() -> str:
        """Fails as a tool does."""
        raise ValueError('the broker is closed')

    async def picture() -> Image:
        """Gives back what is no text."""
        return Image(data=b'x' * 3000, format='png')

    async def told(ctx: Context) -> str:
        """Gives back what the request carried besides its arguments."""
        headers: Mapping[str, str] = ctx.headers or {}
        return f'{ctx.request_context.meta} {headers.get("authorization")} {sorted(os.environ)}'

    async def order(symbol: str, quantity: int, ctx: Context, pause: float = 0) -> str:
        """Places an order."""
        meta = ctx.request_context.meta or {}
        with orders.open('a') as file:
            file.write(f'{meta.get(KEY)} {symbol} {quantity}\n')
        await anyio.sleep(pause)
        return f'ordered {quantity} {symbol}'

    for tool in (echo, slow, huge, dies, refuses, picture, told, order):
        server.add_tool(tool)
    return server


def main() -> None:
    """Serves until its stdin ends, or it is ended."""
    how, orders = sys.argv[1], Path(sys.argv[2])
    server = make(orders)
    if how == 'stdio':
        anyio.run(server.run_stdio_async)
        return
    listener = socket.create_server(('127.0.0.1', int(sys.argv[3])))
    print(listener.getsockname()[1], flush=True)  # noqa: T201 - whoever starts it waits for this
    config = uvicorn.Config(
        server.streamable_http_app(json_response=sys.argv[4:] == ['json']),
        log_level='error',
        timeout_graceful_shutdown=0,
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == '__main__':
    main()
