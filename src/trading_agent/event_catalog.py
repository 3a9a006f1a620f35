"""What each event and each of its fields means, for people and for `events --catalog`."""

from trading_agent.events import Event

FIELD_MEANINGS = {
    'answer': "the answer's text (in the log its length, as `answer_length`)",
    'added': 'what the new configuration adds, such as `desk main`',
    'applied': 'how many changes to skills were made',
    'attempt': 'how often this trigger has been started, this time included',
    'backend': 'the configured name of the backend',
    'behind_bytes': 'how much of the files is not in the index yet',
    'blocked_ms': 'for how long so far',
    'budget': 'how many tokens the desk may use of the backend on the trading date',
    'by': 'who did it',
    'cache_read_tokens': 'tokens that came from a cache',
    'cache_write_tokens': 'tokens that were put into a cache',
    'call_id': 'the id of the tool call, as the model gave it',
    'cause': 'what made it happen',
    'changed': 'what the new configuration changes',
    'clock_date': 'the trading date that the clock shows',
    'clock_state': '`steady`, `stepped` (within the last minute) or `behind`',
    'component': 'the name of the part',
    'delay_ms': 'how long until the next start',
    'desk': "the desk's name",
    'desks': 'how many desks',
    'desks_parked': 'how many desks are parked',
    'desks_paused': 'how many desks are paused',
    'desks_running': 'how many desks are running or starting',
    'disk_free_bytes': "free space on the workspace's file system, as an ordinary user sees it",
    'disk_free_percent': 'the same as a share of the whole, in percent',
    'duration_ms': 'how long it took',
    'error': 'what went wrong, in words',
    'error_type': "the error's class",
    'events_skipped': 'how many events the slow subscriber did not get; in a heartbeat, all of them since the start',
    'exchanges': 'how many exchanges the session has',
    'failures': 'how many calls in a row had failed',
    'first_output_ms': 'how long until something of the answer came',
    'hint': 'what to do about it',
    'input_tokens': 'tokens read, without those of a cache',
    'journal_digest': "the digest of the last line of the session's journal; the next journal begins with it",
    'late_ms': 'how long ago the boundary was',
    'length': 'how many characters the new text has',
    'line': "the line's number in the file, from 1",
    'market_hours': 'whether it is Monday to Friday, 09:15 to 15:30 IST, by the clock; holidays are not known',
    'model': "the model, in the provider's word",
    'next_session_id': 'the session that follows',
    'oldest_trigger_age_ms': 'how long the trigger that has waited longest has been due',
    'oldest_trigger_desk': 'whose trigger that is',
    'open_triggers': 'how many accepted triggers are not closed',
    'operation': 'what was tried',
    'outcome': 'how it ended',
    'output_tokens': 'tokens written',
    'path': 'the file or folder',
    'preferred': "whether the answer came from the desk's first backend",
    'previous_length': 'how many characters the old text had',
    'previous_session_id': 'the session before this one',
    'priority': '`person`, `timer` or `feed`',
    'proposed': 'how many changes to skills wait for a person',
    'purpose': '`turn`, or what a model is asked beside turns, such as `summary`',
    'quality': '`full`, `degraded` (made without a model, a full one is owed) or `backfilled` (the full one, later)',
    'queue_depth': 'how many triggers wait or run',
    'reason': 'why',
    'refused': 'how many changes to skills were asked for that cannot be made',
    'removed': 'what the new configuration no longer has',
    'restarts': 'how often within the last minute',
    'retry_after_ms': 'how long it is left alone',
    'rss_bytes': "the process's resident memory",
    'server': 'the configured name of the MCP server',
    'session_id': 'the session, such as `2026-10-19-1`',
    'source': 'where the trigger came from',
    'stage': 'how far the rollover is: answers, summary, memory, skills, session, announced; or `waiting`',
    'step_ms': 'by how much the clock was set, positive when forward',
    'subscriber': 'who was slow',
    'summaries_owed': 'how many summaries were made without a model and still wait for a full one',
    'summary_path': "the summary's file",
    'task': 'the task that runs it',
    'text': 'the text (in the log its length, as `text_length`)',
    'tokens': 'how many it has used',
    'tool': 'the name of the tool',
    'tools': 'how many tools it has',
    'trading_date': 'the India date, moved by `rollover_at`',
    'trigger_id': "the trigger's id; of a turn of several, the first one's",
    'triggers': 'how many triggers were gathered into the turn; left out where it was one',
    'turn_id': 'the trigger and the attempt',
    'turns_running': 'how many turns are running',
    'unproved': 'how many numbers, dates and symbols are marked: they do not stand in the exchanges or notes',
    'version': 'of trading-agent',
    'wait_ms': 'how long the trigger was due before it was started',
}
"""What each field says. A field of one name means the same in every event."""


def event_types() -> dict[str, type[Event]]:
    """Returns every event of the daemon by its name; those that components make are their own."""
    own = [kind for kind in Event.__subclasses__() if kind.__module__.startswith('trading_agent.')]
    return {str(kind.__struct_config__.tag): kind for kind in own}


def catalog() -> list[dict[str, object]]:
    """Returns every event with its level, what it is about and what its fields mean."""
    return [
        {
            'event': name,
            'level': kind.level,
            'fields': {field: FIELD_MEANINGS[field] for field in kind.__struct_fields__},
            'about': ' '.join((kind.__doc__ or '').split()),
        }
        for name, kind in event_types().items()
    ]
