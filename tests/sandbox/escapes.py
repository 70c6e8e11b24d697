"""Ways out of a sandbox: programs that print ESCAPED where they got out, or took more than a sandbox may have.

Each is also run without a sandbox (`tests/sandbox/test_escapes.py`): there it must get out, else it shows nothing. `{secret}` is a
file that anyone may read, `{folder}` one that anyone may write in, `{port}` where a server listens, `{name}` its abstract socket,
`{victim}` a process of the same user. `ROOT`: ways that are open to root alone.
"""

from __future__ import annotations

CTYPES = """
import ctypes, os, platform
libc = ctypes.CDLL(None, use_errno=True)
arm = platform.machine() == 'aarch64'
def call(x86, on_arm, *rest): return libc.syscall(on_arm if arm else x86, *rest)
"""

FILES = {
    "read a file outside": "print('ESCAPED' if open('{secret}').read() else '')",
    "read /etc/passwd": "print('ESCAPED' if open('/etc/passwd').read() else '')",
    "list /etc": "import os\nprint('ESCAPED' if len(os.listdir('/etc')) > 3 else '')",
    "list the folder of others": "import os\nprint('ESCAPED' if os.listdir('{folder}') is not None else '')",
    "write a file outside": "open('{folder}/written', 'w').write('x')\nprint('ESCAPED')",
    "unlink a file outside": "import os\nopen('{folder}/gone', 'a').close()\nos.unlink('{folder}/gone')\nprint('ESCAPED')",
    "a symbolic link out": "import os\nos.path.lexists('link') and os.unlink('link')\nos.symlink('{secret}', 'link')\n"
    "print('ESCAPED' if open('link').read() else '')",
    "a hard link out": "import os\nos.path.lexists('hard') and os.unlink('hard')\nos.link('{folder}/linked', 'hard')\nprint('ESCAPED')",
    "up and up": "print('ESCAPED' if open('../../../../../../../..{secret}').read() else '')",
    "through an inherited descriptor": "import os\nfor fd in range(3, 256):\n    try:\n        found = os.open('../../../../../../../../../..{secret}',"
    " os.O_RDONLY, dir_fd=fd)\n        print('ESCAPED')\n        break\n    except OSError: pass",
    "the mode of a file outside": "import os\nos.chmod('{secret}', 0o644)\nprint('ESCAPED')",
    "the times of a file outside": "import os\nos.utime('{secret}')\nprint('ESCAPED')",
    "the times of a device": "import os\nos.utime('/dev/null')\nprint('ESCAPED')",
    "the times of what it was handed": "import os\nos.utime(0)\nprint('ESCAPED')",
    "devices": "import os\nprint('ESCAPED' if set(os.listdir('/dev')) - {{'null'}} else '')",
    "shared memory in /dev/shm": "open('/dev/shm/escaped-{victim}', 'w').write('x')\nimport os\nos.unlink('/dev/shm/escaped-{victim}')\n"
    "print('ESCAPED')",
    "the environment of another process": "print('ESCAPED' if open('/proc/{victim}/environ', 'rb').read() else '')",
    "a secret in the environment": "import os\nprint('ESCAPED' if 'CANARY' in os.environ else '')",
    "a secret in the environment it began with": "print('ESCAPED' if b'CANARY' in open('/proc/self/environ', 'rb').read() else '')",
}
NETWORK = {
    "a TCP connection": "import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)\nprint('ESCAPED')",
    "a TCP server": "import socket\nsocket.create_server(('127.0.0.1', 0))\nprint('ESCAPED')",
    "a datagram": "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {port}))\nprint('ESCAPED')",
    "an abstract socket": "import socket\nsocket.socket(socket.AF_UNIX).connect('\\0{name}')\nprint('ESCAPED')",
    "a datagram to a path": "import socket\na, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\na.setblocking(False)\n"
    "a.sendto(b'x', '{folder}/datagrams')\nprint('ESCAPED')",
    "a descriptor to a path": "import socket, array\na, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\na.setblocking(False)\n"
    "a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0]))], 0, '{folder}/datagrams')\nprint('ESCAPED')",
    "a packet to a path": "import socket\na, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)\nprint('ESCAPED')",
    "a netlink socket": "import socket\nsocket.socket(socket.AF_NETLINK, socket.SOCK_RAW)\nprint('ESCAPED')",
}
PROCESSES = {
    "a signal to another process": "import os\nos.kill({victim}, 0)\nprint('ESCAPED')",
    "another program": "import subprocess\nprint(subprocess.run(['/bin/echo', 'ESCAPED'], capture_output=True, text=True).stdout)",
    "a fork bomb": "import os, time\nmade = []\ntry:\n    for _ in range(40):\n        pid = os.fork()\n        if not pid:\n            time.sleep(9)\n"
    "            os._exit(0)\n        made.append(pid)\nexcept OSError: pass\nfor pid in made: os.kill(pid, 9); os.waitpid(pid, 0)\n"
    "print('ESCAPED' if len(made) == 40 else '')",
    "a thread bomb": "import threading\nheld = threading.Event()\nmade = []\ntry:\n    for _ in range(40):\n"
    "        made.append(threading.Thread(target=held.wait))\n        made[-1].start()\nexcept RuntimeError: made.pop()\n"
    "held.set()\nprint('ESCAPED' if len(made) == 40 else '')",
    "a signal of the kernel's to another process": "import fcntl, socket\na, b = socket.socketpair()\n"
    "fcntl.fcntl(a, fcntl.F_SETOWN, {victim})\nprint('ESCAPED')",
    "a signal of one's choice": "import fcntl, socket\na, b = socket.socketpair()\nfcntl.fcntl(a, 10, 9)\nprint('ESCAPED')",
    "watching a folder": "import fcntl, os\nfd = os.open('/usr/lib', os.O_RDONLY)\nfcntl.fcntl(fd, 1026, 0x8000003f)\nprint('ESCAPED')",
    "ptrace": CTYPES + "print('ESCAPED' if call(101, 117, 0x4206, {victim}, 0, 0) == 0 else '')",
    "another process's memory": CTYPES
    + "held = ctypes.create_string_buffer(16)\nclass Part(ctypes.Structure): _fields_ = [('at', "
    "ctypes.c_void_p), ('size', ctypes.c_size_t)]\ncall(310, 270, {victim}, None, 0, None, 0, 0) == 0 and print('ESCAPED')",
    "limits of another process": "import resource\nresource.prlimit({victim}, resource.RLIMIT_NOFILE)\nprint('ESCAPED')",
    "cores of another process": "import os\nos.sched_setaffinity({victim}, os.sched_getaffinity({victim}))\nprint('ESCAPED')",
    "priority of another process": "import os\nos.setpriority(os.PRIO_PROCESS, {victim}, 5)\nprint('ESCAPED')",
    "a handle of another process": CTYPES
    + "print('ESCAPED' if call(434, 434, {victim}, 0) >= 0 else '')",
    "a memory bomb": "held = bytearray(600 << 20)\nprint('ESCAPED')",
    "a mapped memory bomb": "import mmap\nheld = mmap.mmap(-1, 600 << 20)\nprint('ESCAPED')",
    "a large file": "with open('big', 'wb') as file:\n    for _ in range(40): file.write(bytes(1 << 20))\nprint('ESCAPED')",
    "many large files": "for number in range(8):\n    with open(f'big{{number}}', 'wb') as file:\n        for _ in range(5): file.write(bytes(1 << 20))\n"
    "print('ESCAPED')",
    "many small files": "for number in range(4000): open(f'small{{number}}', 'w').close()\nprint('ESCAPED')",
    "many descriptors": "import os\nheld = [os.pipe() for _ in range(100)]\nprint('ESCAPED')",
}
KERNEL = {
    "a user space of its own": CTYPES + "print('ESCAPED' if libc.unshare(0x10000000) == 0 else '')",
    "a child in a user space of its own": CTYPES
    + "pid = call(56, 220, 0x10000000 | 17, 0, 0, 0, 0)\nif pid == 0: os._exit(0)\n"
    "pid > 0 and os.waitpid(pid, 0) and print('ESCAPED')",
    "a key in the kernel's ring": CTYPES
    + "print('ESCAPED' if call(248, 217, b'user', b'escaped', b'x', 1, -3) >= 0 else '')",
    "keys of the kernel's ring": CTYPES
    + "print('ESCAPED' if call(250, 219, 0, -3, 0) >= 0 else '')",
    "System V shared memory": CTYPES
    + "found = call(29, 194, 0, 4096, 0o1600)\nfound >= 0 and (call(31, 195, found, 0, 0), print('ESCAPED'))",
    "another personality": CTYPES + "print('ESCAPED' if libc.personality(0x0400000) >= 0 else '')",
    "watching files": CTYPES + "print('ESCAPED' if libc.inotify_init() >= 0 else '')",
    "memory that is a file": "import os\nos.memfd_create('x')\nprint('ESCAPED')",
}
ROOT = {
    "read /etc/shadow": "print('ESCAPED' if open('/etc/shadow').read() else '')",
    "root again": "import os\nos.setresuid(0, 0, 0)\nprint('ESCAPED')",
    "a group of root's": "import os\nos.setgroups([0])\nprint('ESCAPED')",
    "mount": CTYPES
    + "libc.unshare(0x20000)\nlibc.mount(b'none', b'/', None, 1 << 14 | 1 << 18, None)\n"
    "print('ESCAPED' if libc.mount(b'x', b'/tmp', b'tmpfs', 0, None) == 0 else '')",
    "chroot": "import os\nos.chroot('.')\nprint('ESCAPED')",
    "a device of its own": "import os, stat\nos.path.exists('disk') and os.unlink('disk')\nos.mknod('disk', stat.S_IFBLK | 0o600, os.makedev(7, 0))\nprint('ESCAPED')",
    "an owner of root's": "import os\nopen('mine', 'w').close()\nos.chown('mine', 0, 0)\nprint('ESCAPED')",
    "a packet socket": "import socket\nsocket.socket(socket.AF_PACKET, socket.SOCK_RAW)\nprint('ESCAPED')",
    "higher limits": "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (1 << 19, 1 << 19))\nresource.setrlimit("
    "resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\nprint('ESCAPED')",
    "another space by its name": CTYPES
    + "fd = os.open('/proc/1/ns/uts', os.O_RDONLY)\nprint('ESCAPED' if libc.setns(fd, 0) == 0 else '')",
}
ESCAPES: dict[str, str] = {**FILES, **NETWORK, **PROCESSES, **KERNEL, **ROOT}
# What is not there everywhere: a missing control is no failure.
NOT_EVERYWHERE = (
    "keys of the kernel's ring",
    "a key in the kernel's ring",
    "a user space of its own",
    "ptrace",
    "list /etc",
    "a child in a user space of its own",
    "another space by its name",
    "mount",
    "a packet socket",
    "chroot",
    "a device of its own",
    "higher limits",
    "a netlink socket",
    "read /etc/shadow",
    "the times of what it was handed",
    "another process's memory",
    "a handle of another process",
    "another personality",
    "shared memory in /dev/shm",
)
