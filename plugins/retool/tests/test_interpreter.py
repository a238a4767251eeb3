"""What code is shown of itself, and what stays from call to call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from rollhook import ConfigError, Plugins, RunConfig, Runtime
from rollhook_retool.config import InterpreterConfig
from rollhook_retool.interpreter import LOST, NOTHING, Interpreter, shorten
from rollhook_retool.warm import Workers, open_interpreters

pytestmark = pytest.mark.asyncio(loop_scope="module")

MakeInterpreter = Callable[..., Awaitable[Interpreter]]


async def test_variables_functions_and_imports_stay(python: Interpreter) -> None:
    assert await python.run("import math\ndef f(x):\n    return math.factorial(x)\ny = 5") == NOTHING
    assert await python.run("print(f(y))") == "120"


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("1 + 1", "2"),
        ("x = 3\nx", "3"),
        ("None", NOTHING),
        ("", NOTHING),
        ("print('a')\n'b'", "a\n'b'"),
        ("import sys\nprint('out')\nprint('err', file=sys.stderr)", "err\nout"),
        ("import os\n_ = os.system('echo from the shell')", "from the shell"),
        ("import os\n_ = os.write(1, b'raw')", "raw"),
        ("def f():\n    return '''a\n  b\n\tc'''\nprint(f())", "a\n  b\n\tc"),
        ('print("one\\ntwo")', "one\ntwo"),
        ("isinstance(1, int), type(1)", "(True, <class 'int'>)"),
        ("print('\\ud800 é 漢')", "? é 漢"),
        ("exit()", "SystemExit"),
        ("    x = 1\n", "IndentationError: unexpected indent"),
        ("1 / 0", 'last):\n  File "<code>", line 1, in <module>\n    1 / 0\n'),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def f(:", "SyntaxError: invalid syntax"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("input()", "EOFError: EOF when reading a line"),
        ("x = '\\x00'\nprint(len(x))", "1"),
        ("'\x00'", "null bytes"),
        ("(" * 500 + ")" * 500, "too many nested parentheses"),
    ],
)
async def test_code_is_run_as_it_was_written_and_its_errors_are_shown(
    python: Interpreter, code: str, shown: str
) -> None:
    assert shown in await python.run(code)


async def test_an_error_leaves_what_was_there(python: Interpreter) -> None:
    await python.run("kept = 7")
    await python.run("kept2 = 8\n1 / 0")
    assert await python.run("kept + kept2") == "15"


async def test_a_loop_is_stopped_at_its_time_and_the_state_stays(make_interpreter: MakeInterpreter) -> None:
    python = await make_interpreter(timeout_s=0.5)
    await python.run("kept = 7")

    assert "TimeoutError: the code ran out of time; its variables are kept" in await python.run(
        "while True: pass"
    )
    assert await python.run("kept") == "7"
    assert python.restarts == 0


UNSTOPPABLE = "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))\nwhile True: pass"


async def test_what_cannot_be_stopped_is_killed_and_the_model_is_told(
    make_interpreter: MakeInterpreter,
) -> None:
    python = await make_interpreter(timeout_s=0.2)
    await python.run("kept = 7")

    assert await python.run(UNSTOPPABLE) == f"Error: the code did not end within 0.2 s. {LOST}"
    assert "NameError: name 'kept' is not defined" in await python.run("kept")
    assert python.restarts == 1


@pytest.mark.parametrize("code", ["import os\nos._exit(3)", "import os\nos.kill(os.getpid(), 9)"])
async def test_code_that_ends_the_interpreter_is_told_so(python: Interpreter, code: str) -> None:
    assert await python.run(code) == f"Error: the code ended the interpreter. {LOST}"
    assert await python.run("1 + 1") == "2"


async def test_a_forked_child_does_not_answer_too(python: Interpreter) -> None:
    forked = "import os\npid = os.fork()\nif pid: _ = os.waitpid(pid, 0)\nprint('parent' if pid else 'child')"

    assert sorted((await python.run(forked)).split()) == ["child", "parent"]
    assert await python.run("'once'") == "'once'"


async def test_a_flood_is_shortened_and_the_state_stays(make_interpreter: MakeInterpreter) -> None:
    python = await make_interpreter(timeout_s=10, max_output_chars=100)
    await python.run("kept = 7")
    shown = await python.run("print('a' * 1000 + 'z')")
    assert shown.startswith("a" * 50 + "\n... (")
    assert shown.endswith("characters left out) ...\n" + "a" * 49 + "z")

    endless = await python.run("while True: print('y' * 1000)")
    assert len(endless) < 200
    assert endless.endswith("File too large")
    assert await python.run("kept") == "7"


async def test_calls_at_once_run_one_after_the_other(python: Interpreter) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(python.run(f"here = {n}\nimport time\ntime.sleep(0.02)\nhere"))
            for n in range(4)
        ]

    assert [task.result() for task in tasks] == ["0", "1", "2", "3"]


async def test_numpy_and_sympy_are_there(make_interpreter: MakeInterpreter) -> None:
    python = await make_interpreter(packages=InterpreterConfig().packages, timeout_s=60)
    code = "import numpy, sympy\nx = sympy.symbols('x')\nprint(numpy.eye(2).sum(), sympy.solve(x**2 - 4, x))"

    assert await python.run(code) == "2.0 [-2, 2]"


async def test_the_environment_and_the_tool_share_one_interpreter(python: Interpreter) -> None:
    rollout: Any = python._rollout

    assert Interpreter.of((InterpreterConfig(), python._workers), rollout) is python


async def test_text_is_shortened_in_the_middle() -> None:
    assert shorten("abcdef", 6) == "abcdef"
    assert shorten("abcdefgh", 4) == "ab\n... (4 characters left out) ...\ngh"


async def until_full(workers: Workers, count: int) -> None:
    async with asyncio.timeout(60):
        while len(workers.unused) < count:
            await asyncio.sleep(0.01)


LOADED = "import sys; 'numpy' in sys.modules, 'sympy' in sys.modules"


async def test_a_stock_of_started_interpreters_has_the_packages_imported(runtime: Runtime) -> None:
    async with open_interpreters(InterpreterConfig(warm=1), runtime) as (config, workers):
        rollout: Any = SimpleNamespace(shared={}, at_end=lambda close: None)
        await until_full(workers, 1)
        [ready] = workers.unused
        python = Interpreter.of((config, workers), rollout)
        assert await python.run(LOADED) == "(True, True)"
        assert python._worker is ready
        await until_full(workers, 1)

        assert [worker is ready for worker in workers.unused] == [False]
        await ready.close()


async def test_the_stock_is_bounded_and_gone_with_its_run(qwen3_tokenizer: Any) -> None:
    run = RunConfig(engine="http://127.0.0.1:9", settings={"rollhook/bubblewrap": {"warm": 0}})
    async with Runtime(run, plugins=Plugins(entry_points=[]), tokenizer=qwen3_tokenizer) as runtime:
        config = InterpreterConfig(packages=(), warm=2)
        async with open_interpreters(config, runtime) as (_, workers):
            await until_full(workers, 2)
            workers.fill()
            taken = [await workers.take() for _ in range(4)]
            await until_full(workers, 2)
            sandboxes: list[Any] = [worker._sandbox for worker in workers.unused]
            assert len(sandboxes) == 2
            for worker in taken:
                await worker.close()

    for sandbox in sandboxes:
        with pytest.raises(ConnectionError, match="the sandbox is closed"):
            await sandbox.exec(["true"])


async def test_a_stock_that_cannot_be_filled_leaves_it_to_the_rollout(
    make_interpreter: MakeInterpreter,
) -> None:
    python = await make_interpreter(packages=("no-such-package",), warm=1)
    filling = python._workers._filling
    assert filling is not None
    await filling

    with pytest.raises(ConfigError, match="needs the package no-such-package"):
        await python.run("1")
