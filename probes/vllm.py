"""The `vllm` backend: offline batches in vLLM, on the prompt ids and pixels that transformers would read.

    vlm = load_engine("Qwen/Qwen3-VL-8B-Instruct")
    vlm.answer([pixels], ["What color is the kite?\n(A) red\n(B) blue"], Settings(), None)

The prompt is made by `probes.encoding`, with one id for each image; vLLM widens it to the image's tokens.  What it read
is compared with ours id by id, so that another resize of the image, which changes their number, cannot go unseen.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from PIL import Image

from probes.answering import check_thinking, room
from probes.encoding import Prompter, load_prompter
from probes.layout import IMAGE, Prompt
from probes.loading import choose_dtype
from rekey.errors import InputError
from rekey.evaluate import Failure, Settings
from rekey.records import Generation

WITH_WEIGHTS = ("tiny:", "control:")
# vLLM knows its images by another name, and runs code that is shipped with the checkpoint to prepare them.
NOT_HERE = ("kimi_k25",)


def load_engine(name: str, dtype: str = "auto", min_pixels: int | None = None, max_pixels: int | None = None,
                revision: str | None = None) -> VllmVLM:
    """A vLLM engine for a model of the probe engine's families."""
    if find_spec("vllm") is None:
        raise InputError("--backend vllm: vLLM is not installed here; pip install -e '.[vllm]' on a Linux machine with "
                         "a GPU, or use --backend hf")
    if name.startswith(WITH_WEIGHTS):
        raise InputError(f"--backend vllm: {name} has no folder that vLLM can load; write one with `rekey controls "
                         "export` (controls) and give it, or use --backend hf")
    prompter = load_prompter(name, min_pixels, max_pixels, revision)
    if prompter.family.name in NOT_HERE:
        raise InputError(f"--backend vllm: {name} is of the family {prompter.family.title}, whose images vLLM does not "
                         "prepare as transformers does; use --backend hf, or a vLLM server with --backend openai")
    import torch
    import vllm
    limits = {} if prompter.limits is None else {"size": {"shortest_edge": prompter.limits.min_pixels,
                                                           "longest_edge": prompter.limits.max_pixels}}
    # Its own "auto" would make half precision of weights that are stored in float32.
    kind = str(choose_dtype(dtype, name, torch.cuda.is_available())).removeprefix("torch.")
    engine = vllm.LLM(model=name, revision=revision, dtype=kind, trust_remote_code=False,
                      limit_mm_per_prompt={"image": 1, "video": 0}, mm_processor_kwargs=limits)
    return VllmVLM(name, engine, prompter)


class VllmVLM:
    """A vLLM engine behind the `VLM` protocol."""

    def __init__(self, name: str, engine: Any, prompter: Prompter):
        self.name, self.engine, self.prompter = name, engine, prompter
        self.max_tokens = engine.llm_engine.model_config.max_model_len

    def describe(self) -> dict[str, Any]:
        import vllm
        limits = self.prompter.limits
        return {"name": self.name, "engine": f"vllm {vllm.__version__}", "max_model_len": self.max_tokens,
                "dtype": str(self.engine.llm_engine.model_config.dtype).removeprefix("torch."),
                "min_pixels": limits and limits.min_pixels, "max_pixels": limits and limits.max_pixels}

    def answer(self, images: Sequence[np.ndarray], texts: Sequence[str], settings: Settings,
               seeds: Sequence[int] | None) -> list[Generation | Failure]:
        check_thinking(self.prompter.processor, settings.thinking)
        found: dict[int, Generation | Failure] = {}
        prompts: dict[int, Prompt] = {}
        for n, (image, text) in enumerate(zip(images, texts)):
            try:
                prompts[n] = self._prompt(image, text, settings)
            except InputError as error:         # one of them would fail the whole call
                found[n] = Failure(str(error))
        if prompts:
            found |= self._generate(prompts, images, settings, seeds)
        return [found[n] for n in range(len(images))]

    def _prompt(self, image: np.ndarray, text: str, settings: Settings) -> Prompt:
        prompt = self.prompter.prompt(image, text, thinking=settings.thinking)
        room(len(prompt), settings.max_new_tokens, self.max_tokens)
        return prompt

    def _generate(self, prompts: dict[int, Prompt], images: Sequence[np.ndarray], settings: Settings,
                  seeds: Sequence[int] | None) -> dict[int, Generation | Failure]:
        from vllm import SamplingParams
        began = time.perf_counter()
        inputs = [{"prompt_token_ids": one_id_per_image(prompt),
                   "multi_modal_data": {"image": Image.fromarray(images[n])}} for n, prompt in prompts.items()]
        params = [SamplingParams(temperature=settings.temperature, seed=None if seeds is None else seeds[n],
                                 max_tokens=room(len(prompt), settings.max_new_tokens, self.max_tokens))
                  for n, prompt in prompts.items()]
        outputs = self.engine.generate(inputs, params, use_tqdm=False)
        elapsed_s = time.perf_counter() - began
        return {n: self._read(prompt, output, elapsed_s, len(prompts))
                for (n, prompt), output in zip(prompts.items(), outputs, strict=True)}

    @staticmethod
    def _read(prompt: Prompt, output: Any, elapsed_s: float, batch_size: int) -> Generation | Failure:
        read = tuple(output.prompt_token_ids)
        if read != prompt.ids:
            return Failure(f"vLLM read {len(read)} prompt tokens, transformers reads {len(prompt)}: they resize the "
                           "image or widen it differently; compare their versions, or use --backend hf")
        said, image = output.outputs[0], prompt.images[0]
        return Generation(text=said.text, token_ids=tuple(said.token_ids), n_prompt_tokens=len(prompt),
                          n_image_tokens=prompt.n_image_tokens, image_sizes=(image.seen,), finish=said.finish_reason,
                          elapsed_s=elapsed_s, batch_size=batch_size, filled=image.share_filled)


def one_id_per_image(prompt: Prompt) -> list[int]:
    """The prompt's ids with each image's run of tokens as a single one."""
    ids = []
    before = None
    for token, code in zip(prompt.ids, prompt.codes):
        number = (code - IMAGE) // 2 if code >= IMAGE else None
        if number is None or number != before:
            ids.append(token)
        before = number
    return ids
