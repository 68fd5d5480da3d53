"""Programs that write or hold as much as they can. Each prints how many MiB it got, and stops at 3 GiB by itself."""

from __future__ import annotations

WRITER = """
import os, sys
CAP = 3072
def fill(folder):
    got = i = 0
    while got < CAP:
        try:
            with open(os.path.join(folder, 'hoard%d' % i), 'wb') as f:
                for _ in range(60):
                    f.write(bytes(1 << 20)); f.flush(); got += 1
        except OSError:
            break
        i += 1
    return got
"""
ELSEWHERE = """
folders = ['/', '/dev', '/opt', '/opt/job', '/opt/site', '/etc', '/run', '/var', '/var/tmp', '/proc', '/sys', '/home', '/root', '/dev/pts']
folders += [line.split()[1] for line in open('/proc/mounts')] + sys.path[1:]
mine = os.path.realpath(os.getcwd())
sizes = [fill(f) for f in dict.fromkeys(map(os.path.realpath, folders)) if os.path.isdir(f) and f != mine and f not in ('/tmp', '/dev/shm')]
print(sum(sizes))
"""
STORAGE = {
    "scratch": WRITER + "print(fill('.'))",
    "shared memory": WRITER + "print(fill('/dev/shm') if os.path.isdir('/dev/shm') else 0)",
    "both": WRITER + "print(fill('.') + (fill('/dev/shm') if os.path.isdir('/dev/shm') else 0))",
    "elsewhere": WRITER + ELSEWHERE,
    "deleted files": (
        "import os\ngot = 0\nkept = []\ntry:\n    while got < 3072 and len(kept) < 50:\n        f = open('h', 'wb'); os.unlink('h'); kept.append(f)\n"
        "        for _ in range(60):\n            f.write(bytes(1 << 20)); f.flush(); got += 1\nexcept OSError: pass\nprint(got)"
    ),
    "memfds": (
        "import os\ngot = 0\ntry:\n    while got < 3072:\n        fd = os.memfd_create('m')\n        for _ in range(60):\n"
        "            os.write(fd, bytes(1 << 20)); got += 1\nexcept OSError: pass\nprint(got)"
    ),
    "System V": (
        "import ctypes\nc = ctypes.CDLL(None)\nc.shmat.restype = ctypes.c_void_p\ngot = 0\n"
        "while got < 3072:\n    i = c.shmget(0, 256 << 20, 0o1600)\n    if i < 0: break\n    a = c.shmat(i, None, 0)\n"
        "    if a in (None, 2**64 - 1): break\n    ctypes.memset(a, 1, 256 << 20)\n    c.shmdt(ctypes.c_void_p(a)); got += 256\nprint(got)"
    ),
}
"""What no process needs to hold: the sandbox must limit it."""

MEMORY = {
    "children": (
        "import os, time\nfor _ in range(12):\n    if os.fork() == 0:\n        x = bytearray(b'x') * (256 << 20)\n        time.sleep(20)\n        os._exit(0)\n"
        "time.sleep(20)\nprint('survived')"
    ),
    "orphans": (
        "import os, time\nfor _ in range(12):\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0:\n            x = bytearray(b'x') * (256 << 20)\n"
        "            time.sleep(20)\n        os._exit(0)\ntime.sleep(8)\nprint('survived')"
    ),
    "children of threads": (
        "import os, threading, time\ndef one():\n    if os.fork() == 0:\n        x = bytearray(b'x') * (256 << 20)\n        time.sleep(20)\n        os._exit(0)\n    time.sleep(20)\n"
        "for _ in range(12): threading.Thread(target=one).start()\ntime.sleep(20)\nprint('survived')"
    ),
    "undumpable children": (
        "import ctypes, os, time\nctypes.CDLL(None).prctl(4, 0)\nfor _ in range(12):\n    if os.fork() == 0:\n        x = bytearray(b'x') * (256 << 20)\n        time.sleep(20)\n        os._exit(0)\n"
        "time.sleep(20)\nprint('survived')"
    ),
    "shared anonymous maps": (
        "import mmap, os, time\nfor _ in range(12):\n    if os.fork() == 0:\n        m = mmap.mmap(-1, 256 << 20)\n        for i in range(256): m[i << 20:(i + 1) << 20] = b'x' * (1 << 20)\n"
        "        time.sleep(20)\n        os._exit(0)\ntime.sleep(20)\nprint('survived')"
    ),
}
"""12 processes with 256 MiB each: the program must be ended before it holds the 3 GiB for long."""

HONEST = {
    "a large list": "x = bytearray(b'x') * (1500 << 20)\nprint('survived')",
    "a fork that shares it": (
        "import os\nx = bytearray(b'x') * (1200 << 20)\npids = []\nfor _ in range(3):\n    pid = os.fork()\n    if pid == 0:\n        import time\n        time.sleep(0.5)\n        os._exit(0)\n"
        "    pids.append(pid)\nfor pid in pids: os.waitpid(pid, 0)\nprint('survived')"
    ),
    "multiprocessing": (
        "from multiprocessing import Pool, Lock, Value\nif __name__ == '__main__':\n    lock, value = Lock(), Value('i', 0)\n"
        "    with Pool(2) as pool:\n        print('survived' if sum(pool.map(abs, range(10))) == 45 else 'wrong')"
    ),
}
"""What must go on working."""
