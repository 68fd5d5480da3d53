"""Reads what a Python file passes to a trainer, from its syntax tree: nothing is imported or run."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gspo_cli.audit.findings import MARK, UNKNOWN, Value, unresolved
from gspo_cli.errors import GspoError

MAX_DEPTH, MAX_TEXT = 60, 200_000
COMPARE: dict[type, Any] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
    ast.Is: operator.eq,
    ast.IsNot: operator.ne,
}
BINARY: dict[type, Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
READING = ("get", "items", "keys", "values", "copy", "count", "index")
"""Methods that leave a dictionary or a list as it is."""


@dataclass
class Call:
    """A call, with what is known of its keywords."""

    name: str
    keywords: dict[str, Value]
    open: bool
    """Whether `**keywords` of unknown content are passed."""
    texts: list[tuple[str, int]]
    """Texts among its arguments, with their last line."""
    path: tuple[int, ...] = ()
    """The branches, loops and functions in which it stands, of which it is not known whether they run."""
    target: str = ""


@dataclass
class Reader:
    """Walks over the statements in their order; of a condition that is not known, both branches. A function is read
    after what surrounds it, where it is mostly called."""

    name: str
    calls: list[Call] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    """By name, or `name.attribute`; an object that a class makes is the call of that class."""
    classes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Defaults of the fields of each class."""
    fields: dict[str, Any] = field(default_factory=dict)
    """Defaults of the fields of all classes and of all options, for `args.NAME`; unknown where they differ."""
    functions: list[tuple[ast.FunctionDef | ast.AsyncFunctionDef, tuple[int, ...]]] = field(default_factory=list)
    """Those not read yet, each with its path."""
    path: tuple[int, ...] = ()
    """As that of a call."""
    objects: dict[str, list[Call]] = field(default_factory=dict)
    """The objects that were ever assigned to a name."""
    docstring: str = ""

    def read(self, text: str) -> Reader:
        """Read a file. Errors: GspoError if it is no Python."""
        try:
            tree = ast.parse(text)
            self.docstring = ast.get_docstring(tree, clean=False) or ""
            self.scope(tree.body, 0)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            why = f"it is no Python that can be read: {type(error).__name__}"
            raise GspoError(f"cannot read {self.name}", why, "check its syntax") from error
        return self

    def scope(self, body: Iterable[ast.stmt], depth: int) -> None:
        """A module or a function, then the functions in it, whose own names end with them."""
        around, self.functions = self.functions, []
        self.block(body, depth)
        outer, outer_path = self.environment, self.path
        for function, path in self.functions:
            parameters = {inner.arg for inner in ast.walk(function.args) if isinstance(inner, ast.arg)}
            self.environment, self.path = outer | dict.fromkeys(parameters, UNKNOWN), (*path, id(function))
            self.scope(function.body, depth + 1)
            shared = {
                n for inner in ast.walk(function) if isinstance(inner, ast.Global | ast.Nonlocal) for n in inner.names
            }
            outer |= dict.fromkeys(shared, UNKNOWN)
        self.environment, self.path, self.functions = outer, outer_path, around

    def block(self, body: Iterable[ast.stmt], depth: int) -> None:
        """Statements in order."""
        if depth > MAX_DEPTH:
            raise RecursionError
        for node in body:
            if isinstance(node, ast.ClassDef):
                own = {
                    item.target.id: self.value(item.value)
                    for item in node.body
                    if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.value
                }
                self.classes[node.name] = own
                for name, value in own.items():
                    self.note_field(name, value)
                self.block([i for i in node.body if isinstance(i, ast.FunctionDef | ast.AsyncFunctionDef)], depth + 1)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self.functions.append((node, self.path))
            elif isinstance(node, ast.For | ast.While | ast.AsyncFor):
                again = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
                self.environment |= dict.fromkeys(again, UNKNOWN)  # they change from round to round
                self.visit_calls(child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr))
                self.branches([node.body, []], depth)
                self.block(node.orelse, depth + 1)
            elif isinstance(node, ast.Try):
                self.block(node.body, depth + 1)
                self.branches([*(handler.body for handler in node.handlers), node.orelse], depth)
                self.block(node.finalbody, depth + 1)
            elif isinstance(node, ast.Delete):
                roots = {n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
                self.environment |= dict.fromkeys(roots, UNKNOWN)
            elif isinstance(node, ast.If):
                self.visit_calls([node.test])
                test = self.value(node.test)
                options = (node.body, test), (node.orelse, not test)
                self.branches([body for body, runs in options if test is UNKNOWN or runs], depth)
            elif isinstance(node, ast.Match):
                subject = self.value(node.subject)
                cases = [(case, ast.unparse(case.pattern)) for case in node.cases]
                hit = [case.body for case, pattern in cases if pattern in (repr(subject), "_")]
                self.branches(hit[:1] if subject is not UNKNOWN else [case.body for case, _ in cases], depth)
            elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
                self.assign(node)
            else:
                self.visit_calls(child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr))
                for item in getattr(node, "items", []):  # of a `with`
                    self.visit_calls([item.context_expr])
                self.block(getattr(node, "body", []), depth + 1)

    def branches(self, bodies: Sequence[Iterable[ast.stmt]], depth: int) -> None:
        """One branch, or several of which it is not known which one runs."""
        before, results, path = self.environment, [], self.path
        for body in bodies:
            self.environment = dict(before)
            self.path = (*path, id(body)) if len(bodies) > 1 else path
            self.block(body, depth + 1)
            results.append(self.environment)
        self.path = path
        if len(bodies) == 1:
            return
        self.environment = dict(before)
        for name in {name for result in results for name in result}:
            values = [result.get(name, before.get(name, UNKNOWN)) for result in results]
            same = all(value is values[0] or value == values[0] for value in values)
            self.environment[name] = values[0] if same else between(name, values)

    def assign(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> None:
        """`name = value`, `a = b = value`, `name += value`, `name.attribute = value`, `a, b = 1, 2`."""
        if node.value is None:
            return
        before = len(self.calls)
        self.visit_calls([node.value])
        value = self.value(node.value)
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(node.value, ast.Call) and (made := self.made(self.calls[before], node.value, target)):
                value = made
            if isinstance(node, ast.AugAssign) and not isinstance(target, ast.Subscript):
                value = self.binary(type(node.op), self.value(target), value)
            self.bind(node, target, value)

    def made(self, call: Call, node: ast.Call, target: ast.expr) -> Call | None:
        """The object that a call makes: of a class, or of another object with changes. None for anything else."""
        old = self.value(node.args[0]) if call.name in ("replace", "copy", "deepcopy") and node.args else None
        if isinstance(old, Call):
            call.name, call.open = old.name, old.open or call.open
            call.keywords = old.keywords | call.keywords
            if old.target == ast.unparse(target) and self.path == old.path:
                self.calls = [other for other in self.calls if other is not old]
        elif not call.name[:1].isupper():
            return None
        call.target = ast.unparse(target)
        self.objects.setdefault(call.target, []).append(call)
        return call

    def bind(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign, target: ast.expr, value: Any) -> None:
        """One target of an assignment."""
        if isinstance(target, ast.Name):
            self.environment[target.id] = value
        elif isinstance(target, ast.Attribute):
            self.set(target.value, target.attr, value, node.lineno)
        elif isinstance(target, ast.Subscript):
            place, key = target.value, self.value(target.slice)
            if isinstance(place, ast.Name) and isinstance(old := self.environment.get(place.id), dict | list):
                known = isinstance(key, str) and isinstance(node, ast.Assign)
                self.environment[place.id] = {**old, key: value} if known and isinstance(old, dict) else UNKNOWN
        elif isinstance(target, ast.Tuple) and isinstance(value, tuple | list) and len(value) == len(target.elts):
            self.environment |= {n.id: v for n, v in zip(target.elts, value, strict=True) if isinstance(n, ast.Name)}

    def set(self, owner: ast.expr, name: str | None, value: Any, line: int) -> None:
        """`owner.name = value`; a name of None stands for any. It is certain if it runs whenever the object is made."""
        place, made, source = ast.unparse(owner), self.value(owner), f"{self.name}:{line}"
        for one in [made] if isinstance(made, Call) else self.objects.get(place, []):
            certain = one is made and name and one.path[: len(self.path)] == self.path
            one.keywords |= dict.fromkeys(
                [name] if name else one.keywords, Value(value if certain else UNKNOWN, source)
            )
            one.open |= name is None
        if name and not isinstance(made, Call):
            self.environment[f"{place}.{name}"] = value
            if name in self.fields:
                self.note_field(name, value)

    def note_field(self, name: str, value: Any) -> None:
        """A default of `args.NAME`; another one leaves it open."""
        self.fields[name] = value if self.fields.get(name, value) == value else UNKNOWN

    def visit_calls(self, nodes: Iterable[ast.expr]) -> None:
        """Note every call within these expressions, with the names that they bind."""
        for node in nodes:
            inside = list(ast.walk(node))
            stored = [n.id for n in inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
            bound = {*stored, *(n.arg for n in inside if isinstance(n, ast.arg))}  # of comprehensions and lambdas
            hidden = {name: self.environment[name] for name in bound & self.environment.keys()}
            self.environment |= dict.fromkeys(hidden, UNKNOWN)
            for inner in inside:
                if isinstance(inner, ast.Call):
                    self.calls.append(self.call(inner))
                    self.change(inner)
            self.environment |= hidden
            for inner in inside:
                if isinstance(inner, ast.NamedExpr):
                    self.environment[inner.target.id] = self.value(inner.value)

    def change(self, node: ast.Call) -> None:
        """`name.update(...)` and its like: the dictionary or list that the name has from there on."""
        match node.func:
            case ast.Name(id="setattr") if len(node.args) == 3:
                key = self.value(node.args[1])
                self.set(node.args[0], key if isinstance(key, str) else None, self.value(node.args[2]), node.lineno)
                return
            case ast.Attribute(value=owner, attr=method) if isinstance(self.value(owner), Call):
                if method.startswith(("update", "set", "merge")):
                    self.set(owner, None, UNKNOWN, node.lineno)
                return
            case ast.Attribute(value=ast.Name(id=name), attr=method):
                old, given = self.environment.get(name), [self.value(argument) for argument in node.args]
            case _:
                return
        named = {keyword.arg: self.value(keyword.value) for keyword in node.keywords}
        if isinstance(old, dict) and method == "update":
            known = all(isinstance(one, dict) for one in given) and None not in named
            self.environment[name] = {**old, **(given[0] if given else {}), **named} if known else UNKNOWN
        elif isinstance(old, list) and method in ("append", "extend") and len(given) == 1:
            more = [unresolved("an item") if given == [UNKNOWN] else given[0]] if method == "append" else given[0]
            self.environment[name] = [*old, *more] if isinstance(more, list) else UNKNOWN
        elif isinstance(old, dict | list) and method not in READING:
            self.environment[name] = UNKNOWN

    def call(self, node: ast.Call) -> Call:
        """What is known of a call."""
        keywords: dict[str, Value] = {}
        open_ = False
        for keyword in node.keywords:
            value = self.value(keyword.value)
            value = UNKNOWN if isinstance(value, Call) else value
            if keyword.arg in keywords:
                raise SyntaxError("keyword argument repeated")
            if keyword.arg:
                source = f"{self.name}:{keyword.value.lineno}"
                source += f" ({ast.unparse(keyword.value)[:60]} is not known)" if value is UNKNOWN else ""
                keywords[keyword.arg] = Value(value, source)
            elif isinstance(value, dict):
                keywords |= {str(k): Value(v, f"{self.name}:{keyword.value.lineno}") for k, v in value.items()}
            else:
                open_ = True
        texts = []
        for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
            value = self.value(argument)
            value = " ".join(value) if isinstance(value, list) and all(isinstance(i, str) for i in value) else value
            if isinstance(value, str) and len(value) > 20:
                texts.append((value, argument.end_lineno or argument.lineno))
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        option = self.value(node.args[0]) if name == "add_argument" and node.args else None
        if isinstance(option, str) and "default" in keywords:
            self.note_field(option.lstrip("-").replace("-", "_"), keywords["default"].value)
        return Call(name, keywords, open_, texts, self.path)

    def value(self, node: ast.expr | None, depth: int = 0) -> Any:
        """The value of an expression, or UNKNOWN. A text may have marks in it."""
        if node is None or depth > MAX_DEPTH:
            return UNKNOWN
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self.environment.get(node.id, UNKNOWN)
            case ast.Attribute():
                return self.attribute(node, depth)
            case ast.NamedExpr():
                return self.value(node.value, depth + 1)
            case ast.JoinedStr():
                parts = [self.value(part, depth + 1) for part in node.values]
                return "".join(part if isinstance(part, str) else unresolved("") for part in parts)[:MAX_TEXT]
            case ast.FormattedValue():
                inner = self.value(node.value, depth + 1)
                known = inner is not UNKNOWN and not isinstance(inner, Call)
                return str(inner) if known else unresolved(ast.unparse(node.value)[:60])
            case ast.BinOp():
                return self.binary(type(node.op), self.value(node.left, depth + 1), self.value(node.right, depth + 1))
            case ast.UnaryOp():
                inner = self.value(node.operand, depth + 1)
                if isinstance(node.op, ast.Not) and isinstance(inner, int | float | str | None):
                    return not inner
                sign = {ast.USub: -1, ast.UAdd: 1}.get(type(node.op))
                return sign * inner if sign and isinstance(inner, int | float) else UNKNOWN
            case ast.IfExp():
                test = self.value(node.test, depth + 1)
                options = [self.value(branch, depth + 1) for branch in (node.body, node.orelse)]
                return options[not test] if test is not UNKNOWN else options[0] if options[0] == options[1] else UNKNOWN
            case ast.BoolOp():
                values = [self.value(item, depth + 1) for item in node.values]
                ends = isinstance(node.op, ast.Or)
                return next((v for v in values if v is UNKNOWN or bool(v) == ends), values[-1])
            case ast.Compare(ops=[op], comparators=[other]):
                sides = self.value(node.left, depth + 1), self.value(other, depth + 1)
                return UNKNOWN if UNKNOWN in sides or type(op) not in COMPARE else self.safe(COMPARE[type(op)], *sides)
            case ast.List() | ast.Tuple():
                items = [self.value(item, depth + 1) for item in node.elts]
                return [unresolved("an item") if item is UNKNOWN else item for item in items]
            case ast.Dict() if all(isinstance(key, ast.Constant) for key in node.keys):
                return {key.value: self.value(v, depth + 1) for key, v in zip(node.keys, node.values, strict=True)}  # type: ignore[union-attr]
            case ast.Call(func=ast.Name(id="dict"), args=[]) if all(keyword.arg for keyword in node.keywords):
                return {keyword.arg: self.value(keyword.value, depth + 1) for keyword in node.keywords}
        return UNKNOWN

    def attribute(self, node: ast.Attribute, depth: int) -> Any:
        """The value of `owner.name`: as it was set, as the object was made with, or the default of a field."""
        if (place := ast.unparse(node)) in self.environment:
            return self.environment[place]
        owner = self.value(node.value, depth + 1)
        if isinstance(owner, Call):
            own = self.classes.get(owner.name, {})
            return owner.keywords[node.attr].value if node.attr in owner.keywords else own.get(node.attr, UNKNOWN)
        if not isinstance(node.value, ast.Name):
            return UNKNOWN
        return self.classes.get(node.value.id, self.fields).get(node.attr, UNKNOWN)

    def binary(self, kind: type, left: Any, right: Any) -> Any:
        """Arithmetic; an unknown part of a text is a mark in it."""
        if kind is ast.Add and isinstance(left, str) != isinstance(right, str) and UNKNOWN in (left, right):
            left, right = (unresolved("a part") if side is UNKNOWN else side for side in (left, right))
        repeats = kind is ast.Mult and (isinstance(left, str) or isinstance(right, str))
        if repeats or kind not in BINARY or UNKNOWN in (left, right):
            return UNKNOWN
        value = self.safe(BINARY[kind], left, right)
        return UNKNOWN if isinstance(value, str | list) and len(value) > MAX_TEXT else value

    @staticmethod
    def safe(function: Any, left: Any, right: Any) -> Any:
        """The result, or UNKNOWN where there is none."""
        try:
            return function(left, right)
        except (TypeError, ValueError, ArithmeticError):
            return UNKNOWN


def between(name: str, values: list[Any]) -> Any:
    """A value of which it is not known which it is: of texts with options, those not in all are unknown."""
    if not all(isinstance(value, str) and "--" in value for value in values if value != ""):
        return UNKNOWN
    words = [value.split() for value in values if isinstance(value, str)]
    common = [word for word in words[0] if all(word in side for side in words)]
    doubtful = dict.fromkeys(w for side in words for w in side if w not in common and w.startswith("--"))
    return " ".join([*common, *(f"{word.partition('=')[0]} {unresolved(name)}" for word in doubtful)]) + " "


def line_of(lines: list[str], word: str) -> int:
    """The number of the first line that holds a word outside a comment; 1 if there is none."""
    whole = re.compile(rf"(?<![\w-]){re.escape(word.split(MARK)[0])}(?![\w-])")
    holding = (at for at, line in enumerate(lines, 1) if not line.lstrip().startswith("#") and whole.search(line))
    return next(holding, 1)
