"""S-SGD in Lightning: the Trainer's steps are those of a loop written by hand, bit for bit, or it says why not."""

import importlib.util
import logging
import sys
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

from ssgd import SSGD
from ssgd.lab.data import digit_images
from ssgd.methods.sam import SAM

from .problems import mlp, same, vectors, weights

pytest.importorskip("lightning")
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, StochasticWeightAveraging
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import FSDPStrategy

from ssgd.integrations.lightning import SymmetricNoise

LEVEL, SEED, SIZE, EPOCHS = 0.3, 5, 6, 2
X, Y = vectors(4 * SIZE, dtype=torch.float32)
BATCHES = list(DataLoader(TensorDataset(X, Y), SIZE))  # not views: a sum's last bit depends on where a tensor lies

pytestmark = pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning")


@pytest.fixture(autouse=True)
def quiet():
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Net(LightningModule):
    """The shared net on the shared vectors; ``wrap`` is around its optimizer."""

    def __init__(self, wrap=lambda base: base, decay=False):
        super().__init__()
        self.net = mlp(torch.float32)
        self.wrap, self.decay = wrap, decay

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = self.wrap(momentum_sgd(self.net))
        return ([optimizer], [StepLR(optimizer, 1, 0.5)]) if self.decay else optimizer


def momentum_sgd(net):
    return SGD(net.parameters(), lr=0.1, momentum=0.9)


def noisy(base, noise=LEVEL):
    return SSGD(base, noise, seed=SEED)


def callback(**options):
    return SymmetricNoise(LEVEL, seed=SEED, **options)


def fit(net, *callbacks, data=None, ckpt=None, **options):
    """A training in Lightning; its trainer."""
    options = {"max_epochs": EPOCHS, **options}
    if options.get("precision") == "16-mixed":  # which Lightning takes for bf16 on a CPU
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
        options = {**options, "precision": None, "plugins": [MixedPrecision("16-mixed", "cpu", scaler)]}
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=any(isinstance(c, ModelCheckpoint) for c in callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
        **options,
    )
    trainer.fit(net, DataLoader(TensorDataset(X, Y), SIZE) if data is None else data, ckpt_path=ckpt)
    return trainer


def by_hand(split=False, accumulate_grad_batches=1, gradient_clip_val=None, precision=None, decay=False):
    """The same training in a loop of its own."""
    net = mlp(torch.float32)
    opt = noisy(momentum_sgd(net))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4, enabled=precision == "16-mixed")
    dtype = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}.get(precision)
    for _ in range(EPOCHS):
        for i, (x, y) in enumerate(BATCHES, start=1):
            for point, (xb, yb) in opt.split(x, y) if split else ((p, (x, y)) for p in opt.points()):
                with point:
                    with nullcontext() if dtype is None else torch.autocast("cpu", dtype):
                        loss = F.cross_entropy(net(xb), yb)
                    scaler.scale(loss / accumulate_grad_batches).backward()
            if i % accumulate_grad_batches == 0:
                scaler.unscale_(opt)
                if gradient_clip_val is not None:
                    torch.nn.utils.clip_grad_norm_(net.parameters(), gradient_clip_val)
                scaler.step(opt)
                scaler.update()
                opt.zero_grad()
        if decay:
            opt.param_groups[0]["lr"] *= 0.5
    return net


# --- the same training ------------------------------------------------------------------------------------------------


def loss_of(net):
    with torch.no_grad():
        return F.cross_entropy(net(X), Y)


def test_plain_and_symmetric_training_both_train():
    nets = [Net(), Net(noisy), Net()]
    start = loss_of(nets[0].net)
    fit(nets[0], max_epochs=10)
    fit(nets[1], max_epochs=10)
    fit(nets[2], callback(split=True), max_epochs=10)
    assert all(loss_of(net.net) < 0.8 * start for net in nets)
    assert not any(same(a, b) for a, b in pairwise(nets))


@pytest.mark.parametrize("options", [{}, {"precision": "bf16-mixed"}, {"decay": True}], ids=str)
def test_an_ssgd_from_configure_optimizers_takes_the_steps_of_a_loop(options):
    net = Net(noisy, decay=options.get("decay", False))
    fit(net, **{key: value for key, value in options.items() if key != "decay"})
    assert same(net.net, by_hand(**options))


SERVED = [
    {},
    {"split": True},
    {"decay": True},
    {"gradient_clip_val": 0.05},
    {"precision": "bf16-mixed", "split": True},
    {"precision": "16-mixed", "gradient_clip_val": 0.05},
    {"accumulate_grad_batches": 2, "split": True},
    {"accumulate_grad_batches": 4, "precision": "16-mixed", "gradient_clip_val": 0.05, "decay": True},
]


@pytest.mark.parametrize("options", SERVED, ids=str)
@pytest.mark.parametrize("given", ["base", "SSGD"])
def test_the_callback_takes_the_steps_of_a_loop(options, given):
    trainer_options = {key: value for key, value in options.items() if key not in ("split", "decay")}
    split = options.get("split", False)
    net = Net(noisy if given == "SSGD" else lambda base: base, options.get("decay", False))
    fit(net, SymmetricNoise(split=split) if given == "SSGD" else callback(split=split), **trainer_options)
    assert same(net.net, by_hand(**options))


@pytest.mark.parametrize("way", ["SSGD", "callback", "split"])
@pytest.mark.parametrize(
    "options", [{}, {"accumulate_grad_batches": 2, "gradient_clip_val": 0.05}, {"precision": "16-mixed"}], ids=str
)
def test_level_zero_is_plain_training_bitwise(way, options):
    plain, net = Net(), Net((lambda base: noisy(base, 0.0)) if way == "SSGD" else lambda base: base)
    before = weights(plain)
    fit(plain, **options)
    if way == "SSGD":
        fit(net, *[SymmetricNoise()] * bool(options), **options)
    else:
        fit(net, SymmetricNoise(0.0, split=way == "split"), **options)
    assert same(plain, net) and not same(plain, before)


class ByHand(Net):
    """With manual optimization."""

    automatic_optimization = False

    def training_step(self, batch, batch_idx):
        x, y = batch
        opt = self.optimizers()
        for point in opt.points():
            with point:
                self.manual_backward(F.cross_entropy(self.net(x), y))
        opt.step()
        opt.zero_grad()


@pytest.mark.parametrize("precision", [None, "16-mixed"])
def test_manual_optimization(precision):
    net = ByHand()
    trainer = fit(net, callback(), precision=precision)
    assert same(net.net, by_hand(precision=precision)) and trainer.global_step == EPOCHS * len(BATCHES)


def test_a_trainer_can_fit_again():
    net = Net()
    trainer = fit(net, callback(), max_epochs=1)
    trainer.fit_loop.max_epochs = 2
    trainer.fit(net, DataLoader(TensorDataset(X, Y), SIZE))
    hand = mlp(torch.float32)
    for _ in range(2):
        opt = noisy(momentum_sgd(hand))  # configure_optimizers is called again
        for x, y in BATCHES:
            for point in opt.points():
                with point:
                    F.cross_entropy(hand(x), y).backward()
            opt.step()
            opt.zero_grad()
    assert same(net.net, hand)


@pytest.mark.parametrize("precision", [None, "16-mixed"])
def test_a_batch_that_training_step_skips_changes_nothing(precision):
    class Skipping(Net):
        def training_step(self, batch, batch_idx):
            return None if batch_idx == 1 else super().training_step(batch, batch_idx)

        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.seen = [*getattr(self, "seen", []), weights(self)]

    net = Skipping()
    fit(net, callback(excess_every=1), max_epochs=1, precision=precision)
    assert [same(a, b) for a, b in pairwise(net.seen)] == [True, False, False]


class SkipsAt(Net):
    """``training_step`` returns None in some of its calls."""

    def __init__(self, *calls):
        super().__init__()
        self.skipped, self.calls, self.seen = calls, 0, []

    def training_step(self, batch, batch_idx):
        self.calls += 1
        return None if self.calls in self.skipped else super().training_step(batch, batch_idx)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.seen.append((bool(outputs), weights(self)))


@pytest.mark.parametrize("precision", [None, "16-mixed"])
@pytest.mark.parametrize("call", [3, 4], ids=["at w + n", "at w − n"])
def test_a_batch_that_is_skipped_at_one_point_is_skipped(call, precision):
    net, watch = SkipsAt(call), Watch()
    fit(net, callback(), watch, max_epochs=1, precision=precision)
    assert [outputs for outputs, _ in net.seen] == [True, False, True, True]
    assert [same(a, b) for (_, a), (_, b) in pairwise(net.seen)] == [True, False, False]
    assert watch.rows[0]["loss_plus"] == watch.rows[1]["loss_plus"] != watch.rows[2]["loss_plus"]


def test_batches_skipped_among_accumulated_ones():
    first, half, second = SkipsAt(1), SkipsAt(2), SkipsAt(3)
    for net in (first, half, second):
        fit(net, callback(), max_epochs=1, accumulate_grad_batches=2)
        (_, one), (_, two), *_ = net.seen
        assert not same(one, two)  # the step is that of the other batch
    assert same(first, half) and not same(first, second)
    late = SkipsAt(4)
    before = weights(late)
    with pytest.raises(RuntimeError, match="joined those of earlier batches: skip a batch at all its points"):
        fit(late, callback(), max_epochs=1, accumulate_grad_batches=2)
    assert same(late, before)


def test_weight_averaging_has_the_last_word():
    """Lightning ends its pass for batch-norm with a step of old gradients; there is no such step under noise."""

    class Normed(Net):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.net = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))
            self.starts = []

        def on_train_epoch_start(self):
            self.starts.append(weights(self))

    plain, clean, net = Normed(), Normed(), Normed()
    for each, callbacks in ((plain, []), (clean, [SymmetricNoise(0.0)]), (net, [callback()])):
        fit(each, StochasticWeightAveraging(0.01, swa_epoch_start=1), *callbacks, max_epochs=3)
    assert same(plain, clean)
    assert same(net, net.starts[-1]) and not any(same(net, earlier) for earlier in net.starts[:-1])


def test_an_exception_leaves_clean_weights():
    class Failing(Net):
        def training_step(self, batch, batch_idx):
            super().training_step(batch, batch_idx)
            self.moved = not same(self, self.before)
            raise ArithmeticError("out of luck")

    net = Failing()
    net.before = weights(net)
    with pytest.raises(ArithmeticError):
        fit(net, callback())
    assert net.moved and same(net, net.before)


# --- resume -----------------------------------------------------------------------------------------------------------


class Stateful:
    """A loader that Lightning can continue within an epoch."""

    def __init__(self):
        self.position = 0

    def __len__(self):
        return len(BATCHES)

    def __iter__(self):
        while self.position < len(BATCHES):
            self.position += 1
            yield BATCHES[self.position - 1]
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


@pytest.mark.parametrize("way", ["SSGD", "callback"])
@pytest.mark.parametrize("at", [4, 6], ids=["after an epoch", "within an epoch"])
def test_resume_is_bitwise(way, at, tmp_path):
    wrap = (lambda base: SSGD(base, LEVEL)) if way == "SSGD" else lambda base: base  # with torch's seed

    def part(seed, **options):
        net = Net(wrap, decay=True)
        torch.manual_seed(seed)
        saving = ModelCheckpoint(tmp_path, every_n_train_steps=at, filename=f"{{step}}-{seed}")
        extra = [] if way == "SSGD" else [SymmetricNoise(LEVEL, split=True)]
        fit(net, saving, *extra, data=Stateful(), **options)
        return net

    whole = part(7, max_epochs=3)
    part(7, max_steps=at)
    resumed = part(8, max_epochs=3, ckpt=tmp_path / f"step={at}-7.ckpt")
    assert same(whole, resumed)
    assert not same(whole, part(8, max_epochs=3))  # the seed came from the checkpoint


def test_a_checkpoint_of_a_noisy_run_goes_on_without(tmp_path):
    fit(Net(), callback(), ModelCheckpoint(tmp_path, filename="{epoch}"), max_epochs=1)
    plain, clean = Net(), Net()
    fit(plain, ckpt=tmp_path / "epoch=0.ckpt")
    fit(clean, ckpt=tmp_path / "epoch=0.ckpt", max_epochs=1)
    assert type(plain.trainer.optimizers[0]) is SGD and not same(plain, clean)


def test_a_plain_checkpoint_goes_on_with_noise(tmp_path):
    saving = ModelCheckpoint(tmp_path, filename="{epoch}")
    fit(Net(), saving, max_epochs=1)
    plain, net = Net(), Net()
    fit(plain, ckpt=tmp_path / "epoch=0.ckpt")
    fit(net, callback(), ckpt=tmp_path / "epoch=0.ckpt")
    assert not same(plain, net)
    momentum = net.trainer.optimizers[0].state[net.net[0].weight]["momentum_buffer"]
    assert momentum.abs().sum() > 0 and net.trainer.optimizers[0].param_groups[0]["noise_step"] == len(BATCHES)


# --- logs -------------------------------------------------------------------------------------------------------------


class Watch(Callback):
    """What was logged in each batch."""

    def __init__(self):
        self.rows = []

    def on_train_batch_end(self, trainer, *args):
        self.rows.append({name: value.clone() for name, value in trainer.callback_metrics.items()})


@pytest.mark.parametrize("accumulate", [1, 2])
def test_losses_at_both_signs_and_the_excess_are_logged(accumulate):
    plain, net, watch = Net(), Net(), Watch()
    fit(plain, callback(), max_epochs=1, accumulate_grad_batches=accumulate)
    noise = callback(excess_every=2)
    fit(net, noise, watch, max_epochs=1, accumulate_grad_batches=accumulate, log_every_n_steps=1)
    assert same(plain, net)

    hand = mlp(torch.float32)
    opt = noisy(momentum_sgd(hand))
    for i, (x, y) in enumerate(BATCHES):
        if i % (2 * accumulate) == 0:
            excess = opt.symmetric_excess(lambda x=x, y=y: F.cross_entropy(hand(x), y))
        losses = []
        for point in opt.points():
            with point:
                losses.append(F.cross_entropy(hand(x), y))
                (losses[-1] / accumulate).backward()
        if (i + 1) % accumulate == 0:
            opt.step()
            opt.zero_grad()
            row = watch.rows[i]
            torch.testing.assert_close([row["loss_plus"], row["loss_minus"]], [loss.detach() for loss in losses])
            torch.testing.assert_close(row["symmetric_excess"], excess)


# --- what is refused --------------------------------------------------------------------------------------------------


class Clipping(Net):
    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        self.clip_gradients(optimizer, 0.1, "norm")


@pytest.mark.parametrize(
    ("net", "options", "sentence"),
    [
        (Net, {"accumulate_grad_batches": 2}, "accumulate_grad_batches=2 would step with .+SymmetricNoise"),
        (Net, {"gradient_clip_val": 0.5}, "gradient_clip_val=0.5 would step with .+SymmetricNoise"),
        (Net, {"precision": "16-mixed"}, r"step\(\) without a new pass: .+ssgd\.integrations"),
        (Clipping, {}, r"configure_gradient_clipping\(\) of the module's own would step with .+SymmetricNoise"),
        (ByHand, {}, "manual optimization would step with .+SymmetricNoise"),
    ],
    ids=["accumulation", "clipping", "float16", "own clipping", "manual"],
)
def test_what_a_closure_alone_gets_wrong_names_the_callback(net, options, sentence):
    net = net(noisy)
    before = weights(net)
    with pytest.raises(RuntimeError, match=sentence):
        fit(net, **options)
    assert same(net, before)


def test_a_closure_of_ones_own_is_left_alone():
    class Mine:
        _trainer = "something else"

    def closure(mine, x, y):
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        return loss

    net = mlp(torch.float32)
    opt = noisy(momentum_sgd(net))
    for _ in range(EPOCHS):
        for x, y in BATCHES:
            opt.step(partial(closure, Mine(), x, y))
    assert same(net, by_hand())


class DrawsItsOwn(Net):
    def training_step(self, dataloader_iter):
        return super().training_step(next(dataloader_iter)[0], 0)


@pytest.mark.parametrize(
    ("net", "noise", "sentence"),
    [
        (Net, lambda: SymmetricNoise(), "needs a level: give SymmetricNoise"),
        (lambda: Net(noisy), callback, "returned a SSGD, which has its own level"),
        (lambda: Net(lambda b: SAM(b, 0.1)), lambda: SymmetricNoise(split=True), r"SAM has no split\(\)"),
        (Net, lambda: SymmetricNoise(-1.0), "noise level"),
        (Net, lambda: SymmetricNoise(0.1, excess_every=0), "excess_every must be a whole number"),
        (DrawsItsOwn, callback, r"write training_step\(batch, batch_idx\)"),
    ],
    ids=["no level", "two levels", "no split", "negative", "every 0", "dataloader_iter"],
)
def test_refused_with_the_remedy(net, noise, sentence):
    with pytest.raises(ValueError, match=sentence):
        fit(net(), noise())


def test_flat_weights_are_refused(monkeypatch):
    trainer = Trainer(accelerator="cpu", devices=1, logger=False, enable_checkpointing=False)
    monkeypatch.setattr(trainer.strategy, "__class__", FSDPStrategy)
    with pytest.raises(ValueError, match="use ModelParallelStrategy"):
        callback().on_fit_start(trainer, Net())


def test_without_lightning_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    monkeypatch.delitem(sys.modules, "ssgd.integrations.lightning")
    with pytest.raises(ImportError, match=r"pip install 'ssgd\[lightning\]'"):
        importlib.import_module("ssgd.integrations.lightning")


# --- the example ------------------------------------------------------------------------------------------------------


def test_the_example_trains():
    place = Path(__file__).parent.parent / "examples" / "lightning_cifar.py"
    specification = importlib.util.spec_from_file_location("lightning_cifar", place)
    example = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(example)
    images = digit_images()
    quiet = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}
    for callbacks in ([], [SymmetricNoise(0.15, split=True)]):
        assert example.train(images, *callbacks, epochs=3, **quiet) > 80
