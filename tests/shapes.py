"""Arrays in calls of public functions, checked against the shapes in their annotations while tests run.

``install`` is called before the package is imported. From then on, each public function and method of ``kme_jax``
whose annotations have shapes (jaxtyping) checks its arguments and its result when it returns. So a function either
refuses an array, with its own error, or takes and returns what its annotations say. A method without annotations is
checked against those of the method that it overrides. Fields of dataclasses are checked after construction, except
when JAX builds a pytree: its leaves are then placeholders, or arrays with other dimensions.

jaxtyping's own import hook decorates every function, nested ones too, which takes several milliseconds for each
definition. It also checks arguments before the call, so that the errors of the package could not be tested.
"""

import contextlib
import dataclasses
import functools
import importlib.machinery
import inspect
import sys
import types
import typing

import beartype
import beartype.door
import jax
import jaxtyping
import numpy as np
from jax.core import Tracer

AnyArray = np.ndarray | jax.Array
PACKAGE = "kme_jax"
UNCHECKED = ("kme_jax._numerics", "kme_jax.cli")  # not public
_CONF = beartype.BeartypeConf(is_pep484_tower=True, warning_cls_on_decorator_exception=None)
_BUILT_BY_JAX = "_numerics/pytrees.py"  # the file whose code calls a constructor for a pytree


class ShapeError(TypeError):
    """An array does not fit its annotation."""


def mentions_shape(hint):
    """Whether there is an array with a shape in a type."""
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    return any(map(mentions_shape, typing.get_args(hint)))


def mentions_bare_array(hint):
    """Whether there is an array without a shape in a type."""
    return hint in (np.ndarray, jax.Array) or (
        typing.get_origin(hint) is np.ndarray or any(map(mentions_bare_array, typing.get_args(hint)))
    )


def public_functions(owner):
    """The public functions of a module, or the public methods of a class, and its own __call__: (name, function,
    wrap), where ``wrap`` turns a function into the kind of attribute that it is."""
    for name, value in list(vars(owner).items()):
        if name.startswith("_") and name != "__call__":
            continue
        if isinstance(value, types.FunctionType) and value.__module__ == _module_of(owner):
            yield name, value, lambda function: function
        elif isinstance(value, classmethod | staticmethod) and isinstance(owner, type):
            yield name, value.__func__, type(value)
        elif type(value) is property and isinstance(value.fget, types.FunctionType) and isinstance(owner, type):
            yield name, value.fget, property


def public_classes(module):
    """The public classes that a module defines."""
    return [
        value
        for name, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == module.__name__ and not name.startswith("_")
    ]


def hints_of(function, name=None, owner=None):
    """{parameter, or "return": type}: of a function, or of the method that it overrides if it has no annotations."""
    inherited = [vars(base).get(name) for base in owner.__mro__] if isinstance(owner, type) else []
    for candidate in [function, *inherited]:
        candidate = getattr(candidate, "fget", None) or getattr(candidate, "__func__", candidate)
        if isinstance(candidate, types.FunctionType) and inspect.unwrap(candidate).__annotations__:
            return _evaluated(inspect.unwrap(candidate).__annotations__, inspect.unwrap(candidate).__globals__)
    return {}


def fields_of(cls):
    """{field: type}: of a dataclass, with the fields that it inherits."""
    hints = {}
    for base in reversed(cls.__mro__):
        hints |= _evaluated(vars(base).get("__annotations__", {}), vars(sys.modules[base.__module__]))
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.name in hints}


def _evaluated(annotations, names):
    """The types that annotations stand for, without those of names that only type checkers import."""
    hints = {}
    for name, annotation in annotations.items():
        with contextlib.suppress(NameError):
            hints[name] = eval(annotation, dict(names)) if isinstance(annotation, str) else annotation
    return hints


def _module_of(owner):
    return owner.__module__ if isinstance(owner, type) else owner.__name__


def _fits(value, hint):
    return beartype.door.is_bearable(value, hint, conf=_CONF)


def _is_of_arrays(hint):
    """Whether a type is that of an array, or of one of several, and not of a container."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return all(map(_is_of_arrays, typing.get_args(hint)))
    return hint is type(None) or (isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray))


def _arrays(value):
    """The arrays in a value, in the containers that signatures have."""
    if isinstance(value, np.ndarray | jax.Array):
        yield value
    elif isinstance(value, tuple | list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _arrays(item)


def _has_arrays(value):
    return next(_arrays(value), None) is not None


def _describe(value):
    sizes = [f"{array.dtype} {list(array.shape)}" for array in _arrays(value)]
    return f"{type(value).__name__} of {', '.join(sizes[:5]) or 'no arrays'}"


def _check(what, value, hint):
    if not _fits(value, hint):
        raise ShapeError(f"{what}: {_describe(value)} is not {hint}")


def checked(function, hints, name):
    """The function, which checks its arguments and its result when it returns, or the items that it yields."""
    hints = {parameter: hint for parameter, hint in hints.items() if mentions_shape(hint)}
    yields = inspect.isgeneratorfunction(function)
    if not hints or yields != inspect.isgeneratorfunction(inspect.unwrap(function)):  # a context manager
        return function
    signature = inspect.signature(function)
    expected = hints.pop("return", typing.Any)

    def check_arguments(args, kwargs):
        arguments = signature.bind(*args, **kwargs).arguments
        for parameter, hint in hints.items():
            value = arguments.get(parameter)
            # Lists, data frames and other things that become arrays are the function's business.
            if value is not None and _has_arrays(value) and not (isinstance(value, list) and _is_of_arrays(hint)):
                _check(f"{name}({parameter})", value, hint)

    @functools.wraps(function)
    def call(*args, **kwargs):
        result = function(*args, **kwargs)
        with jaxtyping.jaxtyped("context"):
            check_arguments(args, kwargs)
            _check(f"the result of {name}", result, expected)
        return result

    @functools.wraps(function)
    def generate(*args, **kwargs):
        for item in function(*args, **kwargs):
            with jaxtyping.jaxtyped("context"):
                check_arguments(args, kwargs)
                _check(f"an item of {name}", item, *(typing.get_args(expected)[:1] or [typing.Any]))
            yield item

    return generate if yields else call


def _check_fields(cls):
    initialise = cls.__init__

    @functools.wraps(initialise)
    def construct(self, *args, **kwargs):
        initialise(self, *args, **kwargs)
        if type(self) is not cls or sys._getframe(1).f_code.co_filename.endswith(_BUILT_BY_JAX):
            return
        with jaxtyping.jaxtyped("context"):
            for field, hint in _field_hints(cls).items():
                value = getattr(self, field)
                if _has_arrays(value):
                    traced = any(isinstance(array, Tracer) for array in _arrays(value))
                    _check(f"{cls.__name__}.{field}", value, _of_any_array(hint) if traced else hint)

    cls.__init__ = construct


def _of_any_array(hint):
    """The type with arrays of NumPy or JAX in place of those of one of them."""
    if not mentions_shape(hint):
        return hint
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        return hint.dtype[AnyArray, hint.dim_str]
    origin, arguments = typing.get_origin(hint), tuple(map(_of_any_array, typing.get_args(hint)))
    return typing.Union[arguments] if origin in (typing.Union, types.UnionType) else origin[arguments]  # noqa: UP007


@functools.cache
def _field_hints(cls):
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if mentions_shape(hints[field.name])}


def check_module(module):
    """Makes the public functions of a module, and the methods and constructors of its public classes, check shapes."""
    classes = public_classes(module)
    for owner in [module, *classes]:
        for name, function, wrap in public_functions(owner):
            wrapped = checked(function, hints_of(function, name, owner), f"{owner.__name__}.{name}")
            if wrapped is not function:
                setattr(owner, name, wrap(wrapped))
    for cls in classes:
        if dataclasses.is_dataclass(cls) and "__init__" in vars(cls):
            _check_fields(cls)


class _Loader(importlib.machinery.SourceFileLoader):
    def exec_module(self, module):
        super().exec_module(module)
        check_module(module)


class _Finder:
    """Finds the modules of the package, and checks their public functions after they were run."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] != PACKAGE or name.startswith(UNCHECKED):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and type(spec.loader) is importlib.machinery.SourceFileLoader:
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def install():
    """Checks all modules of the package that are imported from now on."""
    sys.meta_path.insert(0, _Finder)
