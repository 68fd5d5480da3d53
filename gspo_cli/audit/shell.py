"""Reads a shell script as a shell would, without running anything: assignments, arrays, conditionals, expansions.

What only a running shell could know (output of commands, environment variables) stays in a text as a mark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import NamedTuple

from gspo_cli.audit.findings import MARK, unresolved
from gspo_cli.audit.shell_values import MAX_DEPTH, Environment, Text, arithmetic, merged, split, text_of, truth
from gspo_cli.audit.shell_words import ASSIGNMENT, NAME, expansion_end, tokens

MAX_TEXT, MAX_WORDS = 200_000, 50_000
SETTERS = ("read", "mapfile", "readarray", "getopts", "eval", "let")
"""Commands that give variables values which only a running shell knows."""


class Word(NamedTuple):
    """A word of a command after expansion, and the line of what it says."""

    text: str
    line: int


@dataclass(frozen=True)
class Command:
    """A simple command."""

    words: list[Word]
    outside: list[str]
    """Whole arguments that come from outside the script: `$@`, arrays and variables that nobody assigns."""


class TooMuch(Exception):
    """The script expands to more than any configuration needs."""


@dataclass
class Reader:
    """Walks over a script; `commands` are its simple commands, `environment` its variables (arrays are lists)."""

    script: str
    environment: Environment = field(default_factory=dict)
    commands: list[Command] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)
    """What the words of the present command take from outside."""
    script_of: Callable[[str], str | None] = lambda _: None
    """The text of another script by its path, to `source` it."""
    unread: list[str] = field(default_factory=list)
    """Scripts that it sources and that cannot be read."""
    functions: dict[str, int] = field(default_factory=dict)
    """Where the body of each function begins among the tokens."""
    uncalled: dict[str, int] = field(default_factory=dict)
    """Those that no command has named so far."""
    local: set[str] = field(default_factory=set)
    """The variables that belong to the function which runs."""
    may_call_any: bool = False
    """Whether a command's name comes from outside."""
    depth: int = 0
    words: int = 0
    line: int = 1

    def read(self) -> Reader:
        """Read the whole script."""
        self.tokens = tokens(self.script, self.line)
        self.at = 0
        while self.at < len(self.tokens):
            self.block((), 0)
            self.at += 1  # a stray `fi` or `done`
        for name in [*self.uncalled] if self.may_call_any else ():
            self.run_function(name, 1)
        return self

    def block(self, ends: tuple[str, ...], depth: int) -> str:
        """Read commands up to one of the words `ends`, which is returned."""
        if depth > MAX_DEPTH:
            raise TooMuch
        status: bool | None = True
        glue = ";"
        while self.at < len(self.tokens):
            kind, raw, line = self.tokens[self.at]
            if raw in ends:
                self.at += 1
                return raw
            if raw == "(":
                self.parentheses(depth)
                status = None
                continue
            if kind == "op":
                glue = raw
                self.at += 1
                continue
            if raw in ("fi", "done", "esac", "then", "else", "elif", "}", "do"):
                return raw
            runs = {"&&": status, "||": None if status is None else not status}.get(glue, True)
            before, commands = dict(self.environment), len(self.commands)
            status = self.statement(raw, depth)
            if runs is False:
                self.environment = before
                del self.commands[commands:]
            elif runs is None:
                self.environment = merged(before, self.environment, line)
            elif raw == "exit" and glue == ";" and not depth:
                self.at = len(self.tokens)
            glue = ";"
        return ""

    def parentheses(self, depth: int) -> None:
        """`( ... )`, whose variables are its own, or `(( ... ))`, after which those in it are not known."""
        self.at += 1
        before, start = dict(self.environment), self.at
        self.block((")",), depth + 1)
        self.environment = before
        if self.tokens[start : start + 1] and self.tokens[start][1] == "(":
            self.forget(raw for _, raw, _ in self.tokens[start : self.at])

    def forget(self, texts: Iterable[str]) -> None:
        """The variables named in these texts have values that are not known."""
        for name in {name for text in texts for name in NAME.findall(text) if name in self.environment}:
            self.environment[name] = [[(unresolved(f"${name}"), self.line)]]

    def loop(self, depth: int) -> None:
        """The body of a loop: what it sets changes from round to round, and may not be set at all."""
        end, open_ = self.at, 1
        while open_ and end < len(self.tokens):
            open_ += {"do": 1, "done": -1}.get(self.tokens[end][1], 0)
            end += 1
        inside = [raw for _, raw, _ in self.tokens[self.at : end]]
        self.forget(found[1] for raw in inside if (found := ASSIGNMENT.match(raw)))
        before, line = dict(self.environment), self.tokens[min(self.at, len(self.tokens) - 1)][2]
        self.block(("done",), depth + 1)
        self.environment = merged(before, self.environment, line)

    def body(self, start: int, depth: int) -> None:
        """`{ ... }` or `( ... )` of a function."""
        if depth > MAX_DEPTH:
            raise TooMuch
        if self.tokens[start : start + 1] and self.tokens[start][1] == "(":
            self.parentheses(depth)
        elif start < len(self.tokens):
            self.statement(self.tokens[start][1], depth + 1)

    def run_function(self, name: str, depth: int) -> None:
        """The body of a function where it is called."""
        back, around, self.local = self.at, (self.local, dict(self.environment)), set()
        start = self.at = self.functions.pop(name)  # within itself it is not read again
        self.uncalled.pop(name, None)
        self.body(start, depth)
        self.at, self.functions[name] = back, start
        own, (self.local, before) = self.local, around
        for variable in own:
            self.environment.pop(variable, None)
            self.environment |= {variable: before[variable]} if variable in before else {}

    def statement(self, raw: str, depth: int) -> bool | None:
        """Read one statement; returns whether it succeeds, if that is known."""
        if raw == "if":
            self.at += 1
            self.conditional(depth)
            return None
        if raw in ("while", "until"):
            self.at += 1
            self.block(("do",), depth + 1)
            self.loop(depth)
            return None
        if raw == "for":
            head = self.simple()
            names = [text_of(self.expand(word, line)[0]) if len(word) else "" for word, line in head[1:2]]
            values = [item for word, line in head[3:] for item in self.fields(word, line)]
            if names:
                known = len(values) == 1 and MARK not in text_of(values[0])
                self.environment[names[0]] = values if known else [[(unresolved(f"${names[0]}"), head[0][1])]]
            self.skip_to("do")
            if names and known:
                self.block(("done",), depth + 1)
            else:
                self.loop(depth)
            return None
        if raw == "case":
            self.case(depth)
            return None
        if raw == "!" and self.at + 1 < len(self.tokens):
            self.at += 1
            inner = self.statement(self.tokens[self.at][1], depth)
            return None if inner is None else not inner
        if raw in ("{", "!", "time"):
            self.at += 1
            if raw == "{":
                self.block(("}",), depth + 1)
            return None
        signs = [sign for _, sign, _ in self.tokens[self.at + 1 : self.at + 3]]
        if raw == "function" or re.fullmatch(r"[\w-]+\(\)", raw) or signs == ["(", ")"]:
            self.at += 2 if raw == "function" else 3 if signs == ["(", ")"] else 1
            while self.at < len(self.tokens) and self.tokens[self.at][0] == "op" and self.tokens[self.at][1] != "(":
                self.at += 1
            name = (signs[0] if raw == "function" and signs else raw).removesuffix("()")
            start, before, commands = self.at, dict(self.environment), len(self.commands)
            self.body(start, depth)  # only to find its end
            self.functions[name] = self.uncalled[name] = start
            self.environment = before
            del self.commands[commands:]
            return None
        return self.command(self.simple(), depth)

    def skip_to(self, word: str) -> None:
        """Go behind the next such word."""
        while self.at < len(self.tokens) and self.tokens[self.at][1] != word:
            self.at += 1
        self.at += 1

    def conditional(self, depth: int) -> None:
        """`if`: the branch whose condition holds; both, merged, where that is not known."""
        open_, results = True, list[Environment]()
        end = "elif"
        while end == "elif":
            line = self.tokens[min(self.at, len(self.tokens) - 1)][2]
            start = len(self.commands)
            condition: bool | None = None
            save = dict(self.environment)
            while self.at < len(self.tokens) and self.tokens[self.at][1] != "then":
                kind, raw, _ = self.tokens[self.at]
                if kind == "op":
                    self.at += 1
                    continue
                condition = self.statement(raw, depth + 1)
            self.at += 1
            del self.commands[start:]
            end = self.branch(("elif", "else", "fi"), condition is not False and open_, depth, results)
            open_ = open_ and condition is not True
            self.environment = save
        if end == "else":
            self.branch(("fi",), open_, depth, results)
        elif open_:
            results.append(self.environment)
        self.environment = reduce(partial(merged, line=line), results)

    def branch(self, ends: tuple[str, ...], runs: bool, depth: int, results: list[Environment]) -> str:
        """Read a branch, whose end is returned. Its variables join the results; if it cannot run, it is forgotten."""
        before, commands = dict(self.environment), len(self.commands)
        end = self.block(ends, depth + 1)
        if runs:
            results.append(self.environment)
        else:
            del self.commands[commands:]
        self.environment = before
        return end

    def case(self, depth: int) -> None:
        """`case`: the branch of the first pattern that matches; all of them, merged, where that is not known."""
        self.at += 1
        _, raw, line = self.tokens[min(self.at, len(self.tokens) - 1)]
        subject = text_of(self.expand(raw, line)[0])
        self.skip_to("in")
        open_, results = True, list[Environment]()
        while self.at < len(self.tokens) and self.tokens[self.at][1] != "esac":
            kind, raw, line = self.tokens[self.at]
            if kind == "op":
                self.at += 1
                continue
            patterns = [raw]
            while self.at < len(self.tokens) and self.tokens[self.at][1] != ")":
                patterns.append(self.tokens[self.at][1])
                self.at += 1
            names = {text_of(self.expand(p, line)[0]) for p in patterns if p not in ("|", "(")}
            simple = not any(sign in name for name in names - {"*"} for sign in "*?[" + MARK)
            hit = None if MARK in subject or not simple else subject in names or "*" in names
            self.branch((";;", "esac"), open_ and hit is not False, depth, results)
            open_ = open_ and hit is not True
        self.at += 1
        self.environment = reduce(partial(merged, line=line), [*results, *([self.environment] if open_ else [])])

    def simple(self) -> list[tuple[str, int]]:
        """The raw words of a simple command."""
        found = []
        while self.at < len(self.tokens) and self.tokens[self.at][0] == "word":
            found.append(self.tokens[self.at][1:])
            self.at += 1
        return found

    def command(self, raw: list[tuple[str, int]], depth: int) -> bool | None:
        """Assign, or expand a command; returns the truth of a test."""
        before = dict(self.environment)
        if raw and raw[0][0] in ("export", "local", "readonly", "declare", "typeset"):
            own = raw[0][0] in ("local", "declare", "typeset")
            raw = [word for word in raw[1:] if not word[0].startswith("-")]
            self.local |= {word.partition("=")[0] for word, _ in raw} if own else set()
            if not any(ASSIGNMENT.match(word) for word, _ in raw):
                return True
        while raw and (found := ASSIGNMENT.match(raw[0][0])):
            self.assign(found[1], bool(found[2]), raw[0][0][found.end() :], raw[0][1])
            raw = raw[1:]
        if not raw:
            return True
        if raw[0][0] in self.functions:
            self.run_function(raw[0][0], depth)
        if raw[0][0] not in ("source", "."):
            self.environment = before if raw[0][0] not in self.functions else self.environment
        self.may_call_any |= raw[0][0].lstrip('"').startswith("$")
        self.outside = []
        words: list[Word] = []
        for word, line in raw:
            for item in self.fields(word, line):
                text = text_of(item)
                whole = re.fullmatch(rf"{MARK}\$\w+{MARK}", text)
                if whole and not (words and re.fullmatch(r"--?[A-Za-z][^=]*", words[-1].text)):
                    self.outside.append(text.strip(MARK))
                else:
                    words.append(Word(text, next((at for piece, at in reversed(item) if piece.strip()), line)))
        self.words += len(words)
        if self.words > MAX_WORDS:
            raise TooMuch
        if not words:
            return None
        if words[0].text in ("[", "[[", "test"):
            return truth([word.text for word in words[1:] if word.text not in ("]", "]]")], self.bare(raw))
        if words[0].text in ("source", ".") and len(words) > 1:
            self.source(words[1])
        if words[0].text in SETTERS:
            self.forget(word.text for word in words[1:])
        if words[0].text == "unset":
            self.environment |= {word.text: [[]] for word in words[1:]}
        if words[0].text not in ("echo", "printf"):
            self.commands.append(Command(words, self.outside))
        return None if words[0].text not in ("set", "echo", ":", "cd", "true") else True

    def source(self, name: Word) -> None:
        """Read another script for its variables; they count as standing on this line."""
        text = self.script_of(name.text) if self.depth < 3 else None
        if text is None:
            self.unread.append(name.text.replace(MARK, ""))
            return
        inner = Reader(text, dict(self.environment), script_of=self.script_of, depth=self.depth + 1).read()
        for key, value in inner.environment.items():
            if value != self.environment.get(key):
                self.environment[key] = [[(piece, name.line) for piece, _ in item] for item in value]
        self.unread += inner.unread

    def bare(self, raw: list[tuple[str, int]]) -> bool:
        """Whether a test asks about a variable that nobody assigns: then it is empty."""
        names = re.findall(r"\$\{?([A-Za-z_]\w*)", " ".join(word for word, _ in raw))
        return bool(names) and not any(name in self.environment for name in names)

    def assign(self, name: str, append: bool, raw: str, line: int) -> None:
        """`NAME=value`, `NAME+=value`, `NAME=(...)`."""
        if raw.startswith("("):
            found = tokens(raw[1:-1], line)
            values = [item for kind, word, at in found if kind == "word" for item in self.fields(word, at)]
            values = (self.environment.get(name, []) if append else []) + values
        else:
            value = self.expand(raw, line)[0]
            values = [(self.environment.get(name) or [[]])[0] + value if append else value]
        if sum(len(text) for item in values for text, _ in item) > MAX_TEXT:
            raise TooMuch
        self.environment[name] = values

    def fields(self, raw: str, line: int) -> list[Text]:
        """The words that a raw word becomes: unquoted expansions are split, `"${X[@]}"` gives one word per item."""
        array = re.fullmatch(r'"?\$\{(\w+)\[[@*]\]\}"?', raw)
        if array or raw in ("$@", "$*", '"$@"', '"$*"', "${@}", '"${@}"') or re.fullmatch(r'"?\$\{@:\d+\}"?', raw):
            name = array[1] if array else "@"
            if name not in self.environment:
                self.outside.append(f"${name}")
                return []
            return [item for value in self.environment[name] for item in split(value)]
        plain = re.fullmatch(r'"?\$\{?(\w+)\}?"?', raw)
        if plain and plain[1] not in self.environment:
            return [[(unresolved(f"${plain[1]}"), line)]]
        text, quoted = self.expand(raw, line)
        return [text] if quoted or not raw.count("$") else split(text)

    def expand(self, raw: str, line: int, depth: int = 0) -> tuple[Text, bool]:
        """A raw word without its quotes, with its expansions; and whether it was quoted."""
        if depth > MAX_DEPTH:
            raise TooMuch
        out: Text = []
        quote, at, quoted = "", 0, False
        while at < len(raw):
            sign = raw[at]
            if sign == "\n":
                line += 1
            if quote == "'":
                quote = "" if sign == "'" else quote
                out += [(sign, line)] if quote else []
                at += 1
            elif sign in "'\"" and not (quote and sign != quote):
                quote, quoted = ("" if quote else sign), True
                at += 1
            elif sign == "\\" and at + 1 < len(raw):
                follows = raw[at + 1]
                if follows == "\n":
                    line += 1
                elif quote and follows not in '"\\$`':
                    out.append(("\\" + follows, line))
                else:
                    out.append((follows, line))
                at += 2
            elif sign in "$`":
                end = expansion_end(raw, at)
                out += self.expansion(raw[at:end], line, depth)
                line += raw.count("\n", at, end)
                at = end
            else:
                end = at + 1
                while end < len(raw) and raw[end] not in "'\"\\$`\n":
                    end += 1
                out.append((raw[at:end], line))
                at = end
        if sum(len(text) for text, _ in out) > MAX_TEXT:
            raise TooMuch
        return out, quoted

    def expansion(self, raw: str, line: int, depth: int) -> Text:
        """One expansion: `$X`, `${X:-default}`, `${X//a/b}`, `$((1 + 2))`, ..."""
        if raw.startswith("$(("):
            return [(arithmetic(self.plain(raw[3:-2], line, depth), self.environment), line)]
        if raw == "$":
            return [("$", line)]
        inner = raw[2:-1] if raw.startswith("${") else raw[1:]
        found = re.match(r"(\w+|[@*#?!$-])(\[[@*\d]+\])?(.*)", inner, re.DOTALL)
        if place := re.fullmatch(r"\$\(.*(?:dirname.*(?:BASH_SOURCE|\$0)[^/]*|pwd)((?:/\.\.)*).*\)", raw):
            return [("." + place[1], line)]  # the folder of the script
        if place := re.fullmatch(r"\$\((?:realpath|readlink -f)\s+(.*)\)", raw):
            return self.expand(place[1], line, depth + 1)[0]
        if raw[0] == "`" or raw.startswith("$(") or not found:
            return [(unresolved(raw[:40]), line)]
        name, index, rest = found[1], found[2], found[3]
        if name == "PWD":
            return [(".", line)]
        items = self.environment.get(name)
        value: Text | None = None
        if items is not None:
            value = [piece for number, item in enumerate(items) for piece in ([(" ", line)] if number else []) + item]
        empty = value is None or not text_of(value)
        if rest[:2] in (":-", ":=") or rest[:1] in ("-", "="):
            if empty:
                value = self.expand(rest[2:] if rest[0] == ":" else rest[1:], line, depth + 1)[0]
                if "=" in rest[:2]:
                    self.environment[name] = [value]
            return value or []
        if rest[:2] == ":+" or rest[:1] == "+":
            return [] if empty else self.expand(rest.lstrip(":")[1:], line, depth + 1)[0]
        if value is not None and (swap := re.fullmatch(r"//?([^/]*)/?(.*)", rest, re.DOTALL)):
            count = -1 if rest.startswith("//") else 1
            return [(text.replace(swap[1], swap[2], count), at) for text, at in value] if swap[1] else value
        if rest and not index and not rest.startswith(":?"):
            return [(unresolved(raw[:40]), line)]
        return [(unresolved(f"${name}"), line)] if value is None else value

    def plain(self, raw: str, line: int, depth: int) -> str:
        """The text of a raw word."""
        return text_of(self.expand(raw, line, depth + 1)[0])
