"""What each event and each of its fields means, for people and for `events --catalog`."""

from trading_agent.events import Event

FIELD_MEANINGS = {
    'answer': "the answer's text (in the log its length, as `answer_length`)",
    'added': 'what the new configuration adds, such as `desk main`',
    'attempt': 'how often this trigger has been started, this time included',
    'backend': 'the configured name of the backend',
    'blocked_ms': 'for how long so far',
    'by': 'who did it',
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
    'hint': 'what to do about it',
    'late_ms': 'how long ago the boundary was',
    'length': 'how many characters the new text has',
    'line': "the line's number in the file, from 1",
    'market_hours': 'whether it is Monday to Friday, 09:15 to 15:30 IST, by the clock; holidays are not known',
    'next_session_id': 'the session that follows',
    'oldest_trigger_age_ms': 'how long the trigger that has waited longest has been due',
    'oldest_trigger_desk': 'whose trigger that is',
    'open_triggers': 'how many accepted triggers are not closed',
    'operation': 'what was tried',
    'outcome': 'how it ended',
    'path': 'the file or folder',
    'preferred': "whether the answer came from the desk's first backend",
    'previous_length': 'how many characters the old text had',
    'previous_session_id': 'the session before this one',
    'priority': '`person`, `timer` or `feed`',
    'purpose': '`turn`, or what a model is asked beside turns, such as `summary`',
    'quality': '`full`, `degraded` (made without a model, a full one is owed) or `backfilled` (the full one, later)',
    'queue_depth': 'how many triggers wait or run',
    'reason': 'why',
    'removed': 'what the new configuration no longer has',
    'restarts': 'how often within the last minute',
    'rss_bytes': "the process's resident memory",
    'session_id': 'the session, such as `2026-10-19-1`',
    'source': 'where the trigger came from',
    'stage': 'how far the rollover is: answers, summary, memory, skills, session, announced; or `waiting`',
    'step_ms': 'by how much the clock was set, positive when forward',
    'subscriber': 'who was slow',
    'summaries_owed': 'how many summaries were made without a model and still wait for a full one',
    'summary_path': "the summary's file",
    'task': 'the task that runs it',
    'text': 'the text (in the log its length, as `text_length`)',
    'trading_date': 'the India date, moved by `rollover_at`',
    'trigger_id': "the trigger's id",
    'turn_id': 'the trigger and the attempt',
    'turns_running': 'how many turns are running',
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
