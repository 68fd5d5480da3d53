"""What stands before every program, and which names a program can be said to have defined itself."""

from types import ModuleType

MODULES = [
    "string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics", "itertools",
    "functools", "operator", "io", "sys", "json",
]  # fmt: skip

IMPORTS = "".join(
    [f"from {name} import *\n" for name in (*MODULES, "builtins", "typing")] + [f"import {name}\n" for name in MODULES]
)
PRELUDE = IMPORTS + "sys.setrecursionlimit(50000)\n"


def is_own(name: str, program: str) -> bool:
    """Whether a program's own statements bind `name`, or the prelude has no such name.

    An empty program must not pass because the wanted function happens to exist in the prelude (`add`, `gcd`).
    """
    scratch = ModuleType("prelude")
    exec(IMPORTS, scratch.__dict__)
    if not hasattr(scratch, name):
        return True
    import symtable  # rarely needed

    tables = [symtable.symtable(program, "<program>", "exec")]
    while tables:
        table = tables.pop()
        if name in table.get_identifiers():
            symbol = table.lookup(name)
            here = table.get_type() == "module" or symbol.is_declared_global()
            if here and (symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()):
                return True
        tables += table.get_children()
    return False
