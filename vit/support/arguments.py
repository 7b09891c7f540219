"""The arguments of classes whose constructors pass keyword arguments on."""

import inspect


def constructor_arguments(*classes: type) -> set[str]:
    """Return the names of the arguments of classes, with those that keyword arguments pass on to their bases.

    >>> class Base:
    ...     def __init__(self, size: int) -> None: ...
    >>> class Derived(Base):
    ...     def __init__(self, name: str, **kwargs) -> None: ...
    >>> sorted(constructor_arguments(Derived))
    ['name', 'size']
    """
    names: set[str] = set()
    for cls in classes:
        for base in (base for base in cls.__mro__ if base.__module__.partition(".")[0] != "lightning"):
            parameters = inspect.signature(base.__init__).parameters.values()
            names |= {parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD}
            if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
                break
    return names - {"self", "args"}
