"""What an MCP tool gave back, as the text that a model is shown."""

from typing import Any

import msgspec

from trading_agent.trigger import storable

_NOTHING = '(it gave back nothing)'


def text_of(result: Any) -> str:  # noqa: ANN401 - the SDK's CallToolResult
    """Returns a result as text: texts as they are, what is no text told in words, a structure alone as JSON."""
    parts = [_part(item) for item in result.content]
    if not parts and result.structured_content is not None:
        parts = [msgspec.json.encode(result.structured_content).decode()]
    return storable('\n'.join(parts)) or _NOTHING


def cut(text: str, longest: int) -> str:
    """Returns a text of at most `longest` bytes as UTF-8, and behind a cut a line that says so."""
    data = storable(text).encode()
    if len(data) <= longest:
        return text
    kept = data[:longest].decode(errors='ignore')
    return f'{kept}\n… (cut: the first {longest} of {len(data)} bytes are shown)'


def _part(item: Any) -> str:  # noqa: ANN401 - one of the SDK's content blocks
    match item.type:
        case 'text':
            return str(item.text)
        case 'image' | 'audio':
            return f'[{item.type}, {item.mime_type}, {_size(item.data)}: not shown]'
        case 'resource_link':
            told = f': {item.description}' if item.description else ''
            return f'[resource {item.name!r} at {item.uri}{told}]'
        case 'resource':
            return _resource(item.resource)
    return f'[{item.type}: not shown]'


def _resource(resource: Any) -> str:  # noqa: ANN401 - the SDK's text or blob contents
    text = getattr(resource, 'text', None)
    if text is not None:
        return f'[resource {resource.uri}]\n{text}'
    return f'[resource {resource.uri}, {resource.mime_type or "of no type"}, {_size(resource.blob)}: not shown]'


def _size(base64: str) -> str:
    size = len(base64) * 3 // 4
    return f'{size} bytes' if size < 1 << 10 else f'{size >> 10} KiB'
