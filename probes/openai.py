"""The `openai` backend: any server that speaks the OpenAI chat protocol (vLLM, SGLang, transformers serve, an API).

    vlm = ServedVLM("Qwen3-VL-8B-Instruct", "http://localhost:8000/v1", processor="Qwen/Qwen3-VL-8B-Instruct")

Pictures are sent as PNG, so that the server decodes the pixels that we hash.  Connection errors, 429 and 5xx are tried
again with growing pauses; what still fails is that question's failure.  A key is read from OPENAI_API_KEY and is in no
file of ours.
"""

from __future__ import annotations

import base64
import io
import os
import threading
import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from rekey.errors import InputError, Interrupted
from rekey.evaluate import Failure, Settings
from rekey.records import Generation

if TYPE_CHECKING:
    from probes.encoding import Prompter

RETRIES = 5                     # pauses of 0.5, 1, 2, 4, 8 s, a little at random, or what the server asks for
TIMEOUT_S = 1800.0              # of one answer: 8192 tokens of a large model on a busy server
CONNECT_S = 30.0
LOST_IN_A_ROW = 8               # unanswered questions, one after the other, after which asking on is of no use
NO_KEY = "none"                 # local servers ask for none, the client for something


class ServedVLM:
    """A model behind a server.  processor: the model's own files, which tell what size and how many tokens it sees.

    Safe to use from several threads.
    """

    def __init__(self, name: str, base_url: str, processor: str | None = None, retries: int = RETRIES,
                 timeout_s: float = TIMEOUT_S):
        if find_spec("openai") is None:
            raise InputError("--backend openai: needs the package openai; pip install -e '.[openai]'")
        import openai
        self._errors = openai
        self.name, self.base_url = name, base_url
        self.prompter = _prompter(processor)
        self._lock, self._n_lost = threading.Lock(), 0
        self._key = os.environ.get("OPENAI_API_KEY") or NO_KEY
        self._client = openai.OpenAI(base_url=base_url, api_key=self._key, max_retries=retries,
                                     timeout=openai.Timeout(timeout_s, connect=CONNECT_S))
        self.served = self._check()

    def _check(self) -> list[str]:
        """Models that the server says it has; raises InputError where there is no server, or it refuses the key.

        Some servers load models that they do not list: whether this one is there, the first question tells.
        """
        try:
            names = [model.id for model in self._client.with_options(max_retries=1, timeout=30).models.list()]
        except self._errors.APIConnectionError as error:
            raise InputError(f"--base-url {self.base_url}: no server answers there ({error.__cause__ or error}); start "
                             "it, or give the right address, with /v1 at its end") from None
        except (self._errors.AuthenticationError, self._errors.PermissionDeniedError) as error:
            raise InputError(f"--base-url {self.base_url}: the server refuses the key ({self._line(error)}); set "
                             "OPENAI_API_KEY") from None
        except (self._errors.APIError, AttributeError, TypeError, ValueError):      # it does not list its models
            return []
        return names

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "base_url": self.base_url, "served": self.served[:20],
                "processor": self.prompter and type(self.prompter.processor).__name__}

    def answer(self, images: Sequence[np.ndarray], texts: Sequence[str], settings: Settings,
               seeds: Sequence[int] | None) -> list[Generation | Failure]:
        return [self._answer(image, text, settings, None if seeds is None else seeds[n])
                for n, (image, text) in enumerate(zip(images, texts))]

    def _answer(self, image: np.ndarray, text: str, settings: Settings, seed: int | None) -> Generation | Failure:
        errors, began = self._errors, time.perf_counter()
        extra = {} if settings.thinking is None else {
            "extra_body": {"chat_template_kwargs": {"enable_thinking": settings.thinking}}}
        if seed is not None:
            extra["seed"] = seed
        content = [{"type": "image_url", "image_url": {"url": _data_url(image)}}, {"type": "text", "text": text}]
        try:
            reply = self._client.chat.completions.create(
                model=self.name, messages=[{"role": "user", "content": content}], temperature=settings.temperature,
                max_tokens=settings.max_new_tokens, **extra)
        except (errors.AuthenticationError, errors.PermissionDeniedError) as error:
            raise InputError(f"{self.base_url}: the server refuses the key ({self._line(error)}); set "
                             "OPENAI_API_KEY") from None
        except errors.NotFoundError as error:
            raise InputError(f"{self.base_url}: has no model {self.name!r}, or does not end as it should, in /v1 "
                             f"({self._line(error)}); it has {', '.join(self.served) or 'not said which'}") from None
        except errors.APIError as error:
            status = getattr(error, "status_code", 0)
            lost = isinstance(error, errors.APIConnectionError) or status == 429 or status >= 500
            return self._failed(f"{type(error).__name__}: {self._line(error)}", lost)
        except ValueError as error:
            return self._failed(f"the server's reply is not JSON ({self._line(error)})", lost=True)
        if not _holds_answer(reply):
            return self._failed(f"the server's reply holds no answer ({self._line(reply)})", lost=True)
        with self._lock:
            self._n_lost = 0
        return self._generation(reply, image, text, settings, time.perf_counter() - began)

    def _failed(self, reason: str, lost: bool) -> Failure:
        """A failure of one question; of many in a row, the end of the run."""
        with self._lock:
            self._n_lost = self._n_lost + 1 if lost else 0
            if self._n_lost >= LOST_IN_A_ROW:
                raise Interrupted(f"{self.base_url} left {self._n_lost} questions in a row unanswered ({reason})")
        return Failure(reason)

    def _line(self, error: object) -> str:
        """The first line of an error, of bearable length and without the key, which some servers repeat."""
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return (line if self._key == NO_KEY else line.replace(self._key, "***"))[:200]

    def _generation(self, reply: Any, image: np.ndarray, text: str, settings: Settings, elapsed_s: float) -> Generation:
        choice, n_read = reply.choices[0], getattr(reply.usage, "prompt_tokens", None)
        message = choice.message
        seen, n_image, filled = self._seen(image, text, settings, n_read)
        more = message.model_extra or {}
        return Generation(text=_text(message.content) or message.refusal or "", token_ids=(), n_prompt_tokens=n_read,
                          n_image_tokens=n_image, image_sizes=seen, finish=choice.finish_reason or "stop",
                          elapsed_s=elapsed_s, filled=filled,
                          reasoning=more.get("reasoning_content") or more.get("reasoning"))

    def _seen(self, image: np.ndarray, text: str, settings: Settings,
              n_read: int | None) -> tuple[tuple[tuple[int, int], ...] | None, int | None, float]:
        """What the model saw, told by its own processor, and believed only where the server read as many tokens."""
        if self.prompter is None:
            return None, None, 1.0
        try:
            prompt = self.prompter.prompt(image, text, thinking=settings.thinking)
        except InputError:                              # the server has answered what our rules would refuse
            return None, None, 1.0
        if len(prompt) != n_read:
            return None, None, 1.0
        first = prompt.images[0]
        return (first.seen,), first.n_tokens, first.share_filled


def _prompter(name: str | None) -> Prompter | None:
    if name is None:
        return None
    from probes.encoding import load_prompter
    return load_prompter(name)


def _data_url(pixels: np.ndarray) -> str:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _holds_answer(reply: Any) -> bool:
    """Servers may send anything with status 200: the client does not check what it reads."""
    choices = getattr(reply, "choices", None)
    return isinstance(choices, list) and bool(choices) and hasattr(getattr(choices[0], "message", None), "content")


def _text(content: Any) -> str:
    """An answer as text; some servers give it in parts."""
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content if isinstance(part, dict))
    return content or ""
