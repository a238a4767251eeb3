"""The code's interface in the words of docs/interface.md: signatures, members, fields, defaults."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

import click
from pydantic import BaseModel

from rollhook import Status


def pairs(module: Any, *, protocol: bool) -> list[tuple[str, Any]]:
    """The dataclasses, or the protocols, among a module's public names."""
    named = [(name, getattr(module, name)) for name in module.__all__]
    return [
        (name, value)
        for name, value in named
        if (getattr(value, "_is_protocol", False) if protocol else dataclasses.is_dataclass(value))
    ]


def call_form(name: str, function: Any) -> str:
    """`await name(a, *, b=1)`: a method as its caller writes it."""
    signature = inspect.signature(function)
    parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    if parameters and parameters[0].name in ("self", "cls"):
        del parameters[0]
    shown = signature.replace(parameters=parameters, return_annotation=signature.empty)
    return f"{'await ' if inspect.iscoroutinefunction(function) else ''}{name}{shown}"


def members(kind: type) -> list[str]:
    """Public members of a class, methods in their call form."""
    found = []
    for name, value in vars(kind).items():
        if name.startswith("_") or name == "model_config" or name in getattr(kind, "model_fields", ()):
            continue
        function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        found.append(call_form(name, function) if inspect.isfunction(function) else name)
    return found


def shown(value: object) -> str:
    """A default as the page writes it."""
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, Status):
        return f"Status.{value.name}"
    if isinstance(value, BaseModel) or dataclasses.is_dataclass(value):
        return f"{type(value).__name__}()"
    return repr(value)


def field_rows(kind: Any) -> list[list[str]]:
    """Name, type and default of a dataclass's fields."""

    def default(field: dataclasses.Field[Any]) -> str:
        if field.default is not dataclasses.MISSING:
            return shown(field.default)
        if field.default_factory is not dataclasses.MISSING:
            return shown(field.default_factory())
        return "required"

    return [[field.name, str(field.type), default(field)] for field in dataclasses.fields(kind)]


def model_rows(model: type[BaseModel]) -> list[list[str]]:
    """Name, type as written and default of a pydantic model's fields."""
    return [
        [name, model.__annotations__[name], shown(field.get_default(call_default_factory=True))]
        for name, field in model.model_fields.items()
    ]


def all_commands(group: click.Group, *path: str) -> Iterator[tuple[str, click.Command]]:
    """Every command and subcommand under its full name with its arguments, as `rollhook run DATA`."""
    with click.Context(group) as context:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            arguments = [p.make_metavar(context) for p in command.params if isinstance(p, click.Argument)]
            yield " ".join([*path, name, *arguments]), command
            if isinstance(command, click.Group):
                yield from all_commands(command, *path, name)


def options(command: click.Command) -> Iterator[list[str]]:
    """Each option with its default and its help."""
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            info = parameter.to_info_dict()
            default = "off" if info["default"] is False else str(info["default"] or "")
            state = "required" if parameter.required else "repeatable" if parameter.multiple else default
            yield ["/".join([*parameter.opts, *parameter.secondary_opts]), state, str(parameter.help)]
