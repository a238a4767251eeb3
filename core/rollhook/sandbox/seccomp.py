"""The system calls a sandbox may not make.

Invariant: nothing inside can make a namespace, mount, trace another process, load code into the kernel, hold
memory that no process's size shows, or open a socket that leaves the sandbox's own network.
"""

from __future__ import annotations

import errno
import socket
import tempfile
from functools import lru_cache

from rollhook.errors import ConfigError

_REFUSED = {
    "other processes": "ptrace process_vm_readv process_vm_writev process_madvise kcmp pidfd_getfd",
    "namespaces and mounts": "unshare setns mount umount umount2 pivot_root chroot move_mount open_tree "
    "fsopen fsconfig fsmount fspick mount_setattr",
    "files without a path": "open_by_handle_at name_to_handle_at fanotify_init quotactl quotactl_fd",
    "the kernel": "bpf perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register "
    "init_module finit_module delete_module kexec_load kexec_file_load reboot swapon swapoff acct syslog "
    "lookup_dcookie vm86 vm86old modify_ldt iopl ioperm personality",
    "keyrings": "keyctl add_key request_key",
    "clocks and names": "settimeofday clock_settime clock_adjtime adjtimex sethostname setdomainname",
    "placement of memory": "mbind set_mempolicy migrate_pages move_pages",
    "memory of no process": "memfd_create memfd_secret shmget shmat msgget semget",
}

_NAMESPACE_FLAGS = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)
_LAST_FAMILY = 45
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C


@lru_cache(maxsize=1)
def program() -> bytes:
    """The filter as a BPF program. Raises ConfigError where libseccomp cannot be had."""
    try:
        import pyseccomp as seccomp  # type: ignore[import-untyped,unused-ignore]  # ships no types
    except (ImportError, RuntimeError) as error:
        raise ConfigError(
            f"the sandbox needs libseccomp ({error}); try: apt-get install libseccomp2 && "
            "pip install 'rollhook[sandbox]'"
        ) from error
    refuse, unknown = seccomp.ERRNO(errno.EPERM), seccomp.ERRNO(errno.ENOSYS)
    rules = seccomp.SyscallFilter(seccomp.ALLOW)
    for name in " ".join(_REFUSED.values()).split():
        if seccomp.resolve_syscall(seccomp.Arch.NATIVE, name) >= 0:
            rules.add_rule(refuse, name)
    for flag in _NAMESPACE_FLAGS:
        rules.add_rule(refuse, "clone", seccomp.Arg(0, seccomp.MASKED_EQ, flag, flag))
    rules.add_rule(unknown, "clone3")  # its flags are out of a filter's sight; libraries fall back to clone
    for call in ("socket", "socketpair"):
        for family in set(range(_LAST_FAMILY + 1)) - set(_FAMILIES):
            rules.add_rule(refuse, call, seccomp.Arg(0, seccomp.EQ, family))
        rules.add_rule(refuse, call, seccomp.Arg(0, seccomp.GT, _LAST_FAMILY))
    for request in (_TIOCSTI, _TIOCLINUX):
        rules.add_rule(refuse, "ioctl", seccomp.Arg(1, seccomp.MASKED_EQ, 0xFFFFFFFF, request))
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()
