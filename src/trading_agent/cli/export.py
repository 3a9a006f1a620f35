"""`export`: a session, or all of a desk's, as one document to be read, printed or handed on."""

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from trading_agent import files
from trading_agent.cli.exported_session import ExportedSession, read_session
from trading_agent.cli.options import Options, global_options, pass_options
from trading_agent.cli.records import chosen_session, open_store
from trading_agent.cli.render import plural, print_json
from trading_agent.errors import TradingAgentError
from trading_agent.memory.session_store import SessionStore


class _Exports:
    """The sessions of a document, read one after the other; counts their exchanges as they pass."""

    def __init__(self, store: SessionStore, session_ids: list[str]) -> None:
        self._store = store
        self.session_ids = session_ids
        self.exchanges = 0

    def __iter__(self) -> Iterator[ExportedSession]:
        for session_id in self.session_ids:
            session = read_session(self._store, session_id)
            self.exchanges += len(session.exchanges)
            yield session


@click.command('export')
@click.argument('desk')
@click.argument('session', required=False)
@click.option(
    '--format',
    'kind',
    type=click.Choice(['md', 'html']),
    default='md',
    show_default=True,
    help='Markdown, or one file of HTML.',
)
@click.option('--all', 'everything', is_flag=True, help='Every session of the desk, oldest first.')
@click.option('--output', type=click.Path(path_type=Path), metavar='FILE', help='Write to a file, not to stdout.')
@click.option('--force', is_flag=True, help='Replace the file where it is there already.')
@global_options
@pass_options
def export_command(
    options: Options,
    *,
    desk: str,
    session: str | None,
    kind: str,
    everything: bool,
    output: Path | None,
    force: bool,
) -> None:
    """Write a session as a document; by default the current one.

    It has the exchanges in order, with times in India, and the session's summary. Markdown (md) keeps each text as it
    is, in a fence. HTML is one file that fetches nothing, reads on a phone and prints. A file is written whole or not
    at all.
    """
    if everything and session is not None:
        raise click.UsageError('name a SESSION, or say --all')
    store = open_store(options, desk)
    if everything:
        session_ids = store.session_ids()[::-1]
        if not session_ids:
            raise TradingAgentError(f'{desk} has had no session yet')
    else:
        session_ids = [chosen_session(store, session)]
    sessions = _Exports(store, session_ids)
    parts = _document(kind, desk, sessions)
    to_file = output is not None and str(output) != '-'
    document: str | None = None
    if to_file:
        _write(output or Path(), ''.join(parts).encode(), force=force)
    elif options.json:
        document = ''.join(parts)
    else:
        for part in parts:  # in UTF-8, as the document says, whatever the terminal speaks
            sys.stdout.buffer.write(part.encode())
        sys.stdout.buffer.flush()
    if options.json:
        told = {'desk': desk, 'format': kind, 'sessions': session_ids, 'exchanges': sessions.exchanges}
        print_json({**told, 'output': str(output) if to_file else None, 'document': document})
    elif to_file:
        count = f'{plural(len(session_ids), "session")}, {plural(sessions.exchanges, "exchange")}'
        click.echo(f'wrote {output}: {count}')


def _document(kind: str, desk: str, sessions: _Exports) -> Iterator[str]:
    if kind == 'html':
        from trading_agent.cli.export_html import html

        return html(desk, sessions.session_ids, sessions)
    from trading_agent.cli.export_markdown import markdown

    return markdown(desk, sessions)


def _write(output: Path, document: bytes, *, force: bool) -> None:
    if force:
        files.replace(output, document)
        return
    try:
        files.create(output, document)
    except files.FileExists:
        raise TradingAgentError(
            f'{output} is there already, and is left as it is', '--force replaces it; or name another file'
        ) from None
