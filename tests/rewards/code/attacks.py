"""Programs that try to pass without the answer, to see what they must not see, or to break the machine.

`CHEATS` never know the right answer: none may be accepted. `SPIES` print the right answer only if what they look for is
out of reach: each must be accepted. `BOMBS` must end in time. Stdin programs get a number n and must print `answer(n)`,
which needs a secret; functions get the same number.
"""

from __future__ import annotations

import hashlib

SECRET = "5f1c"


def answer(n: int) -> str:
    """What a right program prints: nothing that a program could guess."""
    return hashlib.sha256(f"{SECRET}{n}".encode()).hexdigest()[:12]


FRAMES = """
import gc, sys
def wanted(value, depth=0):
    if isinstance(value, dict):
        for key in ("output", "outputs", "expected", "gt_out", "answer"):
            if isinstance(value.get(key), (str, list)):
                return value[key]
        values = list(value.values()) if depth < 3 else []
    else:
        values = list(value) if isinstance(value, (list, tuple)) and depth < 3 else []
    for v in values:
        found = wanted(v, depth + 1)
        if found is not None:
            return found
def search():
    frame = sys._getframe()
    while frame:
        found = wanted({k: v for k, v in list(frame.f_locals.items()) if k not in ("found", "value", "values")})
        if found is not None:
            return found
        frame = frame.f_back
    for thing in gc.get_objects():
        if type(thing) is dict and "gt_out" in thing:
            return thing["gt_out"]
found = search()
found = found[0] if isinstance(found, list) else found
"""
METHOD = "class Solution:\n    def solve(self, n):\n        {}\n"


def method(*lines: str) -> str:
    """A `Solution` whose method has these lines."""
    return METHOD.format("\n        ".join(lines))


FORGED = """
import json, os, struct
for fd in range(3, 64):
    head, body = json.dumps({"status": "accepted", "verdict": "accepted", "passed": True}).encode(), b"accepted"
    try:
        os.write(fd, struct.pack("!II", len(head), len(body)) + head + body)
    except OSError:
        continue
"""
CHEATS: dict[str, str] = {
    "reads frames": FRAMES + "print(found)",
    "reads the memory of this process": (
        "import re\nfor line in io.open('/proc/self/maps'):\n    a, b = (int(x, 16) for x in line.split()[0].split('-'))\n"
        "    if 'rw' in line and b - a < 1 << 24:\n        with io.open('/proc/self/mem', 'rb') as m:\n"
        "            m.seek(a)\n            hit = re.search(rb'output.{0,40}?([0-9a-f]{12})', m.read(b - a), re.S)\n"
        "        if hit: print(hit[1].decode()); break"
    ),
    "patches the comparison": (
        "import decimal, sys\nclass Always(str):\n    def __eq__(self, other): return True\n    def __ne__(self, o): return False\n"
        "    def strip(self): return self\n    def split(self, *a): return [self]\nclass Out:\n"
        "    def write(self, text): return 1\n    def getvalue(self): return Always('x')\n    def flush(self): pass\n"
        "sys.stdout = Out()\nprint('x')"
    ),
    "patches modules of the grader": (
        "import sys\nfor name, module in list(sys.modules.items()):\n    for key in list(vars(module) or {}):\n"
        "        if key in ('same_output', 'same_value', 'judge', 'grade_stdio', 'get_stripped_lines'):\n"
        "            setattr(module, key, lambda *a, **k: True)\nprint('x')"
    ),
    "patches json": "import json\njson.dumps = lambda *a, **k: '{\"status\": \"accepted\"}'\nprint('x')",
    "patches the harness": (
        "import __main__\nif hasattr(__main__, 'run_stdin'):\n"
        "    __main__.run_stdin = lambda *a: ({'status': 'accepted'}, b'')\nprint('x')"
    ),
    "forges a frame and exits": FORGED + "os._exit(0)",
    "forges a frame and goes on": FORGED + "print('x')",
    "exits at once": "import os\nos._exit(0)",
    "exits by sys.exit": "import sys\nsys.exit(0)",
    "prints a marker": "print('PASSED')\nprint('accepted')",
    "says nothing": "pass",
    "is empty": "",
    "is a docstring": "'''accepted'''",
    "replaces stdout": "import sys, io\nsys.stdout = io.StringIO('accepted')",
    "closes every descriptor": "import os\nos.closerange(3, 64)\nprint('x')",
    "kills itself": "import signal, posix\nposix.kill(posix.getpid(), signal.SIGKILL)",
    "crashes": "import ctypes\nctypes.string_at(0)",
    "raises StopIteration": "raise StopIteration",
    "raises through an exception that lies": (
        "class Timeoutexception(BaseException):\n    def __repr__(self): return 'accepted'\nraise Timeoutexception"
    ),
    "is not Python": "<?php echo 1;",
    "has a zero byte": "print(1)\x00",
    "prints not-a-number": "print('nan')",
    "prints what equals everything in YAML": "print('*')",
    "prints its input": "print(input())",
    "ends in a signalling NaN": "print('sNaN')",
    "reads the other input": "import sys\nprint(sys.stdin.read())\nprint(open(0).read())",
    "starts a second reader": "import posix\nposix.fork()\nprint(input())",
}
FUNCTION_CHEATS: dict[str, str] = {
    "reads frames": FRAMES + method("return search()"),
    "object equal to everything": method(
        "class A:", "    def __eq__(self, o): return True", "    def __hash__(self): return 0", "return A()"
    ),
    "string equal to everything": method("class A(str):", "    def __eq__(self, o): return True", "return A('x')"),
    "int equal to everything": method("class A(int):", "    def __eq__(self, o): return True", "return A(3)"),
    "float equal to everything": method("class A(float):", "    def __eq__(self, o): return True", "return A(3)"),
    "list equal to everything": method("class A(list):", "    def __eq__(self, o): return True", "return A()"),
    "dict equal to everything": method("class A(dict):", "    def __eq__(self, o): return True", "return A()"),
    "tuple equal to everything": method("class A(tuple):", "    def __eq__(self, o): return True", "return A()"),
    "list of such objects": method("class A:", "    def __eq__(self, o): return True", "return [A()]"),
    "object with a false class": method("class A:", "    __class__ = str", "    def __eq__(self, o): return True",
                                        "return A()"),
    "not-a-number": method("return float('nan')"),
    "mock that equals everything": "from unittest.mock import ANY\n" + method("return ANY"),
    "json that lies": "import json\njson.dumps = lambda *a, **k: '\"x\"'\n" + method("return 1"),
    "exit before the test": "import os\nos._exit(0)\n" + method("return 1"),
    "raises the result": method("raise Exception(n)"),
    "no such method": "class Solution: pass",
    "returns nothing": method("pass"),
    "huge integer": method("return 10 ** 60000"),
    "endless structure": method("x = []", "x.append(x)", "return x"),
}  # fmt: skip

CANARY = "hf_CANARY_0123456789"

# Each sets `seen`; `{home}`, `{port}`, `{package}` and `{pid}` are filled in by the test.
SPY_BODIES: dict[str, str] = {
    "the environment": "import os\nseen = 'CANARY' in str(dict(os.environ)) or 'HF_TOKEN' in os.environ",
    "environments of all processes": (
        "import os\nseen = False\nfor p in os.listdir('/proc'):\n    try:\n"
        "        seen |= p.isdigit() and 'CANARY' in io.open('/proc/' + p + '/environ').read()\n"
        "    except OSError: pass"
    ),
    "the home folder": "import os\nseen = os.path.exists({home!r})",
    "a file of ours": "try:\n    seen = bool(io.open({home!r} + '/secret').read())\nexcept OSError:\n    seen = False",
    "the package and its answers": "import os\nseen = os.path.exists({package!r} + '/evals') or os.path.exists({package!r} + '/cli')",
    "passwords": "try:\n    seen = 'root' in io.open('/etc/shadow').read()\nexcept OSError:\n    seen = False",
    "users": "seen = io.open('/etc/passwd').read().count('\\n') > 1",
    "a server on this machine": (
        "import socket\ntry:\n    socket.create_connection(('127.0.0.1', {port}), timeout=2)\n    seen = True\n"
        "except OSError:\n    seen = False"
    ),
    "another machine": (
        "import socket\ntry:\n    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n    s.sendto(b'x', ('192.0.2.1', 53))\n"
        "    seen = True\nexcept OSError:\n    seen = False"
    ),
    "other processes": "import os\nseen = len([p for p in os.listdir('/proc') if p.isdigit()]) > 6",
    "our process, to kill it": (
        "import posix\ntry:\n    posix.kill({pid}, 0)\n    seen = True\nexcept OSError:\n    seen = False"
    ),
    "a writable system": (
        "seen = False\nfor f in ('/usr/x', '/etc/x', '/opt/job/x', '/opt/job/program.py', '/x', {home!r} + '/x'):\n    try:\n"
        "        io.open(f, 'a').write('x')\n        seen = f not in ('/etc/x', '/x')\n    except OSError: pass"
    ),
    "a device": "import os\nseen = any(d.startswith(('sd', 'vd', 'nvme', 'mem', 'kmsg', 'nvidia')) for d in os.listdir('/dev'))",
    "more privileges": "seen = any(l.startswith('CapEff') and int(l.split()[1], 16) for l in io.open('/proc/self/status'))",
    "new namespaces": "import ctypes\nseen = ctypes.CDLL(None).unshare(0x10000000) == 0",
    "mounting": "import ctypes\nseen = ctypes.CDLL(None).mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0",
    "other users": (
        "import ctypes\nlibc = ctypes.CDLL(None)\nseen = libc.setuid(1234) == 0 or libc.setgroups(0, None) == 0"
    ),
    "shared memory of others": "import os\nseen = bool(os.listdir('/dev/shm'))",
    "files of the program before": "import os\nseen = os.path.exists('/tmp/left')\nio.open('/tmp/left', 'w').close()",
}

BOMBS: dict[str, str] = {
    "processes": (
        "import posix, time\nn = 0\ntry:\n    while n < 500:\n        if posix.fork() == 0:\n            time.sleep(60)\n"
        "            posix._exit(0)\n        n += 1\nexcept OSError: pass\n"
        "print('unlimited' if n >= 60 else 'stopped')"
    ),
    "threads": (
        "import threading, time\nn = 0\ntry:\n    while n < 500:\n        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "        n += 1\nexcept RuntimeError: pass\nprint('unlimited' if n >= 60 else 'stopped')"
    ),
    "memory": (
        "blocks = []\ntry:\n    while len(blocks) < 64:\n        blocks.append(bytes(64 << 20))\n"
        "except MemoryError: pass\nn = len(blocks)\ndel blocks\nprint('unlimited' if n >= 40 else 'stopped')"
    ),
    "disk": (
        "n = 0\ntry:\n    for i in range(40):\n        with io.open('f%d' % i, 'wb') as f: f.write(bytes(8 << 20))\n        n += 1\n"
        "except OSError: pass\nprint('unlimited' if n >= 20 else 'stopped')"
    ),
    "open files": "import os\nn = 0\ntry:\n    while n < 500:\n        os.open('/dev/null', 0)\n        n += 1\nexcept OSError: pass\nfor f in range(41, 64):\n    try: os.fstat(f)\n    except OSError: pass\nprint('unlimited' if n >= 64 else 'stopped')",
}
ENDLESS: dict[str, str] = {
    "loops": "while True: pass",
    "sleeps": "import time\ntime.sleep(1000)",
    "ignores all signals": (
        "import signal\nfor s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass\n"
        "while True:\n    try: pass\n    except BaseException: pass"
    ),
    "swallows every exception": "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
    "leaves a child with the pipe": (
        "import posix, time\nif posix.fork() == 0:\n    posix.setsid()\n    while True: time.sleep(1)\nprint('done')"
    ),
    "stops itself": "import posix, signal\nposix.kill(posix.getpid(), signal.SIGSTOP)",
    "floods": "while True: print('x' * 1000000)",
    "computes in C": "x = 7 ** (10 ** 8)",
}
