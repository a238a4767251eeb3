"""The rules a plugin keeps, checked once when it is loaded.

Invariant: hooks that pass `check_hooks` and an answer that passes `check_answer` need no further look. Each
breach is a `RuleError` that says what was found and what the rule is; `rollhook.plugins` adds whose it was.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pydantic import BaseModel, RootModel

from rollhook.fields import fields_of
from rollhook.hookspecs import (
    Credit,
    Defaults,
    EnvironmentSpec,
    HookSpecs,
    ItemSpec,
    SandboxSpec,
    ToolSpec,
    TopologySpec,
    VerifierSpec,
)
from rollhook.names import ITEM_NAME, nearest

SPEC_OF_HOOK: dict[str, type[ItemSpec[Any]]] = {
    "rollhook_tools": ToolSpec,
    "rollhook_environments": EnvironmentSpec,
    "rollhook_verifiers": VerifierSpec,
    "rollhook_topologies": TopologySpec,
    "rollhook_sandboxes": SandboxSpec,
}
"""The hooks whose answers are items; the others answer with plain callables."""

HOOKS = tuple(name for name in vars(HookSpecs) if name.startswith("rollhook_"))

_PREFIX = "rollhook_"
_MARK = "rollhook_impl"


class RuleError(Exception):
    """A plugin broke a rule; the sentence lacks only whose plugin it is."""


def check_hooks(namespace: object) -> None:
    """Raise RuleError unless everything in `namespace` that is or looks like a hook is a right one."""
    found = [name for name in dir(namespace) if _is_hook(namespace, name)]
    if not found:
        raise RuleError(f"it has no hooks; a plugin implements at least one of {', '.join(HOOKS)}")


def _is_hook(namespace: object, name: str) -> bool:
    static = inspect.getattr_static(namespace, name, None)
    is_function = inspect.isroutine(static) or isinstance(static, staticmethod | classmethod)
    if not is_function:
        if name in HOOKS:
            raise RuleError(f"{name} is a {type(static).__name__}; a hook is a plain function")
        return False
    function = getattr(namespace, name)
    options = getattr(static, _MARK, None) or getattr(function, _MARK, None)
    if options is None and not name.startswith(_PREFIX):
        return False
    if name not in HOOKS:
        raise RuleError(_misspelt(name))
    if options is None:
        raise RuleError(f"{name} is not marked; write @hookimpl (from rollhook) above it")
    _check_function(name, function, options)
    return True


def _misspelt(name: str) -> str:
    wanted = nearest(name if name.startswith(_PREFIX) else _PREFIX + name, HOOKS)
    hint = f"did you mean {wanted}?" if wanted else f"the hooks are {', '.join(HOOKS)}"
    return f"{name} is not a hook; {hint}"


def _check_function(name: str, function: Callable[..., Any], options: dict[str, Any]) -> None:
    given = ", ".join(sorted(option for option, value in options.items() if value))
    if given:
        raise RuleError(
            f"{name} is marked @hookimpl({given}); the rule is plain @hookimpl, order never counts"
        )
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise RuleError(
            f"{name} is an async def; a hook is a plain function: what waits is a method of what it returns"
        )
    if inspect.isgeneratorfunction(function):
        raise RuleError(f"{name} is a generator; a hook is a plain function that returns a list")
    signature = inspect.signature(function)
    if signature.parameters:
        shown = signature.replace(return_annotation=signature.empty)
        raise RuleError(
            f"{name}{shown} takes arguments; a hook takes none: configuration reaches `open` and `create`"
        )


def check_answer(hook: str, answer: object) -> tuple[Any, ...]:
    """What `hook` returned, as a tuple; RuleError unless it is a list of what the hook promises."""
    spec = SPEC_OF_HOOK.get(hook)
    wanted = spec.__name__ if spec else "callables"
    if inspect.iscoroutine(answer):
        answer.close()  # it will never be awaited, and Python would warn about that elsewhere
    if not isinstance(answer, list):
        empty = "; [] where there is nothing" if answer is None else ""
        raise RuleError(f"{hook} returned {_kind(answer)}; the rule is a list of {wanted}{empty}")
    for number, item in enumerate(answer):
        if spec is None:
            argument = "event" if hook == "rollhook_events" else "message"
            _check_callable(f"{hook} item {number}", item, argument)
        elif isinstance(item, spec):
            _check_item(f'{hook} item "{item.name}"', item)
        else:
            raise RuleError(f"{hook} returned {_kind(item)} as item {number}; the rule is a list of {wanted}")
    if spec is not None:
        _check_no_duplicates(hook, (item.name for item in answer))
    return tuple(answer)


def _check_no_duplicates(hook: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise RuleError(f'{hook} returned two items named "{name}"; names are unique within a plugin')
        seen.add(name)


def _check_item(what: str, item: ItemSpec[Any]) -> None:
    if not isinstance(item.name, str) or not re.fullmatch(ITEM_NAME, item.name):
        raise RuleError(f"{what}: a name must match {ITEM_NAME}")
    config: object = item.config
    if not (isinstance(config, type) and issubclass(config, BaseModel)) or issubclass(config, RootModel):
        raise RuleError(f"{what}: config is {_kind(config)}; the rule is a pydantic model class with fields")
    if "name" in fields_of(config):
        raise RuleError(
            f'{what}: config has a field "name", which in a row is the name of the item; rename it'
        )
    _check_callable(f"{what}: create", item.create, "resource", "rollout")
    if item.open is not None:
        manager = "; decorate it with contextlib.asynccontextmanager"
        _check_callable(f"{what}: open", item.open, "config", "run", hint=manager)
    if isinstance(item, EnvironmentSpec) and not isinstance(item.defaults, Defaults):
        raise RuleError(f"{what}: defaults is {_kind(item.defaults)}; the rule is rollhook's Defaults")
    if isinstance(item, TopologySpec) and item.credit not in get_args(Credit):
        raise RuleError(
            f"{what}: credit is {item.credit!r}; the rule is one of {', '.join(get_args(Credit))}"
        )
    if isinstance(item, TopologySpec) and not _are_weights(item.role_weights):
        raise RuleError(
            f"{what}: role_weights is {item.role_weights!r}; the rule is finite numbers of at least 0 by role"
        )


def _are_weights(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(role, str) and isinstance(weight, int | float) and 0 <= weight < math.inf
        for role, weight in value.items()
    )


def _check_callable(what: str, value: object, *arguments: str, hint: str = "") -> None:
    called = f"({', '.join(arguments)})"
    if not callable(value):
        raise RuleError(f"{what} is {_kind(value)}; it must be callable as {called}")
    plain = value if inspect.isroutine(value) or isinstance(value, type) else value.__call__
    if inspect.iscoroutinefunction(plain) or inspect.isasyncgenfunction(plain):
        raise RuleError(f"{what} is an async def; it must be callable plainly{hint}")
    try:
        signature = inspect.signature(value)
    except ValueError:
        return  # some callables written in C tell none
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise RuleError(f"{what} takes {signature}; it must be callable as {called}") from error


def _kind(value: object) -> str:
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"a {type(value).__name__}"


def check_core_range(requires: Iterable[str], core_version: str) -> None:
    """Raise RuleError when a distribution's requirements (Requires-Dist lines) do not admit this core."""
    for line in requires:
        requirement = Requirement(line)
        if canonicalize_name(requirement.name) != "rollhook":
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        if not requirement.specifier.contains(core_version, prereleases=True):
            raise RuleError(
                f"it needs rollhook {requirement.specifier}, and rollhook {core_version} is running; "
                "install versions that fit together"
            )
