"""A stand-in for the `claude` command, run as a program: it keeps sessions under HOME, and misbehaves on demand.

What it is called with goes to `calls.jsonl` in its HOME. A word such as `(hang)` in a message says how it misbehaves.
Each message is answered with the numbers of the messages that its session holds.
"""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

HOME = Path(os.environ['HOME'])
KEY = 'CLAUDE_CODE_API_KEY_FILE_DESCRIPTOR'


def main() -> None:
    """Answers one message."""
    options = dict(argument.removeprefix('--').partition('=')[::2] for argument in sys.argv[1:])
    above = Path(options['system-prompt-file']).read_text()
    key = Path(f'/proc/self/fd/{os.environ[KEY]}').read_text() if KEY in os.environ else ''
    message = json.loads(sys.stdin.readline())
    told = message['message']['content']
    call = {'pid': os.getpid(), 'options': options, 'environ': dict(os.environ), 'cwd': str(Path.cwd())}
    call |= {'message': message, 'above': above, 'key': key, 'argv': sys.argv[1:]}
    with (HOME / 'calls.jsonl').open('a') as file:
        file.write(json.dumps(call) + '\n')
    session_id, history = opened(options)
    tell(type='system', subtype='init', session_id=session_id, claude_code_version='2.1.332')
    history.append({'uuid': str(uuid.uuid4()), 'told': told})
    keep(options, session_id, history)
    misbehave(told, key)
    answer = 'I know: ' + ' | '.join(line['told'].rpartition('\n')[2] for line in history if 'told' in line)
    answer = '{"summary": "quiet"}' if 'json-schema' in options else answer
    stream(answer)
    history.append({'uuid': (last := str(uuid.uuid4())), 'said': answer})
    keep(options, session_id, history)
    content = [{'type': 'text', 'text': answer}]
    tell(type='assistant', message={'id': 'msg_1', 'model': 'claude-fake', 'content': content}, uuid=last)
    tell(type='result', is_error=False, stop_reason='end_turn', session_id=session_id, result=answer, usage=USAGE)
    if '(linger)' in told:
        time.sleep(1000)


USAGE = {'input_tokens': 11, 'output_tokens': 9, 'cache_read_input_tokens': 3, 'cache_creation_input_tokens': 5}


def opened(options: dict[str, str]) -> tuple[str, list[dict[str, str]]]:
    """Opens the session that the options name, as the real command does."""
    if 'resume' not in options:
        session_id = options.get('session-id', 'unkept')
        if place(session_id).exists():
            stop(f'Error: Session ID {session_id} is already in use.')
        return session_id, []
    if not place(options['resume']).exists():
        stop(f'No conversation found with session ID: {options["resume"]}')
    history = json.loads(place(options['resume']).read_text())
    ids = [line['uuid'] for line in history]
    if options['resume-session-at'] not in ids:
        stop(f'No message found with message.uuid of: {options["resume-session-at"]}')
    return options['resume'], history[: ids.index(options['resume-session-at']) + 1]


def keep(options: dict[str, str], session_id: str, history: list[dict[str, str]]) -> None:
    """Writes a session down."""
    if 'no-session-persistence' not in options:
        place(session_id).write_text(json.dumps(history))


def place(session_id: str) -> Path:
    """Returns the file of a session: they are kept by working directory."""
    return HOME / f'{str(Path.cwd()).replace("/", "-")}-{session_id}.json'


def stream(text: str) -> None:
    """Tells a text as it comes."""
    event({'type': 'message_start', 'message': {'id': 'msg_1', 'usage': USAGE}})
    for start in range(0, len(text), 10):
        event({'type': 'content_block_delta', 'delta': {'type': 'text_delta', 'text': text[start : start + 10]}})


def event(fields: dict[str, Any]) -> None:
    """Tells an event of the model."""
    tell(type='stream_event', event=fields, parent_tool_use_id=None)


def tell(**fields: Any) -> None:  # noqa: ANN401 - as JSON
    """Writes a line."""
    sys.stdout.write(json.dumps(fields) + '\n')
    sys.stdout.flush()


def stop(told: str) -> None:
    """Ends with an error."""
    sys.stderr.write(told + '\n')
    sys.exit(1)


def misbehave(told: str, key: str) -> None:
    """Does what a message says."""
    if '(hang)' in told:
        event({'type': 'message_start', 'message': {'id': 'msg_0', 'usage': USAGE}})
        event({'type': 'content_block_delta', 'delta': {'type': 'text_delta', 'text': 'I'}})
        time.sleep(1000)
    if '(stubborn)' in told:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        started = subprocess.Popen(['/bin/sh', '-c', 'trap "" TERM; sleep 1000 & wait'], start_new_session=True)
        (HOME / 'pids').write_text(f'{os.getpid()} {started.pid}')
        misbehave('(hang)', key)
    if '(leave a child)' in told:
        started = subprocess.Popen(['/bin/sleep', '1000'], start_new_session=True)
        (HOME / 'pids').write_text(f'{os.getpid()} {started.pid}')
    if '(garbage)' in told:
        sys.stdout.write('[SandboxDebug] x\n{"type":\n\x00\n[1]\n')
        sys.stdout.flush()
    if '(half)' in told:
        event({'type': 'content_block_delta', 'delta': {'type': 'text_delta', 'text': 'I'}})
        sys.exit(0)
    if '(die)' in told:
        os.kill(os.getpid(), signal.SIGKILL)
    if '(fail)' in told:
        sys.stderr.write('x' * 3_000_000 + f'\nthe key is {key}\n')
        sys.exit(1)
    if '(overloaded)' in told:
        status = {'api_error_status': 529, 'api_error_type': 'overloaded_error'}
        tell(type='result', is_error=True, result=f'API Error: 529 Overloaded {key}', session_id='x', **status)
        sys.exit(1)
    if '(flood)' in told:
        sys.stderr.write('x' * 3_000_000)
        big = {'type': 'tool_result', 'tool_use_id': 'toolu_1', 'content': 'y' * 20_000_000}
        tell(type='user', message={'content': [big]})
    if '(tool)' in told:
        call = {'type': 'tool_use', 'id': 'toolu_1', 'name': 'Bash', 'input': {'command': 'env'}}
        tell(type='assistant', message={'id': 'msg_0', 'model': 'claude-fake', 'content': [call]}, uuid='u0')
        returned = {'type': 'tool_result', 'tool_use_id': 'toolu_1', 'content': f'KEY={key}'}
        tell(type='user', message={'content': [returned]})
    if '(blank)' in told:
        tell(type='result', is_error=False, result=' ', session_id='x')
        sys.exit(0)


if __name__ == '__main__':
    main()
