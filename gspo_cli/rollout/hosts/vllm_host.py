"""The host process of engine `vllm`: run by the interpreter of vLLM's own environment."""

from child import serve  # type: ignore[import-not-found]
from vllm_backend import Backend  # type: ignore[import-not-found]

if __name__ == "__main__":
    serve(lambda options: Backend(**options))
