"""Runs inside the sandbox: gives up rights for good (uid, rlimits, Landlock, seccomp), then becomes the untrusted program.

Started as a script by `process.py`, standard library only: `python -I driver.py SETTINGS_JSON`. It writes one JSON line to the
status descriptor when everything is in place and closes it; what follows is the program, in this very process.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import struct
import sys
import types
from typing import Any

PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_CAPBSET_DROP = 1, 22, 36, 38, 24
SIGKILL = 9
EPERM, ENOSYS = 1, 38

# Numbers of the Linux system calls that the filter names: (x86_64, aarch64); None where the machine has no such call.
CALLS: dict[str, tuple[int | None, int | None]] = {
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "prlimit64": (302, 261),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201), "accept": (43, 202), "accept4": (288, 242),
    "io_uring_setup": (425, 425), "setsid": (112, 157), "setpgid": (109, 154),
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsmount": (432, 432), "mount_setattr": (442, 442),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "keyctl": (250, 219), "add_key": (248, 217),
    "request_key": (249, 218), "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264), "kexec_load": (246, 104),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "reboot": (169, 142), "swapon": (167, 224),
    "swapoff": (168, 225), "acct": (163, 89), "quotactl": (179, 60), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "clock_adjtime": (305, 266), "adjtimex": (159, 171), "sethostname": (170, 161), "setdomainname": (171, 162),
    "syslog": (103, 116),
    "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180), "fanotify_init": (300, 262),
    "setuid": (105, 146), "setgid": (106, 144), "setreuid": (113, 145), "setregid": (114, 143), "setresuid": (117, 147),
    "setresgid": (119, 149), "setgroups": (116, 159), "setfsuid": (122, 151), "setfsgid": (123, 152), "capset": (126, 91),
    # Landlock says nothing about modes, owners, times and attributes of files elsewhere, nor about how others are scheduled.
    "chmod": (90, None), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None), "lchown": (94, None),
    "fchown": (93, 55),
    "fchownat": (260, 54), "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15),
    "fremovexattr": (199, 16), "setxattrat": (463, 463), "removexattrat": (466, 466), "truncate": (76, 45),
    "file_setattr": (469, 469), "open_tree_attr": (467, 467),
    "setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118), "sched_setattr": (314, 274), "migrate_pages": (256, 238), "move_pages": (279, 239),
    # Memory that no limit counts.
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "modify_ldt": (154, None), "process_mrelease": (448, 448),
    "fchmod": (91, 52), "clone": (56, 220), "clone3": (435, 435),
}  # fmt: skip
FILTERED_ALONE = {"kill", "tkill", "tgkill", "prlimit64", "fchmod", "clone", "clone3"}
NEW_NAMESPACES = 0x7E020000  # CLONE_NEWUSER, NEWPID, NEWNET, NEWNS, NEWUTS, NEWIPC, NEWCGROUP
SET_ID_BITS = 0o6000

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long


def prctl(option: int, first: int, second: int | ctypes.c_void_p = 0) -> None:
    if LIBC.prctl(option, ctypes.c_ulong(first), second, ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) refused")


# --- seccomp: a classic BPF program over struct seccomp_data {nr, arch, instruction pointer (8), args (6 x 8)} ----------


def seccomp_program(machine: str, pid: int, signals_scoped: bool) -> bytes:
    """The filter as packed `sock_filter`s. signals_scoped: Landlock or a pid namespace already keeps signals inside."""
    column, arch = (0, 0xC000003E) if machine == "x86_64" else (1, 0xC00000B7)
    lines: list[tuple[int, int, int, int]] = []

    def load(offset: int) -> None:
        lines.append((0x20, 0, 0, offset))

    def give(action: int) -> None:
        lines.append((0x06, 0, 0, action))

    deny, allow, kill_process = 0x00050000 | EPERM, 0x7FFF0000, 0x80000000
    load(4)
    lines.append((0x15, 1, 0, arch))
    give(kill_process)
    load(0)
    if machine == "x86_64":
        lines.append((0x35, 0, 1, 0x40000000))  # the x32 numbers would walk past the list
        give(deny)
    for name, numbers in CALLS.items():
        number = numbers[column]
        if number is None or name in FILTERED_ALONE:
            continue
        lines.append((0x15, 0, 1, number))
        give(deny)

    def alone(name: str, body: list[tuple[int, int, int, int]]) -> None:
        number = CALLS[name][column]
        if number is not None:
            lines.append((0x15, 0, len(body), number))
            lines.extend(body)

    def argument(index: int) -> tuple[int, int, int, int]:
        return (0x20, 0, 0, 16 + 8 * index)  # low half, little endian

    allowed, denied = (0x06, 0, 0, allow), (0x06, 0, 0, deny)
    alone("clone3", [(0x06, 0, 0, 0x00050000 | ENOSYS)])  # its flags are behind a pointer; the C library falls back to clone
    alone("clone", [argument(0), (0x45, 0, 1, NEW_NAMESPACES), denied, allowed])
    alone("fchmod", [argument(1), (0x45, 0, 1, SET_ID_BITS), denied, allowed])
    alone("prlimit64", [argument(0), (0x15, 2, 0, 0), (0x15, 1, 0, pid), denied, allowed])
    for name in ("kill", "tkill", "tgkill"):
        own = [argument(0), (0x15, 2, 0, 0), (0x15, 1, 0, pid), denied, allowed]
        alone(name, [allowed] if signals_scoped else own)
    give(allow)
    return b"".join(struct.pack("<HBBI", *line) for line in lines)


def apply_seccomp(signals_scoped: bool) -> None:
    machine = platform.machine()
    if machine not in ("x86_64", "aarch64"):
        raise OSError(ENOSYS, f"no seccomp filter is known for {machine}")
    packed = seccomp_program(machine, os.getpid(), signals_scoped)
    code = ctypes.create_string_buffer(packed, len(packed))
    header = ctypes.create_string_buffer(struct.pack("@HL", len(packed) // 8, ctypes.addressof(code)))
    prctl(PR_SET_SECCOMP, 2, ctypes.c_void_p(ctypes.addressof(header)))


# --- Landlock -------------------------------------------------------------------------------------------------------------

READ = 0x1 | 0x4 | 0x8  # execute, read file, read dir
EVERY_RIGHT = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF, 5: 0xFFFF}
CREATE, RESTRICT, ADD_RULE = 444, 446, 445


def landlock_abi() -> int:
    """The kernel's Landlock version; 0 where there is none."""
    return max(0, int(LIBC.syscall(ctypes.c_long(CREATE), None, ctypes.c_size_t(0), ctypes.c_uint32(1))))


def apply_landlock(readable: list[str], writable: list[str], devices: list[str]) -> int:
    """Everything not named becomes unreachable: files below other paths, TCP (ABI 4), signals and abstract sockets (ABI 6)."""
    abi = landlock_abi()
    if abi < 1:
        raise OSError(ENOSYS, "the kernel has no Landlock")
    every = EVERY_RIGHT[min(abi, 5)]
    fields = struct.pack("@Q", every)
    if abi >= 4:
        fields += struct.pack("@Q", 0x3)
    if abi >= 6:
        fields += struct.pack("@Q", 0x3)
    attributes = ctypes.create_string_buffer(fields, len(fields))
    ruleset = LIBC.syscall(ctypes.c_long(CREATE), attributes, ctypes.c_size_t(len(fields)), ctypes.c_uint32(0))
    if ruleset < 0:
        raise OSError(ctypes.get_errno(), "landlock_create_ruleset refused")
    file_rights = 0x1 | 0x2 | 0x4 | (0x4000 if abi >= 3 else 0) | (0x8000 if abi >= 5 else 0)
    for paths, rights in ((readable, READ), (writable, every), (devices, 0x2 | 0x4)):
        for path in paths:
            try:
                descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue
            wanted = rights if os.path.isdir(path) else rights & file_rights
            rule = ctypes.create_string_buffer(struct.pack("=Qi", wanted & every, descriptor))
            done = LIBC.syscall(ctypes.c_long(ADD_RULE), ctypes.c_int(ruleset), ctypes.c_int(1), rule, ctypes.c_uint32(0))
            os.close(descriptor)
            if done != 0:
                raise OSError(ctypes.get_errno(), f"landlock_add_rule refused {path}")
    if LIBC.syscall(ctypes.c_long(RESTRICT), ctypes.c_int(ruleset), ctypes.c_uint32(0)) != 0:
        raise OSError(ctypes.get_errno(), "landlock_restrict_self refused")
    os.close(ruleset)
    return abi


# --- rights, limits, the program ------------------------------------------------------------------------------------------


def apply_limits(limits: dict[str, int]) -> None:
    for name, value in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}", None)
        if kind is None:
            continue
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def drop_root(uid: int) -> None:
    for capability in range(64):
        if LIBC.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) != 0:
            break
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def confine(settings: dict[str, Any]) -> dict[str, Any]:
    """Gives up rights in the order in which they can be given up; returns what was applied."""
    applied: dict[str, Any] = {"python": platform.python_version(), "landlock_abi": 0, "seccomp": False}
    if settings.get("uid") is not None:
        drop_root(settings["uid"])
    if sys.platform == "linux":
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        if settings["mode"] == "landlock":
            prctl(PR_SET_PDEATHSIG, SIGKILL)
            if os.getppid() == 1 and settings["parent"] != 1:
                sys.exit(1)  # the lab died before the line above
        if settings["mode"] != "none":
            prctl(PR_SET_NO_NEW_PRIVS, 1)
        if settings["mode"] == "landlock":
            applied["landlock_abi"] = apply_landlock(settings["readable"], settings["writable"], settings["devices"])
    apply_limits(settings["limits"])
    if settings["mode"] != "none":
        apply_seccomp(settings["mode"] == "bubblewrap" or applied["landlock_abi"] >= 6)
        applied["seccomp"] = True
    applied["uid"] = os.getuid()
    return applied


def say_without_driver(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
    """A program's traceback as a plain run prints it: without this file's frame, which also would name a local path."""
    trimmed = trace.tb_next if trace is not None else None
    sys.__excepthook__(kind, error.with_traceback(trimmed), trimmed)


def main() -> types.CodeType:
    """Everything up to the program itself, which then is `__main__`."""
    settings = json.loads(sys.argv[1])
    with open(settings["program"], encoding="utf-8") as file:
        source = file.read()
    report = os.fdopen(settings["status_fd"], "w")
    try:
        applied = confine(settings)
    except OSError as error:
        sys.exit(f"sandbox: {error}")
    program = types.ModuleType("__main__")
    program.__dict__["__file__"] = "program.py"
    program.__dict__["__builtins__"] = __builtins__
    sys.argv = ["program.py"]
    sys.modules["__main__"] = program
    sys.excepthook = say_without_driver
    json.dump(applied, report)
    report.write("\n")
    report.close()
    return compile(source, "program.py", "exec")


if __name__ == "__main__":
    exec(main(), sys.modules["__main__"].__dict__)  # noqa: S102 - running it is the purpose
