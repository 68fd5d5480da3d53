"""Errors in graders, their sandbox and the seeds."""

from mutant import Mutant

VERDICTS = "rewards/code/test_verdicts.py"
NO_REWARD = "tasks/test_code.py::test_a_sandbox_that_does_not_start_gives_no_reward"
SCRIPT = "rewards/code/script.py"
TESTS = "rewards/code/code_tests.py"

GRADERS = (
    Mutant(
        "M33 no tests is a pass", TESTS, "if not self.inputs:", "if False:",
        f"{VERDICTS}::test_without_usable_tests_nothing_passes", "tests0",
    ),
    Mutant(
        "M34 the shorter of two lists counts", TESTS, "if len(self.inputs) != len(self.outputs):", "if False:",
        f"{VERDICTS}::test_without_usable_tests_nothing_passes", "tests1",
    ),
    Mutant(
        "M35 the environment passed on", "sandbox/bubblewrap.py", '"--clearenv",',
        '*(part for k, v in os.environ.items() for part in ("--setenv", k, v)),',
        "sandbox/test_sandbox.py::test_a_program_in_bubblewrap_reaches_nothing",
    ),
    Mutant(
        "M36 the exit code ignored", SCRIPT, "    if done.code:", "    if False:",
        f"{VERDICTS}::test_what_the_script_grader_demands",
    ),
    Mutant(
        "M37 a failed grader scored as wrong", "tasks/code.py",
        "None if verdict.passed is None else float(verdict.passed)",
        "float(bool(verdict.passed))", NO_REWARD,
    ),
    Mutant(
        "M38 Python's hash in seeds", "seeds.py",
        'int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1', "hash(text) & (2**63 - 1)",
        "test_seeds.py::test_known_values",
    ),
    Mutant(
        "M39 the sample's index dropped", "rollout/collect.py", "derive_seed(run_seed, stream, step, p.id, i)",
        "derive_seed(run_seed, stream, step, p.id)",
        "reliability/test_same_seed.py::test_each_sample_has_a_seed_of_its_own_whatever_the_algorithm",
    ),
)  # fmt: skip
