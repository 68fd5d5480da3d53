"""Keeps the experts that were chosen while sampling, for each response.

P = prompts, T = positions, L = MoE layers, K = experts per token
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gspo_cli.moe.tap import RouterTap

Routes = NDArray[np.uint8] | NDArray[np.int16]


class RouteRecorder:
    """Made after the prefill, told of each decoding pass, asked at the end."""

    def __init__(self, tap: RouterTap, prompts: list[tuple[int, ...]], owner: list[int], max_new_tokens: int) -> None:
        self.tap, self.prompts, self.owner = tap, prompts, owner
        width = max(map(len, prompts))
        chosen_NLK = self._chosen()
        self.prompt_PTLK = chosen_NLK.reshape(len(prompts), width, *chosen_NLK.shape[1:])
        self.response_BTLK = np.zeros((len(owner), max_new_tokens, *chosen_NLK.shape[1:]), chosen_NLK.dtype)

    def note(self, responses: NDArray[np.int64], rows: NDArray[np.int64], t: int) -> None:
        """After the pass over token `t` of these responses, each in one of the pass's rows."""
        self.response_BTLK[responses, t] = self._chosen()[rows]

    def of(self, response: int, num_tokens: int) -> Routes:
        """The choices for prompt and response but the last token, which was never forwarded: [T, L, K]."""
        prompt = self.owner[response]
        padded_TLK = self.prompt_PTLK[prompt]
        return np.concatenate(
            [padded_TLK[len(padded_TLK) - len(self.prompts[prompt]) :], self.response_BTLK[response, : num_tokens - 1]]
        )

    def _chosen(self) -> Routes:
        small: Routes = self.tap.natural_LRK.to(self.tap.routing.dtype).movedim(1, 0).cpu().numpy()
        return small
