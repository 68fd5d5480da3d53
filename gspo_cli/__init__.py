"""gspo: train language models with GRPO, GSPO and their relatives under equal conditions, and compare them."""

__version__ = "0.1.0"
