"""Every error rollhook raises, and `boundary`, the one place that attributes foreign ones.

    RollhookError
    ├── ConfigError              the run cannot start: raised before the first token
    │   ├── PluginNotFound       a name nobody registered
    │   ├── PluginBroken         an installed plugin that could not be loaded
    │   ├── PluginConflict       two owners of one name
    │   └── DataError            a data file that cannot be read, or rows that fail `rollhook check`
    ├── GroupsFailed             too many groups failed for good; their rows are back in the data source
    ├── RolloutStopped           no fault: nothing more may be sampled in this rollout
    │   ├── LimitReached         turns or context ran out; what was sampled stays and trains
    │   └── RolloutAborted       the trainer aborted; what was sampled is kept
    └── RolloutError             one rollout failed; its Sample says stage, plugin and cause
        ├── RowError             a row's metadata asks for something it may not have
        ├── ResourceError        a plugin could not open what its rollouts share
        ├── RenderError          the chat template cannot express these messages
        ├── EngineError          the inference engine
        │   ├── EngineUnavailable    refused, 5xx, 429, cut or silent, after the retries
        │   ├── EngineRejected       the engine answered 4xx: the same request cannot succeed
        │   └── EngineProtocolError  an answer without what training needs (log-probs, ids)
        ├── ToolError, EnvironmentFailure, VerifierError, TopologyError
        ├── CreditError          the declared credit cannot be applied
        └── CertificationError   a Sample broke an invariant; it never leaves

Plugin authors raise plain Python errors. Configuration errors stop a run; rollout errors are data.
"""

from __future__ import annotations

import sys
from pathlib import PurePath
from types import FrameType, TracebackType


class RollhookError(Exception):
    """Base of every error rollhook raises on purpose."""


class ConfigError(RollhookError):
    """The run cannot start as configured."""


class PluginNotFound(ConfigError):
    """No installed plugin, or no item of one, has this name."""


class PluginBroken(ConfigError):
    """A plugin is installed but could not be loaded."""


class PluginConflict(ConfigError):
    """Two owners claim one name."""


class DataError(ConfigError):
    """A data file cannot be used as it is."""


class GroupsFailed(RollhookError):
    """More groups of rollouts failed for good than the run allows; it names the first causes."""


class RolloutStopped(RollhookError):
    """Not a fault: nothing more may be sampled in this rollout."""


class LimitReached(RolloutStopped):
    """A limit ran out before a turn could be sampled. limit: the name it has in a row's `limits`."""

    def __init__(self, limit: str) -> None:
        super().__init__(f"the rollout reached {limit}")
        self.limit = limit


class RolloutAborted(RolloutStopped):
    """The trainer aborted; what was sampled is kept."""


class RolloutError(RollhookError):
    """One rollout failed.

    stage: the part of the run that failed ("resolve", "environment", "tool", "engine", "verifier", ...).
    plugin: the owner of the code that failed, as `plugin/item`; None for the core.
    cause_type: the class name of the error first raised. where: the place in plugin code, see `raised_at`.
    """

    stage = "rollout"

    def __init__(
        self,
        message: str,
        *,
        plugin: str | None = None,
        cause_type: str | None = None,
        where: str | None = None,
    ) -> None:
        super().__init__(message)
        self.plugin = plugin
        self.cause_type = cause_type or type(self).__name__
        self.where = where


class RowError(RolloutError):
    stage = "resolve"


class ResourceError(RolloutError):
    stage = "open"


class RenderError(RolloutError):
    stage = "render"


class EngineError(RolloutError):
    stage = "engine"


class EngineUnavailable(EngineError):
    pass


class EngineRejected(EngineError):
    pass


class EngineProtocolError(EngineError):
    pass


class ToolError(RolloutError):
    stage = "tool"


class EnvironmentFailure(RolloutError):
    stage = "environment"


class VerifierError(RolloutError):
    stage = "verifier"


class TopologyError(RolloutError):
    stage = "topology"


class CreditError(RolloutError):
    stage = "credit"


class CertificationError(RolloutError):
    stage = "certify"


class boundary:  # noqa: N801  a context manager read as a verb, like contextlib.suppress
    """Attribute whatever plugin code raises inside to its owner, once.

        async with boundary(ToolError, "calculator/calculator"):
            result = await tool.call(arguments)

    Plain exceptions come out as `error` chained to the cause; of an ExceptionGroup (a TaskGroup in the
    plugin) the first leaf counts. Rollhook's other errors and everything that is not an `Exception`
    (CancelledError, KeyboardInterrupt) pass through untouched. Two that would end the run do not: a
    ConfigError, which says what a plugin lacks in the middle of it, and the SystemExit of a library that was
    written for the command line.
    """

    def __init__(self, error: type[RolloutError], plugin: str | None) -> None:
        self.error = error
        self.plugin = plugin

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(
        self, kind: type[BaseException] | None, cause: BaseException | None, trace: TracebackType | None
    ) -> None:
        leaf = first_leaf(cause)
        if not isinstance(leaf, Exception | SystemExit):
            return
        if isinstance(leaf, RollhookError) and not isinstance(leaf, ConfigError):
            if leaf is cause:
                return
            raise leaf from cause
        name = type(leaf).__name__
        owner = f"{self.plugin}: " if self.plugin else ""
        text = str(leaf) or "no message"
        message, where = f"{owner}{name}: {text}", raised_at(leaf)
        raise self.error(message, plugin=self.plugin, cause_type=name, where=where) from cause


def first_leaf(error: BaseException | None) -> BaseException | None:
    """The first exception inside nested ExceptionGroups; the error itself when it is no group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def raised_at(error: BaseException) -> str | None:
    """Where the plugin code was that an error came from or went through, as `game.py:37 in step`.

    That is the innermost frame of the package that the core called: neither the core's own nor those of the
    libraries below the plugin. The path begins at the package. None where only the core took part.
    """
    package, where = None, None
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        root = _module(frame).partition(".")[0]
        if package is None and root != "rollhook" and root not in sys.stdlib_module_names:
            package = root
        if root == package:
            where = f"{_path_in_package(frame)}:{trace.tb_lineno} in {frame.f_code.co_name}"
        trace = trace.tb_next
    return where


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _path_in_package(frame: FrameType) -> str:
    path = PurePath(frame.f_code.co_filename)
    depth = _module(frame).count(".") + (2 if path.name == "__init__.py" else 1)
    return PurePath(*path.parts[-depth:]).as_posix()
