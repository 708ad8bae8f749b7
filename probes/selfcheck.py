"""Does this model, on this machine and in this precision, do what the probes take for granted?

Every number of the probes rests on a few equalities: the recorded attention is the model's attention, recording
changes nothing, a continued state is what reading everything again would give, and putting the same image
back is no change (VisualSwap, Sec. 2 and 5.3).  Tests show them on tiny models; this shows them on the loaded
one, against transformers' own `forward`, `generate` and `get_rope_index`: one small drawn image and some two
hundred forward passes, most of them of one token.

    for check in checks(vlm):                                  # as they are made
        print(check.status, check.name, check.measured, check.limit)
    failed = [check for check in selfcheck(vlm) if check.failed]

Limits.  In float32 all ways agree to rounding, and tokens are equal.  In half precision they do not, by an
amount that depends on the model (depth, experts that tip): it is measured first, by exchanging one valid
attention kernel for another, and other ways may differ by four times that (`probes.subject`).  Tokens are then
shown and not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from probes.attention import recording_image_attention, rescore
from probes.layout import rope_positions
from probes.loading import choose_attention
from probes.prefix import State, extend, prefill, prefixes, with_logits
from probes.reference import attention_set_to, own_inputs
from probes.subject import LOGIT_LIMIT, N_NEW_TOKENS, QUESTION, Subject, apart
from probes.swap import swap
from probes.template import template_facts
from rekey.errors import InputError

if TYPE_CHECKING:
    from probes.vlm import LocalVLM

TRIGGER = " Wait, let me check the picture again."

# The same queries and keys: what is left is the rounding of a softmax in float32, 1e-7 to 3e-7 measured.
SOFTMAX_LIMIT = 1e-5
# Other orders of summation, float32: up to 2e-6 in 4 layers and 7e-6 in 24 measured, hence per 4 layers.
MASS_LIMIT = 1e-5
# Linear layers read a prompt in chunks and decode with a recurrence; what follows them differed by up to 4e-5,
# as it does when the embeddings are changed by one part in ten million.
HYBRID_MASS_LIMIT = 1e-4
# Eager rounds its weights to half precision: 1e-3 to 8e-3 of a head's mass measured in bfloat16, in the first
# layer that attends, whose inputs are the same bits under both kernels (6 families, 4 to 24 layers).
HALF_WEIGHTS_LIMIT = 0.02
# Masses by two orders of reading, bfloat16: the mean difference was up to 0.003 a layer on sharp tiny models.
HALF_MASS_LIMIT_PER_LAYER, HALF_MASS_LIMIT = 0.005, 0.1


@dataclass(frozen=True)
class Check:
    """One row of the table: what was compared, by how much it differs, and by how much it may.

    status: "ok"; "FAILED": the probes would give wrong numbers with this model here; "note": a fact to know,
    nothing is judged; "skipped": cannot be made here.  detail: a sentence on what that means, or why.
    """

    name: str
    measured: str
    limit: str
    status: str
    detail: str = ""

    @property
    def failed(self) -> bool:
        return self.status == "FAILED"


def selfcheck(vlm: LocalVLM, only: Container[str] | None = None) -> list[Check]:
    """The checks of the loaded model, which is left as it was found.

    only: names of checks to make; all by default.
    """
    return list(checks(vlm, only))


def checks(vlm: LocalVLM, only: Container[str] | None = None) -> Iterator[Check]:
    """The checks one by one, as they are made.  One that raises has failed, and the next is made all the same."""
    subject = Subject(vlm)
    regimes = [regime for regime in vlm.family.regimes if regime != "splice" or vlm.croppable]
    plan: list[tuple[str, Callable[[str, Subject], Check]]] = [
        ("rounding of this model", _rounding),
        ("prompt ids = the processor's", _same_ids),
        ("positions = the model's own", _same_positions),
        ("decoding = the model's generate", _same_as_generate),
        ("tap = softmax of the kernel's q, k", _tap_against_softmax),
        ("tap = eager attention weights", _tap_against_eager),
        ("rescoring = tap while decoding", _rescoring_against_decoding),
        ("recording changes nothing", _recording_changes_nothing),
        ("sdpa = flash_attention_2", _kernels_agree),
        ("fork = reading all again", _fork_against_reading_again),
        ("another prompt leaves no trace", _stale_state),
        *((f"same image back, {regime}", partial(_null_swap, regime=regime)) for regime in regimes),
        ("another image shows", partial(_other_image, regimes=regimes)),
        ("padded batch of 3 = one by one", _batch_against_single),
    ]
    for name, measure in plan:
        if only is None or name in only:
            try:
                yield measure(name, subject)
            except Exception as error:      # whatever it is, the probes cannot do this with this model
                yield Check(name, "an error", "-", "FAILED", _first_line(error))
    # Prompts are built by ids, so nothing the template does to reasoning is a fault here; but it has to be known.
    for fact in template_facts(vlm.processor):
        name = f"template: {fact.name}"
        if only is None or name in only:
            yield Check(name, fact.found, "-", "note", fact.meaning)


def _first_line(error: Exception) -> str:
    line = (str(error).strip().splitlines() or [""])[0]
    return line if isinstance(error, InputError) else f"{type(error).__name__}: {line}"


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.1e}"


def _judged(name: str, value: float, limit: float, *, tokens: tuple[int, int] | None = None,
            need_tokens: bool = False, detail: str = "") -> Check:
    """ok where `value` is within `limit` (nan is not) and, if needed, all `tokens` (equal, of) are equal."""
    measured, allowed = _number(value), _number(limit)
    good = value <= limit
    if tokens is not None:
        measured += f", tokens {tokens[0]}/{tokens[1]}"
        if need_tokens:
            allowed += f", tokens {tokens[1]}/{tokens[1]}"
            good = good and tokens[0] == tokens[1]
    return Check(name, measured, allowed, "ok" if good else "FAILED", detail)


def _judged_masses(name: str, subject: Subject, masses: np.ndarray, reference: np.ndarray,
                   limit: float = MASS_LIMIT) -> Check:
    """Masses (L, H, T) by two orders of reading: every one in float32, their mean in half precision."""
    differences = np.abs(masses - reference)
    n_layers = subject.vlm.model.config.get_text_config().num_hidden_layers
    if subject.exact:
        return _judged(name, float(differences.max()), limit * max(1, n_layers / 4))
    return _judged(name, float(differences.mean()), min(HALF_MASS_LIMIT, HALF_MASS_LIMIT_PER_LAYER * n_layers),
                   detail=f"Mean over layers, heads and steps; the largest is {_number(differences.max())}.")


def _judged_bits(name: str, change: float, alone: Callable[[], float], tokens: tuple[int, int] | None = None) -> Check:
    """ok where nothing changed at all; alone: how much two plain runs differ, where that is the yardstick."""
    if change > 0 and change <= 2 * (noise := alone()):
        # Some kernels (experts summed by atomics) give other bits at every run.
        return Check(name, _number(change), "-", "note",
                     f"Two runs of the same differ by {noise:.1e}: this model's kernels do not repeat their bits here.")
    return _judged(name, change, 0.0, tokens=tokens, need_tokens=True)


def _judged_texts(name: str, subject: Subject, ours: Sequence[tuple[Sequence[int], torch.Tensor]],
                  theirs: Sequence[tuple[Sequence[int], torch.Tensor]]) -> Check:
    """Pairs of decoded texts, each with the logits (steps, vocabulary) that its tokens were chosen from.

    Where two texts part, both still chose after the same text: the logits are compared up to there.
    """
    n_equal = [_n_equal(ids, others) for (ids, _), (others, _) in zip(ours, theirs)]
    rows = [min(n + 1, len(logits), len(others)) for n, (_, logits), (_, others) in zip(n_equal, ours, theirs)]
    found = torch.cat([logits[:n].cpu() for n, (_, logits) in zip(rows, ours)])
    expected = torch.cat([logits[:n].cpu() for n, (_, logits) in zip(rows, theirs)])
    n_tokens = sum(max(len(ids), len(others)) for (ids, _), (others, _) in zip(ours, theirs))
    return _judged(name, apart(found, expected), subject.logit_limit, tokens=(sum(n_equal), n_tokens),
                   need_tokens=subject.exact)


def _n_equal(ids: Sequence[int], others: Sequence[int]) -> int:
    """Tokens before the first that differs: after it the texts are different texts."""
    differ = (n for n, (token, other) in enumerate(zip(ids, others)) if token != other)
    return next(differ, min(len(ids), len(others)))


def _rounding(name: str, subject: Subject) -> Check:
    return Check(name, _number(subject.rounding), "-", "note",
                 f"Logit differences are shares of the logits' spread; {subject.vlm.attention} against eager gives "
                 f"this one, which is rounding alone. {subject.limit_rule}.")


def _same_ids(name: str, subject: Subject) -> Check:
    prompt, own = subject.two_images()
    ids = own["input_ids"][0].tolist()
    n_equal = _n_equal(prompt.ids, ids)
    same_pixels = [list(image.grid) for image in prompt.images] == own["image_grid_thw"].tolist() and torch.equal(
        torch.cat([image.pixels for image in prompt.images]).to(own["pixel_values"]), own["pixel_values"])
    good = n_equal == len(ids) == len(prompt) and same_pixels
    return Check(name, f"{n_equal}/{len(ids)} ids", f"{len(ids)}/{len(ids)} ids", "ok" if good else "FAILED",
                 "" if same_pixels else "The images' pixels or grids differ.")


def _same_positions(name: str, subject: Subject) -> Check:
    if subject.vlm.family.positions == "1d":
        return Check(name, "-", "-", "skipped", f"{subject.vlm.family.title} numbers its tokens, image or not.")
    prompt, own = subject.two_images()
    theirs, delta = subject.vlm.model.model.get_rope_index(
        own["input_ids"], own["mm_token_type_ids"], image_grid_thw=own["image_grid_thw"],
        attention_mask=own["attention_mask"])
    ours, following = rope_positions(prompt.codes, prompt.images, "mrope")
    n_tokens, next_position = len(prompt), len(prompt) + int(delta)
    n_equal = int((torch.from_numpy(ours) == theirs[:, 0].cpu()).all(0).sum())
    good = n_equal == n_tokens and following == next_position
    return Check(name, f"{n_equal}/{n_tokens} tokens", f"{n_tokens}/{n_tokens} tokens", "ok" if good else "FAILED",
                 "" if good else f"The next token is put at {following}, by get_rope_index at {next_position}.")


def _same_as_generate(name: str, subject: Subject) -> Check:
    vlm = subject.vlm
    own = vlm.model.generate(
        **own_inputs(vlm, [subject.pixels], QUESTION), max_new_tokens=N_NEW_TOKENS, do_sample=False, num_beams=1,
        # A checkpoint's own sampling settings would be warned about, and its penalty would be applied.
        temperature=1.0, top_p=1.0, top_k=50, repetition_penalty=1.0,
        suppress_tokens=vlm.never_generated.tolist(), pad_token_id=vlm.pad_token_id,
        return_dict_in_generate=True, output_logits=True)
    theirs = own.sequences[0, len(subject.prompt):].tolist()
    ours, logits = subject.decoded_with_logits(prefill(vlm, [subject.prompt]), stop_ids=None)
    return _judged_texts(name, subject, [(ours[0], logits[0])], [(theirs, torch.cat(own.logits).float())])


def _tap_against_softmax(name: str, subject: Subject) -> Check:
    errors = [subject.tap_error([subject.prompt]), subject.tap_error(subject.batch)]
    return _judged(name, float(np.max(errors)), SOFTMAX_LIMIT)


def _tap_against_eager(name: str, subject: Subject) -> Check:
    attention = rescore(subject.vlm, subject.prompt, subject.first)
    image_token_id, weights = subject.vlm.model.config.image_token_id, subject.eager[1]
    columns = [column for column, token in enumerate(subject.prompt.ids) if token == image_token_id]
    eager = np.stack([weights[layer][..., columns].sum(-1).numpy() for layer in attention.layers])
    if subject.exact:
        return _judged_masses(name, subject, attention.scores, eager)
    differences = np.abs(attention.scores - eager)
    return _judged(name, float(differences[0].max()), HALF_WEIGHTS_LIMIT, detail=(
        f"Layer {attention.layers[0]}, which reads the same under both. From there on eager is another model in "
        f"half precision (all layers: mean {differences.mean():.1e}, largest {differences.max():.1e}); "
        "nothing is generated under it."))


def _rescoring_against_decoding(name: str, subject: Subject) -> Check:
    with recording_image_attention(subject.vlm) as trace:
        said = subject.decoded([subject.prompt])[0]
    rescored = rescore(subject.vlm, subject.prompt, said)
    limit = HYBRID_MASS_LIMIT if subject.vlm.family.hybrid else MASS_LIMIT
    return _judged_masses(name, subject, rescored.scores, trace.scores, limit)


def _recording_changes_nothing(name: str, subject: Subject) -> Check:
    def once() -> tuple[tuple[int, ...], torch.Tensor]:
        ids, logits = subject.decoded_with_logits(prefill(subject.vlm, [subject.prompt]))
        return ids[0], logits

    said, logits = once()
    with recording_image_attention(subject.vlm):
        said_watched, watched = once()
    return _judged_bits(name, float((watched - logits).abs().max()), lambda: float((once()[1] - logits).abs().max()),
                        tokens=(_n_equal(said, said_watched), len(said)))


def _kernels_agree(name: str, subject: Subject) -> Check:
    vlm = subject.vlm
    other = "sdpa" if vlm.attention == "flash_attention_2" else "flash_attention_2"
    try:
        choose_attention("flash_attention_2", vlm.device, vlm.dtype)
        with attention_set_to(vlm, other):
            pass
    except (ValueError, ImportError) as error:      # InputError is a ValueError; transformers raises both
        reason = _first_line(error).removeprefix("attention flash_attention_2: ").partition("; install")[0]
        return Check(name, "-", "-", "skipped", f"Not here: {reason}.")
    said = [subject.first] * len(subject.batch)
    logits = subject.followed(prefill(vlm, subject.batch), said)
    with attention_set_to(vlm, other):
        others = subject.followed(prefill(vlm, subject.batch), said)
        n_equal = _n_equal(subject.decoded([subject.prompt])[0], subject.first)
        tap_error = subject.tap_error(subject.batch)
    if not tap_error <= SOFTMAX_LIMIT:
        return Check(name, f"tap off by {tap_error:.1e}", _number(SOFTMAX_LIMIT), "FAILED",
                     f"Under {other} the tap does not record what the kernel's queries and keys give.")
    return _judged(name, apart(others, logits), subject.logit_limit, tokens=(n_equal, N_NEW_TOKENS),
                   detail=f"A padded batch of {len(said)}; the tap is right under {other} too.")


def _early_state(subject: Subject) -> tuple[State, list[int], list[int]]:
    """A state cut three tokens into the answer, those tokens, and a phrase to go on with."""
    full, cut = subject.prompt.then(subject.said), len(subject.prompt) + 3
    early = prefixes(subject.vlm, full, [cut, len(full)])[0]
    return early, list(subject.said[:3]), subject.vlm.encode(TRIGGER)[:N_NEW_TOKENS]


def _continued(subject: Subject, state: State, ids: list[int]) -> torch.Tensor:
    """Logits (len(ids), vocabulary) after each of `ids`, fed to a state of one row that may have been cut."""
    return subject.followed(extend(subject.vlm, state, [ids[:1]]), [ids[1:]])[0]


def _fork_against_reading_again(name: str, subject: Subject) -> Check:
    early, said, trigger = _early_state(subject)
    extend(subject.vlm, early, [trigger[::-1]])         # one use of a state must leave nothing to the next
    again = subject.own_logits([*said, *trigger], len(trigger))
    return _judged(name, apart(_continued(subject, early, trigger), again), subject.logit_limit)


def _stale_state(name: str, subject: Subject) -> Check:
    early, _, trigger = _early_state(subject)
    subject.own_logits(subject.first, 1)        # or what the model ran last might be what disturbs it below
    before = _continued(subject, early, trigger)
    subject.disturb()
    after = _continued(subject, early, trigger)
    return _judged_bits(name, float((after - before).abs().max()),
                        lambda: float((_continued(subject, early, trigger) - after).abs().max()))


def _null_swap(name: str, subject: Subject, regime: str) -> Check:
    """The same image, encoded anew, in the middle of the answer: it goes on as it would have."""
    vlm, (said, chosen_from) = subject.vlm, subject.uninterrupted
    state = prefill(vlm, [subject.prompt.then(subject.first)])
    subject.disturb()
    state = with_logits(vlm, swap(vlm, state, [vlm.encode_image(subject.pixels)], regime))
    ids, logits = subject.decoded_with_logits(state)
    return _judged_texts(name, subject, [(ids[0], logits[0])], [(said[N_NEW_TOKENS:], chosen_from[N_NEW_TOKENS:])])


def _other_image(name: str, subject: Subject, regimes: Sequence[str]) -> Check:
    """A swap that does nothing would pass every comparison with the same image."""
    vlm = subject.vlm
    state, image = prefill(vlm, [subject.prompt.then(subject.first)]), vlm.encode_image(subject.pixels_b)
    moved = {regime: apart(with_logits(vlm, swap(vlm, state, [image], regime)).logits, state.logits)
             for regime in regimes}
    least = max(subject.rounding, LOGIT_LIMIT)
    good = all(change <= subject.logit_limit if regime == "none" else change > least
               for regime, change in moved.items())
    return Check(name, ", ".join(f"{regime} {change:.1g}" for regime, change in moved.items()),
                 f"> {least:.0e}, none 0", "ok" if good else "FAILED")


def _batch_against_single(name: str, subject: Subject) -> Check:
    together = zip(*subject.decoded_with_logits(prefill(subject.vlm, subject.batch)))
    alone = []
    for prompt in subject.batch:
        ids, logits = subject.decoded_with_logits(prefill(subject.vlm, [prompt]))
        alone.append((ids[0], logits[0]))
    return _judged_texts(name, subject, list(together), alone)
