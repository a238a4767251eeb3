"""The local sandbox: untrusted commands in walls that the kernel holds.

What is covered. Commands inside run as a user of their own (never root, no capabilities, no new
privileges), in their own user, pid, ipc, uts, cgroup and network namespaces. They see /usr, one Python and
the packages that were asked for, all read-only; one bounded in-memory file system that is theirs; an
environment with nothing of the host's; a loopback device and no other network. A seccomp filter refuses
tracing, namespaces, mounts, BPF, io_uring, keyrings, perf, other socket families and memory that no
process's size shows. Memory, processes, CPU time, files, output and wall-clock time are bounded. Everything
inside ends with `close`, at a limit, on cancellation, and with the process that started it, also by `kill
-9`.

What is not. It shares the host's kernel: a hole in the kernel is a hole in the sandbox. Timing and load of
the machine can be observed. CPU time is bounded for each process, not for all together; memory of all
together is checked four times a second, and kernel memory (pipes, sockets) is not counted. Contents of /usr
and facts about the machine in /proc (its processor, its kernel) can be read. Against people who would spend
a kernel exploit on your trainer use a virtual machine: a `SandboxSpec` of your own.

    backends      what the core registers      bubblewrap, unsafe   how each is started
    local         commands and files           supervised           the host's end of the control socket
    supervisor    process 1, inside            pool, leftovers      sandboxes ahead of time; those left behind
"""

from rollhook.sandbox.backends import open_bubblewrap, open_unsafe, take
from rollhook.sandbox.leftovers import Leftover, end_leftovers, find_leftovers
from rollhook.sandbox.limits import SandboxLimits

__all__ = [
    "Leftover",
    "SandboxLimits",
    "end_leftovers",
    "find_leftovers",
    "open_bubblewrap",
    "open_unsafe",
    "take",
]
