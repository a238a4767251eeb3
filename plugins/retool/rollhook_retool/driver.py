"""The Python that runs a model's code, inside the sandbox; alone, with the standard library.

A line of JSON comes in, {"nonce", "code", "timeout_s", "limit"}; one goes out, {"nonce", "output"}. Whatever
code writes to file descriptors 1 and 2, also from C and from its children, is its output. Before that may
come {"nonce", "packages"}, to import these ahead, which {"nonce"} answers.

Nothing here is a wall: code may change this process as it likes, and what it then answers is its own output.
"""

# ruff: noqa: BLE001, PTH108, SIM115, T201
# any exception is the code's, to be shown; its streams stay open; pathlib would slow the start

import ast
import builtins
import importlib
import json
import linecache
import os
import signal
import sys
import traceback

NAME = "<code>"


def main() -> None:
    """Answer until standard input closes."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.dup(1)
    captured = _capture()
    own = os.getpid()
    namespace: dict[str, object] = {"__name__": "__main__", "__builtins__": builtins}
    for line in requests:
        request = json.loads(line)
        if "packages" in request:
            _import(request["packages"])
            os.write(answers, json.dumps({"nonce": request["nonce"]}).encode() + b"\n")
            continue
        os.ftruncate(captured, 0)
        _execute(request["code"], namespace, request["timeout_s"])
        if os.getpid() != own:
            os._exit(0)  # the code forked, and its child came back here
        answer = {"nonce": request["nonce"], "output": _output(captured, request["limit"])}
        os.write(answers, json.dumps(answer).encode() + b"\n")


def _capture() -> int:
    """Lead standard output and error into a file of their own, without a name."""
    path = f"/tmp/.output-{os.getpid()}"
    captured = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    os.unlink(path)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (captured, 1), (captured, 2)):
        os.dup2(source, target)
    os.close(nothing)
    return captured


def _import(packages: list[str]) -> None:
    """Import what is called like its distribution; code that needs the others imports them itself."""
    for name in packages:
        try:
            importlib.import_module(name.replace("-", "_"))
        except Exception:
            continue


def _execute(code: str, namespace: dict[str, object], timeout_s: float) -> None:
    sys.stdout = open(1, "w", encoding="utf-8", errors="replace", closefd=False)
    sys.stderr = open(2, "w", encoding="utf-8", errors="replace", closefd=False, buffering=1)
    linecache.cache[NAME] = (len(code), None, code.splitlines(keepends=True), NAME)
    signal.signal(signal.SIGALRM, _late)
    try:
        signal.setitimer(signal.ITIMER_REAL, timeout_s)
        try:
            _run(code, namespace)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            sys.stdout.flush()
    except BaseException as error:
        _tell(error)


def _late(*_: object) -> None:
    raise TimeoutError("the code ran out of time; its variables are kept")


def _run(code: str, namespace: dict[str, object]) -> None:
    """Run the statements; the value of a last expression is shown, as in a notebook."""
    tree = ast.parse(code, NAME)
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        tree.body.pop()
    exec(compile(tree, NAME, "exec"), namespace)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), NAME, "eval"), namespace)
        if value is not None:
            print(repr(value))


def _tell(error: BaseException) -> None:
    """The traceback, from the model's own lines on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != NAME:
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace)
    try:
        os.write(2, "".join(lines).encode(errors="replace"))
    except OSError:
        os.ftruncate(1, 0)  # the file is full
        os.write(2, "".join(lines).encode(errors="replace"))


def _output(captured: int, limit: int) -> str:
    """What was written; of more than `limit` bytes, the beginning and the end."""
    size = os.fstat(captured).st_size
    if size <= limit:
        return os.pread(captured, limit, 0).decode(errors="replace")
    half = limit // 2
    parts = os.pread(captured, half, 0), os.pread(captured, half, size - half)
    return "\n...\n".join(part.decode(errors="replace") for part in parts)


main()
