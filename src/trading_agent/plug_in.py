"""Other people's code, by the name that a configuration gives it."""

import importlib
import re
from typing import Any

NAME = re.compile(r'[A-Za-z_][\w.]*:[A-Za-z_]\w*')
"""`package.module:callable`."""


def imported(name: str) -> Any:  # noqa: ANN401 - whatever stands under that name
    """Returns what `package.module:callable` names.

    A module is imported once in the life of a process: what is changed in its file later needs a restart.

    Raises:
        ImportError: There is no such module, or it ends the program when it is imported.
        AttributeError: The module has no such thing.
        Exception: Whatever else importing it raises.
    """
    module_name, _, attribute = name.partition(':')
    importlib.invalidate_caches()  # its package may have been installed since the start
    try:
        module = importlib.import_module(module_name)
    except SystemExit as error:
        raise ImportError(f'{module_name} ends the program when it is imported', name=module_name) from error
    return getattr(module, attribute)
