"""Language models: counts, first weights, what they remember through the passes of a step and from step to step."""

import copy
import math
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD

from ssgd import SSGD, methods
from ssgd.lab.data.text import TextSource, fake_text
from ssgd.lab.models import MODELS, build
from ssgd.lab.models.lstm import LanguageModel, generate

WORDS, ROWS, STEPS = 11, 4, 6


@pytest.fixture
def net():
    torch.manual_seed(0)
    return LanguageModel(WORDS, width=5, layers=2, dropout=0.0, initial_range=0.8).double()


def batch(seed=0, rows=ROWS, steps=STEPS):
    return torch.randint(WORDS, (rows, steps), generator=torch.Generator().manual_seed(seed))


def by_hand(net, x, state=None):
    """Logits and where the net ends, [rows, 2, layers, width], gate by gate."""
    state = torch.zeros(len(x), 2, len(net.layers), 5, dtype=torch.double) if state is None else state
    h, c = ([state[:, i, layer] for layer in range(len(net.layers))] for i in (0, 1))
    logits = []
    for words in x.T:
        out = net.embedding.weight[words]
        for i, layer in enumerate(net.layers):
            gates = F.linear(out, layer.weight_ih_l0, layer.bias_ih_l0)
            gates = gates + F.linear(h[i], layer.weight_hh_l0, layer.bias_hh_l0)
            enter, forget, new, leave = gates.chunk(4, 1)
            c[i] = forget.sigmoid() * c[i] + enter.sigmoid() * new.tanh()
            h[i] = out = leave.sigmoid() * c[i].tanh()
        logits.append(F.linear(out, net.head.weight, net.head.bias))
    return torch.stack(logits, 1), torch.stack([torch.stack(h, 1), torch.stack(c, 1)], 1)


# --- the net --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "count"), [("lstm-large", 66_034_000), ("lstm-small", 6_732_400)])
def test_parameter_counts(name, count):
    with torch.device("meta"):
        net = build(name, 10_000)
    assert sum(p.numel() for p in net.parameters()) == count


def test_the_page_has_every_model_with_its_count():
    page = (Path(__file__).parent.parent / "docs" / "language.md").read_text()
    rows = re.findall(r"^\| `((?:lstm|gpt)-\w+)` \| [\d ×]+ \| ([\d,]+) \|", page, re.MULTILINE)
    with torch.device("meta"):
        nets = {
            name: build(name, 50 if name.startswith("gpt") else 10_000)
            for name, model in MODELS.items()
            if model.kind == "language"
        }
    assert rows == [(name, f"{sum(p.numel() for p in net.parameters()):,}") for name, net in nets.items()]


@pytest.mark.parametrize(
    ("name", "layers", "width", "dropout", "reach"),
    [("lstm-large", 2, 1500, 0.65, 0.04), ("lstm-small", 1, 300, 0.5, 0.05), ("lstm-tiny", 2, 32, 0.1, 0.3)],
)
def test_the_models_by_name(name, layers, width, dropout, reach, monkeypatch):
    ranges = []
    monkeypatch.setattr(nn.init, "uniform_", lambda p, low, high: ranges.append((p.shape, low, high)))
    with torch.device("meta"):
        net = build(name, 50)
    assert MODELS[name].kind == "language" and net.embedding.weight.shape == net.head.weight.shape == (50, width)
    assert [layer.hidden_size for layer in net.layers] == [width] * layers and net.dropout.p == dropout
    own = ranges[-len(list(net.parameters())) :]  # the first ones are torch's own
    assert own == [(p.shape, -reach, reach) for p in net.parameters()]


def test_first_weights_and_biases_are_uniform():
    torch.manual_seed(0)
    for name, parameter in LanguageModel(100, 64, 2, 0.5, 0.04).named_parameters():
        assert 0.035 < parameter.max() <= 0.04 and -0.035 > parameter.min() >= -0.04, name
        assert parameter.std().item() == pytest.approx(0.04 / 3**0.5, rel=0.15), name


def test_the_net_is_what_it_is_by_hand(net):
    net.reset(ROWS)
    end = None
    for seed in range(3):
        x = batch(seed)
        expected, end = by_hand(net, x, end)
        torch.testing.assert_close(net(x), expected)
        net.carry()
        torch.testing.assert_close(net.carried(), end)


def test_dropout_is_on_forward_paths_and_follows_torchs_seed():
    torch.manual_seed(0)
    net = LanguageModel(WORDS, 40, 2, 0.4, 0.5)
    seen = []
    for module in (*net.layers, net.head):
        module.register_forward_pre_hook(lambda module, inputs: seen.append((inputs[0] == 0).double().mean()))
    net.reset(ROWS)
    logits = []
    for _ in range(2):
        torch.manual_seed(1)
        logits.append(net(batch()))
    assert torch.equal(*logits) and len(seen) == 6
    assert torch.stack(seen[:3]).tolist() == pytest.approx([0.4] * 3, abs=0.06)
    assert all(layer.dropout == 0 for layer in net.layers)
    net.eval()
    net.reset(ROWS)
    net(batch())
    assert max(seen[6:]) == 0


# --- through the passes of a step -----------------------------------------------------------------------------------


def test_both_signs_begin_at_the_same_state_and_the_mean_of_their_ends_is_carried(net):
    opt = SSGD(SGD(net.parameters(), lr=0.1), 0.3)
    net.reset(ROWS)
    state = net.carried()
    for seed in range(3):
        x, ends = batch(seed), []
        for point in opt.points():
            with point:
                logits = net(x)
                expected, end = by_hand(net, x, state)
                torch.testing.assert_close(logits, expected)
                ends.append(end.detach())
                logits.square().mean().backward()
        assert torch.equal(net.carried(), state)  # until carry()
        net.carry()
        assert not torch.allclose(*ends)
        torch.testing.assert_close(net.carried(), (ends[0] + ends[1]) / 2)
        state = net.carried()
        opt.step()
        opt.zero_grad()


@pytest.mark.parametrize("rows", [4, 5])
def test_each_half_goes_on_from_its_own_rows(net, rows):
    opt = SSGD(SGD(net.parameters(), lr=0.1), 0.3)
    net.reset(rows)
    state = torch.zeros(rows, 2, 2, 5, dtype=torch.double)
    for seed in range(3):
        x, ends = batch(seed, rows), []
        for point, (xb, mine) in opt.split(x, state):
            with point:
                logits = net(xb)
                expected, end = by_hand(net, xb, mine)
                torch.testing.assert_close(logits, expected)
                ends.append(end.detach())
                logits.square().mean().backward()
        net.carry()
        state = torch.cat(ends)
        torch.testing.assert_close(net.carried(), state)
        opt.step()
        opt.zero_grad()


def test_several_pairs_of_halves_wrap_around(net):
    net.reset(5)
    x = batch(rows=5)
    for part in (x[:3], x[3:], x[:3], x[3:]):
        net(part)
    net.carry()
    torch.testing.assert_close(net.carried(), by_hand(net, x)[1])


def test_nothing_is_learned_through_the_step_before(net):
    net.reset(ROWS)
    net(batch(0)).square().mean().backward()
    net.carry()
    state = net.carried()
    net.zero_grad()
    net(batch(1)).square().mean().backward()
    found = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    by_hand(net, batch(1), state)[0].square().mean().backward()
    for p, gradient in zip(net.parameters(), found, strict=True):
        torch.testing.assert_close(gradient, p.grad)


def test_a_row_without_a_pass_keeps_its_state(net):
    net.reset(ROWS)
    net(batch(0))
    net.carry()
    before = net.carried()
    net(batch(1)[:2])
    net.carry()
    assert torch.equal(net.carried()[2:], before[2:]) and not torch.allclose(net.carried()[:2], before[:2])


def test_the_tensors_stay_where_they_are(net):
    net.reset(ROWS)
    addresses = [b.data_ptr() for b in net.buffers()]
    net(batch())
    net.carry()
    net.carry_from(net.carried())
    net.reset(ROWS)
    assert len(addresses) == 3 and [b.data_ptr() for b in net.buffers()] == addresses
    assert all(not b.any() for b in net.buffers())


# --- evaluation, checkpoints ----------------------------------------------------------------------------------------


def test_evaluation_reads_on_and_leaves_training_alone(net):
    net.reset(ROWS)
    net(batch(0))
    net.carry()
    before = net.carried()
    net.eval()
    net.reset(3)
    x = batch(7, rows=3, steps=2 * STEPS + 1)
    with torch.no_grad():
        windows = [net(part) for part in x.split(STEPS, 1)]
    torch.testing.assert_close(torch.cat(windows, 1), by_hand(net, x)[0])
    net.train()
    assert torch.equal(net.carried(), before)
    torch.testing.assert_close(net(batch(1)), by_hand(net, batch(1), before)[0])


def test_an_evaluation_may_end_with_fewer_rows(net):
    net.eval()
    net.reset(ROWS)
    x = batch(steps=STEPS + 1)
    net(x[:, :STEPS])
    torch.testing.assert_close(net(x[:2, STEPS:]), by_hand(net, x)[0][:2, STEPS:])


def test_gradients_in_evaluation_end_where_the_batch_begins(net):
    net.eval()
    net.reset(ROWS)
    losses = [net(batch(seed)).square().mean() for seed in (0, 1)]
    (losses[0] + losses[1]).backward()
    found = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    logits, state = by_hand(net, batch(0))
    (logits.square().mean() + by_hand(net, batch(1), state.detach())[0].square().mean()).backward()
    for p, gradient in zip(net.parameters(), found, strict=True):
        torch.testing.assert_close(gradient, p.grad)


def test_a_checkpoint_goes_on_bitwise(net):
    net.reset(ROWS)
    net(batch(0))
    net.carry()
    other = LanguageModel(WORDS, 5, 2, 0.0, 0.8).double()
    other.load_state_dict(net.state_dict())
    other.carry_from(net.carried())
    assert torch.equal(other(batch(1)), net(batch(1)))
    assert not any("memory" in name for name in net.state_dict())
    with pytest.raises(ValueError, match=r"rows of \(2, 2, 6\), this net's have \(2, 2, 5\)"):
        net.carry_from(torch.zeros(ROWS, 2, 2, 6))


def test_ranks_do_not_share_what_they_remember(net):
    """DDP would send rank 0's buffers to all others, but for those it is told of."""
    net.reset(ROWS)
    assert sorted(name for name, _ in net.named_buffers()) == sorted(net._ddp_params_and_buffers_to_ignore)


@pytest.mark.parametrize("training", [True, False])
def test_bfloat16(training):
    torch.manual_seed(0)
    net = LanguageModel(WORDS, 8, 2, 0.0, 0.8).train(training)
    net.reset(ROWS)
    plain = copy.deepcopy(net)
    for seed in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            logits = net(batch(seed))
        expected = plain(batch(seed))
        if training:
            net.carry()
            plain.carry()
        torch.testing.assert_close(logits.float(), expected, atol=0.05, rtol=0)
    assert net.carried().dtype == torch.float32


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
def test_rows_that_do_not_fit_are_refused(net, training):
    net.train(training)
    with pytest.raises(ValueError, match=r"call reset\(4\) before the first batch"):
        net(batch())
    with pytest.raises(ValueError, match="at least 1 row, not 0"):
        net.reset(0)
    net.reset(3)
    with pytest.raises(ValueError, match="a pass over 4 rows does not fit after 0 of the batch's 3"):
        net(batch())


def test_a_pass_over_the_end_of_the_batch_is_refused(net):
    net.reset(ROWS)
    net(batch()[:3])
    with pytest.raises(ValueError, match="a pass over 3 rows does not fit after 3 of the batch's 4"):
        net(batch()[:3])


# --- with optimizers ------------------------------------------------------------------------------------------------


def test_noise_moves_the_weights_that_the_layers_compute_with(net):
    """nn.LSTM computes with its list of flat weights: they must be the moved parameters, not copies."""
    opt = SSGD(SGD(net.parameters(), lr=0.1), 0.5)
    recurrent = {id(layer.weight_hh_l0) for layer in net.layers}
    assert recurrent < {id(p) for p in opt.selected} and all(p.dim() == 2 for p in opt.selected)
    addresses = [w.data_ptr() for layer in net.layers for w in layer._flat_weights]
    net.reset(ROWS)
    for point in opt.points():
        with point:
            logits = net(batch())
            torch.testing.assert_close(logits, by_hand(net, batch())[0])
            logits.square().mean().backward()
    net.carry()
    opt.step()
    for layer in net.layers:
        assert all(
            w is getattr(layer, name) for w, name in zip(layer._flat_weights, layer._flat_weights_names, strict=True)
        )
    assert [w.data_ptr() for layer in net.layers for w in layer._flat_weights] == addresses


@pytest.mark.parametrize("name", ["base", "both", "split", "sam", "swa"])
def test_methods_learn_the_generated_text(name):
    torch.manual_seed(0)
    source, method = TextSource(fake_text()), methods.get(name)
    net = build("lstm-tiny", source.classes)
    options = {"noise": 0.2} if name in ("both", "split") else {}
    net.reset(20)  # before an average is made, which then has the same tensors
    opt = method.build(SGD(net.parameters(), lr=0.5), net, **options)
    for epoch in range(12):
        net.reset(20)
        for step in range(source.steps(20)):
            for point, (x, y) in method.batches(opt, *source.epoch(0, epoch).batch(step, 20)):
                with point:
                    (F.cross_entropy(net(x).flatten(0, 1), y.flatten(), reduction="sum") / len(y)).backward()
            net.carry()
            nn.utils.clip_grad_norm_(net.parameters(), 10)
            opt.step()
            opt.zero_grad()
    judged = opt.averaged.module if name == "swa" else net
    assert perplexity(judged, source) < 12  # 30 words, of which three are likely


@torch.no_grad()
def perplexity(net, source):
    net.eval()
    loss = words = 0
    for i, (x, y) in enumerate(source.in_order("test", 20)):
        if i == 0:
            net.reset(len(x))
        loss += F.cross_entropy(net(x).flatten(0, 1), y.flatten(), reduction="sum").item()
        words += y.numel()
    return torch.tensor(loss / words).exp().item()


# --- samples --------------------------------------------------------------------------------------------------------


def test_generated_words_are_a_function_of_the_seed(net):
    vocabulary = ("<eos>", *"abcdefghij")
    net.reset(ROWS)
    net(batch())
    net.carry()
    before = net.carried()
    texts = [generate(net, vocabulary, "c a", 50, seed=seed) for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2] and texts[0].startswith("c a")
    assert "<eos>" not in texts[0] and "\n" in texts[0] and " \n" not in texts[0] and "\n " not in texts[0]
    assert net.training and torch.equal(net.carried(), before)


def test_generation_follows_the_net(net):
    """Cold, it takes the likeliest word after all words so far."""
    vocabulary = ("<eos>", *"abcdefghij")
    with torch.no_grad():
        net.head.bias[0] = -9
    words = [0, 3]
    for _ in range(8):
        words.append(int(by_hand(net, torch.tensor([words]))[0][0, -1].argmax()))
    expected = " ".join(vocabulary[word] for word in words[1:])
    assert "<eos>" not in expected
    assert generate(net, vocabulary, "c", 8, temperature=1e-4) == expected


def test_generation_refuses_what_it_cannot_do(net):
    with pytest.raises(ValueError, match="'z' is not in the vocabulary"):
        generate(net, ("<eos>", "a"), "a z")
    for temperature in (0, -1, 1e-320, math.nan, math.inf):
        with pytest.raises(
            ValueError, match=f"at least 1e-06 and finite, and length at least 1, not {temperature} and 5"
        ):
            generate(net, ("<eos>", "a"), length=5, temperature=temperature)
