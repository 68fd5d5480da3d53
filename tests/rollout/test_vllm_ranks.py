"""The real vLLM under several ranks, as a server that follows the trainer, and its own sender; and a run that is
killed and resumed (`pytest -m vllm`)."""

import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from program import GSPO, Gspo, ok, strict_lines, wait_until
from vllm_models import PROMPTS, PYTHON, SEEDS, TOLERANCE, gaps, greedy, moved, saved

from gspo_cli.config import ModelConfig, RolloutConfig, TinyModel, VllmConfig
from gspo_cli.distributed import free_port
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.models.load import load_policy
from gspo_cli.rollout.engine import generate_checked
from gspo_cli.rollout.engines import open_engine
from gspo_cli.rollout.vllm import transfer
from gspo_cli.rollout.vllm.engine import HostedEngine
from gspo_cli.rollout.vllm.host import PROGRAMS
from gspo_cli.types import Sampling

pytestmark = pytest.mark.vllm
SERVE = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--dtype", "float32",
         "--generation-config", "vllm", "--logprobs-mode", "processed_logprobs", "--enable-scale-out",
         "--enforce-eager", "--skip-tokenizer-init", "--weight-transfer-config", '{"backend": "file"}',
         "--worker-extension-cls", "file_transfer.Known"]  # fmt: skip
ENV = {"PYTHONPATH": str(PROGRAMS), "VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1",
       "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}  # fmt: skip


@pytest.fixture(scope="module")
def moe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(TinyModel(head_dim=32), tmp_path_factory.mktemp("start"))


@contextmanager
def server(folder: Path, log: Path, *more: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A `vllm serve` on this machine's CPU, ended with all its workers."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as out:
        command = [*SERVE, "--model", str(folder), "--port", str(port), *more]
        running = subprocess.Popen(command, env=os.environ | ENV, stdout=out, stderr=out, start_new_session=True)
        try:
            for _ in range(300):
                assert running.poll() is None, log.read_text()[-2000:]
                try:
                    with urllib.request.urlopen(f"{url}/version", timeout=5):
                        break
                except OSError:
                    time.sleep(1)
            yield url, running
        finally:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()


@pytest.mark.parametrize("more", [(), ("--tensor-parallel-size", "2")])
def test_a_server_follows_the_trainer(moe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
                                      ) -> None:  # fmt: skip
    monkeypatch.setattr(transfer, "PAUSE_S", 0.05)
    model, tokenizer = load_policy(ModelConfig(path=str(moe)), moe)
    with server(moe, tmp_path / "log", *more) as (url, running):
        moved(model, seed=9)  # it has been started with other weights
        config = RolloutConfig(engine="vllm-server", deadline_s=120, vllm=VllmConfig(url=url))
        engine = open_engine(config, model, tokenizer, trains=True)
        assert isinstance(engine, HostedEngine) and engine.info.dtype == "float32"
        with closing(engine):
            for version in (1, 2, 3):
                report = engine.sync(moved(model, seed=version), version)
                assert report is not None and report.absdiff_max <= TOLERANCE
                tokens, log_probs = greedy(engine, model, PROMPTS, version)
                print(f"{more} {version} syncs: tokens equal {tokens}, log-probs within {log_probs:.1e}")
                assert tokens and log_probs <= TOLERANCE
                drawn = generate_checked(engine, PROMPTS, Sampling(1.0, 24), SEEDS, version)
                assert max(gaps(model, PROMPTS, list(drawn.values()), 1.0)) <= TOLERANCE
            os.killpg(running.pid, signal.SIGKILL)
            with pytest.raises(GspoError, match="did not answer") as caught:
                engine.sync(model, 4)
            assert caught.value.code is ExitCode.ENGINE


def test_a_broken_update_leaves_a_paused_server(moe: Path, tmp_path: Path) -> None:
    """Its model has no memory then: a request would end vLLM's engine, were it not paused."""
    model, tokenizer = load_policy(ModelConfig(path=str(moe)), moe)
    with server(moe, tmp_path / "log") as (url, running):
        config = RolloutConfig(engine="vllm-server", deadline_s=120, vllm=VllmConfig(url=url))
        engine = open_engine(config, model, tokenizer, trains=True)
        client = engine.host.client  # type: ignore[attr-defined]
        client.update_weights = lambda _: client.post("/update_weights", {"update_info": {"path": "/no/such"}})
        with pytest.raises(GspoError, match="did not answer") as caught:
            engine.sync(model, 1)
        print(caught.value.why)
        assert "/update_weights: 500" in caught.value.why
        assert transfer.ServerClient(url, 10).get("/is_paused") == {"is_paused": True}
        assert running.poll() is None


def test_ranks_with_engines_of_their_own_train_as_one_process(smoke: Path, tmp_path: Path) -> None:
    """Each rank an engine, and one engine spread over two ranks by vLLM's external launcher."""
    recipe = [smoke, "--set", "model.tiny.hidden=32", "--set", "model.tiny.head_dim=32", "--set", "eval.bench=[]",
              "--set", "rollout.engine=vllm", "--set", f"rollout.vllm.python={PYTHON}"]  # fmt: skip
    several = ["--launcher", "torchrun", "--nproc", "2"]
    spread = [*several, "--set", "rollout.vllm.tensor_parallel=2"]
    found = {}
    for name, more in (("one", []), ("own", several), ("spread", spread)):
        command = [GSPO, "train", *recipe, *more, "--out", tmp_path, "--name", name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stderr
        assert not list(Path("/dev/shm").glob("gspo-*-cpushm*"))
        lines = strict_lines(tmp_path / name / "gspo-s0" / "metrics.jsonl")
        metrics = [line["metrics"] for line in lines if line["kind"] == "rollout"]
        assert len(metrics) == 2 and all(m["mismatch/sync_absdiff_max"] <= TOLERANCE for m in metrics)
        found[name] = [(m["reward/mean"], m["length/mean"]) for m in metrics]
    assert found["one"] == found["own"] == found["spread"]


SENDER = """
import torch
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerWeightTransferEngine
from gspo_cli.rollout.vllm.transfer import ServerClient
from gspo_cli.rollout.vllm.weights import WeightStream

class Client(ServerClient):
    posts = []
    def post(self, path, body=None, within_s=None):
        self.posts.append((path, body))
        return {}

class Group:  # in NCCL's place
    sent = []
    def broadcast(self, tensor, src, stream):
        self.sent.append(tensor.dtype)

torch.cuda.current_stream = lambda: None
stream, client = WeightStream(), Client("http://nowhere", 1)
stream.dtype = torch.bfloat16
stream.begin(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)))
engine = NCCLTrainerWeightTransferEngine(client=client, source=stream, packed=False)
engine.model_update_group = Group()
for version in (1, 2):
    client.sent_version = str(version)
    engine.send_weights()
routes = ["/start_weight_update", "/update_weights", "/finish_weight_update"]
assert [p for p, _ in Client.posts] == routes * 2, Client.posts
assert [b["weight_version"] for p, b in Client.posts if p == routes[2]] == ["1", "2"]
info = Client.posts[1][1]["update_info"]
assert info["names"] == ["0.weight", "0.bias", "1.weight", "1.bias"] and info["shapes"][0] == [2, 3]
assert set(info["dtype_names"]) == {"bfloat16"} and Group.sent == [torch.bfloat16] * 8
"""


def test_vllms_own_sender_takes_the_stream_and_the_orders() -> None:
    """Its code with a stand-in for NCCL: `FileSender` of tests/fake_vllm.py imitates this."""
    root = Path(__file__).parents[2]
    env = os.environ | {"PYTHONPATH": str(root), "VLLM_NO_USAGE_STATS": "1"}
    done = subprocess.run([PYTHON, "-c", SENDER], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


STEPS = 4


def command(smoke: Path, out: Path) -> list[str | Path]:
    """Four rollout batches, each saved."""
    keys = {
        "rollout.engine": "vllm", "rollout.vllm.python": PYTHON, "rollout.kv_budget_gb": 0.25, "model.tiny.hidden": 32,
        "model.tiny.head_dim": 32, "eval.bench": "[]", "checkpoint.every": 1, "checkpoint.keep": STEPS + 1,
        "train.steps": STEPS,
    }  # fmt: skip
    return ["train", smoke, "--out", out, "--name", "x", *(a for k, v in keys.items() for a in ("--set", f"{k}={v}"))]


def killed_after(step: int, arguments: list[str | Path], run: Path) -> None:
    """SIGKILL to the trainer while it works on the rollout batch after this step's checkpoint."""
    with subprocess.Popen(
        [GSPO, *map(str, arguments)], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ) as process:
        wait_until((run / "checkpoints" / f"step-{step:06d}").exists, process, limit_s=600)
        os.kill(process.pid, signal.SIGKILL)


def test_a_killed_run_goes_on_with_another_engine(gspo_here: Gspo, smoke: Path, tmp_path: Path) -> None:
    whole, cut = (tmp_path / name / "x" / "gspo-s0" for name in ("whole", "cut"))
    ok(gspo_here(*command(smoke, tmp_path / "whole")))
    killed_after(2, command(smoke, tmp_path / "cut"), cut)
    done = gspo_here("train", "--resume", cut)
    assert done.code == 0 and "resuming after rollout batch" in done.err, done.err
    (start,) = [e for e in strict_lines(cut / "events.jsonl") if "resumed_from" in e]
    assert start["resumed_from"] >= 2
    files = [p.relative_to(whole) for kind in ("rollouts", "checkpoints") for p in (whole / kind).rglob("*.*")]
    assert len(files) > 4 * STEPS
    for name in [*files, Path("metrics.jsonl")]:  # tokens, log-probabilities and rewards, weights and moments, log
        assert (cut / name).read_bytes() == (whole / name).read_bytes(), name
