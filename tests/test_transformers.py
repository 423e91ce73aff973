"""S-SGD in Hugging Face's Trainer is the loop of points, and nothing else of the Trainer changes."""

import importlib
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.optim import SGD
from torch.utils.data import Dataset

pytest.importorskip("transformers", reason="transformers is missing: pip install 'ssgd[transformers]'")

from accelerate import DistributedType
from transformers import (
    PhiConfig,
    PhiForCausalLM,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    get_scheduler,
)

from ssgd import SSGD
from ssgd.integrations import transformers as integration
from ssgd.integrations.transformers import SymmetricTrainer
from ssgd.methods.rwp import RWP
from ssgd.methods.sam import SAM

from .problems import same

STEPS = 4
WAYS = {"both": False, "split": True}


class Sentences(Dataset):
    """Token sequences, each with a different number of labels that count."""

    def __init__(self, size):
        self.tokens = torch.randint(17, (size, 8), generator=torch.Generator().manual_seed(3))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, i):
        labels = self.tokens[i].clone()
        labels[: i % 6] = -100
        return {"input_ids": self.tokens[i], "labels": labels}


def small_model(dropout=0.0):
    torch.manual_seed(0)
    sizes = {"vocab_size": 17, "hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 8}
    depth = {"num_hidden_layers": 1, "num_attention_heads": 2}
    dropouts = {"resid_pdrop": dropout, "embd_pdrop": dropout}
    return PhiForCausalLM(PhiConfig(**sizes, **depth, **dropouts, bos_token_id=0, eos_token_id=0))


def arguments(folder, **options):
    usual = {
        "max_steps": STEPS,
        "per_device_train_batch_size": 4,
        "learning_rate": 0.01,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "seed": 7,
    }
    return Seq2SeqTrainingArguments(str(folder), **{**usual, **options})


def trainer_of(folder, kind=SymmetricTrainer, *, given=None, dropout=0.0, size=32, settings=None, **options):
    """A trainer with a model of its own; ``given`` makes the optimizer to hand over."""
    model, settings = small_model(dropout), dict(settings or {})
    if given is not None:
        settings["optimizers"] = (given(model), None)
    return kind(model=model, args=arguments(folder, **options), train_dataset=Sentences(size), **settings)


def trained(folder, kind=SymmetricTrainer, resume=None, **options):
    trainer = trainer_of(folder, kind, **options)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def logged(trainer, key):
    return [row[key] for row in trainer.state.log_history if key in row]


# --- the same training ------------------------------------------------------------------------------------------------


def by_hand(folder, given, split, accumulated=1, clip=1.0, bf16=False):
    """The loop of the README over the Trainer's own batches: the model, and the gradients' norms."""
    plain = trainer_of(folder, Trainer)
    loader = plain.get_train_dataloader()
    loader.set_epoch(0)
    model = plain.model.train()
    opt = given(model) if given else SSGD(plain.create_optimizer(), 0.3, seed=7, distribution="sign")
    schedule = get_scheduler("linear", opt, 0, STEPS)
    batches, norms = iter(loader), []

    def backward(part, share=1.0):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = model(**part, num_items_in_batch=items * share).loss
        loss.backward()

    for _ in range(STEPS):
        step = [next(batches) for _ in range(accumulated)]
        items = sum(batch["labels"][:, 1:].ne(-100).sum() for batch in step)
        for batch in step:
            if split:
                for point, half in opt.split(batch):
                    with point:
                        backward(half, 0.5)
            else:
                for point in opt.points():
                    with point:
                        backward(batch)
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip).item())
        opt.step()
        schedule.step()
        opt.zero_grad()
    return model, norms


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "options", [{}, {"gradient_accumulation_steps": 2}, {"max_grad_norm": 0.1}, {"bf16": True}], ids=str
)
def test_is_the_loop_of_points_bitwise(tmp_path, way, options):
    found = trained(tmp_path, settings={"noise": 0.3, "distribution": "sign", "split": WAYS[way]}, **options)
    model, norms = by_hand(
        tmp_path,
        None,
        WAYS[way],
        options.get("gradient_accumulation_steps", 1),
        options.get("max_grad_norm", 1.0),
        options.get("bf16", False),
    )
    assert same(found.model, model)
    assert logged(found, "grad_norm") == norms  # of the mean gradient, before clipping


@pytest.mark.parametrize(
    "given",
    [
        lambda model: SSGD(SGD(model.parameters(), 0.1, momentum=0.9), 0.3, pairs=2, model=model, rng="same", seed=5),
        lambda model: SAM(SGD(model.parameters(), 0.1, momentum=0.9), 0.1),
    ],
    ids=["SSGD", "SAM"],
)
def test_an_optimizer_given_keeps_its_options(tmp_path, given):
    found = trained(tmp_path, given=given)
    assert same(found.model, by_hand(tmp_path, given, split=False)[0])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 3, "bf16": True}], ids=str)
def test_level_zero_is_the_plain_trainer_bitwise(tmp_path, way, options):
    plain = trained(tmp_path, Trainer, dropout=0.2, **options)
    zero = trained(tmp_path, settings={"noise": 0.0, "split": WAYS[way]}, dropout=0.2, **options)
    assert same(zero.model, plain.model)
    assert logged(zero, "loss") == logged(plain, "loss") and not logged(zero, "loss_plus")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("counted", [True, False], ids=["items", "means"])
def test_every_item_counts_as_in_plain_training(tmp_path, way, counted, monkeypatch):
    """With noise too small to move a weight; halves of 3 and 2 samples, and an accumulation cut short."""
    monkeypatch.setattr(PhiForCausalLM, "accepts_loss_kwargs", counted, raising=False)
    options = {"per_device_train_batch_size": 5, "gradient_accumulation_steps": 2, "size": 25, "max_steps": 5}
    if not counted:  # a mean of means is that of all only where each sample has as many items
        monkeypatch.setattr(
            Sentences, "__getitem__", lambda self, i: dict.fromkeys(("input_ids", "labels"), self.tokens[i])
        )
    sgd = lambda model: SGD(model.parameters(), 0.5)  # noqa: E731
    plain = trained(tmp_path, Trainer, given=sgd, **options)
    found = trained(tmp_path, given=sgd, settings={"noise": 1e-30, "split": WAYS[way]}, **options)
    for p, q in zip(found.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)
    assert logged(found, "loss") == pytest.approx(logged(plain, "loss"), rel=1e-5)


def test_a_halfs_share_in_the_mean_need_not_be_its_share_of_the_samples(tmp_path):
    """RWP's λ: the clean half counts by 1 − λ, the noisy one by λ."""

    def gradient(share):
        rwp = lambda model: RWP(SGD(model.parameters(), 0.1), 1e-12, share=share, seed=0)  # noqa: E731
        trainer = trainer_of(tmp_path, given=rwp, settings={"split": True})
        batch = next(iter(trainer.get_train_dataloader()))
        trainer.training_step(trainer.model, batch, batch["labels"][:, 1:].ne(-100).sum())
        return torch.cat([p.grad.flatten() for p in trainer.model.parameters()])

    low, mid, high = (gradient(share) for share in (0.1, 0.5, 0.9))
    torch.testing.assert_close((low + high) / 2, mid, rtol=1e-3, atol=1e-5)
    assert (high - low).norm() > 0.5 * mid.norm()


@pytest.mark.parametrize("way", WAYS)
def test_learns(tmp_path, way):
    found = trained(tmp_path, settings={"noise": 0.2, "split": WAYS[way]}, size=8, max_steps=30)
    assert logged(found, "loss")[-1] < 0.7 * logged(found, "loss")[0]


# --- what belongs to training -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_resume_is_exact(tmp_path, way):
    options = {
        "dropout": 0.2,
        "settings": {"noise": 0.3, "split": WAYS[way]},
        "gradient_accumulation_steps": 2,
        "save_strategy": "steps",
        "save_steps": 2,
    }
    whole = trained(tmp_path, **options)
    resumed = trained(tmp_path, resume=str(tmp_path / "checkpoint-2"), **options)
    assert same(resumed.model, whole.model)
    assert logged(resumed, "loss_plus") == logged(whole, "loss_plus")
    assert [group["noise_step"] for group in resumed.optimizer.param_groups] == [STEPS, STEPS]


class TwoPlaces(SGD):
    """As schedule-free optimizers: the weights are elsewhere where the model is judged."""

    place = 0

    def train(self):
        self._go(0)

    def eval(self):
        self._go(1)

    @torch.no_grad()
    def _go(self, place):
        for p in self.param_groups[0]["params"] if place != self.place else []:
            p.add_(place - self.place)
        self.place = place


def test_a_base_that_is_judged_elsewhere(tmp_path):
    """Evaluation moves the weights, and they are back before the first point, where the Trainer asks for it."""
    seen = []

    class Watched(SymmetricTrainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            seen.append((model.training, model.lm_head.weight.mean().item()))
            return super().compute_loss(model, inputs, *args, **kwargs)

    trainer = trainer_of(
        tmp_path,
        Watched,
        given=lambda model: SSGD(TwoPlaces(model.parameters(), 0.0), 0.1),
        settings={"eval_dataset": Sentences(4)},
        eval_strategy="steps",
        eval_steps=1,
        max_steps=2,
    )
    before = [p.clone() for p in trainer.model.parameters()]
    trainer.train()
    assert [(training, round(mean)) for training, mean in seen] == 2 * [(True, 0), (True, 0), (False, 1)]
    trainer.optimizer.train()
    torch.testing.assert_close(list(trainer.model.parameters()), before)


def test_both_losses_are_logged(tmp_path):
    found = trained(tmp_path, settings={"noise": 0.3}, logging_steps=2, gradient_accumulation_steps=2)
    each = trained(tmp_path, settings={"noise": 0.3}, logging_steps=1, gradient_accumulation_steps=2)
    plus, minus = logged(found, "loss_plus"), logged(found, "loss_minus")
    assert plus != minus and len(plus) == 2
    torch.testing.assert_close(
        [(a + b) / 2 for a, b in zip(plus, minus, strict=True)], logged(found, "loss"), rtol=1e-6, atol=0
    )
    first, second, third, fourth = logged(each, "loss_plus")
    torch.testing.assert_close(plus, [(first + second) / 2, (third + fourth) / 2])


def test_trains_twice(tmp_path):
    trainer = trained(tmp_path, settings={"noise": 0.3})
    trainer.train()
    assert isinstance(trainer.optimizer.optimizer, SSGD) and isinstance(
        trainer.optimizer.optimizer.base, torch.optim.AdamW
    )


def test_stands_before_another_trainer(tmp_path):
    class Both(SymmetricTrainer, Seq2SeqTrainer):
        pass

    found = trained(tmp_path, Both, settings={"noise": 0.3})
    assert same(found.model, trained(tmp_path, settings={"noise": 0.3}).model)


def test_the_example_runs():
    main = runpy.run_path(str(Path(__file__).parent.parent / "examples" / "transformers_text.py"))["main"]
    losses = main(["--steps", "2", "--split"])
    assert list(losses) == ["AdamW", "S-SGD"] and losses["AdamW"] != losses["S-SGD"]


# --- wrong combinations -----------------------------------------------------------------------------------------------


def ssgd(model):
    return SSGD(SGD(model.parameters(), 0.1), 0.3)


def test_a_plain_trainer_is_refused_with_the_remedy(tmp_path):
    with pytest.raises(RuntimeError, match=r"step\(\) without a new pass: .+ssgd\.integrations"):
        trained(tmp_path, Trainer, given=ssgd)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "S-SGD needs a level: give noise"),
        ({"given": ssgd, "settings": {"noise": 0.1}}, "leave out noise"),
        ({"given": ssgd, "settings": {"distribution": "sphere"}}, "leave out noise=... and distribution"),
        ({"given": lambda model: SAM(SGD(model.parameters(), 0.1)), "settings": {"split": True}}, "SAM has no split"),
        ({"settings": {"noise": -1.0}}, "a finite number of at least 0"),
        ({"settings": {"noise": 0.1, "distribution": "spheer"}}, "no distribution called 'spheer'"),
        ({"settings": {"noise": 0.1}, "optim": "lomo"}, "updates weights during backward"),
        ({"settings": {"noise": 0.1, "split": True}, "per_device_train_batch_size": 1}, "at least two samples"),
    ],
)
def test_wrong_arguments(tmp_path, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        trained(tmp_path, **options)


@pytest.mark.parametrize(
    ("kind", "remedy"), [(DistributedType.FSDP, "fsdp_version=2"), (DistributedType.DEEPSPEED, "use DDP or FSDP2")]
)
def test_weights_out_of_reach(tmp_path, kind, remedy):
    trainer = trainer_of(tmp_path, settings={"noise": 0.1})
    trainer.accelerator = SimpleNamespace(distributed_type=kind, is_fsdp2=False)
    with pytest.raises(ValueError, match=remedy):
        trainer.create_optimizer()


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"pip install 'ssgd\[transformers\]'"):
        importlib.reload(integration)


class Counting(Trainer):
    """As TRL's SFTTrainer, which counts the tokens it has seen where it computes the loss."""

    _total_train_tokens = 0

    def compute_loss(self, model, inputs, *args, **kwargs):
        self._total_train_tokens += inputs["input_ids"].numel()
        return super().compute_loss(model, inputs, *args, **kwargs)


@pytest.mark.parametrize("way", WAYS)
def test_a_trainer_that_counts_tokens_counts_each_once(tmp_path, way):
    kind = type("Tuner", (SymmetricTrainer, Counting), {})
    tuner = trained(tmp_path, kind, settings={"noise": 0.3, "split": WAYS[way]})
    assert tuner._total_train_tokens == STEPS * 4 * 8
