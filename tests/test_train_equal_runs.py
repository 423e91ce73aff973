"""Equal recipes and seeds make equal runs, alone or side by side."""

from dataclasses import replace

import pytest
import torch

from ssgd.lab.train import compare

from .small_trainings import folder, run_of, small, trained


@pytest.mark.parametrize("method", ["both", "dropout"])
def test_two_runs_are_equal_byte_for_byte(quiet, tmp_path, method):
    recipe = small(method=method)
    first = trained(recipe, quiet)
    torch.rand(3)
    assert trained(recipe, replace(quiet, out=str(tmp_path / "again"))) == first
    assert trained(replace(recipe, seeds=(1,)), quiet, seed=1) != first


def test_a_seed_is_one_initialisation_and_one_data_order_for_all_methods():
    found = {0: set(), 1: set()}
    for method in ("base", "both", "split", "dropout", "swa"):
        for seed in found:
            run = run_of(small(method=method), seed)
            start, seen = run.net.head.weight.detach().clone(), []
            hook = run.net.register_forward_pre_hook(lambda _, inputs, seen=seen: seen.append(inputs[0]))
            for _ in range(4):
                run.step()
            hook.remove()
            run.finish_epoch()
            run.net.register_forward_pre_hook(lambda _, inputs, seen=seen: seen.append(inputs[0]))
            run.step()
            images = torch.cat(seen[1::2] if method == "both" else seen)  # which sees every batch twice
            found[seed].add((start.numpy().tobytes(), images.numpy().tobytes()))
    assert len(found[0]) == len(found[1]) == 1 and not found[0] & found[1]


def test_runs_side_by_side_are_what_they_are_alone(quiet, tmp_path):
    recipes = [small(name="plain", seeds=(0, 1)), small(name="noisy", method="both", seeds=(1, 0))]
    compare(recipes, quiet)
    alone = replace(quiet, out=str(tmp_path / "alone"))
    for recipe in reversed(recipes):
        for seed in (1, 0):
            expected = trained(replace(recipe, seeds=(seed,)), alone, seed)
            place = folder(quiet, recipe, seed)
            assert ((place / "weights.safetensors").read_bytes(), (place / "metrics.jsonl").read_bytes()) == expected
