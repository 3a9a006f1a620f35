"""What an answer is to look like: the schema that a model is given, and what reads and checks its answer."""

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from trading_agent.errors import InvalidAnswer, InvalidInput

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

_FENCE = re.compile(r'\s*```(?:json)?[ \t]*\r?\n(.*?)\n?[ \t]*```\s*', re.DOTALL | re.IGNORECASE)
_PYDANTIC_LINK = re.compile(r'\n\s*For further information visit \S+')
_MOST_PROBLEMS = 5
_LONGEST_PROBLEM = 300  # characters
_LENIENT = frozenset({'maxLength', 'additionalProperties'})
_NO_SCHEMAS = frozenset({'const', 'enum', 'default', 'examples'})
"""What stands under these keywords of a schema is a value and no schema."""


class AnswerSchema:
    """A schema and what reads answers to it.

    Attributes:
        json_schema: The JSON Schema that a model is given.
    """

    def __init__(self, json_schema: dict[str, Any], parse: Callable[[str], Any]) -> None:
        self.json_schema = json_schema
        self._parse = parse

    @classmethod
    def of(cls, schema: Any, *, lenient: bool = False) -> 'AnswerSchema':  # noqa: ANN401 - whatever describes a type
        """Makes one of a type that msgspec can decode, of a pydantic model, or of a JSON Schema.

        A `$ref` of a JSON Schema leads to what stands within it: nothing is ever fetched.

        Args:
            schema: The type, the model or the dictionary.
            lenient: For a dictionary: lets texts pass that are longer than they should be, and fields that the
                schema does not know. Who asks cuts them.

        Raises:
            InvalidInput: It is no schema.
        """
        if isinstance(schema, dict):
            return _of_json_schema(schema, lenient=lenient)
        if isinstance(schema, type) and hasattr(schema, 'model_validate_json') and hasattr(schema, 'model_json_schema'):
            return cls(schema.model_json_schema(), schema.model_validate_json)
        if schema is None:
            raise InvalidInput('there is no schema', _SCHEMA_HINT)
        return cls(schema_of(schema), msgspec.json.Decoder(schema).decode)

    def read(self, text: str) -> Any:  # noqa: ANN401 - as the schema says
        """Returns what an answer says; it may stand in a fence of three back-ticks.

        Raises:
            InvalidAnswer: It is no JSON, or does not fulfil the schema. The message says what is wrong.
            InvalidInput: The schema refers to itself without end.
        """
        fenced = _FENCE.fullmatch(text)
        try:
            return self._parse(fenced[1] if fenced else text)
        except _Unfit as unfit:
            raise InvalidAnswer(text, str(unfit)) from None
        except InvalidInput:
            raise
        except msgspec.ValidationError as error:
            raise InvalidAnswer(text, f'the answer does not fit: {_clipped(str(error))}') from error
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            raise InvalidAnswer(text, f'the answer is no JSON: {_clipped(str(error))}') from error
        except ValueError as error:  # pydantic's
            told = _PYDANTIC_LINK.sub('', str(error))
            raise InvalidAnswer(text, f'the answer does not fit: {told[: 4 * _LONGEST_PROBLEM]}') from error


_SCHEMA_HINT = 'give a msgspec Struct, a dataclass, a pydantic model or a JSON Schema as a dictionary'


class _Unfit(Exception):
    """An answer does not fulfil a JSON Schema."""


def schema_of(kind: Any) -> dict[str, Any]:  # noqa: ANN401 - any type
    """Returns the JSON Schema of a type, the type itself at its root and those within it under `$defs`.

    Raises:
        InvalidInput: msgspec cannot decode such a type.
    """
    try:
        schema = msgspec.json.schema(kind)
    except (TypeError, NameError, RecursionError) as error:
        raise InvalidInput(f'{kind!r} is no schema: {" ".join(str(error).split())}', _SCHEMA_HINT) from error
    reference = schema.get('$ref')
    if reference is None:
        return schema
    definitions = schema['$defs']
    name = reference.removeprefix('#/$defs/')
    root = definitions[name]
    if f'"{reference}"' not in msgspec.json.encode(definitions).decode():
        definitions = {other: definition for other, definition in definitions.items() if other != name}
    return {**root, '$defs': definitions} if definitions else root


def problems_finder(schema: dict[str, Any], *, lenient: bool = False) -> Callable[[Any], list[str]]:
    """Returns what finds out what is wrong with a value; see `AnswerSchema.of`.

    Raises:
        InvalidInput: It is no JSON Schema, or refers to what is not in it.
    """
    import jsonschema.exceptions
    import jsonschema.validators
    import referencing
    import referencing.exceptions
    from referencing.jsonschema import DRAFT202012

    kind = jsonschema.validators.validator_for(schema, default=jsonschema.validators.Draft202012Validator)
    registry: Any = referencing.Registry()
    try:
        kind.check_schema(schema)
        resource: Any = referencing.Resource.from_contents(schema, default_specification=DRAFT202012)
        resolver = registry.resolver_with_root(resource)
        for reference, base in _references(schema, resolver, DRAFT202012):
            base.lookup(reference)
    except jsonschema.exceptions.SchemaError as error:
        raise InvalidInput(f'this is no JSON Schema: {error.json_path}: {_clipped(error.message)}') from error
    except referencing.exceptions.Unresolvable as error:
        hint = 'put what it refers to under $defs: nothing is fetched'
        raise InvalidInput(f'the schema refers to {error.ref!r}, which is not in it', hint) from error
    except RecursionError as error:
        raise InvalidInput('the schema is nested too deep') from error
    validator = kind(schema, registry=registry)

    def problems(value: Any) -> list[str]:  # noqa: ANN401 - any JSON
        try:
            found = sorted(validator.iter_errors(value), key=lambda error: [str(step) for step in error.absolute_path])
        except (referencing.exceptions.Unresolvable, re.error, RecursionError) as error:
            raise InvalidInput(f'the schema cannot be applied: {type(error).__name__}: {error}') from error
        return list(_in_words(error for error in found if not (lenient and error.validator in _LENIENT)))

    return problems


def _of_json_schema(schema: dict[str, Any], *, lenient: bool) -> AnswerSchema:
    try:
        own: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(schema), type=dict[str, Any])
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f'this is no JSON Schema: {error}', _SCHEMA_HINT) from error
    problems = problems_finder(own, lenient=lenient)
    what = 'JSON object' if own.get('type') == 'object' else 'JSON'

    def parse(text: str) -> Any:  # noqa: ANN401 - as the schema says
        try:
            value = msgspec.json.decode(text.encode())
        except (ValueError, RecursionError) as error:
            raise _Unfit(f'the answer is no {what}: {_clipped(str(error))}') from error
        if what == 'JSON object' and not isinstance(value, dict):
            raise _Unfit(f'the answer is no JSON object: {_clipped(msgspec.json.encode(value).decode())}')
        if found := problems(value):
            raise _Unfit('; '.join(found))
        return value

    return AnswerSchema(own, parse)


def _references(part: object, resolver: Any, specification: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - referencing's
    """Yields each `$ref` of a schema, with what resolves it where it stands."""
    if isinstance(part, list):
        for inner in part:
            yield from _references(inner, resolver, specification)
    elif isinstance(part, dict):
        if isinstance(part.get('$id'), str):
            resolver = resolver.in_subresource(specification.create_resource(part))
        if isinstance(part.get('$ref'), str):
            yield part['$ref'], resolver
        for name, inner in part.items():
            if name not in _NO_SCHEMAS:
                yield from _references(inner, resolver, specification)


def _in_words(errors: 'Iterator[ValidationError]') -> Iterator[str]:
    """Yields what is wrong, the fields that are missing in one place together."""
    missing: dict[str, dict[str, None]] = {}
    told: list[str] = []
    for error in errors:
        place = error.json_path.removeprefix('$').lstrip('.')
        required: Any = error.validator_value
        if error.validator == 'required' and isinstance(error.instance, dict):
            # There is one error for each of them, and each has the whole list.
            missing.setdefault(place, {}).update((name, None) for name in required if name not in error.instance)
        elif error.validator == 'type' and error.validator_value == 'string':
            told.append(f'the answer has no text for {place or "its root"}')
        else:
            told.append(f'{place or "the answer"}: {_clipped(error.message)}')
    lacking = [f'{place or "the answer"} lacks {", ".join(fields)}' for place, fields in missing.items()]
    problems = lacking + told
    yield from problems[:_MOST_PROBLEMS]
    if len(problems) > _MOST_PROBLEMS:
        yield f'and {len(problems) - _MOST_PROBLEMS} more'


def _clipped(text: str) -> str:
    return text if len(text) <= _LONGEST_PROBLEM else f'{text[:_LONGEST_PROBLEM]} …'
