"""Environments of the library `verifiers` (0.4, by Prime Intellect): one prompt, one response, and their own rewards.

A taskset does not say how many turns its tasks take. That is up to the agent, which here answers once, without tools.
What needs more (an `Env` or a harness of its own, tools, a sandbox, images) is refused by name.
"""

import inspect
import re
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from gspo_cli.config import TaskConfig
from gspo_cli.errors import GspoError
from gspo_cli.plugins import make_importable, users_code
from gspo_cli.rows import Located
from gspo_cli.task_config import environment_module
from gspo_cli.tasks.own_data import OwnData
from gspo_cli.tasks.rewards import Responses, call_function
from gspo_cli.types import Problem, Score


class Verifiers(OwnData):
    """An environment's tasks as problems, with its fields as columns. A share of them may be held out."""

    def __init__(self, config: TaskConfig) -> None:
        super().__init__(config)
        if config.environment is None:
            why = "task.environment names an installed package, or a module beside the recipe"
            raise GspoError("task verifiers without an environment", why, "--set task.environment=NAME")
        if isinstance(config.held_out, str):
            why = "environments have no common name for splits, so a share of the tasks is held out"
            raise GspoError(f"task.held_out = {config.held_out!r}", why, "--set task.held_out=0.1")
        self.name = f"environment {config.environment!r}"
        try:
            import verifiers.v1 as vf
        except ImportError as error:
            raise GspoError(
                "task verifiers needs the library verifiers 0.4",
                f"it is optional, and cannot be imported: {error}",
                "pip install 'gspo[verifiers]'",
            ) from error
        self.vf: Any = vf
        self.taskset = self._taskset(config.environment)

    def _taskset(self, name: str) -> Any:
        """The taskset, before it reads its data. Errors: GspoError if it is not there, does not take `task.args`, or
        needs several turns, tools or a judge."""
        vf = self.vf
        make_importable(name, environment_module(name).rstrip(":"))
        try:
            with users_code(f"{self.name} cannot be imported"):
                kind = vf.utils.loaders.taskset_class(name)
        except GspoError as error:
            found: Any = error.__cause__
            why = f"{found}" + (f" ({found.__cause__})" if found and found.__cause__ else "")
            hint = "install its package, with all that it needs, for verifiers 0.4 (older ones have load_environment)"
            raise GspoError(error.message, why, hint) from error
        settings = vf.taskset_config_type(name)
        try:
            made = settings(id=name, **self.config.args)
        except ValidationError as error:
            key, why = ".".join(map(str, error.errors()[0]["loc"])), error.errors()[0]["msg"]
            hint = f"its keys are {', '.join(settings.model_fields)}"
            raise GspoError(f"{self.name} does not take task.args.{key}", why, hint) from error
        with users_code(f"{self.name} failed"):
            taskset = kind(made)
        env, config = vf.environment_class(name), taskset.config
        tools = [*taskset.toolsets(config), *kind.task_type().toolsets(config.task)]
        self._refuse(
            (env is not vf.SingleAgentEnv, f"its own {env.__name__} leads the conversation: several turns, or agents"),
            (vf.default_harness_id(name) == name, "it brings an agent of its own (a harness), with several turns"),
            (bool(tools), f"it has tools: {', '.join(type(one).__name__ for one in tools)}"),
            (bool(config.task.judges), f"another model judges: {', '.join(one.id for one in config.task.judges)}"),
            (not taskset.bounded, "its tasks never end, and problems are a list that is the same in every run"),
        )
        return taskset

    def _refuse(self, *reasons: tuple[bool, str]) -> None:
        """Errors: GspoError for the first reason that holds."""
        for why in (why for holds, why in reasons if holds):
            hint = "choose one that is a prompt, a response and rewards that compute (docs/prompts.md)"
            raise GspoError(f"{self.name} is not for one response to one prompt", why, hint)

    @cached_property
    def tasks(self) -> list[Any]:
        """All tasks, in order. Errors: GspoError if the environment fails, or its hooks need the agent's machine."""
        with users_code(f"{self.name} failed in load()"):
            tasks = list(self.taskset)
        for task in tasks[:1]:
            kind, rewards = type(task), task.hooks("reward")
            needy = [one.__name__ for one in (*task.hooks("metric"), *rewards) if _needs_machine(one)]
            needy += [name for name in ("setup", "finalize") if getattr(kind, name) is not getattr(self.vf.Task, name)]
            intercepts = [one.__name__ for one in self.vf.utils.decorators.discover_decorated(task, "intercept")]
            self._refuse(
                (bool(needy), f"{kind.__name__} acts on the agent's machine, in {', '.join(needy)}"),
                (bool(intercepts), f"{kind.__name__} rewrites messages, in {', '.join(intercepts)}"),
                (not rewards, f"{kind.__name__} has no reward"),
            )
        return tasks

    def _source(self, path: str | None, split: str) -> tuple[str, list[Located]]:
        rows: list[Located] = []
        own = set(self.vf.TaskData.model_fields) - {"idx", "id", "name"}
        for number, task in enumerate(self.tasks, start=1):
            row = task.data.model_dump(mode="json", exclude=own)
            rows.append((f"{self.name}, task {number}", row | {"prompt": self._prompt(task.data)}))
        if not rows:
            raise GspoError(f"{self.name} has no tasks", "its load() gave none", "check task.args")
        return self.name, rows

    def _prompt(self, data: Any) -> str | list[dict[str, Any]]:
        """The prompt's messages, system prompt first; for `task.template`, the text of the prompt alone.

        Errors: GspoError for what is not text.
        """
        vf = self.vf
        given = [vf.UserMessage(content=data.prompt)] if isinstance(data.prompt, str) else data.prompt or []
        parts = [part for one in given if isinstance(one.content, list) for part in one.content]
        called = [one for one in given if one.role == "tool" or getattr(one, "tool_calls", None)]
        self._refuse(
            (not given, f"task {data.idx} has no prompt: another party opens the conversation"),
            (data.image is not None, f"task {data.idx} is solved in a container, {data.image}"),
            (bool(called), f"the prompt of task {data.idx} holds calls of tools"),
            (any(part.type != "text" for part in parts), f"the prompt of task {data.idx} holds images"),
        )
        if self.config.template is not None:
            return str(data.prompt_text)
        system = [] if data.system_prompt is None else [vf.SystemMessage(content=data.system_prompt)]
        return [{"role": one.role, "content": vf.types.content_text(one.content)} for one in (*system, *given)]

    def rewards(self, responses: Responses) -> list[Score]:
        """The environment's weighted sum for each response, all at once, with its parts."""
        return call_function(self._score, self.name, False, responses)

    def reward(self, problem: Problem, text: str) -> Score:
        return self.rewards([(problem, text)])[0]

    async def _score(self, problem: Problem, text: str) -> Score:
        task = self.tasks[problem.columns["idx"]]
        trace = self._trace(task, problem, text)
        try:
            await task.score(trace)
        except self.vf.TaskError as error:
            raise error.__cause__ or error from None  # what the environment's own code raised
        parts = [(re.sub(r"[^A-Za-z0-9._-]", "_", name), reward.score) for name, reward in trace.rewards.items()]
        return Score(trace.reward, "environment", tuple(parts) if len(parts) > 1 else ())

    def _trace(self, task: Any, problem: Problem, text: str) -> Any:
        """The record of one turn, which rewards read."""
        vf = self.vf
        prompt = problem.messages or [{"role": "user", "content": problem.prompt}]
        messages = [*map(dict, prompt), {"role": "assistant", "content": str(text)}]
        nodes = [vf.MessageNode(parent=i - 1 if i else None, message=one) for i, one in enumerate(messages)]
        nodes[-1].sampled = True
        # the prompt's tokens are not known here; they are the same for all its responses
        usage = vf.Usage(prompt_tokens=0, completion_tokens=getattr(text, "num_tokens", 0))
        finish = "length" if getattr(text, "finish", "stop") == "length" else "stop"
        return vf.Trace(
            task=vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
            agent=vf.AgentInfo(config=vf.AgentConfig()),
            state=vf.state.state_cls(type(task))(),
            nodes=nodes,
            calls=[vf.ModelCall(node=len(nodes) - 1, finish_reason=finish, usage=usage)],
            is_completed=True,
            ok=True,
            stop_condition="agent_completed",
        )


def _needs_machine(function: Any) -> bool:
    """Whether a reward or metric cannot do without the agent's machine; `Task.score` would leave it out silently."""
    parameter = inspect.signature(function).parameters.get("runtime")
    return parameter is not None and parameter.default is inspect.Parameter.empty
