"""Finds, in a file of another trainer, the settings of each training that it describes. Nothing in it is executed."""

import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from gspo_cli.audit import python, shell
from gspo_cli.audit.findings import MARK, Settings, Value
from gspo_cli.audit.frameworks import FRAMEWORKS
from gspo_cli.audit.frameworks.framework import Framework
from gspo_cli.audit.tables import find, flags, hydra, inherit, over, read_toml
from gspo_cli.errors import GspoError

MAX_BYTES, MAX_FILES = 2_000_000, 2_000
SUFFIXES = (".sh", ".bash", ".slurm", ".sbatch", ".py", ".yaml", ".yml", ".toml")
CONFIG = re.compile(r"(Unsloth)?(GRPO|RLOO)Config")
OWN_MAIN = (
    r"verl\.(trainer|experimental)\.|main_ppo|recipe[./](dapo|entropy|fully_async_policy|one_step_off_policy)[./]"
)
OTHER_TERM = re.compile(
    r"(^|[._])(use_opd|chord|distill\w*|teacher_model|positive_example_nll_weight|nll_weight|sft_loss)", re.IGNORECASE
)
MODEL_ONLY = re.compile(r"MODEL|CKPT|WANDB|LOG|OPTIM|SGLANG|VLLM|PERF|EVAL|DATA|SAVE|MISC|GPU|NODE")


class NoConfiguration(GspoError):
    """A file that can be read and describes no training, as many files of a folder do."""


def read_text(path: Path) -> str:
    """The text of a regular file. Errors: GspoError for what is too large, no text, or no file."""
    shown = str(path)
    try:
        if not path.exists():
            raise GspoError(f"no file {shown}", "it does not exist", "check the path")
        if not stat.S_ISREG(path.stat().st_mode):
            raise GspoError(f"cannot read {shown}", "it is no regular file", "name a file or a folder")
        if path.stat().st_size > MAX_BYTES:
            raise GspoError(f"cannot read {shown}", f"it has more than {MAX_BYTES:,} bytes", "name a configuration")
        return as_text(path.read_bytes(), shown)
    except OSError as error:
        raise GspoError(f"cannot read {shown}", str(error.strerror), "check who may read it") from error


def as_text(content: bytes, shown: str) -> str:
    """Bytes as text. Errors: GspoError."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise GspoError(f"cannot read {shown}", "it is not UTF-8", "name a text file") from error
    if "\0" in text:
        raise GspoError(f"cannot read {shown}", "it is binary", "name a text file")
    return text.replace("\r\n", "\n")


def files(folder: Path) -> list[Path]:
    """The files of a folder that may be configurations, without links. Errors: GspoError if they are too many."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.suffix in SUFFIXES and path.is_file() and path.resolve().is_relative_to(folder.resolve()):
            found.append(path)
            if len(found) > MAX_FILES:
                raise GspoError(f"cannot audit {folder}", f"it holds over {MAX_FILES:,} files", "name a smaller folder")
    return found


def read(text: str, path: Path | None, version: str | None) -> list[Settings]:
    """The trainings that a file describes; `path` is None for standard input. Errors: GspoError if there is none."""
    name = str(path) if path else "-"
    where = path or Path("-")
    suffix = path.suffix if path else guess(text)
    try:
        found = list(BY_SUFFIX.get(suffix, _commands)(text, name, where))
    except (shell.TooMuch, RecursionError) as error:
        raise GspoError(
            f"cannot read {name}", "it is nested or expands beyond any configuration", "simplify it"
        ) from error
    if not found:
        known = ", ".join(FRAMEWORKS)
        raise NoConfiguration(
            f"{name} is no configuration that is known",
            f"it shows no training by {known}",
            "name the file that sets the algorithm",
        )
    for settings in found:
        settings.file = name
        settings.notes += [
            f"{value.source}: {key} may add a term to the loss that is not judged"
            for key, value in settings.given.items()
            if OTHER_TERM.search(key) and value.value not in (None, False, 0, 0.0)
        ]
        settings.version = version or pinned(settings.framework, "==", text, path)
        settings.floor = pinned(settings.framework, ">=", text, path) or "0"
        keys = FRAMEWORKS[settings.framework].table.get("names", [])
        named = [(key, str(settings(key).value)) for key in keys if settings.has(key)]
        settings.names = ([("file name", where.stem)] if path else []) + named
    return found


def guess(text: str) -> str:
    """The suffix that the text of standard input would have."""
    if re.search(r"^(import|from) \w|\b(GRPO|RLOO)Config\(", text, re.MULTILINE):
        return ".py"
    if re.search(r"^\[[\w.]+\]\s*$", text, re.MULTILINE) and not text.startswith("#!"):
        return ".toml"
    return ".yaml" if re.search(r"^\w+:(\s|$)", text, re.MULTILINE) and not text.startswith("#!") else ".sh"


def pinned(framework: str, sign: str, text: str, path: Path | None) -> str | None:
    """The version after `sign` (== or >=) in the file, or in a project file above it."""
    pin = re.compile(rf"\b{re.escape(framework.lower())}(?:\[[\w,-]+\])?\s*{sign}\s*(\d+(?:\.\d+)*)")
    if found := pin.search(text):
        return found[1]
    for folder in list(path.absolute().parents)[:5] if path else []:
        for project in ("setup.py", "pyproject.toml", "requirements.txt"):
            target = folder / project
            is_small = target.is_file() and target.stat().st_size < 100_000
            if is_small and (found := pin.search(target.read_text("utf-8", "replace"))):
                return found[1]
        if (folder / ".git").exists():
            break
    return None


def settings_of(framework: Framework, given: dict[str, Value], absent: str | None = None) -> Settings:
    """Settings of a framework; the caller sets file, names and version."""
    return Settings(framework.name, None, framework.table["newest"], given, absent)


def _toml(text: str, name: str, _: Path) -> Iterator[Settings]:
    given = read_toml(text, name)
    if framework := _by_keys(given):
        yield settings_of(framework, given)


def _yaml(text: str, name: str, path: Path) -> Iterator[Settings]:
    own = any(re.match(r"defaults\s*:", line) for line in text.splitlines())
    belongs = "|".join(framework.pattern("bases") for framework in FRAMEWORKS.values())
    given, unread = inherit(path, name, text, read_text, lambda base: bool(re.fullmatch(belongs, base)), around(path))
    unread = [base for base in unread if not re.search(r"deepspeed|/config/(traj|envs)", base)]
    absent = f"it inherits {', '.join(unread)}, which cannot be read" if own and unread else None
    if framework := _by_keys(given):
        yield settings_of(framework, given, absent)
        return
    for value in given.values():  # a cluster's job file, whose command is a shell script
        text = value.value
        if isinstance(text, str) and len(text) > 60 and ("\n" in text or " --" in text):
            yield from _commands(text, name, path, int(value.source.rpartition(":")[2]) + 1)


def _by_keys(given: dict[str, Value]) -> Framework | None:
    keys = "\n".join(f"{key}={value.value}" for key, value in given.items())
    return next((f for f in FRAMEWORKS.values() if re.search(f.pattern("keys"), keys, re.MULTILINE)), None)


def around(path: Path) -> tuple[Path, ...]:
    """Where a relative path of a script may begin: its folder, those above, and the current one."""
    above = list(path.absolute().parents)[:6]
    return tuple(place / sub for place in [*above, Path.cwd()] for sub in ("", "base"))


def _commands(script: str, name: str, path: Path, line: int = 1, depth: int = 0) -> Iterator[Settings]:
    """The trainings that the commands of a script start."""

    def script_of(name: str) -> str | None:
        target = find_script(path, name)
        return read_text(target) if target else None

    reader = shell.Reader(script, line=line, script_of=script_of).read()
    for command in reader.commands:
        words = command.words
        text = " ".join(word.text for word in words)
        called = next((word.text for word in words[:4] if word.text.endswith(".sh")), None)
        framework = next((f for f in FRAMEWORKS.values() if re.search(f.pattern("command"), text)), None)
        if called and depth < 3 and words[0].text in ("bash", "sh", "source", ".", "exec"):
            target = find_script(path, called)
            overrides = hydra(words, name) if "=" in text else flags(words, name)
            inner = list(_commands(read_text(target), str(target), target, depth=depth + 1)) if target else []
            for settings in inner:
                settings.given = over(settings.given, overrides)
                yield settings
            if inner or framework is None or (framework.table.get("overrides") and not _by_keys(overrides)):
                continue
            absent = f"the options of {called} come first, and it cannot be read"
            yield settings_of(framework, overrides, absent)
        elif framework is not None and len(words) > 3:
            yield _training(framework, command, reader.unread, name, path, script)


def find_script(path: Path, called: str) -> Path | None:
    """A script that another one calls by its path."""
    if not re.fullmatch(r"[\w./-]{1,300}", called) or called.startswith("/"):
        return None
    places = [place / called for place in (path.parent, *around(path))]
    return next((place for place in places if place.is_file() and not place.is_symlink() and place != path), None)


def _training(
    framework: Framework, command: shell.Command, unread: list[str], name: str, path: Path, script: str
) -> Settings:
    """The settings of one command, on top of the file that it names as its base."""
    words = command.words
    text = " ".join(word.text for word in words)
    overrides = framework.table.get("overrides", False)
    options = flags(words, name, overrides)
    given = (hydra(words, name) if overrides else options) | {"_main": Value(None, text[:2000])}
    if framework.name == "slime" and ("miles" in script or "miles" in path.parts):
        framework = FRAMEWORKS["miles"]
    settings = settings_of(framework, given)
    base, folder = options.get("config_name") or options.get("config"), options.get("config_path")
    stem = base.value.removesuffix(".yaml") if base and isinstance(base.value, str) else None
    own = framework.name == "verl" and stem is not None and re.fullmatch(framework.pattern("bases"), stem)
    if base and not base.known:
        settings.absent = f"it builds on a file whose name is not known: {base.source}"
    elif base and stem is not None and not own:
        given["_config_name"] = base
        places = around(path)
        if folder and isinstance(folder.value, str) and not folder.value.startswith("/"):
            places += tuple(place / folder.value for place in (path.parent, *places))
        target = find(path.parent, base.value, places)
        if target is not None:
            inner = list(_yaml(read_text(target), str(target), target)) or [settings_of(framework, _plain(target))]
            settings.given, settings.absent = over(inner[0].given, given), inner[0].absent
        elif not re.fullmatch(framework.pattern("bases"), Path(base.value).stem):
            settings.absent = f"it builds on {base.value}, which cannot be read"
    elif framework.name == "verl" and not re.search(OWN_MAIN, text) and "actor_rollout_ref" in text:
        settings.absent = "the program has a base configuration of its own, which is not read"
    for at, word in enumerate(words[1:]):
        if framework.name == "prime-rl" and words[at].text == "@" and (target := find_script(path, word.text)):
            settings.given = over(settings.given, read_toml(read_text(target), str(target)))
    for argument in dict.fromkeys(command.outside):
        if argument == "$@" or not unread or MODEL_ONLY.search(argument.upper()):
            settings.notes.append(f"further arguments may come from outside the file: {argument}")
        else:
            settings.absent = settings.absent or f"{argument} comes from {', '.join(unread)[:80]}, which is not read"
    return settings


def _plain(target: Path) -> dict[str, Value]:
    return inherit(target, str(target), read_text(target), read_text, lambda _: False)[0]


DECISIVE = ("epsilon", "loss_type", "beta", "importance_sampling_level", "gradient_accumulation_steps")
"""Options of TRL that tell a command from one that only names a model."""


def _python(text: str, name: str, _: Path) -> Iterator[Settings]:
    """The configurations that a program builds, or the options that it passes to a launcher."""
    reader = python.Reader(name).read(text)
    unsloth = bool(re.search(r"^\s*(from|import) unsloth", text, re.MULTILINE))
    framework = FRAMEWORKS["Unsloth" if unsloth else "TRL"]
    lines = text.splitlines()
    built = [call for call in reader.calls if CONFIG.fullmatch(call.name)]
    for call in built:
        given = call.keywords | {"_class": Value(None, call.name)}
        yield settings_of(framework, given, "keywords that are not known are passed" if call.open else None)
    if built:
        return
    if re.search(r"\b(GRPO|RLOO)Config\b", text) and re.search(r"\w*Parser\(", text):
        for command in shell.Reader(reader.docstring).read().commands:
            options = flags(command.words, name)
            if any(key in options for key in DECISIVE):
                for key, value in options.items():
                    options[key] = Value(value.value, f"{name}:{python.line_of(lines, '--' + key)}")
                options["_class"] = Value(None, "GRPOConfig" if "GRPOConfig" in text else "RLOOConfig")
                yield settings_of(framework, options)
                return
        yield settings_of(framework, {}, "the command line sets it, and the file shows no command")
        return
    texts = [found for call in reader.calls for found in call.texts]
    for framework in FRAMEWORKS.values():
        matching = [found for found in texts if re.search(framework.pattern("command"), found[0])]
        if matching and framework.name != "TRL":
            whole, last = max(matching, key=lambda found: len(found[0]))
            words = [(word, python.line_of(lines[:last], word)) for word in whole.split() if word[0] != MARK]
            given = hydra(words, name) if framework.table.get("overrides", False) else flags(words, name)
            if len(given) > 3:
                miles = framework.name == "slime" and "miles" in text
                yield settings_of(FRAMEWORKS["miles"] if miles else framework, given)
                return


BY_SUFFIX = {".toml": _toml, ".yaml": _yaml, ".yml": _yaml, ".py": _python}


def read_path(path: str, version: str | None) -> Iterator[tuple[str, list[Settings] | GspoError]]:
    """(name, settings or the error) of a file, of every file of a folder that is one, or of standard input for `-`.

    Errors: GspoError for a file that is named itself.
    """
    if path == "-":
        text = as_text(sys.stdin.buffer.read(MAX_BYTES + 1), "-")
        if len(text) > MAX_BYTES:
            raise GspoError("cannot read -", f"it has more than {MAX_BYTES:,} bytes", "pipe a configuration")
        yield "-", read(text, None, version)
        return
    place = Path(path)
    if not place.is_dir():
        yield path, read(read_text(place), place, version)
        return
    for file in files(place):
        try:
            yield str(file), read(read_text(file), file, version)
        except GspoError as error:
            yield str(file), error
