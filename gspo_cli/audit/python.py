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
    target: str = ""


@dataclass
class Reader:
    """Walks over the statements in their order; of a condition that is not known, both branches."""

    name: str
    calls: list[Call] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    """Defaults of the fields of all classes and of all options, for `args.NAME`."""
    docstring: str = ""
    assigned: dict[str, dict[str, Value]] = field(default_factory=dict)
    """Later assignments `name.attribute = value`."""

    def read(self, text: str) -> Reader:
        """Read a file. Errors: GspoError if it is no Python."""
        try:
            tree = ast.parse(text)
            self.docstring = ast.get_docstring(tree, clean=False) or ""
            self.block(tree.body, 0)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            why = f"it is no Python that can be read: {type(error).__name__}"
            raise GspoError(f"cannot read {self.name}", why, "check its syntax") from error
        return self

    def block(self, body: Iterable[ast.stmt], depth: int) -> None:
        """Statements in order; functions where they are defined."""
        if depth > MAX_DEPTH:
            raise RecursionError
        for node in body:
            if isinstance(node, ast.ClassDef):
                self.fields |= {
                    item.target.id: self.value(item.value)
                    for item in node.body
                    if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.value
                }
                self.block([item for item in node.body if isinstance(item, ast.FunctionDef)], depth + 1)
            elif isinstance(node, ast.If):
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
                bound: Any = node.target if isinstance(node, ast.For) else getattr(node, "args", None) or ast.Tuple([])
                names = {str(getattr(inner, "arg", getattr(inner, "id", ""))) for inner in ast.walk(bound)}
                hidden = {name: self.environment[name] for name in names & self.environment.keys()}
                self.environment |= dict.fromkeys(hidden, UNKNOWN)  # a parameter, or what a loop runs over
                self.visit_calls(child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr))
                for part in ("body", "handlers", "orelse", "finalbody"):
                    for child in getattr(node, part, []):
                        self.block(child.body if isinstance(child, ast.ExceptHandler) else [child], depth + 1)
                self.environment |= {} if isinstance(node, ast.For) else hidden

    def branches(self, bodies: Sequence[Iterable[ast.stmt]], depth: int) -> None:
        """One branch, or several of which it is not known which one runs."""
        before, results = self.environment, []
        for body in bodies:
            self.environment = dict(before)
            self.block(body, depth + 1)
            results.append(self.environment)
        if len(bodies) == 1:
            return
        self.environment = dict(before)
        for name in {name for result in results for name in result}:
            values = [result.get(name, before.get(name, UNKNOWN)) for result in results]
            same = all(value is values[0] or value == values[0] for value in values)
            self.environment[name] = values[0] if same else between(name, values)

    def assign(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> None:
        """`name = value`, `name += value`, `name.attribute = value`, `a, b = 1, 2`."""
        if node.value is None:
            return
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        before = len(self.calls)
        self.visit_calls([node.value])
        if len(self.calls) > before:
            self.calls[-1].target = ast.unparse(target)
        value = self.value(node.value)
        if isinstance(target, ast.Name):
            if isinstance(node, ast.AugAssign):
                value = self.binary(type(node.op), self.environment.get(target.id, UNKNOWN), value)
            self.environment[target.id] = value
        elif isinstance(target, ast.Attribute):
            owner = ast.unparse(target.value)
            self.assigned.setdefault(owner, {})[target.attr] = Value(value, f"{self.name}:{node.lineno}")
        elif isinstance(target, ast.Subscript):
            place, key = target.value, self.value(target.slice)
            if isinstance(place, ast.Name) and isinstance(old := self.environment.get(place.id), dict | list):
                known = isinstance(key, str) and isinstance(node, ast.Assign)
                self.environment[place.id] = {**old, key: value} if known and isinstance(old, dict) else UNKNOWN
        elif isinstance(target, ast.Tuple) and isinstance(value, tuple | list) and len(value) == len(target.elts):
            self.environment |= {n.id: v for n, v in zip(target.elts, value, strict=True) if isinstance(n, ast.Name)}

    def visit_calls(self, nodes: Iterable[ast.expr]) -> None:
        """Note every call within these expressions."""
        for node in nodes:
            for inner in ast.walk(node):
                if isinstance(inner, ast.Call):
                    self.calls.append(self.call(inner))
                    self.change(inner)

    def change(self, node: ast.Call) -> None:
        """`name.update(...)` and its like: the dictionary or list that the name has from there on."""
        match node.func:
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
            self.fields[option.lstrip("-").replace("-", "_")] = keywords["default"].value
        return Call(name, keywords, open_, texts)

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
                return self.fields.get(node.attr, UNKNOWN) if isinstance(node.value, ast.Name) else UNKNOWN
            case ast.JoinedStr():
                parts = [self.value(part, depth + 1) for part in node.values]
                return "".join(part if isinstance(part, str) else unresolved("") for part in parts)[:MAX_TEXT]
            case ast.FormattedValue():
                inner = self.value(node.value, depth + 1)
                return unresolved(ast.unparse(node.value)[:60]) if inner is UNKNOWN else str(inner)
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
                decisive = isinstance(node.op, ast.Or)
                if any(value is not UNKNOWN and bool(value) == decisive for value in values):
                    return decisive
                return UNKNOWN if UNKNOWN in values else values[-1]
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
