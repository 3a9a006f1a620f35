"""What is said over an open connection to an MCP server, in the terms of the official SDK.

The SDK is heavy: it is imported in here when the first server is reached, and nowhere at the top of a module.
"""

from typing import Any

from trading_agent.tools.mcp_content import text_of
from trading_agent.tools.mcp_tools import RemoteTool
from trading_agent.tools.outcome import ToolOutcome

KEY_IN_META = 'trading-agent/idempotency-key'
"""Under this name a request's `_meta` carries the idempotency key."""

MOST_PAGES = 20
MOST_TOOLS = 200


async def introduce(session: Any) -> None:  # noqa: ANN401 - the SDK's session
    """Agrees on a version of the protocol: by the handshake that every server knows, or else by the newer one.

    Raises:
        mcp.MCPError: The server refused both, or the connection was lost.
    """
    from mcp import MCPError
    from mcp_types import METHOD_NOT_FOUND, UNSUPPORTED_PROTOCOL_VERSION

    try:
        await session.initialize()
    except MCPError as error:
        if error.code not in (METHOD_NOT_FOUND, UNSUPPORTED_PROTOCOL_VERSION):
            raise
        await session.discover()


async def tools_of(session: Any) -> list[RemoteTool]:  # noqa: ANN401 - the SDK's session
    """Returns a server's tools: at most 200, in its order.

    Raises:
        mcp.MCPError: The server refused, or the connection was lost.
        pydantic.ValidationError: What it answered is no list of tools.
    """
    from mcp_types import PaginatedRequestParams

    found: list[RemoteTool] = []
    cursor: str | None = None
    for _ in range(MOST_PAGES):
        page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor) if cursor else None)
        found += [RemoteTool(tool.name, tool.description or '', tool.input_schema) for tool in page.tools]
        cursor = page.next_cursor
        if cursor is None:
            break
    return found[:MOST_TOOLS]


async def result_of_call(session: Any, tool: str, arguments: dict[str, Any], key: str | None) -> ToolOutcome:  # noqa: ANN401
    """Calls a tool, once: whatever goes wrong, the SDK sends it no second time.

    Args:
        session: The SDK's session.
        tool: The tool's name at its server.
        arguments: What it is given.
        key: The idempotency key, or None.

    Raises:
        mcp.MCPError: The server refused, or the connection was lost.
        pydantic.ValidationError: What it answered is no result of a tool.
    """
    from mcp_types import CallToolRequest, CallToolRequestParams, CallToolResult

    meta = None if key is None else {KEY_IN_META: key}
    request = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=arguments, _meta=meta))
    # Not by call_tool(), which withholds a result that does not fit the server's own schema: the order was placed.
    result = await session.send_request(request, CallToolResult)
    return ToolOutcome(text_of(result), result.is_error)


def in_words(error: BaseException) -> str:
    """Returns what went wrong, without what was said: of an answer that makes no sense, only where it does not."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if callable(errors := getattr(error, 'errors', None)):  # pydantic's, whose text quotes the answer
        first = errors(include_input=False, include_url=False, include_context=False)[0]
        place = '.'.join(str(step) for step in first['loc'])
        return f'its answer makes no sense: {place}: {first["msg"]}'
    return str(error) or type(error).__name__
