"""What a configuration of another trainer says: values with the line they stand on, and what follows from them."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, prod
from typing import Any, Final


class Unknown:
    """The type of `UNKNOWN`."""

    def __repr__(self) -> str:
        return "unknown"


UNKNOWN: Final = Unknown()
"""A value that the file does not determine; None is a value (`null`)."""
MARK: Final = "\ue000"
"""Encloses, in a text, the name of what could not be resolved."""


@dataclass(frozen=True)
class Value:
    """A value and its source: `file:line`, `default of FRAMEWORK VERSION`, or why it is unknown."""

    value: Any
    source: str

    @property
    def known(self) -> bool:
        """Whether the file determines it."""
        return self.value is not UNKNOWN


def unresolved(name: str) -> str:
    """The mark that stands in a text for what could not be resolved."""
    return MARK + "".join(name.replace(MARK, "").split()) + MARK


def parsed(text: Any, source: str) -> Value:
    """A value as written in a shell, YAML or Python file: numbers, booleans and null are themselves."""
    if isinstance(text, list):
        items = [parsed(item, source) for item in text]
        return next((item for item in items if not item.known), Value([item.value for item in items], source))
    if not isinstance(text, str):
        return Value(text, source)
    if MARK in text:
        return Value(UNKNOWN, f"{source} ({text.split(MARK)[1]} is not known)")
    word = text.strip()
    word = word[1:-1] if len(word) > 1 and word[0] == word[-1] and word[0] in "'\"" else word
    if (plain := word.lower()) in ("true", "false"):
        return Value(plain == "true", source)
    if plain in ("null", "none", "~", ""):
        return Value(None, source)
    if re.fullmatch(r"[-+]?\d{1,15}", word):
        return Value(int(word), source)
    if re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d{1,3})?", plain) and len(word) < 40:
        return Value(float(word), source)
    return Value(word, source)


def derive(function: Callable[..., Any], *values: Value) -> Value:
    """`function` of known values; UNKNOWN if one of them is, or if the function has no answer for them."""
    unknown = [value for value in values if not value.known]
    source = "; ".join(dict.fromkeys(value.source for value in unknown or values))
    if unknown:
        return Value(UNKNOWN, source)
    try:
        return Value(function(*(value.value for value in values)), source)
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError):
        shown = ", ".join(str(value.value)[:60] for value in values)
        return Value(UNKNOWN, f"{source}: {shown} has no known meaning")


def implied(value: Any, *by: Value) -> Value:
    """A value that follows from others, if they are known."""
    return derive(lambda *_: value, *by)


def switched(name: str, on: Value) -> Value:
    """`name` where a key switches it on, else `none`."""
    return derive(lambda on: name if on else "none", on)


def pick(value: Value, cases: Mapping[Any, Any]) -> Value:
    """What a name means; UNKNOWN for a name that is not in the table."""
    return derive(lambda name: cases[name], value)


def steps(*values: Value) -> Value:
    """Optimizer steps on a rollout batch: the product of all but the last value, divided by the last, rounded up."""

    def ratio(*numbers: float) -> int:
        product = prod(numbers[:-1], start=1.0)
        if product <= 0:
            raise ValueError
        return ceil(product / numbers[-1])

    return derive(ratio, *values)


def kl_term(in_loss: Value, loss_coef: Value, in_reward: Value, reward_coef: Value) -> Value:
    """Where a KL penalty to the reference acts with a weight: `loss`, `reward` or `none`."""
    terms = []
    for name, switch, weight in (("loss", in_loss, loss_coef), ("reward", in_reward, reward_coef)):
        off = next((value for value in (switch, weight) if value.known and not value.value), None)
        terms.append(Value("", off.source) if off else derive(lambda *_, name=name: name, switch, weight))
    return derive(lambda *names: "+".join(filter(None, names)) or "none", *terms)


@dataclass
class Settings:
    """The keys that a file sets, and the defaults of its framework for the others."""

    framework: str
    version: str | None
    """None = not stated by the file; then a default that differs between versions is unknown."""
    newest: str
    """The version that the table of defaults was read from."""
    given: dict[str, Value]
    absent: str | None = None
    """Why an absent key is not known to have its default."""
    names: list[tuple[str, str]] = field(default_factory=list)
    """(where, name) of what the file calls itself."""
    notes: list[str] = field(default_factory=list)
    file: str = ""
    floor: str = "0"
    """The oldest version that the file admits."""

    def __call__(self, key: str, default: Any = None, *aliases: str) -> Value:
        """The value of a key (or of one of its older names)."""
        for name in (key, *aliases):
            if name in self.given:
                return self._resolved(self.given[name], 0)
        return Value(UNKNOWN, f"{key}: {self.absent}") if self.absent else self.fixed(default, f"default of {key},")

    def has(self, *keys: str) -> bool:
        """Whether the file sets one of these keys."""
        return any(key in self.given for key in keys)

    def under(self, prefix: str) -> bool:
        """Whether the file sets a key below this one."""
        return any(key.startswith(prefix + ".") for key in self.given)

    def fixed(self, value: Any, what: str = "the loss of") -> Value:
        """A fact of the framework itself."""
        return Value(value, f"{what} {self.framework} {self.version or self.newest}")

    def since(self, key: str, history: Sequence[tuple[str, Any]], floor: str = "0") -> Value:
        """A key whose default changed: (first version, default), oldest first. `floor` = the oldest version."""
        if key in self.given or self.absent:
            return self(key)
        low, high = self.version or max(floor, self.floor, key=number), self.version or self.newest
        starts = [number(start) for start, _ in history]
        possible = [
            (start, value)
            for (start, value), first, after in zip(history, starts, [*starts[1:], (9999,)], strict=True)
            if first <= number(high) and after > number(low)
        ]
        if len({str(value) for _, value in possible}) == 1:
            return self.fixed(possible[-1][1], f"default of {key},")
        told = ", ".join(f"{value} since {start}" for start, value in possible)
        return Value(UNKNOWN, f"{key} is absent, and its default changed in {self.framework}: {told}")

    def _resolved(self, value: Value, depth: int) -> Value:
        """A value with its `${key}` replaced; `${oc.env:NAME,default}` is its default."""
        if not isinstance(value.value, str) or "${" not in value.value:
            return value if isinstance(value.value, str | list) is False else parsed(value.value, value.source)
        whole = re.fullmatch(r"\$\{(?:oc\.(?:env|select):[\w.]+,\s*(?P<default>[^{}]*)|(?P<key>[\w.]+))\}", value.value)
        if whole and whole["default"] is not None:
            return parsed(whole["default"], value.source)
        if whole and whole["key"] in self.given and depth < 20:
            return self._resolved(self.given[whole["key"]], depth + 1)
        product = re.fullmatch(r"\$\{mul:\s*(\$\{[\w.]+\}|\d+),\s*(\$\{[\w.]+\}|\d+)\}", value.value)
        if product and depth < 20:
            factors = (self._resolved(parsed(text, value.source), depth + 1) for text in product.groups())
            return derive(lambda a, b: a * b, *factors)
        return Value(UNKNOWN, f"{value.source} ({value.value[:80]} is not known)")


def number(version: str) -> tuple[int, ...]:
    """A version as numbers: `0.22.2` is (0, 22, 2)."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


NOT_READ: Final = Value(UNKNOWN, "no key of this framework is known to say so")


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What a configuration computes; see `judge` for the conclusions."""

    loss: Value
    """`clip` (PPO's min/clip), `reinforce`, or the name of another loss."""
    unit: Value
    """Of the ratio: `token`, `sequence` or `none`."""
    mean: Value
    """`token_mean`, `per_response_mean`, `constant`, ..."""
    advantage: Value
    """`grpo`, `gae`, `rloo`, `reinforce_pp`, ..."""
    std: Value
    """Whether advantages are divided by a standard deviation."""
    clip_low: Value
    clip_high: Value
    """Distances from 1, as they act; None for a loss without such a clip."""
    dual_clip: Value
    kl: Value
    kl_coef: Value
    updates: Value
    old_log_probs: Value
    correction: Value = NOT_READ
    temperature: Value = NOT_READ
    trainer_temperature: Value = NOT_READ
    """At which the trainer scores; equal to the sampler's where the framework applies the same."""
    top_p: Value = NOT_READ
    replay: Value = NOT_READ
    dynamic_sampling: Value = Value(False, "no such key is set")
    prompts: Value = NOT_READ
    samples: Value = NOT_READ
    length: Value = NOT_READ
    lr: Value = NOT_READ
    model: Value = NOT_READ
