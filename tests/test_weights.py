"""Weight files of a folder: what a loader would read, what is missing, what was cut short; told without loading."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file

from rekey.errors import InputError
from rekey.weights import check_whole, files_hash, folder_hash, n_bytes, size_text, weight_files

AGAIN = "download it again"


@pytest.fixture
def folder(tmp_path):
    """A model in three parts, as diffusers saves it."""
    names = [f"diffusion_pytorch_model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
    for n, name in enumerate(names):
        save_file({f"layer.{n}": np.full((n + 1, 1000), n, np.float32)}, tmp_path / name)
    (tmp_path / "diffusion_pytorch_model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": {f"layer.{n}": name for n, name in enumerate(names)}}))
    return tmp_path


def refusal(of, *arguments) -> str:
    with pytest.raises(InputError) as error:
        of(*arguments)
    line = str(error.value)
    assert "\n" not in line
    return line


def parts(folder):
    return sorted(folder.glob("*.safetensors"))


def test_the_parts_that_an_index_names_are_the_weight_files(folder):
    (folder / "left_over.safetensors").write_bytes(b"not of this model")
    files = weight_files(folder)
    assert files == tuple(path for path in parts(folder) if path.name != "left_over.safetensors")
    assert n_bytes(files) == sum(os.path.getsize(path) for path in files) > 6 * 4000
    check_whole(files)


@pytest.mark.parametrize("stem", ["model", "diffusion_pytorch_model"])
def test_a_single_file_is_the_weight_file(tmp_path, stem):
    save_file({"a": np.zeros(3, np.float32)}, tmp_path / f"{stem}.safetensors")
    assert weight_files(tmp_path) == (tmp_path / f"{stem}.safetensors",)


def test_of_a_single_file_and_parts_each_library_has_its_own_choice(folder):
    for stem in ("model", "diffusion_pytorch_model"):
        shutil.copy(parts(folder)[0], folder / f"{stem}.safetensors")
    index = folder / "diffusion_pytorch_model.safetensors.index.json"
    shutil.copy(index, folder / "model.safetensors.index.json")
    assert len(weight_files(folder, ("diffusion_pytorch_model",))) == 3
    assert weight_files(folder, ("model",)) == (folder / "model.safetensors",)


def test_a_stem_that_was_not_asked_for_does_not_count(folder):
    assert refusal(weight_files, folder, ("model",)).startswith("no model.safetensors and no index of parts")


@pytest.mark.parametrize("lost, counted", [((1,), "1 of 3"), ((0, 2), "2 of 3"), ((0, 1, 2), "3 of 3")])
def test_missing_parts_are_counted_and_named(folder, lost, counted):
    names = [path.name for path in parts(folder)]
    for number in lost:
        (folder / names[number]).unlink()
    assert refusal(weight_files, folder) == (
        f"{counted} weight files are missing ({', '.join(names[n] for n in lost)}); download them again")


def test_of_many_missing_parts_three_are_named(folder):
    index = {"weight_map": {f"layer.{n}": f"part-{n}.safetensors" for n in range(9)}}
    (folder / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(index))
    assert refusal(weight_files, folder) == ("9 of 9 weight files are missing (part-0.safetensors, part-1.safetensors, "
                                             "part-2.safetensors, ...); download them again")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 1}}', '{"weight_map": {"'])
def test_an_index_that_is_none_is_one_line(folder, text):
    name = "diffusion_pytorch_model.safetensors.index.json"
    (folder / name).write_text(text)
    assert refusal(weight_files, folder) == f"{name} is not an index of weight files (no weight_map); {AGAIN}"


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pt", "flux1-dev.safetensors"])
def test_other_files_are_named_and_not_read(tmp_path, name):
    (tmp_path / name).write_bytes(b"weights")
    assert refusal(weight_files, tmp_path) == (
        f"no model.safetensors or diffusion_pytorch_model.safetensors and no index of parts (found {name}); expected "
        "safetensors; download the model again, or convert it with save_pretrained")


def test_a_folder_without_weights_is_one_line(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert "(found no weights)" in refusal(weight_files, tmp_path)


@pytest.mark.parametrize("name", ["model.fp16.safetensors", "model.bf16-00001-of-00002.safetensors",
                                  "model-00001-of-00002.fp16.safetensors"])
def test_a_variant_is_not_read_and_said_to_be_one(tmp_path, name):
    (tmp_path / name).write_bytes(b"weights")
    assert refusal(weight_files, tmp_path, ("model",)) == (
        f"only files of a variant are there ({name}); expected model.safetensors, or the index of its parts; variants "
        "are not supported, download the files without one in their names")


def test_a_variant_beside_the_plain_file_is_passed_over(folder):
    shutil.copy(parts(folder)[0], folder / "diffusion_pytorch_model.fp16.safetensors")
    assert len(weight_files(folder)) == 3


def test_links_that_lead_nowhere_are_told_from_a_download_that_stopped(folder, tmp_path_factory):
    """A snapshot of the hub's cache that was copied without the blobs it links to."""
    copied = tmp_path_factory.mktemp("copy")
    for path in folder.iterdir():
        if path.suffix == ".json":
            shutil.copy(path, copied)
        else:
            (copied / path.name).symlink_to("../../blobs/" + path.name)
    assert refusal(weight_files, copied).endswith("copy the folder with  cp -rL , or download them again")
    (copied / "diffusion_pytorch_model.safetensors.index.json").unlink()
    assert refusal(weight_files, copied).startswith("the weights are links to files that are not there (")


# Whole or cut short


def cut(path, size: int):
    path.write_bytes(path.read_bytes()[:size])
    return path


@pytest.mark.parametrize("lost", [1, 100, 10_000])
def test_a_file_cut_short_by_any_length_is_noticed(folder, lost):
    path = parts(folder)[2]
    whole = path.stat().st_size
    line = refusal(check_whole, [*parts(folder)[:2], cut(path, whole - lost)])
    assert line.startswith(f"{path.name} is ") and line.endswith(f"; {AGAIN}")
    assert (f"{whole - lost:,} of {whole:,} bytes" if lost == 1 else " of 12.1 kB") in line


def test_what_is_there_and_what_ought_to_be_are_said_in_gigabytes(tmp_path):
    path = tmp_path / "x.safetensors"
    table = json.dumps({"a": {"dtype": "U8", "shape": [9_900_000_000], "data_offsets": [0, 9_900_000_000]}}).encode()
    with path.open("wb") as file:
        file.write(len(table).to_bytes(8, "little") + table)
        file.truncate(1_200_000_000)                            # a hole: takes no disk
    assert refusal(check_whole, [path]) == f"x.safetensors is 1.2 of 9.9 GB; {AGAIN}"


@pytest.mark.parametrize("size", [0, 5, 8, 40])
def test_a_file_cut_within_its_table_is_noticed(folder, size):
    path = cut(parts(folder)[0], size)
    assert refusal(check_whole, [path]) == (
        f"{path.name} is cut short, within its table of tensors ({size} bytes); {AGAIN}")


def test_a_file_with_more_than_its_tensors_is_noticed(folder):
    path = parts(folder)[0]
    path.write_bytes(path.read_bytes() + b"\0")
    assert "is longer than its table of tensors says" in refusal(check_whole, [path])


@pytest.mark.parametrize("content", [b"<!DOCTYPE html><html>Access denied</html>", b"PK\3\4" + bytes(60),
                                     (2).to_bytes(8, "little") + b"[]", (2).to_bytes(8, "little") + b"{,",
                                     (7).to_bytes(8, "little") + b'{"a":1}'])
def test_what_is_no_safetensors_file_is_said_to_be_none(tmp_path, content):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    assert refusal(check_whole, [path]) == f"model.safetensors is not a safetensors file; {AGAIN}"


def test_a_git_lfs_pointer_is_named(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9942981696\n")
    assert "is a Git LFS pointer, not the weights; run  git lfs pull  there" in refusal(check_whole, [path])


def test_every_file_that_is_not_whole_has_a_line(folder):
    for path in parts(folder)[:2]:
        cut(path, 60)
    with pytest.raises(InputError) as error:
        check_whole(parts(folder))
    assert [line.split()[0] for line in error.value.problems] == [path.name for path in parts(folder)[:2]]


def test_metadata_and_empty_models_are_whole(tmp_path):
    save_file({"a": np.zeros((0, 3), np.float32)}, tmp_path / "a.safetensors", metadata={"format": "pt"})
    save_file({}, tmp_path / "b.safetensors")
    check_whole(parts(tmp_path))


# Which state it is


def test_a_hash_changes_with_any_file_of_the_model_and_no_other(folder):
    before = folder_hash(folder)
    (folder / "training.log").write_text("loss 1.0")
    assert folder_hash(folder) == before and len(before) == 16
    (folder / "config.json").write_text("{}")
    assert folder_hash(folder) != before


def test_a_hash_of_named_files_tells_their_names_apart(folder):
    path = parts(folder)[0]
    assert files_hash([("vae/config.json", path)]) != files_hash([("transformer/config.json", path)])
    assert files_hash([(path.name, path) for path in sorted(folder.iterdir())]) == folder_hash(folder)


@pytest.mark.parametrize("size, text", [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (4_280_000_000, "4.3 GB"),
                                        (33_700_000_000, "33.7 GB"), (12_340_000, "12.3 MB")])
def test_sizes_read_as_hubs_count_them(size, text):
    assert size_text(size) == text
