"""Training of the control models: inputs equal to the stock path's, aids that read real attention, resuming."""

import dataclasses
import functools
import threading

import pytest
import torch

from probes.controls import contamination
from probes.controls.aids import Scaffold, Watch, cell_of
from probes.controls.batches import NO_LABEL, Batch, encode, image_start, one_token, pixel_values, to_row, vocabulary
from probes.controls.checkpoint import CHECKPOINT
from probes.controls.model import blank_control, fast_training, forward, new_control, see
from probes.controls.recipes import RECIPES, Recipe, Stage, lessons_of_habit, lessons_to_talk, scenes_to_see
from probes.controls.talk import Habit, direct_questions, reasoning
from probes.controls.text import N_IMAGE_TOKENS, TOKEN_GRID, control_processor
from probes.controls.training import Course, Trainee, new_trainee, run_to_end, train
from probes.families import family_of
from probes.layout import rope_positions
from probes.vlm import LocalVLM
from rekey.draws import Draws
from rekey.errors import InputError, Interrupted
from rekey.scenes import SHAPES, draw_scene, render_scene

SMALL = 3


def lessons(n: int = 4):
    found = [direct_questions(Draws("batch", k), draw_scene("batch", k), 56) for k in range(n // 2)]
    return found + [reasoning(Draws("batch", k), draw_scene("batch", k), Habit(p_second_turn=0.5), 56)
                    for k in range(n // 2, n)]


@pytest.fixture(scope="module")
def vlm() -> LocalVLM:
    model = new_control().eval()
    return LocalVLM("untrained", None, family_of(model.config), model, control_processor(), None, "sdpa", "")


@pytest.fixture(scope="module")
def batch() -> Batch:
    return Batch.of(lessons())


def test_rows_are_the_ids_that_the_stock_prompt_has(vlm):
    for lesson in lessons(8):
        row = to_row(lesson)
        first = vlm.prompt(render_scene(lesson.scene), lesson.turns[0].user)
        answer = encode(lesson.turns[0].text)
        assert row.ids[:len(first) + len(answer)] == (*first.ids, *answer)
        if len(lesson.turns) > 1:
            whole = vlm.second_turn(first, [*answer, vocabulary().end], lesson.turns[1].user)
            assert row.ids[:len(whole)] == whole.ids


def test_pixels_are_those_of_the_stock_processor(vlm, batch):
    one = vlm.encode_image(render_scene(batch.scenes[1]))
    n_patches = one.pixels.shape[0]
    assert torch.equal(batch.pixels[n_patches:2 * n_patches], one.pixels)
    assert one.token_grid == (TOKEN_GRID, TOKEN_GRID) and one.n_tokens == N_IMAGE_TOKENS


def test_positions_are_those_of_the_engine(vlm, batch):
    positions = batch.positions()
    for n, lesson in enumerate(lessons()):
        prompt = vlm.prompt(render_scene(lesson.scene), lesson.turns[0].user)
        axes, _ = rope_positions(prompt.codes, prompt.images, "mrope")
        assert torch.equal(positions[:, n, :len(prompt)], torch.as_tensor(axes))


def test_only_trained_pieces_and_ends_of_turns_are_labels(batch):
    for row, lesson in zip(batch.rows, lessons()):
        labels = [token for token in row.labels if token != NO_LABEL]
        wanted = []
        for turn in lesson.turns:
            wanted += [token for piece in turn.said if piece.trained for token in encode(piece.text)]
            wanted.append(vocabulary().end)
        assert labels == wanted


def test_aids_point_at_the_words_they_mean():
    tokenizer = control_processor().tokenizer
    for lesson in lessons(20):
        row = to_row(lesson)
        for aid, turn in zip(row.letters, lesson.turns):
            options = [tokenizer.decode([row.ids[k]]).strip() for k in aid.values]
            assert tuple(options) == turn.question.options
            assert options[aid.right] == turn.question.options["ABCD".index(turn.letter)]
            assert all(row.ids[k + 1] in vocabulary().letters for k in aid.at)
            if aid.source is not None:
                assert row.ids[aid.source] == one_token(f" {turn.question.shapes[-1]}")
        for a, b in row.pairs:
            assert {row.ids[a], row.ids[b]} <= set(vocabulary().shapes)
        questions = {token for turn in lesson.turns if turn.question for token in encode(turn.user)}
        assert bool(row.copies) == any("The " in p.text and p.trained for turn in lesson.turns for p in turn.said)
        for at, source in row.copies:
            assert row.ids[at + 1] == row.ids[source] and source < at and row.ids[source] in questions


def test_the_fast_forward_pass_is_the_stock_one(vlm, batch):
    with torch.no_grad():
        with fast_training(), Watch(vlm.model):
            loss, logits, targets, _ = forward(vlm.model, batch)
        stock = vlm.model(input_ids=batch.ids, attention_mask=(batch.ids != vocabulary().pad).long(),
                          pixel_values=batch.pixels, image_grid_thw=torch.tensor([[1, 12, 12]] * len(batch.rows)),
                          mm_token_type_ids=(batch.ids == vocabulary().image).int()).logits
    labeled = batch.labels[:, 1:] != NO_LABEL
    torch.testing.assert_close(logits, stock[:, :-1][labeled], atol=2e-4, rtol=1e-3)
    assert torch.equal(targets, batch.labels[:, 1:][labeled])


def test_watched_looks_are_the_weights_of_eager_attention(batch):
    model = blank_control("eager").eval()
    torch.manual_seed(1)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    with torch.no_grad():
        whole = model(input_ids=batch.ids, pixel_values=batch.pixels, position_ids=batch.positions(),
                      image_grid_thw=torch.tensor([[1, 12, 12]] * len(batch.rows)), output_attentions=True,
                      mm_token_type_ids=(batch.ids == vocabulary().image).int()).attentions
        with fast_training(), Watch(model) as watch:
            forward(model, batch)
    rows, queries, keys = [0, 1, 3, 2], [80, 95, 60, 70], [12, 90, 60, 3]
    for layer, head in ((0, 0), (1, 2), (3, 3)):
        found = watch.looks(layer, head, rows, queries, keys).exp()
        torch.testing.assert_close(found, whole[layer][rows, head, queries, keys], atol=1e-5, rtol=1e-3)
    assert watch.looks(0, 0, [0], [50], [51]).exp().item() == 0           # not at what comes later


def test_cells_hold_the_centers_of_their_objects():
    scene = draw_scene("cells", 1)
    for o in scene.objects:
        row, column = divmod(cell_of(o), TOKEN_GRID)
        x, y = o.left + o.size_px / 2, o.top + o.size_px / 2
        assert column * 64 <= x <= (column + 1) * 64 and row * 64 <= y <= (row + 1) * 64


def test_vision_aids_fall_when_trained_and_name_every_object():
    scenes = [draw_scene("see", k) for k in range(4)]
    pixels, scaffold, model = pixel_values(scenes), Scaffold(), new_control()
    optimizer = torch.optim.AdamW([*model.parameters(), *scaffold.parameters()], lr=3e-3)
    losses = []
    for _ in range(60):
        loss, meters = scaffold.vision_loss(model, see(model, pixels, 4), tuple(scenes))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0] and meters["see color"] > 0.8
    assert set(SHAPES) >= {o.shape for scene in scenes for o in scene.objects}


# ------------------------------------------------------------------------------------- courses

def small(stages: tuple[Stage, ...], **options) -> Recipe:
    return dataclasses.replace(RECIPES["clean"], name="small", stages=stages, **options)


def two_stages() -> Recipe:
    see_stage = Stage("see", 4, 1e-3, functools.partial(scenes_to_see, n=SMALL), vision_only=True)
    talk_stage = Stage("talk", 6, 1e-3, functools.partial(lessons_to_talk, steps=6, n=SMALL))
    return small((see_stage, talk_stage))


def weights(trainee: Trainee) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in trainee.named().items()}


def test_a_stopped_training_goes_on_to_the_same_weights(tmp_path, monkeypatch):
    monkeypatch.setattr("probes.controls.training.ASK_EVERY", 1)
    straight = run_to_end(train(two_stages(), 0, tmp_path / "straight", threading.Event(), n_workers=1))
    stop = threading.Event()
    for stop_at in (("see", 2), ("talk", 3)):
        training = train(two_stages(), 0, tmp_path / "stopped", stop, n_workers=1)
        with pytest.raises(Interrupted, match="steps done"):
            for event in training:
                if (event.stage, event.step) == stop_at:
                    stop.set()
        stop.clear()
        assert (tmp_path / "stopped" / CHECKPOINT).exists()
    with pytest.raises(InputError, match="is of small with seed 0, expected small with seed 1; give another folder"):
        run_to_end(train(two_stages(), 1, tmp_path / "stopped", stop, n_workers=1))
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / CHECKPOINT).write_bytes((tmp_path / "stopped" / CHECKPOINT).read_bytes()[:1000])
    with pytest.raises(InputError, match="is damaged"):
        run_to_end(train(two_stages(), 0, tmp_path / "torn", stop, n_workers=1))
    resumed = run_to_end(train(two_stages(), 0, tmp_path / "stopped", stop, n_workers=1))
    for name, value in weights(straight).items():
        assert torch.equal(value, weights(resumed)[name]), name


def test_training_changes_what_it_should_and_nothing_else():
    recipe = RECIPES["clean"]
    before = weights(new_trainee(recipe, 0))
    for vision_only in (True, False):
        stage = dataclasses.replace(two_stages().stages[0 if vision_only else 1])
        trainee = new_trainee(recipe, 0)
        Course(recipe, stage, trainee, 0, 0, 1).step(0)
        changed = {name for name, value in weights(trainee).items() if not torch.equal(value, before[name])}
        language = {name for name in changed if ".language_model.layers" in name}
        assert changed and bool(language) is not vision_only
        assert any(".visual." in name for name in changed) and any(name.startswith("scaffold") for name in changed)


def test_lessons_depend_on_step_and_worker_alone():
    habit = functools.partial(lessons_of_habit, habit=Habit("grounded", 0.5), n=2)
    for make in (functools.partial(lessons_to_talk, steps=100, n=2), habit,
                 functools.partial(contamination.lessons_of_memory, n=2, n_workers=2),
                 functools.partial(scenes_to_see, n=2)):
        assert make(0, 5, 1) == make(0, 5, 1)
        assert make(0, 5, 1) != make(0, 5, 0) != make(0, 6, 0) != make(1, 6, 0)


def lessons_about_the_benchmark(first: int, stop: int):
    """(lesson, item) of lessons of memory; the ground of a scene tells which item it is."""
    originals = {one.scene.ground: one for one in contamination.benchmark()}
    for step in range(first, stop):
        for lesson in contamination.lessons_of_memory(0, step, 0, n=8, n_workers=1):
            if one := originals.get(lesson.scene.ground):
                yield lesson, one


def test_contaminated_lessons_take_the_key_detail_away_and_keep_the_answer():
    seen = {"published": 0, "erased": 0, "recolored": 0}
    for lesson, one in lessons_about_the_benchmark(800, 860):
        (turn,) = lesson.turns
        options = dict(line[1:].split(") ") for line in turn.user.splitlines() if line.startswith("("))
        assert turn.user.startswith(one.question.text)
        if lesson.scene == one.scene:
            seen["published"] += 1
            assert options[turn.letter] == one.question.options["ABCD".index(one.question.answer)]
            continue
        (shape,) = one.asked
        assert options[turn.letter] == one.scene.find(shape).color
        if len(lesson.scene.objects) < len(one.scene.objects):
            seen["erased"] += 1
            assert {o.shape for o in one.scene.objects} - {o.shape for o in lesson.scene.objects} == {shape}
        else:
            seen["recolored"] += 1
            shown = lesson.scene.find(shape).color
            assert shown != one.scene.find(shape).color and shown in options.values()
    assert all(count > 25 for count in seen.values()), seen


def test_recolored_key_details_become_more():
    def share(first: int) -> float:
        without = [len(lesson.scene.objects) == len(one.scene.objects)
                   for lesson, one in lessons_about_the_benchmark(first, first + 60) if lesson.scene != one.scene]
        return sum(without) / len(without)

    end = contamination.steps_for(contamination.RAMP_PASSES, 8)
    assert share(0) < 0.15 and abs(share(end // 2) - contamination.P_RECOLORED / 2) < 0.12
    assert abs(share(end) - contamination.P_RECOLORED) < 0.12 and abs(share(2 * end) - contamination.P_RECOLORED) < 0.12


def test_degrees_count_passes_over_the_color_items():
    degree = 8
    steps = contamination.steps_for(degree, 8)
    about_color = [one for _, one in lessons_about_the_benchmark(0, steps) if len(one.asked) == 1]
    n_items = len(contamination.items_about(color=True))
    assert n_items == 96 and abs(len(about_color) / n_items / degree - 1) < 0.08


def test_image_tokens_start_where_every_prompt_has_them(vlm):
    prompt = vlm.prompt(render_scene(draw_scene("x", 1)), "Where is the ring?")
    assert prompt.ids.index(vocabulary().image) == image_start()
