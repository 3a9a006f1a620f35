"""How much of a session fits into a model's context, and what is to be folded into a digest before anything is cut."""

from collections.abc import Sequence

from trading_agent.memory import carry
from trading_agent.memory.exchange import Exchange
from trading_agent.memory.rollover import clipped
from trading_agent.providers.announcement import read
from trading_agent.providers.extract import day_summary, rules_in

CHARACTERS_PER_TOKEN = 2.5
"""Of English prose it is about four, of tables and figures fewer: the estimate is on the safe side."""

BYTES_PER_TOKEN = 2
"""Of what is not ASCII: a letter of an Indian script, or a rupee sign, may be a token or two."""

OVERHEAD_TOKENS = 12
"""What a message costs beside its text."""

KEEP_SHARE = 0.5
"""How full the context is after folding, so that not every turn folds."""

DIGEST_CHARACTERS = 6000
DIGEST_SHARE = 0.125
"""The longest digest, in characters, and as a share of the context where that is less."""

FOLD_INSTRUCTION = """\
The earlier part of this conversation no longer fits and is replaced by a digest. Write the digest: what happened, \
what was decided and why, what people told you to keep to, open positions, orders and questions, with every number \
and symbol exactly as it was said. At most {characters} characters of plain text, nothing else.
{before}
These exchanges are to be folded in, oldest first:

{exchanges}
"""


def tokens_in(text: str) -> int:
    """Returns how many tokens a text has as a message, estimated on the safe side."""
    ascii_bytes = len(text.encode('ascii', errors='ignore'))
    other_bytes = len(text.encode(errors='replace')) - ascii_bytes
    return int(ascii_bytes / CHARACTERS_PER_TOKEN + other_bytes / BYTES_PER_TOKEN) + OVERHEAD_TOKENS


def digest_characters(context_tokens: int) -> int:
    """Returns how long a digest may be, in characters, for a model that takes so many tokens."""
    return min(DIGEST_CHARACTERS, int(context_tokens * DIGEST_SHARE * CHARACTERS_PER_TOKEN))


def needed_fold(sizes: Sequence[int], fixed: int, context_tokens: int) -> int:
    """Says how many of the oldest exchanges must go before the rest fits; 0 where all fit.

    Args:
        sizes: The tokens of each exchange that would be sent, oldest first.
        fixed: The tokens of what is sent in any case: system prompt, tools, the new message, and the room for the
            answer.
        context_tokens: How many tokens the model takes.
    """
    kept = sum(sizes)
    if fixed + kept <= context_tokens:
        return 0
    free = context_tokens - fixed - digest_characters(context_tokens) / CHARACTERS_PER_TOKEN
    count = 0
    while count < len(sizes) and kept > free * KEEP_SHARE:
        kept -= sizes[count]
        count += 1
    return count


def batches(exchanges: Sequence[Exchange], room: int) -> list[list[Exchange]]:
    """Splits exchanges into runs of at most `room` tokens; one that is too large for any stands alone."""
    found: list[list[Exchange]] = []
    used = room + 1
    for exchange in exchanges:
        size = tokens_in(exchange.trigger_text) + tokens_in(exchange.answer)
        if used + size > room:
            found.append([])
            used = 0
        found[-1].append(exchange)
        used += size
    return found


def fold_request(digest: str, exchanges: Sequence[Exchange], room: int, characters: int = DIGEST_CHARACTERS) -> str:
    """Returns what the model is asked, so that it folds exchanges into the digest.

    Args:
        digest: The digest so far.
        exchanges: One of the `batches`.
        room: How many tokens a batch has. The texts of an exchange that is larger alone are cut, visibly.
        characters: How long the digest may be.
    """
    most = room // 2 if len(exchanges) == 1 else None
    told = '\n\n'.join(
        f'told: {_cut(exchange.trigger_text, most)}\nanswered: {_cut(exchange.answer, most)}' for exchange in exchanges
    )
    before = f'\nThe digest so far:\n\n{digest}\n' if digest else ''
    return FOLD_INSTRUCTION.format(characters=characters, before=before, exchanges=told)


def _cut(text: str, most_tokens: int | None) -> str:
    text = text.strip()
    tokens = tokens_in(text)
    return text if most_tokens is None or tokens <= most_tokens else clipped(text, len(text) * most_tokens // tokens)


def digest_without_model(digest: str, exchanges: Sequence[Exchange], characters: int = DIGEST_CHARACTERS) -> str:
    """Returns a digest made by rule, where the model could not make one: nothing is cut without a trace.

    What people told the desk to keep to goes on from digest to digest. The first one begins with what a new session
    was told of those before it.

    Args:
        digest: The digest so far.
        exchanges: What is folded in.
        characters: How long the digest may be.
    """
    before = digest
    if not digest:
        first = exchanges[0].trigger_text
        before = first[: len(first) - len(carry.message_in(first))].strip()
    half = characters // 2
    return '\n\n'.join(filter(None, [_shortened(before, half), day_summary(exchanges, characters - half - 2)]))


def _shortened(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    rules = clipped('\n'.join(f'- {rule}' for rule in rules_in(read(text))), most // 2)
    return f'{rules}\n\n{clipped(text, most - len(rules) - 2)}' if rules else clipped(text, most)
